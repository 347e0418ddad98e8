"""Graph facts: what judging must know of each output, read from small graphs whose answer is plain."""

from __future__ import annotations

import struct
from pathlib import Path

import graphs
import numpy as np
import pytest

from farm.graph import GraphFacts, InputFacts, OutputFacts, graph_facts
from farm.tflite import read_model


def facts_of(tmp_path: Path, data: bytes, signature: int = 0, **shapes: tuple[int, ...]) -> GraphFacts:
    return graph_facts(read_model(graphs.write(tmp_path, "m", data)), signature, shapes or None)


def output_of(tmp_path: Path, data: bytes, position: int = 0) -> OutputFacts:
    return facts_of(tmp_path, data).outputs[position]


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_every_kind_has_facts_for_each_of_its_outputs(tmp_path: Path, kind: str) -> None:
    model = read_model(graphs.write(tmp_path, "m", graphs.KINDS[kind]()))
    for s in model.signatures:
        facts = graph_facts(model, s.index)
        assert [o.name for o in facts.outputs] == [n for n, _ in s.outputs]
        assert [i.name for i in facts.inputs] == [n for n, _ in s.inputs]
        assert facts.op_count == sum(facts.op_histogram.values())


def test_tail_names_the_last_ops_last_first(tmp_path: Path) -> None:
    expected = ("SOFTMAX", "FULLY_CONNECTED", "RESHAPE", "MAX_POOL_2D", "CONV_2D")
    assert output_of(tmp_path, graphs.tiny_cnn()).tail == expected


def test_outputs_nobody_computes_are_told_apart(tmp_path: Path) -> None:
    assert output_of(tmp_path, graphs.no_operators()).unwritten
    y, ghost = facts_of(tmp_path, graphs.unwritten_output()).outputs
    assert (y.unwritten, ghost.unwritten) == (False, True)
    same, y, again = facts_of(tmp_path, graphs.passthrough()).outputs
    assert (same.alias_of, y.alias_of, again.alias_of) == ("input:x", None, "output:y")
    y, const = facts_of(tmp_path, graphs.constant_output()).outputs
    assert (y.constant, const.constant) == (False, True)
    assert (y.depends_on_inputs, const.depends_on_inputs) == (True, False)
    assert not const.unwritten


def test_the_shape_of_an_input_is_not_its_values(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (2, 3))
    assert not output_of(tmp_path, g.finish([g.op("SHAPE", [x], [g.tensor("y", (2,), "int32")])])).depends_on_inputs


def test_ops_that_draw_random_numbers_are_listed(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, graphs.random_uniform())
    assert facts.random_ops == ("RANDOM_UNIFORM",)
    assert facts.outputs[0].depends_on_inputs


@pytest.mark.parametrize("kind", ["resource_variable", "stateful_branch"])
def test_state_is_found_also_inside_called_subgraphs(tmp_path: Path, kind: str) -> None:
    facts = facts_of(tmp_path, graphs.KINDS[kind]())
    assert facts.stateful
    assert facts.outputs[0].depends_on_inputs


def test_state_read_before_it_is_written_depends_on_earlier_inputs(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1,))
    h = g.op("VAR_HANDLE", [], [g.tensor("h", (), "resource")], container="", sharedName="v")
    r = g.op("READ_VARIABLE", [h], [g.tensor("r", (1,))])
    g.op("ASSIGN_VARIABLE", [h, x], [])
    assert output_of(tmp_path, g.finish([r])).depends_on_inputs


def test_variable_tensors_are_state_and_plain_graphs_are_not(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 4))
    v = g.tensor("state", (1, 4), variable=True)
    assert facts_of(tmp_path, g.finish([g.op("ADD", [x, v], [g.tensor("y", (1, 4))])])).stateful
    assert not facts_of(tmp_path, graphs.while_loop()).stateful


def test_only_weights_read_by_the_float_op_itself_are_hybrid(tmp_path: Path) -> None:
    assert facts_of(tmp_path, graphs.dynamic_range_fc()).hybrid_ops == ("FULLY_CONNECTED",)
    assert facts_of(tmp_path, graphs.int4_fc()).hybrid_ops == ("FULLY_CONNECTED",)
    weight_only = facts_of(tmp_path, graphs.weight_only_fc())
    assert (weight_only.hybrid_ops, weight_only.densify) == ((), True)
    assert facts_of(tmp_path, graphs.quantised_fc()).hybrid_ops == ()
    assert facts_of(tmp_path, graphs.fc_chain()).hybrid_ops == ()


def test_an_int8_embedding_table_is_exact_and_not_hybrid(tmp_path: Path) -> None:
    g = graphs.Graph()
    ids = g.input("ids", (3,), "int32")
    table = g.const("table", np.ones((8, 4), np.int8), scale=0.1, zero_point=0)
    data = g.finish([g.op("EMBEDDING_LOOKUP", [ids, table], [g.tensor("y", (3, 4))])])
    assert facts_of(tmp_path, data).hybrid_ops == ()


