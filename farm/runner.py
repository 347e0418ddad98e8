"""Plan → journal: a thread per device runs its unfinished cells; whatever happens to a cell becomes one Outcome.

`infra` failures are tried again (`Limits.attempts`), failures of the model never. A device that cannot be reached
gives all its cells that reason and costs the others nothing. Cells of devices that share one machine run one at a
time, so that they do not spoil each other's latency.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from farm.cases import Case
from farm.codec import to_json
from farm.configs import Config
from farm.delegation import Delegation
from farm.errors import BuildError, DeviceLeased, DeviceUnavailable, FarmError, InfraError, InvalidInput, NoSpace
from farm.lease import new_owner
from farm.outcome import Failure, FailureCode, Outcome, Thermal
from farm.plan import Cell, Plan, PlannedDevice
from farm.recovery import lab_command, recover
from farm.sensors import Watch
from farm.session import Observation, Session, case_task
from farm.store import RunStore
from farm.transports.base import Transport

if TYPE_CHECKING:
    from farm.runtimes import Runtime
    from farm.transports.gateway import Gateways

ASIDE_S, ASIDE_MOST_S = 10.0, 300.0
"""How long a device that recovery could not bring back is set aside, at first and at most."""
LOG_TAIL_LINES = 40
LOG_TAIL_CHARS = 4000


class Progress(Protocol):
    """Told of every stage and cell, of cells from the device's own thread; must return at once and never raise."""

    def planned(self, cells: int, done: int = 0) -> None: ...
    def stage(self, words: str) -> None: ...
    def started(self, cell: Cell) -> None: ...
    def finished(self, cell: Cell, outcome: Outcome) -> None: ...


class Stop:
    """How a run ends early. `drain`: finish the cells in flight, start no other. `now`: also cut the links."""

    def __init__(self) -> None:
        self._drain, self._now = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._sessions: list[Session] = []

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    @property
    def immediate(self) -> bool:
        return self._now.is_set()

    def request(self) -> None:
        """First call drains, the second one stops at once (what SIGINT and SIGTERM do)."""
        if self._drain.is_set():
            self.now()
        self._drain.set()

    def now(self) -> None:
        self._drain.set()
        self._now.set()
        # No lock: this runs inside a signal handler of a thread that may hold it. Copying a list is atomic.
        for session in list(self._sessions):
            session.close()

    def watch(self, session: Session) -> None:
        """Have `now` close this session's link."""
        with self._lock:
            self._sessions.append(session)
        if self._now.is_set():
            session.close()


def open_transport(device: PlannedDevice, gateways: Gateways | None = None) -> Transport:
    """The link a device's inventory entry asks for; the name in YAML is the module's name.

    gateways: the run's connections to lab hosts, which phones behind them share; without it each gets its own.
    """
    if device.transport == "local":
        from farm.transports.local import LocalTransport

        return LocalTransport(device.env)
    if device.transport == "adb":
        from farm.transports import adb

        host = device.address.get("ssh")
        if host is None:
            return adb.open_transport(device)
        from farm.transports.gateway import Gateway

        return adb.open_transport(device, (gateways.of(host) if gateways is not None else Gateway(host)).dial)
    import importlib

    try:
        module = importlib.import_module(f"farm.transports.{device.transport}")
    except ModuleNotFoundError as e:
        raise DeviceUnavailable(
            f"this farm has no transport '{device.transport}'; use the farm that planned the run"
        ) from e
    link: Transport = module.open_transport(device)
    return link


def _find_runtime(name: str, platform: str) -> Runtime:
    from farm.runtimes import find_runtime

    return find_runtime(name, platform)


