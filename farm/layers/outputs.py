"""The model's own outputs in a study: bad where the judge would fail them, so that both tell the same story. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np

from farm.cases import Case
from farm.judge.bands import limits_for
from farm.judge.checks import check_values
from farm.judge.infer import FLOATS, HALVES, decoder_for, infer_kind
from farm.judge.kinds import kind_named
from farm.judge.pair import Pair
from farm.layers.health import Health


def judged(case: Case, position: int, golden: np.ndarray, seen: np.ndarray, health: Health, *, low: bool) -> Health:
    """Health of own output `position` with the judge's word in place of the plain limits.

    One comparison only: repeats, input sets and the noise floor are farm sweep's business. Without the floor two right
    quantised results may lie some steps apart, so a quantised output must miss the plain limit too.
    """
    if case.graph is None or golden.shape != seen.shape or golden.dtype != seen.dtype:
        return health
    facts = case.graph.outputs[position]
    twins = [o.tensor for o in case.graph.outputs].count(facts.tensor)
    if facts.unwritten or facts.alias_of is not None or twins > 1:
        # The runtime returns whatever memory held for such outputs (docs/judging.md, order of checks 2).
        return _with(health, "")
    decoder = decoder_for(facts.dtype, facts)
    kind, _ = infer_kind(
        dtype=facts.dtype,
        facts=facts,
        spec_kind=case.spec.kinds.get(facts.name),
        references=[golden],
        decoder=decoder,
    )
    low = low or facts.dtype in HALVES
    limits = limits_for(kind, low_precision=low, output=facts.name, overrides=(case.spec.bands,))
    pair = Pair(ref=golden, tgt=seen, decoder=decoder, low_precision=low)
    hit = check_values(pair, kind=kind, limits=limits, min_norm=1e-4, fp16_float=low and facts.dtype in FLOATS)
    if hit is not None:
        # What cannot be judged (a vacuous or invalid reference) is not called bad.
        return _with(health, hit.message or str(hit.reason) if hit.verdict == "fail" else "")
    decision = kind_named(kind).decide(kind_named(kind).measure(pair), limits)
    if decision.band != "fail" or (kind == "quantised" and not health.bad):
        return _with(health, "")
    return _with(health, f"{kind}: {decision.message}")


def _with(health: Health, why: str) -> Health:
    return dataclasses.replace(health, bad=bool(why), why=why)
