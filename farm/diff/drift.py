"""Numbers that moved beyond noise although the verdict stayed: metrics cell by cell, latency against its device.

Latency of one night differs from another's for reasons that are no model's (a warm room, another process), so each
cell's ratio is set against the median of ratios of its device and config; that median itself is reported where it
moved. Cells of a throttled device are left out.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from farm.diff.pair import Key, Pair, key, same_ground
from farm.diff.value import Drift
from farm.report.value import Matrix, MatrixCell

LATENCY_FACTOR = 1.3
"""Smaller ratios between medians are taken for noise, whatever the run says of its own spread."""
LATENCY_MS = 0.2
"""Smaller differences are noise whatever their ratio: timer and scheduler, on cells of a few tenths of a ms."""
GROUP = 3
"""Fewer ratios have no median worth the name."""
SPREADS = 3.0
"""So many robust standard deviations (1.4826 · MAD) of the usual values are noise."""
SNR_DB = 3.0
"""A smaller change of an SNR is noise: 3 dB is a doubling of the error's power."""
SNR_CAP_DB = 120.0
"""Beyond this SNRs differ by the order of float32 additions alone; no difference at all is stored as 999."""
ERROR_DB = 6.0
"""A smaller change of an error (max_abs, kl, 1 − cosine) is noise: 6 dB is a factor of two."""
SHARE = 0.001
"""A smaller change of a share of elements is noise."""
STEPS = 1.0
"""A smaller change in quantisation steps is noise."""

_FLOORS = {"max_abs": 1e-6, "kl": 1e-6, "cosine": 1e-9, "min_row_cosine": 1e-9}
"""Errors below are rounding; they are lifted to this before a ratio is taken."""


def drifts(
    pairs: Sequence[Pair], *, old: Matrix, new: Matrix, earlier: Sequence[Matrix] = ()
) -> tuple[tuple[Drift, ...], int]:
    """Return the drifts, worst first, and how many pairs took no part in latency because of throttling.

    Only cells that ran through in both runs are compared. Where `earlier` runs stood on the same ground as the old
    cell, their spread widens what counts as noise.
    """
    both = [(p, p.old, p.new) for p in pairs if p.old and p.new and p.old.outputs and p.new.outputs]
    past = _past(both, old, earlier)
    found = [drift for pair, was, now in both for drift in _metric_drifts(pair, was, now, past)]
    timed = [(p, p.old, p.new) for p in pairs if p.old and p.new and p.old.latency_ms and p.new.latency_ms]
    cool = [(p, was, now) for p, was, now in timed if not (_throttled(was) or _throttled(now))]
    found += _latency_drifts(cool, past)
    found.sort(key=lambda d: (not d.worse, -d.size / d.limit))
    return tuple(found), len(timed) - len(cool)


Both = tuple[Pair, MatrixCell, MatrixCell]


def _past(both: Sequence[Both], old: Matrix, earlier: Sequence[Matrix]) -> Mapping[tuple[Key, str], list[MatrixCell]]:
    """Cells of earlier runs on the same ground as the old run's, by key and runtime; throttled ones left out."""
    wanted = {(key(was), was.runtime): was for _, was, _ in both}
    base = {device.id: device for device in old.devices}
    found: dict[tuple[Key, str], list[MatrixCell]] = defaultdict(list)
    for run in earlier:
        devices = {device.id: device for device in run.devices}
        for cell in run.cells:
            was = wanted.get((key(cell), cell.runtime))
            ground = was and same_ground(cell, was, devices.get(cell.device), base.get(cell.device))
            if ground and not _throttled(cell):
                found[key(cell), cell.runtime].append(cell)
    return found


def _throttled(cell: MatrixCell) -> bool:
    return bool((cell.thermal or {}).get("throttled"))


def _metric_drifts(
    pair: Pair, was: MatrixCell, now: MatrixCell, past: Mapping[tuple[Key, str], list[MatrixCell]]
) -> list[Drift]:
    """The metric each output is judged by, where it moved. Values of another model are no baseline."""
    if was.model_sha256 != now.model_sha256 or "inputs" in pair.trigger or was.verdict != now.verdict:
        return []
    outputs = {output.name: output for output in was.outputs}
    found = []
    for output in now.outputs:
        before = outputs.get(output.name)
        if before is None or before.kind != output.kind:
            continue
        name = next((m for m in _judged_by(output.kind) if m in before.metrics and m in output.metrics), None)
        if name is None:
            continue
        a, b = before.metrics[name], output.metrics[name]
        usual = [
            o.metrics[name]
            for cell in past.get((key(was), was.runtime), ())
            for o in cell.outputs
            if o.name == output.name and name in o.metrics
        ]
        levels = [_level(name, value) for value in (*usual, a)]
        size = _level(name, b) - (statistics.median(levels) if usual else _level(name, a))
        limit = max(_noise(name), SPREADS * _spread(levels))
        if abs(size) >= limit:
            found.append(
                Drift(
                    cell=pair.place,
                    what=name,
                    output=output.name,
                    was=a,
                    now=b,
                    size=abs(size),
                    limit=limit,
                    worse=size < 0,
                    trigger=pair.trigger,
                    why=pair.why,
                )
            )
    return found


