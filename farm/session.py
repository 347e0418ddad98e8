"""One visit to one device: connect, probe, provision, run agent processes, harvest, clean.

The runner, the references and the canaries all go through `Session.observe`: one Task in, one Observation out. A
session belongs to one thread; only `close` may come from another. Link failures leave it as InfraError, everything
about the model as a Failure inside the Observation.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.agent_protocol import AgentResult, Job, RunData, job_argv, job_file, read_result
from farm.cases import Case
from farm.classify import classify, last_stage, refused
from farm.configs import Config
from farm.defaults import Limits
from farm.delegation import Delegation, parse_log, refused_ops
from farm.errors import DeviceLost, DeviceUnavailable, InfraError
from farm.lease import TTL_S, Lease, new_owner
from farm.objects import Objects
from farm.outcome import Failure
from farm.place import Place, Ran, RemotePlace, far_root, open_place
from farm.plan import PlannedDevice
from farm.transports.base import Completed, Transport

if TYPE_CHECKING:
    from farm.runtimes import Runtime

GRACE_S = 10.0
"""Our deadline lies this much above the agent's own, which therefore speaks first and names the stage."""
LEAVE_S = 10.0
"""How long a visit that was cut may take to end its job and give the lease back."""
ARGV_LIMIT = 16 << 10
"""Bytes of argv from which the job travels as a file: adb shells take 32 KiB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One (model, signature, config, inputs) to run in fresh agent processes.

    inputs[set][i]: sha256, in the object store, of the raw bytes of signature input i.
    steps: inference steps per set of a stateful model, each set in its own process; else 0.
    fill: byte the agent writes over every output buffer before the first run, so that an output nobody writes shows.
    """

    name: str
    model: Path
    model_sha256: str
    config: Config
    signature: int = 0
    inputs: tuple[tuple[str, ...], ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    steps: int = 0
    warmup: int = 1
    iterations: int = 5
    iterations_ms: int = 2000
    repeats: int = 3
    threads: int = 1
    deadline_s: float = 120.0
    fill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one Task gave. Outputs that `result` names lie in the object store. `log`: runtime and driver words."""

    result: AgentResult | None
    failure: Failure | None
    delegation: Delegation
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """What one agent process gave."""

    result: AgentResult | None
    failure: Failure | None
    log: str


def case_task(case: Case, config: Config, limits: Limits, deadline_s: float) -> Task:
    """The Task of a planned cell."""
    return Task(
        name=case.id,
        model=Path(case.model_path),
        model_sha256=case.model_sha256,
        config=config,
        signature=case.signature,
        inputs=tuple(tuple(a.sha256 for a in s.arrays) for s in case.input_sets),
        shapes=case.shapes,
        steps=limits.steps if case.graph is not None and case.graph.stateful else 0,
        warmup=limits.warmup,
        iterations=limits.iterations,
        iterations_ms=limits.iterations_ms,
        repeats=limits.repeats,
        threads=limits.threads,
        deadline_s=deadline_s,
    )


def _build_agent(platform: str) -> Path:
    from farm.agents import agent_binary

    return agent_binary(platform)


@dataclass(slots=True, kw_only=True)
class Session:
    """A visit. `transport` need not be connected yet.

    owner: shared by all sessions of one farm process (lease.new_owner). shared: another session of it uses the same
    machine, so the lease is given back by whoever leaves last; `leave` asks it. stopped: is the run being ended?
    """

    device: PlannedDevice
    transport: Transport
    objects: Objects
    limits: Limits
    find_agent: Callable[[str], Path] = _build_agent
    owner: str = field(default_factory=new_owner)
    shared: Callable[[], bool] = lambda: False
    stopped: Callable[[], bool] = lambda: False
    facts: dict[str, Any] = field(default_factory=dict)
    _agent: Path | None = None
    _place: Place | None = None
    _lease: Lease | None = None
    _tidied: bool = False
    _closed: bool = False

    def open(self) -> Mapping[str, Any]:
        """Connect, probe, take the lease; the facts. Raises InfraError. Calling it again after a loss reconnects."""
        from farm.probe import probe

        self._place = None
        self.transport.connect(self.limits.connect_timeout_s)
        if not self.facts:
            self.facts = dict(probe(self.transport, 3 * self.limits.connect_timeout_s))
        if not self.transport.shares_filesystem:
            self._take_lease()
        place = open_place(self.transport, self.objects, timeout=self.limits.connect_timeout_s, owner=self.owner)
        if isinstance(place, RemotePlace) and not self._tidied:
            place.tidy()
            self._tidied = True
        self._place = place
        return self.facts

    def _take_lease(self) -> None:
        """Become the device's only user. Raises DeviceUnavailable naming who is, LeaseLost if it was ours before."""
        lease = self._lease
        if lease is not None:
            return lease.renew()
        limits = self.limits
        lease = Lease(
            self.transport,
            far_root(self.transport, limits.connect_timeout_s),
            nonce=self.owner,
            timeout_s=limits.connect_timeout_s,
        )
        lease.take(limits.lease_wait_s, stopped=self.stopped)
        self._lease = lease
        return None

    def leave(self, *, clean: bool = False) -> None:
        """End the visit in good order, as far as the device still answers: lease back, nothing of ours running.

        clean: also remove everything farm keeps there.
        """
        place, lease = self._place, self._lease
        try:
            if lease is not None:
                if self._closed:  # cut by another thread: the agent it ran may still be at work
                    self.transport.connect(LEAVE_S)
                last = not self.shared()
                if isinstance(place, RemotePlace) and last and (self._closed or clean):
                    lease.renew()
                    place.end_all()
                    if clean:
                        place.remove_all()
                        lease.token = None
                elif isinstance(place, RemotePlace):
                    place.flush()
                if last:
                    lease.free()
        except InfraError:
            # The lease runs out by itself, and the next visit ends what is left.
            return
        finally:
            self._lease = self._place = None
            self.transport.close()

    @property
    def platform(self) -> str:
        """E.g. "linux-x86_64"; names the agent and runtime this device needs."""
        platform = self.facts.get("platform")
        if not isinstance(platform, str):
            raise DeviceUnavailable("probing did not tell the platform, so no agent fits", device=self.device.id)
        return platform

    def close(self) -> None:
        """End the visit now. Safe from another thread: whoever waits gets DeviceLost."""
        self._closed = True
        self.transport.close()

    def observe(self, task: Task, runtime: Runtime) -> Observation:
        """Run a Task. A GPU config asks for the GPU alone; if some ops are refused, once more with CPU fallback."""
        wanted = task.config.accelerator
        first = self._run(task, runtime, (wanted,))
        seen = self._observation(first, (wanted,))
        if wanted != "gpu" or not refused(seen.failure, seen.log):
            return _without_silent_cpu(seen, wanted)
        assert seen.failure is not None
        second = self._observation(self._run(task, runtime, ("gpu", "cpu")), ("gpu", "cpu"))
        return _with_fallback(seen.failure, seen, second)

    def _observation(self, process: _Process, accelerators: tuple[str, ...]) -> Observation:
        return Observation(
            result=process.result,
            failure=process.failure,
            delegation=parse_log(process.log, process.result, accelerators),
            log=process.log,
        )

    def _run(self, task: Task, runtime: Runtime, accelerators: tuple[str, ...]) -> _Process:
        """All input sets: in one process, or for stateful models in one process each, merged."""
        if not task.steps or len(task.inputs) <= 1:
            return self._run_process(task, runtime, accelerators, task.inputs)
        merged: _Process | None = None
        for number, inputs in enumerate(task.inputs):
            one = self._run_process(task, runtime, accelerators, (inputs,))
            if one.result is None or one.failure is not None:
                return one
            merged = one if merged is None else _merge(merged, one, number)
        assert merged is not None
        return merged

    def _run_process(
        self, task: Task, runtime: Runtime, accelerators: tuple[str, ...], inputs: tuple[tuple[str, ...], ...]
    ) -> _Process:
        if self._place is None:
            raise DeviceUnavailable("the device is not connected", device=self.device.id)
        place = self._place
        self._agent = self._agent or self.find_agent(self.platform)
        agent = place.agent(self._agent)
        library, runtime_dir = place.runtime(runtime)
        model = place.model(task.model, task.model_sha256)
        files = tuple(tuple(place.input(sha256) for sha256 in one) for one in inputs)
        nonce = secrets.token_hex(16)
        folder = place.open_job(nonce)
        try:
            job = Job(
                nonce=nonce,
                library=library,
                runtime_dir=runtime_dir,
                model=model,
                out_dir=folder,
                result=f"{folder}/result.json",
                log=f"{folder}/log.txt",
                accelerators=accelerators,
                signature=task.signature,
                precision=task.config.precision,
                backend=task.config.backend,
                kernel_mode=task.config.kernel_mode,
                xnnpack_flags=task.config.xnnpack_flags,
                gpu_options=task.config.gpu_options,
                threads=task.threads,
                inputs=files,
                shapes=task.shapes,
                warmup=0 if task.steps else task.warmup,
                iterations=task.iterations,
                iterations_ms=task.iterations_ms,
                repeats=task.repeats,
                steps=task.steps,
                deadline_s=task.deadline_s,
                fill=task.fill,
            )
            return self._await(place, agent, job, task)
        finally:
            self._clean(place, folder)

    def _await(self, place: Place, agent: str, job: Job, task: Task) -> _Process:
        argv = job_argv(agent, job)
        if sum(len(a) + 1 for a in argv) > ARGV_LIMIT:
            place.put(f"{job.out_dir}/job.txt", job_file(job))
            argv = [argv[0], argv[1], f"args={job.out_dir}/job.txt"]
        kills_before = self._oom_kills()
        limit = task.deadline_s + GRACE_S
        began = time.monotonic()
        try:
            guard = None if self._lease is None else (self._lease, limit + TTL_S)
            ran = place.execute(job.out_dir, argv, limit, self._env(job), guard)
        except DeviceLost as e:
            ran = self._rejoin(place, job.out_dir, e, limit - (time.monotonic() - began))
        log = ran.log.decode("utf-8", "replace")
        result, refusal = _accept(ran.result, job.nonce)
        if refusal:
            return _Process(
                result=None,
                failure=Failure(code="INFRA", message=f"the result was refused: {refusal}", infra=True),
                log=log,
            )
        if result is None and ran.late is not None and not self.transport.shares_filesystem:
            # Behind a link a late answer may be the link's fault; only the agent's own progress lines prove otherwise.
            stage = last_stage(ran.late.output.encode())
            if not stage:
                raise ran.late
            return _Process(
                result=None,
                failure=Failure(code="TIMEOUT", message=f"killed after {limit:g} s in stage '{stage}'", stage=stage),
                log=log,
            )
        oom = result is None or result.signal != 0
        failure = classify(
            result,
            ran.completed,
            log if log else _words(ran.completed),
            accelerator=task.config.accelerator,
            deadline_s=task.deadline_s + GRACE_S,
            oom_killed=oom and self._oom_kills() > kills_before,
        )
        if result is not None and failure is None:
            self._harvest(place, job, result)
        return _Process(result=result, failure=failure, log=log)

    def _rejoin(self, place: Place, folder: str, lost: DeviceLost, left_s: float) -> Ran:
        """Connect again and wait for the agent, which runs on without a link. Raises `lost` if that is in vain."""
        if not isinstance(place, RemotePlace) or self._closed:
            raise lost
        end = time.monotonic() + 3 * self.limits.connect_timeout_s
        pause = threading.Event()
        while True:
            try:
                self.transport.connect(self.limits.connect_timeout_s)
                break
            except InfraError:
                if self._closed or self.stopped() or time.monotonic() > end:
                    raise lost from None
                pause.wait(0.5)
        before, now = self.facts.get("boot_id"), boot_id(self.transport, self.limits.connect_timeout_s)
        if before and now and before != now:
            raise DeviceLost(f"the device restarted while the agent ran ({lost})") from lost
        if self._lease is not None:
            self._lease.renew(max(0.0, left_s) + TTL_S)
        return place.rejoin(folder, max(1.0, left_s))

    def _harvest(self, place: Place, job: Job, result: AgentResult) -> None:
        for run in result.runs:
            for output in run.outputs:
                files = {output.sha256: output.file}
                for repeat, name in output.repeat_files.items():
                    files.setdefault(output.repeat_sha256[int(repeat)], name)
                for sha256, name in files.items():
                    if not self.objects.has(sha256):
                        place.harvest(f"{job.out_dir}/{name}", sha256, output.size_bytes)

    def _clean(self, place: Place, folder: str) -> None:
        if self._closed:
            return
        try:
            place.close_job(folder)
        except InfraError:
            # The cell's own result or error matters more; leftovers are removed on the next visit.
            return

    def _env(self, job: Job) -> dict[str, str]:
        extra: dict[str, str] = {}
        if self.platform.startswith("android"):
            # Android's linker looks beside the executable only with this (LiteRT source_build_cc_api/README).
            extra["LD_LIBRARY_PATH"] = job.runtime_dir
        if self.transport.shares_filesystem:
            # The agent then dies with us (agents/PROTOCOL.md); a device's agent has its own deadline.
            extra["FARM_PARENT"] = str(os.getpid())
        return {**extra, **self.device.env}

    def _oom_kills(self) -> int:
        """The kernel's count of out-of-memory kills, 0 where it cannot be read (only asked on this machine)."""
        if not self.transport.shares_filesystem:
            return 0
        try:
            found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE)
        except OSError:
            return 0
        return int(found[1]) if found else 0


