"""Serve the report to a browser on this machine, and to no other."""

import http.server
from pathlib import Path

import click

from lib.core.errors import UserError

HOST = "127.0.0.1"


def report_server(page: Path, *, port: int) -> http.server.ThreadingHTTPServer:
    """A server of one page, whatever the path, reachable from this machine only.

    Args:
        page: what is served.
        port: 0 takes a free one; `server_address` tells which.

    Raises:
        UserError: the port is taken.
    """

    class PageHandler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(page)

        def log_message(self, format: str, *args: object) -> None:
            """No line for a request."""

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
        click.echo(f"http://{HOST}:{server.server_address[1]} (Ctrl-C ends)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()


if __name__ == "__main__":
    main()
