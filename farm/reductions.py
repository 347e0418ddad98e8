"""Large SUM, MEAN and pooling recomputed in float64: where a float32 sum, the CPU's too, may be the wrong one.

Beside the reference: reference.py shows a reduction's input and result as outputs (rewrite.py), runs that once on the
CPU, and this module says what the result ought to be and how far off the CPU's is. MEAN of 10^6 values near 1000 was
seen 41 dB off on the CPU and right on every GPU. Numbers only; it reads arrays in pieces and holds no copy of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from farm.graph import InputFacts, Walk, large_reductions
from farm.metrics import EXACT_SNR_DB
from farm.tflite import Model, Op, Quantization

MAX_ELEMENTS = 1 << 24
"""Beyond it float32 cannot even count: 2^24 + 1 = 2^24 (docs/judging.md, reference)."""
MAX_BYTES = 1 << 30
"""What the inputs of the reductions may take, in memory and in the object store (docs/judging.md)."""
MAX_WINDOWS = 1 << 12
"""Pooling windows of 2^16 elements worth walking one by one in Python."""
PLAIN_MOVES = frozenset(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "STABLEHLO_RESHAPE"))
"""Ops behind a reduction that leave its values in their order."""
SMALL = 8
"""Fewer results: largest difference over largest value (docs/judging.md, kinds)."""
_CLAMPS = {0: (-math.inf, math.inf), 1: (0.0, math.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""ActivationFunctionType NONE, RELU, RELU_N1_TO_1, RELU6 (schema.fbs)."""


class NotRecomputed(ValueError):
    """A reduction whose result cannot be told; the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A reduction over 2^16 elements or more. source, result: tensors. outputs, last: as in outcome.Recomputed."""

    op: Op
    elements: int
    source: int
    result: int
    size_bytes: int
    """Of its input, by the file's shapes."""
    outputs: tuple[int, ...]
    last: tuple[int, ...]


def find_reductions(model: Model, signature: int, inputs: tuple[InputFacts, ...]) -> tuple[Reduction, ...]:
    """Every large reduction that leads to an output of a signature, in the order they run."""
    sig = model.signatures[signature]
    walk = Walk(model.subgraphs[sig.subgraph])
    reach: dict[int, list[int]] = {}
    found: dict[int, tuple[Op, int]] = {}
    for position, (_, tensor) in enumerate(sig.outputs):
        ops, _ = walk.ancestors(tensor)
        for op, elements in large_reductions(walk, ops, inputs):
            found[op.index] = op, elements
            reach.setdefault(op.index, []).append(position)
    out = []
    for index, (op, elements) in sorted(found.items()):
        source = walk.tensor(op.inputs[0])
        last = tuple(p for p in reach[index] if _only_moves(walk, sig.outputs[p][1], op))
        size = int(np.prod(source.shape, dtype=np.int64)) * (4 if source.dtype == "float32" else 8)
        out.append(
            Reduction(
                op=op,
                elements=elements,
                source=source.index,
                result=op.outputs[0],
                size_bytes=size,
                outputs=tuple(reach[index]),
                last=last,
            )
        )
    return tuple(out)


def _only_moves(walk: Walk, tensor: int, op: Op) -> bool:
    for behind in walk.chain(tensor, 12):
        if behind.index == op.index:
            return True
        if behind.name not in PLAIN_MOVES:
            return False
    return False


def refusal(reduction: Reduction) -> str:
    """Why a reduction is not even tried, by the file's shapes; empty if it can be."""
    if reduction.elements > MAX_ELEMENTS:
        return f"it sums {reduction.elements} elements, more than 2^24: no float32 sum holds there"
    if reduction.size_bytes > MAX_BYTES:
        return f"its input of {reduction.size_bytes} bytes does not fit into the {MAX_BYTES} that may be kept"
    return ""


def recompute(model: Model, subgraph: int, op: Op, source: np.ndarray, result_shape: tuple[int, ...]) -> np.ndarray:
    """The result of a reduction in float64 over what `source` stores, which may be quantised; dequantised values.

    Raises NotRecomputed with the reason.
    """
    graph = model.subgraphs[subgraph]
    quantization = graph.tensors[op.inputs[0]].quantization if source.dtype.kind in "iu" else None
    with np.errstate(all="ignore"):
        if op.name in ("SUM", "MEAN"):
            exact = _sum_or_mean(model, graph.tensors, op, source, quantization)
        else:
            exact = _pool(op, source, quantization)
        if exact.size != int(np.prod(result_shape, dtype=np.int64)):
            raise NotRecomputed(f"{op.name} (op {op.index}) gave {result_shape}, not {exact.shape}")
    return exact.reshape(result_shape)


