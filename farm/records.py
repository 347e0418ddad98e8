"""Qualification records: one file per cell that says what was tested, on what, with which result, bound by digests.

    run folder ──▶ make_records ──▶ records/<cell>.json ──▶ verify ──▶ intact | the fields that changed; drift

Layout (docs/records.md): sections of plain values; `seals` holds 16 hex digits of sha256 per value, which name what
changed; `digests` holds one sha256 per section; `plan_digest` is the sha256 over `digests` and so binds everything. The
file is canonical JSON: sorted keys, two spaces, UTF-8; one spelling only, so that no byte can change unseen.
A record is not signed: keep its plan_digest elsewhere where somebody may want to rewrite both.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import msgspec

from farm import codec
from farm.configs import Config
from farm.defaults import Limits
from farm.environment import Environment
from farm.errors import InvalidInput, Problem
from farm.judge.bands import BANDS
from farm.judging import judge_store
from farm.outcome import Outcome
from farm.plan import Cell
from farm.report.value import MatrixCell
from farm.store import RunStore

KIND = "farm qualification record"
SCHEMA_VERSION = 1
SECTIONS = (
    "about", "model", "inputs", "config", "limits", "bands", "runtime", "agent", "device", "environment",
    "reference", "outputs", "metrics", "verdict",
)  # fmt: skip
"""In reading order: what was asked, on what it ran, what came out."""
NOT_OF_A_DEVICE = frozenset(
    ("battery_percent", "battery_temperature_c", "boot_completed", "boot_id", "charging", "clock_offset_s",
     "free_bytes", "memory_free_bytes", "speed_limit_percent", "temperature_c", "temperature_of", "thermal_status")
)  # fmt: skip
"""Facts that change from hour to hour: kept in the run, left out of the fingerprint."""
_SEAL_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Which cell of which run. process: shell | app."""

    run: str
    run_created: str
    farm_version: str
    cell: str
    device: str
    case: str
    config: str
    runtime: str
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    name: str
    path: str
    sha256: str
    size_bytes: int
    signature: int
    signature_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPart:
    """One array of one input set."""

    set: str
    origin: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPart:
    """shipped: kind → limit → value, as farm had them. overrides: the run's; spec: the model spec's, with sources."""

    shipped: dict[str, dict[str, float]]
    overrides: dict[str, dict[str, float]]
    spec: dict[str, dict[str, float]]
    spec_sources: dict[str, dict[str, str]]
    kinds: dict[str, str]
    min_cosine_similarity: float | None
    assertions: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePart:
    """files: name → sha256 as the device got them; empty where the run did not keep them (an app's own runtime)."""

    name: str
    version: str
    origin: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPart:
    """sha256: of the binary; empty where there was no agent of ours (tensors that came from an app)."""

    version: str
    sha256: str
    protocol: int
    platform: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePart:
    """fingerprint: sha256 over `facts`, what stays the same of a device from day to day."""

    id: str
    transport: str
    profile: str | None
    env: dict[str, str]
    facts: dict[str, Any]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePart:
    """sha256 of the two CPU runs' outputs, `set.step.index` → digest; status and floor as the judge saw them."""

    status: str
    floor_db: float | None
    first: dict[str, str]
    second: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPart:
    """What the device gave: `set.step.index` → sha256, and how it ran."""

    sha256: dict[str, str]
    delegation: str
    cpu_ops: tuple[str, ...]
    gpu_api: str | None
    adapter: str | None
    precision_class: str | None
    latency_median_ms: float | None
    attempts: int
    started: str | None
    finished: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPart:
    """One output judged: what was measured and within which limits."""

    output: str
    kind: str
    kind_source: str
    input_set: str
    verdict: str
    reasons: tuple[str, ...]
    values: dict[str, float]
    limits: dict[str, float]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPart:
    verdict: str
    reasons: tuple[str, ...]
    message: str
    cause: str | None
    remedy: str | None
    known: dict[str, Any] | None
    error: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One qualification record. Sections first, then what binds them."""

    kind: str = KIND
    schema_version: int = SCHEMA_VERSION
    about: About
    model: ModelPart
    inputs: tuple[InputPart, ...]
    config: Config
    limits: Limits
    bands: BandPart
    runtime: RuntimePart
    agent: AgentPart
    device: DevicePart
    environment: Environment | None
    """What farm ran on during the run; null for a run of before this was kept."""
    reference: ReferencePart
    outputs: OutputPart
    metrics: tuple[MetricPart, ...]
    verdict: VerdictPart
    seals: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    plan_digest: str = ""


# --- making -----------------------------------------------------------------------------------------------------------


def make_records(store: RunStore, cells: Sequence[str] = (), *, today: date | None = None) -> tuple[Record, ...]:
    """Judge a run and make the record of each cell, or of the cells named.

    Raises InvalidInput for names that are no cell of this run.
    """
    known = {cell.id for cell in store.plan.cells}
    unknown = [name for name in cells if name not in known]
    if unknown:
        cure = "cells: " + ", ".join(sorted(known)[:8]) + (" …" if len(known) > 8 else "")
        raise InvalidInput(
            [Problem(message=f"no cell {n!r} in this run", file=str(store.folder), cure=cure) for n in unknown]
        )
    matrix = judge_store(store, today or date.today())
    judged = {cell.id: cell for cell in matrix.cells}
    outcomes = store.outcomes()
    wanted = set(cells) or known
    return tuple(
        sealed(_record(store, cell, judged[cell.id], outcomes.get(cell.id)))
        for cell in store.plan.cells
        if cell.id in wanted
    )


def _record(store: RunStore, cell: Cell, judged: MatrixCell, outcome: Outcome | None) -> Record:
    plan = store.plan
    case = next(c for c in plan.cases if c.id == cell.case)
    config = next(c for c in plan.configs if c.name == cell.config)
    device = next(d for d in plan.devices if d.id == cell.device)
    facts = {k: v for k, v in store.facts().get(cell.device, {}).items() if k not in NOT_OF_A_DEVICE}
    software = store.software().get(cell.device)
    runtime = software.runtimes.get(cell.runtime) if software else None
    reference = store.references().get(cell.case)
    result = outcome.result if outcome else None
    return Record(
        about=About(
            run=plan.run_id,
            run_created=plan.created,
            farm_version=plan.farm_version,
            cell=cell.id,
            device=cell.device,
            case=cell.case,
            config=cell.config,
            runtime=cell.runtime,
            process=judged.process,
        ),
        model=ModelPart(
            name=case.model,
            path=case.model_path,
            sha256=case.model_sha256,
            size_bytes=case.model_size_bytes,
            signature=case.signature,
            signature_key=case.signature_key,
        ),
        inputs=tuple(
            InputPart(set=s.name, origin=s.origin, name=a.name, dtype=a.dtype, shape=a.shape, sha256=a.sha256)
            for s in case.input_sets
            for a in s.arrays
        ),
        config=config,
        limits=plan.limits,
        bands=BandPart(
            shipped=shipped_bands(),
            overrides=plan.band_overrides,
            spec=case.spec.bands,
            spec_sources=case.spec.band_sources,
            kinds=case.spec.kinds,
            min_cosine_similarity=case.spec.min_cosine_similarity,
            assertions=case.spec.assertions,
        ),
        runtime=RuntimePart(
            name=cell.runtime,
            version=runtime.version if runtime else "",
            origin=runtime.origin if runtime else "",
            files=runtime.files if runtime else {},
        ),
        agent=AgentPart(
            version=result.agent_version if result else software.agent_version if software else "",
            sha256=software.agent_sha256 if software else "",
            protocol=result.protocol if result else 0,
            platform=software.platform if software else "",
        ),
        device=DevicePart(
            id=device.id,
            transport=device.transport,
            profile=device.profile,
            env=device.env,
            facts=facts,
            fingerprint=sha256(codec.to_json(facts)),
        ),
        environment=store.environment(),
        reference=ReferencePart(
            status=judged.reference.status,
            floor_db=judged.reference.floor_db,
            first=_outputs(reference.first) if reference else {},
            second=_outputs(reference.second) if reference else {},
        ),
        outputs=OutputPart(
            sha256=_outputs(result),
            delegation=judged.delegation,
            cpu_ops=judged.cpu_ops,
            gpu_api=judged.gpu_api,
            adapter=judged.adapter,
            precision_class=judged.precision_class,
            latency_median_ms=judged.latency_ms.median if judged.latency_ms else None,
            attempts=judged.attempts,
            started=outcome.started if outcome else None,
            finished=outcome.finished if outcome else None,
        ),
        metrics=tuple(
            MetricPart(
                output=o.name,
                kind=o.kind,
                kind_source=o.kind_source,
                input_set=o.input_set,
                verdict=o.verdict,
                reasons=o.reasons,
                values=o.metrics,
                limits=o.limits,
                message=o.message,
            )
            for o in judged.outputs
        ),
        verdict=VerdictPart(
            verdict=judged.verdict,
            reasons=judged.reasons,
            message=judged.message,
            cause=judged.cause,
            remedy=judged.remedy,
            known=judged.known,
            error=f"{judged.error.code} in {judged.error.stage}: {judged.error.message}" if judged.error else None,
            notes=judged.notes,
        ),
    )


def _outputs(result: Any) -> dict[str, str]:
    runs = result.runs if result is not None else ()
    return {f"{run.set}.{run.step}.{o.index}": o.sha256 for run in runs for o in run.outputs}


def shipped_bands() -> dict[str, dict[str, float]]:
    """Every limit this farm ships, by kind."""
    return {row: {name: float(limit.value) for name, limit in limits.items()} for row, limits in BANDS.items()}


def sealed(record: Record) -> Record:
    """Return the record with its seals, digests and plan_digest."""
    plain = msgspec.json.decode(codec.to_json(record))
    seals = {path: seal(path, value) for path, value in leaves(plain)}
    digests = digests_of(plain, seals)
    return dataclasses.replace(record, seals=seals, digests=digests, plan_digest=sha256(codec.to_json(digests)))


def record_bytes(record: Record) -> bytes:
    """The file: canonical JSON, the same record always the same bytes."""
    return codec.to_json(record, indent=2)


def leaves(plain: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything in the sections that holds no other value; empty containers count as values."""
    for section in ("kind", "schema_version", *SECTIONS):
        if section in plain:
            yield from _leaves(section, plain[section])


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _leaves(f"{path}[{number}]", inner)
    else:
        yield path, value


def seal(path: str, value: Any) -> str:
    """The first 16 hex digits of sha256 over path and value: enough to name a change, not to vouch for it."""
    return sha256(codec.to_json([path, value]))[:_SEAL_DIGITS]


def digests_of(plain: Mapping[str, Any], seals: Mapping[str, str]) -> dict[str, str]:
    parts = {name: plain[name] for name in ("kind", "schema_version", *SECTIONS) if name in plain}
    return {name: sha256(codec.to_json(value)) for name, value in {**parts, "seals": dict(seals)}.items()}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of a record from the dataclasses."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": KIND,
        "description": "What was tested, on what, with which result, bound by digests (docs/records.md).",
        **msgspec.json.schema(Record),
    }
