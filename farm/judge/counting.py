"""From verdicts to an exit code: diagnostics are left out, known results excused, expectations enforced.

Last step of judging. Pure: the date is a parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from statistics import median

from farm.judge.verdict import COUNTS, CellVerdict
from farm.outcome import Outcome
from farm.plan import Cell, Known, Plan

SAYS_NOTHING = ("infra", "inconclusive", "not_run")
"""Verdicts that tell nothing about the model; they count by themselves and never break an expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownReport:
    """What the `known:` entries did.

    by_cell: cell id → the entry that explains its verdict (verdict, reason, link, until). excused: the same ids.
    problems: one sentence per entry that expired, passed unexpectedly or failed otherwise.
    codes: what unexpected passes count as (1 each).
    """

    by_cell: dict[str, dict[str, str | None]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()

    @property
    def excused(self) -> frozenset[str]:
        return frozenset(self.by_cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectReport:
    """Broken `expect:` lines, a sentence each, and the cells they are about. Each counts as 1."""

    problems: tuple[str, ...] = ()
    cells: frozenset[str] = frozenset()

    @property
    def codes(self) -> tuple[int, ...]:
        return (1,) * len(self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The whole run counted. problems: known and expect sentences, for the report."""

    exit_code: int
    all_passed: bool
    known: dict[str, dict[str, str | None]]
    problems: tuple[str, ...]


def exit_code(verdicts: Iterable[CellVerdict], *, uncounted: Collection[str] = (), extra: Iterable[int] = ()) -> int:
    """Return 1 if any counted verdict or `extra` is 1, else 3 if any is 3, else 0.

    uncounted: ids of diagnostic and excused cells.
    """
    codes = {COUNTS[v.verdict] for v in verdicts if v.cell not in uncounted} | set(extra)
    return 1 if 1 in codes else 3 if 3 in codes else 0


def tally(*, plan: Plan, outcomes: Mapping[str, Outcome], verdicts: Mapping[str, CellVerdict], today: date) -> Tally:
    """Count a run: every planned cell must have a verdict (a missing one counts as not_run)."""
    complete = {c.id: verdicts.get(c.id) or CellVerdict(cell=c.id, verdict="not_run") for c in plan.cells}
    known = apply_known(plan=plan, verdicts=complete, today=today)
    expected = apply_expect(plan=plan, outcomes=outcomes, verdicts=complete)
    uncounted = _diagnostic_cells(plan) | known.excused
    code = exit_code(complete.values(), uncounted=uncounted, extra=(*known.codes, *expected.codes))
    counted = [v for v in complete.values() if v.cell not in uncounted]
    return Tally(
        exit_code=code,
        # "All passed" must not be true of nothing: a run whose every counted cell was unsupported passed nothing.
        all_passed=code == 0 and any(v.verdict in ("pass", "warn") for v in counted),
        known=known.by_cell,
        problems=(*known.problems, *expected.problems),
    )


def apply_known(*, plan: Plan, verdicts: Mapping[str, CellVerdict], today: date) -> KnownReport:
    """Match `plan.known` against the verdicts.

    An entry whose date has passed excuses nothing. Among entries that apply to a cell, those with its verdict excuse it
    if together they cover every one of its reasons (an entry without a reason covers all): a second, new fault beside a
    known one stays visible. Diagnostic cells are never counted and so never matched.
    """
    models = {case.id: case.model for case in plan.cases}
    diagnostic = _diagnostic_cells(plan)
    by_cell: dict[str, dict[str, str | None]] = {}
    problems: list[str] = []
    codes: list[int] = []
    for cell in plan.cells:
        verdict = verdicts.get(cell.id)
        if verdict is None or cell.id in diagnostic:
            continue
        entries = [k for k in plan.known if _matches(k, cell, models.get(cell.case, cell.case))]
        live = [k for k in entries if k.until is None or today <= date.fromisoformat(k.until)]
        problems += [_expired(k, cell, verdict) for k in entries if k not in live and verdict.verdict != "not_run"]
        if not live:
            continue
        agreeing = [k for k in live if k.verdict == verdict.verdict]
        covered = {k.reason for k in agreeing}
        if agreeing and (None in covered or set(verdict.reasons) <= covered):
            entry = next((k for k in agreeing if k.reason is None or k.reason in verdict.reasons), agreeing[0])
            by_cell[cell.id] = {
                "verdict": entry.verdict, "reason": entry.reason, "link": entry.link, "until": entry.until,
            }  # fmt: skip
        elif verdict.verdict in ("pass", "warn") and COUNTS[live[0].verdict]:
            problems.append(
                f"{cell.id}: passes unexpectedly ({verdict.verdict}; {_words(live[0])} is known): drop the known entry"
            )
            codes.append(1)
        elif verdict.verdict != "not_run":
            seen = " ".join((verdict.verdict, *verdict.reasons))
            problems.append(f"{cell.id}: {seen}, where {_words(live[0])} is known: it counts")
    return KnownReport(by_cell=by_cell, problems=tuple(problems), codes=tuple(codes))


def apply_expect(*, plan: Plan, outcomes: Mapping[str, Outcome], verdicts: Mapping[str, CellVerdict]) -> ExpectReport:
    """Check each case's `expect:` lines: a config's verdict, the delegation of GPU cells, faster than another config.

    Cells whose verdict says nothing about the model (infra, inconclusive, not_run) break no expectation: they count on
    their own. A warn satisfies `pass`.
    """
    cases = {case.id: case for case in plan.cases}
    configs = {config.name: config for config in plan.configs}
    problems: list[str] = []
    cells: set[str] = set()
    by_key = {(c.device, c.case, c.runtime, c.config): c for c in plan.cells}
    for cell in plan.cells:
        case, verdict, config = cases.get(cell.case), verdicts.get(cell.id), configs.get(cell.config)
        if case is None or verdict is None or config is None or verdict.verdict in SAYS_NOTHING:
            continue
        outcome = outcomes.get(cell.id)
        for key, wanted in case.spec.expect.items():
            sentence = None
            if key == cell.config:
                if wanted != verdict.verdict and (wanted, verdict.verdict) != ("pass", "warn"):
                    sentence = f"is {verdict.verdict}, expected {wanted}"
            elif key == "delegation" and config.accelerator != "cpu" and not config.diagnostic and outcome:
                level = outcome.delegation.level
                if verdict.verdict == "unsupported":
                    level = "none"
                if level != wanted:
                    sentence = f"delegation is {level}, expected {wanted}"
            elif key == "faster_than" and config.accelerator != "cpu" and not config.diagnostic:
                other = by_key.get((cell.device, cell.case, cell.runtime, wanted))
                mine = median_latency_ms(outcome)
                theirs = median_latency_ms(outcomes.get(other.id)) if other else None
                if mine is not None and theirs is not None and mine >= theirs:
                    sentence = f"takes {mine:.3g} ms, not faster than {wanted} with {theirs:.3g} ms"
            if sentence:
                problems.append(f"{cell.id}: {sentence}")
                cells.add(cell.id)
    return ExpectReport(problems=tuple(problems), cells=frozenset(cells))


def median_latency_ms(outcome: Outcome | None) -> float | None:
    """Median over the timed iterations of the first input set; None where nothing was timed."""
    if outcome is None or outcome.result is None or not outcome.result.ok or not outcome.result.runs:
        return None
    times = outcome.result.runs[0].latency_ms
    return float(median(times)) if times else None


def _diagnostic_cells(plan: Plan) -> frozenset[str]:
    diagnostic = {c.name for c in plan.configs if c.diagnostic}
    return frozenset(c.id for c in plan.cells if c.config in diagnostic)


def _matches(entry: Known, cell: Cell, model: str) -> bool:
    return (
        fnmatchcase(model, entry.model)
        and fnmatchcase(cell.device, entry.device)
        and fnmatchcase(cell.config, entry.config)
    )


def _words(entry: Known) -> str:
    return f"{entry.verdict} {entry.reason}" if entry.reason else entry.verdict


def _expired(entry: Known, cell: Cell, verdict: CellVerdict) -> str:
    return f"{cell.id}: the known entry ({_words(entry)}) ended on {entry.until}; {verdict.verdict} counts again"
