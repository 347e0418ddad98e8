"""kill -9 loses at most the cell in flight; resuming finishes the run, repeats nothing and changes no verdict."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from farm.errors import InvalidInput
from farm.outcome import Failure, Outcome
from farm.plan import Cell
from farm.report.matrix import Matrix
from farm.store import RunStore
from farm.sweep import SweepResult, sweep
from tests import graphs

CHILD = """
import os, signal, sys, threading
from pathlib import Path
from farm.sweep import sweep

moment, out, *models = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Killer:
    cells = 0
    def planned(self, cells, done=0): ...
    def stage(self, words):
        if words.startswith(moment): die()
    def started(self, cell):
        self.cells += 1
        if moment == f"start {self.cells}": die()
        if moment == f"inside {self.cells}": threading.Timer(0.002, die).start()
    def finished(self, cell, outcome):
        if moment == f"end {self.cells}": die()

sweep(models, configs=["cpu"], out=out, progress=Killer())
print("survived")
"""
MOMENTS = ("reference of fc", "start 1", "inside 2", "end 2", "start 4", "inside 6", "end 6", "judging")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "resume-cache"))


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [graphs.write(tmp_path, "fc", graphs.fc_chain()), graphs.write(tmp_path, "cnn", graphs.tiny_cnn())]


class Counting:
    def __init__(self) -> None:
        self.begun: list[str] = []

    def planned(self, cells: int, done: int = 0) -> None: ...
    def stage(self, words: str) -> None: ...
    def finished(self, cell: Cell, outcome: Outcome) -> None: ...

    def started(self, cell: Cell) -> None:
        self.begun.append(cell.id)


def killed_sweep(moment: str, out: Path, models: list[Path]) -> Path:
    """Run a sweep in a process that gets SIGKILL at `moment`; the run folder it leaves behind."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, moment, str(out), *map(str, models)], capture_output=True, timeout=60, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    (run,) = (f for f in out.iterdir() if f.name != "objects")
    return run


def without_times(matrix: Matrix) -> list[dict[str, Any]]:
    """What a matrix says about the models: everything but clocks, memory and who ran when."""
    return [
        {
            "id": c.id,
            "verdict": c.verdict,
            "reasons": c.reasons,
            "outputs": c.outputs,
            "delegation": c.delegation,
            "precision": c.precision_class,
            "reference": c.reference,
        }
        for c in matrix.cells
    ]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    folder = tmp_path_factory.mktemp("undisturbed")
    models = [graphs.write(folder, "fc", graphs.fc_chain()), graphs.write(folder, "cnn", graphs.tiny_cnn())]
    return sweep(models, configs=["cpu"], out=folder / "runs")


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_a_run_resumes_without_repeating_a_finished_cell(
    tmp_path: Path, models: list[Path], undisturbed: SweepResult, moment: str
) -> None:
    run = killed_sweep(moment, tmp_path / "runs", models)
    finished = set(RunStore.open(run).outcomes())
    watch = Counting()
    result = sweep(resume=run, progress=watch)
    planned = [c.id for c in RunStore.open(run).plan.cells]
    assert watch.begun == [c for c in planned if c not in finished]
    assert not result.interrupted
    assert without_times(result.matrix) == without_times(undisturbed.matrix)
    assert result.exit_code == undisturbed.exit_code == 0


def test_the_cell_before_the_kill_is_kept(tmp_path: Path, models: list[Path]) -> None:
    run = killed_sweep("start 4", tmp_path / "runs", models)
    assert len(RunStore.open(run).outcomes()) == 3


def test_no_agent_outlives_a_killed_farm(tmp_path: Path) -> None:
    endless = graphs.write(tmp_path, "endless", graphs.while_loop(times=2_000_000_000))
    out = tmp_path / "runs"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, "never", str(out), str(endless)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        agents = _wait_for_agents(child.pid, 30)
    finally:
        child.kill()
        child.communicate(timeout=10)
    psutil.wait_procs(agents, timeout=5)
    assert len(agents) >= 2
    assert [p for p in psutil.process_iter() if _name(p) == "litert_agent" and str(out) in " ".join(p.cmdline())] == []


def _wait_for_agents(parent: int, limit_s: float) -> list[psutil.Process]:
    """The agent processes under `parent`, as soon as both reference runs go on.

    Nobody tells us when a grandchild starts, so it is looked for; an agent here computes for minutes.
    """
    end, tick = time.monotonic() + limit_s, threading.Event()
    found: list[psutil.Process] = []
    while len(found) < 2 and time.monotonic() < end:
        tick.wait(0.02)
        found = [p for p in psutil.Process(parent).children(recursive=True) if _name(p) == "litert_agent"]
    return found


def _name(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else str(process.name())
    except psutil.NoSuchProcess:
        return ""


def test_cells_whose_device_was_lost_are_tried_again_only_when_asked(tmp_path: Path, models: list[Path]) -> None:
    run = sweep(models, configs=["cpu"], out=tmp_path / "runs").run_folder
    with RunStore.open(run) as store:
        store.claim()
        lost = next(iter(store.outcomes().values()))
        failure = Failure(code="DEVICE_LOST", message="the cable fell out", infra=True)
        store.append(dataclasses.replace(lost, result=None, failure=failure))
    counting = Counting()
    assert sweep(resume=run, progress=counting).exit_code == 3
    assert counting.begun == []
    assert sweep(resume=run, retry_infra=True, progress=counting).exit_code == 0
    assert counting.begun == [lost.cell]


def test_a_model_that_changed_since_is_refused(tmp_path: Path, models: list[Path]) -> None:
    run = killed_sweep("start 1", tmp_path / "runs", models)
    models[0].write_bytes(graphs.fc_chain(layers=2))
    models[1].unlink()
    with pytest.raises(InvalidInput) as refused:
        sweep(resume=run)
    assert "has changed" in str(refused.value)
    assert "is gone" in str(refused.value)
    assert len(refused.value.problems) == 2


def test_a_run_that_is_still_going_on_cannot_be_resumed(tmp_path: Path, models: list[Path]) -> None:
    run = killed_sweep("start 1", tmp_path / "runs", models)
    with RunStore.open(run) as other:
        other.claim()
        with pytest.raises(InvalidInput, match="another farm process"):
            sweep(resume=run)
