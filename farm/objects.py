"""Raw tensors by content: `ROOT/objects/ab/abcd…`, shared by all runs under ROOT, safe for many threads and processes.

Whoever makes arrays (cases.py, session.py) puts them here and whoever judges loads them; store.py keeps the run
folders beside it.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import InvalidInput, NoSpace, Problem, TransferFailed

MMAP_FROM_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Map what the disk says to our words: full → NoSpace, unusable otherwise → InvalidInput."""
    try:
        yield
    except OSError as e:
        if e.errno in _NO_SPACE:
            raise NoSpace(
                f"no space left on the disk of {path}; free some space or choose another --out, then --resume the run"
            ) from e
        raise InvalidInput(
            Problem(
                message=f"cannot write: {e.strerror or e}", file=str(path), cure="choose a writable folder with --out"
            )
        ) from e


class Objects:
    """Raw tensors by content. `ROOT/objects`; safe for many threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._intact: dict[str, tuple[int, int]] = {}

    def path(self, sha256: str) -> Path:
        """Where an object lies or would lie. Raises ValueError if `sha256` is not 64 lower-case hex digits."""
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"not a sha256: {sha256[:80]!r}")
        return self.root / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Is it kept? (False for what is no sha256 at all.)"""
        return bool(_SHA256.fullmatch(sha256)) and self.path(sha256).is_file()

    def put_bytes(self, data: bytes | memoryview) -> str:
        """Store and return the sha256. Raises NoSpace, or InvalidInput if the folder cannot be written."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        with disk_errors(self.root):
            # The size is compared because a machine that lost power may have kept the name and not the bytes.
            if path.is_file() and path.stat().st_size == size:
                return sha256
            with self._whole(path) as tmp, tmp.open("wb") as f:
                f.write(data)
        return sha256

    def adopt(self, file: Path, sha256: str) -> None:
        """Move a file in, whole; its bytes must have `sha256`. Raises TransferFailed otherwise.

        `file` is gone afterwards, also when the object was kept already.
        """
        path = self.path(sha256)
        try:
            with file.open("rb") as f:
                found = hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(f)
                size = os.fstat(f.fileno()).st_size
        except OSError as e:
            raise TransferFailed(f"cannot read {file}: {e.strerror or e}") from e
        if found != sha256:
            raise TransferFailed(f"{file} holds sha256 {found}, not {sha256} as announced; it was not taken")
        with disk_errors(self.root):
            if path.is_file() and path.stat().st_size == size:
                file.unlink()
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(file, path)
            except OSError as e:
                if e.errno != errno.EXDEV:
                    raise
                with self._whole(path) as tmp:
                    shutil.copyfile(file, tmp)
                file.unlink()

    def load(self, sha256: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read an object as an array (read-only, memory-mapped from 1 MiB up). Raises KeyError if it is not kept.

        dtype is numpy's name of the little-endian bytes; bfloat16 comes as its raw uint16; int4 and whatever numpy
        has no name for come as raw uint8, one-dimensional unless there is one byte per element.
        An object whose bytes no longer have their sha256 is dropped and counts as not kept, and one that does not fill
        `shape` is not what was asked for: KeyError as well, with the reason, so that no verdict is made of it.
        """
        try:
            path = self.path(sha256)
            with path.open("rb") as f:
                size = os.fstat(f.fileno()).st_size
                large = size >= MMAP_FROM_BYTES
                buffer = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if large else f.read()
                stamp = (size, os.fstat(f.fileno()).st_mtime_ns)
        except (OSError, ValueError) as e:
            raise KeyError(f"object {sha256[:80]} is not kept") from e
        if self._intact.get(sha256) != stamp:
            if hashlib.sha256(buffer).hexdigest() != sha256:
                path.unlink(missing_ok=True)
                raise KeyError(f"object {sha256} was damaged on disk and is dropped")
            self._intact[sha256] = stamp
        count = int(np.prod(shape, dtype=np.int64))
        kind = _numpy_dtype(dtype)
        if kind is None:
            raw = np.frombuffer(buffer, np.uint8)
            return raw.reshape(shape) if raw.size == count else raw
        if count * kind.itemsize != size:
            raise KeyError(f"object {sha256} holds {size} bytes; {dtype} {list(shape)} needs {count * kind.itemsize}")
        return np.frombuffer(buffer, kind).reshape(shape)

    @contextmanager
    def _whole(self, path: Path) -> Iterator[Path]:
        """Give a temporary name beside `path`; rename it there if the block succeeds, remove it otherwise."""
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = path.parent / f".{path.name[:16]}.{secrets.token_hex(6)}"
        try:
            yield tmp
            os.replace(tmp, path)
        except BaseException:
            tmp.unlink(missing_ok=True)
            raise


class HeldObjects(Objects):
    """Objects that wait in memory for `write`, so that a refused sweep leaves nothing behind.

    What exceeds `hold_bytes` is written through. Without a root nothing is ever kept: only the digests are made.
    """

    def __init__(self, root: Path | None, *, hold_bytes: int = 1 << 28) -> None:
        super().__init__(root or Path(os.devnull))
        self._discard, self._room = root is None, hold_bytes
        self._held: dict[str, bytes] = {}

    def put_bytes(self, data: bytes | memoryview) -> str:
        """Hold and return the sha256. Raises what Objects.put_bytes raises when it is written through."""
        sha256 = hashlib.sha256(data).hexdigest()
        if self._discard or sha256 in self._held:
            return sha256
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size > self._room:
            return super().put_bytes(data)
        self._room -= size
        self._held[sha256] = bytes(data)
        return sha256

    def write(self) -> None:
        """Store all that is held. Raises NoSpace, or InvalidInput if the folder cannot be written."""
        while self._held:
            super().put_bytes(self._held.popitem()[1])


def _digest(file: Any) -> str:
    """hashlib.file_digest of Python 3.11 for 3.10."""
    h = hashlib.sha256()
    while block := file.read(1 << 20):
        h.update(block)
    return h.hexdigest()


def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    if name == "bfloat16":
        return np.dtype("<u2")
    if name == "bool" or re.fullmatch(r"u?int(8|16|32|64)|float(16|32|64)|complex(64|128)", name):
        plain: np.dtype[Any] = np.dtype(name)
        little: np.dtype[Any] = plain.newbyteorder("<")
        return little
    return None
