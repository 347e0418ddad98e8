"""The whole flow in one call: problems → plan → references → cells (with canaries) → verdicts → matrix and reports.

`sweep()` is what `farm sweep` calls and other programs import; `judge_run()` is its second half and needs no device.
Everything a user gave is checked before a device is touched or a run folder made.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.caches import prune_daily
from farm.cases import Case, ModelRequest
from farm.defaults import Limits
from farm.errors import FarmError, InvalidInput, NoSpace, Problem
from farm.objects import HeldObjects
from farm.plan import Plan, with_bands
from farm.prepare import prepare
from farm.runner import Progress, Runner, Stop
from farm.store import RunStore

if TYPE_CHECKING:
    from farm.inventory import Inventory
    from farm.judging import Predict
    from farm.report.matrix import Matrix, MatrixCell
    from farm.runtimes import Runtime
    from farm.session import Session

CLAIM_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep found; iterating gives its cells."""

    run_folder: Path
    matrix: Matrix
    interrupted: bool = False
    """The run was stopped before every cell was done; `resume=run_folder` finishes it."""
    damage: tuple[str, ...] = ()
    """What of the run folder could not be read, one sentence each."""

    @property
    def exit_code(self) -> int:
        """1 findings, 3 something could not be told, else 0."""
        return self.matrix.run.exit_code

    @property
    def all_passed(self) -> bool:
        """Nothing counted against the run and something really passed: a run of refusals alone has passed nothing."""
        counted = (cell for cell in self.matrix.cells if not cell.diagnostic and cell.known is None)
        return self.exit_code == 0 and any(cell.verdict in ("pass", "warn") for cell in counted)

    def __iter__(self) -> Iterator[MatrixCell]:
        return iter(self.matrix.cells)

    def __len__(self) -> int:
        return len(self.matrix.cells)


def sweep(
    models: Sequence[str | Path | ModelRequest] = (),
    *,
    inventory: str | Path | Inventory | None = None,
    devices: Sequence[str] | None = None,
    configs: Sequence[str] | None = None,
    inputs: Sequence[str | Path] | str | Path | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    runtime: Sequence[str] | str | None = None,
    signature: str | None = None,
    seed: int | None = None,
    repeats: int | None = None,
    iterations: int | None = None,
    min_cosine_similarity: float | None = None,
    min_norm: float | None = None,
    out: str | Path = "runs",
    resume: str | Path | None = None,
    retry_infra: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    stop: Stop | None = None,
    arrange: Callable[[Plan], Plan] | None = None,
    on_run: Callable[[RunStore], None] | None = None,
) -> SweepResult:
    """Run every model on every device in every config and judge the outputs.

    models: paths, or ModelRequests; none = the inventory's own. inputs: .npz / .safetensors files for all of them.
    input_shapes: input name or inN → shape. arrange: may put the plan's cells into another order. on_run: told of the
    run folder once it exists, before anything runs. retry_infra: a resumed run also tries those cells again
    whose device or link was lost; without it no finished cell is repeated.
    Raises InvalidInput, before anything runs, with every problem found.
    """
    stop = stop or Stop()
    if resume is not None:
        with RunStore.open(Path(resume)) as store:
            _claim(store)
            _check_resumable(store, retry_infra)
            if on_run is not None:
                on_run(store)
            return _run(store, _Host.find, progress, stop, retry_infra=retry_infra)
    held = HeldObjects(Path(out) / "objects")
    plan = prepare(
        models,
        inventory=inventory,
        devices=devices,
        configs=configs,
        inputs=inputs,
        input_shapes=input_shapes,
        runtime=runtime,
        signature=signature,
        seed=seed,
        repeats=repeats,
        iterations=iterations,
        min_cosine_similarity=min_cosine_similarity,
        min_norm=min_norm,
        limits=limits,
        out=out,
        held=held,
    )
    host = _Host.find()  # an agent that cannot be built, or no runtime, must leave nothing behind
    held.write()
    if arrange is not None:
        plan = arrange(plan)
    with RunStore.create(Path(out), plan) as store:
        if on_run is not None:
            on_run(store)
        return _run(store, lambda: host, progress, stop)


