"""farm judge: judge a kept run again, e.g. with other bands; touches no device."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from farm.cli._common import json_option, print_json, show_matrix

EPILOG = """\b
Examples:
  farm judge runs/20250101T000000-ab12cd
  farm judge runs/20250101T000000-ab12cd --json > matrix.json

Works with no device plugged in: everything comes from the run folder.
Exit codes are those of farm sweep."""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--no-functions", is_flag=True, help="Do not run Python functions that the run's assertions name (a run of others)."
)
@json_option
def command(run: Path, no_functions: bool, as_json: bool) -> int:
    """Judge RUN's kept outputs again and write its matrix and reports anew."""
    from farm.store import RunStore
    from farm.sweep import judge_run

    store = RunStore.open(run)
    matrix = judge_run(store, functions=not no_functions)
    for sentence in store.damage:
        print(f"farm: {sentence}", file=sys.stderr)
    if as_json:
        print_json(matrix)
    else:
        show_matrix(matrix)
    return matrix.run.exit_code
