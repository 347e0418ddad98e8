"""A night in words: what a person reads in the morning, and the three lines of a notification."""

from __future__ import annotations

from collections.abc import Sequence

from farm.diff.text import change_line, headline, render
from farm.nightly.value import Night

LINES = 20


def summary(night: Night, earlier: Sequence[Night] = ()) -> str:
    """Return the whole summary, the most important first. earlier: for the forecast of disk use."""
    parts = [f"Night {night.id}: {verdict_line(night)}"]
    if night.cut:
        parts.append("The night was cut short: cells it did not reach are not run.")
    if night.uncovered:
        parts.append(
            _section(
                "! Judged on no device, though required",
                [f"{c.model} on {c.family}: {c.why}" for c in night.uncovered],
            )
        )
    if night.suspects:
        parts.append(_section("! Suspect devices", list(night.suspects)))
    if night.unsteady:
        parts.append(_section("~ Good and bad in one night", list(night.unsteady)))
    if night.diff is not None:
        since = "the last good night" if night.baseline_good else "the last night (none was good yet)"
        parts.append(f"Since {since}, {render(night.diff, lines=LINES)}")
    elif night.failing:
        parts.append(
            _section("✗ Failing, with no earlier night to compare with", [change_line(c) for c in night.failing])
        )
    if night.controls:
        parts.append(_section("Old runtime run again", [str(c) for c in night.controls]))
    if night.away:
        parts.append(
            _section("○ Devices without an answer", [f"{a.device} ({a.family}): {a.reason}" for a in night.away])
        )
    parts.append(disk_line(night, earlier))
    parts += [f"note: {note}" for note in night.notes]
    return "\n\n".join(parts)


def verdict_line(night: Night) -> str:
    """Counts, coverage and exit code in one line."""
    counts = ", ".join(f"{n} {word}" for word, n in sorted(night.verdicts.items(), key=lambda i: -i[1]))
    covered = sum(c.covered for c in night.coverage)
    return (
        f"{counts or 'no cell'}; {covered} of {len(night.coverage)} required (model, GPU family) judged; "
        f"exit code {night.exit_code}"
    )


def short(night: Night, link: str | None = None) -> str:
    """Three lines and a link, for a chat or a mail."""
    gaps = f"{len(night.uncovered)} required (model, GPU family) not judged" if night.uncovered else "coverage complete"
    changed = headline(night.diff) if night.diff is not None else f"{len(night.failing)} failing, first good night"
    lines = [f"farm {night.id}: exit code {night.exit_code}", changed, gaps]
    return "\n".join([*lines, *([link] if link else [])])


def disk_line(night: Night, earlier: Sequence[Night]) -> str:
    """GB used, growth per night, and how long the budget lasts at that rate."""
    used = f"Disk: {_gb(night.used_bytes)} used, {_gb(night.grown_bytes)} of it tonight"
    grown = [n.grown_bytes for n in (*earlier[-6:], night)]
    mean = sum(grown) / len(grown)
    if night.budget_bytes is None:
        return f"{used}; {_gb(30 * mean)} more in 30 nights at the mean of the last {len(grown)}."
    left = night.budget_bytes - night.used_bytes
    if left <= 0:
        return f"{used}; {_gb(-left)} over the budget of {_gb(night.budget_bytes)}: farm gc makes room."
    if mean <= 0:
        return f"{used}; budget {_gb(night.budget_bytes)}."
    return f"{used}; the budget of {_gb(night.budget_bytes)} lasts {int(left / mean)} more nights."


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB"


def _section(title: str, lines: Sequence[str]) -> str:
    more = [f"  … and {len(lines) - LINES} more"] if len(lines) > LINES else []
    return "\n".join([f"{title} ({len(lines)})", *(f"  {line}" for line in lines[:LINES]), *more])
