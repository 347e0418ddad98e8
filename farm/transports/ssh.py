"""Mac and Linux hosts over SSH: transport `ssh`, on paramiko.

One connection per host, a channel per call. Files travel through `cat` in the same watched way as programs, so one
round trip sends, checks and names a file, deadlines and kills are the same everywhere, and a full disk is told in words
(sftp says only "Failure"). `ssh_connect` opens the connection; here it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import paramiko

from farm.errors import DeadlineExceeded, DeviceLost, InfraError, InvalidInput, TransferFailed
from farm.transports.base import Addressed, Completed, Deadline, blocks, file_sha256, landing, plain_argv, tail_text
from farm.transports.far_shell import (
    KILL_LIMIT_S,
    Job,
    check_landed,
    part_of,
    pull_argv,
    push_argv,
    sha256_seen,
    undead,
    was_killed,
)
from farm.transports.ssh_connect import Connection, open_connection

_POLL_S = 0.05
"""How often an exit status is looked for while no stream says anything; data and the end of streams wake at once."""
_IDLE_S = 2.0
"""How long streams that a program's escaped children hold open are listened to after its end."""
_CHUNK = 1 << 16
_LINK_ERRORS = (paramiko.SSHException, EOFError, OSError)


def open_transport(device: Addressed) -> SshTransport:
    """The link to a device of the inventory, by its ``host``; not connected yet. Raises InvalidInput without one."""
    host = device.address.get("host")
    if not host:
        raise InvalidInput(f"device {device.id} has transport ssh but no host; give it one, e.g. host: me@mac-mini")
    return SshTransport(host, env=device.env)


