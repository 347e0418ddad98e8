"""A .tflite file read as a flatbuffer: digest, signatures, tensors, ops. Verifies it; needs no runtime.

Three layers: flatbuffer.py checks every offset by the table in tflite_schema.py, tflite_checks.py checks indices and
sizes, and this module names what was found. Constants stay in the mapped file and are read only where asked for.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import InvalidInput, Problem
from farm.flatbuffer import Bytes, Damaged, Reader
from farm.paths import check_file
from farm.tflite_checks import BITS, check_model, stored_bytes
from farm.tflite_schema import OPERATORS, TABLES, TENSOR_TYPES, UNIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """value = scale * (stored - zero_point). One entry per tensor, or per channel along `axis`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    index: int
    name: str
    dtype: str
    """numpy's name where it has one; else "bfloat16", "int4", "string", "resource", "variant", …"""
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...] | None
    """-1 marks a dimension that may change; None where the file has none."""
    quantization: Quantization | None
    is_variable: bool
    buffer: int
    has_data: bool
    sparse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    index: int
    name: str
    """Schema name (CONV_2D) or "CUSTOM:<code>"."""
    version: int
    inputs: tuple[int, ...]
    """Tensor indices; -1 = optional and absent."""
    outputs: tuple[int, ...]
    options: dict[str, Any]
    """Builtin options by the schema's field names; empty for custom ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph:
    index: int
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A way to call the model.

    A model without any gets one made up: index 0, subgraph 0, key "" (LiteRT's C API says "<placeholder signature>"),
    names from the tensors. Inputs and outputs are in the subgraph's order whatever the signature's own: that is how
    LiteRT numbers them. Names are unique: a repeated one gets "~2", a missing one is in0 / out0 by position.
    """

    index: int
    key: str
    subgraph: int
    inputs: tuple[tuple[str, int], ...]
    """(name, tensor index), in the runtime's order: position i is input i of the C API."""
    outputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    path: Path
    sha256: str
    size_bytes: int
    description: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]
    metadata: dict[str, int]
    """Name → buffer index."""
    data: memoryview
    """The whole file, memory-mapped; do not hold on to slices after the model is gone."""
    buffers: tuple[Bytes, ...] = ()
    """Where each buffer's bytes lie in `data`; size 0 = none."""

    def raw(self, tensor: Tensor) -> memoryview:
        """A tensor's constant as stored (packed, possibly sparse); empty if it has none."""
        if tensor.buffer >= len(self.buffers):
            return self.data[:0]
        start, size = self.buffers[tensor.buffer]
        return self.data[start : start + size]

    def constant(self, tensor: Tensor) -> np.ndarray | None:
        """A constant as an array of the tensor's shape; int4 and int2 unpacked to int8, bfloat16 widened to float32.

        None if it has no data here (also external buffers), is sparse, or is of a type numpy cannot hold.
        """
        return _constant(tensor, self.raw(tensor))


class InvalidModel(ValueError):
    """A TFL3 file that is damaged: every cell of it is `error: INVALID_MODEL`, the sweep goes on."""

    def __init__(self, message: str, *, sha256: str = "", size_bytes: int = 0) -> None:
        super().__init__(message)
        self.sha256, self.size_bytes = sha256, size_bytes


def read_model(path: Path) -> Model:
    """Read and verify a model.

    Raises farm.errors.InvalidInput if the path is missing, empty, a Git LFS pointer, HTML, or not TFL3 at all
    (the user gave the wrong file), and InvalidModel if it is TFL3 but damaged.
    """
    data = _open(path)
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        root = Reader(data, TABLES, UNIONS).read("Model")
        check_model(root, data)
    except Damaged as e:
        raise InvalidModel(f"{path.name} is damaged: {e}", sha256=sha256, size_bytes=len(data)) from e
    subgraphs = tuple(_subgraph(i, s, root) for i, s in enumerate(root["subgraphs"]))
    return Model(
        path=path,
        sha256=sha256,
        size_bytes=len(data),
        description=root["description"] or "",
        subgraphs=subgraphs,
        signatures=_signatures(root, subgraphs),
        metadata={m["name"] or "": m["buffer"] for m in root["metadata"] or []},
        data=data,
        buffers=tuple(stored_bytes(b) for b in root["buffers"] or []),
    )


