"""Which tensors of a graph are worth watching and who feeds whom: the first look of a layer study. Reads no values."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from farm.graph import Walk
from farm.tflite import Model, Op, Subgraph, Tensor

PURE_SHAPE = frozenset(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST", "STABLEHLO_RESHAPE"))
"""Ops that leave every byte in its place: their input says all there is to see."""
WATCHED_DTYPES = {"float32": 4, "float16": 2, "int8": 1, "uint8": 1, "int16": 2, "int32": 4}
"""dtype → bytes per element of what a RESHAPE copy can carry on every accelerator seen so far."""
_NOT_CONSTANT = frozenset(
    ("READ_VARIABLE", "VAR_HANDLE", "RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "HASHTABLE")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One watched tensor and the op that writes it.

    producers, consumers: watched tensors next to it, looking through tensors that are not watched.
    own_output: signature output position of the original model, or None. depth: longest way from an input, in ops.
    """

    tensor: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    op: int
    op_name: str
    depth: int
    own_output: int | None
    producers: tuple[int, ...]
    consumers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The watched tensors of one signature's subgraph, in the order their ops run.

    skipped: reason → number of tensors not watched. constant: tensors that no input reaches.
    """

    model: Model
    signature: int
    graph: Subgraph
    walk: Walk
    layers: dict[int, Layer]
    constant: frozenset[int]
    skipped: dict[str, int] = field(default_factory=dict)

    def op(self, layer: Layer) -> Op:
        return self.graph.ops[layer.op]


def watch(model: Model, signature: int) -> View:
    """Find the tensors to watch: op outputs that some input reaches, but for pure reshapes, and every own output."""
    sig = model.signatures[signature]
    graph = model.subgraphs[sig.subgraph]
    walk = Walk(graph)
    own = {tensor: position for position, (_, tensor) in reversed(list(enumerate(sig.outputs)))}
    constant = _constant_derived(graph, walk)
    skipped: Counter[str] = Counter()
    depth: dict[int, int] = {}
    seen_by: dict[int, tuple[int, ...]] = {}  # tensor → watched tensors that its value comes from
    layers: dict[int, Layer] = {}
    for op in graph.ops:
        inputs = [t for t in dict.fromkeys(op.inputs) if t >= 0]
        sources = tuple(dict.fromkeys(s for t in inputs for s in ((t,) if t in layers else seen_by.get(t, ()))))
        level = 1 + max((depth.get(t, 0) for t in inputs), default=0)
        for t in op.outputs:
            tensor = graph.tensors[t]
            depth[t] = level
            reason = _not_watched(op, tensor, t in constant)
            if t not in own and reason:
                skipped[reason] += 1
                seen_by[t] = sources
                continue
            layers[t] = Layer(
                tensor=t,
                name=tensor.name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                size_bytes=math.prod(tensor.shape) * WATCHED_DTYPES.get(tensor.dtype, 8),
                op=op.index,
                op_name=op.name,
                depth=level,
                own_output=own.get(t),
                producers=sources,
            )
    return View(
        model=model,
        signature=signature,
        graph=graph,
        walk=walk,
        layers=_with_consumers(layers),
        constant=constant,
        skipped=dict(skipped),
    )


def _not_watched(op: Op, tensor: Tensor, constant: bool) -> str | None:
    if constant:
        return "made of constants"
    if op.name in PURE_SHAPE:
        return "pure reshape"
    if tensor.dtype not in WATCHED_DTYPES:
        return f"{tensor.dtype} cannot be copied"
    if 0 in tensor.shape:
        return "empty"
    return None


def _constant_derived(graph: Subgraph, walk: Walk) -> frozenset[int]:
    """Constants and everything made of them alone. Ops run in list order, so one pass finds them all."""
    constant = {t.index for t in graph.tensors if walk.is_constant(t.index)}
    for op in graph.ops:
        inputs = [t for t in op.inputs if t >= 0]
        if inputs and op.name not in _NOT_CONSTANT and constant.issuperset(inputs):
            constant.update(op.outputs)
    return frozenset(constant)


def _with_consumers(layers: dict[int, Layer]) -> dict[int, Layer]:
    import dataclasses

    readers: dict[int, list[int]] = {t: [] for t in layers}
    for layer in layers.values():
        for source in layer.producers:
            readers[source].append(layer.tensor)
    return {t: dataclasses.replace(layer, consumers=tuple(readers[t])) for t, layer in layers.items()}
