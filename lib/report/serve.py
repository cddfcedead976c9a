"""A web server for the report, reachable from this machine only."""

import http.server
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

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
            f"port {port}: {error.strerror}; choose another: make serve PORT=8001"
        ) from error


@click.command()
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    default=Path("reports/report.html"),
    show_default=True,
    help="The page to serve.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes a free port.",
)
def main(page: Path, port: int) -> None:
    """Serve the report on this machine until Ctrl-C."""
    if not page.is_file():
        raise UserError(f"{page} is missing. The report stage writes it: run `make report`.")
    with report_server(page, port=port) as server:
        # Port 0 was replaced by the kernel's choice.
        click.echo(f"http://{HOST}:{server.server_address[1]} (Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()


if __name__ == "__main__":
    main()
