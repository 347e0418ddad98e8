"""Small models cut out of a large one: an op alone (an island), or everything up to an op (a prefix).

An island takes its activations as inputs and carries the ops that make its weights; several islands and a prefix may
share one file, so that one agent process answers for all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.graph import CALLS
from farm.layers.flat import REDUCED_PRECISION, name_map, pack, unpack
from farm.layers.view import View
from farm.tflite import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Ops that run in one piece. inputs, outputs: tensors of the original graph; ops: by index, in order."""

    tag: str
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutModel:
    """A file of parts. inputs, outputs: (part's tag, original tensor), in the order the runtime numbers them."""

    data: bytes
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


def island(view: View, op_index: int, known: frozenset[int], tag: str) -> Part | None:
    """One op with its weights' makers; tensors outside `known` are computed from those that are.

    known: tensors whose values can be fed. None where the op needs a value that nobody knows, or reads state.
    """
    inputs: list[int] = []
    ops: set[int] = {op_index}
    waiting = [op_index]
    while waiting:
        for t in view.graph.ops[waiting.pop()].inputs:
            if t < 0 or view.walk.is_constant(t):
                continue
            if t not in view.constant and (t in known or t in view.graph.inputs):
                inputs.append(t)
                continue
            maker = view.walk.producer.get(t)
            if maker is None or view.graph.tensors[t].is_variable:
                return None
            if maker.index not in ops:
                ops.add(maker.index)
                waiting.append(maker.index)
    if any(_calls(view.graph.ops[i]) for i in ops):
        return None
    outputs = tuple(dict.fromkeys(view.graph.ops[op_index].outputs))
    return Part(tag=tag, ops=tuple(sorted(ops)), inputs=tuple(dict.fromkeys(inputs)), outputs=outputs)


def prefix(view: View, op_index: int, outputs: Sequence[int], tag: str) -> Part | None:
    """All that leads to one op, fed with the model's own inputs."""
    ops: set[int] = {op_index}
    inputs: list[int] = []
    waiting = [op_index]
    while waiting:
        for t in view.graph.ops[waiting.pop()].inputs:
            maker = view.walk.producer.get(t)
            if maker is not None and maker.index not in ops:
                ops.add(maker.index)
                waiting.append(maker.index)
            if t in view.graph.inputs:
                inputs.append(t)
    if any(_calls(view.graph.ops[i]) for i in ops):
        return None
    ordered = tuple(t for t in view.graph.inputs if t in inputs)
    return Part(tag=tag, ops=tuple(sorted(ops)), inputs=ordered, outputs=tuple(outputs))


def _calls(op: Op) -> bool:
    return op.name in CALLS


def cut(view: View, parts: Sequence[Part], *, reference: bool = False) -> CutModel:
    """One file of all parts, with only the tensors, constants and op codes they use. Same bytes for the same request.

    reference: for this CPU, which is then kept in FP32. Otherwise the model's leave to use FP16 stays.
    """
    rewrite = unpack(view.model)
    tree, schema = rewrite.tree, rewrite.schema
    source = tree.subgraphs[view.graph.index]
    graph = schema.SubGraphT()
    graph.name, graph.tensors, graph.operators = "main", [], []
    buffers: dict[int, int] = {}
    kept_buffers = [schema.BufferT()]
    codes: dict[int, int] = {}
    inputs: list[tuple[tuple[str, int], int]] = []
    outputs: list[tuple[tuple[str, int], int]] = []

    for number, part in enumerate(parts):
        mapping: dict[int, int] = {}

        def place(t: int, mapping: dict[int, int] = mapping, number: int = number) -> int:
            """The part's own copy of a tensor; constants are shared by their buffer."""
            if t < 0:
                return t
            if t not in mapping:
                tensor = copy.copy(source.tensors[t])
                buffer = int(tensor.buffer)
                if view.walk.is_constant(t):
                    if buffer not in buffers:
                        kept_buffers.append(tree.buffers[buffer])
                        buffers[buffer] = len(kept_buffers) - 1
                    tensor.buffer = buffers[buffer]
                else:
                    tensor.buffer = 0
                    # Names of users' layers stay out of files made to be published.
                tensor.name = f"p{number}/t{t}"
                graph.tensors.append(tensor)
                mapping[t] = len(graph.tensors) - 1
            return mapping[t]

        inputs += [((part.tag, t), place(t)) for t in part.inputs]
        for index in part.ops:
            op = copy.copy(source.operators[index])
            op.inputs = np.array([place(int(t)) for t in op.inputs], np.int32)
            op.outputs = np.array([place(int(t)) for t in op.outputs], np.int32)
            op.opcodeIndex = codes.setdefault(int(op.opcodeIndex), len(codes))
            graph.operators.append(op)
        outputs += [((part.tag, t), place(t)) for t in part.outputs]

    graph.inputs = np.array([i for _, i in inputs], np.int32)
    graph.outputs = np.array([i for _, i in outputs], np.int32)
    tree.subgraphs = [graph]
    tree.operatorCodes = [tree.operatorCodes[old] for old in codes]
    metadata = [] if reference else _precision_leave(tree, kept_buffers)
    tree.buffers, tree.metadata, tree.metadataBuffer = kept_buffers, metadata, None
    tree.description = "cut out of a larger model by litert-farm"
    tree.signatureDefs = [_signature(schema, inputs, outputs)]
    return CutModel(
        data=pack(view.model, rewrite),
        inputs=tuple(name for name, _ in inputs),
        outputs=tuple(name for name, _ in outputs),
    )


def _signature(schema: Any, inputs: list[Any], outputs: list[Any]) -> Any:
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = "serving_default", 0
    signature.inputs = [name_map(schema, f"in{n}", i) for n, (_, i) in enumerate(inputs)]
    signature.outputs = [name_map(schema, f"out{n}", i) for n, (_, i) in enumerate(outputs)]
    return signature


def _precision_leave(tree: Any, buffers: list[Any]) -> list[Any]:
    """The metadata entry that lets a CPU compute in FP16, its buffer carried over."""
    kept = []
    for entry in tree.metadata or []:
        if entry.name in (REDUCED_PRECISION, REDUCED_PRECISION.decode()):
            buffers.append(tree.buffers[int(entry.buffer)])
            entry.buffer = len(buffers) - 1
            kept.append(entry)
    return kept
