"""The CPU reference of a case: this host, the same agent, XNNPACK on one thread in FP32, twice, plus the noise floor.

Sits between plan and judge; touches no device. References are cached by everything their numbers depend on, and a
cached one is used only while its outputs still have their hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farm.agent_protocol import AgentResult
from farm.caches import cache_root, used
from farm.cases import Case
from farm.codec import from_json, to_json, write_whole
from farm.configs import CONFIGS, KernelMode
from farm.defaults import Limits
from farm.errors import FarmError, InvalidInput
from farm.exposed import Lab, activations, index_scores, recomputed, same_outputs, with_floor
from farm.float_copy import float_copy
from farm.hazards import Stats
from farm.metrics import compare
from farm.objects import Objects
from farm.outcome import Failure, Reference
from farm.plan import PlannedDevice
from farm.rewrite import NotRewritable
from farm.runner import Stop, infra_failure, log_tail
from farm.session import Observation, Session, Task, case_task
from farm.tflite import InvalidModel, read_model
from farm.transports.base import Transport

if TYPE_CHECKING:
    from farm.runtimes import Runtime

FORMAT = 3
"""Part of the cache key: raise it when a reference run is made differently."""
FLOOR_KERNELS: tuple[KernelMode, ...] = ("reference", "builtin")
"""Kernels for the noise floor, the first that runs."""
SECOND_FILL = 0xA5
"""Output buffers of the second run start full of this byte: an output nobody writes then differs from the first."""
REDUCED_PRECISION = b"reduced_precision_support"
"""Metadata key by which a model lets XNNPACK compute in FP16 (tflite/tools/optimize/reduced_precision_metadata.h)."""


@dataclass(slots=True, kw_only=True)
class References:
    """Makes or finds references; one instance per run. `connect` opens a link to this machine."""

    objects: Objects
    limits: Limits
    runtime: Runtime
    agent_digest: str
    connect: Callable[[], Transport]
    stop: Stop = field(default_factory=Stop)
    cache: Path = field(default_factory=lambda: cache_root() / "references")
    _sessions: list[Session] = field(default_factory=list)

    def get(self, case: Case) -> Reference:
        """The reference of a valid case, from the cache if it is whole there. Raises no error of the model's."""
        entry = self.cache / f"{self._key(case)}.json"
        return self._cached(entry, case) or self._made(entry, case)

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._sessions.clear()

    def _task(self, case: Case) -> Task:
        # Warm-up and repeats as in a cell: a model that carries hidden state then shows the same step in both.
        return dataclasses.replace(
            case_task(case, CONFIGS["cpu"], self.limits, self.limits.cpu_timeout_s), iterations=1, threads=1
        )

    def _key(self, case: Case) -> str:
        task = self._task(case)
        depends = (
            FORMAT,
            case.model_sha256,
            case.signature,
            task.inputs,
            task.shapes,
            (task.steps, task.warmup, task.iterations, task.repeats),
            (self.runtime.name, sorted(self.runtime.files.items())),
            self.agent_digest,
            cpu_identity(),
        )
        return hashlib.sha256(to_json(depends)).hexdigest()

    def _cached(self, entry: Path, case: Case) -> Reference | None:
        try:
            kept = from_json(entry.read_bytes(), Reference)
            store = Objects(self.cache / "objects")
            for sha256 in _hashes(kept):
                with store.path(sha256).open("rb") as f:
                    if hashlib.sha256(f.read()).hexdigest() != sha256:
                        store.path(sha256).unlink(missing_ok=True)
                        return None
                _share(store, self.objects, sha256)
        except (OSError, ValueError, msgspec.DecodeError):
            return None
        used(entry)
        return dataclasses.replace(kept, case=case.id)

    def _made(self, entry: Path, case: Case) -> Reference:
        with _fp32_model(Path(case.model_path)) as model:
            task = dataclasses.replace(self._task(case), model=model)
            reference = self._whole(case, task)
            if reference.failure is None and case.graph is not None and case.graph.hybrid_ops:
                copy, note = self._float_copy(case, task, reference)
                reference = dataclasses.replace(reference, dequantised=copy, dequantised_note=note)
        if reference.first is not None and reference.failure is None:
            try:
                store = Objects(self.cache / "objects")
                for sha256 in _hashes(reference):
                    _share(self.objects, store, sha256)
                write_whole(entry, to_json(reference, indent=2), durable=False)
            except OSError:
                # A cache that cannot be written costs time, not truth.
                return reference
        return reference

    def activations(self, case: Case, *, deadline_s: float | None = None) -> dict[int, Stats]:
        """Figures of every float tensor of a case on this CPU, for hazards.py; tensor index → figures.

        deadline_s: for one run and for all of them, shorter than the CPU's own. Raises FarmError or OSError.
        """
        with _fp32_model(Path(case.model_path)) as model:
            task = self._task(case)
            end = task.deadline_s if deadline_s is None else min(task.deadline_s, deadline_s)
            task = dataclasses.replace(task, model=model, deadline_s=end, warmup=0)
            with self._lab(task) as lab:
                return activations(case, task, lab)

    def _whole(self, case: Case, task: Task) -> Reference:
        """The runs, what indices were chosen from, and large reductions recomputed."""
        reference = self._run(case, task)
        first, outputs = reference.first, case.graph.outputs if case.graph is not None else ()
        if first is None:
            return reference
        if any(o.index_source is not None for o in outputs):
            with self._lab(task) as lab:
                reference = dataclasses.replace(reference, index_scores=index_scores(case, task, first, lab))
        if not any(o.large_reduction for o in outputs):
            return reference
        with self._lab(task) as lab:
            found = recomputed(case, task, first, lab)
            if reference.floor is not None and not same_outputs(first, reference.floor):
                # The kernels of the floor sum in another order, and not always a better one.
                found = with_floor(case, _floor_task(task, reference.floor_note), found, reference.floor, lab)
        return dataclasses.replace(reference, recomputed=found)

    def _float_copy(self, case: Case, task: Task, plain: Reference) -> tuple[Reference | None, str]:
        """The reference of the float copy, or why there is none."""
        with tempfile.TemporaryDirectory(prefix="litert-farm-") as folder:
            path = Path(folder) / "float.tflite"
            try:
                data = float_copy(read_model(task.model))
                path.write_bytes(data)
            except (NotRewritable, InvalidInput, InvalidModel, MemoryError, OSError) as e:
                return None, f"no float copy could be made: {e or 'out of memory'}"
            copied = dataclasses.replace(task, model=path, model_sha256=hashlib.sha256(data).hexdigest())
            made = self._whole(case, copied)
        if made.first is None or made.failure is not None:
            said = made.failure.message if made.failure is not None else "no outputs"
            return None, f"the float copy did not run: {said}"
        near = _agreement(plain, made, self.objects)
        return dataclasses.replace(made, float_copy=True, plain_snr_db=near), ""

    @contextmanager
    def _lab(self, task: Task) -> Iterator[Lab]:
        """A session whose outputs are thrown away: exposed tensors may be many times larger than outputs."""
        self.objects.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".exposed-", dir=self.objects.root) as folder:
            store = Objects(Path(folder) / "objects")
            for sha256 in {sha for one in task.inputs for sha in one}:
                _share(self.objects, store, sha256)
            session = self._session(store)
            try:
                yield Lab(
                    observe=lambda task: self._tried(session, task),
                    objects=store,
                    kept=self.objects,
                    folder=Path(folder),
                )
            finally:
                session.close()

    def _run(self, case: Case, task: Task) -> Reference:
        """Two plain runs side by side (two fresh processes), then the floor run."""
        self._open()
        seconds: list[Observation] = []
        again = dataclasses.replace(task, fill=SECOND_FILL)
        other = threading.Thread(target=lambda: seconds.append(self._observe(1, again)), name="second reference")
        other.start()
        first = self._observe(0, task)
        other.join()
        for seen, which in ((first, "first"), (seconds[0], "second")):
            if seen.failure is not None:
                failure = dataclasses.replace(seen.failure, message=f"{which} reference run: {seen.failure.message}")
                return Reference(
                    case=case.id, first=None, second=None, floor=None, failure=failure, log_tail=log_tail(seen.log)
                )
        floor, note = self._floor(task)
        return Reference(
            case=case.id,
            first=first.result,
            second=seconds[0].result,
            floor=floor,
            floor_note=note,
            log_tail=log_tail(first.log),
        )

    def _floor(self, task: Task) -> tuple[AgentResult | None, str]:
        """Reference kernels, or else builtin ones: how far two right CPU answers lie apart."""
        notes: list[str] = []
        for mode in FLOOR_KERNELS:
            seen = self._observe(0, _floor_task(task, mode))
            if seen.failure is None:
                return seen.result, "; ".join([*notes, f"{mode} kernels"])
            notes.append(f"{mode} kernels failed: {seen.failure.message}")
        return None, "; ".join(notes)

    def _observe(self, which: int, task: Task) -> Observation:
        """One observation; trouble around the model is tried once more, then it is the reference's failure."""
        return self._tried(self._sessions[which], task)

    def _tried(self, session: Session, task: Task) -> Observation:
        seen = _lost("no attempt was made")
        for _ in range(self.limits.attempts):
            try:
                seen = session.observe(task, self.runtime)
            except FarmError as e:
                seen = Observation(result=None, failure=infra_failure(e), delegation=seen.delegation)
            if seen.failure is None or not seen.failure.infra or self.stop.draining:
                break
        return seen

    def _open(self) -> None:
        while len(self._sessions) < 2:
            self._sessions.append(self._session(self.objects))

    def _session(self, objects: Objects) -> Session:
        session = Session(
            device=PlannedDevice(id="reference", transport="local"),
            transport=self.connect(),
            objects=objects,
            limits=self.limits,
        )
        self.stop.watch(session)
        session.open()
        return session