def boot_id(transport: Transport, timeout: float) -> str | None:
    """What changes with every start of the device, or None where it does not tell."""
    script = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid 2>/dev/null; :"
    return transport.run(["sh", "-c", script], timeout).stdout.decode("utf-8", "replace").strip() or None


def _accept(raw: bytes | None, nonce: str) -> tuple[AgentResult | None, str]:
    if raw is None:
        return None, ""
    try:
        return read_result(raw, nonce), ""
    except ValueError as e:
        return None, str(e)


def _words(completed: Completed | None) -> str:
    return "" if completed is None else completed.stderr.decode("utf-8", "replace")


def _merge(first: _Process, later: _Process, number: int) -> _Process:
    """One result of processes that each ran one input set: runs renumbered, peak memory the largest."""
    a, b = first.result, later.result
    assert a is not None
    assert b is not None
    runs: tuple[RunData, ...] = (*a.runs, *(dataclasses.replace(r, set=number) for r in b.runs))
    result = dataclasses.replace(
        a, runs=runs, total_ms=a.total_ms + b.total_ms, peak_rss_bytes=max(a.peak_rss_bytes, b.peak_rss_bytes)
    )
    return _Process(result=result, failure=None, log=f"{first.log}\n--- input set {number} ---\n{later.log}")


