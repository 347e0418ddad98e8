"""What was seen of one output at one (input set, step), and how bad it is: the small values output.py works on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from farm.agent_protocol import AgentResult, OutputData, RunData
from farm.graph import OutputFacts
from farm.judge.infer import HALVES
from farm.judge.pair import RANK, Decision, Pair
from farm.judge.reference import STATUS, Hit
from farm.judge.verdict import CellEvidence
from farm.outcome import Reference

Key = tuple[int, int]
"""(input set, step)."""
DOUBT_ORDER = tuple(STATUS)
PRIMARY = (("snr_db", -1), ("min_row_cosine", -1), ("top1", -1), ("equal_share", -1), ("max_steps", 1), ("max_abs", 1))
"""The figure by which two input sets in the same band are ordered, and which way is worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was observed of one cell, as its outputs share it."""

    evidence: CellEvidence
    result: AgentResult
    reference: Reference
    first: AgentResult

    def low_precision(self, dtype: str) -> bool:
        """FP16 bands: measured FP16 or unknown, or a tensor stored in 16 bits, whose rounding alone caps SNR."""
        precision = self.evidence.precision
        return dtype in HALVES or precision is None or precision.value != "fp32"


@dataclass(slots=True, kw_only=True)
class Look:
    """One (input set, step) of one output. hit: the first check that applied; else decision holds."""

    key: Key
    label: str
    ref: OutputData
    tgt: OutputData | None = None
    pair: Pair | None = None
    hit: Hit | None = None
    decision: Decision | None = None
    values: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)


def badness(look: Look) -> tuple[int, int, float]:
    """Fail, then infra, then doubts, then bands; in one band the worse figure."""
    if look.hit is not None:
        level = {"fail": 5, "infra": 4, "inconclusive": 3}[look.hit.verdict]
        order = DOUBT_ORDER.index(look.hit.reason) if look.hit.reason in DOUBT_ORDER else 0
        return level, -order, _figure(look)
    return RANK[look.decision.band] if look.decision else 3, 0, _figure(look)


def _figure(look: Look) -> float:
    for name, sign in PRIMARY:
        if name in look.values:
            return sign * look.values[name]
    return -math.inf


def output_of(run: RunData | None, position: int) -> OutputData | None:
    return next((o for o in run.outputs if o.index == position), None) if run is not None else None


def facts_for(outputs: tuple[OutputFacts, ...], name: str, position: int) -> OutputFacts | None:
    """By name, since runtimes and converters may order outputs differently; by position where names do not help."""
    named = [o for o in outputs if o.name == name]
    if len(named) == 1:
        return named[0]
    return outputs[position] if position < len(outputs) else None
