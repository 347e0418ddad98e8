"""Where files lie on a device, and how they get there and back.

session.py asks a Place for paths the agent can use and gets results out of it. Nothing is copied on this machine.
Behind a link everything lies under one root, content-addressed, sent once:

    ROOT/agent/<digest>/litert_agent   ROOT/runtime/<name>-<digest>/…   ROOT/model/<sha256>.tflite   ROOT/input/<sha256>
    ROOT/jobs/<owner>-<nonce>/         one agent process; removed after harvest
    ROOT/lease/                        who may use the device (lease.py)

What we did not put there ourselves is never touched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from farm import far_job
from farm.errors import DeadlineExceeded, DeviceLost, DeviceUnavailable, NoSpace, TransferFailed
from farm.far_job import LOG_LIMIT, RESULT_LIMIT, Remains
from farm.lease import Lease, new_owner
from farm.objects import Objects
from farm.transports.base import Completed, Transport, tail_text

if TYPE_CHECKING:
    from farm.runtimes import Runtime

ANDROID_ROOT = "/data/local/tmp/farm"
KEEP_DAYS = 14
"""Models, inputs, agents and runtimes on a device that no sweep used for so long are removed."""
KEEP_BYTES = 2 << 30
"""Beyond this much, those not used for longest go first."""
SPARE_BYTES = 64 << 20
"""Left free on a device's disk: a full /data breaks a phone for everybody."""
_TRANSFER_FLOOR_BYTES_S = 200_000
"""Slowest link we wait for (a phone on a bad USB hub); a transfer's deadline is its size over this, plus 30 s."""


def transfer_timeout(size_bytes: int) -> float:
    """Seconds of wall clock to allow for moving `size_bytes`."""
    return 30.0 + size_bytes / _TRANSFER_FLOOR_BYTES_S


Guard = tuple[Lease, float] | None
"""A lease that must still be ours, and for how many seconds it is renewed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one agent process left. late: it was killed at our deadline. result, log: its files, as far as it wrote."""

    completed: Completed | None
    late: DeadlineExceeded | None
    result: bytes | None
    log: bytes


class Place(Protocol):
    """Paths returned are paths on the device."""

    def agent(self, binary: Path) -> str: ...
    def runtime(self, runtime: Runtime) -> tuple[str, str]:
        """The runtime's library and the folder of its accelerators."""

    def model(self, path: Path, sha256: str) -> str: ...
    def input(self, sha256: str) -> str: ...
    def open_job(self, nonce: str) -> str:
        """Make an empty folder for one agent process."""

    def put(self, path: str, data: bytes) -> None: ...
    def execute(self, job: str, argv: Sequence[str], timeout: float, env: Mapping[str, str], guard: Guard) -> Ran:
        """Run an agent in a folder `open_job` gave, if the guard lets it.

        Raises InfraError; after DeviceLost it may still be running.
        """

    def harvest(self, path: str, sha256: str, size_bytes: int) -> None:
        """Bring an output into the object store; its bytes must have `sha256`. Raises TransferFailed."""

    def close_job(self, job: str) -> None:
        """Remove a folder `open_job` made."""


