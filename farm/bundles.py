"""`.task` bundles (MediaPipe): zip files that hold .tflite models. Opened here, each member a model of its own.

Comes before cases.py. A member's bytes go to the object store, whose file then is the model: content-addressed, whole,
there when a run is resumed.
"""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from farm.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from farm.cases import ModelRequest
    from farm.objects import Objects

SUFFIXES = (".task", ".zip")
LARGEST = 2 << 30
"""Bytes: no flatbuffer is larger, and a zip bomb must not fill the disk."""
NESTED = 3
"""Bundles in bundles (gesture_recognizer.task holds two) to this depth."""
_TFL3 = b"TFL3"
T = TypeVar("T")


def is_bundle(path: Path) -> bool:
    """Tell a bundle by its name and its first bytes."""
    if path.suffix.lower() not in SUFFIXES or not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    except OSError:
        return False


def opened(request: ModelRequest, objects: Objects) -> tuple[ModelRequest, ...]:
    """Return a request per model in the bundle, each named BUNDLE~MEMBER where there are several.

    Raises InvalidInput where it cannot be read or holds no model.
    """
    path = request.path
    try:
        found = list(_models(path.read_bytes(), 0))
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as e:
        raise InvalidInput(
            Problem(message=f"cannot be opened as a bundle: {e}", file=str(path), cure="download it again")
        ) from e
    if not found:
        raise InvalidInput(
            Problem(message="this bundle holds no .tflite model", file=str(path), cure="name the model file")
        )
    return tuple(
        dataclasses.replace(
            request,
            path=objects.path(objects.put_bytes(data)),
            name=path.stem if len(found) == 1 else f"{path.stem}~{member}",
            folder=path.parent,
        )
        for member, data in found
    )


def _models(data: bytes, depth: int) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every flatbuffer model, by its bytes and not its name: LLM bundles use names of their own."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            stem = PurePosixPath(info.filename).stem
            with archive.open(info) as file:
                head = file.read(8)
                if head[4:8] != _TFL3 and head[:4] != b"PK\x03\x04":
                    continue
                if info.file_size > LARGEST:
                    raise ValueError(f"{info.filename!r} promises {info.file_size} bytes, more than a model can have")
                member = head + file.read(LARGEST)
            if head[4:8] == _TFL3:
                yield stem, member
            elif depth + 1 < NESTED:
                for inner, model in _models(member, depth + 1):
                    yield f"{stem}~{inner}", model
