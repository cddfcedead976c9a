"""A web server for the report, reachable from this machine only."""

import http.server
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

from lib.core.errors import UserError

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost")
"""Accepted `Host` headers; any other name belongs to a page that rebinds DNS to this machine."""


def report_server(
    page: Path, *, port: int, pages: Mapping[str, Callable[[], str]] | None = None
) -> http.server.ThreadingHTTPServer:
    """Return a server, not started yet, of a page and others that are made when asked for.

    It is reachable from this machine only.

    Args:
        page: the file at / and at its own name.
        port: 0 takes a free port; `server_address` of the server has its number.
        pages: path, such as `/studies/` → HTML. Any other path is 404.

    Raises:
        UserError: the port is taken.
    """
    others = pages or {}

    class PageHandler(http.server.BaseHTTPRequestHandler):
        # Seconds; half a request holds its thread no longer.
        timeout = 10

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            # DNS rebinding: a foreign page whose name resolves to 127.0.0.1 could read the report.
            # The header Host has the name with a port, "localhost:8000".
            if self.headers.get("Host", "").partition(":")[0].lower() not in OWN_NAMES:
                self.send_error(403, f"open http://{HOST} or http://localhost instead")
            elif path in ("/", f"/{page.name}") and page.is_file():
                self._send(page.read_bytes(), modified=page.stat().st_mtime)
            elif path in others:
                self._send(others[path]().encode())
            else:
                self.send_error(404, f"there is {', '.join(['/', *others])}")

        def _send(self, content: bytes, *, modified: float | None = None) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            if modified:
                self.send_header("Last-Modified", formatdate(modified, usegmt=True))
            self.end_headers()
            self.wfile.write(content)

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
