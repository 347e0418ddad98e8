"""The static site: nights, models, devices and GPU families over time, from the history; plain files, no server needed.

One page per model and device, so that a lab with thousands of cells has no page that is too long to open.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from farm import codec
from farm.history import Database, Point, Trail, model_names, trails
from farm.nightly.value import Night
from farm.report.words import MEANINGS, SYMBOLS, VERDICTS

LAST = 30
STYLE = """
:root{color-scheme:light dark;--b:#fff;--t:#1b1f24;--m:#59636e;--l:#d1d9e0;--bad:#b3261e;--warn:#8a5a00;--good:#1a6b34}
@media(prefers-color-scheme:dark){:root{--b:#14181d;--t:#e6edf3;--m:#9aa4af;--l:#3d444d;--bad:#ff8a80;--warn:#f0b429;
--good:#6fdd8b}}
body{background:var(--b);color:var(--t);font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:78rem;
padding:0 1rem}
a{color:inherit}table{border-collapse:collapse}.w{overflow-x:auto}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--l);white-space:nowrap}
th{color:var(--m);font-weight:600}.pass{color:var(--good)}.warn,.unsupported,.inconclusive,.infra,.not_run{color:var(--warn)}
.fail,.error{color:var(--bad);font-weight:600}input{font:inherit;padding:.3rem .5rem;margin:.5rem 0}
svg{vertical-align:middle}polyline{fill:none;stroke:currentColor;stroke-width:1.5}.m{color:var(--m)}
"""
FILTER = """
for(const box of document.querySelectorAll('input[data-filter]'))box.addEventListener('input',()=>{
const want=box.value.toLowerCase();for(const row of document.querySelectorAll('tbody tr'))
row.hidden=!row.textContent.toLowerCase().includes(want)})
"""


def build_site(database: Database, nights: Sequence[Night], out: Path, *, reports: Mapping[str, str]) -> list[Path]:
    """Write the site into `out`; return the files written, index.html first.

    nights: oldest first. reports: run id → link to its report, as seen from index.html. Raises OSError.
    """
    names = model_names(database)
    families: dict[tuple[str, str], list[str]] = defaultdict(list)
    written: list[Path] = []
    devices: dict[str, list[Trail]] = defaultdict(list)
    for model in names:
        mine = [t for t in trails(database, glob.escape(model), last=LAST) if t.model == model]
        for trail in mine:
            families[trail.gpu, model].append(trail.last.verdict)
            devices[trail.device].append(trail)
        written.append(_write(out / "models" / f"{slug(model)}.html", _trail_page(model, "model", mine, reports)))
    for device, found in devices.items():
        written.append(_write(out / "devices" / f"{slug(device)}.html", _trail_page(device, "device", found, reports)))
    index = _write(out / "index.html", _index(nights, names, sorted(devices), families, reports))
    return [index, *written]


def slug(name: str) -> str:
    """A file name of plain characters, unique also where upper and lower case are the same."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:80]
    plain = safe == name and safe == safe.lower()
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return safe if plain and safe else f"{safe}-{digest}"


def _index(
    nights: Sequence[Night],
    models: Sequence[str],
    devices: Sequence[str],
    families: Mapping[tuple[str, str], Sequence[str]],
    reports: Mapping[str, str],
) -> str:
    rows = []
    for night in reversed(nights[-LAST:]):
        counts = " ".join(f"{_mark(word)}{night.verdicts[word]}" for word in VERDICTS if night.verdicts.get(word))
        new = len(night.diff.of("new_failure")) if night.diff else len(night.failing)
        fixed = len(night.diff.of("fixed")) if night.diff else 0
        link = reports.get(night.runs[0])
        name = f'<a href="{escape(link)}">{escape(night.id)}</a>' if link else escape(night.id)
        rows.append((name, escape(night.started), counts, str(new), str(fixed), str(len(night.uncovered)),
                     str(night.exit_code)))  # fmt: skip
    parts = ["<h1>farm</h1>"]
    if rows:
        heads = ("night", "started", "cells", "new failures", "fixed", "not covered", "exit code")
        parts += ["<h2>Nights</h2>", _table(heads, rows)]
    gpus = sorted({gpu for gpu, _ in families})
    roll = []
    for model in models:
        marks = [_worst(families.get((gpu, model), ())) for gpu in gpus]
        roll.append((f'<a href="models/{slug(model)}.html">{escape(model)}</a>', *marks))
    parts += ["<h2>Models by GPU</h2>", _filter(), _table(("model", *map(escape, gpus)), roll)]
    links = ", ".join(f'<a href="devices/{slug(d)}.html">{escape(d)}</a>' for d in devices)
    parts += [f"<h2>Devices</h2><p>{links}</p>", _legend()]
    return _page("farm", parts)


def _trail_page(name: str, what: str, found: Sequence[Trail], reports: Mapping[str, str]) -> str:
    rows = []
    for trail in found:
        other, room = (trail.device, "devices") if what == "model" else (trail.model, "models")
        marks = "".join(_linked(point, reports) for point in trail.points)
        last = trail.last
        rows.append(
            (
                f'<a href="../{room}/{slug(other)}.html">{escape(other)}</a>',
                escape(trail.gpu),
                escape(trail.signature),
                escape(trail.config),
                escape(trail.runtime),
                marks,
                escape(" ".join((last.verdict, *last.reasons))),
                _plot(trail.points, lambda p: p.snr_db, "SNR in dB"),
                _plot(trail.points, lambda p: None if p.throttled else p.latency_ms, "latency in ms"),
            )
        )
    heads = ("device" if what == "model" else "model", "GPU", "signature", "config", "runtime", "runs, old to new",
             "last", "SNR", "latency")  # fmt: skip
    back = '<p><a href="../index.html">All nights</a></p>'
    return _page(name, [back, f"<h1>{escape(name)}</h1>", _filter(), _table(heads, rows), _legend()])


def _linked(point: Point, reports: Mapping[str, str]) -> str:
    title = escape(f"{point.started} {point.verdict} {' '.join(point.reasons)}".strip(), quote=True)
    mark = f'<span class="{escape(point.verdict)}" title="{title}">{SYMBOLS.get(point.verdict, "?")}</span>'
    link = reports.get(point.run)
    return f'<a href="../{escape(link)}">{mark}</a>' if link else mark


def _plot(points: Sequence[Point], value: Callable[[Point], float | None], what: str) -> str:
    """An inline SVG line with its last value beside it; a gap where nothing was measured."""
    known = [(n, v) for n, point in enumerate(points) if (v := value(point)) is not None]
    if not known:
        return ""
    low, high = min(v for _, v in known), max(v for _, v in known)
    span = high - low or 1.0
    width = 90 / max(len(points) - 1, 1)
    line = " ".join(f"{n * width + 2:.1f},{18 - (v - low) / span * 16:.1f}" for n, v in known)
    label = escape(f"{what}: {low:.4g} to {high:.4g}, last {known[-1][1]:.4g}", quote=True)
    svg = f'<svg width="94" height="20" role="img" aria-label="{label}"><polyline points="{line}"/></svg>'
    return f"{svg} {known[-1][1]:.4g}"


def _worst(verdicts: Iterable[str]) -> str:
    there = set(verdicts)
    worst = next((word for word in VERDICTS if word in there), None)
    return "" if worst is None else f"{_mark(worst)} {escape(worst)}"


def _mark(verdict: str) -> str:
    return f'<span class="{verdict}" title="{escape(MEANINGS[verdict], quote=True)}">{SYMBOLS[verdict]}</span>'


def _legend() -> str:
    words = " · ".join(f"{_mark(v)} {v}" for v in VERDICTS)
    return f'<p class="m">{words}</p>'


def _filter() -> str:
    return '<label>Show rows with <input type="search" data-filter></label>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{h}</th>' for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="w" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}<script>{FILTER}</script></body></html>\n"
    )


def _write(path: Path, text: str) -> Path:
    codec.write_whole(path, text.encode("utf-8", "replace"), durable=False)
    return path
