"""What farm keeps between runs and can make again: where it lies, and how it stays bounded.

Agents, runtime hashes, references, canaries and the compiled report template all live below `cache_root()`. Losing
any of it costs time, never truth, so `prune` may run beside other farms: who misses a file makes it again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

KEEP_BYTES = 2 << 30
"""References beyond this much go, those not used for longest first."""
KEEP_S = 30 * 86400.0
"""Entries that no run has used for this long go."""
PRUNE_EVERY_S = 86400.0
YOUNG_S = 3600.0
"""Objects younger than this may belong to an entry that another farm is about to write."""

_NAMED = re.compile(rb'"([0-9a-f]{64})"')


def cache_root() -> Path:
    """Where farm keeps what it can make again; FARM_CACHE_DIR overrides the user's cache folder."""
    given = os.environ.get("FARM_CACHE_DIR")
    if given:
        return Path(given)
    import platformdirs

    return platformdirs.user_cache_path("litert-farm")


def used(entry: Path) -> None:
    """Note that an entry was of use, so that `prune` keeps it."""
    with suppress(OSError):
        os.utime(entry)


def prune_daily(root: Path | None = None) -> None:
    """Bound the caches of `root` (default: ours) unless that was done within a day. Raises nothing."""
    root = root or cache_root()
    mark = root / "pruned"
    with suppress(OSError):
        if 0 <= time.time() - mark.stat().st_mtime < PRUNE_EVERY_S:
            return
    with suppress(OSError):
        # Touched first: of two farms that end together one is enough.
        root.mkdir(parents=True, exist_ok=True)
        mark.touch()
        for folder in ("references", "canaries", "templates"):
            prune(root / folder)


def prune(folder: Path, *, keep_bytes: int = KEEP_BYTES, keep_s: float = KEEP_S, now: float | None = None) -> None:
    """Remove entries unused for `keep_s`, then the longest unused ones until the rest needs at most `keep_bytes`.

    An entry is a file of `folder`; the objects it needs are those of `folder/objects` that it names by sha256. Objects
    no entry names go too. Raises OSError if the folder cannot be read.
    """
    now = time.time() if now is None else now
    objects = {path.name: path for path in (folder / "objects").glob("??/*")}
    sizes = {name: size for name, path in objects.items() if (size := _size(path)) is not None}
    needed: set[str] = set()
    total = 0
    for used_at, entry in sorted(_entries(folder), key=lambda e: e[0], reverse=True):
        names = {name.decode() for name in _NAMED.findall(_bytes(entry))} & sizes.keys() if sizes else set()
        more = sum(sizes[name] for name in names - needed)
        if now - used_at > keep_s or total + more > keep_bytes:
            entry.unlink(missing_ok=True)
            continue
        needed |= names
        total += more
    for name, path in objects.items():
        if name not in needed and _changed(path) < now - YOUNG_S:
            path.unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[tuple[float, Path]]:
    """(last use, file) of every entry."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        with suppress(OSError):
            if path.is_file():
                yield path.stat().st_mtime, path


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _changed(path: Path) -> float:
    """When the name came to be: ctime, since an object shares its inode, and so its mtime, with a run's object."""
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0
