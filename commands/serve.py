"""Serve the report and its rollout browser to this machine."""

from pathlib import Path

import click

from lib.core.errors import UserError


@click.command(help=__doc__)
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
    """Serve the report until Ctrl-C."""
    from lib.report.serve import HOST, report_server
    from lib.studies.pages import studies_page

    if not page.is_file():
        raise UserError(f"{page} is missing. The report stage writes it: run `make repro`.")
    pages = {"/studies/": lambda: studies_page(Path("reports/studies"))}
    with report_server(page, port=port, pages=pages) as server:
        # Port 0 was replaced by the kernel's choice.
        address = f"http://{HOST}:{server.server_address[1]}"
        click.echo(f"{address} and the studies at {address}/studies/ (Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()
