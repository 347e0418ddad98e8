"""A night as a value: nights/<id>.json, what the summary is written from and the next night compared with."""

from __future__ import annotations

from dataclasses import dataclass

from farm.diff.value import Change, Diff


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """One (model, GPU family) that the policy requires. judged_on: devices that gave an answer; why: if none did."""

    model: str
    family: str
    devices: tuple[str, ...]
    judged_on: tuple[str, ...]
    why: str = ""

    @property
    def covered(self) -> bool:
        return bool(self.judged_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A device that gave no answer at all this night, and the reason that most of its cells have."""

    device: str
    family: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The old runtime, run once more where an upgrade brought a failure. verdict: what it says tonight."""

    cell: str
    runtime: str
    verdict: str
    run: str

    def __str__(self) -> str:
        said = {"pass": "still passes: it is the upgrade", "warn": "still passes: it is the upgrade"}.get(
            self.verdict, f"is {self.verdict} as well tonight: it is not the upgrade alone"
        )
        return f"{self.cell}: {self.runtime} {said} (run {self.run})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One night. runs: its passes, the first is the one that is compared. good: everything required was judged.

    unsteady: cells that were good in one pass and bad in another. baseline: the run of the night compared with.
    used_bytes: the whole folder of runs after this night; grown_bytes: what this night added.
    """

    schema_version: int = 1
    id: str
    started: str
    finished: str
    runs: tuple[str, ...]
    exit_code: int
    good: bool
    cut: bool
    verdicts: dict[str, int]
    coverage: tuple[Coverage, ...]
    away: tuple[Away, ...] = ()
    suspects: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()
    failing: tuple[Change, ...] = ()
    """Without a baseline: every failure, so that a first night tells something too."""
    baseline: str | None = None
    baseline_good: bool = False
    """False: no night was good yet, and the last one of any kind is compared with."""
    diff: Diff | None = None
    controls: tuple[Control, ...] = ()
    used_bytes: int = 0
    grown_bytes: int = 0
    budget_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def uncovered(self) -> tuple[Coverage, ...]:
        return tuple(c for c in self.coverage if not c.covered)

    @property
    def worth_telling(self) -> bool:
        """Is there something a person should read: a change, a gap in coverage, a suspect device?"""
        changed = self.diff.changed if self.diff is not None else bool(self.failing)
        return changed or bool(self.uncovered or self.suspects or self.unsteady)
