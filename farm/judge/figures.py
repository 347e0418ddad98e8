"""What every input set and step of a cell's outputs measured: for the user's own checks, which may care about another
figure than the one the kind's worst set was chosen by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from farm.judge.chosen import choose
from farm.judge.infer import decoder_for
from farm.judge.kinds import kind_named
from farm.judge.look import Seen, facts_for, output_of
from farm.judge.pair import Pair
from farm.judge.verdict import CellEvidence, CellVerdict
from farm.metrics import Decoder
from farm.metrics.decode import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One output at one input set and step. reference, target: as stored; decoder makes values of them."""

    output: str
    kind: str
    input_set: str
    step: int
    reference: Array
    target: Array
    decoder: Decoder
    metrics: dict[str, float]


def figures(evidence: CellEvidence, verdict: CellVerdict) -> Iterator[Figures]:
    """Yield the figures of every output that was judged by its numbers (pass, warn or fail), in order.

    An output whose bytes are not kept, or that has no counterpart, yields nothing for that set.
    """
    outcome, reference = evidence.outcome, evidence.reference
    if outcome is None or outcome.result is None or reference is None or reference.first is None:
        return
    reference, _ = choose(evidence, reference)
    assert reference.first is not None
    seen = Seen(evidence=evidence, result=outcome.result, reference=reference, first=reference.first)
    targets = {(run.set, run.step): run for run in outcome.result.runs}
    graph = evidence.case.graph
    for position, judged in enumerate(verdict.outputs):
        if judged.verdict not in ("pass", "warn", "fail"):
            continue
        info = next((t for t in seen.first.outputs if t.index == position), None)
        if info is None:
            continue
        facts = facts_for(graph.outputs if graph else (), info.name, position)
        decoder = decoder_for(info.dtype, facts)
        for run in seen.first.runs:
            ref, tgt = output_of(run, position), output_of(targets.get((run.set, run.step)), position)
            if ref is None or tgt is None or ref.shape != tgt.shape or ref.size_bytes != tgt.size_bytes:
                continue
            try:
                a, b = (
                    evidence.load(ref.sha256, info.dtype, ref.shape),
                    evidence.load(tgt.sha256, info.dtype, tgt.shape),
                )
            except KeyError:
                continue
            if a.shape != b.shape:
                continue
            pair = Pair(ref=a, tgt=b, decoder=decoder, low_precision=seen.low_precision(info.dtype))
            with np.errstate(all="ignore"):
                measured = {**pair.metrics.numbers(), **kind_named(judged.kind).measure(pair)}
            if "floor_snr_db" in judged.metrics:
                measured["floor_snr_db"] = judged.metrics["floor_snr_db"]
            sets = evidence.case.input_sets
            yield Figures(
                output=judged.name,
                kind=judged.kind,
                input_set=sets[run.set].name if run.set < len(sets) else str(run.set),
                step=run.step,
                reference=a,
                target=b,
                decoder=decoder,
                metrics={name: float(value) for name, value in measured.items() if math.isfinite(value)},
            )