def judge_run(
    run: RunStore | str | Path,
    *,
    today: date | None = None,
    functions: bool = True,
    predict: Predict | None = None,
    bands: Mapping[str, Mapping[str, float]] | None = None,
) -> Matrix:
    """Judge what a run has observed so far and write its matrix and reports. Touches no device.

    functions: False does not run the Python functions that the run's `assertions:` name (a run from elsewhere).
    bands: other limits for this judging alone (kind or output name → limit → value); the kept plan stays as it is.
    predict: adds the hazards of failing cases to the run; only a sweep does so, as it takes CPU runs.
    """
    store = run if isinstance(run, RunStore) else RunStore.open(Path(run))
    from farm.judging import judge_store

    if bands:
        store.plan = with_bands(store.plan, bands)
    matrix = judge_store(store, today or date.today(), functions=functions, predict=predict)
    from farm.report import write_reports

    try:
        write_reports(matrix, store.folder)
    except OSError as e:
        again = f"then `farm judge {store.folder}` writes them from what is kept"
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"no space left for the reports in {store.folder}; make some, {again}") from e
        raise FarmError(f"{store.folder}: the reports cannot be written: {e.strerror or e}; mend that, {again}") from e
    return matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    """What references need of this machine."""

    runtime: Runtime
    agent_digest: str

    @classmethod
    def find(cls) -> _Host:
        """Find the runtime and find or build the agent. Raises BuildError, or InvalidInput if there is no runtime."""
        from farm.agents import agent_binary, agent_digest
        from farm.runtimes import find_runtime, host_platform

        runtime = find_runtime(None, host_platform())
        return cls(runtime=runtime, agent_digest=agent_digest(agent_binary(host_platform())))


def _claim(store: RunStore) -> None:
    """Become the run's only writer. Raises InvalidInput if another process is.

    A farm killed while it was starting an agent leaves its lock to that child until the child has become the agent,
    which takes milliseconds: so the claim is tried again for a second.
    """
    end, tick = time.monotonic() + CLAIM_S, threading.Event()
    while time.monotonic() < end:
        with suppress(InvalidInput):
            return store.claim()
        tick.wait(0.02)
    return store.claim()


def _check_resumable(store: RunStore, retry_infra: bool) -> None:
    """A run can only go on with the very files it began with. Raises InvalidInput."""
    done = store.finished(retry_infra=retry_infra)
    open_cases = {c.case for c in store.plan.cells if c.id not in done} | _without_reference(store)
    problems = []
    for case in store.plan.cases:
        if case.id not in open_cases or case.invalid is not None:
            continue
        path = Path(case.model_path)
        again = "give it back, or sweep again"
        try:
            same = _sha256(path) == case.model_sha256
        except OSError:
            problems.append(Problem(message="the run's model is gone", file=str(path), cure=again))
            continue
        if not same:
            problems.append(Problem(message="the run's model has changed since", file=str(path), cure=again))
        lacking = [a.name for s in case.input_sets for a in s.arrays if not store.objects.has(a.sha256)]
        if lacking:
            message = f"inputs of case '{case.id}' are gone: {', '.join(sorted(set(lacking)))}"
            problems.append(Problem(message=message, file=str(store.objects.root), cure="sweep again"))
    if problems:
        raise InvalidInput(problems)


def _without_reference(store: RunStore) -> set[str]:
    """Cases whose reference was lost, or never made: without it their cells have no verdict."""
    return {c.id for c in store.plan.cases if c.invalid is None} - store.references().keys()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _run(
    store: RunStore,
    host: Callable[[], _Host],
    progress: Progress | None,
    stop: Stop,
    *,
    retry_infra: bool = False,
) -> SweepResult:
    """References, then every unfinished cell, then the verdicts."""
    with _signals(stop):
        outcomes = store.finished(retry_infra=retry_infra)
        done = sum(c.id in outcomes for c in store.plan.cells)
        if progress is not None:
            progress.planned(len(store.plan.cells), done)
        if done < len(store.plan.cells) or _without_reference(store):
            _observe(store, host(), progress, stop, retry_infra)
        if progress is not None:
            progress.stage("judging")
        matrix = judge_run(store, predict=_predict(host, progress, stop))
    prune_daily()
    finished = store.outcomes()
    interrupted = any(c.id not in finished for c in store.plan.cells)
    return SweepResult(run_folder=store.folder, matrix=matrix, interrupted=interrupted, damage=tuple(store.damage))


