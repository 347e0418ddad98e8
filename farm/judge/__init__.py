"""Reference + outputs + kind → verdict. Pure: no device, no file, no clock.

    judge_cell(CellEvidence) → CellVerdict          order.py: failures first, then each output through its checks
        infer.py      which kind an output is, and why
        reference.py  whether its reference can be trusted
        kinds/        one file per kind: measure, decide, loosen
        bands.py      every limit with its source
    suspects(plan, verdicts)                        causes.py: cases whose FP16 hazards are worth a CPU run
    find_causes(plan, outcomes, verdicts, hazards)  causes.py: what the pattern over configs says, and the verified cure
    tally(plan, outcomes, verdicts, today)          counting.py: known and expected results, the exit code

The names are loaded on first use: `from farm.judge import judge_cell` costs nothing until it is called for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.judge.causes import find_causes as find_causes
    from farm.judge.causes import suspects as suspects
    from farm.judge.counting import apply_expect as apply_expect
    from farm.judge.counting import apply_known as apply_known
    from farm.judge.counting import exit_code as exit_code
    from farm.judge.counting import tally as tally
    from farm.judge.order import judge_cell as judge_cell

__all__ = ["apply_expect", "apply_known", "exit_code", "find_causes", "judge_cell", "suspects", "tally"]

_HOME = {
    "apply_expect": "counting",
    "apply_known": "counting",
    "exit_code": "counting",
    "find_causes": "causes",
    "judge_cell": "order",
    "suspects": "causes",
    "tally": "counting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"farm.judge.{_HOME[name]}"), name)
