"""The history on real SQLite: what it holds of a run, its age, its damage, and two farms at once."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from farm.errors import InvalidInput
from farm.history import open_database, trails
from farm.history.record import sync
from farm.history.schema import CELLS, DEVICES, METRICS, RUNS, VERSION
from farm.history.trails import sparkline
from farm.report import write_reports
from tests.diff.kit import cell, device, matrix, output
from tests.report.sample import sample


def keep(root: Path, verdict: str, day: int, **changes: object) -> Path:
    made = matrix([cell(verdict=verdict, **changes), cell(config="cpu-fp16")], run=f"202501{day:02}T000000Z-aaaaaa")  # type: ignore[arg-type]
    folder = root / made.run.id
    folder.mkdir(parents=True, exist_ok=True)
    write_reports(made, folder)
    return folder


def test_a_run_is_kept_with_cells_metrics_and_device_facts(tmp_path: Path) -> None:
    made = sample()
    folder = tmp_path / made.run.id
    folder.mkdir()
    write_reports(made, folder)
    with open_database(tmp_path / "history.sqlite") as database:
        assert sync(database, tmp_path) == []
        with database.reading() as connection:
            counts = {
                t.name: connection.execute(select(func.count()).select_from(t)).scalar_one()
                for t in (RUNS, CELLS, METRICS, DEVICES)
            }
            run = connection.execute(select(RUNS)).one()
            facts = connection.execute(select(DEVICES.c.facts).where(DEVICES.c.device == "pixel")).scalar_one()
    metrics = {(c.id, o.name, m) for c in made.cells for o in c.outputs for m in o.metrics}
    assert counts == {"runs": 1, "cells": len(made.cells), "metrics": len(metrics), "device_facts": 2}
    assert (run.id, run.exit_code, run.cells) == (made.run.id, 1, len(made.cells))
    assert run.size_bytes >= (folder / "matrix.json").stat().st_size
    assert "Tensor G3" in facts


def test_a_run_is_recorded_once_and_again_when_it_was_judged_again(tmp_path: Path) -> None:
    keep(tmp_path, "pass", 1)
    with open_database(tmp_path / "history.sqlite") as database:
        sync(database, tmp_path)
        (tmp_path / "20250101T000000Z-aaaaaa" / "matrix.json").touch()
        keep(tmp_path, "fail", 1, reasons=("SATURATION",))
        sync(database, tmp_path)
        (trail,) = trails(database, "m")
        assert [(p.verdict, p.reasons) for p in trail.points] == [("fail", ("SATURATION",))]


def test_a_trail_goes_from_old_to_new_and_keeps_runs_whose_folder_is_gone(tmp_path: Path) -> None:
    import shutil

    folders = [keep(tmp_path, v, day, ms=float(day)) for day, v in enumerate(("pass", "fail", "infra", "pass"), 1)]
    with open_database(tmp_path / "history.sqlite") as database:
        sync(database, tmp_path)
        shutil.rmtree(folders[0])
        sync(database, tmp_path)
        (trail,) = trails(database, "phone")
        assert [p.verdict for p in trail.points] == ["pass", "fail", "infra", "pass"]
        assert [p.latency_ms for p in trail.points] == [1.0, 2.0, None, 4.0]
        assert [p.snr_db for p in trail.points] == [90.0, 90.0, None, 90.0]
        (short,) = trails(database, "m", last=2)
        assert [p.verdict for p in short.points] == ["infra", "pass"]


def test_the_worst_output_gives_the_snr(tmp_path: Path) -> None:
    made = matrix([cell(outputs=(output(90.0), output(41.0, name="z")))])
    (tmp_path / made.run.id).mkdir()
    write_reports(made, tmp_path / made.run.id)
    with open_database(tmp_path / "h.sqlite") as database:
        sync(database, tmp_path)
        assert trails(database, "m")[0].last.snr_db == 41.0


def test_a_name_nobody_has_is_refused_with_the_nearest(tmp_path: Path) -> None:
    keep(tmp_path, "pass", 1)
    with open_database(tmp_path / "h.sqlite") as database:
        with pytest.raises(InvalidInput, match="holds no run yet"):
            trails(database, "m")
        sync(database, tmp_path)
        with pytest.raises(InvalidInput, match="nearest name is 'phone'"):
            trails(database, "phome")


def test_write_ahead_log_is_on(tmp_path: Path) -> None:
    with open_database(tmp_path / "h.sqlite"):
        assert sqlite3.connect(tmp_path / "h.sqlite").execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("damage", ["no database at all", "a page in the middle"])
def test_a_damaged_history_is_kept_aside_and_made_anew_from_the_runs(tmp_path: Path, damage: str) -> None:
    keep(tmp_path, "pass", 1)
    file = tmp_path / "h.sqlite"
    with open_database(file) as database:
        sync(database, tmp_path)
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(file.read_bytes())
    if damage == "no database at all":
        data = bytearray(b"something else entirely" * 1000)
    else:
        data[4096:12288] = b"\xa5" * 8192
    file.write_bytes(data)
    with open_database(file) as database:
        (note,) = database.notes
        assert "was damaged" in note
        (aside,) = tmp_path.glob("h.sqlite.damaged-*Z")
        assert aside.name in note
        assert aside.read_bytes() == bytes(data)
        sync(database, tmp_path)
        assert len(trails(database, "m")) == 1


def test_an_older_database_is_migrated_and_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    with open_database(file) as database:
        keep(tmp_path, "pass", 1)
        sync(database, tmp_path)
    connection = sqlite3.connect(file)
    connection.execute("ALTER TABLE runs DROP COLUMN size_bytes")
    connection.execute("UPDATE farm_schema SET version = 1")
    connection.commit()
    connection.close()
    with open_database(file) as database:
        assert len(trails(database, "m")) == 1
        with database.reading() as connection_:
            assert connection_.execute(select(RUNS.c.size_bytes)).scalar_one() == 0
    assert sqlite3.connect(file).execute("SELECT version FROM farm_schema").fetchone() == (VERSION,)


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    open_database(file).close()
    connection = sqlite3.connect(file)
    connection.execute("UPDATE farm_schema SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(InvalidInput, match="schema version 99"):
        open_database(file)
    assert not list(tmp_path.glob("*.damaged*"))


def test_two_farms_may_record_at_once(tmp_path: Path) -> None:
    for day in range(1, 9):
        keep(tmp_path, "pass", day)
    broken: list[BaseException] = []

    def work() -> None:
        try:
            with open_database(tmp_path / "h.sqlite") as database:
                sync(database, tmp_path)
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    with open_database(tmp_path / "h.sqlite") as database:
        assert len(trails(database, "m")[0].points) == 8


def test_a_run_that_cannot_be_read_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    keep(tmp_path, "pass", 1)
    (keep(tmp_path, "pass", 2) / "matrix.json").write_text("{")
    with open_database(tmp_path / "h.sqlite") as database:
        (sentence,) = sync(database, tmp_path)
        assert "left out of the history" in sentence
        assert len(trails(database, "m")[0].points) == 1


def test_names_from_models_are_data(tmp_path: Path) -> None:
    evil = "x'; DROP TABLE runs; --\0%"
    made = matrix([replace(cell(), model=evil)], devices=[device()])
    (tmp_path / made.run.id).mkdir()
    write_reports(made, tmp_path / made.run.id)
    with open_database(tmp_path / "h.sqlite") as database:
        sync(database, tmp_path)
        (trail,) = trails(database, "phone")
        assert trail.model == evil.replace("\0", "\ufffd")


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense://", "://"])
def test_a_url_that_is_no_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_database(url)


def test_sparklines_show_shape_gaps_and_flatness() -> None:
    assert sparkline((1.0, None, 2.0, 8.0)) == "▁·▂█"
    assert sparkline((5.0, 5.01, 4.99)) == "▄▄▄"
    assert sparkline((None, None)) == ""
