"""A diff in plain lines for a terminal, a log or a job summary: the worst first, each with its trigger."""

from __future__ import annotations

from collections.abc import Sequence

from farm.diff.value import Change, ChangeKind, Diff, Drift, Place

TITLES: dict[ChangeKind, str] = {
    "new_failure": "New failures",
    "no_longer_judged": "No longer judged",
    "missing": "Missing cells",
    "newly_unsupported": "Newly unsupported",
    "worse": "Worse: pass → warn",
    "reason_changed": "Fails for another reason",
    "less_delegated": "Less on the GPU than before",
    "known_failure": "Failing as known",
    "fixed": "Fixed",
    "better": "Better: warn → pass",
    "added": "New cells",
}
_SYMBOLS: dict[ChangeKind, str] = {
    "new_failure": "✗", "no_longer_judged": "?", "missing": "○", "newly_unsupported": "–", "worse": "!",
    "reason_changed": "✗", "less_delegated": "–", "known_failure": "·", "fixed": "✓", "better": "✓", "added": "+",
}  # fmt: skip
LINES = 20
"""Of one kind so many are listed; `--json` has all."""


def render(diff: Diff, *, lines: int = LINES) -> str:
    """Return the diff as text, without a newline at its end."""
    parts = [f"{diff.old} → {diff.new}: {headline(diff)}"]
    for kind, title in TITLES.items():
        found = diff.of(kind)
        if found:
            parts.append(_section(f"{_SYMBOLS[kind]} {title}", [change_line(c) for c in found], lines))
    worse = [d for d in diff.drifts if d.worse]
    better = [d for d in diff.drifts if not d.worse]
    for title, drifts in (("↘ Drifted for the worse", worse), ("↗ Drifted for the better", better)):
        if drifts:
            parts.append(_section(title, [drift_line(d) for d in drifts], lines))
    if diff.flaky:
        parts.append(
            _section("~ Flaky", [f"{_name(f.cell)}: {' '.join(f.history)}, nothing changed" for f in diff.flaky], lines)
        )
    for title, sentences in (("Known results", diff.known_problems), ("Known results that end soon", diff.expiring)):
        if sentences:
            parts.append(_section(f"· {title}", list(sentences), lines))
    counts = [f"{diff.compared} cells compared", f"{diff.judged_new} judged (before: {diff.judged_old})"]
    counts += [f"{diff.still_failing} still failing"] if diff.still_failing else []
    counts += [f"{diff.known} known"] if diff.known else []
    counts += [f"{diff.throttled} throttled, left out of latency"] if diff.throttled else []
    parts.append("; ".join(counts) + ".")
    parts += [f"note: {note}" for note in diff.notes]
    return "\n\n".join(parts)


def headline(diff: Diff) -> str:
    """One line: how many of what."""
    words = []
    regressions = sum(c.regression for c in diff.of("new_failure"))
    new = len(diff.of("new_failure"))
    if new:
        words.append(f"{new} new failure{'s' * (new != 1)}" + (f" ({regressions} regressed)" if regressions else ""))
    for kind, singular in (
        ("no_longer_judged", "no longer judged"),
        ("missing", "missing"),
        ("newly_unsupported", "newly unsupported"),
        ("worse", "worse"),
        ("reason_changed", "failing for another reason"),
        ("less_delegated", "less delegated"),
        ("fixed", "fixed"),
    ):
        count = len(diff.of(kind))  # type: ignore[arg-type]
        words += [f"{count} {singular}"] if count else []
    words += [f"{len(diff.drifts)} drifted"] if diff.drifts else []
    words += [f"{len(diff.flaky)} flaky"] if diff.flaky else []
    return ", ".join(words) or "nothing changed"


def change_line(change: Change) -> str:
    """One change: where, from what to what, why."""
    was = " ".join((change.was or "absent", *change.was_reasons))
    now = " ".join((change.now or "absent", *change.now_reasons))
    tags = "".join(f" [{tag}]" for tag, is_so in (("flaky", change.flaky),) if is_so)
    told = change.kind not in ("missing", "fixed", "added", "better") and change.message
    return f"{_name(change.cell)}: {was} → {now}{tags} ({change.why})" + (f"\n    {change.message}" if told else "")


def drift_line(drift: Drift) -> str:
    """One drift: where, from what to what, against which noise, why."""
    if drift.what == "latency_ms":
        noise = f"noise up to {_factor(drift.limit)}"
        if drift.cells > 1:
            where = f"{drift.cell.device} {drift.cell.config}, all {drift.cells} cells"
            return f"{where}: {drift.factor:.2f} times the latency ({noise}; {drift.why})"
        figures = f"{drift.was:.3g} → {drift.now:.3g} ms, {drift.factor:.2f} times"
        return f"{_name(drift.cell)}: latency {figures} against its device ({noise}; {drift.why})"
    name = f"{drift.what} of {drift.output}"
    return f"{_name(drift.cell)}: {name} {drift.was:.4g} → {drift.now:.4g} (noise {drift.limit:.3g}; {drift.why})"


def _factor(logarithm: float) -> str:
    return f"{2.718281828459045**logarithm:.2f}×"


def _name(cell: Place) -> str:
    signature = f" [{cell.signature}]" if cell.signature not in ("", "serving_default") else ""
    return f"{cell.model}{signature} {cell.config} on {cell.device}"


def _section(title: str, lines: Sequence[str], most: int) -> str:
    shown = [f"  {line}" for line in lines[:most]]
    more = [f"  … and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([f"{title} ({len(lines)})", *shown, *more])
