"""Named tensors from anywhere: .npz, .safetensors, or a folder of raw bytes and JSON. What compare.py reads and
monitor.py and the app tests write.

The folder format (docs/compare.md):

    tensors.json   {"kind": "farm-tensors", "schema_version": 1, "source", "runtime", "latency_ms": {SET: [ms, …]},
                    "tensors": [{"name", "set", "step", "role", "dtype", "shape", "file", "sha256", "quantization"}]}
    *.raw          little-endian bytes in C order; bfloat16 as its two bytes

A folder without tensors.json may hold NAME.raw or NAME.bin beside NAME.json ({"dtype", "shape"} and maybe "name"), and
NAME.npy. Whatever a file promises is checked against its size first; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from farm.arrays import StoredArray, open_arrays
from farm.errors import InvalidInput, Problem
from farm.paths import check_file

KIND = "farm-tensors"
MANIFEST = "tensors.json"
Role = Literal["input", "output", "layer"]
DTYPES = (
    "float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """value = scale * (stored - zero_point), one for the whole tensor."""

    scale: float
    zero_point: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One line of tensors.json. sha256: of the file's bytes, "" where the writer could not hash."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    set: str = ""
    step: int = 0
    role: Role = "output"
    sha256: str = ""
    quantization: Scale | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """tensors.json. model_sha256, signature, device, accelerator, delegation: what was run, where the writer knows."""

    tensors: tuple[TensorEntry, ...]
    kind: str = KIND
    schema_version: int = 1
    source: str = ""
    runtime: str = ""
    device: str = ""
    accelerator: str = ""
    model_sha256: str = ""
    signature: str = ""
    delegation: str = "unknown"
    latency_ms: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor: what it is called, and its bytes through `array.read()`."""

    name: str
    array: StoredArray
    set: str = ""
    step: int = 0
    role: Role = "output"
    quantization: Scale | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """All tensors of one place, in its own order. manifest: of the folder format, else None."""

    path: Path
    tensors: tuple[Tensor, ...]
    manifest: Manifest | None = None

    def of(self, role: Role) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == role)


def open_tensors(path: Path) -> Tensors:
    """Read what is there: headers and sizes now, values when asked for. Raises InvalidInput with every problem."""
    if path.is_dir():
        manifest = path / MANIFEST
        found = _from_manifest(path, manifest) if manifest.is_file() else _loose(path)
    else:
        arrays = open_arrays(path)
        found = Tensors(path=path, tensors=tuple(Tensor(name=n, array=a) for n, a in arrays.items()))
    if not found.tensors:
        raise _refused(path, "holds no tensors", "save some: numpy.savez, safetensors, or farm.monitor")
    twice = {(t.role, t.set, t.step, t.name) for t in found.tensors}
    if len(twice) < len(found.tensors):
        raise _refused(path, "names one tensor twice within a set", "give each its own name")
    return found


@contextmanager
def _collecting(problems: list[Problem]) -> Iterator[None]:
    """Keep what is wrong with one tensor and go on with the next, so that all of it is told at once."""
    try:
        yield
    except InvalidInput as e:
        problems += e.problems


def _refused(path: Path, message: str, cure: str | None = None) -> InvalidInput:
    return InvalidInput(Problem(message=message, file=str(path), cure=cure))


def _from_manifest(folder: Path, file: Path) -> Tensors:
    check_file(file)
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise _refused(file, f"is no tensors.json of farm: {e}", "docs/compare.md shows the format") from e
    if manifest.kind != KIND or manifest.schema_version != 1:
        raise _refused(
            file,
            f"is {manifest.kind!r} version {manifest.schema_version}; this farm reads {KIND!r} version 1",
            "docs/compare.md shows the format",
        )
    problems: list[Problem] = []
    tensors = []
    for entry in manifest.tensors:
        with _collecting(problems):
            tensors.append(
                Tensor(
                    name=entry.name,
                    array=_raw(folder, entry),
                    set=entry.set,
                    step=entry.step,
                    role=entry.role,
                    quantization=entry.quantization,
                )
            )
    if problems:
        raise InvalidInput(problems)
    return Tensors(path=folder, tensors=tuple(tensors), manifest=manifest)


