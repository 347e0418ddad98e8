"""farm sweep, judge and report on real runs: what lands on stdout, in the run folder and in the exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from farm.cli._app import run
from tests.lab.gpus import gpus

DEMO = Path(__file__).resolve().parents[2] / "demo"
HEALTHY = DEMO / "healthy_cnn.tflite"
HOSTILE = DEMO / "embedder_zero_in_fp16.tflite"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a healthy model on the CPU."""
    folder = tmp_path_factory.mktemp("kept")
    argv = ["sweep", str(HEALTHY), "--config", "cpu", "--iterations", "1", "--out", str(folder / "runs")]
    assert run(argv) == 0
    return run_folder(folder / "runs")


def run_folder(runs: Path) -> Path:
    (found,) = (p.parent for p in runs.glob("*/plan.json"))
    return found


def sweep_process(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farm", "sweep", *argv],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_stdout_is_the_matrix_and_stderr_says_where_the_run_is(tmp_path: Path) -> None:
    done = sweep_process(str(HEALTHY), "--config", "cpu", "--iterations", "1", cwd=tmp_path)
    assert done.returncode == 0
    assert "healthy_cnn" in done.stdout
    assert "pass" in done.stdout
    assert done.stderr.startswith("Run kept in runs/")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stdout + done.stderr


def test_json_on_stdout_is_the_matrix_file(tmp_path: Path) -> None:
    argv = (str(HEALTHY), "--config", "cpu", "--iterations", "1", "--json", "--json-output", "copy.json")
    done = sweep_process(*argv, cwd=tmp_path)
    printed = json.loads(done.stdout)
    assert printed == json.loads((run_folder(tmp_path / "runs") / "matrix.json").read_text())
    assert printed == json.loads((tmp_path / "copy.json").read_text())
    assert printed["run"]["exit_code"] == done.returncode == 0


def test_verbose_tells_each_cell(tmp_path: Path) -> None:
    done = sweep_process(str(HEALTHY), "--config", "cpu", "--iterations", "1", "-v", cwd=tmp_path)
    assert any(
        "healthy_cnn" in line and "  cpu  " in line and line.endswith("ran") for line in done.stderr.splitlines()
    )


def test_seed_repeats_and_iterations_reach_the_plan(tmp_path: Path) -> None:
    argv = ["sweep", str(HEALTHY), "--config", "cpu", "--seed", "7", "--repeats", "2", "--iterations", "1"]
    assert run([*argv, "--min-norm", "1e-6", "--min-cosine", "0.5", "--out", str(tmp_path)]) == 0
    limits = json.loads((run_folder(tmp_path) / "plan.json").read_text())["limits"]
    assert (limits["seed"], limits["repeats"], limits["iterations"]) == (7, 2, 1)
    assert (limits["min_norm"], limits["min_cosine_similarity"]) == (1e-6, 0.5)


def test_an_output_folder_that_cannot_be_written_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["sweep", str(HEALTHY), "--config", "cpu", "--out", str(tmp_path / "file" / "runs")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_finished_run_resumes_to_the_same_matrix(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = (kept / "journal.jsonl").read_bytes()
    assert run(["sweep", "--resume", str(kept), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["id"] == kept.name
    assert (kept / "journal.jsonl").read_bytes() == journal


def test_resuming_what_is_no_run_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--resume", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_judge_works_from_the_folder_alone(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["judge", str(kept), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["verdict"] == "pass"


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "csv"])
def test_report_prints_each_format(form: str, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(kept), "--format", form]) == 0
    assert "healthy_cnn" in capsys.readouterr().out


def test_report_as_json_and_junit_are_well_formed(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(kept), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["id"] == kept.name
    assert run(["report", str(kept / "matrix.json"), "--format", "junit", "--output", str(tmp_path / "junit.xml")]) == 0
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().tag in ("testsuite", "testsuites")


def test_report_of_a_damaged_matrix_names_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "matrix.json").write_text("{")
    assert run(["report", str(tmp_path)]) == 2
    assert "farm judge" in capsys.readouterr().err


@pytest.mark.gpu
def test_findings_end_with_1_and_a_demonstration_with_0(tmp_path: Path) -> None:
    icd = gpus().get("llvmpipe")
    if icd is None:
        pytest.skip("needs llvmpipe (make lab-gpus)")
    argv = (str(HOSTILE), "--backends", "cpu,gpu,gpu-fp32", "--iterations", "1")
    done = sweep_process(*argv, cwd=tmp_path, VK_ICD_FILENAMES=str(icd))
    assert done.returncode == 1, done.stderr
    assert "zeros" in done.stdout
    shown = sweep_process("--resume", str(run_folder(tmp_path / "runs")), "--demo", cwd=tmp_path)
    assert shown.returncode == 0
    assert "A CI job would have got exit code 1 (a model failed)." in shown.stderr


def test_no_gpu_reads_unsupported_with_the_cure(tmp_path: Path) -> None:
    """A Vulkan loader that finds no driver is a machine without a GPU."""
    nothing = tmp_path / "none.json"
    argv = (str(HOSTILE), "--iterations", "1", "--json")
    done = sweep_process(*argv, cwd=tmp_path, VK_ICD_FILENAMES=str(nothing))
    cells = {cell["config"]: cell for cell in json.loads(done.stdout)["cells"]}
    assert cells["gpu"]["verdict"] == cells["gpu-fp32"]["verdict"] == "unsupported"
    assert "no GPU adapter" in cells["gpu"]["message"]
    assert cells["cpu-fp16"]["verdict"] == "fail"
    assert done.returncode == 0


def test_an_interrupt_finishes_the_cell_and_says_how_to_go_on(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "farm", "sweep", *map(str, sorted(DEMO.glob("*.tflite"))), "--config", "cpu", "-v"]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "  cpu  " in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    assert process.returncode == 3
    assert "to finish: farm sweep --resume runs/" in err
    assert "not_run" in out or "not run" in out
