"""Words, symbols and short numbers the formats share, so a verdict reads the same in a terminal, a page and a table."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from farm.report.value import Matrix, MatrixCell, MatrixFinding, MatrixOutput

VERDICTS = ("fail", "error", "inconclusive", "infra", "not_run", "warn", "unsupported", "pass")
"""All verdicts, worst first as a reader wants them."""
SYMBOLS = {
    "pass": "✓",
    "warn": "!",
    "fail": "✗",
    "error": "‼",
    "unsupported": "–",
    "inconclusive": "?",
    "infra": "⊘",
    "not_run": "○",
}
LABELS = {"not_run": "not run"}
MEANINGS = {
    "pass": "the numbers are right within the limits",
    "warn": "the numbers drift, but stay short of the fail limit",
    "fail": "the numbers are wrong",
    "error": "the model or the runtime failed: crash, time-out, refused file",
    "unsupported": "the delegate refused the model, or the device has no such accelerator",
    "inconclusive": "there is no trustworthy reference to judge against",
    "infra": "the device, the link or a disk failed; says nothing about the model",
    "not_run": "planned, never finished",
}
SHORT_REASONS = {
    "SILENT_ZERO_VECTOR": "zeros",
    "NUMERICAL_INSTABILITY": "NaN/Inf",
    "SATURATION": "saturated",
    "SCALE_ERROR": "scale",
    "PRECISION_DEGRADATION": "precision",
    "VALUE_MISMATCH": "mismatch",
    "SHAPE_MISMATCH": "shape",
    "MISSING_OUTPUT": "missing",
    "NONDETERMINISTIC": "unsteady",
    "INPUT_INDEPENDENT": "stuck",
    "ASSERTION": "assertion",
    "ASSERTION_UNDEFINED": "no assert.",
    "CRASH": "crash",
    "TIMEOUT": "time-out",
    "INVALID_MODEL": "bad file",
    "RUNTIME_ERROR": "runtime",
    "OUT_OF_MEMORY": "memory",
    "REFERENCE_INVALID": "ref invalid",
    "REFERENCE_UNSTABLE": "ref unstable",
    "REFERENCE_VACUOUS": "ref vacuous",
    "REFERENCE_MISSING": "no ref",
    "UNSUPPORTED": "refused",
    "NO_ACCELERATOR": "no GPU/NPU",
    "NOT_DELEGATED": "on the CPU",
    "OTHER_BACKEND": "other GPU API",
    "DEVICE_LOST": "lost",
    "DEVICE_UNAVAILABLE": "unavailable",
    "HOST_KEY_REFUSED": "host key",
    "TRANSFER_FAILED": "transfer",
    "NO_SPACE": "disk full",
    "DEADLINE_EXCEEDED": "deadline",
    "LEASE_LOST": "lease lost",
}
_MOST_HAZARDS = 4
"""A hazard makes the ops behind it hazardous too: a few tell the place, matrix.json has more."""
EXIT_CODES = {
    0: "every counted cell passed, warned or was unsupported",
    1: "at least one counted cell failed, broke an expectation, or ended in an error",
    2: "the input or the configuration could not be used",
    3: "nothing failed, but at least one counted cell has no answer (inconclusive, infra, or not run)",
}
LIMITATIONS = (
    "Cells come from a shell process, not from an app: an app may get another GPU API (OpenCL can be blocked for "
    "apps), another runtime version, or silently the CPU.",
    "Synthetic inputs are generated, seeded data: they show whether two backends agree, not how well the model does "
    "its task. Give your own with --inputs; cells say which they used.",
    "A Mac's Metal column is no evidence for iPhones: another GPU, another driver, another OS.",
    "Latency is measured here under these conditions (one process, one cell at a time): compare columns of one "
    "device, not devices of different kinds.",
)
APP_LIMITATION = (
    "Some cells come from inside an app (process: app), with its own runtime: their precision was not measured, and "
    "what ran where is what the app said."
)
PARTIAL = (
    "“partial” marks a cell where some ops ran on the CPU because the delegate refused them: its numbers and its speed "
    "are those of a mixture."
)

_MEASURED = frozenset({"PRECISION_DEGRADATION", "SCALE_ERROR", "VALUE_MISMATCH"})
"""Reasons whose size matters; NaN or a crash is what it is."""
_SHORT_METRICS = {
    "snr_db": "{:.0f} dB",
    "top1": "top-1 {:.3g}",
    "min_row_cosine": "cos {:.4f}",
    "max_steps": "{:.0f} steps",
    "equal_share": "{:.4g} equal",
    "max_abs": "|d| {:.2g}",
    "cosine": "cos {:.4f}",
}
_METRIC_OF_KIND = {
    "values": "snr_db",
    "embedding": "min_row_cosine",
    "distribution": "top1",
    "classification": "top1",
    "probability": "max_abs",
    "mask": "max_abs",
    "quantised": "max_steps",
    "ints": "equal_share",
    "bools": "equal_share",
    "indices": "equal_share",
}
"""The metric each kind is judged by (docs/judging.md's table)."""
_SEVERITY = {verdict: place for place, verdict in enumerate(VERDICTS)}


def visible(text: str, *, keep: str = "") -> str:
    """Replace what could drive a terminal, reorder text or break a file by its escape; `keep` lists exceptions.

    Control characters, bidirectional controls, line separators, lone surrogates and non-characters become ``\\u202e``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _hostile(c) else _escape(c) for c in text)


def prose(text: str) -> str:
    """Sentences on one line: white space folded, then made `visible`."""
    return visible(" ".join(text.split()))


def _hostile(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Cn") and char != "\u200d"


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def label(verdict: str) -> str:
    return LABELS.get(verdict, verdict)


def unanswered(matrix: Matrix) -> list[tuple[MatrixCell, str, list[str]]]:
    """Cells that have words instead of numbers, grouped by verdict and words: (one of them, the words, where).

    Where: "MODEL on DEVICE (CONFIG, …)". Cells that a finding tells of are left out. Worst verdict first.
    """
    told = {cell for finding in matrix.findings for cell in finding.failing}
    found: dict[tuple[str, str], list[MatrixCell]] = {}
    for cell in matrix.cells:
        text = (cell.error.message if cell.error else "") or cell.message
        if cell.verdict in ("error", "inconclusive", "infra", "unsupported") and text and cell.id not in told:
            found.setdefault((cell.verdict, text), []).append(cell)
    groups_ = sorted(found.items(), key=lambda item: _SEVERITY[item[0][0]])
    return [(cells[0], text, _places(cells)) for (_, text), cells in groups_]


def _places(cells: Sequence[MatrixCell]) -> list[str]:
    places: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        places.setdefault((cell.model, cell.device), []).append(cell.config)
    return [f"{model} on {device} ({', '.join(dict.fromkeys(configs))})" for (model, device), configs in places.items()]


def further_hazards(finding: MatrixFinding) -> list[str]:
    """The predicted hazards behind the first, which the explanation names; the rest as a number."""
    lines = [h.message for h in finding.hazards[1 : 1 + _MOST_HAZARDS]]
    left = finding.hazards_found - 1 - len(lines)
    return [*lines, f"and {left} more"] if left > 0 else lines


def short_reason(cell: MatrixCell) -> str:
    """The first reason in one or two words, or nothing."""
    reason = cell.reasons[0] if cell.reasons else cell.error.code if cell.error else ""
    return SHORT_REASONS.get(reason, reason.lower().replace("_", " "))


def worst_output(cell: MatrixCell) -> MatrixOutput | None:
    """The output that decided the cell: the first of the most severe verdict."""
    return min(cell.outputs, key=lambda output: _SEVERITY.get(output.verdict, 0), default=None)


def detail(cell: MatrixCell) -> list[str]:
    """The short reason and, where a number says more than the reason alone, the deciding metric."""
    reason = short_reason(cell)
    telling = not reason or (bool(cell.reasons) and cell.reasons[0] in _MEASURED)
    return [text for text in (reason, worst_metric(cell) if telling else "") if text]


def worst_metric(cell: MatrixCell) -> str:
    """The number that decided the worst output, e.g. ``38 dB`` or ``cos 0.9912``; empty when there is none."""
    output = worst_output(cell)
    return short_metric(output) if output else ""


def short_metric(output: MatrixOutput) -> str:
    """The metric its kind is judged by; where that is missing, the first well-known one."""
    if output.metrics.get("equal_share") == 1.0:
        return "equal"
    for name in (_METRIC_OF_KIND.get(output.kind, ""), *_SHORT_METRICS):
        if name in output.metrics:
            return _SHORT_METRICS[name].format(output.metrics[name])
    return ""


def milliseconds(value: float) -> str:
    """A time for people, at three digits."""
    if value < 0.1:
        return f"{value * 1000:.3g} µs"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def ratio(value: float) -> str:
    return f"{value:.0f}x" if value >= 10 else f"{value:.2g}x" if value >= 0.1 else f"{value:.1g}x"


def number(value: float) -> str:
    return f"{value:.6g}"


def bytes_text(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024  # type: ignore[assignment]
    return f"{size:.2f} GiB"


def cpu_latencies(matrix: Matrix) -> dict[tuple[str, str, str, str], float]:
    """(device, model, signature, runtime) → median ms of that device's `cpu` config."""
    return {
        (c.device, c.model, c.signature, c.runtime): c.latency_ms.median
        for c in matrix.cells
        if c.config == "cpu" and c.latency_ms
    }


def relative_latency(cell: MatrixCell, cpu: dict[tuple[str, str, str, str], float]) -> float | None:
    """Time of the cell over the time of the device's `cpu` config on the same model."""
    base = cpu.get((cell.device, cell.model, cell.signature, cell.runtime))
    return cell.latency_ms.median / base if cell.latency_ms and base else None


def groups(matrix: Matrix) -> dict[tuple[str, str, str], dict[str, dict[str, MatrixCell]]]:
    """(model, signature, runtime) → device → config → cell, in the plan's order."""
    out: dict[tuple[str, str, str], dict[str, dict[str, MatrixCell]]] = {}
    for cell in matrix.cells:
        row = out.setdefault((cell.model, cell.signature, cell.runtime), {}).setdefault(cell.device, {})
        row[cell.config] = cell
    return out


def columns(rows: dict[str, dict[str, MatrixCell]]) -> list[str]:
    """Configs of a group: counted ones first, diagnostics last, else in the plan's order."""
    seen = {cell.config: cell.diagnostic for row in rows.values() for cell in row.values()}
    return sorted(seen, key=lambda config: seen[config])


def group_title(matrix: Matrix, model: str, signature: str, runtime: str) -> tuple[str, str]:
    """Heading of a group: the model, and what else is needed to tell it from its neighbours."""
    signatures = {c.signature for c in matrix.cells if c.model == model}
    runtimes = {c.runtime for c in matrix.cells}
    extra = [f"signature {signature}"] if len(signatures) > 1 else []
    return model, ", ".join(extra + ([f"runtime {runtime}"] if len(runtimes) > 1 else []))


def counts(matrix: Matrix) -> tuple[dict[str, int], int, int]:
    """Verdict → number of counted cells (worst first, zeros left out), cells marked known, diagnostic cells."""
    counted = [c for c in matrix.cells if not c.diagnostic and c.known is None]
    tally = {v: n for v in VERDICTS if (n := sum(c.verdict == v for c in counted))}
    known = sum(c.known is not None and not c.diagnostic for c in matrix.cells)
    return tally, known, sum(c.diagnostic for c in matrix.cells)


def summary(matrix: Matrix) -> str:
    """One line: counts and what the exit code means."""
    tally, known, diagnostic = counts(matrix)
    parts = [f"{n} {label(v)}" for v, n in tally.items()]
    parts += [f"{known} known"] if known else []
    parts += [f"{diagnostic} diagnostic (not counted)"] if diagnostic else []
    return f"{', '.join(parts) or 'no counted cells'}. Exit code {matrix.run.exit_code}: {exit_meaning(matrix)}."


def exit_meaning(matrix: Matrix) -> str:
    return EXIT_CODES.get(matrix.run.exit_code, "see `farm --help`")


def known_text(known: dict[str, object]) -> str:
    """A `known:` entry in one line."""
    parts = [str(known.get(k)) for k in ("verdict", "reason") if known.get(k)]
    parts += [f"until {known['until']}"] if known.get("until") else []
    return " ".join(parts) or "expected"


def cell_tags(cell: MatrixCell) -> list[str]:
    """What must be seen beside the verdict wherever the cell is shown."""
    tags = [f"{cell.delegation} GPU"] if cell.delegation == "partial" else []
    return tags + (["known"] if cell.known is not None else [])


def reference_text(matrix: Matrix) -> str:
    return "this host's CPU (XNNPACK, one thread, FP32), run twice in fresh processes"


def limitations(matrix: Matrix) -> tuple[str, ...]:
    """The sentences every long report ends with."""
    return (*LIMITATIONS, APP_LIMITATION) if any(c.process == "app" for c in matrix.cells) else LIMITATIONS