def _judged_by(kind: str) -> tuple[str, ...]:
    return {
        "embedding": ("min_row_cosine", "cosine"),
        "distribution": ("kl", "top1"),
        "classification": ("max_abs",),
        "probability": ("max_abs",),
        "mask": ("max_abs",),
        "quantised": ("max_steps",),
        "ints": ("equal_share",),
        "bools": ("equal_share",),
        "indices": ("equal_share",),
    }.get(kind, ("snr_db", "cosine"))


def _level(name: str, value: float) -> float:
    """A metric as something whose differences can be compared, higher is better."""
    if name == "snr_db":
        return min(value, SNR_CAP_DB)
    if name in ("cosine", "min_row_cosine"):
        return -10 * math.log10(max(1.0 - value, _FLOORS[name]))
    if name in ("max_abs", "kl"):
        return -20 * math.log10(max(value, _FLOORS[name]))
    return -value if name == "max_steps" else value


def _noise(name: str) -> float:
    if name == "snr_db":
        return SNR_DB
    if name == "max_steps":
        return STEPS
    return SHARE if name in ("equal_share", "top1") else ERROR_DB


def _spread(values: Sequence[float]) -> float:
    """Robust standard deviation; 0 below three values."""
    if len(values) < GROUP:
        return 0.0
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def _latency_drifts(timed: Sequence[Both], past: Mapping[tuple[Key, str], list[MatrixCell]]) -> list[Drift]:
    groups: dict[tuple[str, str], list[Both]] = defaultdict(list)
    for pair, was, now in timed:
        if was.model_sha256 == now.model_sha256 and "inputs" not in pair.trigger:
            groups[now.device, now.config].append((pair, was, now))
    found = []
    for members in groups.values():
        ratios = [math.log(_ms(now) / _ms(was)) for _, was, now in members]
        shift = statistics.median(ratios) if len(ratios) >= GROUP else 0.0
        noise = max(math.log(LATENCY_FACTOR), SPREADS * _spread(ratios))
        pair, was, now = members[0]
        # How far the median itself may be off where the ratios scatter, as on a machine with other work to do.
        unsure = max(math.log(LATENCY_FACTOR), SPREADS * _spread(ratios) / math.sqrt(len(ratios)))
        if len(ratios) >= GROUP and abs(shift) >= unsure:
            middle = statistics.median(_ms(cell) for _, cell, _ in members)
            found.append(
                Drift(
                    cell=pair.place,
                    what="latency_ms",
                    output="",
                    was=middle,
                    now=middle * math.exp(shift),
                    size=abs(shift),
                    limit=unsure,
                    worse=shift > 0,
                    cells=len(members),
                    factor=math.exp(shift),
                    trigger=pair.trigger,
                    why=pair.why,
                )
            )
        for (pair, was, now), ratio in zip(members, ratios, strict=True):
            usual = [_ms(cell) for cell in past.get((key(was), was.runtime), ()) if cell.latency_ms]
            own = _spread([math.log(ms) for ms in (*usual, _ms(was))])
            # A cell's own tail tells how unsteady it is: a p95 twice the median is no ground for an alarm at 1.4.
            tail = max(math.log(c.latency_ms.p95 / _ms(c)) for c in (was, now) if c.latency_ms and _ms(c) > 0)
            limit = max(noise, SPREADS * own, tail)
            rest = ratio - shift
            if abs(rest) >= limit and abs(_ms(now) - _ms(was) * math.exp(shift)) >= LATENCY_MS:
                found.append(
                    Drift(
                        cell=pair.place,
                        what="latency_ms",
                        output="",
                        was=_ms(was),
                        now=_ms(now),
                        size=abs(rest),
                        limit=limit,
                        worse=rest > 0,
                        factor=math.exp(rest),
                        trigger=pair.trigger,
                        why=pair.why,
                    )
                )
    return found


def _ms(cell: MatrixCell) -> float:
    """Median latency, kept above zero: it is divided by."""
    assert cell.latency_ms is not None
    return max(cell.latency_ms.median, 1e-6)
