"""Folders of pictures, WAV, text and arrays become inputs exactly as the spec says; bundles are opened."""

from __future__ import annotations

import sys
import wave
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.cases import Case, ModelRequest, build_cases
from farm.defaults import Limits
from farm.errors import InvalidInput
from farm.objects import Objects
from farm.specs import model_requests
from tests import graphs

PIXELS = np.random.default_rng(2).integers(0, 256, (8, 8, 3)).astype(np.uint8)


def save_picture(path: Path, pixels: np.ndarray) -> Path:
    image = pytest.importorskip("PIL.Image", reason="no Pillow (pip install 'litert-farm[images]')")
    image.fromarray(pixels).save(path)
    return path


def save_wav(path: Path, samples: np.ndarray, *, width: int = 2, rate: int = 16000) -> Path:
    """samples: (frames,) or (frames, channels) whole numbers."""
    raw = (
        samples.astype("<i4").tobytes()
        if width == 3
        else samples.astype({1: "u1", 2: "<i2", 4: "<i4"}[width]).tobytes()
    )
    if width == 3:
        raw = np.frombuffer(raw, np.uint8).reshape(-1, 4)[:, :3].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1] if samples.ndim > 1 else 1)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw)
    return path


def cases(model: Path, spec: str = "", inputs: Sequence[Path] = ()) -> tuple[Case, ...]:
    if spec:
        model.with_name(f"{model.stem}.farm.yaml").write_text(spec)
    return build_cases(model_requests([model], inputs=inputs), Objects(model.parent / "objects"), Limits())


def fed(model: Path, spec: str = "", inputs: Sequence[Path] = ()) -> dict[str, dict[str, np.ndarray]]:
    """Set name → input name → what the model is fed."""
    (case,) = cases(model, spec, inputs)
    objects = Objects(model.parent / "objects")
    assert all(s.origin == "user" for s in case.input_sets)
    return {s.name: {a.name: objects.load(a.sha256, a.dtype, a.shape) for a in s.arrays} for s in case.input_sets}


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    return graphs.write(tmp_path, "cnn", graphs.tiny_cnn(side=8))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    save_picture(folder / "cat.png", PIXELS)
    save_picture(folder / "dog.png", 255 - PIXELS)
    (folder / "notes.md").write_text("not an input")
    return folder


def channels_of(model: Path) -> tuple[str, int]:
    (case,) = cases(model)
    assert case.graph is not None
    (one,) = case.graph.inputs
    return one.name, one.shape[-1]


def test_each_picture_of_a_folder_is_a_set_named_after_it(cnn: Path, pictures: Path) -> None:
    name, channels = channels_of(cnn)
    assert channels == 3
    sets = fed(cnn, "inputs: [pictures]\n")
    assert sorted(sets) == ["cat", "dog"]
    np.testing.assert_allclose(sets["cat"][name][0], PIXELS / np.float32(255), rtol=1e-6)
    np.testing.assert_allclose(sets["dog"][name][0], (255 - PIXELS) / np.float32(255), rtol=1e-6)


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ("{mean: [0.5], std: [0.25]}", (PIXELS / 255 - 0.5) / 0.25),
        ("{mean: [0.1, 0.2, 0.3], std: [1, 2, 4]}", (PIXELS / 255 - [0.1, 0.2, 0.3]) / [1, 2, 4]),
        ("{values: 0..255, mean: [127.5], std: [127.5]}", (PIXELS - 127.5) / 127.5),
        ("{values: 0..255}", PIXELS.astype(float)),
        ("{mean: [0.5]}", PIXELS / 255 - 0.5),
    ],
)
def test_mean_and_std_are_applied_in_the_convention_that_is_named(
    cnn: Path, pictures: Path, rules: str, wanted: np.ndarray
) -> None:
    (name, _) = channels_of(cnn)
    sets = fed(cnn, f"inputs: [pictures/cat.png]\npreprocess: {{'*': {rules}}}\n")
    np.testing.assert_allclose(sets["cat"][name][0], wanted, rtol=1e-5, atol=1e-6)


def test_a_picture_of_another_size_is_resized_to_the_input(cnn: Path, tmp_path: Path) -> None:
    flat = np.full((30, 20, 3), 51, np.uint8)
    sets = fed(cnn, inputs=[save_picture(tmp_path / "big.png", flat)])
    (array,) = sets["big"].values()
    assert array.shape == (1, 8, 8, 3)
    np.testing.assert_allclose(array, 0.2, rtol=1e-6)


