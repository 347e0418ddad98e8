"""One night from lock to summary: passes in covering order within the time budget, then what they say together."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path

from farm.cases import ModelRequest
from farm.diff import Change, Diff, compare
from farm.diff.compare import BAD, GOOD
from farm.diff.pair import key
from farm.diff.twins import suspects
from farm.errors import FarmError, InvalidInput, Problem
from farm.inventory import Inventory, Nightly
from farm.nightly.coverage import away, coverage, families_of
from farm.nightly.kept import keep, last_any, last_good, nights, one_night
from farm.nightly.order import covering_order
from farm.nightly.value import Control, Night
from farm.plan import Plan
from farm.profiles import load_profiles
from farm.report.read import read_earlier, read_matrix, run_folders
from farm.report.value import Matrix, MatrixCell
from farm.runner import Progress, Stop
from farm.store import RunStore
from farm.sweep import SweepResult, sweep

EARLIER = 8
CONTROLS = 20
"""So many failing cells at most are run again on the old runtime."""
REPEAT_ROOM = 1.1
"""A further pass is begun only if the first one's time, and a tenth, still fits into the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told of the passes: begin(plan), end(matrix, folder, interrupted=…). See farm.events."""

    begin: Callable[[Plan], None]
    end: Callable[[SweepResult], None]


def run_night(
    inventory: Inventory,
    *,
    root: Path,
    progress: Progress | None = None,
    listener: Listener | None = None,
    stop: Stop | None = None,
    today: date | None = None,
) -> Night:
    """Run the night of an inventory and keep its summary in root/nights.

    root: where runs are kept. Raises InvalidInput if another night runs, if the inventory has no `nightly:`, or for
    whatever a sweep would refuse.
    """
    policy = inventory.nightly
    if policy is None:
        raise InvalidInput(
            Problem(
                message="the inventory has no 'nightly:'",
                file=str(inventory.path) if inventory.path else None,
                cure="add one; 'nightly: {}' runs every model on every device",
            )
        )
    models = chosen_models(inventory, policy)
    stop = stop or Stop()
    with one_night(root):
        before = _used(root)
        started, clock = _now(), time.monotonic()
        known = _known_families(root)
        tell = _Told(listener)
        with _budget(policy.time_budget_s, stop) as cut:
            results = _passes(
                inventory, policy, models, root=root, known=known, progress=progress, tell=tell, stop=stop, clock=clock
            )
        night = _assess(inventory, policy, results, root=root, known=known, started=started, today=today)
        night = replace(night, cut=night.cut or cut.is_set())
        if night.diff is not None and not stop.draining:
            controls, notes = _controls(inventory, policy, models, night.diff, root=root)
            night = replace(night, controls=controls, notes=(*night.notes, *notes))
        used = _used(root)
        night = replace(
            night,
            finished=_now(),
            used_bytes=used,
            grown_bytes=max(used - before, 0),
            budget_bytes=inventory.store.budget_bytes if inventory.store else None,
        )
        keep(root, night)
    return night


def chosen_models(inventory: Inventory, policy: Nightly) -> tuple[ModelRequest, ...]:
    """The inventory's models that the policy's globs name, by file stem. Raises InvalidInput for an idle glob."""
    problems = [
        Problem(
            message=f"nightly: no model is named by {pattern!r}",
            file=str(inventory.path) if inventory.path else None,
            cure=f"models: {', '.join(sorted(m.path.stem for m in inventory.models)[:10]) or 'none in the inventory'}",
        )
        for pattern in policy.models
        if not any(fnmatchcase(m.path.stem, pattern) for m in inventory.models)
    ]
    if problems:
        raise InvalidInput(problems)
    return tuple(m for m in inventory.models if any(fnmatchcase(m.path.stem, p) for p in policy.models))


class _Told:
    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener

    def begin(self, store: RunStore) -> None:
        if self._listener is not None:
            self._listener.begin(store.plan)

    def end(self, result: SweepResult) -> None:
        if self._listener is not None:
            self._listener.end(result)


class _budget:
    """Drains the night when its time is up; the event says whether that happened."""

    def __init__(self, seconds: float | None, stop: Stop) -> None:
        self._event, self._stop = threading.Event(), stop
        self._timer = threading.Timer(seconds, self._up) if seconds is not None else None
        if self._timer is not None:
            self._timer.daemon = True

    def _up(self) -> None:
        self._event.set()
        # A second request would cut the links: somebody who pressed Ctrl-C once asked for a drain, and gets it.
        if not self._stop.draining:
            self._stop.request()

    def __enter__(self) -> threading.Event:
        if self._timer is not None:
            self._timer.start()
        return self._event

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _passes(
    inventory: Inventory,
    policy: Nightly,
    models: Sequence[ModelRequest],
    *,
    root: Path,
    known: Mapping[str, str],
    progress: Progress | None,
    tell: _Told,
    stop: Stop,
    clock: float,
) -> list[SweepResult]:
    """The night's runs: everything once, then everything again while repeats are wanted and time is left."""
    families = {d.id: d.profile or known.get(d.id) or d.id for d in inventory.devices}
    results: list[SweepResult] = []
    # The first pass is made even when the time is up already: its plan says what was not run.
    while not results or (len(results) < policy.repeats and not stop.draining):
        spent = time.monotonic() - clock
        if results and policy.time_budget_s is not None:
            first = spent / len(results)
            if spent + first * REPEAT_ROOM > policy.time_budget_s:
                break
        result = sweep(
            models,
            inventory=inventory,
            devices=policy.devices or None,
            configs=policy.configs or None,
            runtime=policy.runtimes or None,
            out=root,
            progress=progress,
            stop=stop,
            arrange=functools.partial(covering_order, families=families),
            on_run=tell.begin,
        )
        tell.end(result)
        results.append(result)
    return results


