"""The matrix as CSV, for spreadsheets: one row per cell and output, one row for a cell without outputs."""

from __future__ import annotations

import csv
import io

from farm.report import words
from farm.report.value import Matrix, MatrixCell, MatrixOutput

METRICS = (
    "snr_db", "cosine", "max_abs", "relative_l2", "norm_ratio", "equal_share", "min_row_cosine", "top1",
    "kl", "max_steps",
)  # fmt: skip
COLUMNS = (
    "run", "device", "gpu", "model", "signature", "runtime", "config", "diagnostic", "verdict", "reasons", "known",
    "delegation", "cpu_ops", "gpu_api", "adapter", "precision_class", "inputs", "process", "reference", "floor_db",
    "output", "kind", "input_set", "output_verdict", "output_reasons", *METRICS, "cause", "remedy", "latency_ms_median",
    "latency_ms_p95", "latency_n", "latency_vs_cpu", "compile_ms", "peak_rss_bytes", "attempts", "message",
)  # fmt: skip


def render(matrix: Matrix) -> str:
    """Return the report as CSV with a header row and CRLF line ends (RFC 4180)."""
    cpu = words.cpu_latencies(matrix)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for cell in matrix.cells:
        for output in cell.outputs or (None,):
            values = _row(matrix, cell, output, words.relative_latency(cell, cpu))
            writer.writerow([_field(values[column]) for column in COLUMNS])
    return out.getvalue()


def _row(
    matrix: Matrix, cell: MatrixCell, output: MatrixOutput | None, relative: float | None
) -> dict[str, str | float | None]:
    latency = cell.latency_ms
    metrics = output.metrics if output else {}
    return {
        "run": matrix.run.id,
        "device": cell.device,
        "gpu": cell.gpu,
        "model": cell.model,
        "signature": cell.signature,
        "runtime": cell.runtime,
        "config": cell.config,
        "diagnostic": "yes" if cell.diagnostic else "no",
        "verdict": cell.verdict,
        "reasons": " ".join(cell.reasons),
        "known": words.known_text(cell.known) if cell.known is not None else "",
        "delegation": cell.delegation,
        "cpu_ops": "; ".join(cell.cpu_ops),
        "gpu_api": cell.gpu_api,
        "adapter": cell.adapter,
        "precision_class": cell.precision_class,
        "inputs": cell.inputs,
        "process": cell.process,
        "reference": cell.reference.status,
        "floor_db": cell.reference.floor_db,
        "output": output.name if output else "",
        "kind": output.kind if output else "",
        "input_set": output.input_set if output else "",
        "output_verdict": output.verdict if output else "",
        "output_reasons": " ".join(output.reasons) if output else "",
        **{name: metrics.get(name) for name in METRICS},
        "cause": cell.cause,
        "remedy": cell.remedy,
        "latency_ms_median": latency.median if latency else None,
        "latency_ms_p95": latency.p95 if latency else None,
        "latency_n": latency.n if latency else None,
        "latency_vs_cpu": relative,
        "compile_ms": cell.compile_ms,
        "peak_rss_bytes": cell.peak_rss_bytes,
        "attempts": cell.attempts,
        "message": words.prose(
            (output.message if output and output.message else cell.message)
            or (cell.error.message if cell.error else "")
        ),
    }


def _field(value: str | float | None) -> str:
    """One field; text a spreadsheet would run as a formula gets a leading apostrophe."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return f"{value:.9g}" if isinstance(value, float) else str(value)
    text = words.visible(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
