"""The command line where it is treated badly: closed and full streams, damaged runs, results with nowhere to go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli._app import run

HEALTHY = Path(__file__).resolve().parents[2] / "demo" / "healthy_cnn.tflite"
FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("finished") / "runs"
    assert run(["sweep", str(HEALTHY), "--config", "cpu", "--iterations", "1", "--out", str(runs)]) == 0
    (found,) = (p.parent for p in runs.glob("*/plan.json"))
    return found


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run to damage."""
    shutil.copytree(finished.parent, tmp_path / "runs")
    return tmp_path / "runs" / finished.name


def shell(command: str, *argv: object) -> subprocess.CompletedProcess[str]:
    line = ["sh", "-c", f'"$@" {command}', "sh", sys.executable, "-m", "farm", *map(str, argv)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_a_closed_stdout_is_no_fault(finished: Path) -> None:
    done = shell(">&-", "report", finished)
    assert (done.returncode, done.stderr) == (0, "")


def test_with_stderr_closed_nothing_of_it_lands_in_stdout(tmp_path: Path) -> None:
    done = shell("2>&-", "plan", tmp_path / "missing.tflite")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here: macOS has none")
def test_a_full_stdout_is_one_sentence(finished: Path) -> None:
    for argv in (["report", finished], ["report", finished, "--format", "json"], ["--help"]):
        done = shell("> /dev/full", *argv)
        assert done.returncode == 3
        assert done.stderr == "farm: stdout cannot be written: No space left on device\n"


def test_no_command_at_all_shows_the_help_as_it_is() -> None:
    done = shell("")
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: farm ")


def test_a_matrix_that_cannot_be_written_costs_neither_the_report_nor_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("nobody-reads")
    argv = ["sweep", str(HEALTHY), "--config", "cpu", "--iterations", "1", "--json-output", "nobody-reads"]
    assert run(argv) == 3
    said = capsys.readouterr()
    assert "healthy_cnn" in said.out
    assert "nobody-reads: cannot be written" in said.err
    assert "Run kept in runs/" in said.err


def test_judge_tells_what_of_the_run_it_could_not_read(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = copied / "journal.jsonl"
    _, *rest = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([b"damaged\n", *rest]))
    assert run(["judge", str(copied)]) == 3
    assert "journal.jsonl:1: damaged line, its cell counts as not run" in capsys.readouterr().err


def test_a_resumed_run_makes_lost_references_again(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (copied / "journal.jsonl").read_bytes()
    shutil.rmtree(copied / "references")
    assert run(["judge", str(copied)]) == 3
    assert run(["sweep", "--resume", str(copied)]) == 0
    assert (copied / "journal.jsonl").read_bytes() == before, "no finished cell is repeated"


def test_a_run_of_a_transport_we_do_not_have_is_a_sentence(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = copied / "plan.json"
    plan.write_text(plan.read_text().replace('"transport": "local"', '"transport": "telepathy"'))
    (copied / "journal.jsonl").write_bytes(b"")
    assert run(["sweep", "--resume", str(copied)]) == 3
    said = capsys.readouterr()
    assert "no transport 'telepathy'" in " ".join((said.out + said.err).split())


def test_a_target_nobody_builds_for_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", "build", "--target", "mars"]) == 2
    assert "no agent can be built for 'mars' (targets: android-arm64" in capsys.readouterr().err
