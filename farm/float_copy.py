"""A float copy of a model whose CPU kernels quantise activations on the fly: the better reference for its GPU cells.

Beside the reference: reference.py runs the copy on this CPU. Kernels that read int8, int4 or uint8 weights directly
("hybrid") round their float activations to 8 bits, so the CPU's result is only an approximation (46 dB was seen) of
what a GPU computes from the dequantised weights. The copy has the same graph with those weights as float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.graph import HYBRID_TYPES, is_hybrid
from farm.rewrite import LARGEST, NotRewritable, Rewrite
from farm.tflite import Model, Op, Subgraph

DEFAULT_FORMAT = 0
"""FullyConnectedOptions.weights_format: rows in plain order."""


def float_copy(model: Model) -> bytes:
    """The model with the weights of hybrid ops as float32. Raises NotRewritable with the reason.

    A weight is scale · (stored − zero point), per tensor, per channel along quantized_dimension, or per block; one
    float32 rounding, as DEQUANTIZE does it. Constants that other ops read too keep their stored form for those.
    """
    copied = _Copy(model)
    for graph in model.subgraphs:
        for op in graph.ops:
            if is_hybrid(graph, op):
                copied.op(graph, op)
    copied.rewrite.drop_unused_buffers()
    return copied.rewrite.pack()


class _Copy:
    def __init__(self, model: Model) -> None:
        self.model, self.rewrite = model, Rewrite(model)
        self._tensors: dict[tuple[int, int], int] = {}
        self._buffers: dict[Any, int] = {}
        self._bytes = sum(size for _, size in model.buffers)

    def op(self, graph: Subgraph, op: Op) -> None:
        where = f"{op.name} (op {op.index})"
        if op.options.get("weights_format", DEFAULT_FORMAT) != DEFAULT_FORMAT:
            raise NotRewritable(f"the weights of {where} are shuffled")
        written = {t for o in graph.ops for t in o.outputs}
        target = self.rewrite.tree.subgraphs[graph.index].operators[op.index]
        inputs = np.array(target.inputs, np.int32)
        for place, t in enumerate(op.inputs):
            if t < 0 or graph.tensors[t].dtype not in HYBRID_TYPES:
                continue
            if t in written or not graph.tensors[t].has_data:
                raise NotRewritable(f"the quantised weights of {where} are computed, not constant")
            inputs[place] = self._float_tensor(graph, t, where)
        target.inputs = inputs

    def _float_tensor(self, graph: Subgraph, index: int, where: str) -> int:
        key = (graph.index, index)
        if key in self._tensors:
            return self._tensors[key]
        tree = self.rewrite.tree.subgraphs[graph.index].tensors[index]
        changed = {
            "type": self.rewrite.schema.TensorType.FLOAT32,
            "buffer": self._float_buffer(graph, index, where),
            "quantization": None,
        }
        readers = [op for op in graph.ops if index in op.inputs]
        if all(is_hybrid(graph, op) for op in readers) and index not in (*graph.inputs, *graph.outputs):
            for name, value in changed.items():
                setattr(tree, name, value)
            self._tensors[key] = index
        else:
            self._tensors[key] = self.rewrite.add_tensor(graph.index, tree, name=tree.name + b"_float", **changed)
        return self._tensors[key]

    def _float_buffer(self, graph: Subgraph, index: int, where: str) -> int:
        tensor = graph.tensors[index]
        tree = self.rewrite.tree.subgraphs[graph.index].tensors[index]
        if tensor.sparse:
            raise NotRewritable(f"the weights of {where} are stored sparse")
        # Signatures share weights: one float buffer serves all tensors that would hold the same numbers.
        blocks = isinstance(tree.quantization and tree.quantization.details, self.rewrite.schema.BlockwiseQuantizationT)
        key = (tensor.buffer, tensor.dtype, tensor.shape, tensor.quantization, (graph.index, index) if blocks else None)
        if key not in self._buffers:
            self._bytes += 4 * int(np.prod(tensor.shape, dtype=np.int64))
            if self._bytes > LARGEST:
                raise NotRewritable("with float weights it would be larger than 2 GiB")
            stored = self.model.constant(tensor)
            if stored is None:
                raise NotRewritable(f"the weights of {where} ({tensor.dtype}) cannot be read")
            if blocks:
                values = self._blockwise(graph, stored, tree.quantization.details, where)
            elif tensor.quantization is None:
                raise NotRewritable(f"the weights of {where} have no scale")
            else:
                values = _per_axis(stored, tensor.quantization, where)
            self._buffers[key] = self.rewrite.add_buffer(values.astype("<f4", copy=False))
        return self._buffers[key]

    def _blockwise(self, graph: Subgraph, stored: np.ndarray, details: Any, where: str) -> np.ndarray:
        """Scales lie in a tensor of their own, one per block of neighbours (schema.fbs, BlockwiseQuantization)."""
        if not 0 <= details.scales < len(graph.tensors):
            raise NotRewritable(f"the block scales of {where} are missing")
        scales = self.model.constant(graph.tensors[details.scales])
        if scales is None or scales.ndim != stored.ndim:
            raise NotRewritable(f"the block scales of {where} cannot be read")
        zeros = self._block_zeros(graph, scales, details)
        wide, offset = scales.astype(np.float32), zeros
        for axis, (blocks, length) in enumerate(zip(scales.shape, stored.shape, strict=True)):
            if blocks == 0 or length % blocks:
                raise NotRewritable(f"the blocks of {where} do not divide its weights: {scales.shape}, {stored.shape}")
            wide = np.repeat(wide, length // blocks, axis)
            offset = np.repeat(offset, length // blocks, axis)
        return np.asarray(wide * (stored.astype(np.float32) - offset))

    def _block_zeros(self, graph: Subgraph, scales: np.ndarray, details: Any) -> np.ndarray:
        # Index 0 is also the field's default; only a tensor shaped like the scales can be meant.
        if 0 <= details.zeroPoints < len(graph.tensors) and details.zeroPoints != details.scales:
            zeros = self.model.constant(graph.tensors[details.zeroPoints])
            if zeros is not None and zeros.shape == scales.shape:
                return zeros.astype(np.float32)
        return np.zeros(scales.shape, np.float32)


def _per_axis(stored: np.ndarray, quantization: Any, where: str) -> np.ndarray:
    scale = np.asarray(quantization.scale, np.float32)
    zero = np.asarray(quantization.zero_point, np.float32)
    if scale.size > 1:
        axis = quantization.axis
        if not 0 <= axis < stored.ndim or scale.size != stored.shape[axis]:
            raise NotRewritable(f"the weights of {where} have {scale.size} scales along axis {axis} of {stored.shape}")
        along = [1] * stored.ndim
        along[axis] = scale.size
        scale, zero = scale.reshape(along), zero.reshape(along)
    return np.asarray(scale * (stored.astype(np.float32) - zero))