@pytest.mark.parametrize(("value", "near"), [(-1e9, False), (-3e38, True), (-np.inf, True), (65504.0, False)])
def test_only_constants_that_can_become_infinite_count_as_such(tmp_path: Path, value: float, near: bool) -> None:
    assert facts_of(tmp_path, graphs.masked_attention(low=value)).inf_constants is near


def test_constants_beyond_fp16_are_named_with_op_and_tensor(tmp_path: Path) -> None:
    big, small, fine = (facts_of(tmp_path, graphs.square_scaled((k,), (1.0,))).fp16_hazards for k in (1e5, 1e-9, 0.5))
    assert big == ("constant 'before0' of op 0 (MUL): |100000| is above 65504, the largest FP16 number",)
    assert small == ("constant 'before0' of op 0 (MUL): |1e-09| is below 2^-24, the smallest FP16 number",)
    assert fine == ()


def test_a_stray_tiny_weight_is_no_hazard_and_nan_is_none_either(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 3))
    data = g.finish([g.op("MUL", [x, g.const("k", np.float32([1, 1e-9, np.nan]))], [g.tensor("y", (1, 3))])])
    assert facts_of(tmp_path, data).fp16_hazards == ()


def test_custom_ops_are_listed_by_code(tmp_path: Path) -> None:
    assert facts_of(tmp_path, graphs.custom_op("Vendor")).custom_ops == ("Vendor",)


# --- kinds ----------------------------------------------------------------------------------------------------------


def test_what_values_last_went_through(tmp_path: Path) -> None:
    found = {
        name: (o.activation, o.class_axis)
        for name, data in {
            "softmax": graphs.tiny_cnn(),
            "int8 softmax": graphs.quantised_softmax(),
            "sigmoid": graphs.sigmoid(),
            "clip by op": graphs.clip_unit(relu=True),
            "clip by min and max": graphs.clip_unit(),
            "none": graphs.fc_chain(),
        }.items()
        for o in facts_of(tmp_path, data).outputs
    }
    assert found == {
        "softmax": ("SOFTMAX", 1),
        "int8 softmax": ("SOFTMAX", 1),
        "sigmoid": ("LOGISTIC", 3),
        "clip by op": ("CLIP", None),
        "clip by min and max": ("CLIP", None),
        "none": (None, None),
    }


def test_a_quantised_copy_or_reshape_behind_a_softmax_does_not_hide_it(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 10), "int8", scale=0.1)
    p = g.op("SOFTMAX", [x], [g.tensor("p", (1, 10), "int8", scale=1 / 256, zero_point=-128)], beta=1.0)
    u = g.op("QUANTIZE", [p], [g.tensor("u", (1, 10), "uint8", scale=1 / 256)])
    r = g.op("RESHAPE", [u, g.ints("to", 10)], [g.tensor("y", (10,), "uint8", scale=1 / 256)], newShape=np.int32([10]))
    o = output_of(tmp_path, g.finish([r]))
    assert (o.activation, o.class_axis) == ("SOFTMAX", 0)


def test_a_lone_sigmoid_has_no_class_axis(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 1))
    o = output_of(tmp_path, g.finish([g.op("LOGISTIC", [x], [g.tensor("y", (1, 1))])]))
    assert (o.activation, o.class_axis) == ("LOGISTIC", None)


def test_min_and_max_with_other_limits_are_no_unit_clip(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 4))
    a = g.op("MAXIMUM", [x, g.const("low", np.float32(0))], [g.tensor("a", (1, 4))])
    o = output_of(tmp_path, g.finish([g.op("MINIMUM", [a, g.const("high", np.float32(6))], [g.tensor("y", (1, 4))])]))
    assert (o.clipped_unit, o.activation) == (False, None)


@pytest.mark.parametrize(("second", "expected"), [("LOGISTIC", "LOGISTIC"), ("TANH", None)])
def test_both_ways_of_an_if_must_end_alike(tmp_path: Path, second: str, expected: str | None) -> None:
    g = graphs.Graph(subgraphs=3)
    c, x = g.input("c", (1,), "bool"), g.input("x", (1, 1))
    p = g.op("LOGISTIC", [x], [g.tensor("p", (1, 1))])
    y = g.op("IF", [c, x, p], [g.tensor("y", (1, 1))], thenSubgraphIndex=1, elseSubgraphIndex=2)
    g.sub.outputs = [y]
    g.signature("s", {"c": c, "x": x}, {"y": y}, 0)
    g.at(1)
    g.input("x", (1, 1))
    g.sub.outputs = [g.input("p", (1, 1))]
    g.at(2)
    x = g.input("x", (1, 1))
    g.input("p", (1, 1))
    g.sub.outputs = [g.op(second, [x], [g.tensor("q", (1, 1))])]
    assert output_of(tmp_path, g.finish()).activation == expected


