"""What farm keeps between runs lies where FARM_CACHE_DIR says, stays bounded and is never trusted when damaged."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farm.caches import KEEP_S, YOUNG_S, cache_root, prune, prune_daily
from farm.sweep import sweep
from tests import graphs

DAY_S = 86400.0


def entry(folder: Path, name: str, objects: list[bytes], *, age_s: float) -> Path:
    """An entry last used `age_s` ago, with its objects."""
    digests = []
    for data in objects:
        digests.append(hashlib.sha256(data).hexdigest())
        path = folder / "objects" / digests[-1][:2] / digests[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    path = folder / f"{name}.json"
    path.write_text(str(digests).replace("'", '"'))
    used_at = time.time() - age_s
    os.utime(path, (used_at, used_at))
    return path


def objects_of(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in (folder / "objects").glob("??/*")}


LATER_S = 2 * YOUNG_S
"""Tests look from so far ahead that the objects they just made are no longer young."""


def test_an_entry_unused_for_a_month_goes_with_the_objects_only_it_needs(tmp_path: Path) -> None:
    old = entry(tmp_path, "old", [b"only old", b"both"], age_s=KEEP_S)
    new = entry(tmp_path, "new", [b"both", b"only new"], age_s=DAY_S)
    prune(tmp_path, now=time.time() + LATER_S)
    assert (old.exists(), new.exists()) == (False, True)
    assert objects_of(tmp_path) == {b"both", b"only new"}


def test_the_longest_unused_entries_go_until_the_rest_fits(tmp_path: Path) -> None:
    ages = {"a": 3 * DAY_S, "b": 1 * DAY_S, "c": 2 * DAY_S}
    for name, age_s in ages.items():
        entry(tmp_path, name, [name.encode() * 100], age_s=age_s)
    prune(tmp_path, keep_bytes=200, now=time.time() + LATER_S)
    assert {path.name for path in tmp_path.glob("*.json")} == {"b.json", "c.json"}
    assert objects_of(tmp_path) == {b"b" * 100, b"c" * 100}


def test_an_object_two_entries_share_is_counted_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        entry(tmp_path, name, [b"x" * 100], age_s=DAY_S)
    prune(tmp_path, keep_bytes=100, now=time.time() + LATER_S)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_young_object_is_left_for_the_farm_that_is_about_to_name_it(tmp_path: Path) -> None:
    entry(tmp_path, "half-made", [b"young"], age_s=0).unlink()
    prune(tmp_path)
    assert objects_of(tmp_path) == {b"young"}
    prune(tmp_path, now=time.time() + LATER_S)
    assert objects_of(tmp_path) == set()


def test_pruning_happens_once_a_day(tmp_path: Path) -> None:
    prune_daily(tmp_path)
    old = entry(tmp_path / "references", "old", [b"x"], age_s=2 * KEEP_S)
    prune_daily(tmp_path)
    assert old.exists()
    yesterday = time.time() - DAY_S - 1
    os.utime(tmp_path / "pruned", (yesterday, yesterday))
    prune_daily(tmp_path)
    assert not old.exists()


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    prune_daily(tmp_path / "file" / "cache")


def test_a_sweep_keeps_all_it_can_make_again_in_the_folder_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path / "cache"))
    assert cache_root() == tmp_path / "cache"
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    sweep([model], configs=["cpu"], out=tmp_path / "runs")
    (reference,) = (tmp_path / "cache/references").glob("*.json")
    assert list((tmp_path / "cache/canaries").glob("*.json"))
    os.utime(reference, (0, 0))
    sweep([model], configs=["cpu"], out=tmp_path / "runs")
    assert [p.name for p in (tmp_path / "cache/references").glob("*.json")] == [reference.name]
    assert reference.stat().st_mtime > 0, "the second sweep made no use of the kept reference"


RENDER = "import farm.report.html as h; print(h._template().render.__name__)"


def test_a_damaged_compiled_template_is_compiled_again(tmp_path: Path) -> None:
    environment = {**os.environ, "FARM_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", RENDER], env=environment, timeout=60, check=True)
    (kept,) = (tmp_path / "templates").iterdir()
    whole = kept.read_bytes()
    damaged = whole.replace(b"</html>", b"</HTML>", 1)
    assert damaged != whole
    kept.write_bytes(damaged)
    subprocess.run([sys.executable, "-c", RENDER], env=environment, timeout=60, check=True)
    assert kept.read_bytes() == whole


def test_an_agent_that_cannot_be_built_leaves_no_run_folder(tmp_path: Path) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no luck' >&2; exit 1\n")
    compiler.chmod(0o755)
    environment = {**os.environ, "FARM_CACHE_DIR": str(tmp_path / "cache"), "CC": str(compiler)}
    argv = [sys.executable, "-m", "farm", "sweep", str(model), "--out", str(tmp_path / "runs")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "no luck" in done.stderr
    assert not list((tmp_path / "runs").glob("*T*"))
