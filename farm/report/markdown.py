"""The matrix as report.md: tables GitHub renders, for a pull request, an issue or a CI summary.

Names from models and devices stand in code spans, where GitHub neither reads markup nor pings people.
"""

from __future__ import annotations

import re

from farm.report import words
from farm.report.value import Matrix, MatrixCell, MatrixFinding

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~@&-])")


def render(matrix: Matrix) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    run = matrix.run
    parts = [
        f"# Run {code(run.id)}",
        f"**{escape(words.summary(matrix))}**",
        f"Started {escape(run.started)}, finished {escape(run.finished or 'not yet')}, farm {code(run.farm_version)}.",
    ]
    if matrix.findings:
        parts += ["## Findings", *(_finding(finding) for finding in matrix.findings)]
    if matrix.known_problems:
        parts += ["## Expected results that need a look", "\n".join(f"- {escape(p)}" for p in matrix.known_problems)]
    parts += ["## Matrix", _legend(matrix)]
    cpu = words.cpu_latencies(matrix)
    gpus = {device.id: device.gpu for device in matrix.devices}
    for (model, signature, runtime), rows in words.groups(matrix).items():
        name, extra = words.group_title(matrix, model, signature, runtime)
        configs = words.columns(rows)
        diagnostic = {c.config for row in rows.values() for c in row.values() if c.diagnostic}
        table = [["device", *(code(c) + (" (diagnostic)" if c in diagnostic else "") for c in configs)]]
        for device, row in rows.items():
            head = f"{code(device)}<br>{escape(gpus.get(device, ''))}"
            table.append([head, *(_cell(row.get(config), cpu) for config in configs)])
        parts += [f"### {code(name)}" + (f" ({escape(extra)})" if extra else ""), _table(table)]
    bad = [c for c in matrix.cells if c.verdict not in ("pass", "unsupported")]
    if bad:
        parts += ["## Cells that did not pass", "\n".join(_line(cell) for cell in bad)]
    parts += ["## Devices", _devices(matrix), "## What these numbers are not"]
    parts.append("\n".join(f"- {escape(text)}" for text in words.limitations(matrix)))
    return "\n\n".join(parts) + "\n"


def code(text: str) -> str:
    """A code span that survives backticks, pipes and newlines in `text`."""
    text = words.visible(text).replace("|", "\\|") or " "
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def escape(text: str) -> str:
    """Plain text with Markdown's and HTML's characters made harmless.

    GitHub looks for @mentions after rendering, where a backslash is gone: only a code span keeps it from
    pinging people.
    """
    harmless = _SPECIAL.sub(r"\\\1", words.prose(text)).replace("\\@", "`@`")
    return re.sub(r"^(\d+)\.", r"\1\\.", harmless)  # else a sentence like "3. of May" starts a list


def _legend(matrix: Matrix) -> str:
    used = {c.verdict for c in matrix.cells}
    marks = "; ".join(f"{words.SYMBOLS[v]} {words.label(v)}: {words.MEANINGS[v]}" for v in words.VERDICTS if v in used)
    return (
        f"{escape(marks)}. Times are the median, and the ratio to the same device's `cpu`. {escape(words.PARTIAL)} "
        f"Reference: {escape(words.reference_text(matrix))}."
    )


def _cell(cell: MatrixCell | None, cpu: dict[tuple[str, str, str, str], float]) -> str:
    if cell is None:
        return "not planned"
    lines = [f"{escape(words.SYMBOLS[cell.verdict])} **{words.label(cell.verdict)}**"]
    if detail := " ".join(words.detail(cell)):
        lines.append(escape(detail))
    if cell.latency_ms:
        relative = words.relative_latency(cell, cpu)
        ratio = f" ({words.ratio(relative)})" if relative is not None and cell.config != "cpu" else ""
        lines.append(escape(words.milliseconds(cell.latency_ms.median) + ratio))
    lines += [escape(tag) for tag in words.cell_tags(cell)]
    return "<br>".join(lines)


def _line(cell: MatrixCell) -> str:
    what = cell.message or (cell.error.message if cell.error else "")
    reasons = f" {', '.join(code(r) for r in cell.reasons)}" if cell.reasons else ""
    known = f" (known: {escape(words.known_text(cell.known))})" if cell.known is not None else ""
    counted = " (diagnostic, not counted)" if cell.diagnostic else ""
    where = " / ".join(code(part) for part in (cell.model, cell.signature, cell.device, cell.config) if part)
    return f"- {where}: **{words.label(cell.verdict)}**{reasons}{known}{counted}. {escape(what)}".rstrip()


def _finding(finding: MatrixFinding) -> str:
    cause = f"{code(finding.cause)}: " if finding.cause else ""
    parts = [
        f"### {escape(finding.headline)}",
        f"{cause}{escape(finding.explanation)}",
        f"**{escape(finding.remedy_text or 'No cure seen.')}**",
    ]
    if more := words.further_hazards(finding):
        parts.insert(2, "\n".join(["Predicted beside that:\n", *(f"- {escape(line)}" for line in more)]))
    for language, lines in finding.snippets.items():
        parts.append(f"```{language}\n{lines.rstrip()}\n```")
    if finding.snippet_note:
        parts.append(escape(finding.snippet_note))
    if finding.precedents:
        seen = "\n".join(f"- [{escape(title)}]({link})" for title, link in finding.precedents)
        parts.append(f"Public reports with the same pattern (not necessarily the same fault):\n\n{seen}")
    return "\n\n".join(parts)


def _devices(matrix: Matrix) -> str:
    rows = [["device", "GPU", "driver", "OS", "transport", "profile", "measured precision"]]
    for device in matrix.devices:
        classes = [p for p in matrix.precision_classes if p["device"] == device.id]
        precision = "<br>".join(f"{code(p['config'])} {escape(p['value'])}: {escape(p['evidence'])}" for p in classes)
        texts = (device.gpu, device.driver, device.os, device.transport, device.profile or "")
        rows.append([code(device.id), *(escape(text) for text in texts), precision])
    return _table(rows)


def _table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])
