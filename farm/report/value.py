"""matrix.json as a value (farm/schemas/matrix.schema.json): matrix.py builds it, every report is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farm.judge.verdict import VerdictWord


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRun:
    id: str
    started: str
    finished: str | None
    farm_version: str
    inventory_sha256: str | None
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixDevice:
    """`facts` is for people: a short list of name → value shown in the report's header."""

    id: str
    gpu: str
    driver: str
    os: str
    transport: str
    profile: str | None
    facts_sha256: str | None
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixOutput:
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
class MatrixLatency:
    median: float
    p95: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixReference:
    status: str
    floor_db: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixError:
    code: str
    stage: str
    signal: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    id: str
    device: str
    gpu: str
    model: str
    model_sha256: str
    signature: str
    config: str
    diagnostic: bool
    runtime: str
    verdict: VerdictWord
    reasons: tuple[str, ...]
    message: str
    known: dict[str, Any] | None
    """The inventory's `known:` entry that expects this result: then the cell is shown, not counted."""
    delegation: str
    cpu_ops: tuple[str, ...]
    gpu_api: str | None
    adapter: str | None
    precision_class: str | None
    inputs: str
    """synthetic | user"""
    input_sets: tuple[str, ...]
    process: str
    """shell | app"""
    reference: MatrixReference
    outputs: tuple[MatrixOutput, ...]
    cause: str | None
    remedy: str | None
    latency_ms: MatrixLatency | None
    compile_ms: float | None
    peak_rss_bytes: int | None
    thermal: dict[str, Any] | None
    attempts: int
    error: MatrixError | None
    notes: tuple[str, ...] = ()
    log_tail: str = ""


HAZARDS = 20
"""Most hazards of one finding in matrix.json; all of them stay in the run folder's hazards/."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixHazard:
    """One op whose numbers FP16 cannot hold. kind, value, certain and elements as in farm.hazards.Hazard.

    subgraph: the called subgraph the op is in; "" is the signature's own.
    """

    kind: str
    op: str
    op_index: int
    tensor: str
    value: float
    elements: int
    certain: bool
    message: str
    subgraph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFinding:
    """One finding in plain words: headline, explanation, remedy with its cost, lines to paste, precedents."""

    device: str
    model: str
    signature: str
    runtime: str
    failing: tuple[str, ...]
    cause: str | None
    headline: str
    explanation: str
    remedy: str | None
    remedy_text: str
    latency_ratio: float | None
    snippets: dict[str, str] = field(default_factory=dict)
    """kotlin | cpp | python → lines to paste."""
    snippet_note: str = ""
    """Minimum runtime version and source of the lines."""
    precedents: tuple[tuple[str, str], ...] = ()
    """(title, link) of public reports with the same pattern."""
    hazards: tuple[MatrixHazard, ...] = ()
    """What the CPU's activations say FP16 cannot hold, where that bears the cause out; first in the graph first, at
    most HAZARDS of them."""
    hazards_found: int = 0
    """How many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    schema_version: int = 1
    run: MatrixRun
    devices: tuple[MatrixDevice, ...]
    precision_classes: tuple[dict[str, str], ...]
    """{device, runtime, config, value, evidence}"""
    cells: tuple[MatrixCell, ...]
    findings: tuple[MatrixFinding, ...] = ()
    known_problems: tuple[str, ...] = ()
    """Known entries that expired, passed unexpectedly or failed differently: one sentence each."""
