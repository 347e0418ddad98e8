"""Where nights are kept, what the last good one was, and the lock that keeps two nights apart."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from farm import codec
from farm.errors import InvalidInput, NoSpace, Problem
from farm.nightly.value import Night

FOLDER = "nights"
LOCK = "nightly.lock"


@contextmanager
def one_night(root: Path) -> Iterator[None]:
    """Hold the night's lock. Raises InvalidInput, saying whose it is, if another night is running here.

    The lock is the kernel's: it ends with the process, however that ends.
    """
    file = root / LOCK
    try:
        root.mkdir(parents=True, exist_ok=True)
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidInput(
            Problem(
                message=f"cannot write here: {error.strerror or error}", file=str(root), cure="choose another --out"
            )
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 200, 0).decode("utf-8", "replace").strip() or "unknown"
            raise InvalidInput(
                Problem(
                    message=f"another night is still running here (process {owner})",
                    file=str(root),
                    cure="nights never overlap: wait for it, give it a time_budget_s, or end it",
                )
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def keep(root: Path, night: Night) -> Path:
    """Write a night, whole or not at all. Raises NoSpace."""
    path = root / FOLDER / f"{night.id}.json"
    try:
        codec.write_whole(path, codec.to_json(night, indent=2))
    except OSError as error:
        raise NoSpace(
            f"the night's summary cannot be written to {path}: {error.strerror or error}; its runs are kept"
        ) from error
    return path


def nights(root: Path) -> list[Night]:
    """Every night kept, oldest first; one that cannot be read counts as never written (its runs are the truth)."""
    # Ids tell seconds only; of two nights within one the file that was written first is the older.
    paths = sorted((root / FOLDER).glob("[!.]*.json"), key=lambda path: (path.name[:16], path.stat().st_mtime_ns))
    return [night for path in paths if (night := _read(path)) is not None]


def last_good(found: list[Night], root: Path) -> Night | None:
    """The latest night that judged everything it had to and whose first run is still there."""
    return next((night for night in reversed(found) if night.good and _is_there(night, root)), None)


def last_any(found: list[Night], root: Path) -> Night | None:
    """The latest night whose first run is still there, good or not."""
    return next((night for night in reversed(found) if _is_there(night, root)), None)


def _is_there(night: Night, root: Path) -> bool:
    return bool(night.runs) and (root / night.runs[0] / "matrix.json").is_file()


def _read(path: Path) -> Night | None:
    try:
        return codec.from_json(path.read_bytes(), Night)
    except (OSError, msgspec.DecodeError):
        return None
