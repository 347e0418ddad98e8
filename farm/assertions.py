"""The user's own checks (`assertions:` of a spec) beside the built-in ones: an expression over metrics, or a function.

After judge_cell, before counting. A broken check makes the cell `fail` with the reason ASSERTION and the user's own
message; one that has no value here makes it `inconclusive` (ASSERTION_UNDEFINED): nothing passes for lack of a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farm.errors import InvalidInput
from farm.expressions import OF_THE_CELL, Refused, Undefined, holds, names_in, parse
from farm.judge.counting import median_latency_ms
from farm.judge.figures import Figures, figures
from farm.judge.verdict import CellEvidence, CellVerdict, OutputVerdict
from farm.user_code import load_function

BROKEN = "ASSERTION"
UNDEFINED = "ASSERTION_UNDEFINED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a user's function gets, once per output, input set and step.

    reference, target: float64 values, dequantised; shape as the output's. metrics: as for expressions.
    """

    output: str
    kind: str
    input_set: str
    step: int
    device: str
    model: str
    config: str
    reference: np.ndarray
    target: np.ndarray
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What one assertion says of one output. output None: of the cell as a whole."""

    output: str | None
    reason: str
    message: str


def apply_assertions(evidence: CellEvidence, verdict: CellVerdict, *, functions: bool = True) -> CellVerdict:
    """Return the verdict with the case's assertions laid over it.

    A cell without numbers (error, unsupported, infra, not_run, no reference) is left as it is, with a note.
    functions: False leaves `function:` checks undefined instead of running the user's code.
    """
    wanted = evidence.case.spec.assertions
    if not wanted or verdict.verdict == "not_run":
        return verdict
    measured = list(figures(evidence, verdict))
    if not measured:
        note = f"{len(wanted)} assertion(s) not evaluated: the cell has no judged output"
        return dataclasses.replace(verdict, notes=(*verdict.notes, note))
    cell_values = _cell_values(evidence)
    findings: list[_Finding] = []
    notes: list[str] = []
    for assertion in wanted:
        found = list(_one(assertion, evidence, measured, cell_values, functions))
        findings += found
        if not found:
            notes.append(f"assertion holds: {_what(assertion)}")
    return _laid_over(verdict, findings, notes)


def _what(assertion: Mapping[str, str]) -> str:
    said = assertion.get("check") or assertion.get("function", "")
    return f"{said} ({assertion['output']})" if assertion.get("output") else said


def _cell_values(evidence: CellEvidence) -> dict[str, float]:
    outcome = evidence.outcome
    latency = median_latency_ms(outcome)
    values = {} if latency is None else {"latency_ms": latency}
    if outcome is not None and outcome.result is not None:
        values["compile_ms"] = outcome.result.compile_ms
        if outcome.result.peak_rss_bytes:
            values["peak_rss_bytes"] = float(outcome.result.peak_rss_bytes)
    return values


def _one(
    assertion: Mapping[str, str],
    evidence: CellEvidence,
    measured: Sequence[Figures],
    cell_values: Mapping[str, float],
    functions: bool,
) -> Iterator[_Finding]:
    message = assertion["message"]
    name = assertion.get("output")
    chosen = [f for f in measured if name is None or f.output == name]
    if not chosen:
        yield _Finding(output=name, reason=UNDEFINED, message=f"{message}: output {name!r} was not judged here")
        return
    if "check" in assertion:
        yield from _expression(assertion["check"], message, name, chosen, cell_values)
    elif not functions:
        text = f"{message}: {assertion['function']} was not run, as asked"
        yield _Finding(output=name, reason=UNDEFINED, message=text)
    else:
        yield from _function(assertion["function"], message, evidence, chosen)


def _expression(
    text: str, message: str, output: str | None, chosen: Sequence[Figures], cell_values: Mapping[str, float]
) -> Iterator[_Finding]:
    try:
        tree = parse(text)
    except Refused as e:  # a plan from elsewhere: the door refuses it in a spec
        yield _Finding(output=output, reason=UNDEFINED, message=f"{message}: '{text}' {e}")
        return
    names = names_in(tree)
    if names and set(names) <= set(OF_THE_CELL):
        chosen = chosen[:1]  # the same for every output: told once
    evaluated = False
    undefined: list[_Finding] = []
    broken: dict[str, _Finding] = {}
    for f in chosen:
        values = {**f.metrics, **cell_values}
        try:
            true = holds(tree, values)
        except Undefined as e:
            undefined.append(_Finding(output=f.output, reason=UNDEFINED, message=f"{message}: {text}: {e}"))
            continue
        evaluated = True
        if not true:
            seen = ", ".join(f"{n} {values[n]:.6g}" for n in names)
            said = f"{message}: {text} does not hold ({seen}; {_where(f)})"
            broken.setdefault(f.output, _Finding(output=f.output, reason=BROKEN, message=said))
    yield from broken.values()
    # Without an output named, outputs that lack the metric are not meant; but something must have been looked at.
    if not broken and undefined and (output is not None or not evaluated):
        yield undefined[0]


def _where(f: Figures) -> str:
    return f"input set {f.input_set}" + (f" step {f.step}" if f.step else "")


def _function(name: str, message: str, evidence: CellEvidence, chosen: Sequence[Figures]) -> Iterator[_Finding]:
    try:
        function = load_function(name, (Path(evidence.case.model_path).parent, Path.cwd()))
    except InvalidInput as e:
        yield _Finding(output=None, reason=UNDEFINED, message=f"{message}: {e}")
        return
    told: set[str] = set()
    for f in chosen:
        if f.output in told:
            continue
        checked = Checked(
            output=f.output,
            kind=f.kind,
            input_set=f.input_set,
            step=f.step,
            device=evidence.device,
            model=evidence.case.model,
            config=evidence.config.name,
            reference=f.decoder.values(f.reference),
            target=f.decoder.values(f.target),
            metrics=f.metrics,
        )
        reason, said = _ask(function, checked)
        if reason:
            told.add(f.output)
            yield _Finding(output=f.output, reason=reason, message=f"{message}: {name} {said} ({_where(f)})")


def _ask(function: object, checked: Checked) -> tuple[str, str]:
    """Call the user's function: ("", "") where it holds, else a reason and what it said."""
    assert callable(function)
    try:
        answer = function(checked)
    except AssertionError as e:
        return BROKEN, f"says: {e}" if str(e) else "failed its assert"
    except Exception as e:  # the user's fault, not the model's: told, and never a pass
        return UNDEFINED, f"raised {type(e).__name__}: {e}"
    if isinstance(answer, (bool, np.bool_)):
        return ("", "") if answer else (BROKEN, "returned False")
    return UNDEFINED, f"returned {answer!r}; it must return True or False, or fail an assert"


