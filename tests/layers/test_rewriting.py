"""Exposed and cut models compute what the whole one does; pure views; on this CPU with the real agent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.errors import InvalidInput
from farm.layers.bench import Bench, outputs_of
from farm.layers.cut import cut, island, prefix
from farm.layers.expose import chunks, expose
from farm.layers.study import open_model
from farm.layers.view import View, watch
from farm.objects import Objects
from farm.runner import open_transport
from farm.runtimes import find_runtime, host_platform
from farm.session import Session
from farm.tflite import read_model
from tests import graphs
from tests.layers.kit import case_of, lab_device
from tests.layers.planted import healthy


def view_of(tmp_path: Path, data: bytes, signature: int = 0) -> View:
    path = tmp_path / "m.tflite"
    path.write_bytes(data)
    return watch(read_model(path), signature)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    device = lab_device(None)
    session = Session(
        device=device, transport=open_transport(device), objects=Objects(tmp_path / "objects"), limits=Limits()
    )
    session.open()
    runtime = find_runtime(None, host_platform())
    return Bench(session=session, runtime=runtime, config=CONFIGS["cpu"], folder=tmp_path)


def run(bench: Bench, data: bytes, arrays: list[np.ndarray], signature: int = 0) -> list[np.ndarray]:
    fed = tuple(bench.objects.put_bytes(a.tobytes()) for a in arrays)
    shapes = tuple(a.shape for a in arrays)
    seen = bench.run("test", data, (fed,), signature=signature, shapes=shapes)
    assert seen.failure is None, seen.failure
    assert seen.result is not None
    return [bench.load(o) for o in outputs_of(seen.result)]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 1, shape).astype(np.float32)


def test_own_outputs_come_first_and_unchanged_and_copies_hold_the_inner_values(tmp_path: Path, bench: Bench) -> None:
    view = view_of(tmp_path, graphs.square_scaled((2.0,), (8.0,)))
    inner = [la for la in view.layers.values() if la.own_output is None]
    x = values(1, 16)
    plain = run(bench, bytes(view.model.data), [x])
    exposed = run(bench, expose(view, inner), [x])
    assert np.array_equal(exposed[0], plain[0])
    assert [la.name for la in inner] == ["scaled0", "square"]
    assert np.array_equal(exposed[1], x * 2)
    assert np.array_equal(exposed[2], (x * 2) ** 2)


@pytest.mark.parametrize("kind", ["reordered_signature", "no_signature", "hostile_names", "passthrough", "encoder"])
def test_exposing_keeps_what_signatures_say(tmp_path: Path, kind: str) -> None:
    view = view_of(tmp_path, graphs.KINDS[kind]())
    inner = [la for la in view.layers.values() if la.own_output is None]
    path = tmp_path / "exposed.tflite"
    path.write_bytes(expose(view, inner))
    before, after = view.model.signatures[0], read_model(path).signatures[0]
    assert after.inputs == before.inputs
    assert after.outputs[: len(before.outputs)] == before.outputs
    assert len(after.outputs) == len(before.outputs) + len(inner)


def test_only_the_chosen_signature_is_exposed(tmp_path: Path, bench: Bench) -> None:
    view = view_of(tmp_path, graphs.two_signatures(), signature=1)
    assert [la.name for la in view.layers.values()] == ["p"]
    outputs = run(bench, expose(view, list(view.layers.values())), [values(1, 4)], signature=1)
    assert np.array_equal(outputs[0], outputs[1])


def test_the_same_request_gives_the_same_bytes(tmp_path: Path) -> None:
    view = view_of(tmp_path, graphs.tiny_cnn())
    layers = list(view.layers.values())[:2]
    assert expose(view, layers) == expose(view, layers)
    part = island(view, layers[0].op, frozenset(view.layers), "a")
    assert part is not None
    assert cut(view, [part]).data == cut(view, [part]).data


def test_resized_inputs_are_followed(tmp_path: Path, bench: Bench) -> None:
    view = view_of(tmp_path, graphs.dynamic_batch())
    layers = list(view.layers.values())
    outputs = run(bench, expose(view, layers, resized=True), [values(3, 8)])
    assert outputs[0].shape == outputs[1].shape == (3, 8)
    assert np.array_equal(outputs[0], outputs[1])


def test_constants_and_pure_reshapes_are_not_watched(tmp_path: Path) -> None:
    view = view_of(tmp_path, graphs.weight_only_fc())
    assert [la.op_name for la in view.layers.values()] == ["FULLY_CONNECTED"]
    assert view.skipped == {"made of constants": 1}
    view = view_of(tmp_path, graphs.tiny_cnn())
    assert "RESHAPE" not in [la.op_name for la in view.layers.values()]
    # The reader of a reshape is fed by what was reshaped.
    fc = next(la for la in view.layers.values() if la.op_name == "FULLY_CONNECTED")
    assert [view.layers[t].op_name for t in fc.producers] == ["MAX_POOL_2D"]


def test_chunks_never_outnumber_the_budget(tmp_path: Path) -> None:
    layers = list(view_of(tmp_path, healthy(0)).layers.values())
    total = sum(la.size_bytes for la in layers)
    for budget in (1, 64, 100, 192, 1000, total - 1, total, total + 1):
        made = chunks(layers, budget)
        assert len(made) <= -(-total // budget)
        assert [la for chunk in made for la in chunk] == layers
        assert all(sum(la.size_bytes for la in chunk[:-1]) < budget for chunk in made)


def test_an_island_carries_the_makers_of_its_weights(tmp_path: Path, bench: Bench) -> None:
    view = view_of(tmp_path, graphs.float16_weights())
    (layer,) = view.layers.values()
    part = island(view, layer.op, frozenset(view.layers), "op")
    assert part is not None
    assert [view.graph.ops[i].name for i in part.ops] == ["DEQUANTIZE", "FULLY_CONNECTED"]
    x = values(1, 32)
    assert np.array_equal(run(bench, cut(view, [part]).data, [x])[0], run(bench, bytes(view.model.data), [x])[0])


def test_prefix_and_island_share_a_file_and_agree(tmp_path: Path, bench: Bench) -> None:
    view = view_of(tmp_path, healthy(3))
    layer = list(view.layers.values())[10]
    x = values(1, 16)
    before = [view.layers[t] for t in layer.producers]
    whole = run(bench, expose(view, [*before, layer]), [x])
    inner, wanted = whole[1:-1], whole[-1]
    parts = [prefix(view, layer.op, [layer.tensor], "prefix"), island(view, layer.op, frozenset(view.layers), "op")]
    made = cut(view, [p for p in parts if p is not None])
    fed = {t: a for la, a in zip(before, inner, strict=True) for t in (la.tensor,)}
    arrays = [x if tag == "prefix" else fed[t] for tag, t in made.inputs]
    alone = run(bench, made.data, arrays)
    assert [tag for tag, _ in made.outputs] == ["prefix", "op"]
    for got in alone:
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_cut_models_hold_no_name_of_the_model(tmp_path: Path) -> None:
    view = view_of(tmp_path, graphs.hostile_names())
    (layer,) = view.layers.values()
    part = island(view, layer.op, frozenset(), "op")
    assert part is not None
    data = cut(view, [part]).data
    assert b"etc" not in data
    assert b"sig with space" not in data


def test_models_whose_runs_differ_by_themselves_are_refused(tmp_path: Path) -> None:
    for kind, word in (("resource_variable", "state"), ("random_uniform", "random")):
        case, _ = case_of(tmp_path / kind, graphs.KINDS[kind]())
        with pytest.raises(InvalidInput, match=word):
            open_model(case)
