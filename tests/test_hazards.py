"""What FP16 cannot hold is told from activations, with the op it comes from; a healthy model has nothing to tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.hazards import Hazard, Stats, hazards, merged, stats_of
from farm.objects import Objects
from tests import graphs
from tests.trustkit import case_of, maker, model_of, rng


def told(tmp_path: Path, data: bytes, *sets: tuple[np.ndarray, ...]) -> tuple[Hazard, ...]:
    """Hazards of a model by its own activations, seen on this machine's CPU through the agent."""
    objects = Objects(tmp_path / "objects")
    model = model_of(tmp_path, data)
    references = maker(tmp_path, objects)
    seen = references.activations(case_of(model, objects, *sets))
    references.close()
    return hazards(model, seen)


def kinds(found: tuple[Hazard, ...]) -> list[tuple[str, str, bool]]:
    return [(h.kind, h.op, h.certain) for h in found]


ONES = np.linspace(0.5, 2, 16, dtype=np.float32).reshape(1, 16)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_figures_of_a_tensor_by_hand() -> None:
    got = stats_of(np.float32([0, 1, -70000, 2.0**-26, np.inf, np.nan]))
    assert got == Stats(
        n=6, nonfinite=2, zeros=1, beyond=1, lost=1, max_abs=70000, min_abs=2.0**-26, low=-70000, high=1,
        sum_abs=70001 + 2.0**-26,
    )  # fmt: skip


def test_65504_is_held_and_2_to_the_minus_25_is_lost() -> None:
    assert stats_of(np.float32([65504, -65504])).beyond == 0
    assert stats_of(np.float32([2.0**-25, np.nextafter(np.float32(2.0**-25), np.float32(1))])).lost == 1


@pytest.mark.parametrize("values", [np.zeros((0,), np.float32), np.zeros((), np.float32), np.float32([np.nan])])
def test_empty_zero_dimensional_and_nan_tensors_have_figures(values: np.ndarray) -> None:
    got = stats_of(values)
    assert got.n == values.size
    assert (got.max_abs, got.min_abs, got.low, got.high) == (0, 0, 0, 0)


def test_pieces_and_input_sets_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (rng().standard_normal(1000) * 1e5).astype(np.float32)
    whole = stats_of(x)
    assert merged(stats_of(x[:300]), stats_of(x[300:])).beyond == whole.beyond
    monkeypatch.setattr("farm.hazards.PIECE", 64)
    pieces = stats_of(x)
    assert (pieces.n, pieces.beyond, pieces.max_abs, pieces.low) == (1000, whole.beyond, whole.max_abs, whole.low)


def test_raw_bfloat16_is_widened() -> None:
    raw = (np.float32([1.5, -3]).view(np.uint32) >> 16).astype(np.uint16)
    assert (stats_of(raw).low, stats_of(raw).high) == (-3, 1.5)


# --- whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [graphs.fc_chain(), graphs.square_scaled()])
def test_a_healthy_model_has_no_hazard(tmp_path: Path, data: bytes) -> None:
    assert told(tmp_path, data, (ONES,)) == ()


def test_an_overflowing_product_names_its_op_and_how_many_elements(tmp_path: Path) -> None:
    got, scale = told(tmp_path, graphs.square_scaled((1e4,), (1e-8,)), (ONES,))
    assert (scale.kind, scale.op_index) == ("constant_underflow", 2)
    assert (got.kind, got.op, got.op_index, got.certain) == ("overflow", "MUL", 1, True)
    assert got.elements == 16
    assert got.value == pytest.approx(4e8)
    assert "65504" in got.message


def test_only_the_input_set_that_overflows_counts(tmp_path: Path) -> None:
    small, big = ONES / 100, ONES
    got, _ = told(tmp_path, graphs.square_scaled((1e4,), (1e-8,)), (small,), (big,))
    assert got.elements == 16
    assert "16 of 32" in got.message