def _laid_over(verdict: CellVerdict, findings: Sequence[_Finding], notes: Sequence[str]) -> CellVerdict:
    if not findings:
        return dataclasses.replace(verdict, notes=(*verdict.notes, *notes))
    outputs = tuple(_output(o, [f for f in findings if f.output == o.name]) for o in verdict.outputs)
    broken = [f for f in findings if f.reason == BROKEN]
    word = verdict.verdict
    if broken:
        word = "fail"
    elif word in ("pass", "warn"):
        word = "inconclusive"
    deciding = broken or findings
    # What the built-in checks found is kept and told first; an assertion alone decides a cell that would have passed.
    kept = verdict.reasons if verdict.verdict == word else ()
    reasons = tuple(dict.fromkeys((*kept, *(f.reason for f in deciding))))
    own = verdict.message if verdict.verdict == word else ""
    said = [f"{f.output}: {f.message}" if f.output else f.message for f in (findings if word == "fail" else deciding)]
    return dataclasses.replace(
        verdict,
        verdict=word,
        reasons=reasons,
        message="; ".join([*([own] if own else []), *said]),
        outputs=outputs,
        notes=(*verdict.notes, *notes),
    )


def _output(output: OutputVerdict, findings: Sequence[_Finding]) -> OutputVerdict:
    if not findings:
        return output
    word = output.verdict
    if any(f.reason == BROKEN for f in findings):
        word = "fail"
    elif word in ("pass", "warn"):
        word = "inconclusive"
    return dataclasses.replace(
        output,
        verdict=word,
        reasons=tuple(
            dict.fromkeys((*(output.reasons if word == output.verdict else ()), *(f.reason for f in findings)))
        ),
        message="; ".join([*([output.message] if output.message else []), *(f.message for f in findings)]),
    )
