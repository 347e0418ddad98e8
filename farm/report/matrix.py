"""From a judged run to the matrix: pure. Every planned cell appears; nothing missing may look like a pass.

    plan + outcomes + verdicts + findings + canaries + facts  ──▶  Matrix  ──▶  one file per format

The value itself is in value.py and is re-exported here, so `farm.report.matrix` is the one name to import from.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farm import codec
from farm.cases import Case
from farm.judge.verdict import CellVerdict, Finding, OutputVerdict
from farm.outcome import Outcome, PrecisionClass, Reference
from farm.plan import APP, Cell, Plan, PlannedDevice
from farm.report.findings import explain
from farm.report.value import (
    Matrix,
    MatrixCell,
    MatrixDevice,
    MatrixError,
    MatrixFinding,
    MatrixLatency,
    MatrixOutput,
    MatrixReference,
    MatrixRun,
)

__all__ = [
    "Matrix",
    "MatrixCell",
    "MatrixDevice",
    "MatrixError",
    "MatrixFinding",
    "MatrixLatency",
    "MatrixOutput",
    "MatrixReference",
    "MatrixRun",
    "build_matrix",
    "latency",
]

UNKNOWN_GPU = "unknown GPU"
SHOWN_FACTS = (
    "model", "soc", "cpu", "cpu_count", "memory_bytes", "platform", "kernel", "gpu_vendor", "gpu_cores",
    "temperature_c", "battery_percent", "battery_temperature_c", "charging", "thermal_status", "speed_limit_percent",
)  # fmt: skip
"""Of everything probing found, what helps a reader; all of it stays in the run folder's facts.json."""
LOG_TAIL_CHARS = 4000
"""What of a cell's log goes into matrix.json; the whole of it stays in the run folder."""


def build_matrix(
    *,
    plan: Plan,
    outcomes: Mapping[str, Outcome],
    verdicts: Mapping[str, CellVerdict],
    findings: Sequence[Finding],
    precision: Sequence[PrecisionClass],
    facts: Mapping[str, Mapping[str, Any]],
    references: Mapping[str, Reference],
    known: Mapping[str, dict[str, Any]],
    known_problems: Sequence[str],
    exit_code: int,
    finished: str | None,
) -> Matrix:
    """Put everything known about a run into one value.

    outcomes, verdicts, known: by cell id. facts: by device id. references: by case id. A cell without an outcome, or
    one nobody judged, is `not_run` whatever `verdicts` says. Values JSON cannot hold (NaN, infinities) are left out.
    """
    cases = {case.id: case for case in plan.cases}
    configs = {config.name: config for config in plan.configs}
    measured = {(p.device, p.runtime, p.config): p for p in precision}
    gpus = {device.id: _gpu_name(device.id, plan, outcomes, facts.get(device.id, {})) for device in plan.devices}
    findings = [_verified(finding, plan, verdicts, outcomes) for finding in findings]
    found = {cell: finding for finding in findings for cell in finding.failing}

    apps = {d.id for d in plan.devices if d.transport == APP}
    cells = tuple(
        _cell(
            cell,
            process="app" if cell.device in apps else "shell",
            case=cases[cell.case],
            gpu=gpus.get(cell.device, UNKNOWN_GPU),
            diagnostic=configs[cell.config].diagnostic if cell.config in configs else False,
            outcome=outcomes.get(cell.id),
            verdict=verdicts.get(cell.id),
            finding=found.get(cell.id),
            precision=measured.get((cell.device, cell.runtime, cell.config)),
            reference=references.get(cell.case),
            known=known.get(cell.id),
        )
        for cell in plan.cells
    )
    return Matrix(
        run=MatrixRun(
            id=plan.run_id,
            started=plan.created,
            finished=finished,
            farm_version=plan.farm_version,
            inventory_sha256=plan.inventory_sha256,
            exit_code=exit_code,
        ),
        devices=tuple(_device(d, gpus[d.id], facts.get(d.id, {})) for d in plan.devices),
        precision_classes=tuple(
            {"device": p.device, "runtime": p.runtime, "config": p.config, "value": p.value, "evidence": p.evidence}
            for p in precision
        ),
        cells=cells,
        findings=tuple(explain(f, case=cases[f.case], cells=cells, configs=configs) for f in findings),
        known_problems=tuple(known_problems),
    )


def latency(outcome: Outcome | None) -> MatrixLatency | None:
    """Median and 95th percentile in ms over the first input set, all steps; None if nothing was timed.

    The percentile is linear between its neighbours, as numpy's default.
    """
    if outcome is None or outcome.result is None or not outcome.result.runs:
        return None
    first = min(run.set for run in outcome.result.runs)
    times = sorted(t for run in outcome.result.runs if run.set == first for t in run.latency_ms if math.isfinite(t))
    if not times:
        return None
    place = 0.95 * (len(times) - 1)
    low = math.floor(place)
    high = min(low + 1, len(times) - 1)
    p95 = times[low] + (times[high] - times[low]) * (place - low)
    return MatrixLatency(median=statistics.median(times), p95=p95, n=len(times))


def _verified(
    finding: Finding, plan: Plan, verdicts: Mapping[str, CellVerdict], outcomes: Mapping[str, Outcome]
) -> Finding:
    """Drop a remedy that no cell of this run, on that very device, vouches for."""
    vouched = any(
        cell.config == finding.remedy
        and (cell.device, cell.case, cell.runtime) == (finding.device, finding.case, finding.runtime)
        and cell.id in outcomes
        and cell.id in verdicts
        and verdicts[cell.id].verdict in ("pass", "warn")
        for cell in plan.cells
    )
    ratio = finding.latency_ratio
    sound = ratio is not None and math.isfinite(ratio) and ratio > 0
    return replace(
        finding, remedy=finding.remedy if vouched else None, latency_ratio=ratio if vouched and sound else None
    )