def test_an_underflow_is_told_where_it_is_amplified_again(tmp_path: Path) -> None:
    found = told(tmp_path, graphs.square_scaled((1e-5,), (1e10,)), (ONES,))
    assert kinds(found) == [("underflow", "MUL", True), ("constant_overflow", "MUL", True)]
    assert found[0].op_index == 1
    assert "MUL (op 2)" in found[0].message
    assert found[1].value == pytest.approx(1e10)


def test_tiny_values_that_nobody_amplifies_are_not_worth_a_word(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 16))
    tiny = g.op("MUL", [x, x], [g.tensor("tiny", (1, 16))])
    y = g.op("ADD", [tiny, g.const("one", np.float32([1]))], [g.tensor("y", (1, 16))])
    assert told(tmp_path, g.finish([y]), (ONES * np.float32(1e-5),)) == ()


def test_a_loss_that_grows_in_steps_is_told_and_one_beside_a_larger_addend_is_not(tmp_path: Path) -> None:
    def grown(step: str, constant: float) -> tuple[Hazard, ...]:
        g = graphs.Graph()
        x = g.input("x", (1, 16))
        tiny = g.op("MUL", [x, x], [g.tensor("tiny", (1, 16))])
        small = g.op(step, [tiny, g.const("c", np.float32([constant]))], [g.tensor("small", (1, 16))])
        y = g.op("MUL", [small, g.const("up", np.float32([1e4]))], [g.tensor("y", (1, 16))])
        return told(tmp_path, g.finish([y]), (ONES * np.float32(1e-5),))

    (got,) = grown("MUL", 1e4)
    assert (got.kind, got.op_index, got.certain) == ("underflow", 0, True)
    assert "MUL (op 2) makes values up to 0.04 of them" in got.message
    assert grown("ADD", 1e-5) == ()


def test_a_zero_under_a_root_becomes_infinite(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 16))
    tiny = g.op("MUL", [x, x], [g.tensor("tiny", (1, 16))])
    y = g.op("RSQRT", [tiny], [g.tensor("y", (1, 16))])
    (got,) = told(tmp_path, g.finish([y]), (ONES * np.float32(1e-4),))
    assert (got.kind, got.op_index) == ("underflow", 0)
    assert "RSQRT (op 1)" in got.message
    assert "infinite" in got.message


def test_a_sum_past_65504_is_told_as_a_sum(tmp_path: Path) -> None:
    x = np.full((1, 64, 64, 8), 20, np.float32)
    (got,) = told(tmp_path, graphs.reduce_sum("SUM"), (x,))
    assert (got.kind, got.op, got.certain, got.elements) == ("sum_overflow", "SUM", True, 8)
    assert got.value == 20 * 64 * 64


def test_partial_sums_of_a_mean_are_a_risk_and_no_more(tmp_path: Path) -> None:
    (got,) = told(tmp_path, graphs.reduce_sum("MEAN"), (np.full((1, 64, 64, 8), 20, np.float32),))
    assert (got.kind, got.certain) == ("accumulator_risk", False)
    assert got.value == 20 * 64 * 64
    assert told(tmp_path, graphs.reduce_sum("MEAN"), (np.full((1, 64, 64, 8), 2, np.float32),)) == ()


@pytest.mark.parametrize("low", [-1e9, float(np.finfo(np.float32).min)])
def test_a_mask_on_its_way_into_softmax_is_a_mask(tmp_path: Path, low: float) -> None:
    hidden = rng().standard_normal((1, 6, 8)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 0, 0]], np.int32)
    found = told(tmp_path, graphs.masked_attention(low=low), (hidden, mask))
    assert {h.kind for h in found} == {"mask"}
    assert any("SOFTMAX" in h.message and not h.certain for h in found)
    # (1 − mask) · low: where the mask is 1 that is 0 · Inf.
    (spoilt,) = [h for h in found if h.certain]
    assert (spoilt.op, spoilt.tensor_name) == ("MUL", "low")
    assert "4 zeros times Inf are NaN" in spoilt.message