class SshTransport:
    """A host. `host` is what `ssh` takes: an alias of ssh_config, or ``user@name:port``.

    env reaches every program. config, known_hosts: files to use instead of the user's.
    """

    kind = "ssh"
    shares_filesystem = False

    def __init__(
        self,
        host: str,
        *,
        env: Mapping[str, str] | None = None,
        config: Path | None = None,
        known_hosts: Path | None = None,
    ) -> None:
        self.host = host
        self.env = dict(env or {})
        self._config, self._known_hosts = config, known_hosts
        self._lock = threading.Lock()
        self._link: Connection | None = None
        self._lost: dict[str, tuple[Job, int | None]] = {}

    def connect(self, timeout: float) -> None:
        """Open the link or check it; then end whatever an earlier, broken link left running there."""
        deadline = Deadline(timeout)
        with self._lock:
            link = self._link
        if link is not None and not self._answers(link, deadline):
            self.close()
            link = None
        if link is None:
            link = open_connection(self.host, deadline, config=self._config, known_hosts=self._known_hosts)
            with self._lock:
                self._link = link
        for job, group in list(self._lost.values()):
            self._kill(link, job, group, ("what an earlier connection started",), stale=True)

    def _answers(self, link: Connection, deadline: Deadline) -> bool:
        # is_active() stays true for a peer that froze: only a new session tells.
        try:
            link.transport.open_session(timeout=min(3.0, max(0.1, deadline.left_s))).close()
        except _LINK_ERRORS:
            return False
        return True

    def run(
        self, argv: Sequence[str], timeout: float, *, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> Completed:
        """Run one program to its end (see Transport.run)."""
        return self._run(plain_argv(argv), Deadline(timeout), {**self.env, **(env or {})}, iter([stdin]), None)

    def push(self, local: Path, remote: str, timeout: float, *, mode: int = 0o644) -> None:
        """Copy a file there (see Transport.push)."""
        deadline = Deadline(timeout)
        sha256 = file_sha256(local)
        argv = push_argv(part_of(remote), remote, sha256, mode)
        check_landed(self._run(argv, deadline, {}, blocks(local), None), remote, sha256)

    def pull(self, remote: str, local: Path, timeout: float, *, sha256: str | None = None) -> None:
        """Copy a file here (see Transport.pull). Without `sha256` the far side's own is asked for and compared."""
        h = hashlib.sha256()
        with landing(local, sha256=sha256) as write:

            def sink(block: bytes) -> None:
                h.update(block)
                write(block)

            argv = pull_argv(remote, want_hash=sha256 is None)
            done = self._run(argv, Deadline(timeout), {}, iter(()), sink)
            there = sha256_seen(done, remote)
            if there is not None and there != h.hexdigest():
                raise TransferFailed(f"{remote} has sha256 {there} there, but what arrived has {h.hexdigest()}")

    def close(self) -> None:
        """End the link now; who waits gets DeviceLost. `connect` kills what is left over there."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _run(
        self,
        argv: tuple[str, ...],
        deadline: Deadline,
        env: Mapping[str, str],
        source: Iterator[bytes],
        sink: Callable[[bytes], object] | None,
    ) -> Completed:
        with self._lock:
            link = self._link
        if link is None:
            raise DeviceLost(f"the link to {self.host} is closed; connect again first", argv=argv)
        job = Job.make(argv, env)
        talk = _Talk(job, sink)
        self._lost[job.nonce] = (job, None)
        try:
            ended = talk.until_end(link.transport, deadline, source)
        except _LINK_ERRORS as e:
            self._lost[job.nonce] = (job, job.group(talk.out, talk.err))
            ended = False  # what paramiko waits for too long it calls an error of the link
            if not deadline.over:
                why = f"the link to {self.host} broke while {argv[0]} ran: {e or type(e).__name__}"
                raise DeviceLost(why, argv=argv, output=talk.tail) from e
        except InfraError:
            # Our side failed (disk full, file gone): the far side must not go on.
            self._kill(link, job, job.group(talk.out, talk.err), argv)
            raise
        finally:
            talk.close()
        if ended:
            del self._lost[job.nonce]
            return talk.completed(deadline)
        self._kill(link, job, job.group(talk.out, talk.err), argv)
        raise DeadlineExceeded(
            f"{argv[0]} on {self.host} did not end within {deadline.limit_s:g} s; it was killed with all its children",
            argv=argv,
            output=talk.tail,
        )

    def _kill(
        self, link: Connection, job: Job, group: int | None, argv: tuple[str, ...], *, stale: bool = False
    ) -> None:
        """Kill a job over a second channel and see that it is dead. Raises DeviceLost or DeviceUnavailable."""
        self._lost[job.nonce] = (job, group)
        killer = Job.make(("sh", "-c", job.killer(group, stale=stale)), {})
        talk = _Talk(killer, None)
        deadline = Deadline(KILL_LIMIT_S)
        try:
            ended = talk.until_end(link.transport, deadline, iter(()))
        except _LINK_ERRORS as e:
            raise DeviceLost(
                f"the link to {self.host} broke while {argv[0]} was being killed; connecting again kills it", argv=argv
            ) from e
        finally:
            talk.close()
        if not ended or not was_killed(talk.completed(deadline)):
            raise undead(argv, talk.tail.strip()[-200:] or "no answer")
        del self._lost[job.nonce]


class _Talk:
    """One channel: both streams drained and stdin fed in one loop, so that no full window blocks another."""

    def __init__(self, job: Job, sink: Callable[[bytes], object] | None) -> None:
        self.job, self.out, self.err = job, bytearray(), bytearray()
        self._sink = sink
        self._passing = False
        self._channel: paramiko.Channel | None = None

    @property
    def tail(self) -> str:
        return tail_text(self.job.strip(self.out), self.job.strip(self.err))

    def completed(self, deadline: Deadline) -> Completed:
        assert self._channel is not None
        return Completed(
            exit_status=self._channel.exit_status,
            stdout=self.job.strip(self.out),
            stderr=self.job.strip(self.err),
            wall_s=deadline.spent_s,
        )

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def until_end(self, transport: paramiko.Transport, deadline: Deadline, source: Iterator[bytes]) -> bool:
        """True when the program ended, False when time is over. Raises what paramiko raises when the link breaks."""
        self._channel = channel = transport.open_session(timeout=max(0.1, deadline.left_s))
        channel.settimeout(max(0.1, deadline.left_s))
        channel.exec_command(self.job.script)
        fd = channel.fileno()
        rest: memoryview | None = memoryview(b"")
        quiet_since = time.monotonic()
        while not deadline.over:
            if rest is not None:
                rest = self._feed(channel, rest, source)
            if self._read(channel):
                quiet_since = time.monotonic()
                continue
            if channel.exit_status_ready():
                if channel.exit_status == -1:
                    raise EOFError("the connection ended before the program did")
                # The status may come before the last of the output, which ends with the streams.
                if channel.eof_received or time.monotonic() - quiet_since > _IDLE_S:
                    while self._read(channel):
                        pass
                    return True
            elif not transport.is_active():
                raise EOFError("the connection ended")
            busy = rest is not None and channel.send_ready()
            select.select([fd], [], [], 0 if busy else min(_POLL_S, deadline.left_s))
        return False

    def _feed(self, channel: paramiko.Channel, rest: memoryview, source: Iterator[bytes]) -> memoryview | None:
        """Send what the window takes; None once all is sent. A program that reads no stdin is no error."""
        try:
            while channel.send_ready():
                if not rest:
                    block = next(source, None)
                    if block is None:
                        channel.shutdown_write()
                        return None
                    rest = memoryview(block)
                    continue
                rest = rest[channel.send(bytes(rest[:_CHUNK])) :]
        except OSError:
            if channel.closed or not channel.exit_status_ready():
                with contextlib.suppress(OSError):
                    channel.shutdown_write()
            return None
        return rest

    def _read(self, channel: paramiko.Channel) -> bool:
        got = False
        if channel.recv_ready():
            self._take(channel.recv(1 << 20))
            got = True
        if channel.recv_stderr_ready():
            self.err += channel.recv_stderr(1 << 20)
            got = True
        return got

    def _take(self, block: bytes) -> None:
        """Keep stdout, or pass it on once our own first line is through."""
        if self._passing and self._sink is not None:
            self._sink(block)
            return
        self.out += block
        if self._sink is not None and self.job.group(self.out) is not None:
            self._passing = True
            body = self.job.strip(self.out)
            del self.out[len(self.out) - len(body) :]
            if body:
                self._sink(body)
