"""This machine as a device: transport `local`. Nothing is copied for it, its paths are ours (`shares_filesystem`)."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from farm.errors import DeadlineExceeded, DeviceLost, DeviceUnavailable, InfraError
from farm.transports.base import Addressed, Completed, Deadline, copy_whole, plain_argv, tail_text

_CHUNK = 1 << 16
_KILL_LIMIT_S = 5.0
"""How long a killed group may take to go. A process that needs longer sits in a driver and needs a reboot."""
_DRAIN_LIMIT_S = 5.0
_POLL_S = 0.02
"""How often an end is looked for where the system cannot tell us (no pidfd: macOS)."""


def open_transport(device: Addressed) -> LocalTransport:
    """The link to a device of the inventory; not connected yet."""
    return LocalTransport(device.env)


class LocalTransport:
    """Programs run as children of this process, each in a process group of its own.

    When the program ends, whatever it left in its group is killed: nothing of one cell may run beside the next.
    """

    kind = "local"
    shares_filesystem = True

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.env = dict(env or {})
        self._lock = threading.Lock()
        self._closed = False
        self._wake: int | None = None

    def connect(self, timeout: float) -> None:
        """Open the link again after `close`; this machine needs nothing else."""
        with self._lock:
            self._closed = False

    def run(
        self, argv: Sequence[str], timeout: float, *, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> Completed:
        """Run one program to its end (see Transport.run)."""
        words = plain_argv(argv)
        deadline = Deadline(timeout)
        with self._lock:
            if self._closed:
                raise DeviceLost("the link to this machine is closed; connect again first", argv=words)
            ear, mouth = os.pipe()
            self._wake = mouth
        try:
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **self.env, **(env or {})},
                    bufsize=0,
                    start_new_session=True,
                )
            except (FileNotFoundError, NotADirectoryError):
                return _refused(127, words[0], "not found", deadline)
            except PermissionError:
                return _refused(126, words[0], "permission denied", deadline)
            except OSError as e:
                raise InfraError(f"cannot start {words[0]} on this machine: {e.strerror or e}", argv=words) from e
            return self._finish(process, words, deadline, stdin, ear)
        finally:
            with self._lock:
                self._wake = None
            os.close(ear)
            os.close(mouth)

    def _finish(
        self, process: subprocess.Popen[bytes], argv: tuple[str, ...], deadline: Deadline, stdin: bytes, ear: int
    ) -> Completed:
        talk = _Talk(process, stdin, ear)
        try:
            ending = talk.until_end(deadline)
        finally:
            try:
                _end_group(process, argv)
                talk.drain()
            finally:
                talk.close()
        if ending == "closed":
            raise DeviceLost(f"the link was closed while {argv[0]} ran", argv=argv, output=talk.tail)
        if ending == "late":
            raise DeadlineExceeded(
                f"{argv[0]} did not end within {deadline.limit_s:g} s; it was killed with its whole process group",
                argv=argv,
                output=talk.tail,
            )
        status = process.returncode
        return Completed(
            exit_status=status if status >= 0 else 128 - status,
            stdout=bytes(talk.out),
            stderr=bytes(talk.err),
            wall_s=deadline.spent_s,
        )

    def push(self, local: Path, remote: str, timeout: float, *, mode: int = 0o644) -> None:
        """Copy a file (see Transport.push)."""
        copy_whole(local, Path(remote), Deadline(timeout), mode=mode, stopped=lambda: self._closed)

    def pull(self, remote: str, local: Path, timeout: float, *, sha256: str | None = None) -> None:
        """Copy a file (see Transport.pull)."""
        copy_whole(Path(remote), local, Deadline(timeout), sha256=sha256, stopped=lambda: self._closed)

    def close(self) -> None:
        """End the link now: what runs is killed and its waiter gets DeviceLost."""
        with self._lock:
            self._closed = True
            if self._wake is not None:
                os.write(self._wake, b"x")


class _Talk:
    """Both streams, stdin and the end of one child, watched together: none of them can block another."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, ear: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.out, self.err = bytearray(), bytearray()
        self._process = process
        self._rest = memoryview(stdin)
        self._select = selectors.DefaultSelector()
        self._pidfd = _pidfd(process.pid)
        self._buffers = {process.stdout.fileno(): self.out, process.stderr.fileno(): self.err}
        self._ear = ear
        for fd in (*self._buffers, ear, *(() if self._pidfd is None else (self._pidfd,))):
            os.set_blocking(fd, False)
            self._select.register(fd, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._select.register(process.stdin.fileno(), selectors.EVENT_WRITE)

    @property
    def tail(self) -> str:
        return tail_text(self.out, self.err)

    def until_end(self, deadline: Deadline) -> Literal["ended", "late", "closed"]:
        """Return once the program has ended, which a child holding its streams open does not delay."""
        while not deadline.over:
            wait = deadline.left_s if self._pidfd is not None else min(deadline.left_s, _POLL_S)
            for key, _ in self._select.select(wait):
                if key.fd in self._buffers:
                    self._read(key.fd)
                elif key.fd == self._ear:
                    return "closed"
                elif key.fd == self._pidfd:
                    return "ended"
                else:
                    self._write()
            if self._pidfd is None and self._process.poll() is not None:
                return "ended"
        return "late"

    def drain(self) -> None:
        """Take what is still in the pipes. The writers are dead; one that left the group is not waited for."""
        limit = Deadline(_DRAIN_LIMIT_S)
        for fd in list(self._buffers):
            while fd in self._buffers and self._read(fd) and not limit.over:
                pass

    def _read(self, fd: int) -> bool:
        try:
            block = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if block:
            self._buffers[fd] += block
            return True
        self._select.unregister(fd)
        del self._buffers[fd]
        return False

    def _write(self) -> None:
        assert self._process.stdin is not None
        try:
            self._rest = self._rest[os.write(self._process.stdin.fileno(), self._rest[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # a program need not read what it is given
            self._rest = self._rest[:0]
        if not self._rest:
            self._select.unregister(self._process.stdin.fileno())
            self._process.stdin.close()

    def close(self) -> None:
        self._select.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _pidfd(pid: int) -> int | None:
    """A file descriptor that becomes readable when the child ends, and leaves it unreaped. None where there is none."""
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except OSError:  # old kernels and some sandboxes lack the call
            return None
    return None


def _end_group(process: subprocess.Popen[bytes], argv: tuple[str, ...]) -> None:
    """Kill what is left of the group and see that it is gone. Raises DeviceUnavailable if it will not go.

    With a pidfd the leader is not reaped yet here, so its id cannot have been given to others.
    """
    group, limit = process.pid, Deadline(_KILL_LIMIT_S)
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        pass
    try:
        process.wait(limit.left_s)
        while _alive(group):
            if limit.over:
                raise subprocess.TimeoutExpired(argv, _KILL_LIMIT_S)
            time.sleep(_POLL_S / 4)
    except subprocess.TimeoutExpired as e:
        raise DeviceUnavailable(
            f"{argv[0]} (process group {group}) does not die within {_KILL_LIMIT_S:g} s of SIGKILL, so it hangs in a"
            " driver; restart this machine before trusting it again",
            argv=argv,
        ) from e


def _alive(group: int) -> bool:
    """Does any process of the group still run? Zombies nobody reaps (containers without an init) do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return sys.platform == "linux" and _runs(group)
    return _runs(group) if sys.platform == "linux" else True


def _runs(group: int) -> bool:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    state, _, pgrp = f.read().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):  # it ended while we looked
                continue
            if int(pgrp) == group and state not in (b"Z", b"X"):
                return True
    return False


def _refused(status: int, program: str, why: str, deadline: Deadline) -> Completed:
    """What a shell would answer, so that every transport says the same."""
    return Completed(exit_status=status, stdout=b"", stderr=f"{program}: {why}\n".encode(), wall_s=deadline.spent_s)
