"""Findings in words: only what a run on that device showed, and lines that the runtime's own API accepts."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from farm.configs import CONFIGS, Config
from farm.hazards import Hazard
from farm.judge.verdict import CellVerdict, Finding
from farm.report import html, markdown
from farm.report.matrix import MatrixFinding, build_matrix
from farm.report.precedents import PRECEDENTS, matching
from farm.report.snippets import snippets
from farm.report.words import further_hazards
from tests.report import sample

GPU = sample.cell_id("pixel", "embedder_300m", "gpu")


def explained(changes: dict[str, Any] | None = None, **finding: Any) -> MatrixFinding:
    """The first finding of the sample, with fields of it or verdicts by cell id replaced."""
    kwargs = sample.kwargs()
    for key, verdict in (changes or {}).items():
        if verdict is None:
            del kwargs["verdicts"][key], kwargs["outcomes"][key]
        else:
            kwargs["verdicts"][key] = CellVerdict(cell=key, verdict=verdict, reasons=kwargs["verdicts"][key].reasons)
    kwargs["findings"] = (replace(kwargs["findings"][0], **finding),)
    return build_matrix(**kwargs).findings[0]


def test_the_headline_says_what_where_and_how() -> None:
    assert explained().headline == "embedder_300m returns zeros, without any error, on Mali-G715 (pixel) with gpu"


def test_a_verified_remedy_is_named_with_its_cost() -> None:
    finding = explained()
    assert finding.remedy == "gpu-fp32"
    assert finding.remedy_text == (
        "gpu-fp32 passed on this device, at 1.5x the time of gpu (14.2 ms). The CPU passed too, at 42 ms."
    )
    assert set(finding.snippets) == {"kotlin", "cpp", "python"}
    assert "FP32" in finding.snippets["kotlin"]


@pytest.mark.parametrize("verdict", ["fail", "error", "infra", "inconclusive", "unsupported", None])
def test_a_remedy_no_cell_vouches_for_is_not_named(verdict: str | None) -> None:
    finding = explained({sample.cell_id("pixel", "embedder_300m", "gpu-fp32"): verdict})
    assert finding.remedy is None
    assert finding.latency_ratio is None
    assert "gpu-fp32" not in finding.remedy_text
    assert finding.remedy_text.endswith("use the CPU, which passed (42 ms).")
    assert "Accelerator.CPU" in finding.snippets["kotlin"]


def test_a_warning_is_not_called_a_pass() -> None:
    finding = explained({sample.cell_id("pixel", "embedder_300m", "gpu-fp32"): "warn"})
    assert finding.remedy_text.startswith("gpu-fp32 passed with a warning on this device")


def test_the_cpu_is_not_advised_when_it_failed_too() -> None:
    finding = explained({sample.cell_id("pixel", "embedder_300m", "cpu"): "fail"}, remedy=None)
    assert "use the CPU" not in finding.remedy_text
    assert "the CPU did not pass either (fail)" in finding.remedy_text
    assert finding.snippets == {}


def test_a_remedy_slower_than_the_cpu_says_so() -> None:
    kwargs = sample.kwargs()
    key = sample.cell_id("pixel", "embedder_300m", "gpu-fp32")
    kwargs["outcomes"][key] = replace(kwargs["outcomes"][key], result=sample.result(84.0))
    assert "gpu-fp32 is slower than the CPU here (2x)" in build_matrix(**kwargs).findings[0].remedy_text


def test_a_cause_comes_with_its_meaning_and_the_judges_evidence() -> None:
    text = explained().explanation
    assert text.startswith("Some values in this model do not fit into 16-bit floats")
    assert text.endswith("Seen here: cpu-fp16 gives zeros as well, gpu-fp32 passes.")
    assert explained(cause=None, explanation="odd").explanation == "Odd."


def test_a_finding_all_of_whose_cells_are_known_says_it_is_not_counted() -> None:
    kwargs = sample.kwargs()
    kwargs["known"][GPU] = {"verdict": "fail"}
    assert "not counted" in build_matrix(**kwargs).findings[0].explanation
    assert "not counted" not in sample.sample().findings[0].explanation


def test_precedents_need_their_whole_pattern() -> None:
    def links(**changes: Any) -> set[str]:
        known: dict[str, Any] = {
            "cause": None, "reasons": (), "ops": (), "bad_tails": (), "gpu": "", "gpu_api": "",
        }  # fmt: skip
        return {link.rsplit("/", 1)[1] for _, link in matching(**(known | changes))}

    assert links(cause="FP16_RANGE", reasons=["SILENT_ZERO_VECTOR"]) == {"7693"}
    assert links(cause="KERNEL_BUG", reasons=["SILENT_ZERO_VECTOR"]) == set()
    assert "9249" in links(cause="FP16_RANGE", reasons=["SATURATION"], ops={"SUM": 1})
    assert "9249" not in links(cause="FP16_RANGE", reasons=["SATURATION"], ops={"MEAN": 1})
    assert links(cause="KERNEL_BUG", reasons=["SCALE_ERROR"], bad_tails={"ADD"}) == {"8599"}
    assert links(reasons=["NONDETERMINISTIC"], gpu="Adreno (TM) 830", gpu_api="WebGPU/Vulkan") == {"8065", "21939"}
    assert links(reasons=["NONDETERMINISTIC"], gpu="Mali-G715") == set()


def test_every_precedent_is_bound_to_a_pattern_and_a_public_link() -> None:
    for precedent in PRECEDENTS:
        assert precedent.causes or precedent.reasons
        assert precedent.link.startswith("https://github.com/")


def test_an_add_that_is_a_failing_output_names_its_precedent() -> None:
    kwargs = sample.kwargs()
    plan = kwargs["plan"]
    case = sample.case("pose", tail=("ADD",))
    kwargs["plan"] = replace(plan, cases=tuple(case if c.id == "pose" else c for c in plan.cases))
    kwargs["findings"] = (replace(kwargs["findings"][1], cause="KERNEL_BUG"),)
    assert [link[-4:] for _, link in build_matrix(**kwargs).findings[0].precedents] == ["8599"]


def test_python_lines_run_against_the_installed_runtime() -> None:
    compiled_model = pytest.importorskip("ai_edge_litert.compiled_model", reason="ai-edge-litert is not installed")
    for name in ("cpu", "gpu-fp32"):
        lines = snippets(CONFIGS[name])[0]["python"].rstrip().splitlines()
        assert lines[-1] == 'model = CompiledModel.from_file("model.tflite", options=options)'
        scope: dict[str, Any] = {}
        exec("\n".join(lines[:-1]), scope)
        assert type(scope["options"]).__name__ == "Options"
    assert scope["options"].gpu_options.enforce_f32 is True
    assert "options" in inspect.signature(compiled_model.CompiledModel.from_file).parameters


def test_fp32_accumulation_has_no_python_lines_and_says_why() -> None:
    lines, note = snippets(CONFIGS["gpu-fp16-acc32"])
    assert "FP16_WITH_FP32_ACCUM" in lines["kotlin"]
    assert "python" not in lines
    assert "2.2.0" in note
    assert "No way to ask for this from Python" in note


def test_configs_with_raw_options_get_no_lines() -> None:
    odd = Config(name="mine", accelerator="gpu", precision="fp32", gpu_options=("priority = 2",))
    assert snippets(odd) == ({}, "mine sets runtime options that have no ready lines for apps.")
    assert snippets(CONFIGS["cpu-fp16"])[0] == {}


def test_a_finding_whose_reason_is_a_crash_reads_as_one() -> None:
    kwargs = sample.kwargs()
    key = sample.cell_id("pixel", "segment_person", "gpu-fp32")
    kwargs["findings"] = (
        Finding(
            device="pixel", case="segment_person", runtime=sample.RUNTIME, failing=(key,), cause=None, explanation=""
        ),
    )
    assert build_matrix(**kwargs).findings[0].headline == "segment_person crashes on Mali-G715 (pixel) with gpu-fp32"


def test_predicted_hazards_travel_with_the_finding_and_many_are_cut_short() -> None:
    made = tuple(
        Hazard(
            kind="overflow", op="MUL", op_index=i, tensor=i, tensor_name=f"t{i}", value=1e6, elements=2, certain=True,
            message=f"MUL op {i} <t{i}>: beyond",
        )
        for i in range(30)
    )  # fmt: skip
    found = explained(hazards=made)
    assert (len(found.hazards), found.hazards_found) == (20, 30)
    assert (found.hazards[3].kind, found.hazards[3].op_index, found.hazards[3].tensor) == ("overflow", 3, "t3")
    assert further_hazards(found) == [*(h.message for h in made[1:5]), "and 25 more"]
    assert further_hazards(explained(hazards=made[:2])) == [made[1].message]
    assert further_hazards(explained(hazards=made[:1])) == further_hazards(explained()) == []


def test_further_hazards_are_shown_in_page_and_markdown_and_escaped() -> None:
    kwargs = sample.kwargs()
    hazard = Hazard(
        kind="overflow", op="MUL", op_index=1, tensor=1, tensor_name="t", value=1e6, elements=2, certain=True,
        message="MUL op 1 '<b>t</b>': beyond",
    )  # fmt: skip
    kwargs["findings"] = (replace(kwargs["findings"][0], hazards=(hazard, hazard)), *kwargs["findings"][1:])
    matrix = build_matrix(**kwargs)
    page, text = html.render(matrix), markdown.render(matrix)
    assert page.count("Predicted beside that") == text.count("Predicted beside that") == 1
    assert "&lt;b&gt;t&lt;/b&gt;" in page
    assert "<b>t</b>" not in page + text
