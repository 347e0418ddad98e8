"""Phones, a host and this machine in one matrix: real adb server, real sshd, two GPU drivers, the real runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.sweep import SweepResult, sweep
from tests.lab.box import Box, box
from tests.lab.gpus import environment, gpus

pytestmark = pytest.mark.gpu
MODELS = sorted(
    model for model in (Path(__file__).parents[1] / "demo").glob("*.tflite") if model.stat().st_size < 100_000
)[-6:]
QUICK = {"iterations": 1, "repeats": 1}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    missing = {"llvmpipe", "swiftshader"} - set(gpus())
    if missing:
        pytest.skip(f"no software GPU here: {', '.join(sorted(missing))} (make lab-gpus)")
    with box(tmp_path_factory.mktemp("box")) as made:
        if made.sshd is None:
            pytest.skip("sshd is not installed (openssh-server)")
        yield made


@pytest.fixture
def own_home(lab: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's known hosts for this process; caches stay where they are, so that no agent is built anew."""
    import platformdirs

    monkeypatch.setenv("FARM_CACHE_DIR", str(platformdirs.user_cache_path("litert-farm")))
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)


def swept(result: SweepResult) -> dict[str, dict[tuple[str, str], Any]]:
    """(model, config) → what was found there, by device."""
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for cell in result:
        row = (cell.verdict, tuple(cell.reasons), cell.delegation, cell.precision_class, cell.gpu_api, cell.adapter)
        found.setdefault(cell.device, {})[cell.model, cell.config] = row
    return found


@pytest.fixture(scope="module")
def mixed(lab: Box, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    with pytest.MonkeyPatch.context() as patch:
        import platformdirs

        patch.setenv("FARM_CACHE_DIR", str(platformdirs.user_cache_path("litert-farm")))
        for name, value in lab.environment.items():
            patch.setenv(name, value)
        return sweep(MODELS, inventory=lab.inventory, out=tmp_path_factory.mktemp("mixed"), **QUICK)


def test_every_device_of_a_mixed_lab_judges_as_the_same_driver_does_here(
    lab: Box, mixed: SweepResult, tmp_path: Path
) -> None:
    assert len(MODELS) >= 6
    inventory = tmp_path / "local.yaml"
    inventory.write_text(
        "devices:\n"
        + "".join(
            f"- id: {name}\n  transport: local\n  env: {json.dumps(environment(name))}\n"
            for name in ("llvmpipe", "swiftshader")
        )
    )
    here = swept(sweep(MODELS, inventory=inventory, out=tmp_path, **QUICK))
    there = swept(mixed)
    assert set(there) == {"phone-fp16", "phone-fp32", "host", "here"}
    assert there["phone-fp16"] == here["llvmpipe"]
    assert there["phone-fp32"] == here["swiftshader"]
    assert there["host"] == here["llvmpipe"]
    assert there["here"] == here["swiftshader"]
    # The two GPUs differ where they should, or this comparison could not see a phone that ran on the wrong one.
    assert here["llvmpipe"] != here["swiftshader"]


def test_a_second_sweep_sends_no_model_again_and_leaves_no_job_behind(
    lab: Box, mixed: SweepResult, own_home: None, tmp_path: Path
) -> None:
    roots = [*(lab.farm_root(phone) for phone in lab.phones.phones), lab.host_root]

    def sent(root: Path) -> dict[Path, tuple[int, int]]:
        return {
            f: (f.stat().st_ino, f.stat().st_size)
            for kind in ("agent", "runtime", "model", "input")
            for f in (root / kind).rglob("*")
            if f.is_file()
        }

    before = [sent(root) for root in roots]
    assert all(len(files) > len(MODELS) for files in before)
    far = ["tag:phone", "host"]
    again = sweep(MODELS[:1], inventory=lab.inventory, devices=far, configs=["cpu"], out=tmp_path, **QUICK)
    assert [sent(root) for root in roots] == before
    assert [list((root / "jobs").iterdir()) for root in roots] == [[], [], []]
    assert {cell.verdict for cell in again if cell.config == "cpu"} == {"pass"}


def test_the_run_folder_tells_what_each_device_is(mixed: SweepResult) -> None:
    facts = {f.parent.name: json.loads(f.read_bytes()) for f in mixed.run_folder.glob("devices/*/facts.json")}
    assert facts["phone-fp16"]["os"] == "Android 14"
    assert facts["host"]["system"] == facts["here"]["system"]
