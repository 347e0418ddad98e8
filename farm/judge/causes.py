"""Cause and cure: what the verdicts of one model on one device say together. Pure; after judging, before reporting.

The table (docs/judging.md); "bad" is fail, "good" is pass or warn:

    cpu-fp16  gpu   gpu-fp32   cause
    any       bad   good       FP16_RANGE if the GPU ended in non-finite, zero or saturated numbers and a certain range
                               hazard leads to that output: the emulator keeps some sums and products in wider numbers
    bad       bad   good       FP16_RANGE if non-finite, zero, saturated or a range hazard applies, else FP16_PRECISION
    good      bad   good       FP16_ACCUMULATION
    any       bad   bad        KERNEL_BUG when fully delegated, PARTITION_BOUNDARY when partly

Anything else has no cause, and the explanation says what is missing. Hazards (farm/hazards.py) are predictions from
the CPU's activations: they count only beside a failing cell, only where they lead to a failing output, and as proof of
range only where they are certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.cases import Case
from farm.configs import Config
from farm.hazards import CaseHazards, Hazard
from farm.judge.counting import median_latency_ms
from farm.judge.verdict import CellVerdict, Finding
from farm.outcome import Outcome
from farm.plan import Plan

ENDS = {
    "NUMERICAL_INSTABILITY": "NaN or infinity",
    "SILENT_ZERO_VECTOR": "zeros",
    "SATURATION": "values stuck at 65504",
}
"""Reasons that speak of FP16's range, and how the device ended."""
SUMS = ("accumulator_risk", "sum_overflow")
EMULATOR = "cpu-fp16"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One cell of a group."""

    cell: str
    config: Config
    verdict: CellVerdict
    outcome: Outcome | None

    @property
    def bad(self) -> bool:
        return self.verdict.verdict == "fail"

    @property
    def good(self) -> bool:
        return self.verdict.verdict in ("pass", "warn")


def suspects(*, plan: Plan, verdicts: Mapping[str, CellVerdict]) -> tuple[Case, ...]:
    """Return the cases that failed on a GPU below FP32 but not in FP32 too, in plan order: FP16 is suspected."""
    configs = {c.name: c for c in plan.configs}
    failed: dict[tuple[str, str, str], set[bool]] = {}
    for cell in plan.cells:
        verdict, config = verdicts.get(cell.id), configs.get(cell.config)
        if verdict is None or config is None or verdict.verdict != "fail":
            continue
        if config.accelerator == "gpu" and not config.diagnostic:
            failed.setdefault((cell.device, cell.case, cell.runtime), set()).add(_is_low(config))
    suspected = {case for (_, case, _), low in failed.items() if low == {True}}
    return tuple(c for c in plan.cases if c.id in suspected)


def find_causes(
    *,
    plan: Plan,
    outcomes: Mapping[str, Outcome],
    verdicts: Mapping[str, CellVerdict],
    hazards: Mapping[str, CaseHazards] | None = None,
) -> tuple[Finding, ...]:
    """Return one finding per (device, case, runtime) with a failing or crashing accelerator cell, in plan order.

    hazards: by case id; without an entry the constants of the graph facts stand in.
    """
    configs = {c.name: c for c in plan.configs}
    cases = {c.id: c for c in plan.cases}
    groups: dict[tuple[str, str, str], list[_Seen]] = {}
    for cell in plan.cells:
        if cell.id in verdicts and cell.config in configs:
            groups.setdefault((cell.device, cell.case, cell.runtime), []).append(
                _Seen(
                    cell=cell.id,
                    config=configs[cell.config],
                    verdict=verdicts[cell.id],
                    outcome=outcomes.get(cell.id),
                )
            )
    found = (
        _finding(device, cases[case], runtime, seen, (hazards or {}).get(case))
        for (device, case, runtime), seen in groups.items()
        if case in cases
    )
    return tuple(f for f in found if f is not None)


def _finding(
    device: str, case: Case, runtime: str, seen: Sequence[_Seen], predicted: CaseHazards | None
) -> Finding | None:
    counted = [s for s in seen if not s.config.diagnostic]
    accelerated = [s for s in counted if s.config.accelerator != "cpu"]
    bad = [s for s in accelerated if s.bad]
    broken = [s for s in accelerated if s.verdict.verdict == "error" and "INVALID_MODEL" not in s.verdict.reasons]
    wrong_cpu = [s for s in counted if s.config.accelerator == "cpu" and s.bad]
    hazards: tuple[Hazard, ...] = ()
    if bad:
        failing = bad
        cause, explanation, hazards = _cause(case, seen, bad, predicted)
    elif broken and any(s.good for s in counted):
        # A cell that crashes while others give answers is worth a cure; where nothing runs there is no pattern.
        failing, cause = broken, None
        explanation = "; ".join(f"{s.config.name} ends in {_reasons(s)}" for s in broken)
    elif wrong_cpu:
        failing, cause = wrong_cpu, None
        explanation = "the device's own CPU disagrees with the reference: " + "; ".join(
            f"{s.config.name} is {_reasons(s)}" for s in wrong_cpu
        )
    else:
        return None
    remedy, ratio = _remedy(accelerated, failing)
    return Finding(
        device=device,
        case=case.id,
        runtime=runtime,
        failing=tuple(s.cell for s in failing),
        cause=cause,
        explanation=explanation,
        remedy=remedy,
        latency_ratio=ratio,
        hazards=hazards,
    )


def _is_low(config: Config) -> bool:
    return config.accelerator == "gpu" and config.precision != "fp32" and not config.diagnostic


def _cause(
    case: Case, seen: Sequence[_Seen], bad: Sequence[_Seen], predicted: CaseHazards | None
) -> tuple[str | None, str, tuple[Hazard, ...]]:
    gpu = [s for s in seen if s.config.accelerator == "gpu" and not s.config.diagnostic]
    low = [s for s in gpu if _is_low(s.config)]
    full = [s for s in gpu if s.config.precision == "fp32"]
    low_bad = [s for s in low if s.bad]
    full_bad = [s for s in full if s.bad]
    names = ", ".join(s.config.name for s in bad)
    if low_bad and full_bad:
        return (*_both_bad(low_bad, full_bad, names), ())
    if full_bad:
        others = "gave no verdict" if not any(s.good for s in low) else "is right"
        return None, f"{names} is wrong where the lower precision {others}: no pattern we know explains that", ()
    if not low_bad:
        return (
            None,
            f"{names} is wrong ({_reasons(bad[0])}); there is no CPU emulation of this accelerator to compare with",
            (),
        )
    if not any(s.good for s in full):
        return None, f"{names} is wrong ({_reasons(low_bad[0])}); without an answer from gpu-fp32 the cause is open", ()
    emulator = next((s for s in seen if s.config.name == EMULATOR), None)
    fp32 = next(s.config.name for s in full if s.good)
    hazards = _towards(case, low_bad, predicted)
    certain = tuple(h for h in hazards if h.certain)
    if certain and _ends_out_of_range(low_bad) and not (emulator is not None and emulator.bad):
        beside = f"{EMULATOR}, which keeps some numbers wider, passed" if emulator is not None and emulator.good else ""
        said = "; ".join(filter(None, (_told(certain), f"{fp32} is right", beside)))
        return "FP16_RANGE", f"{names} ended in {_ended(low_bad)}; {said}", certain
    if emulator is not None and emulator.bad:
        ended, emulated = _ended(low_bad), _ended([emulator])
        return _range_or_precision(
            seen=f"{names} ended in {ended}",
            compared=f"{EMULATOR} {'too' if ended == emulated else f'in {emulated}'}, {fp32} is right",
            is_range=_ends_out_of_range((*low_bad, emulator)),
            case=case,
            predicted=predicted,
            hazards=hazards,
        )
    if emulator is not None and emulator.good:
        sums = tuple(h for h in hazards if h.kind in SUMS)
        after = f"; {_told(sums)}" if sums else ""
        return "FP16_ACCUMULATION", f"{names} is wrong, {EMULATOR} and {fp32} are right{after}", sums
    return (
        None,
        f"FP16 is at fault ({fp32} is right), but {EMULATOR} gave no verdict, so range, precision and sums stay open",
        (),
    )


def _range_or_precision(
    *,
    seen: str,
    compared: str,
    is_range: bool,
    case: Case,
    predicted: CaseHazards | None,
    hazards: tuple[Hazard, ...],
) -> tuple[str, str, tuple[Hazard, ...]]:
    certain = tuple(h for h in hazards if h.certain)
    if certain:
        return "FP16_RANGE", f"{seen}; {_told(certain)}; {compared}", certain
    if predicted is None or not (predicted.seen or predicted.found):
        constants = case.graph.fp16_hazards if case.graph else ()
        said = "; ".join(filter(None, (_nothing(predicted) if predicted else "", *constants[:1], compared)))
        return "FP16_RANGE" if is_range or constants else "FP16_PRECISION", f"{seen}; {said}", ()
    if is_range and hazards:
        # A mask, a sum on its way or a guard against zero may do it; where none is there, nothing is made up.
        return "FP16_RANGE", f"{seen}; {_told(hazards, may=True)}; {compared}", hazards
    return "FP16_RANGE" if is_range else "FP16_PRECISION", f"{seen}; {_nothing(predicted)}; {compared}", ()


def _towards(case: Case, bad: Sequence[_Seen], predicted: CaseHazards | None) -> tuple[Hazard, ...]:
    """The hazards that lead to an output that failed."""
    if predicted is None:
        return ()
    failing = {o.name for s in bad for o in s.verdict.outputs if o.verdict == "fail"}
    names = [o.name for o in case.graph.outputs] if case.graph is not None else []
    if not failing or not failing <= set(names):
        return predicted.found
    return tuple(h for h in predicted.found if any(names[i] in failing for i in h.outputs if i < len(names)))


def _told(hazards: Sequence[Hazard], *, may: bool = False) -> str:
    more = len({(h.subgraph, h.op_index) for h in hazards}) - 1
    others = f" ({more} more op{'s' if more > 1 else ''} in the same way)" if more else ""
    how = "a possible reason" if may else "predicted"
    return f"{how} from the reference's activations: {hazards[0].message}{others}"


def _nothing(predicted: CaseHazards) -> str:
    """What looking for hazards gave where none is certain."""
    if not predicted.seen:
        return f"the reference's activations could not be looked at ({predicted.note or 'none are floats'})"
    rest = f"; {predicted.unseen} more were not seen ({predicted.note})" if predicted.unseen else ""
    return f"none of the reference's {predicted.seen} float tensors is sure to leave FP16's range{rest}"


def _both_bad(low_bad: Sequence[_Seen], full_bad: Sequence[_Seen], names: str) -> tuple[str | None, str]:
    levels = {s.outcome.delegation.level for s in (*low_bad, *full_bad) if s.outcome is not None}
    if levels == {"full"}:
        return (
            "KERNEL_BUG",
            f"{names} are wrong and ran wholly on the GPU",
        )
    if "partial" in levels:
        return "PARTITION_BOUNDARY", f"{names} are wrong and ran partly on the CPU"
    return None, f"{names} are wrong at every precision; the runtime did not say what ran where"


def _remedy(accelerated: Sequence[_Seen], failing: Sequence[_Seen]) -> tuple[str | None, float | None]:
    """The fastest accelerator config that passed on this device, and its time over the broken one's."""
    passed = [s for s in accelerated if s.verdict.verdict == "pass"]
    if not passed:
        return None, None
    best = min(passed, key=lambda s: median_latency_ms(s.outcome) or float("inf"))
    mine, broken = median_latency_ms(best.outcome), median_latency_ms(failing[0].outcome)
    return best.config.name, mine / broken if mine is not None and broken else None


def _reasons(seen: _Seen) -> str:
    return ", ".join(seen.verdict.reasons) or seen.verdict.verdict


def _ends_out_of_range(seen: Sequence[_Seen]) -> bool:
    return any(set(s.verdict.reasons) & ENDS.keys() for s in seen)


def _ended(seen: Sequence[_Seen]) -> str:
    reasons = {r for s in seen for r in s.verdict.reasons}
    return " and ".join(words for r, words in ENDS.items() if r in reasons) or f"wrong values ({_reasons(seen[0])})"
