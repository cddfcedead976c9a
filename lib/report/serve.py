"""A web server for the report, reachable from this machine only."""

import http.server
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib.core.errors import UserError

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost")
"""Accepted `Host` headers; any other name belongs to a page that rebinds DNS to this machine."""


def report_server(page: Path, *, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server, not started yet, that answers every path with one page.

    It is reachable from this machine only.

    Args:
        page: the file to serve.
        port: 0 takes a free port; `server_address` of the server has its number.

    Raises:
        UserError: the port is taken.
    """

    class PageHandler(http.server.SimpleHTTPRequestHandler):
        # The file to send for a path: always the page, so that no other file can be read.
        def translate_path(self, path: str) -> str:
            return str(page)

        def send_head(self) -> Any:
            # DNS rebinding: a foreign page whose name resolves to 127.0.0.1 could read the report.
            # The header Host has the name with a port, "localhost:8000".
            if self.headers.get("Host", "").partition(":")[0].lower() not in OWN_NAMES:
                return self.send_error(403, f"open http://{HOST} or http://localhost instead")
            return super().send_head()

        def handle(self) -> None:
            # The browser may close the page while it is sent.
            with suppress(ConnectionError):
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            """Suppress the log line of a request."""

    try:
        return http.server.ThreadingHTTPServer((HOST, port), PageHandler)
    except OSError as error:
        raise UserError(
            f"port {port}: {error.strerror}; choose another: ./reckon serve --port 8001"
        ) from error
