"""FARM_TEST_NO_SKIP=1: a skip that setup could have lifted is a failure, so CI cannot pass on tests that never ran."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = """
import pytest

def test_runs():
    pass

def test_lacks_a_gpu():
    pytest.skip("no llvmpipe here; make lab-gpus")

@pytest.mark.skipif(True, reason="only on macOS")
def test_of_another_system():
    pass

def test_lacks_shared_material(shared):
    pass
"""


def run(folder: Path, no_skip: str, **env: str) -> str:
    (folder / "tests").mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), folder / "tests")
    (folder / "tests" / "test_sample.py").write_text(SAMPLE)
    clean = {k: v for k, v in os.environ.items() if k != "FARM_SHARED"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfs", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)],
        env={**clean, "FARM_TEST_NO_SKIP": no_skip, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def test_a_skip_stays_a_skip_for_a_person(tmp_path: Path) -> None:
    out = run(tmp_path, "0")
    assert "1 passed, 3 skipped" in out
    assert "no llvmpipe here; make lab-gpus" in out


def test_a_skip_is_a_failure_where_none_is_allowed(tmp_path: Path) -> None:
    out = run(tmp_path, "1")
    assert "1 failed, 1 passed, 2 skipped" in out
    assert "allows no skip: no llvmpipe here; make lab-gpus" in out


def test_shared_material_that_is_there_must_be_used(tmp_path: Path) -> None:
    given = tmp_path / "material"
    given.mkdir()
    assert "1 failed, 2 passed, 1 skipped" in run(tmp_path, "1", FARM_SHARED=str(given))


def test_a_shared_folder_that_is_not_there_is_no_skip(tmp_path: Path) -> None:
    assert "FARM_SHARED names" in run(tmp_path, "0", FARM_SHARED=str(tmp_path / "typo"))


def test_gpus_are_found_by_environment_and_a_typo_is_no_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.lab.gpus import environment, gpus

    icd = tmp_path / "icd.json"
    icd.write_text("{}")
    monkeypatch.setenv("FARM_LAB_LVP_ICD", str(icd))
    assert gpus()["llvmpipe"] == icd
    assert environment("llvmpipe") == {"VK_ICD_FILENAMES": str(icd)}
    monkeypatch.setenv("FARM_LAB_LVP_ICD", str(tmp_path / "typo.json"))
    with pytest.raises(FileNotFoundError, match="FARM_LAB_LVP_ICD"):
        gpus()
