"""farm history: how a model or a device did over its runs; brings the history up to date first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli._common import inventory_option, json_option, print_json, show
from farm.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from farm.history import Trail

EPILOG = """\b
Examples:
  farm history embedder_300m
  farm history pixel9 --last 60
  farm history 'mobile*' --out /srv/farm/runs --json

\b
The history is an index of run folders (history.sqlite beside them, or what the inventory's store: names) and is
brought up to date by this command. Verdicts run from old to new; a damaged history is kept aside and made anew."""


@click.command(epilog=EPILOG)
@click.argument("name", metavar="MODEL|DEVICE")
@inventory_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder that holds the runs (default: the inventory's store, else runs).",
)
@click.option(
    "--database", metavar="FILE|URL", help="The history (default: the inventory's store, else history.sqlite there)."
)
@click.option("--last", type=click.IntRange(min=1), default=30, show_default=True, help="So many runs back.")
@json_option
def command(
    name: str, inventory_path: Path | None, out: Path | None, database: str | None, last: int, as_json: bool
) -> None:
    """Show verdicts, SNR and latency of MODEL or DEVICE over its runs."""
    from farm.history import open_database, trails
    from farm.history.places import places
    from farm.history.record import sync

    root, where = places(inventory_path, out, database)
    if not root.is_dir() and "://" not in str(where):
        raise InvalidInput(
            Problem(message="there is no such folder of runs", file=str(root), cure="name it with --out")
        )
    with open_database(where) as opened:
        for sentence in (*opened.notes, *sync(opened, root)):
            print(f"farm: {sentence}", file=sys.stderr)
        found = trails(opened, name, last=last)
    if as_json:
        print_json({"schema_version": 1, "trails": found})
    else:
        show(render(found))


def render(trails: tuple[Trail, ...]) -> str:
    """Return one row per trail: verdicts old to new, the last one, SNR and latency with their trend."""
    from tabulate import tabulate

    from farm.history.trails import sparkline
    from farm.report.words import SYMBOLS

    rows = []
    for trail in trails:
        snr = tuple(p.snr_db for p in trail.points)
        latency = tuple(None if p.throttled else p.latency_ms for p in trail.points)
        last = trail.last
        rows.append(
            (
                trail.model,
                trail.device,
                trail.config,
                trail.runtime,
                "".join(SYMBOLS.get(p.verdict, "?") for p in trail.points),
                " ".join((last.verdict, *last.reasons)) + (" (known)" if last.known else ""),
                _figure(last.snr_db, "dB", 0),
                sparkline(snr),
                _figure(last.latency_ms, "ms", 2),
                sparkline(latency),
            )
        )
    headers = ("model", "device", "config", "runtime", "runs", "last", "SNR", "trend", "latency", "trend")
    first = min(p.started for t in trails for p in t.points)
    final = max(p.started for t in trails for p in t.points)
    return f"{tabulate(rows, headers=headers, disable_numparse=True)}\n\n{first} to {final}; old to new."


def _figure(value: float | None, unit: str, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f} {unit}"
