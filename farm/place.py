"""Where files lie on a device, and how they get there and back.

session.py asks a Place for paths the agent can use and gets results out of it. Nothing is copied on this machine.
Behind a link everything lies under one root, content-addressed, sent once:

    ROOT/agent/<digest>/litert_agent   ROOT/runtime/<name>-<digest>/…   ROOT/model/<sha256>.tflite   ROOT/input/<sha256>
    ROOT/jobs/<nonce>/                 one agent process; removed after harvest
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from farm.errors import DeviceUnavailable, NoSpace, TransferFailed
from farm.objects import Objects
from farm.transports.base import Transport

if TYPE_CHECKING:
    from farm.runtimes import Runtime

ANDROID_ROOT = "/data/local/tmp/farm"
LOG_LIMIT = 1 << 20
"""A log longer than this keeps its first and last half: a driver in a loop can print gigabytes."""
_TRANSFER_FLOOR_BYTES_S = 200_000
"""Slowest link we wait for (a phone on a bad USB hub); a transfer's deadline is its size over this, plus 30 s."""


def transfer_timeout(size_bytes: int) -> float:
    """Seconds of wall clock to allow for moving `size_bytes`."""
    return 30.0 + size_bytes / _TRANSFER_FLOOR_BYTES_S


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
    def read(self, path: str, limit: int) -> bytes | None:
        """A small file, or None if there is none. Longer than `limit`: its first and last half."""

    def harvest(self, path: str, sha256: str, size_bytes: int) -> None:
        """Bring an output into the object store; its bytes must have `sha256`. Raises TransferFailed."""

    def close_job(self, job: str) -> None:
        """Remove a folder `open_job` made."""


class LocalPlace:
    """This machine: the agent works on our own files; outputs are moved into the object store."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
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

    def read(self, path: str, limit: int) -> bytes | None:
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
    """A device behind a link. Present files are asked for once per visit, by name and size."""

    def __init__(self, transport: Transport, objects: Objects, root: str, timeout_s: float = 30.0) -> None:
        self.transport, self.objects, self.root, self._timeout = transport, objects, root, timeout_s
        self._present: set[str] = set()
        # Leftovers of a farm that was killed; a live job is never two hours old (deadlines are minutes).
        self._sh('find "$1" -mindepth 1 -maxdepth 1 -mmin +120 -exec rm -rf {} + 2>/dev/null; :', f"{root}/jobs")

    def _sh(self, script: str, *args: str, timeout: float | None = None) -> bytes:
        done = self.transport.run(["sh", "-c", script, "sh", *args], timeout or self._timeout)
        if done.exit_status not in (0, None):
            words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
            if "No space left" in words:
                raise NoSpace(f"the device's disk is full: {words}")
            raise TransferFailed(f"a shell command on the device failed with {done.exit_status}: {words}")
        return done.stdout

    def _send(self, local: Path, remote: str, mode: int = 0o644) -> str:
        if remote in self._present:
            return remote
        size = local.stat().st_size
        there = self._sh('[ -f "$1" ] && wc -c < "$1" || echo -1', remote).strip()
        if there != str(size).encode():
            self.transport.push(local, remote, transfer_timeout(size), mode=mode)
        self._present.add(remote)
        return remote

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
        job = f"{self.root}/jobs/{nonce}"
        self._sh('mkdir -p "$1"', job)
        return job

    def put(self, path: str, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as tmp:
            local = Path(tmp) / "file"
            local.write_bytes(data)
            self.transport.push(local, path, transfer_timeout(len(data)))

    def read(self, path: str, limit: int) -> bytes | None:
        script = (
            '[ -f "$1" ] || { echo -1; exit 0; }; n=$(wc -c < "$1"); echo $n; '
            'if [ "$n" -le "$2" ]; then cat "$1"; else head -c "$3" "$1"; echo; echo "[...]"; tail -c "$3" "$1"; fi'
        )
        head, _, body = self._sh(script, path, str(limit), str(limit // 2)).partition(b"\n")
        return None if head.strip() == b"-1" else body

    def harvest(self, path: str, sha256: str, size_bytes: int) -> None:
        with tempfile.TemporaryDirectory(dir=self.objects.root) as tmp:
            local = Path(tmp) / "output"
            self.transport.pull(path, local, transfer_timeout(size_bytes), sha256=sha256)
            self.objects.adopt(local, sha256)

    def close_job(self, job: str) -> None:
        if PurePosixPath(job).parent == PurePosixPath(self.root, "jobs"):
            self._sh('rm -rf "$1"', job)


def open_place(transport: Transport, objects: Objects, *, timeout: float) -> Place:
    """The Place behind a connected transport."""
    if transport.shares_filesystem:
        return LocalPlace(objects)
    if transport.kind == "adb":
        return RemotePlace(transport, objects, ANDROID_ROOT)
    done = transport.run(["sh", "-c", 'printf %s "$HOME"'], timeout)
    home = done.stdout.decode("utf-8", "replace").strip()
    if not home.startswith("/"):
        raise DeviceUnavailable(
            "the host names no home folder ($HOME); farm keeps its files in $HOME/.cache/litert-farm"
        )
    return RemotePlace(transport, objects, f"{home}/.cache/litert-farm")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
