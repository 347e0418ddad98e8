"""What in a model FP16 cannot hold, told from the CPU's own activations, with the op it comes from. Pure.

Beside the judge: causes name these beside what a device did. A hazard is a prediction, never a verdict. Rules and what
was seen of them (MUL and constants beyond 65504 became Inf element for element; SUM saturated exactly where its total
left the range; partial sums of a MEAN did no harm): issue "Verdicts that can be trusted" and the notes on numerics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from farm.graph import SHAPE_OPS, Walk, called_subgraphs
from farm.tflite import Model, Op, Tensor

FP16_MAX = 65504.0
"""Largest binary16 number; from 65520 on values round to infinity."""
FP16_ROUNDS_TO_ZERO = 2.0**-25
"""Up to here values round to zero; 2^-24 is the smallest subnormal (IEEE 754 binary16)."""
FP16_NORMAL = 2.0**-14
"""Smallest normal number: below it GPUs may flush."""
MASK = 1e4
"""Additive attention masks lie at −1e4 or below (−1e9, finfo.min)."""
AMPLIFIED = 1e3
"""How much larger a value must grow behind a tiny one for the loss to show."""
FAR = 8
"""Ops looked at behind a tiny tensor, as long as it stays tiny."""
PIECE = 1 << 22
NAME_CHARS = 72
"""A fused tensor's name may run over lines; its first part names the layer."""

Kind = Literal[
    "overflow", "constant_overflow", "sum_overflow", "accumulator_risk", "underflow", "constant_underflow", "mask"
]
_SUMS = frozenset(("SUM", "MEAN", "AVERAGE_POOL_2D", "L2_POOL_2D", "CUMSUM"))
_AMPLIFIERS = frozenset(
    ("MUL", "DIV", "RSQRT", "POW", "SQRT", "LOG", "FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D", "BATCH_MATMUL",
     "L2_NORMALIZATION", "SUM")
)  # fmt: skip
"""Ops behind which a value that was flushed to zero is missed."""
_GUARDS = frozenset(("ADD", "SUB", "MAXIMUM", "MINIMUM"))
"""Ops whose tiny constant (an epsilon) matters only where the other operand is tiny too."""
_STATE = frozenset(("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"))
_ROOTS = frozenset(("RSQRT", "LOG", "DIV"))
"""Ops that turn a flushed zero into infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """One tensor's values on the CPU. Counts are of finite elements but for `nonfinite`.

    min_abs: smallest nonzero magnitude, or 0.0 if all are zero. beyond: |x| > 65504. lost: 0 < |x| ≤ 2^-25.
    """

    n: int
    nonfinite: int
    zeros: int
    beyond: int
    lost: int
    max_abs: float
    min_abs: float
    low: float
    high: float
    sum_abs: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """One place where FP16 changes the numbers.

    certain: the rule held wherever it was tried; else a device may well cope. value: the figure that breaks the limit.
    elements: how many are concerned. outputs: positions of the signature outputs it leads to.
    subgraph: name of the called subgraph the op is in; "" is the signature's own.
    """

    kind: Kind
    op: str
    op_index: int
    tensor: int
    tensor_name: str
    value: float
    elements: int
    certain: bool
    message: str
    outputs: tuple[int, ...] = ()
    subgraph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseHazards:
    """What was predicted for one case, kept in the run folder. seen, unseen: float tensors whose values were, or were
    not, looked at; constants always are. note: why tensors were not seen."""

    case: str
    found: tuple[Hazard, ...] = ()
    seen: int = 0
    unseen: int = 0
    note: str = ""


def stats_of(values: np.ndarray) -> Stats:
    """Figures of an array, read in pieces; float types only (raw bfloat16 comes as uint16)."""
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    flat = values.reshape(-1)
    out: Stats | None = None
    for start in range(0, max(flat.size, 1), PIECE):
        part = flat[start : start + PIECE].astype(np.float64)
        finite = part[np.isfinite(part)]
        size = np.abs(finite)
        some = size[size > 0]
        out = merged(
            out,
            Stats(
                n=int(part.size),
                nonfinite=int(part.size - finite.size),
                zeros=int(size.size - some.size),
                beyond=int(np.count_nonzero(size > FP16_MAX)),
                lost=int(np.count_nonzero(some <= FP16_ROUNDS_TO_ZERO)),
                max_abs=float(size.max(initial=0.0)),
                min_abs=float(some.min(initial=np.inf)) if some.size else 0.0,
                low=float(finite.min(initial=np.inf)) if finite.size else 0.0,
                high=float(finite.max(initial=-np.inf)) if finite.size else 0.0,
                sum_abs=float(size.sum()),
            ),
        )
    assert out is not None
    return out


def merged(one: Stats | None, other: Stats) -> Stats:
    """Figures of two arrays together."""
    if one is None or not one.n:
        return other
    if not other.n:
        return one
    smallest = [s.min_abs for s in (one, other) if s.min_abs]
    return Stats(
        n=one.n + other.n,
        nonfinite=one.nonfinite + other.nonfinite,
        zeros=one.zeros + other.zeros,
        beyond=one.beyond + other.beyond,
        lost=one.lost + other.lost,
        max_abs=max(one.max_abs, other.max_abs),
        min_abs=min(smallest, default=0.0),
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        sum_abs=one.sum_abs + other.sum_abs,
    )


def hazards(model: Model, activations: Mapping[int, Stats], *, signature: int = 0) -> tuple[Hazard, ...]:
    """What FP16 cannot hold in a signature's subgraph, in the order the ops run.

    activations: tensor → figures on the CPU; a tensor without an entry is not judged. Only float32 and float64 tensors
    are: float16 ones hold what they hold.
    """
    chosen = model.signatures[signature]
    graph = model.subgraphs[chosen.subgraph]
    walk = Walk(graph)
    found = [*_constants(model, walk, activations)]
    for op in graph.ops:
        for t in op.outputs:
            tensor, seen = graph.tensors[t], activations.get(t)
            if seen is None or not seen.n or not is_judged(tensor):
                continue
            found += _of_tensor(walk, op, tensor, seen, activations)
    everywhere = tuple(range(len(chosen.outputs)))
    called = list(called_subgraphs(model, graph))
    if any(op.name in _STATE for g in called for op in g.ops) or any(t.is_variable for g in called for t in g.tensors):
        # State carries values where no tensor leads.
        reached = dict.fromkeys((op.index for op in graph.ops), everywhere)
    else:
        reached = _reached(walk, [t for _, t in chosen.outputs])
    told = [replace(h, outputs=reached.get(h.op_index, ())) for h in found]
    told.sort(key=lambda h: (h.op_index, h.tensor, h.kind))
    for other in called:
        if other.index != graph.index:
            name = other.name or f"subgraph {other.index}"
            inside = sorted(_constants(model, Walk(other), {}), key=lambda h: (h.op_index, h.tensor))
            told += [
                replace(h, outputs=everywhere, subgraph=name, message=f"{h.message} (in {name!r})") for h in inside
            ]
    return tuple(told)


def is_judged(tensor: Tensor) -> bool:
    """Whether a tensor's values may be a hazard: float16 ones hold what they hold."""
    return tensor.dtype in ("float32", "float64")


