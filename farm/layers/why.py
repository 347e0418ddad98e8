"""Why the named op goes wrong there: hazards seen in its own numbers and surroundings, with what would cure them. Pure.

Rules are those seen to hold (values beyond 65504, sums past it, values below FP16's normal numbers, long sums, weights
made on the CPU, a boundary between GPU and CPU, outputs that are also read). A sentence says what was seen, and no
cure is called one before it was run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from farm.delegation import Delegation
from farm.graph import FP16_MAX
from farm.layers.health import Health
from farm.layers.view import Layer, View
from farm.tflite import Op

FP16_SMALL = 2.0**-14
_SUMS = frozenset(("SUM", "MEAN", "AVERAGE_POOL_2D", "L2_POOL_2D", "REDUCE_PROD", "CUMSUM"))
_PRODUCTS = frozenset(("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D", "BATCH_MATMUL", "TRANSPOSE_CONV", "CONV_3D"))
LONG_SUM = 64
"""From so many FP16 additions on the rounding of each may show: 64 · 2^-11 is 3 % of the largest partial sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """code: FP16_RANGE, FP16_UNDERFLOW, FP16_ACCUMULATION, WEIGHTS_ON_CPU, PARTITION_BOUNDARY, FUSED_OUTPUT,
    ACCUMULATED or KERNEL."""

    code: str
    sentence: str
    try_: str


def reasons(
    view: View,
    layer: Layer,
    health: Mapping[int, Health],
    *,
    label: str,
    low_precision: bool,
    delegation: Delegation,
) -> tuple[Reason, ...]:
    """What speaks for itself about one named op; the likeliest first. Never empty."""
    op, own = view.op(layer), health[layer.tensor]
    found: list[Reason] = []
    if label == "accumulated":
        found.append(
            Reason(
                code="ACCUMULATED",
                sentence="the op is right on what it was given; small errors of ops before it have grown until here",
                try_="run the whole model in FP32",
            )
        )
    elif low_precision and label != "context-dependent":
        # Alone and on the same values the op is right: no hazard of its own numbers explains it.
        found += _fp16(view, layer, op, own, health)
    if delegation.level == "partial":
        found += _boundary(view, op, delegation)
    if layer.own_output is not None and layer.consumers and label == "context-dependent":
        readers = ", ".join(f"{view.layers[c].op_name} (op {view.layers[c].op})" for c in layer.consumers[:3])
        found.append(
            Reason(
                code="FUSED_OUTPUT",
                sentence=f"the tensor is an output of the model and is read by {readers}; the op alone is right, so "
                "the delegate loses the output when it fuses the op with its readers",
                try_="give the output a copy of its own: a RESHAPE to the same shape between tensor and output",
            )
        )
    if not found:
        where = "alone, on exact inputs" if label == "intrinsic" else "in this graph only"
        found.append(
            Reason(
                code="KERNEL",
                sentence=f"no hazard of range or length applies; the kernel is wrong {where}",
                try_="write the op another way, or report it with the bundle",
            )
        )
    return tuple(found)


def _fp16(view: View, layer: Layer, op: Op, own: Health, health: Mapping[int, Health]) -> list[Reason]:
    fp32 = "run the model in FP32, or this op alone where the runtime allows mixed precision"
    total = own.ref_max
    length = reduction_length(view, op)
    if op.name == "MEAN":
        # Its sum is what overflows, before the division.
        total = own.ref_max * length
    if total > FP16_MAX:
        what = "its sum reaches" if op.name == "MEAN" else "values reach"
        return [
            Reason(
                code="FP16_RANGE",
                sentence=f"{what} {total:.3g}; the largest FP16 number is 65504",
                try_=f"scale the operands down before the op and the result up behind it, or {fp32}",
            )
        ]
    if own.new_nonfinite and own.ref_max > FP16_MAX / 2:
        return [
            Reason(
                code="FP16_RANGE",
                sentence=f"values reach {own.ref_max:.3g}, so near 65504 that rounding the inputs in FP16 passes it",
                try_=f"scale the operands down before the op, or {fp32}",
            )
        ]
    if 0 < own.ref_max < FP16_SMALL:
        return [
            Reason(
                code="FP16_UNDERFLOW",
                sentence=f"values are at most {own.ref_max:.3g}, below FP16's smallest normal number 6.1e-05, and the "
                "ops behind amplify what is lost",
                try_=f"scale the operands up before the op, or {fp32}",
            )
        ]
    if length >= LONG_SUM and op.name in _SUMS | _PRODUCTS:
        return [
            Reason(
                code="FP16_ACCUMULATION",
                sentence=f"it adds {length} numbers per element; added in FP16 each addition rounds",
                try_="gpu-fp16-acc32 where the runtime has it (LiteRT 2.2), or " + fp32,
            )
        ]
    return []


def reduction_length(view: View, op: Op) -> int:
    """How many numbers go into one element of the op's result; 1 for elementwise ops."""
    tensors = view.graph.tensors
    if op.name in _SUMS and op.inputs and op.inputs[0] >= 0:
        if op.name.endswith("POOL_2D"):
            return int(op.options.get("filter_height", 1)) * int(op.options.get("filter_width", 1))
        size, out = math.prod(tensors[op.inputs[0]].shape), max(math.prod(tensors[op.outputs[0]].shape), 1)
        return max(size // out, 1)
    if op.name in _PRODUCTS and len(op.inputs) > 1 and op.inputs[1] >= 0:
        shape = tensors[op.inputs[1]].shape
        if op.name == "BATCH_MATMUL":
            return tensors[op.inputs[0]].shape[-1] if tensors[op.inputs[0]].shape else 1
        if op.name == "DEPTHWISE_CONV_2D":
            return math.prod(shape[1:3])
        return max(math.prod(shape[1:]), 1)
    return 1


def _boundary(view: View, op: Op, delegation: Delegation) -> list[Reason]:
    makers = []
    for t in op.inputs:
        if t in view.constant and not view.walk.is_constant(t):
            makers += [o.name for o in view.walk.chain(t, 4)]
    left = "; ".join(delegation.cpu_ops[:3])
    if makers:
        chain = " → ".join(dict.fromkeys(reversed(makers)))
        return [
            Reason(
                code="WEIGHTS_ON_CPU",
                sentence=f"its weights are made by {chain}, while parts of the graph stay on the CPU"
                + (f" ({left})" if left else ""),
                try_="convert with the weights stored as plain constants (no DENSIFY or DEQUANTIZE before the op)",
            )
        ]
    return [
        Reason(
            code="PARTITION_BOUNDARY",
            sentence="the graph is split between GPU and CPU" + (f" ({left})" if left else ""),
            try_="replace the ops the delegate refuses, so that the whole graph stays on the GPU",
        )
    ]
