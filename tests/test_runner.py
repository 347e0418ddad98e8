"""A plan becomes a journal, whatever goes wrong: real processes of the real agent, a stand-in runtime for faults."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from farm.defaults import Limits
from farm.errors import DeviceUnavailable
from farm.outcome import Outcome
from farm.plan import Cell, PlannedDevice
from farm.runner import Runner, Stop, host_of, open_transport
from farm.runtimes import Runtime
from farm.store import RunStore
from farm.transports.base import Completed
from farm.transports.local import LocalTransport
from tests.spinekit import fake_runtime, new_run

QUICK = Limits(iterations=1, repeats=1, cpu_timeout_s=20, gpu_timeout_s=20, gpu_first_timeout_s=20)


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return fake_runtime(tmp_path_factory.mktemp("fakert"))


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    # The stand-in runtime looks at the file's name only.
    paths = [tmp_path / f"{name}.tflite" for name in ("a", "b")]
    for path in paths:
        path.write_bytes(b"\x1c\x00\x00\x00TFL3" + path.stem.encode())
    return paths


def device(name: str = "here", **env: str) -> PlannedDevice:
    return PlannedDevice(id=name, transport="local", env=env)


class Watch:
    """Progress that keeps what it was told and may act on it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.at_start = threading.Event()

    def planned(self, cells: int, done: int = 0) -> None: ...
    def stage(self, words: str) -> None: ...

    def started(self, cell: Cell) -> None:
        self.begun.append(cell.id)
        self.at_start.set()

    def finished(self, cell: Cell, outcome: Outcome) -> None:
        self.ended.append(cell.id)


def run(store: RunStore, fake: Runtime, **more: object) -> dict[str, Outcome]:
    Runner(store=store, find_runtime=lambda name, platform: fake, **more).run()  # type: ignore[arg-type]
    return store.outcomes()


def test_every_cell_gets_an_outcome_with_outputs_log_and_latency(
    tmp_path: Path, models: list[Path], fake: Runtime
) -> None:
    store = new_run(tmp_path / "runs", models, configs=("cpu", "gpu"), limits=QUICK)
    watch = Watch()
    outcomes = run(store, fake, progress=watch)
    assert set(outcomes) == {c.id for c in store.plan.cells} == set(watch.ended)
    for cell, outcome in outcomes.items():
        assert outcome.failure is None
        assert outcome.result is not None
        (done,) = outcome.result.runs
        assert len(done.latency_ms) >= 1
        assert store.objects.load(done.outputs[0].sha256, "float32", (1, 16)).shape == (1, 16)
        assert (store.cell_folder(cell) / "log.txt").is_file()
        assert (store.cell_folder(cell) / "result.json").is_file()
    assert not any((store.objects.root / ".jobs").iterdir())


@pytest.mark.parametrize(
    ("fault", "code", "stage"),
    [("crash", "CRASH", "compile"), ("abort", "CRASH", "compile"), ("hang", "TIMEOUT", "warmup")],
)
def test_a_fault_of_the_runtime_is_the_models_and_is_not_tried_again(
    tmp_path: Path, models: list[Path], fake: Runtime, fault: str, code: str, stage: str
) -> None:
    limits = dataclasses.replace(QUICK, cpu_timeout_s=1)
    store = new_run(tmp_path / "runs", models[:1], devices=[device(FAKERT=fault)], limits=limits)
    (outcome,) = run(store, fake).values()
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.stage, outcome.failure.infra) == (code, stage, False)
    assert outcome.attempts == 1


def test_a_device_that_cannot_be_reached_gives_its_reason_to_all_its_cells_and_costs_others_nothing(
    tmp_path: Path, models: list[Path], fake: Runtime
) -> None:
    class Unplugged(LocalTransport):
        # A stand-in for a phone that is not authorised: there is no way to have this machine refuse itself.
        def connect(self, timeout: float) -> None:
            raise DeviceUnavailable("unauthorized: accept the key on the phone's screen")

    store = new_run(tmp_path / "runs", models, devices=[device("gone"), device("good")], limits=QUICK)
    outcomes = run(store, fake, connect=lambda d: Unplugged() if d.id == "gone" else open_transport(d))
    gone = [o for cell, o in outcomes.items() if cell.startswith("gone")]
    good = [o for cell, o in outcomes.items() if cell.startswith("good")]
    assert len(gone) == len(good) == 2
    for outcome in gone:
        assert outcome.failure is not None
        assert outcome.failure.code == "DEVICE_UNAVAILABLE"
        assert "accept the key" in outcome.failure.message
    assert all(o.failure is None for o in good)


