"""Making room among kept tensors: hashes, metrics and reports of every run stay, bytes go, the least needed first.

Objects are shared by all runs, so what may go is decided over all of them: first what no run names, then outputs of
cells that passed in older runs, then, only beyond a budget, everything of the oldest runs. A run whose bytes are gone
keeps its matrix; judging it again says "no longer kept" where it would need them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from farm.errors import FarmError, InvalidInput, Problem
from farm.report.read import read_matrix

YOUNG_S = 3600.0
"""Objects younger than this may belong to a run that is about to be written."""
KEEP_RUNS = 3
_NAMED = re.compile(rb'"([0-9a-f]{64})"')
_CELL = re.compile(rb'"cell":"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """One object that may go. why: orphan | passed | budget."""

    sha256: str
    path: Path
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What there is, and what would go. used_bytes: all objects before."""

    used_bytes: int
    objects: int
    doomed: tuple[Doomed, ...]
    protected: tuple[str, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(one.size_bytes for one in self.doomed)


@dataclass(frozen=True, slots=True)
class _Uses:
    """What one run names: needed to judge or resume it, or outputs of cells that passed."""

    needed: frozenset[str]
    passed: frozenset[str]
    guarded: bool


def plan_room(
    root: Path,
    *,
    budget_bytes: int | None = None,
    keep_runs: int = KEEP_RUNS,
    keep: Collection[str] = (),
    now: float | None = None,
) -> Room:
    """Decide what may go from root/objects; touches nothing.

    keep_runs: so many of the newest runs lose nothing. keep: run ids that lose nothing either (the last good night).
    Runs being written and runs with unfinished cells are guarded as well. Raises InvalidInput if there are no runs.
    """
    now = time.time() if now is None else now
    if not (root / "objects").is_dir():
        raise InvalidInput(Problem(message="there are no kept objects here", file=str(root), cure="name it with --out"))
    folders = sorted(path.parent for path in root.glob("[!.]*/plan.json"))
    newest = {folder.name for folder in folders[max(len(folders) - keep_runs, 0) :]}
    uses = {folder.name: _uses(folder, folder.name in newest or folder.name in keep) for folder in folders}
    guarded = {sha for run in uses.values() if run.guarded for sha in (*run.needed, *run.passed)}
    last_needed: dict[str, int] = {}
    last_passed: dict[str, int] = {}
    for place, run in enumerate(uses.values()):
        last_needed.update(dict.fromkeys(run.needed, place))
        last_passed.update(dict.fromkeys(run.passed, place))
    total = count = 0
    certain: list[Doomed] = []
    possible: list[tuple[int, Doomed]] = []
    for path, size, changed in _objects(root / "objects"):
        total, count = total + size, count + 1
        sha = path.name
        if sha in guarded or now - changed < YOUNG_S:
            continue
        if sha in last_needed:
            possible.append((last_needed[sha], Doomed(sha256=sha, path=path, size_bytes=size, why="budget")))
        else:
            why = "passed" if sha in last_passed else "orphan"
            certain.append(Doomed(sha256=sha, path=path, size_bytes=size, why=why))
    left = total - sum(one.size_bytes for one in certain)
    for _, one in sorted(possible, key=lambda p: (p[0], p[1].sha256)):
        if budget_bytes is None or left <= budget_bytes:
            break
        certain.append(one)
        left -= one.size_bytes
    return Room(
        used_bytes=total,
        objects=count,
        doomed=tuple(certain),
        protected=tuple(name for name, run in uses.items() if run.guarded),
    )


def make_room(room: Room) -> int:
    """Remove what `plan_room` decided; return the bytes freed. Raises FarmError if an object cannot be removed."""
    freed = 0
    for one in room.doomed:
        freed += _remove(one)
    return freed


def _remove(one: Doomed) -> int:
    try:
        one.path.unlink()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise FarmError(f"{one.path} cannot be removed: {error.strerror or error}") from error
    return one.size_bytes


def _objects(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """(path, size, change time) of every object; what does not look like one is left alone."""
    for path in sorted(folder.glob("??/*")):
        if re.fullmatch(r"[0-9a-f]{64}", path.name) and path.is_file():
            found = path.stat()
            yield path, found.st_size, max(found.st_mtime, found.st_ctime)


def _uses(folder: Path, guarded: bool) -> _Uses:
    try:
        matrix = read_matrix(folder)
        good = {cell.id for cell in matrix.cells if cell.verdict == "pass"}
        finished = matrix.run.finished is not None
    except InvalidInput:
        good, finished = set(), False
    needed: set[str] = set()
    passed: set[str] = set()
    for path in (folder / "plan.json", *sorted((folder / "references").glob("*.json"))):
        needed |= _names(_bytes(path))
    for line in _bytes(folder / "journal.jsonl").split(b"\n"):
        cell = _CELL.search(line)
        mine = passed if cell and cell[1].decode("utf-8", "replace") in good else needed
        mine |= _names(line)
    return _Uses(frozenset(needed), frozenset(passed - needed), guarded or not finished or _being_written(folder))


def _names(data: bytes) -> set[str]:
    return {name.decode() for name in _NAMED.findall(data)}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        # What a run names decides what may go: guessing here could remove what it needs.
        raise FarmError(f"{path} cannot be read ({error.strerror or error}); nothing was removed") from error


def _being_written(folder: Path) -> bool:
    try:
        fd = os.open(folder / "journal.jsonl", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return error.errno != errno.ENOENT
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
