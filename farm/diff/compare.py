"""Two paired runs to a Diff: changes of verdict first, then drift of numbers, then cells that flip for no reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import pairwise

from farm.diff.drift import drifts
from farm.diff.pair import Key, Pair, key, pairs, place, same_ground
from farm.diff.value import Change, ChangeKind, Diff, Flaky
from farm.judge.verdict import COUNTS
from farm.report.value import Matrix, MatrixCell

GOOD = ("pass", "warn")
BAD = ("fail", "error")
JUDGED = (*GOOD, *BAD, "unsupported")
"""Verdicts that are an answer about the model on that device."""
EXPIRING_DAYS = 7
FLIPS = 2
"""So many turns between good and bad, with nothing changed in between, make a cell flaky: pass, fail, pass."""
_LEVEL = {"full": 2, "partial": 1, "none": 0}


def compare(old: Matrix, new: Matrix, earlier: Sequence[Matrix] = (), *, today: date | None = None) -> Diff:
    """Compare two runs. earlier: runs before `old`, oldest first, for telling flaky cells and usual noise.

    Diagnostic cells take no part. today: for known entries that end soon; None leaves them out.
    """
    made = [p for p in pairs(old, new) if not _diagnostic(p)]
    flaky = _flaky([*earlier, old, new])
    unstable = {f.cell.id for f in flaky}
    changes = [c for p in made if (c := _change(p, p.place.id in unstable)) is not None]
    order: dict[str, int] = {kind: n for n, kind in enumerate(_ORDER)}
    moved, throttled = drifts(made, old=old, new=new, earlier=earlier)
    return Diff(
        old=old.run.id,
        new=new.run.id,
        changes=tuple(sorted(changes, key=lambda c: order[c.kind])),
        drifts=moved,
        flaky=flaky,
        throttled=throttled,
        known=sum(cell.known is not None for cell in new.cells),
        expiring=tuple(_expiring(new, today)) if today else (),
        known_problems=new.known_problems,
        still_failing=sum(
            p.old is not None and p.new is not None and p.old.verdict in BAD and _fails(p.new) for p in made
        ),
        compared=sum(p.old is not None and p.new is not None for p in made),
        judged_old=sum(p.old is not None and p.old.verdict in JUDGED for p in made),
        judged_new=sum(p.new is not None and p.new.verdict in JUDGED for p in made),
        notes=() if old.run.farm_version == new.run.farm_version else (
            f"farm itself changed: {old.run.farm_version} → {new.run.farm_version}",
        ),
    )  # fmt: skip


_ORDER: tuple[ChangeKind, ...] = (
    "new_failure", "no_longer_judged", "missing", "newly_unsupported", "worse", "reason_changed", "less_delegated",
    "known_failure", "fixed", "better", "added",
)  # fmt: skip


def _diagnostic(pair: Pair) -> bool:
    cell = pair.new or pair.old
    return cell is not None and cell.diagnostic


def _fails(cell: MatrixCell) -> bool:
    return cell.verdict in BAD and cell.known is None


def _change(pair: Pair, flaky: bool) -> Change | None:
    old, new = pair.old, pair.new
    kind = _kind(old, new)
    if kind is None:
        return None
    was, now = (old.verdict if old else None), (new.verdict if new else None)
    return Change(
        kind=kind,
        cell=pair.place,
        was=was,
        now=now,
        was_reasons=old.reasons if old else (),
        now_reasons=new.reasons if new else (),
        trigger=pair.trigger,
        why=pair.why if old and new else ("no such cell before" if new else "not in the later run"),
        # Refused before means that an app fell back to its CPU; now it gets wrong numbers.
        regression=kind == "new_failure" and was is not None and COUNTS[was] == 0,
        flaky=flaky,
        message=_message(kind, old, new),
    )


def _kind(old: MatrixCell | None, new: MatrixCell | None) -> ChangeKind | None:
    if new is None:
        return "missing"
    was = old.verdict if old else None
    if new.verdict in BAD:
        if new.known is not None:
            return "known_failure" if was not in BAD else None
        if was not in BAD or (old is not None and old.known is not None):
            return "new_failure"
        return "reason_changed" if old is not None and set(old.reasons) != set(new.reasons) else None
    if was is None:
        return "added"
    if new.verdict not in JUDGED:
        return "no_longer_judged" if was in JUDGED else None
    if new.verdict == "unsupported":
        return "newly_unsupported" if was in (*GOOD, *BAD) else None
    if was in BAD:
        return "fixed"
    if was == "pass" and new.verdict == "warn":
        return "worse"
    if was == "warn" and new.verdict == "pass":
        return "better"
    assert old is not None
    if _LEVEL.get(new.delegation, 0) < _LEVEL.get(old.delegation, 0):
        return "less_delegated"
    return None


def _message(kind: ChangeKind, old: MatrixCell | None, new: MatrixCell | None) -> str:
    if kind == "less_delegated" and old and new:
        ops = f": {', '.join(new.cpu_ops[:3])} on the CPU" if new.cpu_ops else ""
        return f"delegation {old.delegation} → {new.delegation}{ops}"
    cell = new or old
    return cell.message if cell else ""


def _flaky(runs: Sequence[Matrix]) -> tuple[Flaky, ...]:
    """Cells of the last run that turned between good and bad at least FLIPS times on the same ground."""
    last = runs[-1]
    trails: dict[tuple[Key, str], list[MatrixCell]] = {
        (key(cell), cell.runtime): [cell] for cell in last.cells if not cell.diagnostic
    }
    now = {device.id: device for device in last.devices}
    for run in reversed(runs[:-1]):
        then = {device.id: device for device in run.devices}
        for cell in run.cells:
            trail = trails.get((key(cell), cell.runtime))
            if trail is not None and same_ground(cell, trail[0], then.get(cell.device), now.get(cell.device)):
                trail.append(cell)
    found = []
    for trail in trails.values():
        # Only good and bad count: a night that could not tell says nothing about the cell.
        story = [cell.verdict for cell in reversed(trail) if cell.verdict in (*GOOD, *BAD)]
        flips = sum((a in BAD) != (b in BAD) for a, b in pairwise(story))
        if flips >= FLIPS:
            found.append(Flaky(cell=place(trail[0]), history=tuple(story), flips=flips))
    return tuple(found)


def _expiring(matrix: Matrix, today: date) -> list[str]:
    found: dict[str, None] = {}
    for cell in matrix.cells:
        until = (cell.known or {}).get("until")
        if until and today <= date.fromisoformat(until) <= today + timedelta(days=EXPIRING_DAYS):
            found[f"{cell.id}: the known entry ends on {until}; from the day after {cell.verdict} counts"] = None
    return list(found)
