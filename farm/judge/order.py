"""One cell's evidence → its verdict: failures first, then every output through docs/judging.md order of checks.

The worst output decides the cell: fail, then infra, inconclusive, warn, pass. Pure but for `evidence.load`.
"""

from __future__ import annotations

import numpy as np

from farm.agent_protocol import AgentResult
from farm.graph import GraphFacts
from farm.judge.chosen import choose
from farm.judge.look import Seen
from farm.judge.output import OutputJudge
from farm.judge.reference import STATUS, Hit, missing
from farm.judge.verdict import CellEvidence, CellVerdict, OutputVerdict, VerdictWord
from farm.outcome import Failure

SEVERITY: tuple[VerdictWord, ...] = ("pass", "warn", "inconclusive", "infra", "unsupported", "error", "fail")
"""Later is worse when outputs of one cell differ: a proven fault outweighs a doubt, a doubt outweighs a pass."""
INFRA_CODES = (
    "DEVICE_LOST", "DEVICE_UNAVAILABLE", "HOST_KEY_REFUSED", "TRANSFER_FAILED", "NO_SPACE", "DEADLINE_EXCEEDED",
    "LEASE_LOST", "INFRA",
)  # fmt: skip
BACKEND_APIS = {"opencl": "OpenCL", "opengl": "OpenGL", "webgpu": "WebGPU"}
"""What a config asks for (Config.backend) → how Delegation.gpu_api begins where that really ran."""
UNSUPPORTED_CODES = ("UNSUPPORTED", "NO_ACCELERATOR")


def judge_cell(evidence: CellEvidence) -> CellVerdict:
    """Return the verdict of one cell.

    Outputs whose bytes are no longer kept: equal hashes load the same object, so only differing ones can be missing;
    a missing target is `infra` (OUTPUT_NOT_KEPT), a missing reference `inconclusive` (REFERENCE_MISSING). Never a pass.
    """
    early = _without_outputs(evidence)
    if early is not None:
        return early
    with np.errstate(all="ignore"):
        return _from_outputs(evidence)


def _without_outputs(evidence: CellEvidence) -> CellVerdict | None:
    outcome = evidence.outcome
    if evidence.case.invalid is not None:
        return _plain(evidence, "error", "INVALID_MODEL", evidence.case.invalid)
    if outcome is None:
        return CellVerdict(
            cell=evidence.cell, verdict="not_run", message="planned, never finished", reference_status="not_needed"
        )
    if outcome.failure is not None:
        return _plain(evidence, _failure_verdict(outcome.failure), outcome.failure.code, outcome.failure.message)
    if outcome.result is None or not outcome.result.ok:
        return _plain(evidence, "infra", "NO_RESULT", "no complete result arrived from the device")
    if evidence.config.accelerator != "cpu" and outcome.delegation.level == "none":
        ops = "; ".join(outcome.delegation.cpu_ops) or "the delegate took no op"
        return _plain(evidence, "unsupported", "NOT_DELEGATED", f"nothing ran on the accelerator: {ops}")
    wanted, used = BACKEND_APIS.get(evidence.config.backend), outcome.delegation.gpu_api
    if wanted is not None and used is not None and not used.startswith(wanted):
        # LiteRT takes the API it finds and says nothing: right numbers of another backend prove nothing of this one.
        why = f"{wanted} was asked for and the runtime took {used}: there is no {wanted} driver, or no library for it"
        return _plain(evidence, "unsupported", "OTHER_BACKEND", why)
    return None


def _failure_verdict(failure: Failure) -> VerdictWord:
    if failure.infra or failure.code in INFRA_CODES:
        return "infra"
    return "unsupported" if failure.code in UNSUPPORTED_CODES else "error"


def _plain(evidence: CellEvidence, verdict: VerdictWord, reason: str, message: str) -> CellVerdict:
    return CellVerdict(
        cell=evidence.cell,
        verdict=verdict,
        reasons=(reason,),
        message=message,
        reference_status="not_needed",
    )


