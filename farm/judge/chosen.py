"""Which CPU answer a cell is judged against: the plain one, the float copy's, or a recomputed reduction. Pure.

reference.py (the judge's) then asks whether the chosen one can be trusted; nothing behind it knows the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from farm.agent_protocol import AgentResult, OutputData
from farm.configs import XNNPACK_FORCE_FP16
from farm.judge.bands import BANDS
from farm.judge.pair import number
from farm.judge.verdict import CellEvidence
from farm.outcome import Recomputed, Reference

SOUND_DB = BANDS["values-fp32"]["pass_snr_db"].value
"""A reduction this near its float64 result is as exact as float32 gets; what comes behind it may be trusted."""
Exact = Mapping[tuple[int, int, int], OutputData]
"""(input set, step, position) → recomputed output."""


def choose(evidence: CellEvidence, reference: Reference) -> tuple[Reference, list[str]]:
    """The reference for this cell, and sentences that say why it is not the plain one.

    A CPU cell keeps the plain reference: it does what the same kernels do here (docs/judging.md). The CPU forced to
    FP16 stands for an FP16 device, so it is judged as one.
    """
    if evidence.config.accelerator == "cpu" and not evidence.config.xnnpack_flags & XNNPACK_FORCE_FP16:
        return _sound_floor(reference)
    notes: list[str] = []
    graph = evidence.case.graph
    if graph is not None and graph.hybrid_ops:
        reference, notes = _float_copy(evidence, reference, ", ".join(sorted(set(graph.hybrid_ops))))
    reference, recomputed = _recomputed(reference)
    reference, dropped = _sound_floor(reference)
    return reference, notes + recomputed + dropped


def _sound_floor(reference: Reference) -> tuple[Reference, list[str]]:
    """Leave out of the noise floor what its kernels summed wrongly where the reference's sum is known to be right."""
    wrong = {
        position: entry
        for entry in reference.recomputed
        if sound(entry) and entry.floor_snr_db is not None and entry.floor_snr_db < SOUND_DB
        for position in entry.outputs
    }
    if reference.floor is None or not wrong:
        return reference, []
    runs = tuple(
        replace(run, outputs=tuple(o for o in run.outputs if o.index not in wrong)) for run in reference.floor.runs
    )
    notes = [
        f"noise floor left out: its kernels' {e.op} (op {e.op_index}) over {e.elements} elements is only "
        f"{number(e.floor_snr_db or 0.0)} dB near the float64 result, the reference's own {number(e.snr_db or 0.0)} dB"
        for e in wrong.values()
    ]
    return replace(reference, floor=replace(reference.floor, runs=runs)), list(dict.fromkeys(notes))


def _float_copy(evidence: CellEvidence, plain: Reference, ops: str) -> tuple[Reference, list[str]]:
    copy = plain.dequantised
    if copy is None or copy.first is None:
        why = plain.dequantised_note or "no float copy of the model was run"
        return plain, [f"the CPU quantises activations on the fly ({ops}); {why}"]
    near = [db for db in copy.plain_snr_db if db is not None]
    apart = f", {number(min(near))} dB from it," if near else ""
    notes = [
        f"judged against a float copy with dequantised weights: the CPU's own result{apart} quantises activations on "
        f"the fly ({ops})"
    ]
    # The copy's own note tells the judge that its target may still have met quantising kernels.
    outcome = evidence.outcome
    level = outcome.delegation.level if outcome is not None else "unknown"
    if evidence.config.accelerator == "cpu":
        copy = replace(copy, dequantised_note="the CPU's kernels quantise here as well")
    elif level != "full":
        copy = replace(copy, dequantised_note="ops that stayed on the CPU quantise there as well")
    return copy, notes


def _recomputed(reference: Reference) -> tuple[Reference, list[str]]:
    """Put recomputed values in the place of outputs that an inexact reduction gives directly."""
    exact: dict[tuple[int, int, int], OutputData] = {}
    done: dict[int, set[int]] = {}
    notes = []
    for entry in reference.recomputed:
        if entry.snr_db is None or entry.snr_db >= SOUND_DB:
            continue
        for position in entry.last:
            others = [e for e in reference.recomputed if position in e.outputs and e is not entry]
            if not all(sound(e) for e in others):
                continue
            values = {(r.set, r.step, position): o for r in entry.exact for o in r.outputs if o.index == position}
            if reference.first is None or len(values) != len(reference.first.runs):
                continue
            exact |= values
            done.setdefault(entry.op_index, set()).add(position)
            notes.append(
                f"judged against {entry.op} (op {entry.op_index}) over {entry.elements} elements recomputed in "
                f"float64: the CPU's own result is only {number(entry.snr_db)} dB near it"
            )
    if not exact:
        return reference, []
    left = tuple(
        replace(e, outputs=tuple(p for p in e.outputs if p not in done.get(e.op_index, ())))
        for e in reference.recomputed
    )
    return replace(
        reference,
        first=_with(reference.first, exact),
        second=_with(reference.second, exact),
        floor=_with(reference.floor, exact),
        recomputed=left,
    ), notes


def sound(entry: Recomputed) -> bool:
    return entry.snr_db is not None and entry.snr_db >= SOUND_DB


def _with(result: AgentResult | None, exact: Exact) -> AgentResult | None:
    """A result in which the outputs in `exact` hold those values instead."""
    if result is None:
        return None
    runs = tuple(
        replace(run, outputs=tuple(exact.get((run.set, run.step, o.index), o) for o in run.outputs))
        for run in result.runs
    )
    return replace(result, runs=runs)
