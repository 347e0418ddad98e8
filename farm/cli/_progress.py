"""Progress of a run on stderr: a rich bar on a terminal, one line per cell with -v, silence otherwise."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from farm.outcome import Outcome
    from farm.plan import Cell


class SweepProgress:
    """Told of stages and cells from several threads (runner.Progress); never raises into the run.

    Use as a context manager: a terminal is left clean whatever happens inside.
    """

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._live = sys.stderr.isatty() and not verbose
        self._lock = threading.Lock()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._running: dict[str, str] = {}

    def __enter__(self) -> SweepProgress:
        if self._live:
            # rich costs a tenth of a second to import; nobody pays it whose stderr is a file.
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def planned(self, cells: int, done: int = 0) -> None:
        """Told once how many cells the run has and how many an earlier try finished."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=cells, completed=done)

    def stage(self, words: str) -> None:
        """What goes on when no cell runs, e.g. "references"."""
        if self._verbose:
            print(words, file=sys.stderr, flush=True)
        self._describe(words)

    def started(self, cell: Cell) -> None:
        with self._lock:
            self._running[cell.device] = f"{cell.device}: {cell.case} {cell.config}"
            words = "  ".join(self._running.values())
        self._describe(words)

    def finished(self, cell: Cell, outcome: Outcome) -> None:
        with self._lock:
            self._running.pop(cell.device, None)
        if self._verbose:
            said = f"{outcome.failure.code}: {outcome.failure.message}" if outcome.failure else "ran"
            print(
                f"{cell.device}  {cell.case}  {cell.config}  {outcome.wall_s:.2f} s  {said}",
                file=sys.stderr,
                flush=True,
            )
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)

    def _describe(self, words: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=words[:100])
