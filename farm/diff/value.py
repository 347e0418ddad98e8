"""A diff as a value: what `farm diff --json` prints and what a night's summary keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ChangeKind = Literal[
    "new_failure", "known_failure", "fixed", "newly_unsupported", "no_longer_judged", "missing", "worse", "better",
    "reason_changed", "less_delegated", "added",
]  # fmt: skip

NOTHING = "nothing changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which cell is meant. `id` is the new run's cell id, or the old run's where the new run has none."""

    id: str
    device: str
    gpu: str
    model: str
    signature: str
    config: str
    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One cell whose answer is not what it was.

    was, now: verdict words; None where that run has no such cell. trigger: what differs between the two runs for this
    cell besides the answer: model | runtime | gpu | os | driver | inputs | limits; empty = nothing changed.
    why: the trigger in words. regression: it passed (or was refused, so that an app fell back) and now fails, whatever
    changed. flaky: it already flipped without a trigger in earlier runs.
    """

    kind: ChangeKind
    cell: Place
    was: str | None
    now: str | None
    was_reasons: tuple[str, ...] = ()
    now_reasons: tuple[str, ...] = ()
    trigger: tuple[str, ...] = ()
    why: str = NOTHING
    regression: bool = False
    flaky: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A number that moved beyond noise while the verdict stayed.

    what: "latency_ms" or a metric's name; output: the output it is of, "" for latency. cells: how many it speaks for
    (1, or for latency a whole device and config). factor: new over old, for latency; of one cell it is what is left
    after the device's own median of ratios. size: how far it moved (dB, steps, share, logarithm of the factor).
    limit: the size up to which it would be noise.
    """

    cell: Place
    what: str
    output: str
    was: float
    now: float
    size: float
    limit: float
    worse: bool
    cells: int = 1
    factor: float | None = None
    trigger: tuple[str, ...] = ()
    why: str = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaky:
    """A cell whose verdict flips although nothing it depends on changed. history: verdicts, oldest first."""

    cell: Place
    history: tuple[str, ...]
    flips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What changed from run `old` to run `new`. throttled: cells left out of latency because a device ran hot.

    known: cells that fail as expected in the new run; expiring: known entries that end within the week;
    known_problems: entries that expired, passed unexpectedly or failed differently.
    judged_old, judged_new: counted cells with an answer.
    """

    schema_version: int = 1
    old: str
    new: str
    changes: tuple[Change, ...] = ()
    drifts: tuple[Drift, ...] = ()
    flaky: tuple[Flaky, ...] = ()
    throttled: int = 0
    known: int = 0
    expiring: tuple[str, ...] = ()
    known_problems: tuple[str, ...] = ()
    still_failing: int = 0
    compared: int = 0
    judged_old: int = 0
    judged_new: int = 0
    notes: tuple[str, ...] = field(default_factory=tuple)

    def of(self, kind: ChangeKind) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    @property
    def exit_code(self) -> int:
        """1 where something newly fails, 3 where less was judged than before, else 0."""
        if self.of("new_failure"):
            return 1
        return 3 if self.of("missing") or self.of("no_longer_judged") else 0

    @property
    def changed(self) -> bool:
        """Is there anything to tell anybody?"""
        quiet = {"added", "known_failure"}
        return bool(self.drifts or self.flaky or self.expiring) or any(c.kind not in quiet for c in self.changes)
