"""Model specs: found beside the model, checked whole, laid over each other in the right order."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from farm.cases import ModelRequest, Spec
from farm.doors.spec import KINDS
from farm.errors import InvalidInput, Problem
from farm.inventory import load_inventory
from farm.specs import model_requests, spec_path

ROOT = Path(__file__).resolve().parents[1]

FULL = """\
signature: encode
kind: {emb: embedding, mask: mask}
inputs: [a.npz, b.npz]
input_shapes: {ids: [1, 128]}
preprocess:
  image: {resize: [224, 224], layout: nhwc, mean: [0.5], std: [0.25], dtype: float32}
expect: {gpu-fp32: pass, delegation: full, faster_than: cpu}
bands:
  emb: {pass_cosine: 0.995, fail_cosine: {value: 0.98, source: "our recall test of May"}}
assertions:
- {check: "cosine > 0.99", output: emb, message: "the ranking would change"}
- {function: "my_checks.rank:top10", message: "top 10 differ"}
min_cosine_similarity: 0.99
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("net.tflite", "a.npz", "b.npz", "c.npz"):
        (tmp_path / name).write_bytes(b"not read here")
    return tmp_path / "net.tflite"


def beside(model: Path, text: str) -> Path:
    path = spec_path(model)
    path.write_text(text)
    return path


def one(model: Path, text: str) -> Problem:
    beside(model, text)
    with pytest.raises(InvalidInput) as e:
        model_requests([model])
    assert len(e.value.problems) == 1, str(e.value)
    return e.value.problems[0]


def test_a_model_without_spec_asks_for_nothing(model: Path) -> None:
    assert model_requests([model]) == (ModelRequest(path=model),)


def test_whether_a_model_exists_is_not_asked_here(tmp_path: Path) -> None:
    assert model_requests([tmp_path / "none.tflite"])[0].path == tmp_path / "none.tflite"


def test_a_spec_beside_the_model_is_found_and_read_whole(model: Path) -> None:
    beside(model, FULL)
    (request,) = model_requests([str(model)])
    assert request == ModelRequest(
        path=model,
        signature="encode",
        inputs=(model.parent / "a.npz", model.parent / "b.npz"),
        input_shapes={"ids": (1, 128)},
        spec=Spec(
            kinds={"emb": "embedding", "mask": "mask"},
            expect={"gpu-fp32": "pass", "delegation": "full", "faster_than": "cpu"},
            bands={"emb": {"pass_cosine": 0.995, "fail_cosine": 0.98}},
            band_sources={"emb": {"fail_cosine": "our recall test of May"}},
            min_cosine_similarity=0.99,
            preprocess={
                "image": {"resize": [224, 224], "layout": "nhwc", "mean": [0.5], "std": [0.25], "dtype": "float32"}
            },
            assertions=(
                {"check": "cosine > 0.99", "output": "emb", "message": "the ranking would change"},
                {"function": "my_checks.rank:top10", "message": "top 10 differ"},
            ),
            source="net.farm.yaml",
        ),
    )


def test_what_the_command_line_says_wins_over_the_spec(model: Path) -> None:
    beside(model, FULL)
    (request,) = model_requests(
        [model], inputs=(Path("mine.npz"),), input_shapes={"ids": (2, 8), "x": (1,)}, signature="decode"
    )
    assert request.inputs == (Path("mine.npz"),)
    assert request.input_shapes == {"ids": (2, 8), "x": (1,)}
    assert request.signature == "decode"
    assert request.spec.kinds == {"emb": "embedding", "mask": "mask"}


def test_an_inventory_entry_is_laid_over_the_spec_key_by_key(model: Path) -> None:
    beside(model, FULL)
    path = model.parent / "inventory.yaml"
    path.write_text(
        "models:\n"
        "- path: net.tflite\n"
        "  kind: {mask: probability}\n"
        "  inputs: c.npz\n"
        "  bands: {emb: {fail_cosine: 0.9}}\n"
        "  expect: {delegation: partial}\n"
    )
    (request,) = load_inventory(path).models
    assert request.spec.kinds == {"emb": "embedding", "mask": "probability"}
    assert request.spec.expect == {"gpu-fp32": "pass", "delegation": "partial", "faster_than": "cpu"}
    assert request.spec.bands == {"emb": {"pass_cosine": 0.995, "fail_cosine": 0.9}}
    assert request.spec.band_sources == {}, "the source went with the value it was for"
    assert request.spec.source == "net.farm.yaml + inventory.yaml:2"
    assert request.inputs == (model.parent / "c.npz",)
    assert request.signature == "encode"


def test_a_spec_itself_may_be_named_as_the_model(model: Path) -> None:
    spec = beside(model, "kind: {o: mask}\n")
    assert model_requests([spec])[0].path == model
    spec.write_text("path: other/net.tflite\n")
    assert model_requests([spec])[0].path == model.parent / "other" / "net.tflite"


