"""build_matrix: every planned cell appears, and nothing that did not run may look like a pass."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farm import codec
from farm.agent_protocol import RunData
from farm.judge.verdict import CellVerdict, OutputVerdict
from farm.report import json_
from farm.report.matrix import Matrix, MatrixCell, build_matrix, latency
from tests.report import sample

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "data" / "matrix" / "sample.json"
SCHEMA = ROOT / "farm" / json_.SCHEMA


def by_id(matrix: Matrix) -> dict[str, MatrixCell]:
    return {cell.id: cell for cell in matrix.cells}


def test_every_planned_cell_appears_in_plan_order() -> None:
    kwargs = sample.kwargs()
    assert [c.id for c in build_matrix(**kwargs).cells] == [c.id for c in kwargs["plan"].cells]


def test_the_sample_shows_every_verdict() -> None:
    words = {"pass", "warn", "fail", "error", "unsupported", "inconclusive", "infra", "not_run"}
    assert {c.verdict for c in sample.sample().cells} == words


def test_nothing_ran_gives_a_matrix_of_not_run() -> None:
    kwargs = sample.kwargs() | {"outcomes": {}, "verdicts": {}, "findings": (), "facts": {}, "references": {}}
    assert {c.verdict for c in build_matrix(**kwargs).cells} == {"not_run"}


def test_a_pass_without_an_outcome_becomes_not_run() -> None:
    kwargs = sample.kwargs()
    key = sample.cell_id("pixel", "speech_logits", "gpu-fp32")
    kwargs["verdicts"][key] = CellVerdict(cell=key, verdict="pass")
    assert by_id(build_matrix(**kwargs))[key].verdict == "not_run"


def test_an_outcome_nobody_judged_is_not_run_and_says_so() -> None:
    kwargs = sample.kwargs()
    key = sample.cell_id("lvp", "pose", "cpu")
    del kwargs["verdicts"][key]
    cell = by_id(build_matrix(**kwargs))[key]
    assert (cell.verdict, "farm judge" in cell.message) == ("not_run", True)


def test_latency_is_median_and_p95_of_the_first_input_set_only() -> None:
    kwargs = sample.kwargs()
    outcome = kwargs["outcomes"][sample.cell_id("lvp", "pose", "cpu")]
    runs = (RunData(set=1, latency_ms=(500.0,)), RunData(set=0, latency_ms=(4.0, 1.0, 3.0, 2.0)))
    got = latency(replace(outcome, result=sample.result(1.0, runs=runs)))
    assert got is not None
    # By hand: sorted 1 2 3 4; median 2.5; 0.95 * 3 = 2.85 -> 3 + 0.85 * (4 - 3).
    assert (got.median, got.n) == (2.5, 4)
    assert got.p95 == pytest.approx(3.85)


def test_latency_counts_every_step_of_a_stateful_model() -> None:
    outcome = sample.kwargs()["outcomes"][sample.cell_id("lvp", "pose", "cpu")]
    runs = tuple(RunData(set=0, step=s, latency_ms=(float(s + 1),)) for s in range(3))
    got = latency(replace(outcome, result=sample.result(1.0, runs=runs)))
    assert got is not None
    assert (got.median, got.n) == (2.0, 3)


def test_no_timing_gives_no_latency() -> None:
    outcome = sample.kwargs()["outcomes"][sample.cell_id("lvp", "pose", "cpu")]
    assert latency(None) is None
    assert latency(replace(outcome, result=sample.result(1.0, runs=(RunData(set=0, latency_ms=(math.nan,)),)))) is None


def test_values_json_cannot_hold_are_left_out_and_the_file_reads_back() -> None:
    kwargs = sample.kwargs()
    key = sample.cell_id("lvp", "pose", "cpu")
    output = OutputVerdict(
        name="o", kind="values", kind_source="", input_set="s", verdict="pass",
        metrics={"snr_db": math.inf, "cosine": math.nan, "max_abs": 0.5}, limits={"pass_snr_db": -math.inf},
    )  # fmt: skip
    kwargs["verdicts"][key] = CellVerdict(cell=key, verdict="pass", outputs=(output,), floor_db=math.inf)
    matrix = build_matrix(**kwargs)
    cell = by_id(matrix)[key]
    assert (cell.outputs[0].metrics, cell.outputs[0].limits) == ({"max_abs": 0.5}, {})
    assert cell.reference.floor_db is None
    assert any("same bits" in note for note in cell.notes)
    text = json_.render(matrix)
    assert json.loads(text, parse_constant=pytest.fail)
    assert codec.from_json(text.encode(), Matrix) == matrix


def test_json_keys_are_sorted_and_bytes_repeat() -> None:
    text = json_.render(sample.sample())
    assert text == json_.render(sample.sample())
    value = json.loads(text)
    assert text == json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def test_mixed_inputs_count_as_synthetic() -> None:
    kwargs = sample.kwargs()
    plan = kwargs["plan"]
    first, second = plan.cases[0].input_sets
    user = replace(first, origin="user")

    def inputs(*sets: Any) -> str:
        cases = (replace(plan.cases[0], input_sets=sets), *plan.cases[1:])
        return build_matrix(**(kwargs | {"plan": replace(plan, cases=cases)})).cells[0].inputs

    assert [inputs(user, user), inputs(user, second), inputs()] == ["user", "synthetic", "synthetic"]


def test_the_gpu_is_the_adapter_the_runtime_named_then_what_probing_found() -> None:
    kwargs = sample.kwargs()
    assert [d.gpu for d in build_matrix(**kwargs).devices] == list(sample.DEVICES.values())
    quiet = kwargs | {"outcomes": {}, "verdicts": {}, "findings": ()}
    assert [d.gpu for d in build_matrix(**quiet).devices] == ["unknown GPU", "Mali-G715"]


def test_facts_shown_leave_out_what_identifies_a_boot() -> None:
    device = sample.sample().devices[0]
    assert "boot_id" not in device.facts
    assert device.facts["cpu_count"] == "2"
    assert device.facts_sha256 is not None


def test_partial_delegation_and_its_ops_are_kept() -> None:
    cell = by_id(sample.sample())[sample.cell_id("lvp", "pose", "gpu")]
    assert (cell.delegation, cell.cpu_ops) == ("partial", ("DENSIFY: unsupported",))


def test_an_unknown_verdict_word_is_refused_on_reading() -> None:
    text = json_.render(sample.sample()).replace('"verdict": "fail"', '"verdict": "okay"')
    with pytest.raises(msgspec.ValidationError, match="okay"):
        codec.from_json(text.encode(), Matrix)


def test_the_shipped_schema_is_fresh() -> None:
    assert SCHEMA.read_text() == json_.schema_text(), "run: python -m tests.report.test_matrix"


def test_the_schema_accepts_the_sample_and_refuses_another_word() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    value = json.loads(json_.render(sample.sample()))
    assert list(validator.iter_errors(value)) == []
    value["cells"][0]["verdict"] = "okay"
    assert [list(e.absolute_path) for e in validator.iter_errors(value)] == [["cells", 0, "verdict"]]


def test_the_kept_sample_is_what_the_builder_makes() -> None:
    assert FIXTURE.read_text() == json_.render(sample.sample()), "run: python -m tests.report.test_matrix"


if __name__ == "__main__":
    SCHEMA.write_text(json_.schema_text())
    FIXTURE.write_text(json_.render(sample.sample()))
