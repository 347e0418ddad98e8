"""The words of a verdict. One cell has one verdict and a list of reasons; the rules are in order.py and kinds/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from farm.cases import Case
from farm.configs import Config
from farm.defaults import Limits
from farm.hazards import Hazard
from farm.outcome import Outcome, PrecisionClass, Reference

VerdictWord = Literal["pass", "warn", "fail", "error", "unsupported", "inconclusive", "infra", "not_run"]
COUNTS: dict[str, int] = {
    "pass": 0,
    "warn": 0,
    "fail": 1,
    "error": 1,
    "unsupported": 0,
    "inconclusive": 3,
    "infra": 3,
    "not_run": 3,
}
"""What each verdict counts as in the exit code (any 1 → 1; else any 3 → 3; else 0)."""

LoadArray = Callable[[str, str, tuple[int, ...]], np.ndarray]
"""(sha256, dtype, shape) → array, memory-mapped where it is large. Raises KeyError if the object is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputVerdict:
    """One output judged; the worst of its input sets, repeats and steps.

    metrics: numbers by name (NaN-free: undefined ones are left out). limits: the bands used, by name, e.g.
    {"pass_snr_db": 80, "fail_snr_db": 50}. kind_source: why this kind, in a few words.
    message: one sentence for people, naming value, limit and the limit that would pass.
    """

    name: str
    kind: str
    kind_source: str
    input_set: str
    verdict: VerdictWord
    reasons: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellVerdict:
    cell: str
    verdict: VerdictWord
    reasons: tuple[str, ...] = ()
    message: str = ""
    outputs: tuple[OutputVerdict, ...] = ()
    reference_status: str = "ok"
    """ok | missing | invalid | unstable | vacuous | not_needed."""
    floor_db: float | None = None
    """SNR between the two CPU kernel sets, worst output; None when unknown."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEvidence:
    """Everything one verdict may depend on. `outcome` None = planned, never finished."""

    cell: str
    device: str
    case: Case
    config: Config
    outcome: Outcome | None
    reference: Reference | None
    precision: PrecisionClass | None
    limits: Limits
    bands: dict[str, dict[str, float]]
    """Overrides of bands.py: kind (or output name) → limit name → value."""
    load: LoadArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a set of cells of one (device, model, signature, runtime) says together.

    cause: FP16_RANGE | FP16_PRECISION | FP16_ACCUMULATION | KERNEL_BUG | PARTITION_BOUNDARY | None.
    remedy: name of the config that a run on that device verified, or None.
    latency_ratio: its median latency over the broken one's.
    hazards: what was predicted from the CPU's activations and bears the cause out, in the order the ops run.
    """

    device: str
    case: str
    runtime: str
    failing: tuple[str, ...]
    """Cell ids."""
    cause: str | None
    explanation: str
    remedy: str | None = None
    latency_ratio: float | None = None
    hazards: tuple[Hazard, ...] = ()
