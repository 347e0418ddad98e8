"""farm metrics: the farm's state as Prometheus text."""

from __future__ import annotations

import time
from pathlib import Path

import click

from farm.cli._common import inventory_option, show
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm metrics --inventory inventory.yaml
  farm metrics --out /srv/farm/runs --output /var/lib/node_exporter/farm.prom

The file is written whole or not at all, as node_exporter's textfile collector needs it."""


@click.command(epilog=EPILOG)
@inventory_option
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder that holds the runs.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write here instead of stdout.")
def command(inventory_path: Path | None, out: Path | None, output: Path | None) -> None:
    """Print verdicts, coverage, devices, disk use and the age of the last good night."""
    from farm import codec
    from farm.inventory import load_inventory
    from farm.nightly.kept import nights
    from farm.prometheus import render
    from farm.report.read import read_matrix

    store = load_inventory(inventory_path).store if inventory_path is not None else None
    root = out or (store.root if store else None) or Path("runs")
    found = nights(root)
    if not found:
        raise InvalidInput(Problem(message="no night is kept here", file=str(root), cure="farm nightly makes one"))
    try:
        matrix = read_matrix(root / found[-1].runs[0])
    except InvalidInput:
        matrix = None  # the night's own summary still tells the most
    text = render(found, matrix, now=time.time())
    if output is None:
        show(text)
        return
    try:
        codec.write_whole(output, text.encode())
    except OSError as error:
        raise InvalidInput(
            Problem(message=f"cannot be written: {error.strerror or error}", file=str(output))
        ) from error
