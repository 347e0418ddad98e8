"""What a study leaves behind: table, CSV, picture, Model Explorer data, bundle, and the command's exit codes."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from farm.cli._app import run
from farm.layers.files import COLUMNS, csv_text, json_text, model_explorer
from farm.layers.plot import svg
from farm.layers.study import Study
from farm.layers.table import matrix, render
from tests import graphs
from tests.lab.gpus import gpus
from tests.layers.kit import lab_device, study
from tests.layers.planted import planted

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> list[Study]:
    folder = tmp_path_factory.mktemp("studies")
    return study(folder, planted("range", 7, branch=True).data, configs=["gpu", "gpu-fp32"], bundles=folder / "bundles")


def test_the_table_names_the_op_first_and_the_worst_layers_below(studies: list[Study]) -> None:
    bad, fine = studies
    assert bad.first is not None
    text = render(bad)
    assert f"op {bad.first.layer.op} MUL (intrinsic; FP16_RANGE)" in text.splitlines()[0]
    assert f"{bad.runs} device runs (at most {bad.most_runs})" in text
    listed = [line for line in text.splitlines() if line.endswith("BAD")]
    assert len(listed) == sum(r.health.bad for r in bad.rows)
    assert "no bad layer" in render(fine).splitlines()[0]
    assert "BAD" not in render(fine)


def test_the_matrix_has_a_column_per_config(studies: list[Study]) -> None:
    head, row = matrix(studies).splitlines()
    assert head.split() == ["device", "gpu", "gpu-fp32"]
    assert row.startswith("llvmpipe")
    assert "op " in row
    assert "no bad layer" in row


def test_csv_has_a_row_per_layer_with_the_four_figures(studies: list[Study]) -> None:
    found = list(csv.DictReader(io.StringIO(csv_text(studies[1]))))
    assert tuple(found[0]) == COLUMNS
    assert len(found) == len(studies[1].rows)
    for row in found:
        assert float(row["nrmse"]) < 1e-4
        assert float(row["snr_db"]) > 80
        assert float(row["cosine"]) == pytest.approx(1)
        assert float(row["max_abs"]) < 1


def test_csv_never_starts_a_cell_like_a_formula(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 8))
    data = g.finish([g.op("TANH", [x], [g.tensor("=cmd|' /C calc'!A0", (1, 8))])])
    (found,) = study(tmp_path, data, gpu=None, configs=["cpu"])
    assert "'=cmd" in csv_text(found)
    assert ",=cmd" not in csv_text(found)


def test_the_picture_has_a_line_per_study_and_marks_the_named_op(studies: list[Study]) -> None:
    root = ElementTree.fromstring(svg(studies))
    space = "{http://www.w3.org/2000/svg}"
    lines = root.findall(f"{space}polyline")
    assert [len(line.get("points", "").split()) for line in lines] == [len(s.rows) for s in studies]
    assert len(root.findall(f"{space}circle")) == 1
    assert "script" not in svg(studies)


def test_names_cannot_leave_the_picture(studies: list[Study]) -> None:
    import dataclasses

    hostile = dataclasses.replace(studies[0], device="</svg><script>alert(1)</script>")
    assert "<script>" not in svg([hostile])
    ElementTree.fromstring(svg([hostile]))


def test_model_explorer_data_is_keyed_by_output_tensor(studies: list[Study]) -> None:
    data = json.loads(model_explorer(studies[0]))
    ((graph, nodes),) = data.items()
    assert graph == "graph0"
    assert set(nodes["results"]) == {r.layer.name for r in studies[0].rows}
    assert all(isinstance(v["value"], float) for v in nodes["results"].values())
    assert [t["value"] for t in nodes["thresholds"]] == sorted(t["value"] for t in nodes["thresholds"])


def test_json_is_strict_even_with_nan_in_the_study(studies: list[Study]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(json_text(studies[0]), parse_constant=refuse)["config"] == "gpu"


def test_the_bundle_holds_one_op_that_fails_again(studies: list[Study], tmp_path: Path) -> None:
    assert studies[0].bundle is not None
    folder = Path(studies[0].bundle)
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md", "environment.json", "expected.npz", "inputs.npz", "op.tflite", "seen.npz",
    ]  # fmt: skip
    (again,) = study(tmp_path, folder / "op.tflite", arrays=folder / "inputs.npz")
    assert len(again.rows) == 1
    assert again.first is not None
    assert again.first.health.bad
    with np.load(folder / "seen.npz") as seen, np.load(folder / "expected.npz") as expected:
        assert not np.isfinite(seen["alone"]).all()
        assert np.isfinite(expected["out0"]).all()
    assert studies[1].bundle is None


def test_the_bundle_tells_nothing_of_names_and_places(studies: list[Study]) -> None:
    import getpass
    import socket

    assert studies[0].bundle is not None
    for file in Path(studies[0].bundle).iterdir():
        data = file.read_bytes()
        for word in (studies[0].first.layer.name, str(Path.home()), socket.gethostname()):  # type: ignore[union-attr]
            assert f'"{word}"'.encode() not in data, (file.name, word)
        assert getpass.getuser().encode() + b"@" not in data
    lock = json.loads((Path(studies[0].bundle) / "environment.json").read_text())
    assert lock["runtime"] == studies[0].runtime
    assert lock["precision_measured"] == "fp16"


def command(tmp_path: Path, data: bytes, *more: str) -> int:
    model = tmp_path / "m.tflite"
    model.write_bytes(data)
    return run(["layers", str(model), "--out", str(tmp_path / "out"), *more])


def test_the_command_writes_its_files_and_ends_with_1_when_an_op_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab_device("llvmpipe")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(gpus()["llvmpipe"]))
    graph = planted("underflow", 3, branch=False)
    assert command(tmp_path, graph.data, "--config", "gpu,gpu-fp32") == 1
    out = capsys.readouterr().out
    assert f"op {graph.op} MUL (intrinsic; FP16_UNDERFLOW)" in out
    assert "First bad op and cause:" in out
    names = {p.name for p in (tmp_path / "out" / "m").iterdir()}
    assert {"depth.svg", "local--gpu.csv", "local--gpu.json", "local--gpu.model-explorer.json"} <= names
    assert f"local--gpu--op{graph.op}" in names


def test_the_command_ends_with_0_when_no_layer_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, graphs.fc_chain(), "--config", "cpu") == 0
    assert "no bad layer" in capsys.readouterr().out


def test_the_command_ends_with_3_when_nothing_could_be_studied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, graphs.custom_op(), "--config", "cpu") == 3
    assert "not studied" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "word"), [("two_signatures", "--signature"), ("resource_variable", "state"), ("truncated", "damaged")]
)
def test_what_cannot_be_studied_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, word: str
) -> None:
    data = {**graphs.KINDS, **graphs.DAMAGED}[kind]()
    assert command(tmp_path, data) == 2
    assert word in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