class LocalPlace:
    """This machine: the agent works on our own files; outputs are moved into the object store."""

    def __init__(self, objects: Objects, transport: Transport) -> None:
        self.objects, self.transport = objects, transport
        self._jobs = objects.root / ".jobs"
        self._sweep_leftovers()

    def _sweep_leftovers(self) -> None:
        """Remove job folders whose farm process is gone (it was killed before it could clean up)."""
        try:
            folders = [f for f in self._jobs.iterdir() if f.is_dir()]
        except FileNotFoundError:
            return
        for folder in folders:
            pid = folder.name.split("-", 1)[0]
            if pid.isdigit() and not _alive(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)

    def agent(self, binary: Path) -> str:
        return str(binary)

    def runtime(self, runtime: Runtime) -> tuple[str, str]:
        return str(Path(runtime.folder) / runtime.library), str(runtime.folder)

    def model(self, path: Path, sha256: str) -> str:
        return str(path)

    def input(self, sha256: str) -> str:
        return str(self.objects.path(sha256).absolute())

    def open_job(self, nonce: str) -> str:
        folder = self._jobs / f"{os.getpid()}-{nonce}"
        try:
            folder.mkdir(parents=True)
        except OSError as e:
            raise NoSpace(f"cannot make a job folder in '{self._jobs}': {e.strerror}") from e
        return str(folder.absolute())

    def put(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)

    def execute(
        self, job: str, argv: Sequence[str], timeout: float, env: Mapping[str, str], guard: Guard = None
    ) -> Ran:
        completed: Completed | None = None
        late: DeadlineExceeded | None = None
        try:
            completed = self.transport.run(argv, timeout, env=env)
        except DeadlineExceeded as e:
            late = e
        return Ran(
            completed=completed,
            late=late,
            result=self._read(f"{job}/result.json", RESULT_LIMIT),
            log=self._read(f"{job}/log.txt", LOG_LIMIT) or b"",
        )

    def _read(self, path: str, limit: int) -> bytes | None:
        """A small file, or None if there is none. Longer than `limit`: its first and last half."""
        try:
            with open(path, "rb") as f:
                size = os.fstat(f.fileno()).st_size
                if size <= limit:
                    return f.read()
                head = f.read(limit // 2)
                f.seek(size - limit // 2)
                return head + b"\n[...]\n" + f.read(limit // 2)
        except FileNotFoundError:
            return None

    def harvest(self, path: str, sha256: str, size_bytes: int) -> None:
        self.objects.adopt(Path(path), sha256)

    def close_job(self, job: str) -> None:
        shutil.rmtree(job, ignore_errors=True)


class RemotePlace:
    """A device behind a link. Present files are asked for once per visit, by name and size.

    owner: whose jobs are ours (see lease.new_owner); jobs of others are leftovers, for we hold the device's lease.
    """

    def __init__(
        self, transport: Transport, objects: Objects, root: str, timeout_s: float = 30.0, *, owner: str = ""
    ) -> None:
        self.transport, self.objects, self.root, self._timeout = transport, objects, root, timeout_s
        self.owner = owner or new_owner()
        self._present: set[str] = set()
        self._done: list[str] = []

    @classmethod
    def bare(cls, transport: Transport, root: str, timeout_s: float, *, owner: str) -> RemotePlace:
        """A place that only cleans: nothing is brought in from it."""
        return cls(transport, Objects(Path(os.devnull)), root, timeout_s, owner=owner)

    def tidy(self) -> None:
        """Kill and remove what farms that are gone left behind, then what nobody used for long. Needs the lease."""
        self._run(far_job.sweep_argv(f"{self.root}/jobs", self.owner), self._timeout + far_job.KILL_S)
        self._sh(_COLLECT, self.root, str(KEEP_DAYS), str(KEEP_BYTES // 1024))

    def remove_all(self) -> None:
        """Remove everything of ours, the lease last."""
        self.end_all()
        self._sh('for d in agent runtime model input jobs lease; do rm -rf "$1/$d"; done; rmdir "$1"; :', self.root)
        self._present.clear()

    def _run(self, argv: Sequence[str], timeout: float) -> bytes:
        done = self.transport.run(argv, timeout)
        if done.exit_status not in (0, None):
            words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
            if "No space left" in words:
                raise NoSpace(f"the device's disk is full: {words}")
            if words.startswith("alive "):
                raise DeviceUnavailable(f"an earlier job (process {words[6:]}) cannot be killed; restart the device")
            raise TransferFailed(f"a shell command on the device failed with {done.exit_status}: {words}")
        return done.stdout

    def _sh(self, script: str, *args: str, timeout: float | None = None) -> bytes:
        return self._run(["sh", "-c", script, "sh", *args], timeout or self._timeout)

    def _send(self, local: Path, remote: str, mode: int = 0o644) -> str:
        if remote in self._present:
            return remote
        size = local.stat().st_size
        # The touch keeps it from being collected; free space is asked for in the same round trip.
        script = 'if [ -f "$1" ]; then touch -c "$1"; wc -c <"$1"; else echo -1; df -Pk "$2"; fi 2>/dev/null; :'
        there, _, disk = self._sh(script, remote, self._existing_parent()).decode("utf-8", "replace").partition("\n")
        if there.strip() != str(size):
            free = _free_bytes(disk)
            if free is not None and free < size + SPARE_BYTES:
                raise NoSpace(
                    f"{remote} needs {size} bytes and {SPARE_BYTES} to spare, the device has {free} free;"
                    " free some space there, or remove farm's own files with: farm clean"
                )
            self.transport.push(local, remote, transfer_timeout(size), mode=mode)
        self._present.add(remote)
        return remote

    def _existing_parent(self) -> str:
        """A folder that surely exists, on the disk that takes our files."""
        return str(PurePosixPath(self.root).parent) if self.root == ANDROID_ROOT else "."

    def agent(self, binary: Path) -> str:
        digest = hashlib.sha256(binary.read_bytes()).hexdigest()[:16]
        return self._send(binary, f"{self.root}/agent/{digest}/litert_agent", 0o755)

    def runtime(self, runtime: Runtime) -> tuple[str, str]:
        digest = hashlib.sha256(repr(sorted(runtime.files.items())).encode()).hexdigest()[:12]
        folder = f"{self.root}/runtime/{runtime.name}-{digest}"
        for name in sorted(runtime.files):
            self._send(Path(runtime.folder) / name, f"{folder}/{name}")
        return f"{folder}/{runtime.library}", folder

    def model(self, path: Path, sha256: str) -> str:
        return self._send(path, f"{self.root}/model/{sha256}.tflite")

    def input(self, sha256: str) -> str:
        return self._send(self.objects.path(sha256), f"{self.root}/input/{sha256}")

    def open_job(self, nonce: str) -> str:
        return f"{self.root}/jobs/{self.owner}-{nonce}"  # whoever writes there makes it

    def put(self, path: str, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as tmp:
            local = Path(tmp) / "file"
            local.write_bytes(data)
            self.transport.push(local, path, transfer_timeout(len(data)))

    def execute(
        self, job: str, argv: Sequence[str], timeout: float, env: Mapping[str, str], guard: Guard = None
    ) -> Ran:
        """One round trip asks the lease, starts the agent, waits, and brings result and log."""
        lease, ttl_s = guard or (None, 0.0)
        asked = lease.guard_argv(ttl_s) if lease is not None else ()
        start = far_job.start_argv(job, argv, guard=asked, remove=self._done)
        self._done = []
        try:
            done = self.transport.run(start, timeout, env=env)
        except DeadlineExceeded as e:
            self.end(job)
            return self._late(job, e)
        if done.exit_status not in (0, None):
            words = tail_text(done.stderr or done.stdout).strip()
            if "No space left" in words:
                raise NoSpace(f"the device's disk is full: {words}")
            raise TransferFailed(f"no job could be started on the device ({done.exit_status}): {words}")
        refusal = far_job.refused(done.stdout)
        if refusal is not None and lease is not None:
            lease.guard_refused(refusal)
        return _ran(far_job.remains(done.stdout), done.wall_s)

    def rejoin(self, job: str, limit_s: float) -> Ran:
        """Wait for a job that an earlier link started. Raises DeviceLost if it is gone, or was killed."""
        done = self.transport.run(far_job.follow_argv(job, limit_s), limit_s + self._timeout)
        left = far_job.remains(done.stdout)
        if left is None or (left.exit_status is None and left.result is None):
            self.end(job)
            raise DeviceLost("the link broke, and the job it had started did not come to its end")
        return _ran(left, done.wall_s)

    def end(self, job: str) -> None:
        """Kill a job and see that it is dead. Raises DeviceUnavailable if it cannot be killed."""
        self._run(far_job.end_argv(job), self._timeout + far_job.KILL_S)

    def end_all(self) -> None:
        """Kill and remove every job of this farm process."""
        self._run(far_job.sweep_argv(f"{self.root}/jobs", "none"), self._timeout + far_job.KILL_S)

    def _late(self, job: str, late: DeadlineExceeded) -> Ran:
        left = far_job.remains(self.transport.run(far_job.follow_argv(job, 0), self._timeout).stdout)
        ran = _ran(left, 0)
        said = b"" if ran.completed is None else ran.completed.stdout
        # The agent's own progress lines prove that it was running, and how far it came.
        error = DeadlineExceeded(str(late), argv=late.argv, output=tail_text(said))
        return Ran(completed=None, late=error, result=ran.result, log=ran.log)

    def harvest(self, path: str, sha256: str, size_bytes: int) -> None:
        with tempfile.TemporaryDirectory(dir=self.objects.root) as tmp:
            local = Path(tmp) / "output"
            self.transport.pull(path, local, transfer_timeout(size_bytes), sha256=sha256)
            self.objects.adopt(local, sha256)

    def close_job(self, job: str) -> None:
        if PurePosixPath(job).parent == PurePosixPath(self.root, "jobs"):
            self._done.append(job)  # the next round trip takes it along

    def flush(self) -> None:
        """Remove the folders of the last jobs now."""
        if self._done:
            self._sh('rm -rf "$@"', *self._done)
            self._done = []


_COLLECT = """cd "$1" 2>/dev/null || exit 0
for d in agent runtime model input; do
[ -d $d ] && find $d -type f -mtime "+$2" -exec rm -f {} + 2>/dev/null
done
n=$(du -sk agent runtime model input 2>/dev/null | { t=0; while read -r k _; do t=$((t+k)); done; echo $t; })
[ "$n" -gt "$3" ] || exit 0
find model input -type f -exec ls -1tr {} + 2>/dev/null | grep -E '^(model|input)/[0-9a-f]{64}(\\.tflite)?$' |
while read -r f; do
[ "$n" -gt "$3" ] || break
k=$(du -k "$f"); n=$((n-${k%%[!0-9]*})); rm -f "$f"
done
:
"""


def _free_bytes(df: str) -> int | None:
    """Free space from `df -Pk`; None where it does not tell."""
    rows = [line.split() for line in df.splitlines()]
    return next((int(r[3]) * 1024 for r in rows if len(r) >= 6 and r[3].isdigit()), None)


def _ran(left: Remains | None, wall_s: float) -> Ran:
    if left is None:
        raise TransferFailed("the job's folder on the device is gone; does something else clean up there?")
    completed = Completed(exit_status=left.exit_status, stdout=left.stdout, stderr=left.stderr, wall_s=wall_s)
    return Ran(completed=completed, late=None, result=left.result, log=left.log)


def far_root(transport: Transport, timeout: float) -> str:
    """Where farm keeps its files on a device behind a link. Raises InfraError."""
    if transport.kind == "adb":
        return ANDROID_ROOT
    done = transport.run(["sh", "-c", 'printf %s "$HOME"'], timeout)
    home = done.stdout.decode("utf-8", "replace").strip()
    if not home.startswith("/"):
        raise DeviceUnavailable(
            "the host names no home folder ($HOME); farm keeps its files in $HOME/.cache/litert-farm"
        )
    return f"{home}/.cache/litert-farm"


def open_place(transport: Transport, objects: Objects, *, timeout: float, owner: str = "") -> LocalPlace | RemotePlace:
    """The Place behind a connected transport. owner: see RemotePlace."""
    if transport.shares_filesystem:
        return LocalPlace(objects, transport)
    return RemotePlace(transport, objects, far_root(transport, timeout), timeout, owner=owner)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
