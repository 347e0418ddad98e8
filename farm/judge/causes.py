"""Cause and cure: what the verdicts of one model on one device say together. Pure; after judging, before reporting.

The table (JUDGE.md, from numerics.md 2.4); "bad" is fail, "good" is pass or warn:

    cpu-fp16  gpu   gpu-fp32   cause
    bad       bad   good       FP16_RANGE if non-finite, zero, saturated or a range hazard applies, else FP16_PRECISION
    good      bad   good       FP16_ACCUMULATION
    any       bad   bad        KERNEL_BUG when fully delegated, PARTITION_BOUNDARY when partly

Anything else has no cause, and the explanation says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.cases import Case
from farm.configs import Config
from farm.judge.counting import median_latency_ms
from farm.judge.verdict import CellVerdict, Finding
from farm.outcome import Outcome
from farm.plan import Plan

RANGE_REASONS = ("NUMERICAL_INSTABILITY", "SILENT_ZERO_VECTOR", "SATURATION")
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


def find_causes(
    *, plan: Plan, outcomes: Mapping[str, Outcome], verdicts: Mapping[str, CellVerdict]
) -> tuple[Finding, ...]:
    """Return one finding per (device, case, runtime) with a failing or crashing accelerator cell, in plan order."""
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
        _finding(device, cases[case], runtime, seen)
        for (device, case, runtime), seen in groups.items()
        if case in cases
    )
    return tuple(f for f in found if f is not None)


def _finding(device: str, case: Case, runtime: str, seen: Sequence[_Seen]) -> Finding | None:
    counted = [s for s in seen if not s.config.diagnostic]
    accelerated = [s for s in counted if s.config.accelerator != "cpu"]
    bad = [s for s in accelerated if s.bad]
    broken = [s for s in accelerated if s.verdict.verdict == "error" and "INVALID_MODEL" not in s.verdict.reasons]
    wrong_cpu = [s for s in counted if s.config.accelerator == "cpu" and s.bad]
    if bad:
        failing = bad
        cause, explanation = _cause(case, seen, bad)
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
    )


def _cause(case: Case, seen: Sequence[_Seen], bad: Sequence[_Seen]) -> tuple[str | None, str]:
    gpu = [s for s in seen if s.config.accelerator == "gpu" and not s.config.diagnostic]
    low = [s for s in gpu if s.config.precision != "fp32"]
    full = [s for s in gpu if s.config.precision == "fp32"]
    low_bad = [s for s in low if s.bad]
    full_bad = [s for s in full if s.bad]
    names = ", ".join(s.config.name for s in bad)
    if low_bad and full_bad:
        return _both_bad(low_bad, full_bad, names)
    if full_bad:
        others = "gave no verdict" if not any(s.good for s in low) else "is right"
        return None, f"{names} is wrong where the lower precision {others}: no pattern we know explains that"
    if not low_bad:
        return (
            None,
            f"{names} is wrong ({_reasons(bad[0])}); there is no CPU emulation of this accelerator to compare with",
        )
    if not any(s.good for s in full):
        return None, f"{names} is wrong ({_reasons(low_bad[0])}); without an answer from gpu-fp32 the cause is open"
    emulator = next((s for s in seen if s.config.name == EMULATOR), None)
    fp32 = next(s.config.name for s in full if s.good)
    if emulator is not None and emulator.bad:
        reasons = {r for s in (*low_bad, emulator) for r in s.verdict.reasons} & set(RANGE_REASONS)
        hazards = case.graph.fp16_hazards if case.graph else ()
        if reasons or hazards:
            why = hazards[0] if hazards else f"{names} ends in {', '.join(sorted(reasons))}"
            return "FP16_RANGE", (
                f"a value leaves the range of FP16 (2^-24 … 65504): {why}; {EMULATOR} fails too, {fp32} is right"
            )
        return "FP16_PRECISION", f"FP16 has too few digits for this model: {EMULATOR} fails too, {fp32} is right"
    if emulator is not None and emulator.good:
        return "FP16_ACCUMULATION", (
            f"{EMULATOR} and {fp32} are right, {names} is wrong: the delegate loses it in its own FP16 sums or kernels"
        )
    return (
        None,
        f"FP16 is at fault ({fp32} is right), but {EMULATOR} gave no verdict, so range, precision and sums stay open",
    )


def _both_bad(low_bad: Sequence[_Seen], full_bad: Sequence[_Seen], names: str) -> tuple[str | None, str]:
    levels = {s.outcome.delegation.level for s in (*low_bad, *full_bad) if s.outcome is not None}
    if levels == {"full"}:
        return (
            "KERNEL_BUG",
            f"{names} are wrong at every precision and run wholly on the GPU: a kernel computes wrong values",
        )
    if "partial" in levels:
        return "PARTITION_BOUNDARY", (
            f"{names} are wrong at every precision and run partly on the CPU: values are lost where the graph is cut"
        )
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
