"""Dataclasses to JSON files and back: the one format between stages.

Strict JSON with sorted keys; NaN and infinities become null. Reading checks every type.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_json(value: Any, *, indent: int = 0) -> bytes:
    """Encode with sorted keys. `indent` > 0 makes it readable. The same value always gives the same bytes."""
    raw = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(raw, indent=indent) + b"\n" if indent else raw


def from_json(data: bytes, kind: type[T]) -> T:
    """Decode and check against `kind`. Raises msgspec.ValidationError / msgspec.DecodeError."""
    return msgspec.json.decode(data, type=kind)


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all: temporary name in the same folder, fsync, rename.

    durable: False leaves out the fsync, for what can be made again: a power cut may then leave it empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, tmp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        os.chmod(tmp, 0o644)
        os.replace(tmp, path)
    except BaseException:
        Path(tmp).unlink(missing_ok=True)
        raise
