"""From a run folder to a Matrix: gathers the evidence of each cell, asks the judge, hands everything to the report.

Reads files only; the judge itself (farm/judge) stays pure.
"""

from __future__ import annotations

from datetime import date

from farm.judge import find_causes, judge_cell, tally
from farm.judge.verdict import CellEvidence
from farm.report.matrix import Matrix, build_matrix
from farm.store import RunStore


def gather(store: RunStore) -> list[CellEvidence]:
    """The evidence of every planned cell, in the plan's order."""
    plan = store.plan
    outcomes, references = store.outcomes(), store.references()
    precision = {(p.device, p.runtime, p.config): p for p in store.precision()}
    cases = {c.id: c for c in plan.cases}
    configs = {c.name: c for c in plan.configs}
    return [
        CellEvidence(
            cell=cell.id,
            device=cell.device,
            case=cases[cell.case],
            config=configs[cell.config],
            outcome=outcomes.get(cell.id),
            reference=references.get(cell.case),
            precision=precision.get((cell.device, cell.runtime, cell.config)),
            limits=plan.limits,
            bands=plan.band_overrides,
            load=store.objects.load,
        )
        for cell in plan.cells
    ]


def judge_store(store: RunStore, today: date) -> Matrix:
    """Judge every planned cell and put the run into one value. `today` decides which known results have expired."""
    plan, outcomes = store.plan, store.outcomes()
    verdicts = {evidence.cell: judge_cell(evidence) for evidence in gather(store)}
    counted = tally(plan=plan, outcomes=outcomes, verdicts=verdicts, today=today)
    complete = all(cell.id in outcomes for cell in plan.cells)
    return build_matrix(
        plan=plan,
        outcomes=outcomes,
        verdicts=verdicts,
        findings=find_causes(plan=plan, outcomes=outcomes, verdicts=verdicts),
        precision=store.precision(),
        facts=store.facts(),
        references=store.references(),
        known=counted.known,
        known_problems=counted.problems,
        exit_code=counted.exit_code,
        finished=max((o.finished for o in outcomes.values()), default=None) if complete else None,
    )