def _floor_task(task: Task, note: str) -> Task:
    """The task with the kernels a floor note ends with."""
    mode = next(m for m in FLOOR_KERNELS if note.removesuffix(" kernels").endswith(m))
    config = dataclasses.replace(CONFIGS["cpu-ref"], kernel_mode=mode)
    # Numbers only: repeats of these slow kernels would cost minutes and tell nothing more.
    return dataclasses.replace(task, config=config, repeats=1)


def _lost(message: str) -> Observation:
    from farm.delegation import Delegation

    return Observation(
        result=None, failure=Failure(code="INFRA", message=message, infra=True), delegation=Delegation(level="none")
    )


def _hashes(reference: Reference) -> list[str]:
    whole = [r for r in (reference, reference.dequantised) if r is not None]
    results = [r for one in whole for r in (one.first, one.second, one.floor) if r is not None]
    runs = [run for r in results for run in r.runs]
    runs += [run for one in whole for reduction in one.recomputed for run in reduction.exact]
    runs += [run for one in whole for scores in one.index_scores for run in scores.runs]
    return sorted({sha for run in runs for o in run.outputs for sha in (o.sha256, *o.repeat_sha256)})


def _agreement(plain: Reference, copy: Reference, objects: Objects) -> tuple[float | None, ...]:
    """SNR in dB of the plain reference against its float copy for each output, worst input set; None: no floats."""
    assert plain.first is not None
    assert copy.first is not None
    other = {(run.set, run.step, o.index): o for run in plain.first.runs for o in run.outputs}
    worst: dict[int, float] = {}
    types = {info.index: info.dtype for info in copy.first.outputs}
    for run in copy.first.runs:
        for o in run.outputs:
            mate = other.get((run.set, run.step, o.index))
            if types.get(o.index) not in ("float32", "float16") or mate is None or mate.shape != o.shape:
                continue
            load = objects.load
            snr = compare(load(o.sha256, types[o.index], o.shape), load(mate.sha256, types[o.index], o.shape)).snr_db
            if snr is not None:
                worst[o.index] = min(snr, worst.get(o.index, snr))
    return tuple(worst.get(i) for i in range(max(types, default=-1) + 1))


