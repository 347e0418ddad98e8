"""Inputs: natural, type-safe, the same every time; and the user's own, taken only if they fit exactly."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import graphs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.arrays import open_arrays
from farm.errors import InvalidInput
from farm.graph import graph_facts
from farm.input_roles import index_bound, meaning
from farm.inputs import HIDDEN, Inputs, UserInputs, load_user_inputs, make_input_sets, store
from farm.tflite import Model, read_model


def model_of(tmp_path: Path, data: bytes) -> Model:
    return read_model(graphs.write(tmp_path, "m", data))


def made(tmp_path: Path, data: bytes, seed: int = 0, count: int = 2) -> list[Inputs]:
    model = model_of(tmp_path, data)
    return make_input_sets(model, model.signatures[0], graph_facts(model, 0), seed=seed, count=count)


def one_input(dtype: str, shape: tuple[int, ...] = (2, 3), name: str = "x", **more: object) -> bytes:
    g = graphs.Graph()
    g.input(name, shape, dtype, **more)
    return g.finish([g.const("y", np.float32([1]))])


# --- generated ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, kind: str) -> None:
    first, again, other = (made(tmp_path, graphs.KINDS[kind](), seed) for seed in (0, 0, 1))
    assert [a.tobytes() for s in first for a in s.arrays] == [a.tobytes() for s in again for a in s.arrays]
    if kind not in ("empty_input", "string_io"):
        assert [a.tobytes() for s in first for a in s.arrays] != [a.tobytes() for s in other for a in s.arrays]


@pytest.mark.parametrize("kind", sorted(set(graphs.KINDS) - {"empty_input"}))
def test_sets_differ_from_each_other(tmp_path: Path, kind: str) -> None:
    sets = made(tmp_path, graphs.KINDS[kind](), count=3)
    assert len({b"".join(a.tobytes() for a in s.arrays) for s in sets}) == 3 or kind == "stateful_branch"


def test_even_a_single_bool_differs_between_two_sets(tmp_path: Path) -> None:
    for seed in range(8):
        a, b = made(tmp_path, one_input("bool", (1,)), seed)
        assert a.arrays[0].tobytes() != b.arrays[0].tobytes()


@pytest.mark.parametrize(
    ("dtype", "stored", "size"),
    [
        ("float32", "float32", 24), ("float16", "float16", 12), ("float64", "float64", 48), ("bfloat16", "uint16", 12),
        ("int8", "int8", 6), ("uint8", "uint8", 6), ("int16", "int16", 12), ("uint16", "uint16", 12),
        ("int32", "int32", 24), ("uint32", "uint32", 24), ("int64", "int64", 48), ("uint64", "uint64", 48),
        ("bool", "bool", 6),
        ("int4", "uint8", 3), ("int2", "uint8", 2), ("complex64", "complex64", 48),
    ],
)  # fmt: skip
def test_every_dtype_has_its_own_bytes(tmp_path: Path, dtype: str, stored: str, size: int) -> None:
    (array,) = made(tmp_path, one_input(dtype), count=1)[0].arrays
    assert (array.dtype.name, array.nbytes) == (stored, size)


def test_strings_have_tflites_own_layout(tmp_path: Path) -> None:
    (array,) = made(tmp_path, one_input("string", (2,)), count=1)[0].arrays
    raw = array.tobytes()
    assert struct.unpack_from("<4i", raw) == (2, 16, 22, 28)
    assert raw[16:] == b"farm 0farm 1"


def test_what_cannot_be_fed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'handle' has the type resource"):
        made(tmp_path, one_input("resource", (), name="handle"))


def test_a_text_models_inputs_mean_what_their_names_say(tmp_path: Path) -> None:
    sets = made(tmp_path, graphs.encoder(vocab=100, tokens=8))
    for s in sets:
        ids, mask, kinds, positions = s.arrays
        assert ids.min() >= 1
        assert ids.max() < 100
        assert len(set(ids.ravel().tolist())) > 3
        assert sorted(mask.ravel().tolist(), reverse=True) == mask.ravel().tolist()
        assert set(mask.ravel().tolist()) <= {0, 1}
        assert mask.sum() >= 4
        assert set(kinds.ravel().tolist()) <= {0, 1}
        assert positions.ravel().tolist() == list(range(8))
    assert sets[0].arrays[1].sum() > sets[1].arrays[1].sum()


@pytest.mark.parametrize(("vocab", "dtype"), [(3, "int32"), (50, "int32"), (1, "int32"), (7, "int64")])
def test_ids_stay_inside_the_table_they_index(tmp_path: Path, vocab: int, dtype: str) -> None:
    for s in made(tmp_path, graphs.gather_ids(vocab=vocab, tokens=64, dtype=dtype)):
        assert s.arrays[0].min() >= 0
        assert s.arrays[0].max() < vocab


def test_the_smallest_of_several_tables_bounds_the_ids(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("n", (4,), "int64")
    c = g.op("CAST", [x], [g.tensor("c", (4,), "int32")])
    big = g.op("GATHER", [g.const("big", np.zeros((90, 2), np.float32)), c], [g.tensor("b", (4, 2))], axis=0)
    wide = g.op("GATHER", [g.const("wide", np.zeros((2, 30), np.float32)), c], [g.tensor("w", (2, 4))], axis=1)
    g.op("NEG", [wide], [g.tensor("z", (2, 4))])
    assert index_bound(model_of(tmp_path, g.finish([big])), 0, 0) == 30


def test_a_constant_added_to_ids_lowers_their_bound_and_wrapping_does_not(tmp_path: Path) -> None:
    def build(wrapped: bool) -> bytes:
        g = graphs.Graph()
        x = g.input("n", (4,), "int32")
        a = g.op("ADD", [x, g.const("k", np.int32(20 if wrapped else 2))], [g.tensor("a", (4,), "int32")])
        if wrapped:
            neg = g.op("LESS", [x, g.const("zero", np.int32(0))], [g.tensor("neg", (4,), "bool")])
            a = g.op("SELECT_V2", [neg, a, x], [g.tensor("s", (4,), "int32")])
        return g.finish(
            [g.op("GATHER", [g.const("t", np.zeros((20, 2), np.float32)), a], [g.tensor("y", (4, 2))], axis=0)]
        )

    assert index_bound(model_of(tmp_path, build(False)), 0, 0) == 18
    assert index_bound(model_of(tmp_path, build(True)), 0, 0) == 20


def test_ids_are_followed_into_called_subgraphs(tmp_path: Path) -> None:
    g = graphs.Graph(subgraphs=2)
    c, x = g.input("c", (1,), "bool"), g.input("n", (4,), "int32")
    y = g.op("IF", [c, x], [g.tensor("y", (4, 2))], thenSubgraphIndex=1, elseSubgraphIndex=1)
    g.signature("s", {"c": c, "n": x}, {"y": y}, 0)
    g.sub.outputs = [y]
    g.at(1)
    x = g.input("n", (4,), "int32")
    g.sub.outputs = [g.op("GATHER", [g.const("t", np.zeros((9, 2), np.float32)), x], [g.tensor("y", (4, 2))], axis=0)]
    assert index_bound(model_of(tmp_path, g.finish()), 0, 1) == 9


@pytest.mark.parametrize("name", ["attention_mask", "inputMask", "serving_default_padding_mask:0", "mask"])
def test_masks_are_known_by_name_in_any_dtype(tmp_path: Path, name: str) -> None:
    for dtype in ("int32", "int64", "float32", "bool"):
        (array,) = made(tmp_path, one_input(dtype, (1, 16), name=name), count=1)[0].arrays
        assert array.astype(int).ravel().tolist() == [1] * 14 + [0] * 2


def test_a_float_mask_that_is_added_hides_with_a_finite_fp16_number(tmp_path: Path) -> None:
    g = graphs.Graph()
    x, m = g.input("scores", (1, 8)), g.input("mask", (1, 8))
    data = g.finish([g.op("ADD", [x, m], [g.tensor("y", (1, 8))])])
    (_, mask) = made(tmp_path, data, count=1)[0].arrays
    assert set(mask.ravel().tolist()) == {0.0, HIDDEN}
    assert np.isfinite(mask.astype(np.float16)).all()


@pytest.mark.parametrize("shape", [(1, 32, 48, 3), (1, 3, 32, 48), (2, 16, 16, 1)])
def test_images_fill_the_unit_range(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (array,) = made(tmp_path, one_input("float32", shape), count=1)[0].arrays
    assert array.min() >= 0
    assert array.max() <= 1
    assert array.max() - array.min() > 0.5


def test_images_are_normalised_as_the_metadata_say(tmp_path: Path) -> None:
    g = graphs.Graph()
    g.metadata("TFLITE_METADATA", graphs.normalisation(127.5, 127.5))
    x = g.input("image", (1, 16, 16, 3))
    (array,) = made(tmp_path, g.finish([g.op("TANH", [x], [g.tensor("y", (1, 16, 16, 3))])]), count=1)[0].arrays
    assert array.min() < -0.3
    assert array.max() > 0.3
    assert abs(array).max() <= 1


def test_a_uint8_image_uses_its_whole_range(tmp_path: Path) -> None:
    for data in (one_input("uint8", (1, 32, 32, 3)), one_input("uint8", (1, 32, 32, 3), scale=1 / 128, zero_point=128)):
        (array,) = made(tmp_path, data, count=1)[0].arrays
        assert array.min() < 64
        assert array.max() > 192


def test_a_long_row_is_sound(tmp_path: Path) -> None:
    for shape in ((1, 16000), (16000,), (1, 16000, 1)):
        (array,) = made(tmp_path, one_input("float32", shape), count=1)[0].arrays
        assert array.shape == shape
        assert 0.1 < abs(array).max() < 1
        # Neighbouring samples are alike, as in sound and unlike in noise.
        assert np.corrcoef(array.ravel()[1:], array.ravel()[:-1])[0, 1] > 0.5


def test_quantised_inputs_cover_the_range_they_were_quantised_to(tmp_path: Path) -> None:
    (array,) = made(tmp_path, one_input("int8", (1, 4000), scale=0.1, zero_point=-128), count=1)[0].arrays
    real = 0.1 * (array.astype(float) + 128)
    assert abs(real.mean() - 12.75) < 0.5
    assert abs(real.std() - 4.25) < 0.3


@given(
    st.sampled_from(["int8", "uint8", "int16", "int32"]),
    st.floats(1e-6, 10.0),
    st.integers(-128, 127),
    st.floats(-1e6, 1e6),
)
@settings(max_examples=60)
def test_quantising_never_wraps(dtype: str, scale: float, zero: int, value: float) -> None:
    from farm.graph import InputFacts
    from farm.tflite import Quantization

    q = Quantization(scale=(scale,), zero_point=(zero,))
    facts = InputFacts(name="x", tensor=0, dtype=dtype, shape=(1,), shape_signature=None, quantization=q)
    info = np.iinfo(dtype)
    expected = min(max(float(np.rint(value / scale)) + zero, info.min), info.max)
    assert float(store(facts, np.array([value]))[0]) == expected


def test_bfloat16_rounds_to_nearest_even(tmp_path: Path) -> None:
    model = model_of(tmp_path, one_input("bfloat16", (4,)))
    (facts,) = graph_facts(model, 0).inputs
    # 1 + 2^-8 lies midway between 1 and 1 + 2^-7, and 1 is even; 1 + 3·2^-8 goes up.
    bits = store(facts, np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -2.5]))
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC020]


def test_packed_int4_has_the_first_element_low(tmp_path: Path) -> None:
    model = model_of(tmp_path, one_input("int4", (3,)))
    (facts,) = graph_facts(model, 0).inputs
    assert store(facts, np.array([1, -2, 5])).tolist() == [0xE1, 0x05]


def test_a_role_needs_no_walk_through_a_residual_net(tmp_path: Path) -> None:
    g = graphs.Graph()
    t = g.input("x", (1, 4))
    for i in range(2000):
        t = g.op("ADD", [t, t], [g.tensor(f"t{i}", (1, 4))])
    model = model_of(tmp_path, g.finish([t]))
    facts = graph_facts(model, 0)
    assert meaning(model, model.signatures[0], facts.inputs[0]).role == "values"


# --- the user's own -------------------------------------------------------------------------------------------------


def fitted(tmp_path: Path, data: bytes, signature: int = 0, **arrays: np.ndarray) -> UserInputs:
    np.savez(tmp_path / "in.npz", **arrays)
    model = model_of(tmp_path, data)
    return load_user_inputs(tmp_path / "in.npz", model, model.signatures[signature], graph_facts(model, signature))


def said(found: UserInputs) -> str:
    return "\n".join(map(str, found.problems))


X = np.arange(8, dtype=np.float32).reshape(1, 8)


def test_names_and_positions_both_work(tmp_path: Path) -> None:
    for key in ("x", "in0"):
        found = fitted(tmp_path, graphs.no_signature(), **{key: X})
        assert found.sets[0].arrays[0].tobytes() == X.tobytes()
        assert found.sets[0].recipes == (f"{key} of in.npz",)


def test_positions_count_in_subgraph_order(tmp_path: Path) -> None:
    a, b = np.float32([[1, 2]]), np.float32([[1, 2, 3]])
    found = fitted(tmp_path, graphs.reordered_signature(), in0=a, in1=b)
    assert [x.shape for x in found.sets[0].arrays] == [(1, 2), (1, 3)]
    assert "shape" in said(fitted(tmp_path, graphs.reordered_signature(), in0=b, in1=a))


def test_several_sets_are_named_before_the_slash(tmp_path: Path) -> None:
    found = fitted(tmp_path, graphs.no_signature(), **{"cat/x": X, "dog/in0": X + 1})
    assert [s.name for s in found.sets] == ["cat", "dog"]
    assert found.sets[1].arrays[0][0, 0] == 1


def test_an_input_name_with_a_slash_is_still_a_name(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("a/b", (1, 8))
    data = g.finish([g.op("TANH", [x], [g.tensor("y", (1, 8))])])
    assert len(fitted(tmp_path, data, **{"a/b": X}).sets) == 1
    assert [s.name for s in fitted(tmp_path, data, **{"p/q/a/b": X, "r/a/b": X}).sets] == ["p/q", "r"]


def test_all_problems_are_said_at_once_with_their_cures(tmp_path: Path) -> None:
    found = fitted(
        tmp_path, graphs.encoder(), input_ids=np.zeros((1, 8), np.float64), attention_mask=np.zeros((1, 9), np.int32)
    )
    text = said(found)
    assert "'input_ids' is float64; input 'input_ids' takes int32" in text
    assert ".astype('int32')" in text
    assert "'attention_mask' has shape [1, 9]" in text
    assert "input 'token_type_ids' is missing" in text
    assert "input 'position_ids' is missing" in text
    assert found.sets == ()


def test_a_shape_the_model_could_take_names_the_option_to_give(tmp_path: Path) -> None:
    found = fitted(tmp_path, graphs.dynamic_image(), image=np.zeros((1, 8, 6, 3), np.float32))
    assert "--input-shape image=1,8,6,3" in said(found)
    assert "--input-shape" not in said(fitted(tmp_path, graphs.no_signature(), x=np.zeros((2, 8), np.float32)))


def test_one_input_given_twice_is_refused(tmp_path: Path) -> None:
    assert "both give input 'x'" in said(fitted(tmp_path, graphs.no_signature(), x=X, in0=X))


def test_doubtful_values_are_warned_about_and_kept(tmp_path: Path) -> None:
    bad = X.copy()
    bad[0, :3] = [np.nan, np.inf, -np.inf]
    found = fitted(tmp_path, graphs.no_signature(), x=bad)
    assert found.warnings == ("'x' of in.npz holds 1 NaN and 2 Inf; the reference will hardly be finite",)
    assert found.sets
    found = fitted(tmp_path, graphs.gather_ids(vocab=50, tokens=3), ids=np.int32([[0, 50, -1]]))
    assert found.warnings == ("'ids' of in.npz holds 2 ids outside 0..49, the table input 'ids' looks up",)
    assert found.sets


def test_scalars_and_empty_arrays_keep_their_shape(tmp_path: Path) -> None:
    assert fitted(tmp_path, graphs.scalar_io(), x=np.float32(3)).sets[0].arrays[0].shape == ()
    assert "shape" in said(fitted(tmp_path, graphs.scalar_io(), x=np.float32([3])))
    assert fitted(tmp_path, graphs.empty_input(), x=np.zeros((0, 4), np.float32)).sets[0].arrays[0].nbytes == 0


def test_big_endian_and_fortran_order_become_plain_bytes(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (2, 3))
    data = g.finish([g.op("TANH", [x], [g.tensor("y", (2, 3))])])
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    for odd in (plain.astype(">f4"), np.asfortranarray(plain)):
        assert fitted(tmp_path, data, x=odd).sets[0].arrays[0].tobytes() == plain.tobytes()


def test_int4_is_given_as_int8_and_packed(tmp_path: Path) -> None:
    found = fitted(tmp_path, one_input("int4", (4,)), x=np.int8([1, -2, 5, -8]))
    assert found.sets[0].arrays[0].tolist() == [0xE1, 0x85]


# --- files ----------------------------------------------------------------------------------------------------------


def npz_with(header: bytes, body: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body)
    return out.getvalue()


def pickled() -> bytes:
    out = io.BytesIO()
    np.savez(out, x=np.array([{"a": 1}], dtype=object))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"not a zip", "cannot be read"),
        (pickled(), "Python objects"),
        (npz_with(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n", b"1234"), "promises"),
        (
            npz_with(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", bytes(4)),
            "promises 8 bytes but holds 4",
        ),
        (npz_with(b"__import__('os').abort()\n", b""), "cannot be read"),
        (npz_with(b"", b""), "cannot be read"),
    ],
)
def test_a_bad_npz_is_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=words) as e:
        open_arrays(path)
    assert len(e.value.problems) == 1


def test_an_npz_cut_short_is_one_sentence(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", x=np.random.RandomState(0).rand(1000))
    whole = (tmp_path / "whole.npz").read_bytes()
    for end in range(1, len(whole), len(whole) // 25):
        (tmp_path / "cut.npz").write_bytes(whole[:end])
        with pytest.raises(InvalidInput, match="cannot be read"):
            open_arrays(tmp_path / "cut.npz")


def test_flipped_bits_in_an_npz_never_give_other_errors(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", x=np.random.RandomState(0).rand(100))
    whole = (tmp_path / "whole.npz").read_bytes()
    rng = np.random.RandomState(3)
    for _ in range(200):
        broken = bytearray(whole)
        broken[rng.randint(len(whole))] ^= 1 << rng.randint(8)
        (tmp_path / "b.npz").write_bytes(broken)
        try:
            for array in open_arrays(tmp_path / "b.npz").values():
                array.read()
        except InvalidInput:
            pass


def safetensors(header: object, body: bytes, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def test_safetensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "x": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [1], "data_offsets": [8, 10]},
    }
    path.write_bytes(safetensors(header, np.float32([1, 2]).tobytes() + b"\x80\x3f"))
    arrays = open_arrays(path)
    assert arrays.keys() == {"x", "b"}
    assert arrays["x"].read().tolist() == [[1, 2]]
    assert (arrays["b"].dtype, arrays["b"].read().tolist()) == ("bfloat16", [0x3F80])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "promises"),
        (b"\xff" * 8, "promises"),
        (struct.pack("<Q", 4) + b"nope", "cannot be read"),
        (safetensors([1], b""), "not a JSON object"),
        (safetensors({"x": 3}, b""), "malformed"),
        (safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, bytes(4)), "outside the file"),
        (safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, bytes(4)), "outside the file"),
        (safetensors({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}, bytes(4)), "not float32 of shape"),
        (safetensors({"x": {"dtype": "F8", "shape": [4], "data_offsets": [0, 4]}}, bytes(4)), "unknown dtype"),
        (struct.pack("<Q", 100000) + b"[" * 100000, "cannot be read"),
    ],
)
def test_a_bad_safetensors_is_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        open_arrays(path)


def test_other_files_and_missing_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"neither \.npz nor \.safetensors"):
        open_arrays(tmp_path / "x.pkl")
    with pytest.raises(InvalidInput, match="no such file"):
        open_arrays(tmp_path / "x.npz")