@pytest.mark.parametrize(("classes", "tokens", "logits"), [(1500, 4, True), (1500, 1, False), (900, 4, False)])
def test_logits_need_many_classes_at_more_than_one_position(
    tmp_path: Path, classes: int, tokens: int, logits: bool
) -> None:
    assert output_of(tmp_path, graphs.logits(vocab=classes, tokens=tokens)).logits is logits


def test_a_long_elementwise_row_is_no_distribution(tmp_path: Path) -> None:
    assert not output_of(tmp_path, graphs.elementwise(shape=(4, 2000))).logits


def test_indices_name_the_values_behind_them(tmp_path: Path) -> None:
    vals, idx = facts_of(tmp_path, graphs.topk()).outputs
    assert (vals.index_source, vals.index_values) == (None, None)
    assert (idx.index_source, idx.index_values) == (0, "vals")
    argmax = output_of(tmp_path, graphs.argmax())
    assert (argmax.index_source, argmax.index_values) == (0, None)


def test_argmax_beside_its_own_scores_names_them(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 8))
    t = g.op("TANH", [x], [g.tensor("scores", (1, 8))])
    i = g.op("ARG_MAX", [t, g.ints("axis", 1)], [g.tensor("i", (1,), "int64")], outputType=4)
    c = g.op("CAST", [i], [g.tensor("c", (1,), "int32")])
    assert output_of(tmp_path, g.finish([c, t])).index_values == "scores"


# --- reductions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_large_reductions_are_counted_per_result(tmp_path: Path, op: str) -> None:
    r = output_of(tmp_path, graphs.reduce_long(op)).large_reduction
    assert r is not None
    assert (r.op, r.op_index, r.elements, r.last) == (op, 0, 1 << 17, True)
    then = output_of(tmp_path, graphs.reduce_long(op, then=True)).large_reduction
    assert then is not None
    assert not then.last
    assert output_of(tmp_path, graphs.reduce_sum(op, side=64)).large_reduction is None
    assert output_of(tmp_path, graphs.reduce_sum(op, side=256)).large_reduction is not None


def test_of_several_large_reductions_the_largest_is_named(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (256, 1024, 8))
    a = g.op("MEAN", [x, g.ints("first", 0, 1)], [g.tensor("a", (8,))], keepDims=False)
    y = g.input("y", (1 << 16,))
    b = g.op("SUM", [y, g.ints("all", 0)], [g.tensor("b", (1,))], keepDims=False)
    r = output_of(tmp_path, g.finish([g.op("ADD", [b, a], [g.tensor("z", (8,))])])).large_reduction
    assert r is not None
    assert (r.op, r.elements, r.last) == ("MEAN", 1 << 18, False)


def test_a_reduction_grows_with_the_shape_it_is_fed_with(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 8, 8, 2), signature=(1, -1, -1, 2))
    y = g.op("MEAN", [x, g.ints("axes", 1, 2)], [g.tensor("y", (1, 2))], keepDims=False)
    data = g.finish([y])
    assert output_of(tmp_path, data).large_reduction is None
    r = facts_of(tmp_path, data, x=(1, 256, 256, 2)).outputs[0].large_reduction
    assert r is not None
    assert r.elements == 1 << 16


# --- inputs ---------------------------------------------------------------------------------------------------------


def test_inputs_carry_the_shape_they_are_fed_with(tmp_path: Path) -> None:
    (x,) = facts_of(tmp_path, graphs.dynamic_batch()).inputs
    assert (x.shape, x.shape_signature) == ((1, 8), (-1, 8))
    (x,) = facts_of(tmp_path, graphs.dynamic_batch(), x=(5, 8)).inputs
    assert x.shape == (5, 8)


def _with_metadata(data: bytes) -> bytes:
    g = graphs.Graph()
    g.metadata("TFLITE_METADATA", data)
    x = g.input("image", (1, 8, 8, 3))
    return g.finish([g.op("TANH", [x], [g.tensor("y", (1, 8, 8, 3))])])


def test_normalisation_is_read_from_the_models_metadata(tmp_path: Path) -> None:
    (x,) = facts_of(tmp_path, _with_metadata(graphs.normalisation(127.5, 64.0))).inputs
    assert (x.mean, x.std) == ((127.5,), (64.0,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        graphs.normalisation(1, 0),
        graphs.normalisation(1, 2)[:-20],
        struct.pack("<I4s", 1 << 20, b"M001") + bytes(30),
    ],
)
def test_bad_metadata_are_as_good_as_none(tmp_path: Path, data: bytes) -> None:
    (x,) = facts_of(tmp_path, _with_metadata(data)).inputs
    assert isinstance(x, InputFacts)
    assert (x.mean, x.std) == ((), ())
