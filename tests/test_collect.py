"""What `farm gc` may remove: nothing a guarded run needs; passes first, then the oldest; reports stay."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from farm.cli._app import run
from farm.collect import Room, make_room, plan_room
from farm.errors import InvalidInput
from farm.report import write_reports
from farm.report.value import Matrix
from tests.diff.kit import cell, matrix

LATER = 7200.0


class Lab:
    """A folder of runs with the files that name objects, and the objects."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "objects").mkdir(parents=True)

    def put(self, text: str, size: int = 1000) -> str:
        data = (text * size).encode()[:size]
        sha = hashlib.sha256(data).hexdigest()
        path = self.root / "objects" / sha[:2] / sha
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return sha

    def run(
        self, day: int, outputs: dict[str, tuple[str, str]], inputs: tuple[str, ...] = (), *, done: bool = True
    ) -> str:
        """outputs: model → (verdict, sha256)."""
        made: Matrix = matrix(
            [cell(m, verdict=v) for m, (v, _) in outputs.items()], run=f"202501{day:02}T000000Z-aaaaaa"
        )
        if not done:
            from dataclasses import replace

            made = replace(made, run=replace(made.run, finished=None))
        folder = self.root / made.run.id
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps({"inputs": list(inputs)}))
        ids = {c.model: c.id for c in made.cells}
        lines = [json.dumps({"cell": ids[m], "sha256": s}, separators=(",", ":")) for m, (_, s) in outputs.items()]
        (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
        write_reports(made, folder)
        return made.run.id

    def doomed(self, **options: object) -> dict[str, str]:
        return {d.sha256: d.why for d in self.plan(**options).doomed}

    def plan(self, **options: object) -> Room:
        return plan_room(self.root, now=time.time() + LATER, **options)  # type: ignore[arg-type]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "runs")


def test_passes_of_older_runs_go_and_failures_stay(lab: Lab) -> None:
    old_pass, old_fail, new_pass, x = (lab.put(t) for t in ("op", "of", "np", "x"))
    lab.run(1, {"a": ("pass", old_pass), "b": ("fail", old_fail)}, (x,))
    lab.run(2, {"a": ("pass", new_pass)})
    assert lab.doomed(keep_runs=1) == {old_pass: "passed"}


def test_what_a_newer_run_shares_stays(lab: Lab) -> None:
    shared = lab.put("s")
    lab.run(1, {"a": ("pass", shared)})
    lab.run(2, {"a": ("pass", shared)})
    assert lab.doomed(keep_runs=1) == {}


def test_an_output_that_is_also_a_reference_stays(lab: Lab) -> None:
    both = lab.put("b")
    lab.run(1, {"a": ("pass", both)}, (both,))
    lab.run(2, {})
    assert lab.doomed(keep_runs=1) == {}


def test_orphans_go_once_they_are_old(lab: Lab) -> None:
    orphan = lab.put("o")
    lab.run(1, {})
    assert lab.doomed() == {orphan: "orphan"}
    assert plan_room(lab.root).doomed == ()


def test_beyond_the_budget_the_oldest_run_goes_first(lab: Lab) -> None:
    shas = [lab.put(t) for t in "abcd"]
    for day, sha in enumerate(shas, 1):
        lab.run(day, {"m": ("fail", sha)})
    assert lab.doomed(keep_runs=1) == {}
    assert lab.doomed(keep_runs=1, budget_bytes=2500) == dict.fromkeys(shas[:2], "budget")
    assert lab.doomed(keep_runs=1, budget_bytes=0) == dict.fromkeys(shas[:3], "budget")
    assert lab.doomed(keep_runs=1, budget_bytes=0, keep=("20250101T000000Z-aaaaaa",)) == dict.fromkeys(
        shas[1:3], "budget"
    )


def test_unfinished_runs_and_runs_being_written_lose_nothing(lab: Lab) -> None:
    import fcntl

    one, two = lab.put("one"), lab.put("two")
    unfinished = lab.run(1, {"m": ("pass", one)}, done=False)
    busy = lab.run(2, {"m": ("pass", two)})
    lab.run(3, {})
    fd = os.open(lab.root / busy / "journal.jsonl", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    room = lab.plan(keep_runs=1, budget_bytes=0)
    assert room.doomed == ()
    assert {unfinished, busy} < set(room.protected)
    os.close(fd)
    assert lab.doomed(keep_runs=1) == {two: "passed"}


def test_a_run_whose_matrix_is_damaged_loses_nothing(lab: Lab) -> None:
    sha = lab.put("s")
    name = lab.run(1, {"m": ("pass", sha)})
    lab.run(2, {})
    (lab.root / name / "matrix.json").write_text("{")
    assert lab.doomed(keep_runs=1, budget_bytes=0) == {}


def test_making_room_removes_bytes_and_nothing_else(lab: Lab) -> None:
    old, new = lab.put("o"), lab.put("n")
    name = lab.run(1, {"m": ("pass", old)})
    lab.run(2, {"m": ("pass", new)})
    stranger = lab.root / "objects" / "README"
    stranger.write_text("mine")
    before = {p for p in lab.root.rglob("*") if p.is_file()}
    assert make_room(lab.plan(keep_runs=1)) == 1000
    assert before - {p for p in lab.root.rglob("*") if p.is_file()} == {lab.root / "objects" / old[:2] / old}
    assert (lab.root / name / "matrix.json").is_file()


def test_the_command_removes_nothing_in_a_dry_run(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    sha = lab.put("o")
    lab.run(1, {})
    path = lab.root / "objects" / sha[:2] / sha
    old = time.time() - LATER
    os.utime(path, (old, old))
    assert run(["gc", "--out", str(lab.root), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # The change time cannot be set back, so the command still takes the object for young.
    assert (told["objects"], told["freed_bytes"], told["dry_run"]) == (1, 0, True)
    assert path.is_file()
    assert run(["gc", "--out", str(lab.root / "no")]) == 2


def test_a_folder_without_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no kept objects"):
        plan_room(tmp_path)
