"""Causes where hazards were predicted: certain ones that lead to the failing output count, only beside a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.hazards import CaseHazards, Hazard
from farm.judge import find_causes, suspects
from farm.judge.verdict import CellVerdict, Finding, OutputVerdict
from tests.judge.kit import Bench, _graph
from tests.judge.test_counting import Run, run

OVER = Hazard(
    kind="overflow", op="MUL", op_index=3, tensor=7, tensor_name="norm/mul", value=1e6, elements=4, certain=True,
    message="MUL op 3 'norm/mul': 4 of 8 values are beyond ±65504", outputs=(0,),
)  # fmt: skip
MASK = replace(OVER, kind="mask", op="ADD", op_index=5, certain=False, message="ADD op 5 'mask': 2 values become −Inf")
SUM = replace(
    OVER, kind="accumulator_risk", op="MEAN", op_index=6, certain=False, message="MEAN op 6 'm': sums up to 1e6"
)
DEGRADED, NAN = "fail PRECISION_DEGRADATION", "fail NUMERICAL_INSTABILITY"


def found(*hazards: Hazard, made: Run | None = None, **cells: Any) -> Finding | None:
    made = made or run(**cells)
    known = {"case": CaseHazards(case="case", found=hazards, seen=9)}
    out = find_causes(plan=made.plan, outcomes=made.outcomes, verdicts=made.verdicts, hazards=known)
    return out[0] if out else None


def told(*hazards: Hazard, made: Run | None = None, **cells: Any) -> tuple[str | None, tuple[Hazard, ...], str]:
    one = found(*hazards, made=made, **cells)
    assert one is not None
    return one.cause, one.hazards, one.explanation


def test_a_certain_hazard_makes_it_range_and_is_named_beside_what_was_seen() -> None:
    cause, hazards, words = told(OVER, MASK, gpu=DEGRADED, gpu_fp32="pass", cpu_fp16=DEGRADED)
    assert (cause, hazards) == ("FP16_RANGE", (OVER,))
    assert words == (
        "gpu ended in wrong values (PRECISION_DEGRADATION); predicted from the reference's activations: "
        "MUL op 3 'norm/mul': 4 of 8 values are beyond ±65504; "
        "cpu-fp16 too, gpu-fp32 is right"
    )
    assert "; cpu-fp16 in zeros, " in told(OVER, gpu=NAN, gpu_fp32="pass", cpu_fp16="fail SILENT_ZERO_VECTOR")[2]


def test_the_first_op_is_named_and_those_behind_it_counted() -> None:
    later = replace(OVER, op_index=4, message="MUL op 4")
    _, hazards, words = told(OVER, later, gpu=NAN, gpu_fp32="pass", cpu_fp16=NAN)
    assert hazards == (OVER, later)
    assert "MUL op 3 'norm/mul'" in words
    assert "(1 more op in the same way)" in words


def test_an_uncertain_hazard_alone_is_no_range() -> None:
    cause, hazards, words = told(MASK, gpu=DEGRADED, gpu_fp32="pass", cpu_fp16=DEGRADED)
    assert (cause, hazards) == ("FP16_PRECISION", ())
    assert "none of the reference's 9 float tensors is sure to leave FP16's range" in words


def test_an_uncertain_hazard_is_a_possible_reason_where_the_device_ended_out_of_range() -> None:
    cause, hazards, words = told(MASK, gpu=NAN, gpu_fp32="pass", cpu_fp16=NAN)
    assert (cause, hazards) == ("FP16_RANGE", (MASK,))
    assert "a possible reason from the reference's activations: ADD op 5" in words


def test_what_was_not_looked_at_is_said() -> None:
    made = run(gpu=DEGRADED, gpu_fp32="pass", cpu_fp16=DEGRADED)
    known = {"case": CaseHazards(case="case", seen=9, unseen=2, note="out of time")}
    (one,) = find_causes(plan=made.plan, outcomes=made.outcomes, verdicts=made.verdicts, hazards=known)
    assert one.cause == "FP16_PRECISION"
    assert "2 more were not seen (out of time)" in one.explanation


def test_a_guard_against_zero_is_no_range_once_activations_were_seen() -> None:
    """The constants of the graph facts stand in only where nothing was predicted."""
    graph = _graph((), {"fp16_hazards": ("constant 'eps' of op 9 (MAXIMUM): |1e-12| is below 2^-24",)})
    made = run(graph=graph, gpu=DEGRADED, gpu_fp32="pass", cpu_fp16=DEGRADED)
    assert told(made=made)[0] == "FP16_PRECISION"
    nothing = {"case": CaseHazards(case="case", note="the model has changed since")}
    for known in (None, nothing):
        (one,) = find_causes(plan=made.plan, outcomes=made.outcomes, verdicts=made.verdicts, hazards=known)
        assert one.cause == "FP16_RANGE"
        assert "|1e-12|" in one.explanation


@pytest.mark.parametrize("emulator", ["pass", "inconclusive"])
@pytest.mark.parametrize("reason", ["NUMERICAL_INSTABILITY", "SILENT_ZERO_VECTOR", "SATURATION"])
def test_predicted_and_seen_outweighs_an_emulator_that_missed_it(emulator: str, reason: str) -> None:
    cause, hazards, words = told(OVER, gpu=f"fail {reason}", gpu_fp32="pass", cpu_fp16=emulator)
    assert (cause, hazards) == ("FP16_RANGE", (OVER,))
    assert ("cpu-fp16, which keeps some numbers wider, passed" in words) == (emulator == "pass")


def test_a_prediction_the_device_did_not_show_does_not_outweigh_the_emulator() -> None:
    assert told(OVER, gpu=DEGRADED, gpu_fp32="pass", cpu_fp16="pass")[:2] == ("FP16_ACCUMULATION", ())
    assert told(MASK, gpu=NAN, gpu_fp32="pass", cpu_fp16="pass")[:2] == ("FP16_ACCUMULATION", ())


def test_a_sum_on_its_way_is_named_for_accumulation() -> None:
    cause, hazards, words = told(SUM, gpu=NAN, gpu_fp32="pass", cpu_fp16="pass")
    assert (cause, hazards) == ("FP16_ACCUMULATION", (SUM,))
    assert "MEAN op 6 'm': sums up to 1e6" in words


def test_nothing_is_claimed_where_the_device_passed_or_the_kernel_is_at_fault() -> None:
    assert found(OVER, gpu="pass", gpu_fp32="pass", cpu_fp16=NAN) is None
    assert told(OVER, gpu=NAN, gpu_fp32=NAN, cpu_fp16=NAN)[:2] == ("KERNEL_BUG", ())
    assert told(OVER, gpu=NAN)[:2] == (None, ())


def test_only_hazards_that_lead_to_a_failing_output_count() -> None:
    y = {"good": np.ones(2, np.float32), "bad": np.ones(2, np.float32)}
    graph = Bench().evidence([y], [y]).case.graph
    made = run(graph=graph, gpu=DEGRADED, gpu_fp32="pass", cpu_fp16=DEGRADED)
    words = {"good": "pass", "bad": "fail"}
    made.verdicts["gpu"] = CellVerdict(
        cell="gpu",
        verdict="fail",
        reasons=("PRECISION_DEGRADATION",),
        outputs=tuple(
            OutputVerdict(name=n, kind="values", kind_source="", input_set="", verdict=w)  # type: ignore[arg-type]
            for n, w in words.items()
        ),
    )
    assert told(OVER, made=made)[:2] == ("FP16_PRECISION", ())
    there = replace(OVER, outputs=(0, 1))
    assert told(there, made=made)[:2] == ("FP16_RANGE", (there,))


def test_suspects_are_cases_that_failed_on_a_gpu_below_fp32() -> None:
    def names(**cells: Any) -> list[str]:
        made = run(**cells)
        return [c.id for c in suspects(plan=made.plan, verdicts=made.verdicts)]

    assert names(cpu="pass", gpu=DEGRADED, gpu_fp32="pass") == ["case"]
    assert names(cpu="pass", gpu_fp16=DEGRADED) == ["case"]
    assert names(cpu=DEGRADED, gpu="pass", gpu_fp32=DEGRADED, cpu_fp16=NAN) == []
    assert names(gpu="error CRASH", gpu_fp32="inconclusive") == []
    # Wrong at every precision: FP16 is not what is at fault.
    assert names(gpu=NAN, gpu_fp32=DEGRADED) == []