def _share(source: Objects, target: Objects, sha256: str) -> None:
    """Have `target` keep an object of `source`: a hard link where the disks allow it, else a copy."""
    if target.has(sha256):
        return
    path = target.path(sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.parent / f".{sha256[:16]}.{secrets.token_hex(6)}"
    try:
        try:
            os.link(source.path(sha256), tmp)
        except OSError:
            shutil.copyfile(source.path(sha256), tmp)
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


@contextmanager
def _fp32_model(path: Path) -> Iterator[Path]:
    """The model, or where its metadata allows XNNPACK reduced precision, a copy whose metadata key is misspelt.

    XNNPACK has a flag to force FP16 but none to forbid it; without the key it stays in FP32. No offset changes.
    """
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(REDUCED_PRECISION)
        if at < 0:
            yield path
            return
        plain = data[:].replace(REDUCED_PRECISION, b"_" + REDUCED_PRECISION[1:])
    with tempfile.TemporaryDirectory(prefix="litert-farm-") as folder:
        copy = Path(folder) / "model.tflite"
        copy.write_bytes(plain)
        yield copy


def cpu_identity() -> str:
    """What XNNPACK chooses its kernels by: a cache on a shared home must not serve another processor's numbers."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    first: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in wanted:
            first.setdefault(key.strip(), value.strip())
    return f"{platform.machine()} {sorted(first.items())}"
