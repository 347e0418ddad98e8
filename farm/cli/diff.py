"""farm diff: what changed from one run to another, and why; reads matrix.json alone."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import click

from farm.cli._common import json_option, print_json, show
from farm.errors import InvalidInput, Problem

EARLIER = 8
EPILOG = """\b
Examples:
  farm diff runs/20250101T000000Z-ab12cd runs/20250102T000000Z-34ef56
  farm diff runs/20250102T000000Z-34ef56         against the run before it
  farm diff old/matrix.json new/matrix.json --json

\b
The older run comes first. Each change names its trigger: the model, the runtime, GPU, OS, driver, inputs, limits, or
"nothing changed". Runs beside the older one tell which cells are flaky and how much noise is usual.
Exit codes: 0 nothing newly fails, 1 something does, 2 bad input, 3 less was judged than before."""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("newer", type=click.Path(path_type=Path), required=False, metavar="[RUN]")
@json_option
def command(run: Path, newer: Path | None, as_json: bool) -> int:
    """Show what changed between two runs: failures, fixes, drift, missing and flaky cells, each with its trigger."""
    from farm.diff import compare
    from farm.diff.text import render
    from farm.report.read import earlier_folders, read_earlier, read_matrix

    if newer is None:
        new = read_matrix(run)
        before = earlier_folders(run)
        if not before:
            raise InvalidInput(
                Problem(message="there is no judged run before this one", file=str(run), cure="name two runs")
            )
        older = before[-1]
    else:
        older, new = run, read_matrix(newer)
    old = read_matrix(older)
    earlier, unread = read_earlier(older, EARLIER)
    for problem in unread:
        # A damaged neighbour costs its part in the usual noise, not the diff that was asked for.
        print(f"farm: left out: {problem}", file=sys.stderr)
    diff = compare(old, new, earlier, today=date.today())
    if as_json:
        print_json(diff)
    else:
        show(render(diff))
    return diff.exit_code
