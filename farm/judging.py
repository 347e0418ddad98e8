"""From a run folder to a Matrix: gathers the evidence of each cell, asks the judge, hands everything to the report.

Reads files only; the judge itself (farm/judge) stays pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

from farm.cases import Case
from farm.configs import Config
from farm.judge import find_causes, judge_cell, suspects, tally
from farm.judge.verdict import CellEvidence, CellVerdict
from farm.profiles import Profile, load_profiles, match_profile
from farm.report.matrix import Matrix, build_matrix
from farm.store import RunStore


def gather(store: RunStore) -> list[CellEvidence]:
    """The evidence of every planned cell, in the plan's order."""
    plan = store.plan
    outcomes, references = store.outcomes(), store.references()
    precision = {(p.device, p.runtime, p.config): p for p in store.precision()}
    cases = {c.id: c for c in plan.cases}
    configs = {c.name: c for c in plan.configs}
    profiles = device_profiles(store)
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
            bands=_bands(profiles.get(cell.device), configs[cell.config], plan.band_overrides),
            load=store.objects.load,
        )
        for cell in plan.cells
    ]


def device_profiles(store: RunStore) -> dict[str, Profile]:
    """The GPU family of each device: as the inventory says, else by its facts and the adapter its cells really used."""
    plan, outcomes, facts = store.plan, store.outcomes(), store.facts()
    profiles = load_profiles()
    named = {p.id: p for p in profiles}
    adapters: dict[str, Counter[str]] = {}
    for cell in plan.cells:
        outcome = outcomes.get(cell.id)
        if outcome is not None and outcome.delegation.adapter:
            adapters.setdefault(cell.device, Counter())[outcome.delegation.adapter] += 1
    found: dict[str, Profile] = {}
    for device in plan.devices:
        seen = adapters.get(device.id)
        told = {**facts.get(device.id, {}), **({"adapter": seen.most_common(1)[0][0]} if seen else {})}
        profile = named.get(device.profile) if device.profile else match_profile(told, profiles)
        if profile is not None:
            found[device.id] = profile
    return found


def _bands(
    profile: Profile | None, config: Config, overrides: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """The run's own limits over those of the GPU family, which say nothing of a CPU's numbers."""
    if profile is None or not profile.bands or config.accelerator == "cpu":
        return overrides
    family = profile.band_overrides()
    return {where: {**family.get(where, {}), **overrides.get(where, {})} for where in {*family, *overrides}}


Predict = Callable[[RunStore, Sequence[Case]], None]
"""Writes the hazards of cases into the run; may run the models on this machine's CPU. Must not raise."""


def judge_store(store: RunStore, today: date, *, functions: bool = True, predict: Predict | None = None) -> Matrix:
    """Judge every planned cell and put the run into one value. `today` decides which known results have expired.

    functions: False does not run the Python functions that the run's `assertions:` name. predict: called, where cells
    failed in FP16, with their cases; without it the hazards the run holds are used.
    """
    plan, outcomes = store.plan, store.outcomes()
    gathered = gather(store)
    builtin = {evidence.cell: judge_cell(evidence) for evidence in gathered}
    verdicts = {e.cell: _with_assertions(e, builtin[e.cell], functions) for e in gathered}
    if predict is not None and (suspected := suspects(plan=plan, verdicts=builtin)):
        predict(store, suspected)
    counted = tally(plan=plan, outcomes=outcomes, verdicts=verdicts, today=today)
    complete = all(cell.id in outcomes for cell in plan.cells)
    return build_matrix(
        plan=plan,
        outcomes=outcomes,
        verdicts=verdicts,
        # A cause is read from what went wrong in the numbers; what a user's own rule finds missing is no pattern of it.
        findings=find_causes(plan=plan, outcomes=outcomes, verdicts=builtin, hazards=store.hazards()),
        precision=store.precision(),
        facts=_with_profiles(store),
        references=store.references(),
        known=counted.known,
        known_problems=counted.problems,
        exit_code=counted.exit_code,
        finished=max((o.finished for o in outcomes.values()), default=None) if complete else None,
    )


def _with_assertions(evidence: CellEvidence, verdict: CellVerdict, functions: bool) -> CellVerdict:
    if not evidence.case.spec.assertions:
        return verdict
    from farm.assertions import apply_assertions

    return apply_assertions(evidence, verdict, functions=functions)


def _with_profiles(store: RunStore) -> dict[str, dict[str, Any]]:
    facts = store.facts()
    for device, profile in device_profiles(store).items():
        facts.setdefault(device, {})["profile"] = profile.id
    return facts
