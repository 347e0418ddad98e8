"""Which op is to blame: rules over the figures of a sweep. Pure.

Plain rule: an op is a source if its output is bad and everything that feeds it is good; a bad tensor none of whose
readers is bad, and which is no output of the model, harms nobody (masked, or an artefact of exposing it).
Sharper, where the op was computed on this CPU from the values the device itself had: `local` says whether the op is
wrong on those, `inherited` whether their error alone spoils its result. Then a source is an op that is locally wrong,
and an error travels along an edge only where the reader inherits it: tiny values that flush to zero and change nothing
are no source, however bad they look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farm.layers.health import Health
from farm.layers.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """One tensor's op computed on this CPU from the device's values of its inputs.

    local: the device's result against that. inherited: that against the CPU's own result.
    """

    local: Health
    inherited: Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """sources: tensors whose ops are to blame, in the order they run. accumulated: no op is wrong by itself, the first
    tensor beyond the limit is named. masked: bad tensors that spoil no output of the model."""

    sources: tuple[int, ...]
    accumulated: bool
    masked: tuple[int, ...]


MERGES = frozenset(("ADD", "SUB", "CONCATENATION", "ADD_N"))
"""Ops that hand an error on undiminished while a larger operand makes their own figures look good."""


def harmful(view: View, health: Mapping[int, Health], checks: Mapping[int, Local] | None = None) -> set[int]:
    """Bad tensors that spoil an output of the model.

    Those from which a way of bad tensors leads to a bad output, and those whose error a merge on such a way holds
    undiminished (a branch of zeros added to a large residual leaves a good SNR and a wrong model).
    """
    checks = checks or {}
    found: set[int] = set()

    def add(start: set[int]) -> None:
        waiting = [t for t in start if t not in found]
        found.update(waiting)
        while waiting:
            t = waiting.pop()
            check = checks.get(t)
            if check is not None and not check.inherited.bad:
                continue  # what is wrong here came from nowhere else
            for source in view.layers[t].producers:
                if source in health and health[source].bad and source not in found:
                    found.add(source)
                    waiting.append(source)

    add({t for t, h in health.items() if h.bad and view.layers[t].own_output is not None})
    before = _ancestors(view, found)
    for merge in sorted((t for t in before if t in health and not health[t].bad), key=lambda t: -view.layers[t].op):
        if view.layers[merge].op_name in MERGES:
            add({p for p in view.layers[merge].producers if p in health and _holds(health[merge], health[p])})
    return found


def _holds(merge: Health, source: Health) -> bool:
    """Is a merge's error mainly this bad operand's? (Its own rounding, or a cancelled error, is not.)"""
    return source.bad and 0.5 * source.error_norm <= merge.error_norm <= 2.0 * source.error_norm


def _ancestors(view: View, tensors: set[int]) -> set[int]:
    seen, waiting = set(tensors), list(tensors)
    while waiting:
        for p in view.layers[waiting.pop()].producers:
            if p not in seen:
                seen.add(p)
                waiting.append(p)
    return seen


def plain_sources(view: View, health: Mapping[int, Health], among: set[int]) -> list[int]:
    """Tensors of `among` that are bad while everything watched that feeds them is good, in the order they run."""

    def good(t: int) -> bool:
        return t not in health or not health[t].bad

    found = [t for t in among if all(good(p) for p in view.layers[t].producers)]
    return sorted(found, key=lambda t: view.layers[t].op)


def to_check(view: View, health: Mapping[int, Health], most: int = 32) -> list[int]:
    """Tensors worth a local check: plain sources and the bad tensors nearest behind them."""
    among = harmful(view, health)
    frontier = plain_sources(view, health, among)
    chosen: dict[int, None] = {}
    while frontier and len(chosen) < most:
        chosen.update(dict.fromkeys(frontier[: most - len(chosen)]))
        readers = {c for t in frontier for c in view.layers[t].consumers if c in among and c not in chosen}
        frontier = sorted(readers, key=lambda t: view.layers[t].op)
    return sorted(chosen, key=lambda t: view.layers[t].op)


def forgive_masks(view: View, health: Mapping[int, Health]) -> dict[int, Health]:
    """Health with masks that became −Inf and end in a SOFTMAX no longer bad for that alone.

    exp(−Inf) is the zero the mask was for. A −Inf that reaches anything else stays bad.
    """
    kept: dict[int, bool] = {}
    for layer in sorted(view.layers.values(), key=lambda la: -la.op):
        h = health.get(layer.tensor)
        if h is None or not h.mask or layer.own_output is not None or not layer.consumers:
            continue
        readers = [view.layers[c] for c in layer.consumers]
        kept[layer.tensor] = all(
            r.op_name in ("SOFTMAX", "LOG_SOFTMAX")
            or kept.get(r.tensor, r.tensor in health and not health[r.tensor].bad)
            for r in readers
        )
    return {
        t: dataclasses.replace(h, bad=h.bad_beside_mask, why=h.why if h.bad_beside_mask else "") if kept.get(t) else h
        for t, h in health.items()
    }


def blame(view: View, health: Mapping[int, Health], check: Callable[[list[int]], Mapping[int, Local]]) -> Blame:
    """Name the sources. `check` computes tensors' ops on this CPU; those it cannot do go by the plain rule."""
    health = forgive_masks(view, health)
    bad = {t for t, h in health.items() if h.bad}
    among = harmful(view, health)
    if not among:
        return Blame(sources=(), accumulated=False, masked=_ordered(view, bad))
    checks = check(to_check(view, health))
    among = harmful(view, health, checks)
    wrong = [t for t in among if t in checks and _wrong(checks[t].local)]
    plain = plain_sources(view, health, among)
    unchecked = [t for t in plain if t not in checks]
    sources = _ordered(view, {*wrong, *unchecked})
    masked = _ordered(view, bad - among)
    if sources:
        return Blame(sources=sources, accumulated=False, masked=masked)
    first = plain or sorted(among, key=lambda t: view.layers[t].op)
    return Blame(sources=tuple(first[:1]), accumulated=True, masked=masked)


def _wrong(local: Health) -> bool:
    """A mask that overflows to −Inf as it should is no fault of the op that hands it on."""
    return local.bad and (not local.mask or local.bad_beside_mask)


def _ordered(view: View, tensors: set[int]) -> tuple[int, ...]:
    return tuple(sorted(tensors, key=lambda t: view.layers[t].op))
