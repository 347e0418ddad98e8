"""Is this machine ready? One Check per part, each with what was found and, where it is not well, the cure.

Called by `farm doctor` alone. The GPU check does not believe libraries on disk: it runs the canaries on the adapter.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from farm.errors import FarmError

if TYPE_CHECKING:
    from farm.objects import Objects
    from farm.runtimes import Runtime

LOW_DISK_BYTES = 2 << 30
"""A nightly run of a few large models keeps about this much of outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """state: ok, warn (works, with less) or fail (a sweep cannot run). cure is empty when there is nothing to do."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    cure: str = ""


def examine() -> list[Check]:
    """Run every check, in the order a sweep would meet the parts. A check that breaks becomes a `fail` line."""
    checks = [_guarded("python", check_python)]
    runtime: Runtime | None = None
    try:
        from farm.runtimes import find_runtime, host_platform

        runtime = find_runtime(None, host_platform())
        checks.append(check_runtime(runtime))
    except FarmError as error:
        cure = "pip install --upgrade ai-edge-litert"
        checks.append(Check(name="runtime", state="fail", found=str(error), cure=cure))
    checks.append(_guarded("agent", check_agent))
    if runtime is not None and checks[-1].state == "ok":
        found = runtime
        checks.append(_guarded("gpu", lambda: check_gpu(found)))
    checks.append(_guarded("adb", check_adb))
    checks.append(_guarded("folders", check_folders))
    return checks


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (FarmError, OSError) as error:
        return Check(name=name, state="fail", found=str(error), cure="mend what it names, then farm doctor again")


def check_python() -> Check:
    """The interpreter. One that is too old never gets here (pip and make refuse it), so this only says which."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()} ({sys.executable})"
    return Check(name="python", state="ok", found=found)


def check_runtime(runtime: Runtime) -> Check:
    """The LiteRT bundle that a sweep would take, and whether it brings a GPU accelerator."""
    found = f"{runtime.name} from {runtime.origin}: {', '.join(runtime.accelerators) or 'no accelerators'}"
    if not any("gpu" in name.lower() or "webgpu" in name.lower() for name in runtime.accelerators):
        cure = "GPU cells will read unsupported; install a LiteRT wheel that carries a GPU accelerator"
        return Check(name="runtime", state="warn", found=found, cure=cure)
    return Check(name="runtime", state="ok", found=found)


def check_agent() -> Check:
    """The native agent, built if need be (seconds)."""
    from farm.agents import agent_binary
    from farm.runtimes import host_platform

    return Check(name="agent", state="ok", found=str(agent_binary(host_platform())))


def check_gpu(runtime: Runtime) -> Check:
    """The adapter that `gpu` really runs on here, and the precision the canaries measure on it."""
    from farm.agents import agent_binary, agent_digest
    from farm.canary import Canaries
    from farm.configs import CONFIGS
    from farm.defaults import Limits
    from farm.objects import Objects
    from farm.plan import PlannedDevice
    from farm.runtimes import host_platform
    from farm.session import Session, Task
    from farm.transports.local import LocalTransport

    with tempfile.TemporaryDirectory(prefix="farm-doctor-") as folder:
        device = PlannedDevice(id="this-machine", transport="local")
        session = Session(device=device, transport=LocalTransport(), objects=Objects(Path(folder)), limits=Limits())
        session.open()
        try:
            digest = agent_digest(agent_binary(host_platform()))
            canaries = Canaries(session=session, agent_digest=digest, identity=None, cache=Path(folder))
            config = CONFIGS["gpu"]
            measured = canaries.measure(config, runtime)
            if measured.value == "unknown":
                cure = "GPU cells will read unsupported; for a software GPU: make lab-gpus, or install a Vulkan driver"
                return Check(name="gpu", state="warn", found=measured.evidence, cure=cure)
            task = Task(
                name="doctor",
                model=canaries.folder / "ok.tflite",
                model_sha256=_sha256(canaries.folder / "ok.tflite"),
                config=config,
                inputs=((_canary_input(session.objects),),),
                iterations=1,
                repeats=1,
                deadline_s=session.limits.gpu_first_timeout_s,
            )
            seen = session.observe(task, runtime)
        finally:
            session.close()
    adapter = seen.delegation.adapter or "an adapter that LiteRT does not name"
    api = seen.delegation.gpu_api or "API not named"
    return Check(name="gpu", state="ok", found=f"{adapter} ({api}), default precision {measured.value}")


def check_adb() -> Check:
    """adb for Android phones: the one on PATH, else the one inside adbutils (its arm64 builds bring none)."""
    try:
        import adbutils
    except ImportError as error:
        return Check(name="adb", state="warn", found=str(error), cure="pip install adbutils, to use Android phones")
    try:
        return Check(name="adb", state="ok", found=adbutils.adb_path())
    except adbutils.AdbError as error:
        cure = "install Android platform-tools (Debian: apt install adb), to use Android phones"
        return Check(name="adb", state="warn", found=str(error), cure=cure)


def check_folders() -> Check:
    """Cache and working folder: writable, with room."""
    from farm.caches import cache_root

    cache = cache_root()
    cures = {cache: "mend its owner, or set FARM_CACHE_DIR", Path.cwd(): "run from another folder, or give --out"}
    for folder, cure in cures.items():
        standing = next(p for p in (folder, *folder.parents) if p.exists())
        if not os.access(standing, os.W_OK):
            return Check(name="folders", state="fail", found=f"{standing} cannot be written", cure=cure)
    free = min(shutil.disk_usage(next(p for p in (f, *f.parents) if p.exists())).free for f in (cache, Path.cwd()))
    found = f"cache {cache}, {free / (1 << 30):.1f} GiB free"
    if free < LOW_DISK_BYTES:
        cure = "free some space: a run keeps its outputs, so that it can be judged again"
        return Check(name="folders", state="warn", found=found, cure=cure)
    return Check(name="folders", state="ok", found=found)


def _sha256(file: Path) -> str:
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()


def _canary_input(objects: Objects) -> str:
    from farm.canary import canary_input

    return objects.put_bytes(canary_input().tobytes())
