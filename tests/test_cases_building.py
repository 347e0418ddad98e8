"""From named models to cases: signatures, ids, input sets; and everything wrong said at once."""

from __future__ import annotations

from pathlib import Path

import graphs
import numpy as np
import pytest

from farm.cases import Case, ModelRequest, Spec, build_cases
from farm.codec import from_json, to_json
from farm.defaults import Limits
from farm.errors import InvalidInput
from farm.objects import Objects


class Bench:
    """A folder for models and inputs, an object store, and the call under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = Objects(folder / "objects")

    def model(self, data: bytes, name: str = "m") -> Path:
        return graphs.write(self.folder, name, data)

    def npz(self, name: str = "in", **arrays: np.ndarray) -> Path:
        path = self.folder / f"{name}.npz"
        np.savez(path, **arrays)
        return path

    def build(self, *requests: ModelRequest | Path, limits: Limits | None = None) -> tuple[Case, ...]:
        whole = [r if isinstance(r, ModelRequest) else ModelRequest(path=r) for r in requests]
        return build_cases(whole, self.objects, limits or Limits())

    def refused(self, *requests: ModelRequest | Path) -> str:
        with pytest.raises(InvalidInput) as e:
            self.build(*requests)
        return str(e.value)

    def arrays(self, case: Case, position: int = 0) -> list[np.ndarray]:
        return [self.objects.load(a.sha256, a.dtype, a.shape) for a in case.input_sets[position].arrays]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_every_kind_becomes_cases_that_survive_the_plan_file(bench: Bench, kind: str) -> None:
    for case in bench.build(bench.model(graphs.KINDS[kind]())):
        assert case.invalid is None
        assert case.graph is not None
        assert len(case.input_sets) == Limits().input_sets
        assert {s.origin for s in case.input_sets} == {"synthetic"}
        for s in case.input_sets:
            assert [(a.name, a.dtype) for a in s.arrays] == [(i.name, i.dtype) for i in case.graph.inputs]
            for a in s.arrays:
                assert bench.objects.path(a.sha256).stat().st_size == a.size_bytes
        assert from_json(to_json(case), Case) == case


def test_every_signature_is_a_case_or_only_the_one_asked_for(bench: Bench) -> None:
    path = bench.model(graphs.two_signatures())
    both = bench.build(path)
    assert [(c.id, c.signature, c.signature_key) for c in both] == [
        ("m~encode", 0, "encode"),
        ("m~decode", 1, "decode"),
    ]
    (one,) = bench.build(ModelRequest(path=path, signature="decode"))
    assert (one.id, one.signature, one.model) == ("m", 1, "m")


def test_an_unknown_signature_is_refused_with_the_list(bench: Bench) -> None:
    text = bench.refused(ModelRequest(path=bench.model(graphs.two_signatures()), signature="embed"))
    assert "no signature 'embed'" in text
    assert "'encode', 'decode'" in text
    text = bench.refused(ModelRequest(path=bench.model(graphs.no_signature()), signature="embed"))
    assert "has no signatures" in text


def test_stems_become_unique_and_the_same_file_is_one_case(bench: Bench) -> None:
    (bench.folder / "a").mkdir()
    (bench.folder / "b").mkdir()
    first = graphs.write(bench.folder / "a", "net", graphs.fc_chain())
    second = graphs.write(bench.folder / "b", "NET", graphs.argmax())
    cases = bench.build(first, second, first, bench.folder / "a" / ".." / "a" / "net.tflite")
    assert [c.model for c in cases] == ["net", "NET~2"]
    assert [c.id for c in cases] == ["net", "NET~2"]


def test_the_same_file_with_two_wishes_is_refused(bench: Bench) -> None:
    path = bench.model(graphs.fc_chain())
    other = ModelRequest(path=path, spec=Spec(kinds={"y": "embedding"}), named_at="inventory.yaml:12")
    text = bench.refused(path, other)
    assert "named twice" in text
    assert "inventory.yaml:12" in text


@pytest.mark.parametrize("stem", ["a b$(id)`x`", "..hidden", "-rf", "ünïcode", "x" * 200, "per%cent"])
def test_ids_are_file_names_whatever_the_stem(bench: Bench, stem: str) -> None:
    (case,) = bench.build(bench.model(graphs.fc_chain(), stem))
    assert set(case.id) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~-")
    assert case.id[0] not in ".-~"
    assert 0 < len(case.id) <= 80
    assert "\n" not in case.model


def test_a_line_break_in_a_path_is_refused(bench: Bench) -> None:
    # The agent reads its job line by line.
    assert "line break" in bench.refused(bench.model(graphs.fc_chain(), "new\nline"))


def test_hostile_signature_names_never_reach_an_id(bench: Bench) -> None:
    g = graphs.Graph(subgraphs=2)
    for i, key in enumerate(("../../etc", "../..;etc")):
        g.at(i)
        x = g.input("x", (1,))
        y = g.op("TANH", [x], [g.tensor("y", (1,))])
        g.sub.outputs = [y]
        g.signature(key, {"x": x}, {"y": y}, i)
    cases = bench.build(bench.model(g.finish()))
    assert [c.id for c in cases] == ["m~etc", "m~etc~2"]
    assert [c.signature_key for c in cases] == ["../../etc", "../..;etc"]


@pytest.mark.parametrize("kind", graphs.DAMAGED)
def test_a_damaged_model_is_one_case_and_the_rest_goes_on(bench: Bench, kind: str) -> None:
    damaged, whole = bench.build(bench.model(graphs.DAMAGED[kind](), "bad"), bench.model(graphs.fc_chain(), "good"))
    assert damaged.invalid is not None
    assert damaged.invalid.startswith("bad.tflite is damaged: ")
    assert (damaged.graph, damaged.input_sets, damaged.signature) == (None, (), 0)
    assert len(damaged.model_sha256) == 64
    assert whole.invalid is None


def test_problems_of_all_models_come_together(bench: Bench) -> None:
    (bench.folder / "empty.tflite").write_bytes(b"")
    text = bench.refused(
        bench.folder / "none.tflite",
        bench.folder / "empty.tflite",
        ModelRequest(path=bench.model(graphs.two_signatures()), signature="nope"),
        ModelRequest(path=bench.model(graphs.fc_chain(), "n"), inputs=(bench.npz(y=np.zeros(3)),)),
    )
    for words in ("no such file", "is empty", "no signature 'nope'", "'y' names no input"):
        assert words in text


# --- user inputs ----------------------------------------------------------------------------------------------------


def test_user_inputs_replace_generated_ones(bench: Bench) -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    path = bench.npz(**{"one/x": x, "two/x": x + 1})
    (case,) = bench.build(ModelRequest(path=bench.model(graphs.no_signature()), inputs=(path,)))
    assert [(s.name, s.origin) for s in case.input_sets] == [("one", "user"), ("two", "user")]
    assert bench.arrays(case, 1)[0].tolist() == (x + 1).tolist()
    assert case.input_sets[0].arrays[0].recipe == "one/x of in.npz"


def test_a_file_serves_the_signatures_it_fits_and_others_get_generated_inputs(bench: Bench) -> None:
    given = ModelRequest(
        path=bench.model(graphs.two_signatures()), inputs=(bench.npz(in0=np.zeros((1, 8), np.float32)),)
    )
    encode, decode = bench.build(given)
    assert [s.origin for s in encode.input_sets] == ["user"]
    assert [s.origin for s in decode.input_sets] == ["synthetic", "synthetic"]


def test_one_file_may_serve_two_signatures_by_name(bench: Bench) -> None:
    path = bench.npz(x=np.zeros((1, 8), np.float32), y=np.zeros((1, 4), np.float32))
    cases = bench.build(ModelRequest(path=bench.model(graphs.two_signatures()), inputs=(path,)))
    assert [c.input_sets[0].origin for c in cases] == ["user", "user"]


def test_a_file_that_fits_no_signature_is_refused(bench: Bench) -> None:
    given = ModelRequest(
        path=bench.model(graphs.two_signatures()), inputs=(bench.npz(in0=np.zeros((1, 9), np.float32)),)
    )
    assert "'in0' has shape [1, 9]" in bench.refused(given)


def test_an_unknown_key_is_refused_even_beside_good_ones(bench: Bench) -> None:
    path = bench.npz(x=np.zeros((1, 8), np.float32), extra=np.zeros(1))
    text = bench.refused(ModelRequest(path=bench.model(graphs.no_signature()), inputs=(path,)))
    assert "'extra' names no input" in text
    assert "inputs: 'x'" in text


def test_two_files_give_sets_with_different_names(bench: Bench) -> None:
    x = np.zeros((1, 8), np.float32)
    (bench.folder / "sub").mkdir()
    files = (bench.npz("day", x=x), bench.npz("sub/day", x=x + 1))
    (case,) = bench.build(ModelRequest(path=bench.model(graphs.no_signature()), inputs=files))
    assert [s.name for s in case.input_sets] == ["day", "day~2"]


def test_doubtful_values_become_warnings_of_the_case(bench: Bench) -> None:
    path = bench.npz(ids=np.int32([[0, 99, 0, 0, 0]]))
    (case,) = bench.build(ModelRequest(path=bench.model(graphs.gather_ids()), inputs=(path,)))
    assert case.warnings == ("'ids' of in.npz holds 1 ids outside 0..49, the table input 'ids' looks up",)


def test_an_unreadable_input_file_is_refused(bench: Bench) -> None:
    (bench.folder / "x.npz").write_bytes(b"PK")
    assert "cannot be read as .npz" in bench.refused(
        ModelRequest(path=bench.model(graphs.no_signature()), inputs=(bench.folder / "x.npz",))
    )


# --- shapes ---------------------------------------------------------------------------------------------------------


def test_a_given_shape_is_fed_and_resized_to(bench: Bench) -> None:
    for name in ("x", "in0"):
        (case,) = bench.build(ModelRequest(path=bench.model(graphs.dynamic_batch()), input_shapes={name: (5, 8)}))
        assert case.shapes == ((5, 8),)
        assert case.input_sets[0].arrays[0].shape == (5, 8)
        assert case.warnings == ()


def test_a_free_dimension_fed_as_stored_is_said(bench: Bench) -> None:
    (case,) = bench.build(bench.model(graphs.dynamic_image()))
    assert case.shapes == (None,)
    assert case.warnings == ("input 'image' may change its shape (1,?,?,3); fed as 1,1,1,3",)


def test_a_free_dimension_stored_as_zero_is_fed_as_one(bench: Bench) -> None:
    g = graphs.Graph()
    x = g.input("x", (0, 4), signature=(-1, 4))
    (case,) = bench.build(bench.model(g.finish([g.op("TANH", [x], [g.tensor("y", (0, 4), signature=(-1, 4))])])))
    assert case.shapes == ((1, 4),)


def test_user_inputs_of_another_shape_need_the_option_and_pass_with_it(bench: Bench) -> None:
    path, inputs = bench.model(graphs.dynamic_batch()), (bench.npz(x=np.zeros((3, 8), np.float32)),)
    assert "--input-shape x=3,8" in bench.refused(ModelRequest(path=path, inputs=inputs))
    (case,) = bench.build(ModelRequest(path=path, inputs=inputs, input_shapes={"x": (3, 8)}))
    assert case.input_sets[0].origin == "user"


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"z": (1, 8)}, "'z', which is no input"),
        ({"in1": (1, 8)}, "'in1', which is no input"),
        ({"x": (8,)}, "has 1 dimensions"),
        ({"x": (0, 8)}, "no usable shape"),
        ({"x": (1 << 20, 1 << 20)}, "no usable shape"),
    ],
)
def test_bad_shapes_are_refused(bench: Bench, shapes: dict[str, tuple[int, ...]], said: str) -> None:
    assert said in bench.refused(ModelRequest(path=bench.model(graphs.dynamic_batch()), input_shapes=shapes))


def test_resizing_a_fixed_dimension_is_a_warning(bench: Bench) -> None:
    (case,) = bench.build(ModelRequest(path=bench.model(graphs.fc_chain()), input_shapes={"x": (2, 16)}))
    assert case.shapes == ((2, 16),)
    assert case.warnings == ("input 'x' is fixed at [1, 16] in the model; feeding [2, 16] may fail",)


def test_an_input_too_large_to_make_ends_in_its_own_case_only(bench: Bench) -> None:
    g = graphs.Graph()
    x = g.input("x", (1 << 20, 1 << 12))
    huge = bench.model(g.finish([g.op("TANH", [x], [g.tensor("y", (1 << 20, 1 << 12))])]), "huge")
    big, small = bench.build(huge, bench.model(graphs.fc_chain()))
    assert big.invalid is not None
    assert "17179869184 bytes" in big.invalid
    assert small.invalid is None


# --- specs ----------------------------------------------------------------------------------------------------------


def test_a_kind_for_an_output_that_is_not_there_is_refused_with_the_list(bench: Bench) -> None:
    path = bench.model(graphs.two_signatures())
    assert "no output 'q'" in bench.refused(
        ModelRequest(path=path, spec=Spec(kinds={"q": "mask"}, source="m.farm.yaml"))
    )
    assert "outputs: 'o', 'p'" in bench.refused(ModelRequest(path=path, spec=Spec(kinds={"q": "mask"})))
    spec = Spec(kinds={"p": "embedding"})
    assert [c.spec for c in bench.build(ModelRequest(path=path, spec=spec))] == [spec, spec]


def test_seed_and_number_of_sets_come_from_the_limits(bench: Bench) -> None:
    path = bench.model(graphs.fc_chain())
    (a,), (b,) = bench.build(path, limits=Limits(input_sets=3)), bench.build(path, limits=Limits(seed=5))
    assert (len(a.input_sets), len(b.input_sets)) == (3, 2)
    assert a.input_sets[0].arrays[0].sha256 != b.input_sets[0].arrays[0].sha256
    assert a.input_sets[0].arrays[0].recipe == "normal(0, 0.5), seed 0, set 0"


def test_shared_cases_are_refused_exactly_where_they_should_be(bench: Bench, shared: Path) -> None:
    import yaml

    for name, case in yaml.safe_load((shared / "cases/cases.yaml").read_text()).items():
        request = ModelRequest(path=shared / "cases" / case["model"], inputs=(shared / "cases" / case["inputs"],))
        try:
            built = bench.build(request)
        except InvalidInput:
            # Empty files and web pages are no models at all: refused as well, whatever their cells would have been.
            assert case["expect"].get("refused_input") or request.path.read_bytes()[4:8] != b"TFL3", name
            continue
        assert not case["expect"].get("refused_input"), name
        if any(c.invalid for c in built):
            assert "error" in case["expect"]["cpu"], name
