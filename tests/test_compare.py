"""Tensors of any pipeline in the same judge: formats, kinds, inputs first, and a column in a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.cli._app import run as farm
from farm.columns import add_column
from farm.compare import compare
from farm.errors import InvalidInput
from farm.monitor import Monitor
from farm.report import render
from farm.store import RunStore
from farm.sweep import judge_run, sweep
from farm.tensors import open_tensors
from tests import graphs

RNG = np.random.default_rng(5)
Y = RNG.standard_normal((4, 32)).astype(np.float32)


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def dump(
    folder: Path,
    y: np.ndarray,
    *,
    x: np.ndarray | None = None,
    layers: dict[str, np.ndarray] | None = None,
    name: str = "",
    **about: Any,
) -> Path:
    with Monitor(folder, layers=True, **about) as monitor, monitor.inference(name) as run:
        if x is not None:
            run.input("x", x)
        run.start()
        run.stop()
        for layer, array in (layers or {}).items():
            run.layer(layer, array)
        run.output("y", y)
    return folder


def loose(folder: Path, y: np.ndarray) -> Path:
    folder.mkdir()
    (folder / "y.raw").write_bytes(y.tobytes())
    (folder / "y.json").write_text(json.dumps({"dtype": y.dtype.name, "shape": y.shape}))
    return folder


def npy(folder: Path, y: np.ndarray) -> Path:
    folder.mkdir()
    np.save(folder / "y.npy", y)
    return folder


def safetensors(path: Path, y: np.ndarray) -> Path:
    header = json.dumps({"y": {"dtype": "F32", "shape": y.shape, "data_offsets": [0, y.nbytes]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + y.tobytes())
    return path


WRITERS: dict[str, Callable[[Path, np.ndarray], Path]] = {
    "x.npz": lambda p, y: npz(p, y=y),
    "x.safetensors": safetensors,
    "monitor": dump,
    "loose": loose,
    "npy": npy,
}


@pytest.mark.parametrize("one", WRITERS)
@pytest.mark.parametrize("other", ["x.npz", "monitor"])
def test_every_format_says_the_same_as_every_other(tmp_path: Path, one: str, other: str) -> None:
    a = open_tensors(WRITERS[one](tmp_path / f"a_{one}", Y))
    b = open_tensors(WRITERS[other](tmp_path / f"b_{other}", Y * np.float32(1.001)))
    seen = compare(a, b, precision="fp16")
    (output,) = seen.outputs.outputs
    assert (seen.verdict, seen.exit_code) == ("pass", 0)
    assert output.metrics["snr_db"] == pytest.approx(60, abs=0.01)  # an error of 1/1000 everywhere
    assert compare(a, b, precision="fp32").verdict == "warn"


@pytest.mark.parametrize(
    ("b", "reason"),
    [
        (np.zeros_like(Y), "SILENT_ZERO_VECTOR"),
        (np.full_like(Y, np.nan), "NUMERICAL_INSTABILITY"),
        (Y * np.float32(2), "SCALE_ERROR"),
        (-Y, "PRECISION_DEGRADATION"),
        (Y[:2], "SHAPE_MISMATCH"),
        (Y.astype(np.float64), "SHAPE_MISMATCH"),
    ],
)
def test_the_farms_own_reasons_are_given(tmp_path: Path, b: np.ndarray, reason: str) -> None:
    seen = compare(open_tensors(npz(tmp_path / "a.npz", y=Y)), open_tensors(npz(tmp_path / "b.npz", y=b)))
    assert (seen.verdict, seen.outputs.reasons, seen.exit_code) == ("fail", (reason,), 1)


def test_an_output_that_b_lacks_fails_and_one_that_a_lacks_is_said(tmp_path: Path) -> None:
    a = npz(tmp_path / "a.npz", y=Y, z=Y)
    b = npz(tmp_path / "b.npz", y=Y, more=Y)
    seen = compare(open_tensors(a), open_tensors(b))
    assert {o.name: o.reasons for o in seen.outputs.outputs} == {"y": (), "z": ("MISSING_OUTPUT",)}
    assert seen.verdict == "fail"
    assert seen.only_in_b == ("more",)


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no output in common"):
        compare(open_tensors(npz(tmp_path / "a.npz", y=Y)), open_tensors(npz(tmp_path / "b.npz", z=Y)))


def test_a_kind_that_is_named_decides(tmp_path: Path) -> None:
    a, b = npz(tmp_path / "a.npz", y=np.abs(Y) / 9), npz(tmp_path / "b.npz", y=np.abs(Y) / 9 + np.float32(0.03))
    assert compare(open_tensors(a), open_tensors(b)).verdict == "fail"
    seen = compare(open_tensors(a), open_tensors(b), kinds={"y": "mask"})
    assert (seen.verdict, seen.outputs.outputs[0].kind_source) == ("warn", "spec")
    with pytest.raises(InvalidInput, match="no tensor 'q'"):
        compare(open_tensors(a), open_tensors(b), kinds={"q": "mask"})
    with pytest.raises(InvalidInput, match="unknown kind 'masc'"):
        compare(open_tensors(a), open_tensors(b), kinds={"y": "masc"})


def test_a_scale_in_the_dump_makes_it_a_matter_of_steps(tmp_path: Path) -> None:
    q = RNG.integers(-100, 100, (64,)).astype(np.int8)
    for name, values in (("a", q), ("b", q + np.int8(1))):
        with Monitor(tmp_path / name) as monitor, monitor.inference() as run:
            run.output("y", values, quantization=(0.5, 3))
    seen = compare(open_tensors(tmp_path / "a"), open_tensors(tmp_path / "b"))
    assert seen.outputs.outputs[0].kind == "quantised"
    assert seen.outputs.outputs[0].metrics["max_steps"] == 1
    assert seen.verdict == "pass"


def test_different_inputs_are_found_before_the_outputs_are_blamed(tmp_path: Path) -> None:
    a = dump(tmp_path / "a", Y, x=Y)
    b = dump(tmp_path / "b", -Y, x=Y / np.float32(255))
    seen = compare(open_tensors(a), open_tensors(b))
    assert seen.verdict == "fail"
    assert "preprocessing" in seen.message
    assert seen.inputs is not None
    assert seen.inputs.verdict == "fail"
    same_outputs = dump(tmp_path / "c", Y, x=Y / np.float32(255))
    assert compare(open_tensors(a), open_tensors(same_outputs)).exit_code == 1


def test_the_first_layer_that_differs_is_named(tmp_path: Path) -> None:
    good = {"conv": Y, "norm": Y + 1, "dense": Y + 2}
    a = dump(tmp_path / "a", Y, layers=good)
    b = dump(tmp_path / "b", -Y, layers={"conv": Y, "norm": -Y, "dense": -Y, "own": Y})
    seen = compare(open_tensors(a), open_tensors(b))
    assert seen.first_bad_layer == "norm"
    assert seen.layers is not None
    assert [o.name for o in seen.layers.outputs] == ["conv", "norm", "dense"]


def test_input_sets_are_matched_by_name_and_a_stuck_output_is_found(tmp_path: Path) -> None:
    for name, arrays in (("a", {"one": Y, "two": -Y}), ("b", {"two": Y, "one": Y})):
        with Monitor(tmp_path / name) as monitor:
            for inference, array in arrays.items():
                with monitor.inference(inference) as run:
                    run.output("y", array)
    seen = compare(open_tensors(tmp_path / "a"), open_tensors(tmp_path / "b"))
    assert seen.outputs.reasons == ("INPUT_INDEPENDENT",)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "0.raw").write_bytes(b"short"), "takes 512 bytes; the file has 5"),
        (lambda f: (f / "0.raw").unlink(), "cannot be read"),
        (lambda f: (f / "tensors.json").write_text("{"), "no tensors.json of farm"),
        (lambda f: edit(f, file="../../etc/passwd"), "outside the folder"),
        (lambda f: edit(f, file="/etc/passwd"), "outside the folder"),
        (lambda f: edit(f, dtype="object"), "unknown dtype"),
        (lambda f: edit(f, shape=[-4, -32]), "which is none"),
    ],
)
def test_a_damaged_dump_is_refused(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    folder = dump(tmp_path / "a", Y)
    damage(folder)
    with pytest.raises(InvalidInput, match=said):
        open_tensors(folder)


def edit(folder: Path, **values: Any) -> None:
    manifest = json.loads((folder / "tensors.json").read_text())
    manifest["tensors"][0].update(values)
    (folder / "tensors.json").write_text(json.dumps(manifest))


def test_bytes_that_were_changed_are_refused_when_read(tmp_path: Path) -> None:
    folder = dump(tmp_path / "a", Y)
    (folder / "0.raw").write_bytes((Y + 1).tobytes())
    with pytest.raises(InvalidInput, match="does not have the sha256"):
        open_tensors(folder).tensors[0].array.read()


def test_an_empty_folder_and_a_raw_file_without_header_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no tensors"):
        open_tensors(tmp_path)
    (tmp_path / "y.raw").write_bytes(b"1234")
    with pytest.raises(InvalidInput, match="no header for it"):
        open_tensors(tmp_path)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_json_and_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(npz(tmp_path / "a.npz", y=Y)), str(npz(tmp_path / "b.npz", y=-Y))
    assert farm(["compare", a, a]) == 0
    assert "PASS" in capsys.readouterr().out
    assert farm(["compare", a, b, "--kind", "y=values", "--precision", "fp32"]) == 1
    assert "FAIL: y: SNR" in capsys.readouterr().out
    assert farm(["compare", a, b, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["outputs"]["outputs"][0]["reasons"] == ["PRECISION_DEGRADATION"]


def test_the_command_takes_a_spec_with_assertions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(npz(tmp_path / "a.npz", y=Y)), str(npz(tmp_path / "b.npz", y=Y + np.float32(1e-4)))
    spec = tmp_path / "s.farm.yaml"
    spec.write_text("assertions:\n- {check: 'max_abs < 1e-5', message: too far}\n")
    assert farm(["compare", a, b]) == 0
    capsys.readouterr()
    assert farm(["compare", a, b, "--spec", str(spec)]) == 1
    assert "too far" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "nothing to compare with"),
        (["--run", "r"], "--run means nothing here"),
        (["--as-device", "d"], "--as-device needs --run, --model, --config too"),
        (["--kind", "y"], "is not NAME=KIND"),
    ],
)
def test_wrong_usage_is_a_sentence_and_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert farm(["compare", str(npz(tmp_path / "a.npz", y=Y)), *argv]) == 2
    assert said in capsys.readouterr().err


# --- a column in a run ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("columns")
    model = graphs.write(folder, "fc", graphs.fc_chain())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE_DIR", str(folder / "cache"))
        return sweep([model], configs=["cpu"], out=folder / "runs").run_folder, folder


@pytest.fixture
def run(swept: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the run, since a column changes it."""
    import shutil

    shutil.copytree(swept[0], tmp_path / "runs" / swept[0].name)
    shutil.copytree(swept[0].parent / "objects", tmp_path / "runs" / "objects")
    return tmp_path / "runs" / swept[0].name