def test_a_lost_process_is_tried_again_and_the_attempts_are_counted(
    tmp_path: Path, models: list[Path], fake: Runtime
) -> None:
    class LossyOnce(LocalTransport):
        # A stand-in for a link that lost one answer; the agent itself really runs the second time.
        lost = False

        def run(self, argv, timeout, **more):  # type: ignore[no-untyped-def]
            if not self.lost and argv[0].endswith("litert_agent"):
                self.lost = True
                return Completed(exit_status=None, stdout=b"@stage run 1\n", stderr=b"", wall_s=0.0)
            return super().run(argv, timeout, **more)

    store = new_run(tmp_path / "runs", models[:1], limits=QUICK)
    (outcome,) = run(store, fake, connect=lambda d: LossyOnce(d.env)).values()
    assert outcome.failure is None
    assert outcome.attempts == 2


def test_trouble_around_the_model_ends_after_the_last_attempt(
    tmp_path: Path, models: list[Path], fake: Runtime
) -> None:
    class Lossy(LocalTransport):
        # As above, for ever.
        def run(self, argv, timeout, **more):  # type: ignore[no-untyped-def]
            return Completed(exit_status=None, stdout=b"", stderr=b"", wall_s=0.0)

    store = new_run(tmp_path / "runs", models[:1], limits=dataclasses.replace(QUICK, attempts=3))
    (outcome,) = run(store, fake, connect=lambda d: Lossy(d.env)).values()
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.infra, outcome.attempts) == ("DEVICE_LOST", True, 3)


def test_finished_cells_are_not_run_again(tmp_path: Path, models: list[Path], fake: Runtime) -> None:
    store = new_run(tmp_path / "runs", models, limits=QUICK)
    run(store, fake)
    watch = Watch()
    run(store, fake, progress=watch)
    assert watch.begun == []


def test_a_damaged_model_costs_no_process(tmp_path: Path, models: list[Path], fake: Runtime) -> None:
    store = new_run(tmp_path / "runs", models[:1], limits=QUICK)
    broken = dataclasses.replace(store.plan.cases[0], invalid="table Model at 28 runs past the end")
    store.plan = dataclasses.replace(store.plan, cases=(broken,))
    (outcome,) = run(store, fake).values()
    assert outcome.failure is not None
    assert outcome.failure.code == "INVALID_MODEL"
    assert "past the end" in outcome.failure.message


def test_draining_finishes_the_cell_in_flight_and_starts_no_other(
    tmp_path: Path, models: list[Path], fake: Runtime
) -> None:
    stop = Stop()

    class StopAtFirst(Watch):
        def started(self, cell: Cell) -> None:
            super().started(cell)
            stop.request()

    store = new_run(tmp_path / "runs", models, limits=QUICK)
    watch = StopAtFirst()
    outcomes = run(store, fake, progress=watch, stop=stop)
    assert list(outcomes) == watch.begun == watch.ended == [store.plan.cells[0].id]


def test_the_second_stop_ends_at_once_and_leaves_the_cell_unfinished(
    tmp_path: Path, models: list[Path], fake: Runtime
) -> None:
    stop, watch = Stop(), Watch()
    store = new_run(tmp_path / "runs", models, devices=[device(FAKERT="hang")], limits=QUICK)
    thread = threading.Thread(target=lambda: run(store, fake, progress=watch, stop=stop))
    thread.start()
    assert watch.at_start.wait(10)
    stop.request()
    stop.request()
    thread.join(10)
    assert not thread.is_alive()
    assert store.outcomes() == {}


def test_a_runtime_that_does_not_exist_for_the_platform_is_named_in_the_cells(
    tmp_path: Path, models: list[Path]
) -> None:
    store = new_run(tmp_path / "runs", models[:1], limits=QUICK, runtime="litert-0.0.1")
    Runner(store=store).run()
    (outcome,) = store.outcomes().values()
    assert outcome.failure is not None
    assert outcome.failure.infra
    assert "0.0.1" in outcome.failure.message


def test_devices_of_one_machine_share_a_turn_and_phones_do_not() -> None:
    ssh = PlannedDevice(id="m1", transport="ssh", address={"host": "lab"})
    assert host_of(device("x")) == host_of(device("y"))
    assert host_of(ssh) == host_of(dataclasses.replace(ssh, id="m2"))
    assert host_of(PlannedDevice(id="p", transport="adb", address={"serial": "1"})) is None
