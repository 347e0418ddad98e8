"""`farm history`: table, JSON, what the inventory says of places, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.cli._app import run
from tests.history.test_history import keep


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for day, verdict in enumerate(("pass", "fail", "pass"), 1):
        keep(tmp_path / "runs", verdict, day, ms=10.0 * day)
    return tmp_path / "runs"


def test_the_table_shows_verdicts_and_trends(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "m", "--out", str(runs)]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("m "))
    assert "✓✗✓" in row
    assert "▁▅█" in row
    assert "30.00 ms" in row
    assert "2025-01-01" in out


def test_json_holds_every_point(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "phone", "--out", str(runs), "--json"]) == 0
    (trail,) = json.loads(capsys.readouterr().out)["trails"]
    assert [p["latency_ms"] for p in trail["points"]] == [10.0, 20.0, 30.0]


def test_the_inventory_says_where_runs_and_history_lie(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text("store: {root: runs, database: lab.sqlite}\n")
    assert run(["history", "m", "--inventory", str(file)]) == 0
    assert (tmp_path / "lab.sqlite").is_file()


def test_nothing_to_show_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "m", "--out", str(tmp_path / "no")]) == 2
    assert "no such folder of runs" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert run(["history", "m", "--out", str(tmp_path)]) == 2
    assert "holds no run yet" in capsys.readouterr().err
