"""The matrix for a terminal: a block per model, devices down, configs across; then findings and one line of summary.

Colour is added only when asked for and never carries anything the words do not say.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from farm.report import words
from farm.report.value import Matrix, MatrixCell, MatrixFinding
from farm.report.words import prose, visible

_SGR = {
    "pass": "32",
    "warn": "33",
    "fail": "1;31",
    "error": "1;31",
    "unsupported": "2",
    "inconclusive": "35",
    "infra": "36",
    "not_run": "2",
}
_DEVICE_WIDTH = 15
_CELL_WIDTH = 14
_MOST_NOTES, _MOST_PLACES = 12, 4


def render(matrix: Matrix, *, width: int = 80, colour: bool = False) -> str:
    """Return the report as text no wider than `width` columns (60 at least)."""
    width = max(60, width)
    parts = [_header(matrix, width)]
    cpu = words.cpu_latencies(matrix)
    for (model, signature, runtime), rows in words.groups(matrix).items():
        parts.append(_block(matrix, model, signature, runtime, rows, cpu, width, colour))
    parts.append(_legend(matrix, width))
    transports = {device.id: device.transport for device in matrix.devices}
    parts += [_finding(finding, transports.get(finding.device, ""), width) for finding in matrix.findings]
    if notes := _unanswered(matrix, width):
        parts.append(notes)
    if matrix.known_problems:
        parts.append(
            "Expected results that need a look\n"
            + "\n".join(_fill(prose(problem), width, "  - ", "    ") for problem in matrix.known_problems)
        )
    parts.append(_fill(prose(words.summary(matrix)), width))
    return "\n\n".join(parts) + "\n"


def _header(matrix: Matrix, width: int) -> str:
    run = matrix.run
    lines = [f"Run {visible(run.id)}, farm {visible(run.farm_version)}"]
    for device in matrix.devices:
        facts = ", ".join(filter(None, (device.os, device.driver, device.profile and f"profile {device.profile}")))
        gpu = visible(device.gpu)
        lines.append(
            _fill(
                f"{visible(device.id)} ({device.transport}): {gpu}" + (f"; {visible(facts)}" if facts else ""),
                width,
                "  ",
                "    ",
            )
        )
        classes = [p for p in matrix.precision_classes if p["device"] == device.id]
        if classes:
            several = len({p["runtime"] for p in classes}) > 1
            text = ", ".join(
                f"{p['config']} = {p['value']}" + (f" ({p['runtime']})" if several else "") for p in classes
            )
            lines.append(_fill(f"measured precision: {visible(text)}", width, "    ", "    "))
    lines.append(_fill(f"Reference: {words.reference_text(matrix)}.", width))
    return "\n".join(lines)


def _block(
    matrix: Matrix,
    model: str,
    signature: str,
    runtime: str,
    rows: dict[str, dict[str, MatrixCell]],
    cpu: dict[tuple[str, str, str, str], float],
    width: int,
    colour: bool,
) -> str:
    name, extra = words.group_title(matrix, model, signature, runtime)
    cells = [cell for row in rows.values() for cell in row.values()]
    title = _clip(visible(name) + (f" [{visible(extra)}]" if extra else ""), width - 20)
    diagnostic = {cell.config for cell in cells if cell.diagnostic}
    gpus = {device.id: device.gpu for device in matrix.devices}
    devices = ["device", *(_device_text(device, gpus.get(device, "")) for device in rows)]
    columns = [
        [
            _clip(visible(config), _CELL_WIDTH) + ("\n(diag.)" if config in diagnostic else ""),
            *(_cell(row.get(config), cpu, colour) for row in rows.values()),
        ]
        for config in words.columns(rows)
    ]
    tables = [_table([devices, *part]) for part in _fitting(devices, columns, width)]
    return "\n".join([f"{title} ({cells[0].inputs} inputs)", *tables])


def _fitting(devices: list[str], columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """Split columns into tables no wider than `width`, one column at least in each."""
    parts: list[list[list[str]]] = []
    for column in columns:
        if parts and _width(_table([devices, *parts[-1], column])) <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    return parts


def _table(columns: list[list[str]]) -> str:
    header, *body = zip(*columns, strict=True)
    return tabulate(body, headers=header, tablefmt="simple_grid", disable_numparse=True)


def _width(table: str) -> int:
    return len(table.partition("\n")[0])


def _device_text(device: str, gpu: str) -> str:
    wrapped = textwrap.wrap(visible(gpu), _DEVICE_WIDTH - 1)[:3]
    return "\n".join([_clip(visible(device), _DEVICE_WIDTH), *(f" {line}" for line in wrapped)])


def _cell(cell: MatrixCell | None, cpu: dict[tuple[str, str, str, str], float], colour: bool) -> str:
    if cell is None:
        return "not planned"
    word = f"{words.SYMBOLS[cell.verdict]} {words.label(cell.verdict)}"
    lines = [f"\x1b[{_SGR[cell.verdict]}m{word}\x1b[0m" if colour else word]
    lines += [_clip(visible(text), _CELL_WIDTH) for text in words.detail(cell)]
    relative = words.relative_latency(cell, cpu)
    if cell.latency_ms:
        time = words.milliseconds(cell.latency_ms.median)
        lines.append(f"{words.ratio(relative)} cpu" if relative is not None and cell.config != "cpu" else time)
    lines += words.cell_tags(cell)
    return "\n".join(lines)


def _legend(matrix: Matrix, width: int) -> str:
    notes = ["“0.5x cpu”: half the time of that device's cpu column."]
    if any(c.diagnostic for c in matrix.cells):
        notes.append("Diagnostic columns (diag.) explain causes and are never counted.")
    if any(c.delegation == "partial" for c in matrix.cells):
        notes.append("“partial GPU”: some ops ran on the CPU.")
    apps = list(dict.fromkeys(visible(c.device) for c in matrix.cells if c.process == "app"))
    notes.append(
        f"{', '.join(apps)}: from inside an app; other cells come from a shell process."
        if apps
        else "Cells come from a shell process, not an app."
    )
    if any("metal" in (c.gpu_api or "").lower() for c in matrix.cells):
        notes.append("A Mac's Metal column is no evidence for iPhones.")
    return _fill(" ".join(notes), width)


def _unanswered(matrix: Matrix, width: int) -> str:
    """Why cells without numbers have none, each reason once."""
    groups = words.unanswered(matrix)
    lines = []
    for cell, text, places in groups[:_MOST_NOTES]:
        where = "; ".join(places[:_MOST_PLACES])
        if len(places) > _MOST_PLACES:
            where += f"; and {len(places) - _MOST_PLACES} more"
        sentence = prose(f"{words.label(cell.verdict)}: {text}").rstrip(".")
        lines.append(_fill(f"{sentence}. [{prose(where)}]", width, f"{words.SYMBOLS[cell.verdict]} ", "  "))
    if len(groups) > _MOST_NOTES:
        lines.append(f"and {len(groups) - _MOST_NOTES} other reasons: report.md lists every cell.")
    return "\n".join(lines)


def _finding(finding: MatrixFinding, transport: str, width: int) -> str:
    # A phone's app is written in Kotlin first; on a desktop Python is at hand.
    languages = ("kotlin", "cpp", "python") if transport == "adb" else ("python", "cpp", "kotlin")
    lines = [_fill(prose(finding.headline), width, "* ", "  ")]
    cause = f"{finding.cause}: " if finding.cause else ""
    lines += [
        _fill(text, width, "  ", "  ")
        for text in (prose(f"{cause}{finding.explanation}"), prose(finding.remedy_text))
        if text
    ]
    language = next((name for name in languages if name in finding.snippets), None)
    if language:
        lines.append(textwrap.indent(f"{language}:\n{finding.snippets[language].rstrip()}", "    "))
        if others := ", ".join(name for name in finding.snippets if name != language):
            lines.append(_fill(f"Lines for {others}: in report.html and report.md.", width, "  ", "  "))
    lines += [_fill(f"Seen before? {prose(title)} {link}", width, "  ", "    ") for title, link in finding.precedents]
    return "\n".join(lines)


def _fill(text: str, width: int, first: str = "", rest: str = "") -> str:
    lines: Sequence[str] = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
    return "\n".join(lines)


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
