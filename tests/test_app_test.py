"""The exported app test: golden files as the sweep is fed them, sources with sound syntax, a dump that comes back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.cli._app import run as farm
from farm.outcome import Reference
from farm.store import RunStore
from farm.sweep import judge_run, sweep
from farm.tensors import Manifest, TensorEntry, open_tensors
from tests import graphs


def export(model: Path, out: Path, *options: str) -> int:
    return farm(["export-app-test", str(model), "--out", str(out), *options])


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    model = graphs.write(tmp_path, "net", graphs.fc_chain())
    assert export(model, tmp_path / "out", "--config", "cpu,gpu,gpu-fp32,gpu-fp16,gpu-cl") == 0
    return tmp_path / "out"


def unbalanced(text: str) -> str | None:
    """What is wrong with the brackets and quotes of a C-like source, strings and comments left out; None if nothing."""
    stack: list[str] = []
    bare = re.sub(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"', "", text)
    if '"' in bare:
        return "a string does not end"
    for c in bare:
        if c in "([{":
            stack.append(c)
        elif c in ")]}" and (not stack or stack.pop() + c not in ("()", "[]", "{}")):
            return f"a {c!r} closes nothing"
    return f"{stack} are not closed" if stack else None


def test_brackets_and_quotes_are_balanced_and_the_check_sees_when_not(exported: Path) -> None:
    for name in ("android/FarmAppTest.kt", "ios/FarmAppTests.swift"):
        text = (exported / name).read_text()
        assert unbalanced(text) is None
        assert "{%" not in text
        assert "{{" not in text
        for c in ("{", "}", ")"):
            cut = text.rindex(c)
            assert unbalanced(text[:cut] + text[cut + 1 :]) is not None
        assert unbalanced(text.replace('"cpu"', '"cpu', 1)) is not None


@pytest.mark.parametrize(
    ("name", "language"), [("android/FarmAppTest.kt", "kotlin"), ("ios/FarmAppTests.swift", "swift")]
)
def test_a_real_parser_finds_no_error(exported: Path, name: str, language: str) -> None:
    """With the grammars of tree-sitter: syntax only, nothing is compiled here."""
    tree_sitter: Any = pytest.importorskip("tree_sitter")
    grammar: Any = pytest.importorskip(f"tree_sitter_{language}")
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))
    text = (exported / name).read_bytes()
    assert not parser.parse(text).root_node.has_error
    assert parser.parse(
        text.replace(b"fun ", b"fun fun fun (", 1).replace(b"func ", b"func func (", 1)
    ).root_node.has_error


def test_each_config_asks_for_what_it_says(exported: Path) -> None:
    kotlin = (exported / "android" / "FarmAppTest.kt").read_text()
    methods = dict(re.findall(r"  fun (\w+)\(\) \{\n(.*?)\n  \}\n", kotlin, re.DOTALL))
    assert set(methods) == {"cpu", "gpu", "gpu_fp32", "gpu_fp16", "gpu_cl"}
    assert "Accelerator.CPU" in methods["cpu"]
    assert "gpuOptions" not in methods["gpu"]
    assert "Precision.FP32" in methods["gpu_fp32"]
    assert "Precision.FP16," in methods["gpu_fp16"]
    assert "Backend.OPENCL" in methods["gpu_cl"]
    assert all(f'dump("{name.replace("_", "-")}"' in body for name, body in methods.items())
    swift = (exported / "ios" / "FarmAppTests.swift").read_text()
    methods = dict(re.findall(r"  func test(\w+)\(\) throws \{\n(.*?)\n  \}\n", swift, re.DOTALL))
    assert set(methods) == {"Cpu", "Gpu", "GpuFp32", "GpuFp16"}
    assert "isPrecisionLossAllowed = true" in methods["GpuFp16"]
    assert "isPrecisionLossAllowed = false" in methods["GpuFp32"]
    assert "MetalDelegate" not in methods["Cpu"]


def test_what_the_sources_write_are_fields_of_the_dump_format(exported: Path) -> None:
    fields = {f.name for kind in (Manifest, TensorEntry) for f in dataclasses.fields(kind)}
    kotlin = (exported / "android" / "FarmAppTest.kt").read_text()
    assert set(re.findall(r'\.put\("(\w+)"', kotlin)) <= fields
    swift = (exported / "ios" / "FarmAppTests.swift").read_text()
    for struct, kind in (("Manifest", Manifest), ("Entry", TensorEntry)):
        body = re.search(rf"struct {struct}: Encodable \{{(.*?)\n  \}}", swift, re.DOTALL)
        assert body
        named = set(re.findall(r"^    let (\w+)", body[1], re.MULTILINE))
        assert named <= {f.name for f in dataclasses.fields(kind)}
        assert {"tensors"} <= named or {"name", "set", "role", "dtype", "shape", "file"} <= named


def test_what_the_sources_read_is_in_the_golden_description(exported: Path) -> None:
    about = json.loads((exported / "golden" / "test.json").read_text())
    arguments = "additionalTestOutputDir"  # the instrumentation's, not ours
    known = {*about, *about["sets"][0], *about["sets"][0]["inputs"][0], *about["outputs"][0]}
    kotlin = (exported / "android" / "FarmAppTest.kt").read_text()
    assert set(re.findall(r'get(?:String|Int|JSONArray|JSONObject)\("(\w+)"\)', kotlin)) - {arguments} <= known
    swift = (exported / "ios" / "FarmAppTests.swift").read_text()
    for body in re.findall(r"struct \w+: Decodable \{(.*?)\n  \}", swift, re.DOTALL):
        assert set(re.findall(r"^    let (\w+)", body, re.MULTILINE)) <= known


def test_golden_files_are_what_json_and_npz_say(exported: Path) -> None:
    about = json.loads((exported / "golden" / "test.json").read_text())
    golden = open_tensors(exported / "golden")
    packed = np.load(exported / "golden.npz")
    for one in about["sets"]:
        for described in one["inputs"]:
            data = (exported / "golden" / described["file"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == described["sha256"]
            assert packed[f"{one['name']}/{described['name']}"].tobytes() == data
    assert {t.role for t in golden.tensors} == {"input"}
    model = (exported / "golden" / "model.tflite").read_bytes()
    assert hashlib.sha256(model).hexdigest() == about["model_sha256"]


def app_run(exported: Path, config: str, outputs: dict[tuple[str, str], np.ndarray], dump: Path) -> Path:
    """What the sources do, step by step from the golden files; `outputs` stands for the runtime inside the app."""
    about = json.loads((exported / "golden" / "test.json").read_text())
    dump.mkdir()
    tensors = []
    for s, one in enumerate(about["sets"]):
        for i, described in enumerate(one["inputs"]):
            data = (exported / "golden" / described["file"]).read_bytes()
            (dump / f"in.{s}.{i}.raw").write_bytes(data)
            tensors.append(
                {"name": described["name"], "set": one["name"], "role": "input", "dtype": described["dtype"],
                 "shape": described["shape"], "file": f"in.{s}.{i}.raw", "sha256": described["sha256"]}
            )  # fmt: skip
        for o, described in enumerate(about["outputs"]):
            data = outputs[one["name"], described["name"]].tobytes()
            (dump / f"out.{s}.{o}.raw").write_bytes(data)
            tensors.append(
                {"name": described["name"], "set": one["name"], "role": "output", "dtype": described["dtype"],
                 "shape": described["shape"], "file": f"out.{s}.{o}.raw", "sha256": hashlib.sha256(data).hexdigest()}
            )  # fmt: skip
    manifest = {
        "kind": "farm-tensors", "schema_version": 1, "source": f"Kotlin app test, config {config}",
        "device": "Some Phone, Android 15 (AP3A)", "model_sha256": about["model_sha256"],
        "signature": about["signature"], "delegation": "unknown",
        "latency_ms": {one["name"]: [2.0, 3.0] for one in about["sets"]}, "tensors": tensors,
    }  # fmt: skip
    (dump / "tensors.json").write_text(json.dumps(manifest, indent=1))
    return dump


def reference_outputs(store: RunStore, reference: Reference) -> dict[tuple[str, str], np.ndarray]:
    first = reference.first
    assert first is not None
    names = {o.index: (o.name, o.dtype) for o in first.outputs}
    sets = store.plan.cases[0].input_sets
    return {
        (sets[run.set].name, names[o.index][0]): store.objects.load(o.sha256, names[o.index][1], o.shape)
        for run in first.runs
        for o in run.outputs
    }


def test_a_dump_comes_back_as_the_column_of_a_device(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "app-cache"))
    swept = sweep(
        [exported / "golden" / "model.tflite"], configs=["cpu"], inputs=exported / "golden.npz", out=tmp_path / "runs"
    )
    store = RunStore.open(swept.run_folder)
    outputs = reference_outputs(store, store.references()["model"])
    good = app_run(exported, "gpu", outputs, tmp_path / "gpu")
    bad = app_run(exported, "gpu-fp32", {k: -v for k, v in outputs.items()}, tmp_path / "gpu-fp32")
    common = ["--as-device", "some-phone", "--run", str(swept.run_folder), "--model", "model", "--config"]
    assert farm(["compare", str(good), *common, "gpu"]) == 0
    assert farm(["compare", str(bad), *common, "gpu-fp32"]) == 1
    cells = {c.config: c for c in judge_run(swept.run_folder).cells if c.device == "some-phone"}
    assert (cells["gpu"].verdict, cells["gpu"].process) == ("pass", "app")
    assert cells["gpu"].latency_ms is not None
    assert cells["gpu"].latency_ms.median == 2.5
    assert cells["gpu-fp32"].reasons == ("PRECISION_DEGRADATION",)


def test_what_a_language_cannot_carry_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = graphs.write(tmp_path, "ids64", graphs.elementwise(dtype="int64"))
    assert export(model, tmp_path / "out") == 0
    assert not (tmp_path / "out" / "android").exists()
    assert (tmp_path / "out" / "ios" / "FarmAppTests.swift").is_file()
    assert "LiteRT's Kotlin API does not carry int64" in capsys.readouterr().err
    assert "does not carry int64" in (tmp_path / "out" / "README.md").read_text()


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = graphs.write(tmp_path, "net", graphs.fc_chain())
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("")
    two = graphs.write(tmp_path, "two", graphs.two_signatures())
    state = graphs.write(tmp_path, "state", graphs.resource_variable())
    damaged = graphs.write(tmp_path, "cut", graphs.truncated())
    for path, options, said in (
        (model, ["--out", str(tmp_path / "used")], "is not empty"),
        (two, ["--out", str(tmp_path / "a")], "has 2 signatures"),
        (state, ["--out", str(tmp_path / "b")], "keeps state"),
        (damaged, ["--out", str(tmp_path / "c")], "cannot be tested"),
        (model, ["--out", str(tmp_path / "d"), "--config", "npu"], "no way to ask for it"),
    ):
        assert farm(["export-app-test", str(path), *options]) == 2
        assert said in capsys.readouterr().err


def test_names_of_a_hostile_model_stay_out_of_the_sources(tmp_path: Path) -> None:
    model = graphs.write(tmp_path, "hostile", graphs.hostile_names())
    assert export(model, tmp_path / "out") == 0
    plain = graphs.write(tmp_path, "plain", graphs.fc_chain())
    assert export(plain, tmp_path / "other") == 0
    for name in ("android/FarmAppTest.kt", "ios/FarmAppTests.swift"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