def test_a_resize_that_does_not_fit_the_input_is_refused(cnn: Path, pictures: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has shape \[1, 16, 16, 3\]"):
        cases(cnn, "inputs: [pictures/cat.png]\npreprocess: {'*': {resize: [16, 16]}}\n")


def test_a_wrong_layout_dtype_or_number_of_means_is_refused(cnn: Path, pictures: Path) -> None:
    for rules, said in (
        ("{layout: nchw}", "has 1, 3 or 4 channels"),
        ("{dtype: uint8}", "is uint8"),
        ("{mean: [1, 2]}", "'mean' has 2 numbers for 3 channel"),
    ):
        with pytest.raises(InvalidInput, match=said):
            cases(cnn, f"inputs: [pictures/cat.png]\npreprocess: {{'*': {rules}}}\n")


def test_a_model_that_wants_channels_first_gets_them_first(tmp_path: Path) -> None:
    model = graphs.write(tmp_path, "first", graphs.elementwise(shape=(1, 3, 8, 8)))
    sets = fed(model, inputs=[save_picture(tmp_path / "cat.png", PIXELS)])
    (array,) = sets["cat"].values()
    np.testing.assert_allclose(array[0], np.moveaxis(PIXELS, -1, 0) / np.float32(255), rtol=1e-6)


def test_the_recipe_says_how_a_set_was_made(cnn: Path, pictures: Path) -> None:
    (case,) = cases(cnn, "inputs: [pictures]\npreprocess: {'*': {mean: [0.5], std: [0.25]}}\n")
    (array,) = case.input_sets[0].arrays
    assert "cat/" in array.recipe
    assert "8x8, nhwc, values 0..1, mean [0.5], std [0.25]" in array.recipe


def test_a_broken_picture_and_an_unknown_input_name_are_told_together(cnn: Path, pictures: Path) -> None:
    (pictures / "bad.png").write_bytes(b"no picture")
    with pytest.raises(InvalidInput) as refused:
        cases(cnn, "inputs: [pictures]\npreprocess: {nope: {mean: [0.5]}}\n")
    text = str(refused.value)
    assert "bad.png: cannot be read as a picture" in text
    assert "'preprocess' names 'nope', which is no input" in text


def test_without_pillow_the_cure_is_named(cnn: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The one way to see this on a machine that has Pillow: its import fails.
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidInput, match=r"pip install 'litert-farm\[images\]'"):
        cases(cnn, "inputs: [pictures]\n")


def test_a_folder_without_anything_to_read_is_refused(cnn: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="holds no file that farm reads"):
        cases(cnn, inputs=[tmp_path / "empty"])


def test_arrays_are_normalised_by_the_same_rules(cnn: Path, tmp_path: Path) -> None:
    name, _ = channels_of(cnn)
    np.savez(tmp_path / "raw.npz", **{f"one/{name}": PIXELS, f"two/{name}": 255 - PIXELS})  # type: ignore[arg-type]
    sets = fed(cnn, f"inputs: [raw.npz]\npreprocess: {{{name}: {{mean: [0.5], std: [0.25]}}}}\n")
    np.testing.assert_allclose(sets["one"][name][0], (PIXELS / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-6)
    assert sorted(sets) == ["one", "two"]


def test_a_quantised_input_takes_pixels_as_they_are_or_quantises_what_the_spec_normalised(tmp_path: Path) -> None:
    from farm.graph import InputFacts
    from farm.preprocess import _normalised, _typed
    from farm.tflite import Quantization

    facts = InputFacts(
        name="x", tensor=0, dtype="uint8", shape=(1, 8, 8, 3), shape_signature=None,
        quantization=Quantization(scale=(1 / 128,), zero_point=(128,)),
    )  # fmt: skip
    for rule, wanted in (({}, PIXELS), ({"mean": [0.5], "std": [0.5]}, np.rint((PIXELS / 255 * 2 - 1) * 128) + 128)):
        values, how = _normalised(PIXELS.astype(np.float64), facts, rule, tmp_path)
        made = _typed(values, facts, rule, how, direct=not rule)
        np.testing.assert_array_equal(made.array, np.clip(wanted, 0, 255).astype(np.uint8))
    import dataclasses

    signed = dataclasses.replace(facts, dtype="int8")
    values, how = _normalised(PIXELS.astype(np.float64), signed, {}, tmp_path)
    np.testing.assert_array_equal(_typed(values, signed, {}, how, direct=True).array, PIXELS.astype(int) - 128)


# --- sound ------------------------------------------------------------------------------------------------------------


def one_input(model: Path) -> str:
    (case,) = cases(model)
    assert case.graph is not None
    return case.graph.inputs[0].name


@pytest.mark.parametrize(("width", "full"), [(1, 128), (2, 1 << 15), (3, 1 << 23), (4, 1 << 31)])
def test_every_pcm_width_becomes_minus_one_to_one(tmp_path: Path, width: int, full: int) -> None:
    from farm.media import sound

    values = np.array([0, full // 2, -full // 2, full - 1, -full])
    path = save_wav(tmp_path / "a.wav", values + (128 if width == 1 else 0), width=width, rate=8000)
    heard = sound(path)
    assert heard.rate == 8000
    np.testing.assert_allclose(heard.samples[:, 0], values / full, atol=1e-12)


def test_a_sound_is_cut_or_padded_to_the_input_and_says_so(tmp_path: Path) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    name = one_input(model)
    half = np.full(8, 1 << 14)
    save_wav(tmp_path / "short.wav", half)
    save_wav(tmp_path / "stereo.wav", np.stack([np.full(20, 1 << 14), np.zeros(20)], axis=1))
    (short,) = fed(model, inputs=[tmp_path / "short.wav"]).values()
    np.testing.assert_array_equal(short[name][0], [0.5] * 8 + [0] * 8)
    (stereo,) = fed(model, inputs=[tmp_path / "stereo.wav"]).values()
    np.testing.assert_array_equal(stereo[name][0], [0.25] * 16)
    (case,) = cases(model, inputs=[tmp_path / "stereo.wav"])
    assert "mean of 2 channels, first 16 of 20 samples" in case.input_sets[0].arrays[0].recipe


def test_another_sample_rate_than_the_spec_says_is_refused_not_resampled(tmp_path: Path) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    save_wav(tmp_path / "a.wav", np.zeros(16) + 5, rate=44100)
    with pytest.raises(InvalidInput, match="is sampled at 44100 Hz, the spec says 16000"):
        cases(model, "inputs: [a.wav]\npreprocess: {'*': {sample_rate: 16000}}\n")
    (tmp_path / "a.wav").write_bytes(b"RIFFnope")
    with pytest.raises(InvalidInput, match="cannot be read as WAV"):
        cases(model)


# --- text -------------------------------------------------------------------------------------------------------------

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "un", "##believ", "##able", ",", "cafe"]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    return graphs.write(tmp_path, "encoder", graphs.encoder(vocab=100, tokens=8))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, world", [2, 4, 9, 5, 3]),
        ("unbelievable café", [2, 6, 7, 8, 10, 3]),
        ("xyz hello", [2, 1, 4, 3]),
        ("hello " * 20, [2, 4, 4, 4, 4, 4, 4, 3]),
        ("", [2, 3]),
    ],
)
def test_text_becomes_ids_by_wordpiece(tmp_path: Path, text: str, ids: list[int]) -> None:
    from farm.media import tokens

    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(VOCABULARY))
    assert list(tokens(text, vocab, 8).ids) == ids