def _without_silent_cpu(seen: Observation, wanted: str) -> Observation:
    """Turn a success without any accelerator into a refusal: the CPU's numbers must never stand for a GPU's."""
    if wanted == "cpu" or seen.failure is not None or seen.delegation.level != "none":
        return seen
    ops = "; ".join(seen.delegation.cpu_ops)
    message = f"nothing ran on the {wanted.upper()}: the delegate took no op" + (f" ({ops})" if ops else "")
    return dataclasses.replace(seen, failure=Failure(code="UNSUPPORTED", message=message, stage="compile"))


def _with_fallback(refusal: Failure, alone: Observation, both: Observation) -> Observation:
    """Join a refused GPU-only run and its second try with CPU fallback, keeping the words of the refusal."""
    ops = both.delegation.cpu_ops or alone.delegation.cpu_ops or tuple(refused_ops(alone.log))
    delegation = dataclasses.replace(both.delegation, cpu_ops=ops)
    log = f"{alone.log}\n--- once more, with CPU fallback ---\n{both.log}"
    failure = both.failure
    if failure is None:
        # The GPU refused some ops a moment ago, so "full" can only be the words of the CPU delegate.
        if delegation.level == "full":
            delegation = dataclasses.replace(delegation, level="partial")
        seen = Observation(result=both.result, failure=None, delegation=delegation, log=log)
        return _without_silent_cpu(seen, "gpu")
    if (
        not failure.infra
        and failure.code in ("RUNTIME_ERROR", "UNSUPPORTED", "NO_ACCELERATOR")
        and failure.stage == "compile"
    ):
        failure = dataclasses.replace(refusal, message=f"{refusal.message}; with CPU fallback: {failure.message}"[:900])
        delegation = dataclasses.replace(delegation, level="none")
    return Observation(result=both.result, failure=failure, delegation=delegation, log=log)
