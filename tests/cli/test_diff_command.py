"""`farm diff` on run folders: which run is compared with which, exit codes, JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.cli._app import run
from farm.report import write_reports
from farm.report.value import Matrix
from tests.diff.kit import cell, matrix


def keep(root: Path, made: Matrix) -> Path:
    folder = root / made.run.id
    folder.mkdir(parents=True)
    write_reports(made, folder)
    return folder


@pytest.fixture
def nights(tmp_path: Path) -> list[Path]:
    made = [
        matrix([cell(verdict=verdict)], run=f"2025010{day}T000000Z-aaaaaa")
        for day, verdict in enumerate(("pass", "fail", "pass", "fail"), 1)
    ]
    return [keep(tmp_path / "runs", one) for one in made]


def test_one_run_is_compared_with_the_one_before_it(nights: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", str(nights[1])]) == 1
    out = capsys.readouterr().out
    assert out.startswith("20250101T000000Z-aaaaaa → 20250102T000000Z-aaaaaa: 1 new failure (1 regressed)")
    assert run(["diff", str(nights[2])]) == 0
    assert "Fixed (1)" in capsys.readouterr().out


def test_neighbours_tell_that_a_cell_is_flaky(nights: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", str(nights[2]), str(nights[3]), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["flaky"][0]["history"] == ["pass", "fail", "pass", "fail"]
    assert found["changes"][0]["flaky"] is True


def test_less_judged_is_exit_3(tmp_path: Path) -> None:
    old = keep(tmp_path, matrix([cell()], run="20250101T000000Z-aaaaaa"))
    new = keep(tmp_path, matrix([cell(verdict="infra")], run="20250102T000000Z-aaaaaa"))
    assert run(["diff", str(old), str(new)]) == 3
    assert run(["diff", str(old / "matrix.json"), str(old / "matrix.json")]) == 0


def test_a_damaged_neighbour_is_told_and_left_out(nights: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    (nights[0] / "matrix.json").write_text("{")
    assert run(["diff", str(nights[2]), str(nights[3])]) == 1
    assert "left out" in capsys.readouterr().err


def test_what_cannot_be_compared_is_a_sentence(nights: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", str(nights[0])]) == 2
    assert "no judged run before this one" in capsys.readouterr().err
    assert run(["diff", str(nights[0]), "nowhere"]) == 2
    assert "there is no matrix here" in capsys.readouterr().err
    (nights[1] / "matrix.json").write_text("{}")
    assert run(["diff", str(nights[1])]) == 2
    assert "no matrix of farm" in capsys.readouterr().err