def test_a_tokenizer_json_of_wordpiece_says_the_same(tmp_path: Path) -> None:
    import json

    from farm.media import tokens

    path = tmp_path / "tokenizer.json"
    vocabulary = {t: i for i, t in enumerate(VOCABULARY)}
    path.write_text(
        json.dumps({"normalizer": {"lowercase": True}, "model": {"type": "WordPiece", "vocab": vocabulary}})
    )
    assert list(tokens("Hello, world", path, 8).ids) == [2, 4, 9, 5, 3]
    path.write_text(json.dumps({"model": {"type": "BPE"}}))
    if "tokenizers" not in sys.modules:
        with pytest.raises(InvalidInput, match="is a BPE tokenizer"):
            tokens("x", path, 8)


def test_text_feeds_ids_and_the_mask_that_belongs_to_them(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "greeting.txt").write_text("hello world\n")
    (case,) = cases(encoder)
    assert case.graph is not None
    names = [f.name for f in case.graph.inputs]
    ids = next(n for n in names if "mask" not in n)
    sets = fed(encoder, f"inputs: [greeting.txt]\npreprocess: {{{ids}: {{tokenizer: vocab.txt}}}}\n")
    assert sets["greeting"][ids].tolist() == [[2, 4, 5, 3, 0, 0, 0, 0]]
    for mask in [n for n in names if "mask" in n]:
        assert sets["greeting"][mask].tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]


def test_text_without_tokenizer_or_with_a_missing_one_is_refused(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "greeting.txt").write_text("hello")
    with pytest.raises(InvalidInput, match="needs a tokenizer"):
        cases(encoder, "inputs: [greeting.txt]\n")
    with pytest.raises(InvalidInput, match=r"there is no tokenizer file 'gone\.txt'"):
        cases(encoder, "inputs: [greeting.txt]\npreprocess: {'*': {tokenizer: gone.txt}}\n")