def host_of(device: PlannedDevice) -> str | None:
    """The machine whose processors a device shares with others of its kind, or None (a phone has its own)."""
    if device.transport == "local":
        return "local"
    if device.transport == "ssh":
        return device.address.get("host", device.id)
    return None


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs every cell of the store's plan that the journal does not hold yet.

    prepare: called once per device after probing, with its turn held and with the way to its runtimes by name.
    """

    store: RunStore
    stop: Stop = field(default_factory=Stop)
    progress: Progress | None = None
    prepare: Callable[[Session, Callable[[str], Runtime]], None] | None = None
    connect: Callable[[PlannedDevice], Transport] | None = None
    """How to reach a device, if not by `open_transport`."""
    find_runtime: Callable[[str, str], Runtime] = _find_runtime
    """(name, platform) → bundle."""
    owner: str = field(default_factory=new_owner)
    """Under which this run holds the leases of its devices."""
    retry_infra: bool = False
    """Whether cells that ended in `infra` are run once more."""

    def run(self) -> None:
        """Return when every device is done or stopped. Raises what is no cell's business, e.g. a full disk here."""
        if self.connect is not None:
            return self._run(self.connect)
        gateways: Gateways | None = None
        if any("ssh" in d.address for d in self.store.plan.devices):
            from farm.transports.gateway import Gateways

            gateways = Gateways()
        try:
            return self._run(functools.partial(open_transport, gateways=gateways))
        finally:
            if gateways is not None:
                gateways.close()

    def _run(self, connect: Callable[[PlannedDevice], Transport]) -> None:
        plan = self.store.plan
        done = self.store.finished(retry_infra=self.retry_infra)
        todo = {d.id: [c for c in plan.cells if c.device == d.id and c.id not in done] for d in plan.devices}
        locks: dict[str, threading.Lock] = {}
        visitors: Counter[str] = Counter(host_of(d) or d.id for d in plan.devices if todo[d.id])
        broken: list[BaseException] = []
        threads = []
        for device in plan.devices:
            if not todo[device.id]:
                continue
            host = host_of(device)
            lock = locks.setdefault(host, threading.Lock()) if host is not None else None
            work = _DeviceWork(
                runner=self,
                plan=plan,
                device=device,
                cells=todo[device.id],
                lock=lock,
                broken=broken,
                visitors=visitors,
                connect=connect,
            )
            threads.append(threading.Thread(target=work, name=f"device {device.id}"))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if broken:
            raise broken[0]