_OTHER_FILES = (
    (
        b"PK\x03\x04",
        "a zip archive",
        "a .task bundle holds its .tflite models as members: unzip it and give one of them",
    ),
    (b"LITERTLM", "a .litertlm bundle", "extract the .tflite section and give that"),
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself", "fetch the model with `git lfs pull`"),
    (b"\x89HDF", "an HDF5 (Keras) file", "convert it to .tflite first"),
    (b"\x1f\x8b", "a gzip archive", "unpack it and give the .tflite file"),
    (b"GGUF", "a GGUF file", "give a .tflite file"),
)


def _open(path: Path) -> memoryview:
    """Map a file that starts like a TFL3 flatbuffer. Raises InvalidInput, one clear sentence each."""

    def refuse(message: str, cure: str | None = None) -> InvalidInput:
        return InvalidInput(Problem(message=message, file=str(path), cure=cure))

    check_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(512)
            # Mapping an empty file is an error of its own.
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if head else memoryview(b"")
    except FileNotFoundError as e:
        raise refuse("there is no such file", "check the path") from e
    except IsADirectoryError as e:
        raise refuse("is a directory, not a model", "give the .tflite file inside it") from e
    except OSError as e:
        raise refuse(f"cannot be read: {e.strerror or e}", "check its permissions, and what its links name") from e
    except ValueError as e:
        raise refuse(f"cannot be read: {e}", "check the path") from e
    if not head:
        raise refuse("is empty: 0 bytes", "download or copy the model again")
    if head[4:8] == b"TFL3":
        return data
    for magic, what, cure in _OTHER_FILES:
        if head.startswith(magic):
            raise refuse(f"is {what}, not a .tflite model", cure)
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")) or b"<html" in text:
        raise refuse(
            "is an HTML page, not a model",
            "the download was answered with a web page (log-in or error?): download it again",
        )
    raise refuse(
        "is not a .tflite model: bytes 4 to 8 are not TFL3",
        "check that this is the right file and that it was copied whole",
    )


def _dtype(number: int) -> str:
    return TENSOR_TYPES[number].lower()


def _subgraph(index: int, s: dict[str, Any], root: dict[str, Any]) -> Subgraph:
    buffers = [stored_bytes(b).size > 0 for b in root["buffers"] or []]
    codes = [_op_name(c) for c in root["operator_codes"] or []]
    return Subgraph(
        index=index,
        name=s["name"] or "",
        tensors=tuple(_tensor(i, t, buffers) for i, t in enumerate(s["tensors"] or [])),
        inputs=s["inputs"] or (),
        outputs=s["outputs"] or (),
        ops=tuple(
            Op(
                index=i,
                name=codes[o["opcode_index"]][0],
                version=codes[o["opcode_index"]][1],
                inputs=o["inputs"] or (),
                outputs=o["outputs"] or (),
                options={**(o["builtin_options"] or {}), **(o["builtin_options2"] or {})},
            )
            for i, o in enumerate(s["operators"] or [])
        ),
    )


def _op_name(code: dict[str, Any]) -> tuple[str, int]:
    # Ops below 127 were written to the older, one-byte field: the larger of the two counts (schema.fbs).
    number = max(code["builtin_code"], code["deprecated_builtin_code"])
    name = OPERATORS.get(number, f"OP_{number}")
    return (f"CUSTOM:{code['custom_code'] or ''}" if name == "CUSTOM" else name), code["version"]


