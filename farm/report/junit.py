"""The matrix as JUnit XML, for CI servers: a suite per device, a test case per cell.

fail → failure; error, infra and inconclusive → error (none of them may look green); unsupported and not_run → skipped
with the reason. What is not counted (diagnostic configs, `known:` results) is skipped unless it passed.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from farm.report import words
from farm.report.value import Matrix, MatrixCell

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(matrix: Matrix) -> str:
    """Return the report as JUnit XML text, its XML declaration included."""
    root = ET.Element("testsuites", name=_clean(f"farm {matrix.run.id}"))
    by_device: dict[str, list[MatrixCell]] = {}
    for cell in matrix.cells:
        by_device.setdefault(cell.device, []).append(cell)
    total = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for device, cells in by_device.items():
        suite = ET.SubElement(root, "testsuite", name=_clean(f"{device}: {cells[0].gpu}"))
        suite.set("timestamp", _clean(matrix.run.started))
        count = {"tests": len(cells), "failures": 0, "errors": 0, "skipped": 0}
        for cell in cells:
            if kind := _case(suite, cell):
                count[kind] += 1
        for name, value in count.items():
            suite.set(name, str(value))
            total[name] += value
    for name, value in total.items():
        root.set(name, str(value))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, cell: MatrixCell) -> str | None:
    """Add one test case; return the counter it belongs to beside `tests`."""
    signature = f" [{cell.signature}]" if cell.signature else ""
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_clean(f"{cell.device}.{cell.model}{signature}"),
        name=_clean(f"{cell.config} ({cell.runtime})"),
    )
    message = _clean(": ".join(filter(None, (", ".join(cell.reasons), _message(cell)))) or words.MEANINGS[cell.verdict])
    if cell.verdict in ("pass", "warn"):
        kind = None
        if cell.verdict == "warn":
            ET.SubElement(case, "system-out").text = f"warn: {message}"
    elif cell.known is not None or cell.diagnostic:
        kind = "skipped"
        why = f"known ({words.known_text(cell.known)})" if cell.known is not None else "diagnostic config"
        ET.SubElement(case, "skipped", message=_clean(f"{why}, not counted: {cell.verdict}: {message}"))
    elif cell.verdict in ("unsupported", "not_run"):
        kind = "skipped"
        ET.SubElement(case, "skipped", message=f"{words.label(cell.verdict)}: {message}")
    elif cell.verdict == "fail":
        kind = "failures"
        ET.SubElement(case, "failure", type=_type(cell), message=message).text = _body(cell)
    else:
        kind = "errors"
        ET.SubElement(case, "error", type=_type(cell), message=f"{cell.verdict}: {message}").text = _body(cell)
    return kind


def _type(cell: MatrixCell) -> str:
    return _clean(cell.reasons[0] if cell.reasons else cell.error.code if cell.error else cell.verdict)


def _message(cell: MatrixCell) -> str:
    return words.prose(cell.message or (cell.error.message if cell.error else ""))


def _body(cell: MatrixCell) -> str:
    lines = [
        f"{o.name} ({o.kind}, set {o.input_set}): {o.verdict} {o.message}" for o in cell.outputs if o.verdict != "pass"
    ]
    lines += [f"adapter: {cell.adapter}"] if cell.adapter else []
    lines += [f"delegation: {cell.delegation}"] + ([f"cause: {cell.cause}"] if cell.cause else [])
    lines += [f"remedy: {cell.remedy}"] if cell.remedy else []
    return _clean("\n".join([*lines, cell.log_tail[-1500:]]).strip())


def _clean(text: str) -> str:
    """Keep what XML 1.0 can hold; the rest becomes an escape."""
    text = words.visible(text, keep="\n\t")
    return _NOT_XML.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
