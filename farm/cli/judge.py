"""farm judge: judge a kept run again, e.g. with other bands; touches no device."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli._common import json_option, print_json, show_matrix

if TYPE_CHECKING:
    from farm.plan import Plan

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
    matrix = judge_run(store, bands=_parsed(bands, store.plan), functions=not no_functions)
    for sentence in store.damage:
        print(f"farm: {sentence}", file=sys.stderr)
    if as_json:
        print_json(matrix)
    else:
        show_matrix(matrix)
    return matrix.run.exit_code


def _parsed(bands: tuple[str, ...], plan: Plan) -> dict[str, dict[str, float]]:
    """KIND.LIMIT=VALUE → kind or output of the run → limit → value. Raises InvalidInput with every problem."""
    if not bands:
        return {}
    from farm.doors.spec import LIMITS, misplaced_limits
    from farm.errors import InvalidInput, Problem

    limits = sorted({name for names in LIMITS.values() for name in names})
    outputs = {o.name for case in plan.cases if case.graph is not None for o in case.graph.outputs}
    kinds = {name: kind for case in plan.cases for name, kind in case.spec.kinds.items()}
    found: dict[str, dict[str, float]] = {}
    problems = []
    for text in bands:
        words, _, value = text.rpartition("=")
        where, _, limit = words.rpartition(".")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if limit not in limits or math.isnan(number):
            cure = f"write KIND.LIMIT=NUMBER; limits: {', '.join(limits)}"
            problems.append(Problem(message=f"--band {text!r} names no limit", cure=cure))
        elif where not in LIMITS and where not in outputs:
            cure = f"kinds: {', '.join(LIMITS)}; outputs: {', '.join(sorted(outputs))}"
            problems.append(Problem(message=f"--band {text!r} names no kind and no output of the run", cure=cure))
        else:
            found.setdefault(where, {})[limit] = number
    problems += [
        Problem(message=f"--band {where}.{limit}: its kind has no such limit", cure=cure)
        for where, limit, cure in misplaced_limits(found, kinds)
    ]
    if problems:
        raise InvalidInput(problems)
    return found
