"""Checks of a model past the flatbuffer's own: indices in range, shapes countable, constants as large as their tensors.

Only what LiteRT itself refuses, or dies of without a word; bad attributes and unknown ops are left to the runtime and
its own words. Works on the nested dicts of farm/flatbuffer.py, before farm/tflite.py makes them into a Model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from farm.flatbuffer import Bytes, Damaged
from farm.tflite_schema import OPERATORS, TENSOR_TYPES, UNIONS

BITS = {
    "FLOAT32": 32, "FLOAT16": 16, "INT32": 32, "UINT8": 8, "INT64": 64, "BOOL": 8, "INT16": 16, "COMPLEX64": 64,
    "INT8": 8, "FLOAT64": 64, "COMPLEX128": 128, "UINT64": 64, "UINT32": 32, "UINT16": 16, "INT4": 4, "BFLOAT16": 16,
    "INT2": 2, "UINT4": 4, "FLOAT8_E4M3FN": 8, "FLOAT8_E5M2": 8,
}  # fmt: skip
"""Bits per element, packed; STRING, RESOURCE and VARIANT have none."""

_CALLERS = {
    "IfOptions",
    "WhileOptions",
    "CallOnceOptions",
    "CallOptions",
    "StablehloWhileOptions",
    "StableHLOCompositeOptions",
}
"""Options of ops whose subgraph indices are followed when the op runs."""


_NEEDED = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3, "CONV_3D": 2}
"""Inputs that may not be absent (-1), as a bias may: their kernels look without asking and die of SIGSEGV."""


def check_model(root: dict[str, Any], data: memoryview) -> None:
    """Raise Damaged with one sentence for the first thing wrong."""
    size = len(data)
    if root["version"] != 3:
        raise Damaged(f"it has schema version {root['version']}; LiteRT reads version 3")
    subgraphs = root["subgraphs"] or []
    if not subgraphs:
        raise Damaged("it has no subgraph, so there is nothing to run")
    buffers = root["buffers"] or []
    for i, b in enumerate(buffers):
        # 0 and 1 are "not set" and the converter's placeholder; files over 2 GiB keep data behind the flatbuffer.
        if b["offset"] > 1 and b["size"] > 1 and b["offset"] + b["size"] > size:
            raise Damaged(f"buffer {i} lies at byte {b['offset']} for {b['size']} bytes, past the end of the file")
    for m in root["metadata"] or []:
        if not m["buffer"] < len(buffers):
            raise Damaged(f"metadata {m['name']!r} names buffer {m['buffer']} of {len(buffers)}")
    codes = root["operator_codes"] or []
    for i, s in enumerate(subgraphs):
        _check_subgraph(f"subgraph {i}", s, buffers, codes, len(subgraphs), data)
    _check_calls(subgraphs)
    for s in root["signature_defs"] or []:
        where = f"signature {s['signature_key'] or ''!r}"
        if s["subgraph_index"] >= len(subgraphs):
            raise Damaged(f"{where} names subgraph {s['subgraph_index']} of {len(subgraphs)}")
        count = len(subgraphs[s["subgraph_index"]]["tensors"] or [])
        for m in [*(s["inputs"] or []), *(s["outputs"] or [])]:
            if m["tensor_index"] >= count:
                raise Damaged(f"{where} binds {m['name']!r} to tensor {m['tensor_index']} of {count}")


def _check_subgraph(
    where: str,
    s: dict[str, Any],
    buffers: Sequence[dict[str, Any]],
    codes: Sequence[Any],
    subgraphs: int,
    data: memoryview,
) -> None:
    tensors = s["tensors"] or []
    for i, t in enumerate(tensors):
        _check_tensor(f"tensor {i} {t['name'] or ''!r} of {where}", t, buffers, data)
    for what in ("inputs", "outputs"):
        _indices(f"the {what} of {where}", s[what], len(tensors))
    seen: set[int] = set()
    for i, op in enumerate(s["operators"] or []):
        here = f"op {i} of {where}"
        if op["opcode_index"] >= len(codes):
            raise Damaged(f"{here} names operator code {op['opcode_index']} of {len(codes)}")
        for what, low in (("inputs", -1), ("outputs", 0), ("intermediates", 0)):
            # A vector shared by many ops is one object (farm/flatbuffer.py): look at it once.
            if op[what] is not None and id(op[what]) not in seen:
                seen.add(id(op[what]))
                _indices(f"the {what} of {here}", op[what], len(tensors), low)
        code = codes[op["opcode_index"]]
        needed = _NEEDED.get(OPERATORS.get(max(code["builtin_code"], code["deprecated_builtin_code"]), ""), 0)
        if -1 in (op["inputs"] or ())[:needed]:
            raise Damaged(f"{here} lacks one of the first {needed} inputs, without which it cannot run")
        if op["large_custom_options_offset"] > 1 and op["large_custom_options_offset"] + op[
            "large_custom_options_size"
        ] > len(data):
            raise Damaged(f"the custom options of {here} lie past the end of the file")
        for index in callees(op):
            if not 0 <= index < subgraphs:
                raise Damaged(f"{here} calls subgraph {index} of {subgraphs}")


def callees(op: dict[str, Any]) -> Iterator[int]:
    """Subgraphs an op may run."""
    for union, field in (("BuiltinOptions", "builtin_options"), ("BuiltinOptions2", "builtin_options2")):
        if op[field] and UNIONS[union].get(op[field + "_type"]) in _CALLERS:
            yield from (v for k, v in op[field].items() if k.endswith("subgraph_index") or k == "subgraph")


def _check_calls(subgraphs: Sequence[dict[str, Any]]) -> None:
    """Refuse subgraphs that call each other in a circle: the runtime would recurse until it dies."""
    calls = [sorted({c for op in s["operators"] or [] for c in callees(op)}) for s in subgraphs]
    waiting = [0] * len(calls)
    for targets in calls:
        for t in targets:
            waiting[t] += 1
    ready = [i for i, n in enumerate(waiting) if not n]
    done = 0
    while ready:
        done += 1
        for t in calls[ready.pop()]:
            waiting[t] -= 1
            if not waiting[t]:
                ready.append(t)
    if done < len(calls):
        raise Damaged(f"subgraphs {[i for i, n in enumerate(waiting) if n][:8]} call each other in a circle")


def _indices(where: str, values: Sequence[int] | None, count: int, low: int = 0) -> None:
    if values and not (min(values) >= low and max(values) < count):
        bad = next(v for v in values if not low <= v < count)
        raise Damaged(f"{where} name tensor {bad} of {count}")


def _check_tensor(where: str, t: dict[str, Any], buffers: Sequence[dict[str, Any]], data: memoryview) -> None:
    if t["type"] not in TENSOR_TYPES:
        raise Damaged(f"{where} has the unknown element type {t['type']}")
    shape, bits = t["shape"] or (), BITS.get(TENSOR_TYPES[t["type"]])
    if any(d < 0 for d in shape):
        raise Damaged(f"{where} has the negative shape {list(shape)}")
    elements = 1
    for d in shape:
        elements *= d
        if elements >= 1 << 63:
            raise Damaged(f"{where} has the shape {list(shape)}: more elements than can be counted")
    if bits and elements * bits // 8 >= 1 << 63:
        raise Damaged(f"{where} has the shape {list(shape)}: more bytes than can be counted")
    quantization = t["quantization"]
    if quantization and quantization["scale"] and quantization["zero_point"]:
        scales, zeros = len(quantization["scale"]), len(quantization["zero_point"])
        if zeros not in (1, scales):
            raise Damaged(f"{where} has {scales} scales but {zeros} zero points")
    if t["buffer"] >= max(len(buffers), 1):
        raise Damaged(f"{where} names buffer {t['buffer']} of {len(buffers)}")
    if t["buffer"] >= len(buffers):
        return
    stored = stored_bytes(buffers[t["buffer"]])
    if t["sparsity"] is not None:
        _check_sparsity(where, t["sparsity"], shape, bits, stored.size, data)
    elif stored.size and bits:
        needed = (elements * bits + 7) // 8
        if stored.size < needed:
            raise Damaged(f"{where} needs {needed} bytes of data; its buffer {t['buffer']} holds {stored.size}")


def stored_bytes(buffer: dict[str, Any]) -> Bytes:
    """Where a buffer's data lie in the file; size 0 if it has none."""
    if buffer["offset"] > 1 and buffer["size"] > 1:
        return Bytes(buffer["offset"], buffer["size"])
    data: Bytes | None = buffer["data"]
    return data or Bytes(0, 0)


