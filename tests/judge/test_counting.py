"""Exit codes, known results, expectations: each sentence of docs/judging.md about counting."""

from __future__ import annotations

from datetime import date

import pytest

from farm.agent_protocol import PROTOCOL, AgentResult, RunData
from farm.cases import Case, Spec
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.delegation import Delegation
from farm.judge import exit_code, find_causes, tally
from farm.judge.verdict import CellVerdict
from farm.outcome import Outcome
from farm.plan import Cell, Known, Plan, PlannedDevice

TODAY = date(2026, 6, 1)


class Run:
    """A plan of one device and one model with the given configs, their verdicts, delegation and latency."""

    def __init__(self, cells, *, known=(), spec=None, graph=None):
        self.plan = Plan(
            run_id="r",
            created="",
            farm_version="0",
            inventory_sha256=None,
            limits=Limits(),
            devices=(PlannedDevice(id="pixel", transport="adb"),),
            configs=tuple(CONFIGS.values()),
            cases=(
                Case(
                    id="case", model="face", model_path="", model_sha256="", model_size_bytes=1, signature=0,
                    signature_key="", graph=graph, input_sets=(), spec=spec or Spec(),
                ),
            ),
            cells=tuple(Cell(id=name, device="pixel", case="case", config=name, runtime="rt") for name in cells),
            known=tuple(known),
        )  # fmt: skip
        self.verdicts, self.outcomes = {}, {}
        for name, (words, *more) in cells.items():
            if words is None:
                continue
            verdict, *reasons = words.split()
            self.verdicts[name] = CellVerdict(cell=name, verdict=verdict, reasons=tuple(reasons))
            latency, level = (*more, 1.0, "full")[:2] if len(more) < 2 else more
            self.outcomes[name] = Outcome(
                cell=name, attempts=1, started="", finished="", wall_s=1, failure=None,
                delegation=Delegation(level=level),
                result=AgentResult(
                    protocol=PROTOCOL, agent_version="1", nonce="", ok=True, stage="done",
                    runs=(RunData(set=0, latency_ms=(latency,)),),
                ),
            )  # fmt: skip

    def tally(self, today=TODAY):
        return tally(plan=self.plan, outcomes=self.outcomes, verdicts=self.verdicts, today=today)

    def finding(self):
        found = find_causes(plan=self.plan, outcomes=self.outcomes, verdicts=self.verdicts)
        return found[0] if found else None


def run(known=(), spec=None, graph=None, **cells):
    given = {k.replace("_", "-"): v if isinstance(v, tuple) else (v,) for k, v in cells.items()}
    return Run(given, known=known, spec=spec, graph=graph)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("pass", 0), ("warn", 0), ("fail", 1), ("error", 1), ("unsupported", 0), ("inconclusive", 3), ("infra", 3),
        ("not_run", 3),
    ],
)  # fmt: skip
def test_what_each_verdict_counts_as(words, code):
    assert exit_code([CellVerdict(cell="c", verdict=words)]) == code


def test_a_one_outweighs_a_three_and_a_three_a_zero():
    cells = [CellVerdict(cell=w, verdict=w) for w in ("pass", "infra", "fail")]
    assert exit_code(cells) == 1
    assert exit_code(cells[:2]) == 3
    assert exit_code([]) == 0


def test_diagnostics_are_not_counted():
    counted = run(cpu="pass", cpu_fp16="fail", cpu_ref="error").tally()
    assert (counted.exit_code, counted.all_passed) == (0, True)


def test_a_planned_cell_without_a_verdict_counts_as_not_run():
    assert run(cpu="pass", gpu=(None,)).tally().exit_code == 3


def test_nothing_but_unsupported_passed_nothing():
    assert run(gpu="unsupported").tally().all_passed is False
    assert run(gpu="unsupported").tally().exit_code == 0


# known:

ZERO = Known(model="fa*", device="pix*", config="gpu", verdict="fail", reason="SILENT_ZERO_VECTOR", link="url")


def test_a_known_result_is_shown_and_not_counted():
    counted = run(cpu="pass", gpu="fail SILENT_ZERO_VECTOR", known=[ZERO]).tally()
    assert (counted.exit_code, counted.problems) == (0, ())
    assert counted.known["gpu"]["link"] == "url"


@pytest.mark.parametrize("field", ["model", "device", "config"])
def test_a_known_entry_for_something_else_excuses_nothing(field):
    import dataclasses

    other = dataclasses.replace(ZERO, **{field: "other*"})
    assert run(gpu="fail SILENT_ZERO_VECTOR", known=[other]).tally().exit_code == 1


def test_another_reason_is_reported_and_counted():
    counted = run(gpu="fail NUMERICAL_INSTABILITY", known=[ZERO]).tally()
    assert counted.exit_code == 1
    assert "SILENT_ZERO_VECTOR" in counted.problems[0]


def test_a_new_fault_beside_a_known_one_stays_visible():
    both = "fail SILENT_ZERO_VECTOR NUMERICAL_INSTABILITY"
    assert run(gpu=both, known=[ZERO]).tally().exit_code == 1
    more = Known(config="gpu", verdict="fail", reason="NUMERICAL_INSTABILITY")
    assert run(gpu=both, known=[ZERO, more]).tally().exit_code == 0


@pytest.mark.parametrize("verdict", ["pass", "warn"])
def test_an_unexpected_pass_is_reported_and_counted(verdict):
    counted = run(gpu=verdict, known=[ZERO]).tally()
    assert (counted.exit_code, counted.all_passed) == (1, False)
    assert "passes unexpectedly" in counted.problems[0]


