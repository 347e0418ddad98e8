"""Error over depth for every device and config in one picture: an SVG without scripts, lines also told apart by dashes.

Pure: studies in, text out. The page may be light or dark; text takes the page's colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from farm.layers.study import Row, Study

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 20, 46
TOP_DB = 150.0
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")
DASHES = ("", "6 3", "2 3", "8 3 2 3")


def svg(studies: Sequence[Study]) -> str:
    """x: ops in the order they run. y: SNR in dB, 0 at the bottom (also for layers that are not finite).

    Circles mark the first named op of each line.
    """
    shown = [s for s in studies if s.rows]
    last = max((r.layer.op for s in shown for r in s.rows), default=1) or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 22 * len(shown)}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">',
        "<title>Signal-to-noise ratio per layer, in dB, over the ops in the order they run</title>",
    ]
    for db in range(0, int(TOP_DB) + 1, 25):
        y = _y(float(db))
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="currentColor" opacity="0.15"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{db}</text>')
    parts += [
        f'<text x="{_x(op, last):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{op}</text>'
        for op in sorted({round(last * i / 8) for i in range(9)})
    ]
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">op</text>')
    parts.append(
        f'<text x="14" y="{HEIGHT / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {HEIGHT / 2:.0f})">SNR, dB</text>'
    )
    for number, study in enumerate(shown):
        parts += _line(number, study, last)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(number: int, study: Study, last: int) -> list[str]:
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    rows = sorted(study.rows, key=lambda r: r.layer.op)
    points = " ".join(f"{_x(r.layer.op, last):.1f},{_y(_db(r)):.1f}" for r in rows)
    style = f'stroke="{colour}" stroke-dasharray="{dash}"' if dash else f'stroke="{colour}"'
    out = [f'<polyline points="{points}" fill="none" {style} stroke-width="1.5"/>']
    if study.first is not None:
        row = next(r for r in rows if r.layer.tensor == study.first.layer.tensor)
        x, y = _x(row.layer.op, last), _y(_db(row))
        said = f"op {row.layer.op} {row.layer.op_name}"
        out.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" {style} stroke-width="2">'
            f"<title>{escape(said)}</title></circle>"
        )
    y = HEIGHT + 22 * number + 6
    label = f"{study.device} · {study.config} ({study.precision_class})"
    if study.first is not None:
        label += f", first bad: op {study.first.layer.op} {study.first.layer.op_name}"
    out.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + 30}" y2="{y}" {style} stroke-width="2"/>')
    out.append(f'<text x="{LEFT + 38}" y="{y + 4}">{escape(_clean(label))}</text>')
    return out


def _db(row: Row) -> float:
    return row.health.snr_db if row.health.snr_db is not None and not row.health.new_nonfinite else 0.0


def _x(op: int, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * op / last


def _y(db: float) -> float:
    share = min(max(db, 0.0), TOP_DB) / TOP_DB
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
