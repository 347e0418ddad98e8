"""The Transport protocol: everything farm asks of a link to a device. It knows nothing of models or agents.

Below the protocol: the few things every transport needs (deadline, quoting, files that arrive whole).
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from farm.errors import DeadlineExceeded, DeviceLost, InvalidInput, NoSpace, TransferFailed

CHUNK_BYTES = 1 << 20
OUTPUT_TAIL_CHARS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended. A non-zero exit is data, not an error.

    exit_status: 0..255, or 128 + signal, or None when the link cannot tell.
    stdout, stderr: whole, as bytes.
    wall_s: seconds of wall clock as seen from here.
    """

    exit_status: int | None
    stdout: bytes
    stderr: bytes
    wall_s: float


@runtime_checkable
class Transport(Protocol):
    """A link to one device. Not thread-safe except `close`, which may come from any thread and wakes whoever waits.

    Every method raises a subclass of farm.errors.InfraError when the link or a disk fails, and
    DeadlineExceeded when `timeout` (seconds of wall clock for the whole call) is over.
    """

    kind: str
    shares_filesystem: bool
    """True when paths of this machine are paths of the device (transport `local`): nothing is copied then."""

    def connect(self, timeout: float) -> None:
        """Open the link, or check that it still works. Calling it again after a loss reconnects."""

    def run(
        self, argv: Sequence[str], timeout: float, *, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> Completed:
        """Run one program to its end; argv reaches it word for word (quoting is this method's business).

        `env` is added to the far environment. After a time-out the far process group is dead before
        DeadlineExceeded is raised; its `output` field carries what came so far. DeviceUnavailable if it cannot be
        killed. Whatever the program leaves in its process group is killed when the program ends.
        A program that does not exist gives 127, one that may not be run 126.
        """

    def push(self, local: Path, remote: str, timeout: float, *, mode: int = 0o644) -> None:
        """Copy a file there, whole or not at all: temporary name, sha256 taken on the far side, rename.

        Missing parent folders are made. Raises TransferFailed or NoSpace.
        """

    def pull(self, remote: str, local: Path, timeout: float, *, sha256: str | None = None) -> None:
        """Copy a file here, whole or not at all. With `sha256` (hex) the bytes must have it.

        Raises TransferFailed (also when the far file does not exist).
        """

    def close(self) -> None:
        """End the link now. Safe to call twice and from another thread."""


class Addressed(Protocol):
    """What `open_transport(device)` of every transport module reads; the plan's device has it."""

    @property
    def id(self) -> str: ...
    @property
    def address(self) -> Mapping[str, str]:
        """The transport's own keys: serial, adb_server, host, …"""

    @property
    def env(self) -> Mapping[str, str]: ...


class Deadline:
    """A wall-clock limit, in seconds from now, over everything one call does."""

    def __init__(self, limit_s: float) -> None:
        if not 0 < limit_s < float("inf"):
            raise ValueError(f"a time-out must be a positive number of seconds, not {limit_s}")
        self.limit_s = limit_s
        self._start = time.monotonic()

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.limit_s - self.spent_s)

    @property
    def over(self) -> bool:
        return self.spent_s >= self.limit_s


def plain_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Check the words of a command. Raises InvalidInput: no system can pass on an empty argv or a NUL byte."""
    if isinstance(argv, str) or not argv or not argv[0]:
        raise InvalidInput(f"a command needs a list of words that starts with a program, not {argv!r}")
    if any("\0" in word for word in argv):
        raise InvalidInput("a word of the command holds a NUL byte, which no program can be given")
    return tuple(argv)


def shell_words(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Quote a command for a POSIX shell; the one place where farm quotes for a far shell.

    Raises InvalidInput for a name that is no environment variable.
    """
    for name in env:
        if not name.isidentifier() or not name.isascii():
            raise InvalidInput(f"{name!r} cannot be the name of an environment variable")
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    return " ".join((["env", *words] if words else []) + [shlex.quote(word) for word in argv])


def tail_text(*streams: bytes | bytearray) -> str:
    """What a command printed, as text for a message or an error's `output`: the last few thousand characters."""
    return b"".join(streams).decode(errors="replace")[-OUTPUT_TAIL_CHARS:]


def part_name(name: str) -> str:
    """A temporary name for a file on its way to `name`; unique, so that two farms never write into one."""
    return f".{name[:80]}.{secrets.token_hex(6)}.part"


def is_full(e: OSError) -> bool:
    return e.errno in (errno.ENOSPC, errno.EDQUOT)


def file_sha256(path: Path) -> str:
    """Hash a file of this machine. Raises TransferFailed if it cannot be read."""
    h = hashlib.sha256()
    for block in blocks(path):
        h.update(block)
    return h.hexdigest()


def blocks(path: Path) -> Iterator[bytes]:
    """Read a file of this machine piece by piece. Raises TransferFailed if it is no file that can be read."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise TransferFailed(f"{path} is not a regular file")
        with path.open("rb") as f:
            while block := f.read(CHUNK_BYTES):
                yield block
    except OSError as e:
        raise TransferFailed(f"cannot read {path}: {e.strerror or e}") from e


@contextmanager
def landing(path: Path, *, sha256: str | None = None, mode: int = 0o644) -> Iterator[Callable[[bytes], object]]:
    """Write a file of this machine whole or not at all: gives a `write`; renames after the block, if the hash is right.

    Raises NoSpace or TransferFailed; nothing is left under either name then.
    """
    part = path.parent / part_name(path.name)
    h = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as f:

            def write(block: bytes) -> None:
                h.update(block)
                f.write(block)

            yield write
        if sha256 is not None and h.hexdigest() != sha256:
            raise TransferFailed(f"what arrived for {path} has sha256 {h.hexdigest()}, not {sha256}; it was dropped")
        os.chmod(part, mode)
        os.replace(part, path)
    except OSError as e:
        if is_full(e):
            raise NoSpace(f"no space left on this machine for {path}; free some space and run again") from e
        raise TransferFailed(f"cannot write {path}: {e.strerror or e}") from e
    finally:
        part.unlink(missing_ok=True)


def copy_whole(
    source: Path,
    target: Path,
    deadline: Deadline,
    *,
    sha256: str | None = None,
    mode: int = 0o644,
    stopped: Callable[[], bool],
) -> None:
    """Copy a file within this machine. Raises DeviceLost once `stopped()`, DeadlineExceeded, or as `landing`."""
    with landing(target, sha256=sha256, mode=mode) as write:
        for block in blocks(source):
            write(block)
            if stopped():
                raise DeviceLost(f"the link was closed while {source} was copied")
            if deadline.over:
                raise DeadlineExceeded(f"copying {source} to {target} took longer than {deadline.limit_s:g} s")
