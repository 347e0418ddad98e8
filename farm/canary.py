"""Three canary models tell which precision a config really computes in; no request is ever believed.

All three graphs give x² in exact arithmetic: `ok` is x·1·x; `underflow` is (x·1e-5)²·1e10, whose square FP16 cannot
hold; `overflow` is (x·1e4)²·1e-8. FP16 storage with FP32 arithmetic shows as errors near 2^-11 and nothing worse.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from farm.caches import cache_root, used
from farm.codec import from_json, to_json, write_whole
from farm.configs import Config
from farm.errors import FarmError
from farm.outcome import PrecisionClass
from farm.session import Session, Task

if TYPE_CHECKING:
    from farm.runtimes import Runtime

Value = Literal["fp32", "fp16-storage", "fp16", "unknown"]
NAMES = ("ok", "underflow", "overflow")
FORMAT = 1
FP32_ERROR = 1e-5
"""Largest relative error of FP32 here: four roundings of 2^-24 make 2.4e-7, and room for approximations."""
STORAGE_ERROR = 2e-2
"""Largest relative error of FP16 storage (four roundings of 2^-11: 2e-3) or bfloat16 storage (2^-8: 1.6e-2)."""


def canary_input() -> np.ndarray:
    """float32[1, 16], 0.1 … 2.0."""
    return np.linspace(0.1, 2.0, 16, dtype=np.float32).reshape(1, 16)


def classify(ok: np.ndarray | None, under: np.ndarray | None, over: np.ndarray | None) -> tuple[Value, str]:
    """The class and one sentence of evidence. Arrays: what the canaries gave for `canary_input`; None = did not run."""
    outputs = dict(zip(NAMES, (ok, under, over), strict=True))
    missing = [name for name, y in outputs.items() if y is None]
    if missing:
        return "unknown", f"canary {', '.join(missing)} did not run here"
    errors = {name: _error(y) for name, y in outputs.items() if y is not None}
    said = ", ".join(f"{name} {_say(outputs[name], error)}" for name, error in errors.items())
    if errors["ok"] > STORAGE_ERROR:
        return "unknown", f"even the plain canary is wrong: {said}"
    broken = [errors[name] > STORAGE_ERROR for name in ("underflow", "overflow")]
    if all(broken):
        return "fp16", f"FP16 arithmetic: {said}"
    if any(broken):
        return "unknown", f"the canaries contradict each other: {said}"
    if max(errors.values()) <= FP32_ERROR:
        return "fp32", f"FP32 arithmetic: {said}"
    return "fp16-storage", f"no under- or overflow, but rounded like FP16 storage: {said}"


def _error(y: np.ndarray) -> float:
    """Largest relative error against x²; infinite if anything is not finite."""
    want = np.square(canary_input().astype(np.float64)).ravel()
    got = y.astype(np.float64).ravel()
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.max(np.abs(got - want) / want))


def _say(y: np.ndarray | None, error: float) -> str:
    assert y is not None
    if np.isnan(y).any():
        return "gave NaN"
    if np.isinf(y).any():
        return "gave Inf"
    if not y.any():
        return "gave zeros"
    return f"is off by {error:.1g}"


@dataclass(slots=True, kw_only=True)
class Canaries:
    """Runs or finds the classes of one session's configs. identity: what the numbers depend on; None = never cache."""

    session: Session
    agent_digest: str
    identity: str | None
    cache: Path
    folder: Path = field(default_factory=lambda: Path(__file__).with_name("canaries"))

    def measure(self, config: Config, runtime: Runtime) -> PrecisionClass:
        """The class of one config. What did not run is `unknown`, with the reason, and is not cached."""
        entry = None if self.identity is None else self.cache / f"{self._key(config, runtime)}.json"
        if entry is not None:
            kept = _read(entry)
            if kept is not None:
                used(entry)
                return PrecisionClass(
                    device=self.session.device.id,
                    runtime=runtime.name,
                    config=config.name,
                    value=kept.value,
                    evidence=kept.evidence,
                )
        outputs, why = self._run(config, runtime)
        value, evidence = classify(*outputs)
        measured = PrecisionClass(
            device=self.session.device.id,
            runtime=runtime.name,
            config=config.name,
            value=value,
            evidence=f"{evidence}: {why}" if why else evidence,
        )
        if entry is not None and not why:
            try:
                write_whole(entry, to_json(measured), durable=False)
            except OSError:
                # A cache that cannot be written costs time, not truth.
                return measured
        return measured

    def _run(self, config: Config, runtime: Runtime) -> tuple[list[np.ndarray | None], str]:
        objects, limits = self.session.objects, self.session.limits
        x = canary_input()
        sha256 = objects.put_bytes(x.tobytes())
        outputs: list[np.ndarray | None] = []
        why = ""
        for name in NAMES:
            model = self.folder / f"{name}.tflite"
            task = Task(
                name=f"canary-{name}",
                model=model,
                model_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
                config=config,
                inputs=((sha256,),),
                warmup=0,
                iterations=1,
                repeats=1,
                threads=limits.threads,
                deadline_s=limits.cpu_timeout_s if config.accelerator == "cpu" else limits.gpu_first_timeout_s,
            )
            try:
                seen = self.session.observe(task, runtime)
            except FarmError as e:
                return [None, None, None], str(e)
            if seen.failure is not None or seen.result is None:
                why = seen.failure.message if seen.failure is not None else "no result"
                # What has no accelerator now has none for the next canary; a crash of one says nothing of the others.
                return [*outputs, *([None] * (3 - len(outputs)))], why
            if config.accelerator != "cpu" and seen.delegation.level == "partial":
                return [None, None, None], "the delegate left ops of a canary on the CPU"
            out = seen.result.runs[0].outputs[0]
            outputs.append(objects.load(out.sha256, "float32", out.shape))
        return outputs, why

    def _key(self, config: Config, runtime: Runtime) -> str:
        depends = (
            FORMAT,
            self.identity,
            config,
            sorted(runtime.files.items()),
            self.agent_digest,
            self.session.limits.threads,
            [hashlib.sha256((self.folder / f"{name}.tflite").read_bytes()).hexdigest() for name in NAMES],
        )
        return hashlib.sha256(to_json(depends)).hexdigest()


