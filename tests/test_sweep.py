"""The Python API from models to matrix, on this machine's CPU and on two software GPUs of different vendors."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import farm
from farm.errors import InvalidInput
from farm.inventory import Inventory
from farm.outcome import Outcome
from farm.plan import Cell, Known, PlannedDevice
from farm.store import RunStore
from farm.sweep import SweepResult, judge_run, sweep
from tests import graphs
from tests.lab.gpus import gpus

HOSTILE = {"under": ([1e-5], [1e10]), "over": ([1e4], [1e-8])}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "sweep-cache"))


@pytest.fixture
def fc(tmp_path: Path) -> Path:
    return graphs.write(tmp_path, "fc", graphs.fc_chain())


def verdicts(result: SweepResult) -> dict[tuple[str, str, str], str]:
    return {(c.model, c.device, c.config): c.verdict for c in result}


def test_a_healthy_model_passes_on_the_cpu(tmp_path: Path, fc: Path) -> None:
    result = farm.sweep([fc], configs=["cpu"], out=tmp_path / "runs")
    assert result.all_passed
    assert result.exit_code == 0
    assert not result.interrupted
    assert {c.config: c.verdict for c in result if not c.diagnostic} == {"cpu": "pass"}
    assert {c.config for c in result} == {"cpu", "cpu-ref", "cpu-fp16"}
    for name in ("plan.json", "journal.jsonl", "matrix.json", "report.html", "report.md", "junit.xml"):
        assert (result.run_folder / name).is_file()
    json.loads((result.run_folder / "matrix.json").read_bytes())


def test_judging_again_needs_no_device_and_says_the_same(tmp_path: Path, fc: Path) -> None:
    result = sweep([fc], configs=["cpu"], out=tmp_path / "runs")
    fc.unlink()
    assert judge_run(result.run_folder) == result.matrix


def test_every_problem_is_told_at_once_and_no_run_folder_is_made(tmp_path: Path, fc: Path) -> None:
    out = tmp_path / "runs"
    with pytest.raises(InvalidInput) as refused:
        sweep([fc, tmp_path / "missing.tflite"], configs=["gpuu"], devices=["phone"], runtime="0.0.1", out=out)
    text = str(refused.value)
    for word in ("gpuu", "phone", "0.0.1", "missing.tflite"):
        assert word in text
    assert [f.name for f in (out.iterdir() if out.exists() else ()) if f.name != "objects"] == []


def test_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no model"):
        sweep([], out=tmp_path / "runs")


def test_inputs_of_the_user_are_used_and_said(tmp_path: Path, fc: Path) -> None:
    np.savez(tmp_path / "in.npz", in0=np.full((1, 16), 0.25, np.float32))
    result = sweep([fc], configs=["cpu"], inputs=tmp_path / "in.npz", out=tmp_path / "runs")
    assert {c.inputs for c in result} == {"user"}
    plan = RunStore.open(result.run_folder).plan
    (given,) = plan.cases[0].input_sets
    kept = RunStore.open(result.run_folder).objects.load(given.arrays[0].sha256, "float32", (1, 16))
    assert kept.tolist() == [[0.25] * 16]


def test_a_damaged_model_is_an_error_and_the_rest_goes_on(tmp_path: Path, fc: Path) -> None:
    broken = graphs.write(tmp_path, "broken", graphs.truncated())
    result = sweep([broken, fc], configs=["cpu"], out=tmp_path / "runs")
    seen = {(c.model, c.config): (c.verdict, c.reasons) for c in result}
    assert seen["broken", "cpu"] == ("error", ("INVALID_MODEL",))
    assert seen["fc", "cpu"][0] == "pass"
    assert result.exit_code == 1
    assert not result.all_passed


def test_a_stateful_model_is_judged_step_by_step(tmp_path: Path) -> None:
    counter = graphs.write(tmp_path, "counter", graphs.resource_variable())
    result = sweep([counter], configs=["cpu"], out=tmp_path / "runs")
    store = RunStore.open(result.run_folder)
    outcome = next(o for cell, o in store.outcomes().items() if cell.endswith("--cpu"))
    assert outcome.result is not None
    sets = len(store.plan.cases[0].input_sets)
    assert [(r.set, r.step) for r in outcome.result.runs] == [(s, t) for s in range(sets) for t in range(3)]
    assert {c.verdict for c in result if c.config == "cpu"} == {"pass"}


def test_known_results_are_not_counted_until_their_date(tmp_path: Path) -> None:
    broken = graphs.write(tmp_path, "broken", graphs.truncated())
    inventory = Inventory(
        devices=(PlannedDevice(id="local", transport="local"),),
        known=(Known(model="broken", verdict="error", reason="INVALID_MODEL", until="2999-01-01"),),
    )
    result = sweep([broken], inventory=inventory, configs=["cpu"], out=tmp_path / "runs")
    assert result.exit_code == 0
    assert judge_run(result.run_folder, today=date(2999, 1, 2)).run.exit_code == 1


class Interrupting:
    """Sends this process a signal when the first cell starts."""

    def __init__(self, number: int) -> None:
        self.number, self.begun = number, 0

    def planned(self, cells: int, done: int = 0) -> None: ...
    def stage(self, words: str) -> None: ...
    def finished(self, cell: Cell, outcome: Outcome) -> None: ...

    def started(self, cell: Cell) -> None:
        self.begun += 1
        if self.begun == 1:
            os.kill(os.getpid(), self.number)
            # The handler runs in the main thread, which waits for this one; give it its turn before the next cell.
            threading.Event().wait(0.2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_cell_in_flight_and_the_rest_is_not_run(tmp_path: Path, fc: Path, number: int) -> None:
    before = signal.getsignal(number)
    watch = Interrupting(number)
    result = sweep([fc], configs=["cpu"], out=tmp_path / "runs", progress=watch)
    assert result.interrupted
    assert watch.begun == 1
    assert [c.verdict for c in result] == ["pass", "not_run", "not_run"]
    assert signal.getsignal(number) is before
    assert result.matrix.run.finished is None
    done = sweep(resume=result.run_folder)
    assert not done.interrupted
    assert done.all_passed


@pytest.mark.gpu
def test_two_vendors_in_one_box_disagree_about_fp16(tmp_path: Path) -> None:
    found = gpus()
    if len(found) < 2:
        pytest.skip("needs llvmpipe and SwiftShader (make lab-gpus)")
    devices = tuple(
        PlannedDevice(id=name, transport="local", env={"VK_ICD_FILENAMES": str(icd)}) for name, icd in found.items()
    )
    models = [graphs.write(tmp_path, name, graphs.square_scaled(*scales)) for name, scales in HOSTILE.items()]
    models.append(graphs.write(tmp_path, "fc", graphs.fc_chain()))
    result = sweep(models, inventory=Inventory(devices=devices), out=tmp_path / "runs")
    seen = verdicts(result)
    for model in HOSTILE:
        assert seen[model, "llvmpipe", "gpu"] == "fail"
        assert seen[model, "swiftshader", "gpu"] == "pass"
        assert seen[model, "llvmpipe", "gpu-fp32"] == seen[model, "swiftshader", "gpu-fp32"] == "pass"
    assert all(v == "pass" for (model, _, config), v in seen.items() if model == "fc" and config in ("cpu", "gpu-fp32"))
    classes = {(p["device"], p["config"]): p["value"] for p in result.matrix.precision_classes}
    assert classes["llvmpipe", "gpu"] == "fp16"
    assert (
        classes["llvmpipe", "gpu-fp32"] == classes["swiftshader", "gpu"] == classes["swiftshader", "gpu-fp32"] == "fp32"
    )
    assert classes["llvmpipe", "cpu"] == "fp32"
    assert classes["llvmpipe", "cpu-fp16"] == "fp16"
    assert result.exit_code == 1
    causes = {(f.model, f.device): (f.cause, f.remedy) for f in result.matrix.findings}
    assert causes == {(m, "llvmpipe"): ("FP16_RANGE", "gpu-fp32") for m in HOSTILE}


@pytest.mark.gpu
def test_a_machine_without_a_gpu_adapter_is_unsupported_with_the_cure(tmp_path: Path, fc: Path) -> None:
    inventory = Inventory(
        devices=(PlannedDevice(id="bare", transport="local", env={"VK_ICD_FILENAMES": "/nonexistent/icd.json"}),)
    )
    result = sweep([fc], inventory=inventory, configs=["cpu", "gpu"], out=tmp_path / "runs")
    gpu = next(c for c in result if c.config == "gpu")
    assert gpu.verdict == "unsupported"
    assert "no GPU adapter" in gpu.message
    assert "VK_ICD_FILENAMES" in gpu.message
    assert result.exit_code == 0


def test_a_run_is_judged_again_with_other_limits_and_its_plan_stays(tmp_path: Path) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    run = sweep([model], configs=["cpu", "cpu-ref"], out=tmp_path / "runs").run_folder
    plan = (run / "plan.json").read_bytes()

    def reference_kernels(**bands: dict[str, float]) -> str:
        return next(c.verdict for c in judge_run(run, bands=bands).cells if c.config == "cpu-ref")

    assert reference_kernels() == "pass"
    # Two right kernel sets lie about 130 dB apart: limits above that leave no reference to judge with.
    assert reference_kernels(values={"pass_snr_db": 500.0, "fail_snr_db": 400.0}) == "inconclusive"
    assert (run / "plan.json").read_bytes() == plan
