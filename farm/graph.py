"""Facts of a model's graph that judging needs, as plain data kept in the plan: a run is judged without the model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from farm.metadata import normalisations
from farm.tflite import Model, Op, Quantization, Signature, Subgraph, Tensor

SHAPE_OPS = frozenset(
    ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "STABLEHLO_RESHAPE", "STABLEHLO_TRANSPOSE", "BITCAST")
)
"""Ops that move values without computing."""
CALLS = frozenset(("IF", "WHILE", "CALL", "CALL_ONCE", "STABLEHLO_WHILE", "STABLEHLO_COMPOSITE"))
RANDOM_OPS = frozenset(("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR"))

_STATE_OPS = frozenset(("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"))
_HYBRID_WEIGHTS = {
    "FULLY_CONNECTED": 1, "CONV_2D": 1, "DEPTHWISE_CONV_2D": 1, "CONV_3D": 1, "TRANSPOSE_CONV": 1, "BATCH_MATMUL": 1,
    "SVDF": 1, "RNN": 1, "UNIDIRECTIONAL_SEQUENCE_RNN": 1, "LSTM": 2, "UNIDIRECTIONAL_SEQUENCE_LSTM": 2,
    "BIDIRECTIONAL_SEQUENCE_LSTM": 2,
}  # fmt: skip
"""Ops whose kernels quantise float activations, and which input holds the weights. TRANSPOSE_CONV's data is input 2."""
HYBRID_TYPES = frozenset(("int8", "uint8", "int4", "int2", "uint4"))
"""Types of the weights hybrid kernels read."""
_REDUCTIONS = frozenset(("SUM", "MEAN", "AVERAGE_POOL_2D", "L2_POOL_2D"))
LARGE_REDUCTION = 1 << 16
"""From here on the order of summation shows in float32 (docs/judging.md, "Large reductions")."""
FP16_MAX, FP16_TINY = 65504.0, 2.0**-24


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """One signature input."""

    name: str
    tensor: int
    dtype: str
    shape: tuple[int, ...]
    """What will be fed: the model's shape, or the shape given for this run."""
    shape_signature: tuple[int, ...] | None
    quantization: Quantization | None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Normalisation by the model's TFLite metadata: fed is (pixel in 0..255 − mean) / std; empty if not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """One signature output and where it comes from.

    tail: names of the ops that end in this output, last first, reshapes and the like included
          (e.g. ("RESHAPE", "SOFTMAX", "FULLY_CONNECTED")); at most 6.
    unwritten: no op writes it and it is neither an input nor a constant (its bytes are whatever memory held).
    alias_of: "input:NAME" or "output:NAME" where two names share one tensor (only the later one carries it).
    constant: it is a constant of the file.
    depends_on_inputs: some path leads from a signature input to it.
    clipped_unit: its last op clamps to [0, 1] (RELU_0_TO_1, or MINIMUM/MAXIMUM pairs with 0 and 1).
    large_reduction: op name, index and number of elements summed into one result, when a SUM, MEAN or pooling over
          2^16 elements or more lies on a path to it; `last` if the reduction is its last arithmetic op.
    activation: "LOGISTIC", "SOFTMAX" or "CLIP" (to [0, 1]) when that is what the output's values last went through;
          reshapes, QUANTIZE and DEQUANTIZE behind it do not count.
    class_axis: the axis SOFTMAX normalises (the last), or LOGISTIC's last axis of two elements or more; else None.
    logits: the last arithmetic is a matrix product (bias, soft capping allowed) over ≥ 1,000 classes at ≥ 2 positions.
    index_source: for indices (ARG_MAX, ARG_MIN, TOPK_V2's second output): the tensor they point into.
    index_values: signature output that holds the values the indices stand for, or the tensor they point into; or None.
    """

    name: str
    tensor: int
    dtype: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...] | None
    quantization: Quantization | None
    tail: tuple[str, ...]
    unwritten: bool
    alias_of: str | None
    constant: bool
    depends_on_inputs: bool
    clipped_unit: bool
    large_reduction: LargeReduction | None
    activation: str | None = None
    class_axis: int | None = None
    logits: bool = False
    index_source: int | None = None
    index_values: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeReduction:
    op: str
    op_index: int
    elements: int
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """Facts of one signature of a model. Subgraphs it calls (IF, WHILE, CALL_ONCE) are looked into.

    op_count, op_histogram: of the signature's own subgraph.
    stateful: VAR_HANDLE, variable tensors or CALL_ONCE are present.
    hybrid_ops: names of ops whose float activations the CPU quantises on the fly (int8/int4 weights read directly).
    custom_ops: custom op codes.
    inf_constants: some float constant holds ±inf, or a value so near its type's largest, as finfo.min masks do, that
          adding two of them gives ±inf.
    random_ops: ops that draw random numbers (RANDOM_UNIFORM, …).
    fp16_hazards: sentences about float32 constants FP16 cannot hold, with op and tensor: some |c| > 65504, or every
          nonzero |c| < 2^-24 (a stray tiny weight among larger ones is not worth a word).
    densify: DENSIFY or constant DEQUANTIZE ops feed weights (weight-producing ops a delegate may leave on the CPU).
    """

    inputs: tuple[InputFacts, ...]
    outputs: tuple[OutputFacts, ...]
    op_count: int
    op_histogram: dict[str, int]
    stateful: bool
    hybrid_ops: tuple[str, ...]
    custom_ops: tuple[str, ...]
    inf_constants: bool
    random_ops: tuple[str, ...]
    fp16_hazards: tuple[str, ...]
    densify: bool


def graph_facts(model: Model, signature: int, shapes: dict[str, tuple[int, ...]] | None = None) -> GraphFacts:
    """Analyse one signature. `shapes` are the shapes its inputs will be fed with, by name."""
    sig = model.signatures[signature]
    graph = model.subgraphs[sig.subgraph]
    reached = list(called_subgraphs(model, graph))
    ops = [op for g in reached for op in g.ops]
    walk = Walk(graph)
    metadata = normalisations(model)
    inputs = tuple(
        _input_facts(name, graph.tensors[t], (shapes or {}).get(name), metadata.get((sig.subgraph, _place(graph, t))))
        for name, t in sig.inputs
    )
    constants = [
        _ConstantRange.of(model, g, t) for g in reached for t in g.tensors if t.dtype in ("float32", "float16")
    ]
    ranges = [c for c in constants if c is not None]
    return GraphFacts(
        inputs=inputs,
        outputs=tuple(_output_facts(model, sig, walk, i, inputs) for i in range(len(sig.outputs))),
        op_count=len(graph.ops),
        op_histogram=dict(Counter(op.name for op in graph.ops)),
        stateful=any(op.name in _STATE_OPS for op in ops) or any(t.is_variable for g in reached for t in g.tensors),
        hybrid_ops=tuple(dict.fromkeys(op.name for g in reached for op in g.ops if is_hybrid(g, op))),
        custom_ops=tuple(dict.fromkeys(op.name.partition(":")[2] for op in ops if op.name.startswith("CUSTOM:"))),
        inf_constants=any(c.near_infinite for c in ranges),
        random_ops=tuple(dict.fromkeys(op.name for op in ops if op.name in RANDOM_OPS)),
        fp16_hazards=tuple(c.hazard for c in ranges if c.hazard),
        densify=any(
            op.name == "DENSIFY" or (op.name == "DEQUANTIZE" and g.tensors[op.inputs[0]].has_data)
            for g in reached
            for op in g.ops
            if op.inputs and op.inputs[0] >= 0
        ),
    )


def called_subgraphs(model: Model, start: Subgraph) -> Iterator[Subgraph]:
    """A subgraph and every one its ops may run, each once."""
    seen, waiting = {start.index}, [start]
    while waiting:
        graph = waiting.pop()
        yield graph
        for op in graph.ops:
            if op.name not in CALLS:
                continue
            for key, index in op.options.items():
                if (key.endswith("subgraph_index") or key == "subgraph") and index not in seen:
                    seen.add(index)
                    waiting.append(model.subgraphs[index])


class Walk:
    """Who writes and who reads each tensor of one subgraph. Walks are loops, never recursion; circles are harmless."""

    def __init__(self, graph: Subgraph) -> None:
        self.graph = graph
        self.producer: dict[int, Op] = {}
        self.consumers: dict[int, list[Op]] = {}
        for op in graph.ops:
            for t in op.outputs:
                self.producer.setdefault(t, op)
            for t in dict.fromkeys(op.inputs):
                self.consumers.setdefault(t, []).append(op)

    def tensor(self, index: int) -> Tensor:
        return self.graph.tensors[index]

    def is_constant(self, index: int) -> bool:
        return self.tensor(index).has_data and index not in self.producer and index not in self.graph.inputs

    def data_inputs(self, op: Op) -> list[int]:
        """Inputs that are neither absent nor constants of the file."""
        return [t for t in op.inputs if t >= 0 and not self.is_constant(t)]

    def chain(self, tensor: int, limit: int) -> list[Op]:
        """Ops that end in `tensor`, last first, following the first input that is no constant."""
        out: list[Op] = []
        while len(out) < limit and tensor in self.producer:
            op = self.producer[tensor]
            if op in out:
                break
            out.append(op)
            inputs = self.data_inputs(op)
            if not inputs:
                break
            tensor = inputs[0]
        return out

    def ancestors(self, tensor: int) -> tuple[dict[int, Op], set[int]]:
        """Ops (by index) and tensors some path leads from to `tensor`, itself included. SHAPE reads no values."""
        ops: dict[int, Op] = {}
        seen, waiting = {tensor}, deque([tensor])
        while waiting:
            op = self.producer.get(waiting.popleft())
            if op is None or op.index in ops:
                continue
            ops[op.index] = op
            if op.name in ("SHAPE", "RANK"):
                continue
            for t in op.inputs:
                if t >= 0 and t not in seen:
                    seen.add(t)
                    waiting.append(t)
        return ops, seen


def _place(graph: Subgraph, tensor: int) -> int:
    return graph.inputs.index(tensor) if tensor in graph.inputs else -1


def fed_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape a tensor is fed with when none is given: the stored one, with 1 for a free dimension stored as 0."""
    may = tensor.shape_signature or tensor.shape
    return tuple(1 if d == 0 and m < 0 else d for d, m in zip(tensor.shape, may, strict=True))


def _input_facts(
    name: str, t: Tensor, given: tuple[int, ...] | None, scaling: tuple[tuple[float, ...], tuple[float, ...]] | None
) -> InputFacts:
    mean, std = scaling or ((), ())
    return InputFacts(
        name=name,
        tensor=t.index,
        dtype=t.dtype,
        shape=fed_shape(t) if given is None else given,
        shape_signature=t.shape_signature,
        quantization=t.quantization,
        mean=mean,
        std=std,
    )


def _output_facts(
    model: Model, sig: Signature, walk: Walk, position: int, inputs: tuple[InputFacts, ...]
) -> OutputFacts:
    name, index = sig.outputs[position]
    t = walk.tensor(index)
    sources = {t: n for n, t in sig.inputs}
    earlier = {t: n for n, t in reversed(sig.outputs[:position])}
    alias = f"input:{sources[index]}" if index in sources else f"output:{earlier[index]}" if index in earlier else None
    ops, seen = walk.ancestors(index)
    depends = bool(seen & sources.keys()) or (
        # What a variable holds came from an earlier step's inputs.
        any(op.name == "READ_VARIABLE" for op in ops.values())
        and any(walk.ancestors(op.inputs[1])[1] & sources.keys() for op in walk.graph.ops if _assigns(op))
    )
    # Reshapes and requantisation do not hide what the values are.
    core = _core(walk, index)
    clipped = _clips_to_unit(model, walk, core)
    activation = _activation(model, walk, index, depth=4)
    source, values = _index_source(sig, walk, core, index, position)
    return OutputFacts(
        name=name,
        tensor=index,
        dtype=t.dtype,
        shape=t.shape,
        shape_signature=t.shape_signature,
        quantization=t.quantization,
        tail=tuple(op.name for op in walk.chain(index, 6)),
        unwritten=index not in walk.producer
        and index not in walk.graph.inputs
        and not (t.has_data or t.is_variable or 0 in t.shape),
        alias_of=alias,
        constant=walk.is_constant(index),
        depends_on_inputs=depends,
        clipped_unit=clipped,
        large_reduction=_large_reduction(walk, ops, core, inputs),
        activation=activation,
        class_axis=_class_axis(walk, core, t) if core and core[0].name in ("LOGISTIC", "SOFTMAX") else None,
        logits=_is_logits(core, t),
        index_source=source,
        index_values=values,
    )


def _core(walk: Walk, tensor: int) -> list[Op]:
    """Ops that end in a tensor, last first, without those that only move or requantise values."""
    return [op for op in walk.chain(tensor, 12) if op.name not in SHAPE_OPS | {"QUANTIZE", "DEQUANTIZE"}]


def _activation(model: Model, walk: Walk, tensor: int, depth: int) -> str | None:
    """LOGISTIC, SOFTMAX or CLIP if that is what a tensor's values last went through; both ways of an IF must agree."""
    core = _core(walk, tensor)
    if _clips_to_unit(model, walk, core):
        return "CLIP"
    if not core:
        return None
    if core[0].name in ("LOGISTIC", "SOFTMAX"):
        return core[0].name
    if core[0].name != "IF" or not depth:
        return None
    # Past reshapes behind the IF, which of its outputs leads here?
    behind = {tensor, *(t for op in walk.chain(tensor, 12) for t in op.inputs)}
    position = next((i for i, t in enumerate(core[0].outputs) if t in behind), 0)
    ways = set()
    for key in ("then_subgraph_index", "else_subgraph_index"):
        branch = model.subgraphs[core[0].options.get(key, 0)]
        if position >= len(branch.outputs):
            return None
        inner = branch.outputs[position]
        if inner in branch.inputs and branch.inputs.index(inner) + 1 < len(core[0].inputs):
            ways.add(_activation(model, walk, core[0].inputs[branch.inputs.index(inner) + 1], depth - 1))
        else:
            ways.add(_activation(model, Walk(branch), inner, depth - 1))
    return ways.pop() if len(ways) == 1 else None


def _assigns(op: Op) -> bool:
    return op.name == "ASSIGN_VARIABLE" and len(op.inputs) > 1 and op.inputs[1] >= 0


def _clips_to_unit(model: Model, walk: Walk, core: list[Op]) -> bool:
    if core and core[0].name == "RELU_0_TO_1":
        return True
    if len(core) < 2 or {core[0].name, core[1].name} != {"MINIMUM", "MAXIMUM"}:
        return False
    limit = {op.name: _scalar(model, walk, op) for op in core[:2]}
    return limit["MINIMUM"] == 1.0 and limit["MAXIMUM"] == 0.0


def _scalar(model: Model, walk: Walk, op: Op) -> float | None:
    for t in op.inputs:
        if t >= 0 and walk.is_constant(t):
            value = model.constant(walk.tensor(t))
            if value is not None and value.size == 1:
                return float(value.reshape(-1)[0])
    return None


def _class_axis(walk: Walk, core: list[Op], t: Tensor) -> int | None:
    inner = walk.tensor(core[0].outputs[0]).shape
    if not t.shape or not inner or t.shape[-1] != inner[-1] or t.shape[-1] < 2:
        return None
    return len(t.shape) - 1


def _is_logits(core: list[Op], t: Tensor) -> bool:
    if (
        len(t.shape) < 2
        or t.shape[-1] < 1000
        or int(np.prod(t.shape[:-1], dtype=np.int64)) < 2
        or "float" not in t.dtype
    ):
        return False
    for op in core[:6]:
        if op.name in ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D", "STABLEHLO_DOT_GENERAL"):
            return True
        # A bias, or soft capping: tanh(x / c) · c.
        if op.name not in ("ADD", "MUL", "DIV", "TANH", "CAST", "SUB"):
            return False
    return False


def _index_source(
    sig: Signature, walk: Walk, core: list[Op], index: int, position: int
) -> tuple[int | None, str | None]:
    op = next((op for op in core if op.name != "CAST"), None)
    if op is None or not op.inputs or op.inputs[0] < 0:
        return None, None
    names = {t: n for n, t in reversed(sig.outputs)}
    if op.name in ("ARG_MAX", "ARG_MIN"):
        return op.inputs[0], names.get(op.inputs[0])
    # Only the second output of TOPK_V2 holds indices.
    holder = walk.chain(index, 12)
    feeding = {index, *(t for o in holder if o is not op for t in o.inputs)}
    if op.name == "TOPK_V2" and len(op.outputs) == 2 and op.outputs[1] in feeding:
        return op.inputs[0], names.get(op.outputs[0]) or names.get(op.inputs[0])
    return None, None


def large_reductions(walk: Walk, ops: Mapping[int, Op], inputs: tuple[InputFacts, ...]) -> Iterator[tuple[Op, int]]:
    """Ops of `ops` that sum 2^16 elements or more into one result, and how many at most."""
    grown = 1.0
    for i in inputs:
        stored = max(int(np.prod(walk.tensor(i.tensor).shape, dtype=np.int64)), 1)
        grown = max(grown, int(np.prod(i.shape, dtype=np.int64)) / stored)
    for op in ops.values():
        if op.name not in _REDUCTIONS or not op.inputs or op.inputs[0] < 0:
            continue
        source = walk.tensor(op.inputs[0])
        if op.name.endswith("POOL_2D"):
            elements = op.options.get("filter_height", 0) * op.options.get("filter_width", 0)
        else:
            result = max(int(np.prod(walk.tensor(op.outputs[0]).shape, dtype=np.int64)), 1)
            elements = int(np.prod(source.shape, dtype=np.int64)) // result
            if any(d < 0 for d in source.shape_signature or ()):
                # Fed larger than stored: at most this many. Too many only means one more check of the reference.
                elements = int(elements * grown)
        if elements >= LARGE_REDUCTION:
            yield op, elements


def _large_reduction(
    walk: Walk, ops: Mapping[int, Op], core: list[Op], inputs: tuple[InputFacts, ...]
) -> LargeReduction | None:
    found = list(large_reductions(walk, ops, inputs))
    if not found:
        return None
    op, elements = max(found, key=lambda pair: pair[1])
    return LargeReduction(
        op=op.name, op_index=op.index, elements=elements, last=bool(core) and core[0].index == op.index
    )


def is_hybrid(graph: Subgraph, op: Op) -> bool:
    """Whether an op's CPU kernel quantises its float activations because it reads quantised weights directly."""
    at = _HYBRID_WEIGHTS.get(op.name)
    if at is None or len(op.inputs) <= at or op.inputs[at] < 0:
        return False
    data = op.inputs[2 if op.name == "TRANSPOSE_CONV" and len(op.inputs) > 2 else 0]
    if data < 0 or graph.tensors[data].dtype != "float32":
        return False
    return graph.tensors[op.inputs[at]].dtype in HYBRID_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConstantRange:
    near_infinite: bool
    hazard: str

    @classmethod
    def of(cls, model: Model, graph: Subgraph, t: Tensor) -> _ConstantRange | None:
        """Extremes of one float constant; None if it has no data here."""
        values = model.constant(t) if t.has_data else None
        if values is None or not values.size:
            return None
        flat = values.reshape(-1)
        high = 0.0
        step = 1 << 22  # bounds the temporary copies of a big table
        for i in range(0, flat.size, step):
            part = np.abs(flat[i : i + step])
            high = max(high, float(np.nanmax(part, initial=0.0)))
        top = float(np.finfo(t.dtype).max)
        hazard = ""
        if t.dtype == "float32" and high > FP16_MAX:
            hazard = f"{_used_by(graph, t)}: |{high:.6g}| is above 65504, the largest FP16 number"
        elif t.dtype == "float32" and 0 < high < FP16_TINY:
            hazard = f"{_used_by(graph, t)}: |{high:.6g}| is below 2^-24, the smallest FP16 number"
        return cls(near_infinite=high > top / 2, hazard=hazard)


def _used_by(graph: Subgraph, t: Tensor) -> str:
    user = next((op for op in graph.ops if t.index in op.inputs), None)
    return f"constant {t.name!r}" + (f" of op {user.index} ({user.name})" if user else "")
