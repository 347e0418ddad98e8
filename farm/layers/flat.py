"""Small additions to farm/rewrite.py that exposing and cutting share: op codes, constants, signature entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.errors import InvalidInput, Problem
from farm.rewrite import NotRewritable, Rewrite
from farm.tflite import Model

REDUCED_PRECISION = b"reduced_precision_support"
"""Metadata by which a model lets XNNPACK compute in FP16 (tflite/tools/optimize/reduced_precision_metadata.h)."""


def unpack(model: Model) -> Rewrite:
    """The model as an object tree. Raises InvalidInput for models that cannot be written again (2 GiB and more)."""
    try:
        return Rewrite(model)
    except NotRewritable as e:
        raise _refused(model, e) from e


def pack(model: Model, rewrite: Rewrite) -> bytes:
    """The file of a changed tree. Raises InvalidInput where it would be too large."""
    try:
        return rewrite.pack()
    except NotRewritable as e:
        raise _refused(model, e) from e


def _refused(model: Model, why: NotRewritable) -> InvalidInput:
    message = f"cannot be rewritten, and layers are watched by rewriting the file: {why}"
    return InvalidInput(Problem(message=message, file=str(model.path), cure="study a smaller part of the model"))


def keep_fp32(tree: Any) -> None:
    """Drop the metadata that would let this CPU's XNNPACK compute in FP16: references are FP32."""
    names = (REDUCED_PRECISION, REDUCED_PRECISION.decode())
    tree.metadata = [m for m in tree.metadata or [] if m.name not in names]


def op_code(tree: Any, schema: Any, name: str, version: int = 1) -> int:
    """The index of a builtin op's code, added where the model has none."""
    number = getattr(schema.BuiltinOperator, name)
    for index, code in enumerate(tree.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == number and code.version == version:
            return index
    code = schema.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), version
    tree.operatorCodes.append(code)
    return len(tree.operatorCodes) - 1


def int_constant(rewrite: Rewrite, subgraph: int, name: str, values: tuple[int, ...]) -> int:
    """Add an int32 vector; its tensor index."""
    tensor = rewrite.schema.TensorT()
    tensor.name, tensor.type, tensor.hasRank = name, rewrite.schema.TensorType.INT32, True
    tensor.shape, tensor.buffer = np.array([len(values)], np.int32), rewrite.add_buffer(np.array(values, "<i4"))
    tensors = rewrite.tree.subgraphs[subgraph].tensors
    tensors.append(tensor)
    return len(tensors) - 1


def name_map(schema: Any, name: str, tensor: int) -> Any:
    """A signature entry."""
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, tensor
    return entry
