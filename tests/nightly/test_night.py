"""Whole nights on this machine's CPU with real models: summary, baseline, budget, repeats, lock, exit codes."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from farm.cli._app import run
from farm.errors import InvalidInput
from farm.inventory import Inventory, load_inventory
from farm.nightly import run_night
from farm.nightly.kept import last_good, nights, one_night
from farm.nightly.words import disk_line, short, summary
from tests import graphs


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "sweep-cache"))


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """An inventory of this machine's CPU and one healthy model; runs are kept beside it."""
    graphs.write(tmp_path, "fc", graphs.fc_chain())
    (tmp_path / "inventory.yaml").write_text(
        "models: ['*.tflite']\nstore: {root: runs}\nnightly: {configs: [cpu]}\nlimits: {iterations: 1, repeats: 1}\n"
    )
    return tmp_path


def inventory(lab: Path, nightly: str | None = None) -> Inventory:
    file = lab / "inventory.yaml"
    if nightly is not None:
        lines = [
            line if not line.startswith("nightly:") else f"nightly: {nightly}" for line in file.read_text().splitlines()
        ]
        file.write_text("\n".join(lines) + "\n")
    return load_inventory(file)


def test_a_first_night_then_a_broken_model_then_its_mending(lab: Path) -> None:
    root = lab / "runs"
    first = run_night(inventory(lab), root=root)
    assert (first.exit_code, first.good, first.cut, first.diff) == (0, True, False, None)
    assert first.grown_bytes > 0
    good = (lab / "fc.tflite").read_bytes()
    (lab / "fc.tflite").write_bytes(graphs.truncated())
    second = run_night(inventory(lab), root=root)
    assert second.exit_code == 1
    assert second.baseline == first.runs[0]
    assert second.diff is not None
    (change,) = second.diff.of("new_failure")
    assert change.regression
    assert change.trigger[0] == "model"
    text = summary(second, nights(root)[:1])
    assert "1 new failure (1 regressed)" in text
    assert "1 of 1 required (model, GPU family) judged" in text
    assert len(short(second, "https://lab/").splitlines()) == 4
    (lab / "fc.tflite").write_bytes(good)
    third = run_night(inventory(lab), root=root)
    assert third.exit_code == 0
    assert third.diff is not None
    assert [c.kind for c in third.diff.changes] == ["fixed"]
    assert [n.id for n in nights(root)] == [first.id, second.id, third.id]


def test_repeats_are_further_runs(lab: Path) -> None:
    night = run_night(inventory(lab, "{configs: [cpu], repeats: 2}"), root=lab / "runs")
    assert len(night.runs) == 2
    assert night.unsteady == ()


def test_a_night_without_time_is_cut_judges_nothing_and_is_no_baseline(lab: Path) -> None:
    root = lab / "runs"
    night = run_night(inventory(lab, "{configs: [cpu], repeats: 3, time_budget_s: 0.000001}"), root=root)
    assert night.cut
    assert night.exit_code == 3
    assert not night.good
    assert [c.model for c in night.uncovered] == ["fc"]
    assert last_good(nights(root), root) is None
    assert "cut short" in summary(night)
    after = run_night(inventory(lab, "{configs: [cpu]}"), root=root)
    assert (after.baseline, after.baseline_good) == (night.runs[0], False)
    assert "Since the last night (none was good yet)" in summary(after)


def test_a_family_that_is_required_and_not_there_makes_exit_3(lab: Path) -> None:
    night = run_night(inventory(lab, "{configs: [cpu], coverage: {families: [powervr]}}"), root=lab / "runs")
    assert night.exit_code == 3
    assert "fc on powervr: no device of this family" in summary(night)


def test_two_nights_never_overlap(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = lab / "runs"
    with one_night(root), pytest.raises(InvalidInput, match=f"process {os.getpid()}"):
        run_night(inventory(lab), root=root)
    assert not list(root.glob("2*"))
    fd = os.open(root / "nightly.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert run(["nightly", "--inventory", str(lab / "inventory.yaml")]) == 2
    assert "another night is still running" in capsys.readouterr().err
    os.close(fd)
    assert run(["nightly", "--inventory", str(lab / "inventory.yaml")]) == 0


def test_the_command_prints_the_summary_and_json(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nightly", "--inventory", str(lab / "inventory.yaml")]) == 0
    assert "1 pass; 1 of 1 required" in capsys.readouterr().out
    assert run(["nightly", "run", "--inventory", str(lab / "inventory.yaml"), "--json"]) == 0
    night = json.loads(capsys.readouterr().out)
    assert night["diff"]["changes"] == []
    assert night["baseline"] != night["id"]


@pytest.mark.parametrize(
    ("nightly", "words"), [("{models: [nothing*]}", "no model is named by 'nothing*'"), (None, "has no 'nightly:'")]
)
def test_a_night_of_nothing_is_refused(
    lab: Path, nightly: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if nightly is None:
        file = lab / "inventory.yaml"
        file.write_text("".join(line for line in file.read_text().splitlines(True) if "nightly" not in line))
    else:
        inventory(lab, nightly)
    assert run(["nightly", "--inventory", str(lab / "inventory.yaml")]) == 2
    assert words in capsys.readouterr().err


def test_a_damaged_summary_counts_as_no_night(lab: Path) -> None:
    root = lab / "runs"
    night = run_night(inventory(lab), root=root)
    (root / "nights" / f"{night.id}.json").write_text("{")
    assert nights(root) == []


def test_the_forecast_says_how_many_nights_the_budget_lasts(lab: Path) -> None:
    from dataclasses import replace

    night = replace(run_night(inventory(lab), root=lab / "runs"), used_bytes=4 * 10**9, grown_bytes=10**9)
    assert disk_line(night, []).endswith("30.00 GB more in 30 nights at the mean of the last 1.")
    assert "lasts 6 more nights" in disk_line(replace(night, budget_bytes=10 * 10**9), [])
    assert "farm gc makes room" in disk_line(replace(night, budget_bytes=10**9), [])
