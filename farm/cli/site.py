"""farm site: a static site of nights, models, devices and GPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from farm.cli._common import inventory_option, show
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm site --inventory inventory.yaml --output public
  farm site --out /srv/farm/runs --output /var/www/farm

\b
Open index.html from the disk or serve the folder with any web server. Reports of runs are linked where they lie."""


@click.command(epilog=EPILOG)
@inventory_option
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder that holds the runs.")
@click.option(
    "--database", metavar="FILE|URL", help="The history (default: the inventory's store, else history.sqlite)."
)
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("site"), show_default=True, help="Folder of the site."
)
def command(inventory_path: Path | None, out: Path | None, database: str | None, output: Path) -> None:
    """Write the site of every run the history holds."""
    from urllib.parse import quote

    from farm.history import open_database
    from farm.history.places import places
    from farm.history.record import sync
    from farm.nightly.kept import nights
    from farm.report.read import run_folders
    from farm.site import build_site

    root, where = places(inventory_path, out, database)
    if not root.is_dir():
        raise InvalidInput(
            Problem(message="there is no such folder of runs", file=str(root), cure="name it with --out")
        )
    way = quote(os.path.relpath(root.resolve(), output.resolve()))
    reports = {f.name: f"{way}/{quote(f.name)}/report.html" for f in run_folders(root) if (f / "report.html").is_file()}
    with open_database(where) as opened:
        for sentence in (*opened.notes, *sync(opened, root)):
            print(f"farm: {sentence}", file=sys.stderr)
        try:
            written = build_site(opened, nights(root), output, reports=reports)
        except OSError as error:
            raise InvalidInput(
                Problem(message=f"cannot be written: {error.strerror or error}", file=str(output))
            ) from error
    show(f"{len(written)} pages; open {written[0]}")
