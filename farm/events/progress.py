"""From the runner's progress to events: which device does what, which cell has ended how."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from farm.events.messages import level
from farm.events.publisher import Publisher
from farm.outcome import Outcome
from farm.plan import Cell, Plan
from farm.report.value import Matrix
from farm.runner import Progress


class RunEvents:
    """A runner.Progress that publishes. `begin` comes first, `end` last; nothing here waits or raises."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._run = ""
        self._devices: tuple[str, ...] = ()
        self._models: dict[str, str] = {}

    def begin(self, plan: Plan) -> None:
        """Announce a run; what earlier runs left as the state of its devices is overwritten."""
        self._run = plan.run_id
        self._devices = tuple(device.id for device in plan.devices)
        self._models = {case.id: case.model for case in plan.cases}
        for device in self._devices:
            self._state(device, "idle")
        self._publish(
            "started",
            "run_started",
            cells=len(plan.cells),
            devices=list(self._devices),
            models=sorted(set(self._models.values())),
            configs=[config.name for config in plan.configs],
        )

    def planned(self, cells: int, done: int = 0) -> None:
        """Nothing to tell: `begin` has said it."""

    def stage(self, words: str) -> None:
        self._publish("stage", "run_stage", stage=words)

    def started(self, cell: Cell) -> None:
        self._state(cell.device, "busy", cell=cell.id)

    def finished(self, cell: Cell, outcome: Outcome) -> None:
        times = [t for run in outcome.result.runs for t in run.latency_ms] if outcome.result else []
        self._publish(
            f"cell/{level(cell.id)}",
            "cell_finished",
            cell=cell.id,
            device=cell.device,
            model=self._models.get(cell.case, cell.case),
            config=cell.config,
            runtime=cell.runtime,
            outcome=outcome.failure.code if outcome.failure else "ran",
            message=outcome.failure.message if outcome.failure else "",
            attempts=outcome.attempts,
            wall_s=outcome.wall_s,
            latency_ms=median(times) if times else None,
        )

    def end(self, matrix: Matrix, folder: Path, *, interrupted: bool = False) -> None:
        """Announce the verdicts: counts, the exit code, and where and what the matrix is."""
        for device in self._devices:
            self._state(device, "idle")
        try:
            digest = hashlib.sha256((folder / "matrix.json").read_bytes()).hexdigest()
        except OSError:
            digest = None
        self._publish(
            "finished",
            "run_finished",
            exit_code=matrix.run.exit_code,
            verdicts=dict(Counter(cell.verdict for cell in matrix.cells if not cell.diagnostic)),
            interrupted=interrupted,
            folder=str(folder),
            matrix_sha256=digest,
        )

    def night(self, name: str, exit_code: int, text: str, *, good: bool) -> None:
        """Announce a night's summary: three lines, the whole of it lies in the folder of runs."""
        self._publisher.publish("night/summary", "night", night=name, exit_code=exit_code, text=text, good=good)

    def _publish(self, topic: str, kind: str, **body: Any) -> None:
        if self._run:
            self._publisher.publish(f"run/{level(self._run)}/{topic}", kind, run=self._run, **body)

    def _state(self, device: str, state: str, cell: str | None = None) -> None:
        self._publisher.state(f"device/{level(device)}", device=device, state=state, run=self._run, cell=cell)


class Both:
    """One progress told to several listeners, in order."""

    def __init__(self, *listeners: Progress) -> None:
        self._listeners = listeners

    def planned(self, cells: int, done: int = 0) -> None:
        for listener in self._listeners:
            listener.planned(cells, done)

    def stage(self, words: str) -> None:
        for listener in self._listeners:
            listener.stage(words)

    def started(self, cell: Cell) -> None:
        for listener in self._listeners:
            listener.started(cell)

    def finished(self, cell: Cell, outcome: Outcome) -> None:
        for listener in self._listeners:
            listener.finished(cell, outcome)