def _check_sparsity(
    where: str, sparsity: dict[str, Any], shape: Sequence[int], bits: int | None, stored: int, data: memoryview
) -> None:
    """The rules of tflite/tools/verifier.cc: DENSIFY trusts these numbers and would write outside its buffer."""
    order, blocks = sparsity["traversal_order"] or (), sparsity["block_map"] or ()
    dims = sparsity["dim_metadata"] or []
    if len(order) != len(shape) + len(blocks) or sorted(order) != list(range(len(order))) or len(dims) != len(order):
        raise Damaged(f"{where} has a sparsity description that does not fit its rank")
    if any(not 0 <= b < len(shape) for b in blocks):
        raise Damaged(f"{where} has a sparsity block over a dimension it lacks")
    # Expanded sizes: each block dimension divides its dimension into blocks.
    sizes = list(shape)
    for i, b in enumerate(blocks):
        block = dims[list(order).index(len(shape) + i)]["dense_size"]
        if block <= 0 or sizes[b] % block:
            raise Damaged(f"{where} has a sparsity block of {block} in a dimension of {sizes[b]}")
        sizes[b] //= block
        sizes.append(block)
    nonzero = 1
    for position, d in zip(order, dims, strict=True):
        if d["format"] == 0:
            if d["dense_size"] != sizes[position]:
                raise Damaged(
                    f"{where} has a sparsity dimension of {d['dense_size']} where {sizes[position]} is needed"
                )
            nonzero *= sizes[position]
            continue
        segments, indices = _values(d["array_segments"], data), _values(d["array_indices"], data)
        if segments is None or indices is None or len(segments) != nonzero + 1 or segments[0] != 0:
            raise Damaged(f"{where} has sparsity segments that do not fit its shape")
        outside = indices.size and (indices.min() < 0 or indices.max() >= sizes[position])
        if (np.diff(segments) < 0).any() or segments[-1] != len(indices) or outside:
            raise Damaged(f"{where} has sparsity indices outside its shape")
        nonzero = len(indices)
    if bits and stored < (nonzero * bits + 7) // 8:
        raise Damaged(f"{where} holds {stored} bytes for {nonzero} nonzero elements")


def _values(vector: dict[str, Any] | None, data: memoryview) -> np.ndarray | None:
    if vector is None:
        return None
    values = vector["values"] or ()
    raw = data[values.start : values.start + values.size] if isinstance(values, Bytes) else values
    return np.array(raw, np.int64)