def app_dump(run: Path, folder: Path, change: Callable[[np.ndarray], np.ndarray] = lambda y: y, **about: Any) -> Path:
    """What an app would write: the run's own inputs, the reference's outputs, changed."""
    store = RunStore.open(run)
    case = store.plan.cases[0]
    first = store.references()["fc"].first
    assert first is not None
    with Monitor(folder, source="a test's app", model_sha256=case.model_sha256, **about) as monitor:
        for number, inputs in enumerate(case.input_sets):
            with monitor.inference(inputs.name) as inference:
                for array in inputs.arrays:
                    inference.input(array.name, store.objects.load(array.sha256, array.dtype, array.shape))
                inference.start()
                inference.stop()
                for info, data in zip(first.outputs, first.runs[number].outputs, strict=True):
                    inference.output(info.name, change(store.objects.load(data.sha256, info.dtype, data.shape)))
    return folder


def test_an_apps_tensors_become_a_column(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = app_dump(run, tmp_path / "app", lambda y: y * np.float32(1.0001), device="Pixel 9", runtime="litert-2.3.0")
    argv = ["--as-device", "pixel9-app", "--run", str(run), "--model", "fc", "--config", "gpu"]
    assert farm(["compare", str(folder), *argv]) == 0
    out = capsys.readouterr().out
    assert "pixel9-app" in out
    assert "pixel9-app: from inside an app" in out
    matrix = judge_run(run)
    (cell,) = [c for c in matrix.cells if c.device == "pixel9-app"]
    assert (cell.verdict, cell.process, cell.config, cell.runtime) == ("pass", "app", "gpu", "litert-2.3.0")
    assert cell.precision_class is None
    assert cell.latency_ms is not None
    assert {c.process for c in matrix.cells if c.device != "pixel9-app"} == {"shell"}
    assert "inside an app" in render(matrix, "markdown")
    assert (run / "matrix.json").read_bytes()


def test_a_wrong_column_turns_the_run_red_and_can_be_given_anew(run: Path, tmp_path: Path) -> None:
    store = RunStore.open(run)
    broken = open_tensors(app_dump(run, tmp_path / "broken", np.zeros_like))
    cell = add_column(store, broken, device="app", model="fc", config="gpu")
    matrix = judge_run(run)
    assert next(c for c in matrix.cells if c.id == cell).reasons == ("SILENT_ZERO_VECTOR",)
    assert matrix.run.exit_code == 1
    mended = open_tensors(app_dump(run, tmp_path / "mended"))
    assert add_column(RunStore.open(run), mended, device="app", model="fc.tflite", config="gpu") == cell
    matrix = judge_run(run)
    assert [c.verdict for c in matrix.cells if c.device == "app"] == ["pass"]
    assert matrix.run.exit_code == 0


def test_said_precision_moves_the_bands(run: Path, tmp_path: Path) -> None:
    folder = app_dump(run, tmp_path / "app", lambda y: y * np.float32(1.001))
    for precision, verdict in (("fp16", "pass"), ("fp32", "warn")):
        add_column(
            RunStore.open(run), open_tensors(folder), device="app", model="fc", config="gpu",
            precision="fp32" if precision == "fp32" else "fp16",
        )  # fmt: skip
        (cell,) = [c for c in judge_run(run).cells if c.device == "app"]
        assert (cell.verdict, cell.precision_class) == (verdict, precision)


def test_tensors_of_other_inputs_another_model_or_half_a_dump_are_refused(run: Path, tmp_path: Path) -> None:
    def add(folder: Path, **options: Any) -> None:
        given = {"device": "app", "model": "fc", "config": "gpu", **options}
        add_column(RunStore.open(run), open_tensors(folder), **given)

    good = app_dump(run, tmp_path / "good")
    other = app_dump(run, tmp_path / "other")
    entries = json.loads((other / "tensors.json").read_text())
    fed = next(e for e in entries["tensors"] if e["role"] == "input")
    data = (np.frombuffer((other / fed["file"]).read_bytes(), np.float32) + 1).tobytes()
    (other / fed["file"]).write_bytes(data)
    entries["tensors"] = [{**e, "sha256": ""} if e is fed else e for e in entries["tensors"]]
    (other / "tensors.json").write_text(json.dumps(entries))
    with pytest.raises(InvalidInput, match="is not what the run was fed"):
        add(other)
    entries = json.loads((good / "tensors.json").read_text())
    (good / "tensors.json").write_text(json.dumps({**entries, "model_sha256": "0" * 64}))
    with pytest.raises(InvalidInput, match="another model file"):
        add(good)
    outputs = [e for e in entries["tensors"] if e["role"] == "output"]
    half = [e for e in entries["tensors"] if e is not outputs[-1]]
    (good / "tensors.json").write_text(json.dumps({**entries, "tensors": half}))
    with pytest.raises(InvalidInput, match=f"lack '{outputs[-1]['set']}/"):
        add(good)
    (good / "tensors.json").write_text(json.dumps(entries))
    for options, said in (
        ({"model": "nope"}, "no model 'nope'"),
        ({"config": "gpuu"}, "unknown config"),
        ({"device": "local"}, "is a device of this run"),
        ({"signature": "nope"}, "with signature 'nope'"),
    ):
        with pytest.raises(InvalidInput, match=said):
            add(good, **options)
    assert [c for c in judge_run(run).cells if c.device == "app"] == []


def test_an_npz_can_be_a_column_too(run: Path, tmp_path: Path) -> None:
    app = open_tensors(app_dump(run, tmp_path / "app"))
    file = npz(tmp_path / "y.npz", **{f"{t.set}/out0": t.array.read() for t in app.of("output")})
    add_column(RunStore.open(run), open_tensors(file), device="app", model="fc", config="gpu-fp32")
    assert [c.verdict for c in judge_run(run).cells if c.device == "app"] == ["pass"]


def test_a_finished_run_with_a_column_has_nothing_left_to_resume(run: Path, tmp_path: Path) -> None:
    add_column(
        RunStore.open(run), open_tensors(app_dump(run, tmp_path / "app")), device="app", model="fc", config="gpu"
    )
    result = sweep(resume=run)
    assert not result.interrupted
    assert [c.verdict for c in result if c.device == "app"] == ["pass"]