def measure_device(
    session: Session, pairs: Sequence[tuple[Config, Runtime]], *, stopped: Callable[[], bool] = lambda: False
) -> list[PrecisionClass]:
    """Measure every (config, runtime) of an open session; stops between two when `stopped` says so."""
    from farm.agents import agent_digest

    local = session.transport.shares_filesystem
    canaries = Canaries(
        session=session,
        agent_digest=agent_digest(session.find_agent(session.platform)),
        identity=local_identity(session.device.env) if local else remote_identity(session.facts, session.device.env),
        cache=cache_root() / "canaries",
    )
    return [canaries.measure(config, runtime) for config, runtime in pairs if not stopped()]


def _read(entry: Path) -> PrecisionClass | None:
    try:
        return from_json(entry.read_bytes(), PrecisionClass)
    except (OSError, msgspec.DecodeError):
        return None


def local_identity(env: Mapping[str, str]) -> str:
    """What this machine's numbers depend on: processor, kernel, driver files and the environment that chooses them.

    Driver libraries go by size and mtime; an upgrade changes both.
    """
    from farm.reference import cpu_identity

    both = {**os.environ, **env}
    choosing = {
        k: v for k, v in both.items() if k.startswith(("VK_", "MESA_", "LP_", "GALLIUM_", "LIBGL_", "OCL_", "DRI_"))
    }
    named = both.get("VK_ICD_FILENAMES") or both.get("VK_DRIVER_FILES")
    if named:
        manifests = [Path(p) for p in named.split(os.pathsep) if p]
    else:
        folders = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
        manifests = [p for folder in folders for p in sorted(Path(folder).glob("*.json"))]
    return repr((sorted(choosing.items()), [_stamp(m) for m in manifests], os.uname().release, cpu_identity()))


def _stamp(manifest: Path) -> tuple[Any, ...]:
    """A driver manifest and the library it names."""
    try:
        library = msgspec.json.decode(manifest.read_bytes())["ICD"]["library_path"]
        path = manifest.parent / library if "/" in library else _find_library(library)
        stat = path.stat() if path is not None else None
    except (OSError, KeyError, TypeError, msgspec.DecodeError):
        return (str(manifest), None)
    return (str(manifest), str(path), stat and (stat.st_size, stat.st_mtime_ns))


def _find_library(name: str) -> Path | None:
    folders: Sequence[Path] = [
        *Path("/usr/lib").glob("*-linux-gnu"),
        Path("/usr/lib64"),
        Path("/usr/lib"),
        Path("/usr/local/lib"),
    ]
    return next((f / name for f in folders if (f / name).exists()), None)


def remote_identity(facts: Mapping[str, Any], env: Mapping[str, str] | None = None) -> str | None:
    """What the numbers of a device behind a link depend on, or None if probing did not tell all of it.

    A phone's or a Mac's build holds its GPU driver; on Linux a driver is upgraded under the same build.
    """
    build = facts.get("os_build")
    if not build or str(facts.get("platform", "")).startswith("linux"):
        return None
    wanted = ("platform", "os", "os_build", "model", "machine", "soc", "cpu", "gpu", "driver")
    return repr(([(k, facts.get(k)) for k in wanted], sorted((env or {}).items())))
