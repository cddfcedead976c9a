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
    """Return a server, not started yet, of one page, at / and at its own name.

    Args:
        port: 0 takes a free port; `server_address` of the server has its number.

    Raises:
        UserError: the port is taken.
    """

    class PageHandler(http.server.SimpleHTTPRequestHandler):
        # Seconds; half a request holds its thread no longer.
        timeout = 10

        def send_head(self) -> Any:
            # DNS rebinding: a foreign page whose name resolves to 127.0.0.1 could read the report.
            # The header Host has the name with a port, "localhost:8000".
            if self.headers.get("Host", "").partition(":")[0].lower() in OWN_NAMES:
                return super().send_head()
            self.send_error(403, f"open http://{HOST} or http://localhost instead")
            return None

        def translate_path(self, path: str) -> str:
            # No file has the name '': 404.
            return str(page) if path.partition("?")[0] in ("/", f"/{page.name}") else ""

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