@dataclass(slots=True, kw_only=True)
class _DeviceWork:
    """One device's thread."""

    runner: Runner
    plan: Plan
    device: PlannedDevice
    cells: list[Cell]
    lock: threading.Lock | None
    broken: list[BaseException]
    visitors: Counter[str]
    """How many devices of this run are still at work on each machine; the last one gives its lease back."""
    connect: Callable[[PlannedDevice], Transport]
    seen: set[tuple[str, str]] = field(default_factory=set)
    """(model, config) pairs that compiled here before: their shaders are warm."""
    runtimes: dict[str, Runtime] = field(default_factory=dict)
    counted: bool = True
    """Is this device still among `visitors`?"""
    locked: bool = False
    aside: Failure | None = None
    """Why the device is set aside (quarantined), looked at again from `look_again` on."""
    look_again: float = 0.0
    pause_s: float = ASIDE_S

    def __call__(self) -> None:
        try:
            self._work()
        except BaseException as e:
            # The journal or run folder cannot be written: no cell can finish any more, on any device.
            self.broken.append(e)
            self.runner.stop.request()

    def _runtime(self, name: str, platform: str) -> Runtime:
        if name not in self.runtimes:
            try:
                self.runtimes[name] = self.runner.find_runtime(name, platform)
            except InvalidInput as e:
                # The plan only knows the name; that no such bundle exists for this platform shows at the device.
                raise BuildError(str(e)) from e
        return self.runtimes[name]

    def _turn(self) -> AbstractContextManager[object]:
        return self.lock if self.lock is not None else nullcontext()

    def _work(self) -> None:
        session: Session | None = None
        try:
            session, unusable = self._locked_open()
            self._cells(session, unusable)
        finally:
            self.visitors[host_of(self.device) or self.device.id] -= 1
            self.counted = False
            if session is not None:
                session.leave(clean=self.device.transient)
            if self.locked:
                self._release()

    def _locked_open(self) -> tuple[Session | None, Failure | None]:
        if self.device.lock:
            try:
                lab_command(self.device.lock, self.device, "acquire")
            except DeviceUnavailable as e:
                return None, infra_failure(e)
            self.locked = True
        return self._open()

    def _release(self) -> None:
        try:
            lab_command(self.device.lock, self.device, "release")
        except DeviceUnavailable as e:
            self._say(str(e))

    def _cells(self, session: Session | None, unusable: Failure | None) -> None:
        runner, store = self.runner, self.runner.store
        configs = {c.name: c for c in self.plan.configs}
        cases = {c.id: c for c in self.plan.cases}
        watch = None if session is None else self._watch(session)
        for cell in self.cells:
            if runner.stop.draining:
                break
            case, config = cases[cell.case], configs[cell.config]
            if runner.progress is not None:
                runner.progress.started(cell)
            began, clock = _now(), time.monotonic()
            attempts = 1
            thermal = Thermal()
            if case.invalid is not None:
                seen = _failed(Failure(code="INVALID_MODEL", message=case.invalid, stage="verify"))
            elif session is None or watch is None:
                assert unusable is not None
                seen = _failed(unusable)
            else:
                attempts, seen, thermal = self._visit(session, watch, cell, case, config)
            if runner.stop.immediate and seen.failure is not None and seen.failure.infra:
                break  # We cut the link ourselves: the cell is unfinished, not failed.
            outcome = Outcome(
                cell=cell.id,
                attempts=attempts,
                started=began,
                finished=_now(),
                wall_s=round(time.monotonic() - clock, 4),
                result=seen.result,
                failure=seen.failure,
                delegation=seen.delegation,
                log_tail=log_tail(seen.log),
                thermal=thermal,
            )
            _keep(store.cell_folder(cell.id), seen)
            store.append(outcome)
            if runner.progress is not None:
                runner.progress.finished(cell, outcome)

    def _visit(
        self, session: Session, watch: Watch, cell: Cell, case: Case, config: Config
    ) -> tuple[int, Observation, Thermal]:
        """One cell on a device that may be set aside, or hot."""
        if self.aside is not None:
            if time.monotonic() < self.look_again:
                return 1, _failed(self.aside), Thermal()
            try:
                session.open()
            except FarmError as e:
                self._set_aside(infra_failure(e))
                return 1, _failed(infra_failure(e)), Thermal()
            self._say("it answers again and is no longer set aside")
            self.aside, self.pause_s = None, ASIDE_S
        try:
            before = watch.before(lambda: self.runner.stop.draining)
        except DeviceUnavailable as e:
            return 1, _failed(infra_failure(e)), Thermal()
        attempts, seen = self._attempts(session, cell, case, config)
        return attempts, seen, watch.thermal(before)

    def _watch(self, session: Session) -> Watch:
        from farm.profiles import Safety, load_profiles, match_profile

        profiles = load_profiles()
        named = next((p for p in profiles if p.id == self.device.profile), None)
        profile = named or match_profile(session.facts, profiles)
        return Watch(
            transport=session.transport,
            safety=profile.safety if profile is not None else Safety(),
            timeout_s=self.plan.limits.connect_timeout_s,
            say=self._say,
        )

    def _set_aside(self, failure: Failure) -> None:
        """Quarantine: no cell waits for this device for a while, each one longer than the last."""
        self.aside = failure
        self.look_again = time.monotonic() + self.pause_s
        self._say(f"set aside for {self.pause_s:.0f} s: {failure.message}")
        self.pause_s = min(2 * self.pause_s, ASIDE_MOST_S)

    def _say(self, sentence: str) -> None:
        """Add a line to the device's own log."""
        try:
            with self.runner.store.device_folder(self.device.id).joinpath("log.txt").open("a", encoding="utf-8") as f:
                f.write(f"{_now()} {sentence}\n")
        except OSError:
            return  # what matters is in the journal, and a full disk shows there

    def _open(self) -> tuple[Session | None, Failure | None]:
        """The open session, or the reason that all cells of this device get."""
        runner = self.runner
        failure: Failure | None = None
        for attempt in range(self.plan.limits.attempts):
            if runner.stop.draining:
                break
            session = Session(
                device=self.device,
                transport=self.connect(self.device),
                objects=runner.store.objects,
                limits=self.plan.limits,
                owner=runner.owner,
                shared=lambda: self.visitors[host_of(self.device) or self.device.id] > self.counted,
                stopped=lambda: runner.stop.draining,
            )
            runner.stop.watch(session)
            try:
                self._first_contact(session)
                runner.store.write_facts(self.device.id, session.facts)
                if runner.prepare is not None:
                    with self._turn():
                        runner.prepare(session, functools.partial(self._runtime, platform=session.platform))
                return session, None
            except FarmError as e:
                session.leave()
                failure = infra_failure(e)
                if not e.retryable or runner.stop.draining or attempt + 1 == self.plan.limits.attempts:
                    break
        return None, failure

    def _first_contact(self, session: Session) -> None:
        """Open a session, with the lab's commands where it has some. Raises InfraError."""
        try:
            session.open()
        except InfraError as e:
            if isinstance(e, DeviceLeased) or not (self.device.usb_reset or self.device.reset):
                raise
            error = recover(session, say=self._say, stopped=lambda: self.runner.stop.draining)
            if error is not None:
                raise error from None

    def _attempts(self, session: Session, cell: Cell, case: Case, config: Config) -> tuple[int, Observation]:
        limits = self.plan.limits
        attempt = 0
        while True:
            attempt += 1
            try:
                seen = self._observe(session, cell, case, config)
            except FarmError as e:
                seen = _failed(infra_failure(e))
                again = e.retryable
            except Exception as e:  # one cell's trouble must not cost the others; it becomes the cell's record
                seen = _failed(Failure(code="INFRA", message=f"farm's own error: {type(e).__name__}: {e}", infra=True))
                again = False
            else:
                again = seen.failure is not None and seen.failure.infra
            if seen.failure is None or not seen.failure.infra:
                return attempt, seen
            self._say(f"{cell.id}: {seen.failure.code}: {seen.failure.message}")
            if not again or self.runner.stop.draining:
                return attempt, seen
            # The device is brought back also for the cells that follow.
            error = recover(session, say=self._say, stopped=lambda: self.runner.stop.draining)
            if error is not None:
                if not self.runner.stop.draining:
                    self._set_aside(infra_failure(error))
                return attempt, _failed(infra_failure(error))
            if attempt >= limits.attempts:
                return attempt, seen

    def _observe(self, session: Session, cell: Cell, case: Case, config: Config) -> Observation:
        limits = self.plan.limits
        warm = (case.model_sha256, config.name)
        deadline = limits.cpu_timeout_s
        if config.accelerator != "cpu":
            deadline = limits.gpu_timeout_s if warm in self.seen else limits.gpu_first_timeout_s
        runtime = self._runtime(cell.runtime, session.platform)
        with self._turn():
            seen = session.observe(case_task(case, config, limits, deadline), runtime)
        if seen.result is not None and seen.result.ok:
            self.seen.add(warm)
        return seen


def _keep(folder: Path, seen: Observation) -> None:
    """Leave the cell's log and result in its folder, for people."""
    try:
        folder.joinpath("log.txt").write_text(seen.log, encoding="utf-8", errors="replace")
        if seen.result is not None:
            folder.joinpath("result.json").write_bytes(to_json(seen.result, indent=2))
    except OSError as e:
        cure = "free some space, then --resume the run"
        raise NoSpace(f"cannot write the cell's log in {folder}: {e.strerror or e}; {cure}") from e


def infra_failure(error: FarmError) -> Failure:
    """An error around the model as a cell's record."""
    code: FailureCode = "INFRA"
    if isinstance(error, InfraError):
        code = error.code  # type: ignore[assignment]  # each class names one of FailureCode's words
    return Failure(code=code, message=str(error), infra=True)


def log_tail(log: str) -> str:
    """The last lines of a log, as kept in the journal."""
    return "\n".join(log.rstrip().splitlines()[-LOG_TAIL_LINES:])[-LOG_TAIL_CHARS:]


def _failed(failure: Failure) -> Observation:
    return Observation(result=None, failure=failure, delegation=Delegation())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