def test_a_known_entry_holds_through_its_last_day_and_not_beyond():
    import dataclasses

    entry = dataclasses.replace(ZERO, until="2026-06-01")
    cells = run(gpu="fail SILENT_ZERO_VECTOR", known=[entry])
    assert cells.tally(date(2026, 6, 1)).exit_code == 0
    late = cells.tally(date(2026, 6, 2))
    assert late.exit_code == 1
    assert "2026-06-01" in late.problems[0]


def test_any_verdict_may_be_known():
    infra = Known(config="gpu", verdict="infra")
    assert run(cpu="pass", gpu="infra DEVICE_LOST", known=[infra]).tally().exit_code == 0


# expect:


@pytest.mark.parametrize(
    ("verdict", "code"), [("pass", 0), ("warn", 0), ("unsupported", 1), ("fail", 1), ("infra", 3), ("inconclusive", 3)]
)
def test_expect_a_config_to_pass(verdict, code):
    assert run(gpu=verdict, spec=Spec(expect={"gpu": "pass"})).tally().exit_code == code


def test_expect_unsupported_makes_a_pass_count():
    assert run(gpu="pass", spec=Spec(expect={"gpu": "unsupported"})).tally().exit_code == 1


@pytest.mark.parametrize(("level", "code"), [("full", 0), ("partial", 1), ("unknown", 1)])
def test_expect_full_delegation(level, code):
    assert run(cpu="pass", gpu=("pass", 1.0, level), spec=Spec(expect={"delegation": "full"})).tally().exit_code == code


@pytest.mark.parametrize(("ms", "code"), [(4.9, 0), (5.0, 1), (9.0, 1)])
def test_expect_faster_than_the_cpu(ms, code):
    cells = run(cpu=("pass", 5.0), gpu=("pass", ms), spec=Spec(expect={"faster_than": "cpu"}))
    assert cells.tally().exit_code == code


# Cause and cure


def cause(**cells):
    found = run(**cells).finding()
    return found.cause if found else "nothing"


def test_range_when_fp16_gives_zero_nan_or_saturation():
    for reason in ("SILENT_ZERO_VECTOR", "NUMERICAL_INSTABILITY", "SATURATION"):
        assert cause(gpu=f"fail {reason}", gpu_fp32="pass", cpu_fp16="fail PRECISION_DEGRADATION") == "FP16_RANGE"


def test_precision_when_fp16_is_finite_but_wrong_and_no_hazard_applies():
    cells = {"gpu": "fail PRECISION_DEGRADATION", "gpu_fp32": "pass", "cpu_fp16": "fail PRECISION_DEGRADATION"}
    assert cause(**cells) == "FP16_PRECISION"


def test_range_when_a_constant_cannot_be_held():
    from tests.judge.kit import _graph

    graph = _graph((), {"fp16_hazards": ("MUL (op 3): a constant of 1e10",)})
    cells = {"gpu": "fail PRECISION_DEGRADATION", "gpu_fp32": "pass", "cpu_fp16": "fail PRECISION_DEGRADATION"}
    found = run(graph=graph, **cells).finding()
    assert found.cause == "FP16_RANGE"
    assert "1e10" in found.explanation


def test_accumulation_when_the_emulator_is_right():
    assert cause(gpu="fail NUMERICAL_INSTABILITY", gpu_fp32="pass", cpu_fp16="pass") == "FP16_ACCUMULATION"


def test_kernel_bug_when_both_precisions_fail_on_the_gpu_alone():
    cells = {"gpu": ("fail X", 1, "full"), "gpu_fp32": ("fail X", 1, "full"), "cpu_fp16": "pass"}
    assert cause(**cells) == "KERNEL_BUG"


def test_partition_boundary_when_both_fail_partly_on_the_cpu():
    assert cause(gpu=("fail X", 1, "partial"), gpu_fp32=("fail X", 1, "partial")) == "PARTITION_BOUNDARY"


def test_no_cause_is_guessed_where_evidence_is_missing():
    assert cause(gpu="fail X", gpu_fp32="pass") is None
    assert cause(gpu="fail X", gpu_fp32="pass", cpu_fp16="inconclusive") is None
    assert cause(gpu="fail X") is None
    assert cause(gpu=("fail X", 1, "unknown"), gpu_fp32=("fail X", 1, "unknown")) is None
    assert cause(cpu="pass", gpu="pass", gpu_fp32="warn", cpu_fp16="fail X") == "nothing"


def test_a_cure_is_named_with_its_cost_only_if_it_passed_on_this_device():
    good = run(
        gpu=("fail SILENT_ZERO_VECTOR", 10.0), gpu_fp32=("pass", 13.0), cpu_fp16="fail SILENT_ZERO_VECTOR"
    ).finding()
    assert (good.remedy, good.latency_ratio, good.failing) == ("gpu-fp32", 1.3, ("gpu",))
    for verdict in ("warn", "fail X", "unsupported", "inconclusive", "infra"):
        assert run(gpu="fail X", gpu_fp32=verdict, cpu="pass", cpu_fp16="fail X").finding().remedy is None


def test_a_diagnostic_config_is_never_a_cure():
    assert run(gpu="fail X", cpu_fp16="pass", cpu_ref="pass").finding().remedy is None


def test_a_crash_gets_a_finding_where_another_config_works():
    found = run(gpu="error CRASH", gpu_fp32="pass").finding()
    assert (found.cause, found.remedy) == (None, "gpu-fp32")
    assert run(gpu="error CRASH", gpu_fp32="error CRASH", cpu="error CRASH").finding() is None
    assert run(gpu="error INVALID_MODEL", cpu="error INVALID_MODEL").finding() is None
