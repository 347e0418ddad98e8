"""Whether a reference can be trusted: missing, invalid, unstable or vacuous references give `inconclusive`, never more.

Checks 2 and 5 of docs/judging.md order, and misses that hybrid kernels or large reductions of the CPU may explain.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.agent_protocol import OutputData
from farm.graph import GraphFacts, OutputFacts
from farm.judge.bands import (
    BANDS,
    FP16_SMALLEST_NORMAL,
    MAX_RECOMPUTED_REDUCTION,
    MAX_SHARED_NONFINITE,
    NOISE_MARGIN_DB,
)
from farm.judge.chosen import SOUND_DB
from farm.judge.pair import number
from farm.judge.verdict import VerdictWord
from farm.metrics import Metrics
from farm.outcome import Recomputed, Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A check that applies: the verdict it gives, its reason and a sentence."""

    verdict: VerdictWord
    reason: str
    message: str


STATUS = {
    "REFERENCE_MISSING": "missing",
    "REFERENCE_INVALID": "invalid",
    "REFERENCE_UNSTABLE": "unstable",
    "REFERENCE_VACUOUS": "vacuous",
}


def doubt(reason: str, message: str) -> Hit:
    return Hit(verdict="inconclusive", reason=reason, message=message)


def missing(reference: Reference | None, *, input_sets: int) -> Hit | None:
    """There is no reference: the CPU crashed, refused or was never run, for all or one of the input sets."""
    if reference is None:
        return doubt("REFERENCE_MISSING", "no CPU reference was run")
    if reference.failure is not None:
        return doubt(
            "REFERENCE_MISSING", f"the CPU reference ended in {reference.failure.code}: {reference.failure.message}"
        )
    if reference.first is None or not reference.first.ok or not reference.first.runs:
        return doubt("REFERENCE_MISSING", "the CPU reference gave no outputs")
    lacking = set(range(input_sets)) - {run.set for run in reference.first.runs}
    if lacking:
        numbers = ", ".join(str(n) for n in sorted(lacking))
        return doubt("REFERENCE_MISSING", f"the CPU reference gave no outputs for input set number {numbers}")
    return None


def faulty_graph(facts: OutputFacts | None) -> Hit | None:
    """The output's bytes are not the result of computation."""
    if facts is None:
        return None
    if facts.unwritten:
        return doubt("REFERENCE_INVALID", "no op writes this output: it holds whatever was in memory")
    if facts.alias_of:
        return doubt("REFERENCE_INVALID", f"this output shares its tensor with {facts.alias_of.replace(':', ' ', 1)}")
    return None


def unstable(first: OutputData, second: OutputData | None) -> Hit | None:
    """Two runs in fresh processes are not bit-equal, or the second did not come about."""
    if second is None:
        return doubt("REFERENCE_UNSTABLE", "the CPU gave this output in one of two runs only")
    if first.sha256 != second.sha256 or first.shape != second.shape:
        return doubt("REFERENCE_UNSTABLE", "two CPU runs in fresh processes differ")
    return None


def nonfinite(metrics: Metrics, graph: GraphFacts | None) -> Hit | None:
    """NaN or Inf in the reference, except ±inf masks that the target has too, at the same places, on ≤ 1 %."""
    bad = metrics.ref_nan + metrics.ref_inf
    if not bad:
        return None
    from_mask = graph is not None and graph.inf_constants
    share = bad / metrics.n
    if from_mask and not metrics.ref_nan and not metrics.nonfinite_differ and share <= MAX_SHARED_NONFINITE:
        return None
    return doubt(
        "REFERENCE_INVALID",
        f"the CPU reference has {metrics.ref_nan} NaN and {metrics.ref_inf} Inf among {metrics.n} elements",
    )


def vacuous(metrics: Metrics, *, low_precision: bool) -> Hit | None:
    """Nothing to compare with: no element, all zero, or so small that FP16 may flush it."""
    if metrics.n == 0:
        return doubt("REFERENCE_VACUOUS", "the output is empty")
    if metrics.ref_max_abs == 0.0:
        return doubt("REFERENCE_VACUOUS", "the CPU reference is all zero: these inputs say nothing about this output")
    if low_precision and metrics.ref_max_abs < FP16_SMALLEST_NORMAL:
        return doubt(
            "REFERENCE_VACUOUS",
            f"the largest reference value, {metrics.ref_max_abs:.3g}, is below 2^-14, where FP16 may flush to zero",
        )
    return None


