"""The scores behind an output of indices, on both sides: by them a near tie is told from a wrong answer.

Beside output.py, which puts them into the pair that kinds/exact.py measures.
"""

from __future__ import annotations

from farm.graph import OutputFacts
from farm.judge.look import Look, Seen, output_of
from farm.metrics.decode import Array

SCORES = ("float32", "float16", "int8", "uint8", "int16", "int32")


def sibling_scores(seen: Seen, facts: OutputFacts | None, look: Look) -> tuple[Array, Array] | None:
    """TOPK_V2's values, where they are an output of the same shape as the indices: (reference, target)."""
    position = _position(seen, facts)
    graph = seen.evidence.case.graph
    if position is None or graph is None or graph.outputs[position].dtype not in SCORES:
        return None
    target = next((r for r in seen.result.runs if (r.set, r.step) == look.key), None)
    first = next((r for r in seen.first.runs if (r.set, r.step) == look.key), None)
    ref, tgt = output_of(first, position), output_of(target, position)
    if ref is None or tgt is None or ref.shape != look.ref.shape or tgt.shape != ref.shape:
        return None
    try:
        load, dtype = seen.evidence.load, graph.outputs[position].dtype
        return load(ref.sha256, dtype, ref.shape), load(tgt.sha256, dtype, tgt.shape)
    except KeyError:
        return None


def index_source(
    seen: Seen, facts: OutputFacts | None, position: int, look: Look
) -> tuple[Array, Array | None, int] | None:
    """What the indices of output `position` were chosen from: the reference's, the target's if shown, and the axis."""
    scores = next((s for s in seen.reference.index_scores if s.position == position), None)
    run = next((r for r in scores.runs if (r.set, r.step) == look.key), None) if scores is not None else None
    if scores is None or run is None:
        return None
    graph, shown = seen.evidence.case.graph, _position(seen, facts)
    target = next((r for r in seen.result.runs if (r.set, r.step) == look.key), None)
    other = output_of(target, shown) if shown is not None else None
    load, kept = seen.evidence.load, run.outputs[0]
    try:
        ref = load(kept.sha256, scores.dtype, kept.shape)
        same = other is not None and other.shape == kept.shape
        if other is None or not same or graph is None or shown is None or graph.outputs[shown].dtype != scores.dtype:
            return ref, None, scores.axis
        return ref, load(other.sha256, scores.dtype, other.shape), scores.axis
    except KeyError:
        return None


def _position(seen: Seen, facts: OutputFacts | None) -> int | None:
    """The output that holds the values of these indices, or the tensor they point into."""
    graph, name = seen.evidence.case.graph, facts.index_values if facts is not None else None
    if graph is None or name is None:
        return None
    return next((i for i, o in enumerate(graph.outputs) if o.name == name), None)
