"""Hazards of the cases that went wrong in FP16, from one more CPU run each: between judging cells and naming causes.

    cell verdicts  ──▶  judge.causes.suspects  ──▶  predict  ──▶  hazards/<case>.json in the run folder

Only failing cases cost anything, and no trouble here is the run's: what cannot be predicted is a note, and the cause
is then told from what the device did. `farm judge RUN` reads the files and runs nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.cases import Case
from farm.errors import FarmError, InvalidInput
from farm.graph import Walk
from farm.hazards import CaseHazards, Stats, hazards, is_judged
from farm.runner import Stop, open_transport
from farm.store import RunStore
from farm.tflite import InvalidModel, Model, read_model

if TYPE_CHECKING:
    from farm.runtimes import Runtime

CASE_S = 60.0
"""For the runs of one case; a second more than this at worst once over, as a run begun in time has its own deadline."""
ALL_S = 600.0
"""For all cases of a run: a nightly of hundreds of broken models ends too."""
MAX_MODEL_BYTES = 1 << 30
"""Showing a model's inside means a rewritten copy of it in memory."""


@dataclass(slots=True, kw_only=True)
class Predictor:
    """Writes the hazards of cases into a run. host: finds runtime and agent digest, asked only if there is a case."""

    host: Callable[[], tuple[Runtime, str]]
    stop: Stop
    stage: Callable[[str], None]

    def __call__(self, store: RunStore, cases: Sequence[Case]) -> None:
        """Predict what is not in the run yet. A run that is being stopped is left as it is, for its resume."""
        have = {name for name, kept in store.hazards().items() if not kept.note}
        end = time.monotonic() + ALL_S
        for case in cases:
            if self.stop.draining:
                return
            if case.id in have:
                continue
            self.stage(f"looking for what FP16 cannot hold in {case.id}")
            try:
                found = self._of(store, case, max(end - time.monotonic(), 0.0))
            except Exception as e:
                # Whatever it is, a missing prediction must not take the verdicts with it.
                found = CaseHazards(case=case.id, note=f"{type(e).__name__}: {e}")
            if self.stop.draining and found.note:
                return
            # A full disk is told by whoever writes the reports, with the cure.
            with suppress(FarmError):
                store.write_hazards(found)

    def _of(self, store: RunStore, case: Case, left_s: float) -> CaseHazards:
        try:
            model = read_model(Path(case.model_path))
        except (InvalidInput, InvalidModel, OSError) as e:
            return CaseHazards(case=case.id, note=f"the model cannot be read again: {e}")
        if hashlib.sha256(model.data).hexdigest() != case.model_sha256:
            return CaseHazards(case=case.id, note="the model has changed since")
        seen: dict[int, Stats] = {}
        note = ""
        if not left_s:
            note = f"this run has spent its {ALL_S:.0f} s for that on other models"
        elif os.path.getsize(case.model_path) > MAX_MODEL_BYTES:
            note = "the model is larger than 1 GiB"
        else:
            try:
                seen = self._activations(store, case, min(CASE_S, left_s))
            except (FarmError, OSError, MemoryError) as e:
                note = " ".join(str(e).split()) or type(e).__name__
        missing = len(_judged(model, case.signature) - seen.keys())
        if missing and not note:
            note = "no run showed them: it failed, or they pass the time or 1 GiB"
        return CaseHazards(
            case=case.id,
            found=hazards(model, seen, signature=case.signature),
            seen=len(_judged(model, case.signature) & seen.keys()),
            unseen=missing,
            note=note if missing else "",
        )

    def _activations(self, store: RunStore, case: Case, deadline_s: float) -> dict[int, Stats]:
        from farm.plan import PlannedDevice
        from farm.reference import References

        runtime, agent_digest = self.host()
        here = PlannedDevice(id="reference", transport="local")
        maker = References(
            objects=store.objects,
            limits=store.plan.limits,
            runtime=runtime,
            agent_digest=agent_digest,
            connect=lambda: open_transport(here),
            stop=self.stop,
        )
        try:
            return maker.activations(case, deadline_s=deadline_s)
        finally:
            maker.close()


def _judged(model: Model, signature: int) -> set[int]:
    """Tensors whose values may be hazards: those an op of the signature's subgraph writes."""
    graph = model.subgraphs[model.signatures[signature].subgraph]
    return {t for t in Walk(graph).producer if is_judged(graph.tensors[t])}
