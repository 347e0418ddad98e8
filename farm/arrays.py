"""Arrays in .npz and .safetensors files: read without ever unpickling, headers and sizes first.

Both formats come from strangers: a header may promise anything. Only what the file really holds is read.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import InvalidInput, Problem
from farm.paths import check_file

_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_MAX_HEADER = 100_000_000
"""safetensors' own limit on its JSON header, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """One array of a file: its header, and `read()` for its values (little-endian; bfloat16 as uint16 bit patterns).

    `read` raises InvalidInput if the bytes are not what the header says.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def open_arrays(path: Path) -> dict[str, StoredArray]:
    """The arrays of a file by name. Raises InvalidInput, one sentence each."""
    if path.suffix not in (".npz", ".safetensors"):
        raise _refuse(path, "is neither .npz nor .safetensors", "save the inputs with numpy.savez")
    check_file(path)
    try:
        return _npz(path) if path.suffix == ".npz" else _safetensors(path)
    except FileNotFoundError as e:
        raise _refuse(path, "there is no such file", "check the path") from e
    except IsADirectoryError as e:
        raise _refuse(path, "is a directory, not an input file", "name the file inside it") from e
    except PermissionError as e:
        raise _refuse(path, f"cannot be read: {e.strerror}", "check its permissions") from e
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, NotImplementedError) as e:
        raise _refuse(path, f"cannot be read as {path.suffix}: {e}", "write it again") from e


def _refuse(path: Path, message: str, cure: str | None = None) -> InvalidInput:
    return InvalidInput(Problem(message=message, file=str(path), cure=cure))


def _npz(path: Path) -> dict[str, StoredArray]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        return {info.filename.removesuffix(".npy"): _member(path, archive, info) for info in infos if not info.is_dir()}


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredArray:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise ValueError(f"{name!r} is written in .npy format {version}, which is not known")
        shape, fortran, dtype = read_header(file)
        start = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects; they would have to be unpickled, which runs code")
    size = math.prod(shape) * dtype.itemsize
    if size != info.file_size - start:
        raise ValueError(f"{name!r} promises {size} bytes but holds {info.file_size - start}")

    def read() -> np.ndarray:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(info) as file:
                raw = file.read()
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as e:
            raise _refuse(path, f"{name!r} cannot be read: {e}", "write the file again") from e
        if len(raw) != start + size:
            raise _refuse(path, f"{name!r} holds {len(raw) - start} bytes instead of {size}", "write the file again")
        array = np.frombuffer(raw, dtype, offset=start) if size else np.empty(0, dtype)
        array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
        return np.ascontiguousarray(array, dtype.newbyteorder("<")).reshape(shape)

    # ml_dtypes' bfloat16 is saved as two raw bytes.
    return StoredArray(dtype="bfloat16" if dtype.str.endswith("V2") else dtype.name, shape=tuple(shape), read=read)


def _safetensors(path: Path) -> dict[str, StoredArray]:
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise ValueError(f"its header promises {length} bytes; the file has {size}")
        try:
            header: Any = json.loads(file.read(length))
        except RecursionError as e:
            raise ValueError("its header is nested too deeply") from e
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _slice(path, 8 + length, size, name, entry) for name, entry in header.items()}


def _slice(path: Path, base: int, size: int, name: str, entry: Any) -> StoredArray:
    try:
        dtype, shape = _SAFETENSORS.get(entry["dtype"], str(entry["dtype"])), tuple(entry["shape"])
        start, end = entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (start, end, *shape))
    except (TypeError, KeyError, ValueError) as e:
        raise ValueError(f"the header of {name!r} is malformed") from e
    if not whole or not start <= end <= size - base:
        raise ValueError(f"{name!r} lies outside the file")
    if dtype not in _SAFETENSORS.values():
        raise ValueError(f"{name!r} has the unknown dtype {dtype}")
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    if end - start != math.prod(shape) * stored.itemsize:
        raise ValueError(f"{name!r} holds {end - start} bytes, which is not {dtype} of shape {list(shape)}")

    def read() -> np.ndarray:
        try:
            with path.open("rb") as file:
                file.seek(base + start)
                raw = file.read(end - start)
        except OSError as e:
            raise _refuse(path, f"cannot be read: {e}") from e
        if len(raw) != end - start:
            raise _refuse(path, f"{name!r} was cut while it was read", "write the file again")
        return np.frombuffer(raw, stored).reshape(shape)

    return StoredArray(dtype=dtype, shape=shape, read=read)


def listed(names: Iterable[str]) -> str:
    """Names for a sentence: quoted, at most twelve."""
    quoted = [repr(n) for n in names]
    return ", ".join(quoted[:12]) + (f" and {len(quoted) - 12} more" if len(quoted) > 12 else "") or "none"
