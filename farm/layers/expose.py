"""A copy of the model whose chosen inner tensors are extra outputs, each through a RESHAPE to its own shape.

A tensor that is made an output directly may never be written, because the delegate fused it away, and then holds
garbage that repeats bit for bit (measured: 22 of 570 tensors of healthy models). A copy has a reader of its own, so
the tensor must exist. The model's own outputs stay first and in their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from farm.layers.flat import int_constant, keep_fp32, name_map, op_code, pack, unpack
from farm.layers.view import Layer, View


def chunks(layers: Sequence[Layer], budget_bytes: int) -> list[list[Layer]]:
    """Split layers, in order, into at most ceil(total / budget) chunks.

    A chunk holds less than the budget plus its last tensor, so a tensor larger than the budget still gets its turn.
    """
    out: list[list[Layer]] = []
    total, current = 0, -1
    for layer in layers:
        number = total // budget_bytes
        if number != current:
            out.append([])
            current = number
        out[-1].append(layer)
        total += layer.size_bytes
    return out


def expose(view: View, layers: Sequence[Layer], *, resized: bool = False, reference: bool = False) -> bytes:
    """The model with one more output per layer, in their order, behind its own. Same bytes for the same request.

    resized: inputs will be fed in other shapes than stored; copies then follow a free dimension instead of the stored
    one, or come flat where several are free. reference: also forbid this CPU's FP16 kernels.
    """
    rewrite = unpack(view.model)
    tree, schema = rewrite.tree, rewrite.schema
    if reference:
        keep_fp32(tree)
    graph = tree.subgraphs[view.graph.index]
    code = op_code(tree, schema, "RESHAPE")
    outputs = [int(t) for t in (graph.outputs if graph.outputs is not None else ())]
    signature = tree.signatureDefs[view.signature] if tree.signatureDefs else None
    shapes: dict[tuple[int, ...], int] = {}
    for layer in layers:
        target = _target(view, layer, resized)
        if target not in shapes:
            shapes[target] = int_constant(rewrite, view.graph.index, f"farm/shape{len(shapes)}", target)
        name = f"farm/layer{layer.tensor}"
        index = rewrite.add_tensor(
            view.graph.index,
            graph.tensors[layer.tensor],
            name=name,
            shape=np.array(layer.shape if target != (-1,) else (math.prod(layer.shape),), np.int32),
            shapeSignature=None,
            buffer=0,
            isVariable=False,
            sparsity=None,
        )
        op = schema.OperatorT()
        op.opcodeIndex = code
        op.inputs, op.outputs = np.array([layer.tensor, shapes[target]], np.int32), np.array([index], np.int32)
        op.builtinOptionsType = schema.BuiltinOptions.ReshapeOptions
        op.builtinOptions = schema.ReshapeOptionsT()
        op.builtinOptions.newShape = np.array(target, np.int32)
        graph.operators.append(op)
        outputs.append(index)
        if signature is not None:
            signature.outputs = [*(signature.outputs or []), name_map(schema, name, index)]
    graph.outputs = np.array(outputs, np.int32)
    return pack(view.model, rewrite)


def _target(view: View, layer: Layer, resized: bool) -> tuple[int, ...]:
    if not resized:
        return layer.shape
    signature = view.graph.tensors[layer.tensor].shape_signature
    if signature is None or sum(d < 0 for d in signature) > 1:
        return (-1,)
    return signature
