"""Serve the report to a browser on this machine, and to no other."""

import functools
import http.server
import os
import webbrowser
from pathlib import Path

import click

from lib.errors import UserError

HOST = "127.0.0.1"


def report_server(folder: Path, *, port: int) -> http.server.ThreadingHTTPServer:
    """A server of the files in `folder`, reachable from this machine only.

    Args:
        folder: what is served.
        port: 0 takes a free one; `server_address` tells which.

    Raises:
        UserError: the port is taken.
    """
    handler = functools.partial(QuietHandler, directory=str(folder))
    try:
        return http.server.ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        raise UserError(
            f"port {port}: {error.strerror}; choose another: make serve PORT=8001"
        ) from error


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for every request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing; a missing file still answers 404."""


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
@click.option("--browser/--no-browser", default=True, help="Open the page in the browser.")
def main(page: Path, port: int, browser: bool) -> None:
    """Serve the report on this machine until Ctrl-C."""
    if not page.is_file():
        raise UserError(f"{page} is missing. The report stage writes it: run `make report`.")
    with report_server(page.parent, port=port) as server:
        address = f"http://{HOST}:{server.server_address[1]}/{page.name}"
        click.echo(f"{address} (Ctrl-C ends)")
        if browser and os.isatty(1):
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()


if __name__ == "__main__":
    main()