def _from_outputs(evidence: CellEvidence) -> CellVerdict:
    outcome, reference = evidence.outcome, evidence.reference
    assert outcome is not None
    assert outcome.result is not None
    absent = _absent(outcome.result, evidence.case.graph)
    if absent:
        return CellVerdict(
            cell=evidence.cell,
            verdict="fail",
            reasons=("MISSING_OUTPUT",),
            message=absent,
            reference_status="not_needed",
        )
    gone = missing(reference, input_sets=len(evidence.case.input_sets))
    if gone is not None or reference is None or reference.first is None:
        hit = gone or Hit(verdict="inconclusive", reason="REFERENCE_MISSING", message="no CPU reference")
        return CellVerdict(
            cell=evidence.cell,
            verdict=hit.verdict,
            reasons=(hit.reason,),
            message=hit.message,
            reference_status="missing",
        )
    reference, notes = choose(evidence, reference)
    assert reference.first is not None
    seen = Seen(evidence=evidence, result=outcome.result, reference=reference, first=reference.first)
    graph = evidence.case.graph
    # What the graph promises and the reference lacks is an output without a reference, not one output less.
    count = max(len(reference.first.runs[0].outputs), len(graph.outputs) if graph else 0)
    judges = [OutputJudge(seen, position) for position in range(count)]
    outputs = tuple(judge.verdict() for judge in judges)
    if not outputs:
        return CellVerdict(
            cell=evidence.cell,
            verdict="inconclusive",
            reasons=("REFERENCE_VACUOUS",),
            message="the model has no outputs",
            reference_status="vacuous",
        )
    return _gathered(evidence, seen, judges, outputs, notes)


def _gathered(
    evidence: CellEvidence,
    seen: Seen,
    judges: list[OutputJudge],
    outputs: tuple[OutputVerdict, ...],
    chosen: list[str],
) -> CellVerdict:
    worst = max(outputs, key=lambda o: SEVERITY.index(o.verdict))
    deciding = [o for o in outputs if o.verdict == worst.verdict]
    reasons = tuple(dict.fromkeys(r for o in deciding for r in o.reasons))
    doubts = [STATUS[r] for o in outputs for r in o.reasons if r in STATUS]
    order = ("missing", "invalid", "unstable", "vacuous")
    floors = [j.floor_db for j in judges if j.floor_db is not None]
    notes = [*chosen, *_cell_notes(evidence, seen), *(note for judge in judges for note in judge.notes)]
    return CellVerdict(
        cell=evidence.cell,
        verdict=worst.verdict,
        reasons=reasons,
        message=f"{worst.name}: {worst.message}" if worst.message else "",
        outputs=outputs,
        reference_status=min(doubts, key=order.index) if doubts else "ok",
        floor_db=min(floors) if floors else None,
        notes=tuple(dict.fromkeys(notes)),
    )


def _cell_notes(evidence: CellEvidence, seen: Seen) -> list[str]:
    notes = []
    if evidence.precision is None or evidence.precision.value == "unknown":
        notes.append("precision class unknown: judged in FP16 bands")
    if seen.reference.floor is None or not seen.reference.floor.ok:
        why = f" ({seen.reference.floor_note})" if seen.reference.floor_note else ""
        notes.append(f"noise floor unknown{why}: two equal CPU runs are all that speaks for the reference")
    outcome = evidence.outcome
    if evidence.config.accelerator != "cpu" and outcome is not None and outcome.delegation.level == "unknown":
        notes.append("the runtime did not say what ran where")
    return notes


def _absent(result: AgentResult, graph: GraphFacts | None) -> str | None:
    """A sentence naming signature outputs no run holds; only where the graph's own list is known."""
    if graph is None or not result.runs:
        return None if result.runs else "the result holds no runs"
    expected = len(graph.outputs)
    lowest = min(len(run.outputs) for run in result.runs)
    if lowest >= expected:
        return None
    names = ", ".join(repr(o.name) for o in graph.outputs[lowest:])
    return f"{expected - lowest} of {expected} outputs did not arrive ({names})"
