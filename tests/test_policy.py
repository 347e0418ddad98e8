"""What an app is told: an accelerator only where everything passed, the CPU everywhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.cli._app import run
from farm.errors import InvalidInput
from farm.policy import Policy, Rule, make_policy, page
from farm.report import write_reports
from farm.report.value import MatrixCell
from tests.diff.kit import cell, device, matrix


def policy(*cells: MatrixCell, **options: str) -> Policy:
    return make_policy(matrix(cells), "m", **options)  # type: ignore[arg-type]


def rule(*cells: MatrixCell) -> Rule:
    (found,) = policy(*cells).rules
    return found


def test_a_gpu_where_the_default_passes_is_safe() -> None:
    found = rule(cell(config="cpu"), cell(ms=4.0), cell(config="gpu-fp32"))
    assert (found.accelerator, found.config, found.precision, found.advice) == ("gpu", "gpu", "default", "safe")
    assert found.drivers == ("r48p0",)
    assert found.latency_ms == 4.0


def test_where_only_fp32_passes_it_is_safe_with_fp32() -> None:
    found = rule(cell(verdict="fail", reasons=("SILENT_ZERO_VECTOR",)), cell(config="gpu-fp32"))
    assert (found.config, found.precision, found.advice) == ("gpu-fp32", "fp32", "safe-with-fp32")
    assert "SILENT_ZERO_VECTOR" in found.why


@pytest.mark.parametrize("verdict", ["warn", "fail", "error", "unsupported", "inconclusive", "infra", "not_run"])
def test_nothing_but_a_pass_turns_an_accelerator_on(verdict: str) -> None:
    found = rule(cell(verdict=verdict))
    assert (found.accelerator, found.advice) == ("cpu", "off")


def test_a_known_failure_is_a_failure_for_an_app() -> None:
    assert rule(cell(verdict="fail", known={"verdict": "fail"})).advice == "off"


def test_one_bad_device_or_signature_turns_the_gpu_off() -> None:
    assert rule(cell(device="a"), cell(device="b", verdict="fail")).advice == "off"
    assert rule(cell(device="a"), cell(device="b", config="cpu")).advice == "off"
    assert rule(cell(signature="encode", id="1"), cell(signature="decode", id="2", verdict="error")).advice == "off"


def test_a_pass_that_did_not_run_on_the_gpu_is_no_evidence() -> None:
    assert rule(cell(delegation="none")).advice == "off"


def test_an_unknown_gpu_gets_no_rule_and_so_the_cpu() -> None:
    made = policy(cell(gpu="unknown GPU"))
    assert made.rules == ()
    assert made.otherwise["accelerator"] == "cpu"


def test_the_digest_follows_the_evidence() -> None:
    one, same, other = policy(cell()), policy(cell()), policy(cell(snr_db=85.0))
    assert one.evidence_sha256 == same.evidence_sha256 != other.evidence_sha256


def test_several_runtimes_want_a_choice() -> None:
    both = (cell(runtime="litert-2.2.0", verdict="fail"), cell(runtime="litert-2.3.0"))
    with pytest.raises(InvalidInput, match="2 runtimes"):
        policy(*both)
    assert policy(*both, runtime="litert-2.3.0").rules[0].advice == "safe"
    assert policy(*both, runtime="litert-2.2.0").rules[0].advice == "off"


def test_names_cannot_break_the_page() -> None:
    made = make_policy(matrix([cell(gpu="a|b\n<script>")], devices=[device()]), "m")
    row = page(made).splitlines()[6]
    assert row.count("|") - row.count("\\|") == 6
    assert "<script>" not in page(made).replace("\\<", "")


def test_the_command_prints_json_or_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_reports(matrix([cell()]), tmp_path)
    assert run(["policy", "m", "--run", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["rules"][0]["config"] == "gpu"
    assert run(["policy", "m", "--run", str(tmp_path), "--page"]) == 0
    assert "| Mali-G715 | r48p0 | safe |" in capsys.readouterr().out
    assert run(["policy", "nobody", "--run", str(tmp_path)]) == 2
