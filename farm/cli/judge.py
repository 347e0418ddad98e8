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
  farm judge runs/20250101T000000-ab12cd --band mask.pass_max_abs=0.02

Works with no device plugged in: everything comes from the run folder.
Exit codes are those of farm sweep."""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--band",
    "bands",
    multiple=True,
    metavar="KIND.LIMIT=VALUE",
    help="Another limit, for a kind or an output, e.g. mask.pass_max_abs=0.02; repeatable.",
)
@click.option(
    "--no-functions", is_flag=True, help="Do not run Python functions that the run's assertions name (a run of others)."
)
@json_option
def command(run: Path, bands: tuple[str, ...], no_functions: bool, as_json: bool) -> int:
    """Judge RUN's kept outputs again and write its matrix and reports anew."""
    from farm.store import RunStore
    from farm.sweep import judge_run

    store = RunStore.open(run)
    matrix = judge_run(store, bands=_parsed(bands), functions=not no_functions)
    for sentence in store.damage:
        print(f"farm: {sentence}", file=sys.stderr)
    if as_json:
        print_json(matrix)
    else:
        show_matrix(matrix)
    return matrix.run.exit_code


def _parsed(bands: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """KIND.LIMIT=VALUE → kind → limit → value. Raises InvalidInput with every problem."""
    from farm.errors import InvalidInput, Problem
    from farm.judge.bands import BANDS

    known = sorted({name for limits in BANDS.values() for name in limits})
    found: dict[str, dict[str, float]] = {}
    problems = []
    for text in bands:
        where, _, value = text.partition("=")
        kind, _, limit = where.rpartition(".")
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not kind or limit not in known or number != number:
            cure = f"write KIND.LIMIT=NUMBER; limits: {', '.join(known)}"
            problems.append(Problem(message=f"--band {text!r} names no limit", cure=cure))
        else:
            found.setdefault(kind, {})[limit] = number
    if problems:
        raise InvalidInput(problems)
    return found
