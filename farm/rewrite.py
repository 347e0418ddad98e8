"""Rewriting a verified .tflite file: the core that float_copy.py, reductions and per-layer sweeps share.

Reading stays with farm/tflite.py, which has checked every offset; here the same bytes become the object API of
ai_edge_litert's schema (imported only when a model really is rewritten), are changed, and packed again. The same model
and the same changes always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from farm.tflite import Model, Tensor

LARGEST = (1 << 31) - (1 << 24)
"""Bytes a rewritten model may have: flatbuffers address 2 GiB, and the tables need room beside the constants."""
COPIED = "farm_copy_{}"
"""Name of the output that shows a tensor, by tensor index."""
NOT_COPIED = frozenset(("string", "resource", "variant"))
"""Types RESHAPE does not carry."""
RESHAPE, SHAPE = 22, 77
"""Builtin operator codes (schema.fbs)."""


class NotRewritable(ValueError):
    """The model cannot be rewritten this way; the sentence says why."""


class Rewrite:
    """One model being changed. `tree` is its ModelT; tensor indices are those of `model` and stay valid."""

    def __init__(self, model: Model) -> None:
        """Unpack a model. Raises NotRewritable if parts of it lie in other files or are too large."""
        from ai_edge_litert import schema_py_generated as schema

        self.model, self.schema = model, schema
        # Constants stay views of the mapped file until they are packed.
        self.tree: Any = schema.ModelT.InitFromPackedBuf(model.data, 0)
        self._gather()

    def _gather(self) -> None:
        """Bring constants that lie behind the flatbuffer into it."""
        for graph in self.tree.subgraphs:
            if any(t.externalBuffer for t in graph.tensors or []):
                raise NotRewritable("some constants of the model lie in another file")
            if any(op.largeCustomOptionsOffset > 1 for op in graph.operators or []):
                raise NotRewritable("options of a custom op lie behind the flatbuffer")
        for buffer, (start, size) in zip(self.tree.buffers or [], self.model.buffers, strict=True):
            if buffer.offset > 1:
                buffer.data = np.frombuffer(self.model.data[start : start + size], np.uint8)
            buffer.offset = buffer.size = 0

    def pack(self) -> bytes:
        """The rewritten file. Raises NotRewritable beyond 2 GiB."""
        held = sum(len(b.data) for b in self.tree.buffers or [] if b.data is not None)
        if held > LARGEST:
            raise NotRewritable(f"the rewritten model would hold {held} bytes of constants, more than 2 GiB")
        builder = _builder()
        builder.Finish(self.tree.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def add_buffer(self, data: np.ndarray) -> int:
        """Append a constant's bytes; its index."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.tree.buffers.append(buffer)
        return len(self.tree.buffers) - 1

    def drop_unused_buffers(self) -> None:
        """Empty the buffers that nothing names any more; indices stay."""
        used = {t.buffer for g in self.tree.subgraphs for t in g.tensors or []}
        used |= {m.buffer for m in self.tree.metadata or []}
        used |= set(np.asarray(self.tree.metadataBuffer if self.tree.metadataBuffer is not None else [], int).tolist())
        for index, buffer in enumerate(self.tree.buffers):
            if index not in used:
                buffer.data = None

    def add_tensor(self, subgraph: int, like: Any, **changed: Any) -> int:
        """Append a copy of a TensorT with some fields changed; its index."""
        tensor = self.schema.TensorT()
        for name, value in vars(like).items():
            setattr(tensor, name, value)
        for name, value in changed.items():
            setattr(tensor, name, value)
        self.tree.subgraphs[subgraph].tensors.append(tensor)
        return len(self.tree.subgraphs[subgraph].tensors) - 1

    def expose(self, signature: int, tensors: Iterable[int]) -> dict[int, str]:
        """Show tensors of a signature's subgraph as further outputs; tensor → name of its output.

        Each is shown through a RESHAPE to its own shape, right behind the op that writes it: a tensor that is itself
        made an output may be fused away and come back as garbage (facts: 22 of 570 did, no RESHAPE copy). Outputs of
        the model keep their places before the new ones. Types RESHAPE does not carry and constants are left out.
        """
        number = self.model.signatures[signature].subgraph
        graph, known = self.tree.subgraphs[number], self.model.subgraphs[number]
        producer = {t: i for i, op in enumerate(known.ops) for t in op.outputs}
        dynamic = any(-1 in (known.tensors[t].shape_signature or ()) for t in known.inputs)
        names: dict[int, str] = {}
        added: dict[int, list[Any]] = {}
        for index in dict.fromkeys(tensors):
            seen = known.tensors[index]
            if seen.dtype in NOT_COPIED or (index not in producer and index not in known.inputs):
                continue
            name = self._free_name(number, COPIED.format(index))
            like = graph.tensors[index]
            copy = self.add_tensor(number, like, name=name.encode(), buffer=0, isVariable=False, sparsity=None)
            shape, ops = self._shape_of(number, index, seen, dynamic)
            ops.append(self._op(RESHAPE, [index, shape], [copy], None if dynamic else seen.shape))
            added.setdefault(producer.get(index, -1), []).extend(ops)
            graph.outputs = np.append(np.asarray(graph.outputs, np.int32), np.int32(copy))
            self._sign(number, name, copy)
            names[index] = name
        graph.operators = [
            *added.get(-1, []),
            *(o for i, op in enumerate(graph.operators or []) for o in (op, *added.get(i, []))),
        ]
        return names

    def _shape_of(self, subgraph: int, index: int, seen: Tensor, dynamic: bool) -> tuple[int, list[Any]]:
        """The tensor that holds a tensor's shape, and the op that makes it. Stored shapes may be stale in a model
        whose inputs may change, so there SHAPE tells (the runtime computes it before it runs anything)."""
        graph = self.tree.subgraphs[subgraph]
        plain = self.schema.TensorT()
        plain.hasRank, plain.type = True, self.schema.TensorType.INT32
        plain.shape, plain.name = np.array([len(seen.shape)], np.int32), f"farm_shape_{index}".encode()
        if not dynamic:
            plain.buffer = self.add_buffer(np.array(seen.shape, "<i4"))
        graph.tensors.append(plain)
        made = len(graph.tensors) - 1
        return made, [self._op(SHAPE, [index], [made])] if dynamic else []

    def _op(self, code: int, inputs: list[int], outputs: list[int], shape: tuple[int, ...] | None = None) -> Any:
        op = self.schema.OperatorT()
        op.opcodeIndex = self._code(code)
        op.inputs, op.outputs = np.array(inputs, np.int32), np.array(outputs, np.int32)
        if code == SHAPE:
            op.builtinOptionsType = self.schema.BuiltinOptions.ShapeOptions
            op.builtinOptions = self.schema.ShapeOptionsT()
            op.builtinOptions.outType = self.schema.TensorType.INT32
        elif shape is not None:
            op.builtinOptionsType = self.schema.BuiltinOptions.ReshapeOptions
            op.builtinOptions = self.schema.ReshapeOptionsT()
            op.builtinOptions.newShape = np.array(shape, np.int32)
        return op

    def _code(self, builtin: int) -> int:
        codes = self.tree.operatorCodes
        for index, code in enumerate(codes):
            if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin and code.version == 1:
                return index
        code = self.schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = builtin
        code.version = 1
        codes.append(code)
        return len(codes) - 1

    def _free_name(self, subgraph: int, wanted: str) -> str:
        taken = {t.name for t in self.tree.subgraphs[subgraph].tensors}
        taken |= {m.name for s in self.tree.signatureDefs or [] for m in s.outputs or []}
        while wanted.encode() in taken:
            wanted += "_"
        return wanted

    def _sign(self, subgraph: int, name: str, tensor: int) -> None:
        """Name an output in every signature of its subgraph (a model without signatures names tensors itself)."""
        for signature in self.tree.signatureDefs or []:
            if signature.subgraphIndex == subgraph:
                entry = self.schema.TensorMapT()
                entry.name, entry.tensorIndex = name.encode(), tensor
                signature.outputs = [*(signature.outputs or []), entry]


def _builder() -> Any:
    import flatbuffers  # type: ignore[import-untyped]  # comes with ai-edge-litert

    class Builder(flatbuffers.Builder):  # type: ignore[misc]
        def CreateNumpyVector(self, x: np.ndarray) -> Any:
            """Align bytes to 16 as the schema's force_align asks; the generated Python packer forgets it."""
            if x.dtype != np.uint8:
                return super().CreateNumpyVector(x)
            self.StartVector(1, x.size, 16)
            self.head -= x.size
            self.Bytes[self.head : self.head + x.size] = x.tobytes()
            self.vectorNumElems = x.size
            return self.EndVector()

    return Builder(1024)
