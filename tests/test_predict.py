"""Hazards in the flow of a sweep: made for cases that failed in FP16, kept in the run, named beside what was seen."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from farm.agents import agent_binary, agent_digest
from farm.cases import Case, ModelRequest
from farm.errors import FarmError
from farm.hazards import CaseHazards
from farm.inventory import Inventory
from farm.plan import PlannedDevice
from farm.predict import Predictor
from farm.report.matrix import MatrixFinding
from farm.runner import Stop
from farm.runtimes import Runtime, find_runtime, host_platform
from farm.store import RunStore
from farm.sweep import SweepResult, judge_run, sweep
from tests import graphs
from tests.lab.gpus import gpus
from tests.spinekit import new_run

X = np.linspace(0.5, 2, 16, dtype=np.float32).reshape(1, 16)


def cancelled(offset: float = 2000) -> bytes:
    """(x + offset) − offset: FP16 rounds x to whole numbers on the way, and nothing leaves its range."""
    g = graphs.Graph()
    x = g.input("x", (1, 16))
    high = g.op("ADD", [x, g.const("up", np.float32([offset]))], [g.tensor("high", (1, 16))])
    return g.finish([g.op("SUB", [high, g.const("down", np.float32([offset]))], [g.tensor("y", (1, 16))])])


KINDS = {
    "under": (graphs.square_scaled([1e-5], [1e10]), X),
    "vanish": (graphs.square_scaled([1e-5], [1e4, 1e4, 1e2]), X),
    "over": (graphs.square_scaled([1e4], [1e-8]), X),
    "sum": (graphs.reduce_sum("SUM"), np.full((1, 64, 64, 8), 20, np.float32)),
    "coarse": (cancelled(), X),
    "healthy": (graphs.fc_chain(), X),
}


def lab(*names: str) -> Inventory:
    found = gpus()
    if len(found) < 2:
        pytest.skip("needs llvmpipe and SwiftShader (make lab-gpus)")
    return Inventory(
        devices=tuple(
            PlannedDevice(id=n, transport="local", env={"VK_ICD_FILENAMES": str(found[n])}) for n in names or found
        )
    )


def request(folder: Path, name: str) -> ModelRequest:
    data, x = KINDS[name]
    np.savez(folder / f"{name}.npz", in0=x)
    return ModelRequest(path=graphs.write(folder, name, data), inputs=(folder / f"{name}.npz",))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    root = tmp_path_factory.mktemp("predict")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE_DIR", str(root / "cache"))
        result = sweep([request(root, name) for name in KINDS], inventory=lab(), out=root / "runs")
        for name in KINDS:
            (root / f"{name}.tflite").unlink()
    return result


def finding(swept: SweepResult, model: str) -> MatrixFinding:
    (found,) = [f for f in swept.matrix.findings if f.model == model]
    return found


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "kind", "op", "index", "ended"),
    [
        ("under", "underflow", "MUL", 1, "NaN or infinity"),
        ("vanish", "underflow", "MUL", 1, "zeros"),
        ("over", "overflow", "MUL", 1, "NaN or infinity"),
        ("sum", "sum_overflow", "SUM", 0, "values stuck at 65504"),
    ],
)
def test_the_op_that_leaves_the_range_is_named_beside_what_was_seen(
    swept: SweepResult, model: str, kind: str, op: str, index: int, ended: str
) -> None:
    found = finding(swept, model)
    assert found.device == "llvmpipe"
    assert found.cause == "FP16_RANGE"
    first = found.hazards[0]
    assert (first.kind, first.op, first.op_index, first.certain) == (kind, op, index, True)
    assert f"gpu ended in {ended}; predicted from the reference's activations: {op} op {index} " in found.explanation
    assert first.message in found.explanation
    for name in ("report.md", "report.html"):
        assert f"{op} op {index} " in (swept.run_folder / name).read_text()


@pytest.mark.gpu
def test_a_model_that_is_only_rounded_is_a_matter_of_precision(swept: SweepResult) -> None:
    found = finding(swept, "coarse")
    assert (found.device, found.cause, found.hazards) == ("llvmpipe", "FP16_PRECISION", ())
    assert "none of the reference's 2 float tensors is sure to leave FP16's range" in found.explanation


@pytest.mark.gpu
def test_nothing_is_claimed_where_the_device_passed(swept: SweepResult) -> None:
    passed = {c.model for c in swept if c.device == "swiftshader" and c.config == "gpu" and c.verdict == "pass"}
    assert passed == set(KINDS)
    assert {f.device for f in swept.matrix.findings} == {"llvmpipe"}


@pytest.mark.gpu
def test_only_cases_that_failed_were_looked_at(swept: SweepResult) -> None:
    kept = RunStore.open(swept.run_folder).hazards()
    assert kept.keys() == KINDS.keys() - {"healthy"}
    assert all(h.unseen == 0 and h.note == "" and h.seen > 0 for h in kept.values())


@pytest.mark.gpu
def test_judging_again_without_model_or_device_says_the_same(swept: SweepResult) -> None:
    assert judge_run(swept.run_folder) == swept.matrix


@pytest.mark.gpu
def test_without_the_kept_hazards_no_op_is_named(swept: SweepResult, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / swept.run_folder.name
    shutil.copytree(swept.run_folder, copy)
    (tmp_path / "runs" / "objects").symlink_to(swept.run_folder.parent / "objects")
    shutil.rmtree(copy / "hazards")
    (found,) = [f for f in judge_run(copy).findings if f.model == "over"]
    assert found.hazards == ()
    assert "MUL op 1" not in found.explanation


# --- what may go wrong ------------------------------------------------------------------------------------------------


def no_host() -> tuple[Runtime, str]:
    raise FarmError("there is no agent here")


def this_host() -> tuple[Runtime, str]:
    return find_runtime(None, host_platform()), agent_digest(agent_binary(host_platform()))


def predicted(store: RunStore, case: Case, host: Callable[[], tuple[Runtime, str]]) -> CaseHazards | None:
    Predictor(host=host, stop=Stop(), stage=lambda _words: None)(store, (case,))
    return store.hazards().get(case.id)


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunStore, Case]:
    store = new_run(tmp_path / "runs", [graphs.write(tmp_path, "m", KINDS["under"][0])])
    return store, store.plan.cases[0]


def test_constants_are_told_where_the_model_cannot_be_run(run: tuple[RunStore, Case]) -> None:
    got = predicted(*run, no_host)
    assert got is not None
    assert [h.kind for h in got.found] == ["constant_overflow"]
    assert (got.seen, got.note) == (0, "there is no agent here")
    assert got.unseen == 3


def test_a_model_that_has_changed_or_gone_is_a_note(run: tuple[RunStore, Case]) -> None:
    store, case = run
    changed = predicted(store, dataclasses.replace(case, model_sha256="0" * 64), no_host)
    assert changed is not None
    assert (changed.found, changed.note) == ((), "the model has changed since")
    Path(case.model_path).unlink()
    gone = predicted(store, case, no_host)
    assert gone is not None
    assert "cannot be read" in gone.note


def test_an_unforeseen_error_is_a_note(run: tuple[RunStore, Case]) -> None:
    def broken() -> tuple[Runtime, str]:
        raise ZeroDivisionError("of all things")

    got = predicted(*run, broken)
    assert got is not None
    assert got.note == "ZeroDivisionError: of all things"


def test_a_note_is_looked_at_again_and_a_prediction_is_not(run: tuple[RunStore, Case]) -> None:
    asked = []

    def host() -> tuple[Runtime, str]:
        asked.append(1)
        return this_host()

    predicted(*run, no_host)
    got = predicted(*run, host)
    assert got is not None
    assert (got.seen, got.unseen, got.note) == (3, 0, "")
    assert [h.kind for h in got.found] == ["underflow", "constant_overflow"]
    assert predicted(*run, host) == got
    assert len(asked) == 1


@pytest.mark.parametrize(("limit", "note"), [("CASE_S", "no run showed them"), ("ALL_S", "has spent its 0 s")])
def test_predictions_end_in_time(
    run: tuple[RunStore, Case], monkeypatch: pytest.MonkeyPatch, limit: str, note: str
) -> None:
    monkeypatch.setattr(f"farm.predict.{limit}", 0.0)
    got = predicted(*run, this_host)
    assert got is not None
    assert (got.seen, got.unseen) == (0, 3)
    assert note in got.note
    assert [h.kind for h in got.found] == ["constant_overflow"]


def test_a_run_that_is_being_stopped_starts_no_prediction(run: tuple[RunStore, Case]) -> None:
    store, case = run
    stop = Stop()
    stop.request()
    Predictor(host=no_host, stop=stop, stage=lambda _words: None)(store, (case,))
    assert store.hazards() == {}


# --- real models ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.slow
def test_real_models_get_the_right_cause_at_the_right_op(tmp_path: Path, shared: Path) -> None:
    models = shared / "models"
    drawn = np.random.default_rng(0).standard_normal((1, 256, 256, 3)).astype(np.float32) * np.float32(0.5)
    np.savez(tmp_path / "noise.npz", in0=drawn)
    wanted = [
        ModelRequest(path=models / f"{name}.tflite")
        for name in ("made_geg_fp16_zero", "made_geg_fp16_nan", "made_geg_minmask")
    ]
    wanted.append(ModelRequest(path=models / "pose_landmark_lite.tflite", inputs=(tmp_path / "noise.npz",)))
    result = sweep(wanted, inventory=lab("llvmpipe"), out=tmp_path / "runs")
    found = {f.model: f for f in result.matrix.findings}
    assert {name: f.cause for name, f in found.items()} == {
        "made_geg_fp16_zero": "FP16_RANGE",
        "made_geg_fp16_nan": "FP16_RANGE",
        "made_geg_minmask": "FP16_RANGE",
        "pose_landmark_lite": "FP16_PRECISION",
    }
    for name in ("made_geg_fp16_zero", "made_geg_fp16_nan"):
        first = found[name].hazards[0]
        assert (first.kind, first.op) == ("overflow", "MUL")
        assert "Norm" in first.tensor
    assert found["made_geg_minmask"].hazards[0].kind == "mask"
    assert found["pose_landmark_lite"].hazards == ()