def _tensor(index: int, t: dict[str, Any], has_data: Sequence[bool]) -> Tensor:
    q = t["quantization"]
    quantization = None
    if q and q["scale"]:
        zeros = q["zero_point"] or (0,)
        quantization = Quantization(
            scale=q["scale"],
            zero_point=zeros if len(zeros) == len(q["scale"]) else zeros * len(q["scale"]),
            axis=q["quantized_dimension"],
        )
    signature = t["shape_signature"]
    return Tensor(
        index=index,
        name=t["name"] or "",
        dtype=_dtype(t["type"]),
        shape=t["shape"] or (),
        # A converter writes an empty one where nothing may change.
        shape_signature=signature if signature and len(signature) == len(t["shape"] or ()) else None,
        quantization=quantization,
        is_variable=t["is_variable"],
        buffer=t["buffer"],
        has_data=t["external_buffer"] > 0 or (t["buffer"] < len(has_data) and has_data[t["buffer"]]),
        sparse=t["sparsity"] is not None,
    )


def _signatures(root: dict[str, Any], subgraphs: Sequence[Subgraph]) -> tuple[Signature, ...]:
    if not root["signature_defs"]:
        main = subgraphs[0]
        return (
            Signature(
                index=0,
                key="",
                subgraph=0,
                inputs=_named([(main.tensors[i].name, i) for i in main.inputs], "in"),
                outputs=_named([(main.tensors[i].name, i) for i in main.outputs], "out"),
            ),
        )
    return tuple(
        Signature(
            index=i,
            key=s["signature_key"] or "",
            subgraph=s["subgraph_index"],
            inputs=_named(_ordered(s["inputs"], subgraphs[s["subgraph_index"]].inputs), "in"),
            outputs=_named(_ordered(s["outputs"], subgraphs[s["subgraph_index"]].outputs), "out"),
        )
        for i, s in enumerate(root["signature_defs"])
    )


def _ordered(maps: Sequence[dict[str, Any]] | None, order: Sequence[int]) -> list[tuple[str, int]]:
    """Signature entries in the subgraph's order; those without a place there come last (LiteRT refuses such a file)."""
    place: dict[int, int] = {}
    for position, tensor in enumerate(order):
        place.setdefault(tensor, position)
    pairs = [(m["name"] or "", m["tensor_index"]) for m in maps or []]
    return sorted(pairs, key=lambda pair: place.get(pair[1], len(order)))


def _named(pairs: Sequence[tuple[str, int]], prefix: str) -> tuple[tuple[str, int], ...]:
    used: Counter[str] = Counter()
    out = []
    for i, (name, tensor) in enumerate(pairs):
        name = name or f"{prefix}{i}"
        used[name] += 1
        out.append((name if used[name] == 1 else f"{name}~{used[name]}", tensor))
    return tuple(out)


def _constant(tensor: Tensor, raw: memoryview) -> np.ndarray | None:
    bits = BITS.get(tensor.dtype.upper())
    if not raw or tensor.sparse or bits is None:
        return None
    count = int(np.prod(tensor.shape, dtype=np.int64))
    if tensor.dtype == "bfloat16":
        # bfloat16 is the upper half of a float32.
        wide = np.frombuffer(raw, "<u2", count).astype("<u4") << 16
        return wide.view("<f4").reshape(tensor.shape)
    if bits < 8:
        return _unpacked(raw, count, bits, tensor.dtype.startswith("u")).reshape(tensor.shape)
    if tensor.dtype.startswith("float8"):
        return None
    values: np.ndarray = np.frombuffer(raw, np.dtype(tensor.dtype).newbyteorder("<"), count)
    return values.reshape(tensor.shape)


def _unpacked(raw: memoryview, count: int, bits: int, unsigned: bool) -> np.ndarray:
    """int4 and int2 lie low bits first within a byte (tflite/kernels/internal/portable_tensor_utils.h)."""
    packed = np.frombuffer(raw, np.uint8)
    per = 8 // bits
    parts = np.stack([(packed >> (bits * i)) & ((1 << bits) - 1) for i in range(per)], axis=-1).reshape(-1)[:count]
    if unsigned:
        return parts
    half = 1 << (bits - 1)
    return np.asarray((parts.astype(np.int16) ^ half) - half, np.int8)