def test_a_spec_may_not_name_another_model_than_the_one_it_lies_beside(model: Path) -> None:
    problem = one(model, "kind: {}\npath: other.tflite\n")
    assert problem.line == 2
    assert "lies beside net.tflite" in problem.message
    beside(model, "path: ./net.tflite\n")
    assert model_requests([model])[0].path == model


def test_an_unknown_kind_lists_the_kinds(model: Path) -> None:
    problem = one(model, "kind:\n  out: logits\n")
    assert (problem.line, problem.message) == (2, "unknown kind 'logits'")
    assert problem.cure == "known: " + ", ".join(KINDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kinds: {o: mask}", "unknown key 'kinds'"),
        ("kind: [mask]", "'kind' must be a mapping (key: value), not a list"),
        ("kind: {o: 3}", "'o' must be text, not a number (3)"),
        ("expect: {gpu-fp64: pass}", "nothing to expect of 'gpu-fp64'"),
        ("expect: {gpu: works}", "unknown verdict 'works' for 'gpu'"),
        ("expect: {delegation: most}", "unknown delegation 'most' for 'delegation'"),
        ("expect: {faster_than: nnapi}", "unknown config 'nnapi' for 'faster_than'"),
        ("bands: {o: {pass_snr_db: high}}", "'pass_snr_db' must be a number, or a number with its source"),
        ("bands: {o: {pass_snr_db: true}}", "'pass_snr_db' must be a number, or a number with its source"),
        ("bands: {o: {pass_snr_db: .inf}}", "'value' must be a finite number"),
        ("bands: {o: {'Pass SNR': 3}}", "unknown limit 'Pass SNR'"),
        ("bands: {mask: {pass_snr_db: 3}}", "the limit 'pass_snr_db' of 'mask' means nothing there"),
        ("kind: {o: ints}\nbands: {o: {pass_snr_db: 3}}", "the limit 'pass_snr_db' of 'o' means nothing there"),
        ("bands: {o: {pass_sn_db: 3}}", "unknown limit 'pass_sn_db'"),
        ("inputs: none.npz", "there is no input file 'none.npz'"),
        ("input_shapes: {x: [1, 0]}", "'x' must be a shape: whole numbers from 1 up"),
        ("input_shapes: {x: [1, 2.0]}", "element 2 of 'x' must be a whole number, not a number (2.0)"),
        ("preprocess: {x: {resize: [3]}}", "'resize'"),
        ("preprocess: {x: {std: [0]}}", "'std' must be greater than 0 everywhere"),
        ("preprocess: nonsense", "'function' must be module:function, not 'nonsense'"),
        ("preprocess: {x: {layout: nwhc}}", "'layout': unknown word 'nwhc'"),
        ("assertions: [{message: m}]", "element 1 of 'assertions' needs either 'check' or 'function', and not both"),
        ("assertions: [{check: cosine > 0}]", "'message' is missing in element 1 of 'assertions'"),
        ("min_cosine_similarity: 1.5", "'min_cosine_similarity' must be 1 at most, not 1.5"),
        ("signature: 3", "'signature' must be text, not a number (3)"),
    ],
)
def test_every_wrong_value_is_refused_in_one_sentence(model: Path, text: str, message: str) -> None:
    problem = one(model, text + "\n")
    assert problem.message.startswith(message)
    assert problem.file == str(spec_path(model))
    assert problem.line == 1


def test_a_preprocess_function_serves_all_inputs(model: Path) -> None:
    beside(model, "preprocess: my_models.audio:spectrogram\n")
    assert model_requests([model])[0].spec.preprocess == {"*": {"function": "my_models.audio:spectrogram"}}


def test_a_key_given_twice_is_refused_though_the_rest_is_right(model: Path) -> None:
    problem = one(model, "kind: {o: mask}\nkind: {o: ints}\n")
    assert (problem.line, problem.message) == (2, "the key 'kind' is given twice (first on line 1)")


def test_problems_of_all_models_are_told_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.farm.yaml").write_text("kind: {o: x, p: y}\nextra: 1\n")
    with pytest.raises(InvalidInput) as e:
        model_requests([tmp_path / "a.tflite", tmp_path / "b.tflite"])
    assert len(e.value.problems) == 6


def test_an_expectation_may_name_a_config_of_the_inventory(model: Path) -> None:
    beside(model, "expect: {mine: pass}\n")
    assert model_requests([model], configs=("cpu", "mine"))[0].spec.expect == {"mine": "pass"}
    with pytest.raises(InvalidInput, match="nothing to expect of 'mine'"):
        model_requests([model])


def test_the_schema_accepts_a_full_spec_and_its_short_forms() -> None:
    import yaml

    schema = json.loads((ROOT / "farm/schemas/model-spec.schema.json").read_text("utf-8"))
    jsonschema.validate(yaml.safe_load(FULL), schema)
    jsonschema.validate({"inputs": "a.npz", "preprocess": "m:f", "bands": {"o": {"pass_snr_db": 3}}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"kind": {"o": "logits"}}, schema)
