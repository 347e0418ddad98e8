"""The Prometheus text: every verdict present, ages from the nights, hostile names escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from farm.cli._app import run
from farm.nightly.kept import keep
from farm.nightly.value import Away, Coverage, Night
from farm.prometheus import render
from farm.report import write_reports
from tests.diff.kit import cell, device, matrix

LINE = re.compile(
    r'farm_[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? -?[0-9.e+]+'
)


def night(day: int, *, good: bool = True, **changes: object) -> Night:
    made = Night(
        id=f"2025010{day}T000000Z-aaaaaa",
        started=f"2025-01-0{day}T00:00:00Z",
        finished=f"2025-01-0{day}T01:00:00Z",
        runs=(f"2025010{day}T000000Z-aaaaaa",),
        exit_code=0 if good else 3,
        good=good,
        cut=False,
        verdicts={"pass": 7, "fail": 2},
        coverage=(Coverage(model="m", family="mali", devices=(), judged_on=("phone",) if good else ()),),
        used_bytes=5,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def values(text: str) -> dict[str, float]:
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}


def test_the_last_night_and_the_age_of_the_last_good_one() -> None:
    now = 1735869600.0  # 2025-01-03T02:00:00Z
    seen = values(render([night(2), night(3, good=False)], None, now=now))
    assert seen['farm_night_cells{verdict="pass"}'] == 7
    assert seen['farm_night_cells{verdict="inconclusive"}'] == 0
    assert seen["farm_night_uncovered"] == 1
    assert seen["farm_night_exit_code"] == 3
    assert seen["farm_night_age_seconds"] == 3600
    assert seen["farm_good_night_age_seconds"] == 25 * 3600
    assert "farm_good_night_age_seconds" not in values(render([night(3, good=False)], None, now=now))


def test_devices_their_battery_and_hostile_names() -> None:
    run_ = matrix(
        [cell(device='a"\n\\b'), cell(device="c")],
        devices=[device('a"\n\\b', facts={"battery_percent": "81"}), device("c", facts={"battery_percent": "?"})],
    )
    text = render([night(1, away=(Away(device="c", family="f", reason="r"),))], run_, now=1735869600.0)
    for line in text.splitlines():
        assert line.startswith("# ") or LINE.fullmatch(line), line
    seen = values(text)
    assert seen['farm_device_up{device="c",gpu="Mali-G715"}'] == 0
    assert seen['farm_device_battery_percent{device="a\\"\\n\\\\b"}'] == 81
    assert sum(name.startswith("farm_device_battery_percent") for name in seen) == 1


def test_the_command_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", "--out", str(tmp_path)]) == 2
    assert "no night is kept here" in capsys.readouterr().err
    keep(tmp_path, night(1))
    made = matrix([cell()])
    (tmp_path / made.run.id).mkdir()
    write_reports(made, tmp_path / made.run.id)
    assert run(["metrics", "--out", str(tmp_path), "--output", str(tmp_path / "farm.prom")]) == 0
    assert 'farm_device_up{device="phone"' in (tmp_path / "farm.prom").read_text()