def _predict(host: Callable[[], _Host], progress: Progress | None, stop: Stop) -> Predict:
    """Nothing is found, built or imported for it unless a case failed in FP16."""

    def predict(store: RunStore, cases: Sequence[Case]) -> None:
        from farm.predict import Predictor

        def found() -> tuple[Runtime, str]:
            here = host()
            return here.runtime, here.agent_digest

        stage = progress.stage if progress is not None else lambda _words: None
        Predictor(host=found, stop=stop, stage=stage)(store, cases)

    return predict


def _observe(store: RunStore, host: _Host, progress: Progress | None, stop: Stop, retry_infra: bool) -> None:
    from farm.canary import measure_device

    _keep_environment(store)
    _make_references(store, host, progress, stop)

    def prepare_device(session: Session, runtimes: Callable[[str], Runtime]) -> None:
        mine = [c for c in store.plan.cells if c.device == session.device.id]
        wanted = dict.fromkeys((c.runtime, c.config) for c in mine)
        configs = {c.name: c for c in store.plan.configs}
        pairs = [(configs[config], runtimes(runtime)) for runtime, config in wanted]
        _keep_software(store, session, [runtime for _, runtime in pairs])
        store.write_precision(session.device.id, measure_device(session, pairs, stopped=lambda: stop.draining))

    Runner(store=store, stop=stop, progress=progress, prepare=prepare_device, retry_infra=retry_infra).run()


def _keep_environment(store: RunStore) -> None:
    """What farm runs on goes into the run folder, where records find it."""
    from farm.environment import current_environment, joined

    now, before = current_environment(), store.environment()
    store.write_environment(now if before is None else joined(before, now))


def _keep_software(store: RunStore, session: Session, runtimes: Sequence[Runtime]) -> None:
    """Which agent and which runtime files a device gets, by digest."""
    from farm.agents import agent_digest, agent_version
    from farm.outcome import DeviceSoftware, RuntimeFiles

    given = {
        r.name: RuntimeFiles(
            version=r.version, origin=r.origin, files={name: sha256 for name, (sha256, _) in r.files.items()}
        )
        for r in runtimes
    }
    store.write_software(
        session.device.id,
        DeviceSoftware(
            platform=session.platform,
            agent_version=agent_version(),
            agent_sha256=agent_digest(session.find_agent(session.platform)),
            runtimes=given,
        ),
    )


def _make_references(store: RunStore, host: _Host, progress: Progress | None, stop: Stop) -> None:
    """Every reference that is not in the run folder yet; nothing else runs meanwhile, so they may use two processes."""
    from farm.plan import PlannedDevice
    from farm.reference import References
    from farm.runner import open_transport

    have = {name for name, reference in store.references().items() if reference.failure is None}
    here = PlannedDevice(id="reference", transport="local")
    maker = References(
        objects=store.objects,
        limits=store.plan.limits,
        runtime=host.runtime,
        agent_digest=host.agent_digest,
        connect=lambda: open_transport(here),
        stop=stop,
    )
    _import_meanwhile("farm.judging")
    try:
        for case in store.plan.cases:
            if stop.draining:
                return
            if case.invalid is not None or case.id in have:
                continue
            if progress is not None:
                progress.stage(f"reference of {case.id}")
            reference = maker.get(case)
            if reference.failure is not None and reference.failure.infra and stop.draining:
                return
            store.write_reference(reference)
    finally:
        maker.close()


def _import_meanwhile(module: str) -> None:
    """Import what is needed later while agents run and Python idles.

    Begun with the references, whose latency nobody reports, it is over before a GPU cell has compiled. The module must
    share no package of ours with what sessions import later: two threads inside one package's import may deadlock.
    """
    if (os.cpu_count() or 1) > 1:
        threading.Thread(target=importlib.import_module, args=(module,), name="imports", daemon=True).start()


@contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """Have SIGINT and SIGTERM drain the run (twice: end it now). Only the main thread may do so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, lambda *_: stop.request())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class _Callable(types.ModuleType):
    """Importing this module makes it the attribute `farm.sweep`, so that name must be callable like the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> SweepResult:
        return sweep(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