def _cell(
    cell: Cell,
    *,
    process: str,
    case: Case,
    gpu: str,
    diagnostic: bool,
    outcome: Outcome | None,
    verdict: CellVerdict | None,
    finding: Finding | None,
    precision: PrecisionClass | None,
    reference: Reference | None,
    known: dict[str, Any] | None,
) -> MatrixCell:
    if outcome is None and verdict is not None and verdict.verdict not in ("not_run", "infra"):
        # No observation can carry a judgement, however it came about.
        verdict = None
    if verdict is None:
        message = "planned, never finished" if outcome is None else "finished, but nobody judged it: run `farm judge`"
        verdict = CellVerdict(cell=cell.id, verdict="not_run", message=message, reference_status="not_needed")
    result = outcome.result if outcome else None
    failure = outcome.failure if outcome else None
    thermal = outcome.thermal if outcome else None
    notes = list(verdict.notes)
    floor_db = verdict.floor_db
    if floor_db is not None and not math.isfinite(floor_db):
        if floor_db > 0:
            notes.append("noise floor: the two CPU kernel sets gave the same bits")
        floor_db = None
    if reference is not None and reference.floor is None and reference.floor_note:
        notes.append(f"noise floor unknown: {reference.floor_note}")
    return MatrixCell(
        id=cell.id,
        device=cell.device,
        gpu=gpu,
        model=case.model,
        model_sha256=case.model_sha256,
        signature=case.signature_key,
        config=cell.config,
        diagnostic=diagnostic,
        runtime=cell.runtime,
        verdict=verdict.verdict,
        reasons=verdict.reasons,
        message=verdict.message,
        known=known,
        delegation=outcome.delegation.level if outcome else "unknown",
        cpu_ops=outcome.delegation.cpu_ops if outcome else (),
        gpu_api=outcome.delegation.gpu_api if outcome else None,
        adapter=outcome.delegation.adapter if outcome else None,
        precision_class=precision.value if precision else None,
        inputs="user" if case.input_sets and all(s.origin == "user" for s in case.input_sets) else "synthetic",
        input_sets=tuple(s.name for s in case.input_sets),
        process=process,
        reference=MatrixReference(status=verdict.reference_status, floor_db=floor_db),
        outputs=tuple(_output(output) for output in verdict.outputs),
        cause=finding.cause if finding else None,
        remedy=finding.remedy if finding else None,
        latency_ms=latency(outcome),
        compile_ms=_finite(result.compile_ms) if result and result.ok else None,
        peak_rss_bytes=result.peak_rss_bytes if result and result.peak_rss_bytes > 0 else None,
        thermal={
            "before_c": _finite(thermal.before_c),
            "after_c": _finite(thermal.after_c),
            "throttled": thermal.throttled,
        }
        if thermal and (thermal.before_c is not None or thermal.after_c is not None or thermal.throttled)
        else None,
        attempts=outcome.attempts if outcome else 0,
        error=MatrixError(code=failure.code, stage=failure.stage, signal=failure.signal, message=failure.message)
        if failure
        else None,
        notes=tuple(dict.fromkeys(notes)),
        log_tail=outcome.log_tail[-LOG_TAIL_CHARS:] if outcome else "",
    )


def _output(output: OutputVerdict) -> MatrixOutput:
    return MatrixOutput(
        name=output.name,
        kind=output.kind,
        kind_source=output.kind_source,
        input_set=output.input_set,
        verdict=output.verdict,
        reasons=output.reasons,
        metrics={name: float(value) for name, value in output.metrics.items() if math.isfinite(value)},
        limits={name: float(value) for name, value in output.limits.items() if math.isfinite(value)},
        message=output.message,
    )


def _device(device: PlannedDevice, gpu: str, facts: Mapping[str, Any]) -> MatrixDevice:
    return MatrixDevice(
        id=device.id,
        gpu=gpu,
        driver=_first(facts, "gpu_driver", "driver"),
        os=_system(_first(facts, "os"), _first(facts, "os_build")),
        transport=device.transport,
        profile=device.profile or _first(facts, "profile") or None,
        facts_sha256=hashlib.sha256(codec.to_json(dict(facts))).hexdigest() if facts else None,
        facts={name: text for name in SHOWN_FACTS if (text := _text(facts.get(name)))},
    )


def _gpu_name(device: str, plan: Plan, outcomes: Mapping[str, Outcome], facts: Mapping[str, Any]) -> str:
    """The adapter the runtime itself named most often on this device; else what probing found."""
    seen = Counter(
        adapter
        for cell in plan.cells
        if cell.device == device and (outcome := outcomes.get(cell.id)) and (adapter := outcome.delegation.adapter)
    )
    if seen:
        return seen.most_common(1)[0][0]
    return _first(facts, "gpu", "gpus", "gpu_name", "adapter") or UNKNOWN_GPU


def _system(name: str, build: str) -> str:
    """Name and build of an operating system; a build that the name already says is not said twice."""
    return name if build in name.split() else " ".join(filter(None, (name, build)))


def _first(facts: Mapping[str, Any], *names: str) -> str:
    return next((text for name in names if (text := _text(facts.get(name)))), "")


def _text(value: object) -> str:
    """One line for people; nested values are left to facts.json."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes):
        return ", ".join(filter(None, (_text(item) for item in value)))
    return ""


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