def _raw(folder: Path, entry: TensorEntry) -> StoredArray:
    path = folder / entry.file
    if Path(entry.file).is_absolute() or ".." in Path(entry.file).parts or not entry.file:
        raise _refused(folder / MANIFEST, f"{entry.name!r} lies outside the folder: {entry.file!r}")
    if entry.dtype not in DTYPES:
        raise _refused(folder / MANIFEST, f"{entry.name!r} has the unknown dtype {entry.dtype!r}", ", ".join(DTYPES))
    if any(d < 0 for d in entry.shape) or len(entry.shape) > 32:
        raise _refused(folder / MANIFEST, f"{entry.name!r} has the shape {list(entry.shape)}, which is none")
    check_file(path)
    stored = np.dtype("uint16" if entry.dtype == "bfloat16" else entry.dtype).newbyteorder("<")
    wanted = math.prod(entry.shape) * stored.itemsize
    try:
        size = path.stat().st_size
    except OSError as e:
        raise _refused(path, f"{entry.name!r} cannot be read: {e.strerror or e}", "write the folder again") from e
    if size != wanted:
        raise _refused(
            path,
            f"{entry.name!r} is {entry.dtype} {list(entry.shape)}, which takes {wanted} bytes; the file has {size}",
        )

    def read() -> np.ndarray:
        try:
            data = path.read_bytes()
        except OSError as e:
            raise _refused(path, f"cannot be read: {e.strerror or e}") from e
        if len(data) != wanted:
            raise _refused(path, f"{entry.name!r} was cut while it was read", "write the folder again")
        if entry.sha256 and hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _refused(path, f"{entry.name!r} does not have the sha256 that tensors.json names", "write it again")
        return np.frombuffer(data, stored).reshape(entry.shape)

    return StoredArray(dtype=entry.dtype, shape=entry.shape, read=read)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """NAME.json beside NAME.raw."""

    dtype: str
    shape: tuple[int, ...]
    name: str = ""
    role: Role = "output"
    quantization: Scale | None = None


def _loose(folder: Path) -> Tensors:
    """A folder without tensors.json: raw files with a header beside each, and .npy files."""
    problems: list[Problem] = []
    tensors: list[Tensor] = []
    for path in sorted(folder.iterdir()):
        with _collecting(problems):
            tensors += _one_loose(folder, path)
    if problems:
        raise InvalidInput(problems)
    return Tensors(path=folder, tensors=tuple(tensors))


def _one_loose(folder: Path, path: Path) -> Iterator[Tensor]:
    if path.suffix == ".npy":
        yield Tensor(name=path.stem, array=_npy(path))
    elif path.suffix in (".raw", ".bin"):
        beside = path.with_suffix(".json")
        if not beside.is_file():
            raise _refused(
                path, "there is no header for it", f'write {beside.name}: {{"dtype": "float32", "shape": [1]}}'
            )
        try:
            header = msgspec.json.decode(beside.read_bytes(), type=_Header)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise _refused(beside, f"is no header of a tensor: {e}", '{"dtype": "float32", "shape": [1, 8]}') from e
        name = header.name or path.stem
        entry = TensorEntry(name=name, dtype=header.dtype, shape=header.shape, file=path.name)
        yield Tensor(name=name, array=_raw(folder, entry), role=header.role, quantization=header.quantization)


def _npy(path: Path) -> StoredArray:
    check_file(path)
    try:
        lazy = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise _refused(path, f"cannot be read as .npy: {e}", "write it with numpy.save") from e
    dtype = "bfloat16" if lazy.dtype.str.endswith("V2") else lazy.dtype.name
    if dtype not in DTYPES:
        raise _refused(path, f"has the type {dtype}, which is no tensor's", ", ".join(DTYPES))
    stored: Any = "<u2" if dtype == "bfloat16" else lazy.dtype.newbyteorder("<")
    return StoredArray(
        dtype=dtype,
        shape=lazy.shape,
        read=lambda: np.ascontiguousarray(
            np.load(path, allow_pickle=False).view("<u2") if dtype == "bfloat16" else np.load(path, allow_pickle=False),
            stored,
        ).reshape(lazy.shape),
    )


def stored(array: Any) -> tuple[str, np.ndarray]:
    """Return (dtype name, little-endian C-ordered array) of anything numpy can read; bfloat16 as uint16 bit patterns.

    Raises InvalidInput for what is no tensor (objects, texts, dates).
    """
    values = np.asarray(array)
    name = values.dtype.name
    if name == "bfloat16":
        values = values.view(np.uint16)
    elif name not in DTYPES:
        raise InvalidInput(f"a tensor of the type {name} cannot be kept; known: {', '.join(DTYPES)}")
    # ascontiguousarray makes a 0-d array one-dimensional, hence the reshape.
    return name, np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(values.shape)
