"""The matrix as one self-contained page: report.html loads nothing from anywhere and works without scripts.

Every text is escaped by jinja2, and a Content-Security-Policy lets only our own script and style (by hash) run. A
cell's evidence is a sheet that its address opens (``report.html#c12``), so it can be linked to.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.compiler

from farm.caches import cache_root, used
from farm.codec import write_whole
from farm.report import words
from farm.report.value import Matrix, MatrixCell

if TYPE_CHECKING:
    from jinja2.bccache import Bucket

LOG_CHARS = 2000
"""Of a log's tail, what the page shows; matrix.json has more and the run folder all of it."""
LANGUAGES = {"kotlin": "Kotlin", "cpp": "C++", "python": "Python"}


def render(matrix: Matrix) -> str:
    """Return the page."""
    anchors = {cell.id: f"c{place}" for place, cell in enumerate(matrix.cells)}
    classes: dict[str, list[dict[str, str]]] = {device.id: [] for device in matrix.devices}
    evidence = {}
    for precision in matrix.precision_classes:
        classes.setdefault(precision["device"], []).append(precision)
        evidence[precision["device"], precision["runtime"], precision["config"]] = precision["evidence"]
    groups, group_of = _groups(matrix, anchors)
    tally, known, diagnostic = words.counts(matrix)
    style, script = _asset("report.css"), _asset("report.js")
    used = {cell.verdict for cell in matrix.cells}
    return _template().render(
        run=matrix.run,
        exit_meaning=words.exit_meaning(matrix),
        tally=tally,
        known=known,
        diagnostic=diagnostic,
        findings=matrix.findings,
        known_problems=matrix.known_problems,
        devices=matrix.devices,
        classes=classes,
        several_runtimes=len({cell.runtime for cell in matrix.cells}) > 1,
        anchors=anchors,
        configs_of={cell.id: cell.config for cell in matrix.cells},
        languages=LANGUAGES,
        groups=groups,
        glance=_glance(matrix, anchors),
        sheets=[
            {
                "cell": cell,
                "anchor": anchors[cell.id],
                "group": group_of[cell.id],
                "tags": words.cell_tags(cell),
                "known": words.known_text(cell.known) if cell.known is not None else "",
                "precision": evidence.get((cell.device, cell.runtime, cell.config), ""),
                "thermal": _thermal(cell),
                "log": "" if cell.verdict == "pass" else cell.log_tail[-LOG_CHARS:],
            }
            for cell in matrix.cells
        ],
        partial=any(cell.delegation == "partial" for cell in matrix.cells),
        partial_text=words.PARTIAL,
        reference_text=words.reference_text(matrix),
        limitations=words.limitations(matrix),
        symbols=words.SYMBOLS,
        meanings=words.MEANINGS,
        verdicts=[verdict for verdict in words.VERDICTS if verdict in used],
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _groups(matrix: Matrix, anchors: dict[str, str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    cpu = words.cpu_latencies(matrix)
    place_of = {device.id: place for place, device in enumerate(matrix.devices)}
    gpus = {device.id: device.gpu for device in matrix.devices}
    groups: list[dict[str, Any]] = []
    group_of: dict[str, int] = {}
    for place, ((model, signature, runtime), rows) in enumerate(words.groups(matrix).items()):
        title, extra = words.group_title(matrix, model, signature, runtime)
        configs = words.columns(rows)
        cells = [cell for row in rows.values() for cell in row.values()]
        group_of.update({cell.id: place for cell in cells})
        groups.append(
            {
                "title": title,
                "extra": extra,
                "configs": configs,
                "diagnostic": {cell.config for cell in cells if cell.diagnostic},
                "inputs": cells[0].inputs,
                "rows": [
                    {
                        "device": device,
                        "gpu": gpus.get(device, ""),
                        "index": place_of.get(device, ""),
                        "cells": [_cell(row[config], anchors, cpu) if config in row else None for config in configs],
                    }
                    for device, row in rows.items()
                ],
            }
        )
    return groups, group_of


def _glance(matrix: Matrix, anchors: dict[str, str]) -> list[dict[str, Any]]:
    """The whole matrix on one screen: a row per model, a column per device, in it one mark per counted config."""
    rows = []
    for place, ((model, signature, runtime), by_device) in enumerate(words.groups(matrix).items()):
        title, extra = words.group_title(matrix, model, signature, runtime)
        marks = [
            [
                {"cell": cell, "anchor": anchors[cell.id], "detail": " ".join(words.detail(cell))}
                for cell in by_device.get(device.id, {}).values()
                if not cell.diagnostic
            ]
            for device in matrix.devices
        ]
        rows.append({"title": title, "extra": extra, "group": place, "marks": marks})
    return rows


def _cell(cell: MatrixCell, anchors: dict[str, str], cpu: dict[tuple[str, str, str, str], float]) -> dict[str, Any]:
    time = words.milliseconds(cell.latency_ms.median) if cell.latency_ms else ""
    relative = words.relative_latency(cell, cpu)
    if relative is not None and cell.config != "cpu":
        time += f" ({words.ratio(relative).replace('x', '×')})"
    detail = " ".join(words.detail(cell))
    return {"cell": cell, "anchor": anchors[cell.id], "tags": words.cell_tags(cell), "detail": detail, "time": time}


def _thermal(cell: MatrixCell) -> str:
    if cell.thermal is None:
        return ""
    before, after = cell.thermal.get("before_c"), cell.thermal.get("after_c")
    parts = [f"before {before:.1f} °C"] if before is not None else []
    parts += [f"after {after:.1f} °C"] if after is not None else []
    return ", ".join(parts + (["throttled"] if cell.thermal.get("throttled") else []))


@cache
def _template() -> jinja2.Template:
    """The template, a constant of the package, compiled once per machine and loaded once per process."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        loader=jinja2.FunctionLoader(_asset),
        bytecode_cache=_Compiled(),
    )
    environment.filters |= {
        "v": words.visible,
        "prose": words.prose,
        "log": lambda text: words.visible(text, keep="\n\t"),
        "label": words.label,
        "further_hazards": words.further_hazards,
        "num": words.number,
        "size": words.bytes_text,
        "web": lambda link: link.startswith(("https://", "http://")),
    }
    return environment.get_template("report.html")


class _Compiled(jinja2.BytecodeCache):
    """Keeps the compiled template among farm's caches: compiling costs more than all else a small report needs.

    jinja2 refuses what another Python or another template made; the name tells its compiler's own state, and a digest
    goes before the code, since damaged code would end the process.
    """

    def _path(self, bucket: Bucket) -> Path:
        stat = Path(jinja2.compiler.__file__).stat()
        name = f"{bucket.key[:16]}-{stat.st_size}-{stat.st_mtime_ns}.{sys.implementation.cache_tag}"
        return cache_root() / "templates" / name

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            kept = self._path(bucket).read_bytes()
            if hashlib.sha256(kept[32:]).digest() == kept[:32]:
                bucket.bytecode_from_string(kept[32:])
                used(self._path(bucket))

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            code = bucket.bytecode_to_string()
            write_whole(self._path(bucket), hashlib.sha256(code).digest() + code, durable=False)


@cache
def _asset(name: str) -> str:
    return (resources.files("farm.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """A Content-Security-Policy source: only a script or style of exactly these bytes runs."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