def _assess(
    inventory: Inventory,
    policy: Nightly,
    results: Sequence[SweepResult],
    *,
    root: Path,
    known: Mapping[str, str],
    started: str,
    today: date | None,
) -> Night:
    """What the passes say together, compared with the last good night."""
    runs = [result.matrix for result in results]
    first = runs[0]
    families: dict[str, str] = {}
    profiles = load_profiles()
    for run in runs:
        # What one pass could not see of a device another may have.
        families = {**families_of(run, {**known, **families}, profiles)}
    plan = RunStore.open(results[0].run_folder).plan
    covered = coverage(
        runs,
        families=families,
        models=policy.coverage_models,
        wanted_families=policy.coverage_families,
        accelerated={c.name for c in plan.configs if c.accelerator != "cpu" and not c.diagnostic},
    )
    past = nights(root)
    # A requirement that nothing ever meets must not cost every night its comparison.
    base = last_good(past, root) or last_any(past, root)
    diff, notes = None, []
    if base is not None:
        folder = root / base.runs[0]
        earlier, unread = read_earlier(folder, EARLIER)
        notes = [f"left out of the usual noise: {problem}" for problem in unread]
        diff = compare(read_matrix(folder), first, earlier, today=today or date.today())
    failed = any(run.run.exit_code == 1 for run in runs)
    uncovered = any(not c.covered for c in covered)
    interrupted = results[0].interrupted
    return Night(
        id=first.run.id,
        started=started,
        finished=started,
        runs=tuple(run.run.id for run in runs),
        exit_code=1 if failed else 3 if uncovered else 0,
        good=not uncovered,
        cut=interrupted,
        verdicts=dict(Counter(cell.verdict for cell in first.cells if not cell.diagnostic)),
        coverage=covered,
        away=away(runs, families),
        suspects=tuple(str(s) for s in suspects(first)),
        unsteady=tuple(_unsteady(runs)),
        failing=() if diff is not None else compare(_nothing(first), first).of("new_failure"),
        baseline=base.runs[0] if base else None,
        baseline_good=base is not None and base.good,
        diff=diff,
        notes=tuple(notes),
    )


def _nothing(matrix: Matrix) -> Matrix:
    return replace(matrix, cells=(), devices=())


def _unsteady(runs: Sequence[Matrix]) -> list[str]:
    """Cells that were good in one pass and bad in another."""
    stories: dict[tuple[object, ...], list[MatrixCell]] = {}
    for run in runs:
        for cell in run.cells:
            if not cell.diagnostic and cell.verdict in (*GOOD, *BAD):
                stories.setdefault((*key(cell), cell.runtime), []).append(cell)
    return [
        f"{cells[0].id}: {' '.join(cell.verdict for cell in cells)}"
        for cells in stories.values()
        if len({cell.verdict in BAD for cell in cells}) > 1
    ]


def _controls(
    inventory: Inventory, policy: Nightly, models: Sequence[ModelRequest], diff: Diff, *, root: Path
) -> tuple[tuple[Control, ...], tuple[str, ...]]:
    """Run the old runtime once where a new one brought failures, if it is at hand: same night, same device."""
    suspect = [c for c in diff.of("new_failure") if c.regression and "runtime" in c.trigger][:CONTROLS]
    if not suspect:
        return (), ()
    old = read_matrix(root / diff.old)
    before = {cell.id: cell for cell in old.cells}
    wanted: dict[str, list[Change]] = {}
    for change in suspect:
        runtime = _old_runtime(change, before)
        if runtime is not None:
            wanted.setdefault(runtime, []).append(change)
    found: list[Control] = []
    notes: list[str] = []
    for runtime, changes in wanted.items():
        try:
            result = sweep(
                [m for m in models if m.path.stem in {c.cell.model for c in changes}],
                inventory=inventory,
                devices=sorted({c.cell.device for c in changes}),
                configs=sorted({c.cell.config for c in changes}),
                runtime=runtime,
                out=root,
            )
        except FarmError as error:
            notes.append(f"{runtime} was not run again as a control: {error}")
            continue
        answers = {key(cell): cell for cell in result.matrix.cells}
        for change in changes:
            cell = answers.get((change.cell.device, change.cell.model, change.cell.signature, change.cell.config))
            if cell is not None:
                found.append(
                    Control(cell=change.cell.id, runtime=runtime, verdict=cell.verdict, run=result.matrix.run.id)
                )
    return tuple(found), tuple(notes)


def _old_runtime(change: Change, before: Mapping[str, MatrixCell]) -> str | None:
    """The runtime the failing cell is compared with, read from the words of its trigger's own run."""
    place = (change.cell.device, change.cell.model, change.cell.signature, change.cell.config)
    runtimes = [cell.runtime for cell in before.values() if key(cell) == place and cell.verdict in GOOD]
    return runtimes[-1] if runtimes else None


def _known_families(root: Path) -> dict[str, str]:
    """Device id → family as the last runs saw it, so that a device that is away tonight is still of its family."""
    found: dict[str, str] = {}
    profiles = load_profiles()
    for folder in run_folders(root)[-EARLIER:]:
        try:
            matrix = read_matrix(folder)
        except InvalidInput:
            continue
        found |= {d: f for d, f in families_of(matrix, found, profiles).items() if f != d}
    return found


def _used(root: Path) -> int:
    """Bytes of everything below the folder of runs."""
    total = 0
    for folder, _, names in os.walk(root):
        total += sum(_size(os.path.join(folder, name)) for name in names)
    return total


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0  # gone meanwhile


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