def _reached(walk: Walk, outputs: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """op → positions of the signature outputs computed from it."""
    found: dict[int, tuple[int, ...]] = {}
    for position, output in enumerate(outputs):
        waiting, known = [output], set[int]()
        while waiting:
            op = walk.producer.get(waiting.pop())
            if op is not None and op.index not in known:
                known.add(op.index)
                found[op.index] = (*found.get(op.index, ()), position)
                waiting += [t for t in op.inputs if t >= 0]
    return found


def _of_tensor(walk: Walk, op: Op, tensor: Tensor, seen: Stats, activations: Mapping[int, Stats]) -> Iterator[Hazard]:
    if op.name in SHAPE_OPS:
        return  # Told where it arises.
    if seen.beyond:
        yield _overflow(walk, op, tensor, seen)
    elif op.name in _SUMS and op.name != "SUM":
        total = _largest_total(walk, op, activations)
        if total > FP16_MAX:
            yield _hazard(
                "accumulator_risk", walk, op, tensor, total, 1, certain=False,
                says=f"sums magnitudes up to {total:.6g} on the way to its mean; an FP16 accumulator ends at 65504",
            )  # fmt: skip
    if seen.lost and (grown := _grown(walk, tensor.index, seen, activations)):
        behind, factor = grown
        gone = _vanishes(seen)
        which = "all its nonzero values" if gone else f"{seen.lost} of {seen.n} values"
        yield _hazard(
            "underflow", walk, op, tensor, seen.max_abs if gone else seen.min_abs, seen.lost, certain=gone,
            says=f"{which} are below 2^-25 (smallest {seen.min_abs:.3g}) and become zero in FP16; "
            f"{behind.name} (op {behind.index}) makes values up to {factor} of them",
        )  # fmt: skip


def _overflow(walk: Walk, op: Op, tensor: Tensor, seen: Stats) -> Hazard:
    positive = seen.high > FP16_MAX
    readers = _real_readers(walk, tensor.index)
    if not positive and readers and seen.low < -FP16_MAX and all(r.name in ("ADD", "SOFTMAX") for r in readers):
        into = "SOFTMAX" if all(_ends_in_softmax(walk, r) for r in readers) else "an ADD"
        return _hazard(
            "mask", walk, op, tensor, seen.low, seen.beyond, certain=False,
            says=f"{seen.beyond} values down to {seen.low:.6g} become −Inf in FP16, as masks do, on the way into "
            f"{into}: harmless {'unless a whole row is masked' if into == 'SOFTMAX' else 'only if a SOFTMAX follows'}",
        )  # fmt: skip
    summed = op.name == "SUM"
    return _hazard(
        "sum_overflow" if summed else "overflow", walk, op, tensor, seen.high if positive else seen.low, seen.beyond,
        certain=True,
        says=f"{seen.beyond} of {seen.n} {'totals' if summed else 'values'} are beyond ±65504, FP16's largest number "
        f"(largest magnitude {seen.max_abs:.6g})",
    )  # fmt: skip


def _constants(model: Model, walk: Walk, activations: Mapping[int, Stats]) -> Iterator[Hazard]:
    for tensor in walk.graph.tensors:
        if tensor.dtype != "float32" or not walk.is_constant(tensor.index) or not walk.consumers.get(tensor.index):
            continue
        values = model.constant(tensor)
        if values is None or not values.size:
            continue
        seen, op = stats_of(values), walk.consumers[tensor.index][0]
        if seen.beyond or seen.nonfinite:
            mask = (seen.high <= FP16_MAX and seen.low < -FP16_MAX) or (seen.nonfinite and not seen.beyond)
            worst, count = (seen.low if mask else seen.max_abs), seen.beyond + seen.nonfinite
            zeros = max((s.zeros for t in op.inputs if (s := activations.get(t))), default=0)
            spoils = op.name == "MUL" and zeros > 0
            after = f", and {zeros} zeros times Inf are NaN" if spoils else ""
            yield _hazard(
                "mask" if mask else "constant_overflow", walk, op, tensor, worst, count, certain=not mask or spoils,
                says=f"its constant {tensor.name!r} holds {count} values beyond ±65504 ({worst:.6g}), infinite in "
                f"FP16{after}",
            )  # fmt: skip
        if _vanishes(seen):
            guard = op.name in _GUARDS
            after = ": it no longer guards against zero" if guard else ""
            yield _hazard(
                "constant_underflow", walk, op, tensor, seen.max_abs, seen.lost, certain=not guard,
                says=f"its constant {tensor.name!r} ({seen.max_abs:.3g} at most) is zero in FP16{after}",
            )  # fmt: skip


def _largest_total(walk: Walk, op: Op, activations: Mapping[int, Stats]) -> float:
    """A bound on the magnitudes one mean of `op` adds up: average magnitude times elements."""
    source = activations.get(op.inputs[0]) if op.inputs else None
    if source is None or not source.n:
        return 0.0
    results = max(int(np.prod(walk.tensor(op.outputs[0]).shape, dtype=np.int64)), 1)
    stored = max(int(np.prod(walk.tensor(op.inputs[0]).shape, dtype=np.int64)), 1)
    return source.sum_abs / source.n * (stored / results)


def _grown(walk: Walk, tensor: int, seen: Stats, activations: Mapping[int, Stats]) -> tuple[Op, str] | None:
    """The nearest op behind a tensor that makes its tiny values matter: AMPLIFIED times larger, or a root of them.

    Where larger values lie beside the tiny ones, only a root counts: a product's size says nothing about them.
    """
    gone = _vanishes(seen)
    tiny = seen.max_abs if gone else seen.min_abs
    waiting, known = [(tensor, 0)], {tensor}
    for at, depth in waiting:
        for op in walk.consumers.get(at, []):
            root = op.name in _ROOTS and op.inputs[-1] == at
            for out in (t for t in op.outputs if t not in known):
                known.add(out)
                after = activations.get(out)
                grows = after is not None and after.max_abs > AMPLIFIED * tiny and after.max_abs >= FP16_NORMAL
                if grows and (root or (gone and op.name in _AMPLIFIERS)):
                    assert after is not None
                    return op, f"{after.max_abs:.3g}" + (" (a zero there: infinite)" if root else "")
                if depth == FAR or after is None:
                    continue
                # Growing in steps is growing too; but beside a larger addend the loss is none.
                onwards = gone and op.name in _AMPLIFIERS | SHAPE_OPS and after.max_abs < FP16_NORMAL
                if onwards or _vanishes(after):
                    waiting.append((out, depth + 1))
    return None


def _vanishes(seen: Stats) -> bool:
    return seen.lost > 0 and seen.lost + seen.zeros == seen.n - seen.nonfinite


def _real_readers(walk: Walk, tensor: int) -> list[Op]:
    """Ops that read a tensor's values, past reshapes."""
    out, waiting, known = [], [tensor], {tensor}
    while waiting:
        for op in walk.consumers.get(waiting.pop(), []):
            if op.name in SHAPE_OPS | {"BROADCAST_TO", "SLICE", "STRIDED_SLICE"}:
                for t in set(op.outputs) - known:
                    known.add(t)
                    waiting.append(t)
            else:
                out.append(op)
    return out


def _ends_in_softmax(walk: Walk, op: Op) -> bool:
    if op.name == "SOFTMAX":
        return True
    after = [r for t in op.outputs for r in _real_readers(walk, t)]
    return bool(after) and all(r.name == "SOFTMAX" for r in after)


def _hazard(
    kind: Kind, walk: Walk, op: Op, tensor: Tensor, value: float, elements: int, *, certain: bool, says: str
) -> Hazard:
    layer = walk.tensor(op.outputs[0]).name if op.outputs else ""
    name = layer.split(";", 1)[0]
    name = name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…"
    return Hazard(
        kind=kind,
        op=op.name,
        op_index=op.index,
        tensor=tensor.index,
        tensor_name=tensor.name,
        value=value,
        elements=elements,
        certain=certain,
        message=f"{op.name} op {op.index}{f' {name!r}' if name else ''}: {says}",
    )