def test_an_additive_mask_of_minus_1e9_alone_is_no_certain_hazard(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 16))
    mask = np.zeros((1, 16), np.float32)
    mask[0, 12:] = -1e9
    s = g.op("ADD", [x, g.const("mask", mask)], [g.tensor("s", (1, 16))])
    found = told(tmp_path, g.finish([g.op("SOFTMAX", [s], [g.tensor("y", (1, 16))], beta=1.0)]), (ONES,))
    assert kinds(found) == [("mask", "ADD", False), ("mask", "ADD", False)]


def test_constants_fp16_rounds_to_zero_are_told(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 16))
    y = g.op("ADD", [x, g.const("eps", np.float32([1e-12]))], [g.tensor("y", (1, 16))])
    (got,) = told(tmp_path, g.finish([y]), (ONES,))
    assert (got.kind, got.tensor_name, got.certain) == ("constant_underflow", "eps", False)
    assert "no longer guards" in got.message


def test_tensors_without_figures_are_not_judged(tmp_path: Path) -> None:
    model = model_of(tmp_path, graphs.square_scaled((1e4,), (1e-8,)))
    assert kinds(hazards(model, {})) == [("constant_underflow", "MUL", True)]


def test_every_real_activation_of_a_cnn_is_seen(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    model = model_of(tmp_path, graphs.tiny_cnn())
    image = rng().random((1, 8, 8, 3)).astype(np.float32)
    references = maker(tmp_path, objects)
    seen = references.activations(case_of(model, objects, (image,)))
    references.close()
    names = {model.subgraphs[0].tensors[t].name for t in seen}
    assert names == {"image", "c", "p", "r", "logits", "scores"}
    scores = seen[model.signatures[0].outputs[0][1]]
    assert scores.sum_abs == pytest.approx(1.0, abs=1e-5)
    assert seen[0].max_abs == pytest.approx(float(image.max()))


# --- where a hazard leads ---------------------------------------------------------------------------------------------


def test_a_hazard_knows_the_outputs_it_leads_to_and_the_layer_it_is_in(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 16))
    big = g.op("MUL", [x, g.const("up", np.float32([5e4]))], [g.tensor("block/big;fused/with/more", (1, 16))])
    tame = g.op("ADD", [x, x], [g.tensor("tame", (1, 16))])
    both = g.op("ADD", [big, tame], [g.tensor("both", (1, 16))])
    found = told(tmp_path, g.finish([tame, both, big]), (ONES,))
    first = found[0]
    assert (first.op, first.tensor_name, first.outputs) == ("MUL", "block/big;fused/with/more", (1, 2))
    assert first.message.startswith("MUL op 0 'block/big': ")


def test_constants_of_called_subgraphs_are_told_with_their_place(tmp_path: Path) -> None:
    """A WHILE's own activations cannot be shown; its constants still speak."""
    assert hazards(model_of(tmp_path, graphs.while_loop(factor=2)), {}) == ()
    model = model_of(tmp_path, graphs.while_loop(factor=1e6), "wide")
    (got,) = hazards(model, {})
    assert (got.kind, got.op, got.op_index, got.outputs) == ("constant_overflow", "MUL", 1, (0,))
    assert got.subgraph == (model.subgraphs[2].name or "subgraph 2")
    assert got.subgraph in got.message


def test_state_may_carry_a_hazard_to_every_output(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 16))
    big = g.op("MUL", [x, g.const("up", np.float32([1e5]))], [g.tensor("big", (1, 16))])
    h = g.op("VAR_HANDLE", [], [g.tensor("h", (), "resource")], container="", sharedName="v")
    g.op("ASSIGN_VARIABLE", [h, big], [])
    y = g.op("READ_VARIABLE", [h], [g.tensor("y", (1, 16))])
    (got,) = hazards(model_of(tmp_path, g.finish([y])), {})
    assert (got.kind, got.outputs) == ("constant_overflow", (0,))