def _sum_or_mean(
    model: Model, tensors: tuple[object, ...], op: Op, source: np.ndarray, quantization: Quantization | None
) -> np.ndarray:
    given = model.constant(tensors[op.inputs[1]]) if len(op.inputs) > 1 and op.inputs[1] >= 0 else None  # type: ignore[arg-type]
    if given is None:
        raise NotRecomputed(f"the axes of {op.name} (op {op.index}) are computed, not constant")
    axes = tuple(sorted({int(a) % source.ndim for a in given.reshape(-1)})) if source.ndim else ()
    count = int(np.prod([source.shape[a] for a in axes], dtype=np.int64))
    if count > MAX_ELEMENTS:
        raise NotRecomputed(f"it sums {count} elements, more than 2^24: no float32 sum holds there")
    # numpy casts in buffers here: no float64 copy of the source is made.
    total = np.sum(source, axis=axes, dtype=np.float64)
    if quantization is not None:
        total = (total - float(count) * quantization.zero_point[0]) * quantization.scale[0]
    return np.asarray(total / count if op.name == "MEAN" else total)


def _pool(op: Op, source: np.ndarray, quantization: Quantization | None) -> np.ndarray:
    """Windows clipped at the borders count only what lies inside (tflite/kernels/internal/reference/pooling.h)."""
    o = op.options
    size, step = (o["filter_height"], o["filter_width"]), (o["stride_h"], o["stride_w"])
    if source.ndim != 4 or min(*size, *step) <= 0 or o.get("fused_activation_function", 0) not in _CLAMPS:
        raise NotRecomputed(f"{op.name} (op {op.index}) is of a form this recomputation does not know")
    starts = [_starts(source.shape[1 + i], size[i], step[i], o.get("padding", 0)) for i in (0, 1)]
    if len(starts[0]) * len(starts[1]) > MAX_WINDOWS:
        raise NotRecomputed(f"{op.name} (op {op.index}) has {len(starts[0]) * len(starts[1])} windows, too many")
    scale, zero = (quantization.scale[0], quantization.zero_point[0]) if quantization else (1.0, 0)
    out = np.empty((source.shape[0], len(starts[0]), len(starts[1]), source.shape[3]), np.float64)
    for i, top in enumerate(starts[0]):
        for j, left in enumerate(starts[1]):
            part = source[:, max(top, 0) : top + size[0], max(left, 0) : left + size[1], :]
            if op.name == "L2_POOL_2D":
                # One batch entry and row at a time: the squares need a copy.
                squares = [[np.square(r, dtype=np.float64).sum(0) for r in image] for image in part]
                value = np.sqrt(np.sum(squares, axis=1) / (part.shape[1] * part.shape[2]))
            else:
                value = (np.mean(part, axis=(1, 2), dtype=np.float64) - zero) * scale
            out[:, i, j] = value
    low, high = _CLAMPS[o.get("fused_activation_function", 0)]
    return np.clip(out, low, high)


def _starts(length: int, size: int, step: int, padding: int) -> list[int]:
    """First index of every window along one axis; padding 0 is SAME, 1 VALID (schema.fbs)."""
    if padding == 1:
        return list(range(0, max(length - size + 1, 0), step))
    count = -(-length // step)
    before = max((count - 1) * step + size - length, 0) // 2
    return [i * step - before for i in range(count)]


def agreement_db(got: np.ndarray, exact: np.ndarray, quantization: Quantization | None = None) -> float:
    """How near a stored result lies to the exact one, rounded to its type, in dB; a quantised step counts as nothing.

    Elements beyond the type's range must be so in both; else −EXACT_SNR_DB, as for any result against true zeros.
    """
    value = got.astype(np.float64).reshape(-1)
    right = stored(exact, got.dtype, quantization).astype(np.float64).reshape(-1)
    fine = np.isfinite(right)
    if not np.array_equal(fine, np.isfinite(value)):
        return -EXACT_SNR_DB
    value, right = value[fine], right[fine]
    off = np.abs(value - right)
    if quantization is not None and got.dtype.kind in "iu":
        off = np.where(off <= 1, 0.0, off)
        right = right - quantization.zero_point[0]
    if not off.size or not off.max():
        return EXACT_SNR_DB
    noise, signal = (off.max(), np.abs(right).max()) if got.size < SMALL else (_norm(off), _norm(right))
    if not signal:
        return -EXACT_SNR_DB
    return float(np.clip(20.0 * math.log10(signal / noise), -EXACT_SNR_DB, EXACT_SNR_DB))


def _norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.sum(np.square(x))))


def stored(exact: np.ndarray, dtype: np.dtype, quantization: Quantization | None) -> np.ndarray:
    """The exact result in the type of the output: rounded, clipped to what an integer type holds."""
    with np.errstate(all="ignore"):
        if dtype.kind not in "iu":
            return exact.astype(dtype)
        scale, zero = (quantization.scale[0], quantization.zero_point[0]) if quantization else (1.0, 0)
        limits = np.iinfo(dtype)
        whole: np.ndarray = np.clip(np.rint(exact / scale) + zero, limits.min, limits.max).astype(dtype)
        return whole