# --- functions, several inputs ----------------------------------------------------------------------------------------


def test_a_function_makes_the_arrays(cnn: Path, tmp_path: Path) -> None:
    (tmp_path / "own_reader.py").write_text(
        "import numpy as np\n"
        "def read(path, inputs):\n"
        "    ((name, (dtype, shape)),) = inputs.items()\n"
        "    return np.full(shape, float(path.read_text()), dtype)\n"
        "def broken(path, inputs): raise ValueError('cannot')\n"
        "def wrong(path, inputs): return {'nope': np.zeros(1)}\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.value").write_text("0.25")
    sets = fed(cnn, "inputs: [data]\npreprocess: 'own_reader:read'\n")
    ((_, array),) = sets["a"].items()
    assert set(array.ravel()) == {np.float32(0.25)}
    for name, said in (
        ("broken", "raised ValueError: cannot"),
        ("wrong", "names no input"),
        ("gone", "has no function"),
    ):
        with pytest.raises(InvalidInput, match=said):
            cases(cnn, f"inputs: [data]\npreprocess: 'own_reader:{name}'\n")


def test_a_folder_per_set_feeds_inputs_by_file_name(tmp_path: Path) -> None:
    model = graphs.write(tmp_path, "enc", graphs.encoder(vocab=100, tokens=8))
    (case,) = cases(model)
    assert case.graph is not None
    for number, set_name in enumerate(("first", "second")):
        folder = tmp_path / "sets" / set_name
        folder.mkdir(parents=True)
        for f in case.graph.inputs:
            np.save(folder / f"{f.name}.npy", np.full(f.shape, number + 1, f.dtype))
    sets = fed(model, inputs=[tmp_path / "sets"])
    assert {name: {int(a.ravel()[0]) for a in arrays.values()} for name, arrays in sets.items()} == {
        "first": {1},
        "second": {2},
    }
    np.save(tmp_path / "sets" / "second" / "stranger.npy", np.zeros(1))
    with pytest.raises(InvalidInput, match="is named after no input"):
        cases(model, inputs=[tmp_path / "sets"])


# --- bundles ----------------------------------------------------------------------------------------------------------


def bundle(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def build(path: Path, folder: Path, **request: Any) -> tuple[Case, ...]:
    return build_cases([ModelRequest(path=path, **request)], Objects(folder / "objects"), Limits())


def test_a_bundle_of_one_model_goes_by_the_bundles_name(tmp_path: Path) -> None:
    data = graphs.fc_chain()
    (case,) = build(bundle(tmp_path / "app.task", {"model.tflite": data, "labels.txt": b"a\nb"}), tmp_path)
    assert (case.model, case.id) == ("app", "app")
    assert Path(case.model_path).read_bytes() == data
    assert case.input_sets


def test_several_models_and_bundles_in_bundles_are_named(tmp_path: Path) -> None:
    inner = bundle(tmp_path / "inner.task", {"landmarks.tflite": graphs.tiny_cnn(), "readme": b""}).read_bytes()
    path = bundle(
        tmp_path / "hand.task",
        {"detector.tflite": graphs.fc_chain(), "TF_LITE_ENCODER": graphs.sigmoid(), "embed.task": inner},
    )
    assert sorted(c.model for c in build(path, tmp_path)) == [
        "hand~TF_LITE_ENCODER",
        "hand~detector",
        "hand~embed~landmarks",
    ]


def test_a_bundle_without_models_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no \.tflite model"):
        build(bundle(tmp_path / "empty.task", {"labels.txt": b"x"}), tmp_path)
    whole = bundle(tmp_path / "cut.task", {"model.tflite": graphs.fc_chain()})
    whole.write_bytes(whole.read_bytes()[:200])
    with pytest.raises(InvalidInput, match="cannot be opened as a bundle"):
        build(whole, tmp_path)


def test_a_damaged_model_in_a_bundle_is_a_cell_that_says_so(tmp_path: Path) -> None:
    (case,) = build(bundle(tmp_path / "bad.task", {"model.tflite": graphs.truncated()}), tmp_path)
    assert case.invalid is not None
    assert case.model == "bad"


def test_a_media_name_list_matches_what_can_be_read() -> None:
    from farm.cases import MEDIA
    from farm.preprocess import ARRAYS, READABLE

    assert set(MEDIA) == set(READABLE) - set(ARRAYS)