def excused_miss(
    facts: OutputFacts | None,
    graph: GraphFacts | None,
    *,
    low_precision: bool,
    reference: Reference | None = None,
    position: int = 0,
    snr_db: float | None = None,
) -> Hit | None:
    """A missed band that the reference itself may be to blame for. snr_db: how near the target came, if known."""
    hit = _reduction_to_blame(facts, reference, position)
    if hit is not None:
        return hit
    if reference is not None and reference.float_copy:
        return _copy_to_blame(reference, position, snr_db)
    if graph is not None and graph.hybrid_ops and not low_precision:
        why = (reference.dequantised_note if reference is not None else "") or "no float copy of the model was run"
        return doubt(
            "REFERENCE_UNSTABLE",
            f"the CPU quantises activations on the fly ({', '.join(sorted(set(graph.hybrid_ops)))}): it is only an "
            f"approximation of the float result, and {why}",
        )
    return None


def _copy_to_blame(reference: Reference, position: int, snr_db: float | None) -> Hit | None:
    """A miss that quantised activations explain: the target may have met them, and is no worse than the plain CPU."""
    near = dict(enumerate(reference.plain_snr_db)).get(position)
    least = BANDS["values-fp16"]["fail_snr_db"].value
    if near is not None and near < least:
        return doubt(
            "REFERENCE_UNSTABLE",
            f"the CPU's own result and that of its float copy with dequantised weights are {number(near)} dB apart, "
            f"more than quantised activations explain ({number(least)} dB)",
        )
    explained = near is None or snr_db is None or snr_db >= near - NOISE_MARGIN_DB
    if reference.dequantised_note and explained:
        apart = "" if near is None else f", and the CPU's own result lies {number(near)} dB from the float copy"
        return doubt("REFERENCE_UNSTABLE", f"{reference.dequantised_note}{apart}")
    return None


def _reduction_to_blame(facts: OutputFacts | None, reference: Reference | None, position: int) -> Hit | None:
    """A reduction on the way to a missed output whose CPU result is not known to be exact."""
    if reference is not None and reference.recomputed:
        for entry in reference.recomputed:
            if position in entry.outputs and (entry.snr_db is None or entry.snr_db < SOUND_DB):
                return doubt("REFERENCE_INVALID", f"{_named(entry)}: {_inexact(entry)}")
        return None
    large = facts.large_reduction if facts is not None else None
    if large is None:
        return None
    return doubt(
        "REFERENCE_INVALID",
        f"{large.op} (op {large.op_index}) sums {large.elements} elements in float32: the CPU's own result is not "
        "exact enough to blame the target",
    )


def inexact_reduction(
    facts: OutputFacts | None, reference: Reference, position: int, *, low_precision: bool
) -> Hit | None:
    """A large reduction on the way to an output that could not be recomputed, or that the CPU got wrong.

    Without any recomputation only its size speaks: beyond 2^24 elements no float32 sum holds.
    """
    least = BANDS["values-fp16" if low_precision else "values-fp32"]["fail_snr_db"].value
    for entry in reference.recomputed:
        if position in entry.outputs and (entry.snr_db is None or entry.snr_db < least):
            return doubt("REFERENCE_INVALID", f"{_named(entry)}: {_inexact(entry)}")
    large = facts.large_reduction if facts is not None else None
    if reference.recomputed or large is None or large.elements <= MAX_RECOMPUTED_REDUCTION:
        return None
    return doubt(
        "REFERENCE_INVALID",
        f"{large.op} (op {large.op_index}) sums {large.elements} elements, more than 2^24: no float32 sum holds there",
    )


def _named(entry: Recomputed) -> str:
    return f"{entry.op} (op {entry.op_index}) over {entry.elements} elements"


def _inexact(entry: Recomputed) -> str:
    if entry.snr_db is None:
        return f"its result cannot be checked: {entry.note}"
    return f"the CPU's result is only {number(entry.snr_db)} dB near the one recomputed in float64"
