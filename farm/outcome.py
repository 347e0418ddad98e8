"""What was observed at a cell, before any judging: one journal line, and the record of a reference run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from farm.agent_protocol import AgentResult, RunData
from farm.delegation import Delegation

FailureCode = Literal[
    "CRASH",
    "TIMEOUT",
    "INVALID_MODEL",
    "RUNTIME_ERROR",
    "OUT_OF_MEMORY",  # the model's or the runtime's
    "UNSUPPORTED",
    "NO_ACCELERATOR",  # the delegate refused, or the device has no such accelerator
    "DEVICE_LOST",
    "DEVICE_UNAVAILABLE",
    "HOST_KEY_REFUSED",
    "TRANSFER_FAILED",
    "NO_SPACE",
    "DEADLINE_EXCEEDED",
    "LEASE_LOST",
    "INFRA",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there are no outputs. `infra` failures say nothing about the model."""

    code: FailureCode
    message: str
    stage: str = ""
    signal: int = 0
    infra: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    before_c: float | None = None
    after_c: float | None = None
    throttled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One finished cell. Outputs lie in the object store under the sha256 that `result` names."""

    cell: str
    attempts: int
    started: str
    finished: str
    """UTC, ISO 8601."""
    wall_s: float
    result: AgentResult | None
    failure: Failure | None
    delegation: Delegation
    log_tail: str = ""
    """Last lines of the agent's log (runtime and driver words)."""
    thermal: Thermal = Thermal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """One large SUM, MEAN or pooling recomputed in float64 from what the CPU fed it.

    elements: summed into one result. outputs: positions of the signature outputs it leads to. last: those of them
    whose values it gives but for reshapes.
    snr_db: the CPU's own result against the recomputed one, worst input set (of fewer than 8 results: largest
    difference over largest value, on the same scale). None: it could not be recomputed, `note` says why.
    floor_snr_db: the same of the noise floor's kernels, where their outputs differ; None: not measured.
    exact: for each input set and step the recomputed values of the outputs in `last`, in their own type.
    """

    op: str
    op_index: int
    elements: int
    outputs: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    snr_db: float | None = None
    floor_snr_db: float | None = None
    note: str = ""
    exact: tuple[RunData, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexScores:
    """The tensor that the indices of output `position` point into, as the CPU computed it: it tells near ties.

    axis: the one the indices count along. runs: one output each, of every input set and step.
    """

    position: int
    dtype: str
    axis: int
    runs: tuple[RunData, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The CPU reference of one case: two runs in fresh processes on this host, and the noise floor run.

    first, second: XNNPACK, one thread, FP32 forced. floor: reference kernels, or None with `floor_note` saying why.
    failure: why there is no reference (then first is None).
    recomputed: the large reductions of the model, one entry each.
    index_scores: what ARG_MAX, ARG_MIN and TOPK_V2 outputs were chosen from, where that can be shown.
    dequantised: of a model with hybrid kernels, the same for its float copy with dequantised weights; else, or where
    that could not be made, None and `dequantised_note` says why. The copy's own `float_copy` is true, and its
    `plain_snr_db` tells for each output how near the plain reference it lies (None: not comparable).
    """

    case: str
    first: AgentResult | None
    second: AgentResult | None
    floor: AgentResult | None
    floor_note: str = ""
    failure: Failure | None = None
    log_tail: str = ""
    recomputed: tuple[Recomputed, ...] = ()
    dequantised: Reference | None = None
    dequantised_note: str = ""
    float_copy: bool = False
    plain_snr_db: tuple[float | None, ...] = ()
    index_scores: tuple[IndexScores, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionClass:
    """What the canaries measured for one (device, runtime, config)."""

    device: str
    runtime: str
    config: str
    value: Literal["fp32", "fp16-storage", "fp16", "unknown"]
    evidence: str
    """One sentence: what the three canaries gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFiles:
    """One runtime as a device got it: file name → sha256."""

    version: str
    origin: str
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSoftware:
    """What a device was given in a run. runtimes: by runtime name."""

    platform: str
    agent_version: str
    agent_sha256: str
    runtimes: dict[str, RuntimeFiles] = field(default_factory=dict)
