"""Shapes, signatures, and ops whose layout a delegate must get right."""

from __future__ import annotations

import numpy as np

from tests import graphs
from tests.graphs import Graph, _floats
from tests.kinds.base import k, kind, un


def sigs(order):
    g = Graph()
    a = g.input("a", (1, 2))
    b = g.input("b", (1, 3))
    c = g.op("TANH", [a], [g.tensor("c", (1, 2))])
    d = g.op("EXP", [b], [g.tensor("d", (1, 3))])
    g.signature("z_second", {"a": a, "b": b}, {"c": c})
    g.signature("a_first", {"b": b, "a": a}, {"d": d, "c": c})
    return g.finish([c, d])


@kind()
def one_element() -> bytes:
    return un("TANH", (1, 1, 1, 1))


@kind(fast=True)
def scalar_chain() -> bytes:
    g = Graph()
    x = g.input("x", ())
    return g.finish(
        [g.op("ADD", [g.op("MUL", [x, k(g, "a", 2.0)], [g.tensor("m", ())]), k(g, "b", 1.0)], [g.tensor("y", ())])]
    )


@kind(cpu="error inconclusive", gpu="error unsupported inconclusive", fp32="error unsupported inconclusive")
def empty_output() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    return g.finish([g.op("SLICE", [x, g.ints("b", 0, 0), g.ints("s", 0, 4)], [g.tensor("y", (0, 4))])])


@kind(
    cpu="error pass inconclusive",
    gpu="error unsupported inconclusive pass warn",
    fp32="error unsupported inconclusive pass warn",
)
def one_empty_of_two() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    s = g.op("SLICE", [x, g.ints("b", 0, 0), g.ints("s", 0, 4)], [g.tensor("e", (0, 4))])
    return g.finish([g.op("TANH", [x], [g.tensor("y", (1, 4))]), s])


@kind(fast=True, shapes={"x": (5, 8)})
def dynamic_batch_5() -> bytes:
    return graphs.dynamic_batch(8)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", shapes={"image": (1, 24, 32, 3)})
def dynamic_image() -> bytes:
    return graphs.dynamic_image(1)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def dynamic_seq_reshape() -> bytes:
    g = Graph()
    x = g.input("x", (1, 1, 8), signature=(1, -1, 8))
    y = g.tensor("y", (1, 8), signature=(-1, 8))
    return g.finish(
        [
            g.op(
                "TANH",
                [g.op("RESHAPE", [x, g.ints("to", -1, 8)], [y], newShape=np.int32([-1, 8]))],
                [g.tensor("o", (1, 8), signature=(-1, 8))],
            )
        ]
    )


@kind(gpu="unsupported", fp32="unsupported", fast=True)
def rank5() -> bytes:
    g = Graph()
    x = g.input("x", (1, 2, 3, 4, 5))
    return g.finish([g.op("TANH", [x], [g.tensor("y", (1, 2, 3, 4, 5))])])


@kind(gpu="unsupported", fp32="unsupported")
def transpose_rank6() -> bytes:
    g = Graph()
    x = g.input("x", (1, 2, 2, 2, 3, 2))
    return g.finish([g.op("TRANSPOSE", [x, g.ints("p", 0, 2, 1, 4, 3, 5)], [g.tensor("y", (1, 2, 2, 3, 2, 2))])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def pad_rank3() -> bytes:
    g = Graph()
    x = g.input("x", (1, 5, 7))
    return g.finish([g.op("PAD", [x, g.const("p", np.int32([[0, 0], [1, 2], [0, 0]]))], [g.tensor("y", (1, 8, 7))])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def broadcast_rank2_rank4() -> bytes:
    g = Graph()
    x = g.input("x", (2, 3, 4, 5))
    y = g.input("y", (4, 5))
    return g.finish([g.op("ADD", [x, y], [g.tensor("o", (2, 3, 4, 5))])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def broadcast_outer() -> bytes:
    g = Graph()
    x = g.input("x", (4, 1, 6))
    y = g.input("y", (1, 5, 6))
    return g.finish([g.op("MUL", [x, y], [g.tensor("o", (4, 5, 6))])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def batch3_softmax_axis() -> bytes:
    g = Graph()
    x = g.input("x", (3, 4, 10))
    return g.finish([g.op("SOFTMAX", [x], [g.tensor("o", (3, 4, 10))], beta=1.0)])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def concat_split() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 6))
    a, b, c = (g.tensor(f"s{i}", (1, 4, 4, 2)) for i in range(3))
    g.op("SPLIT", [g.const("ax", np.int32(3)), x], [a, b, c], numSplits=3)
    return g.finish([c, a, b])


@kind(gpu="unsupported", fp32="unsupported")
def strided_slice_neg() -> bytes:
    g = Graph()
    x = g.input("x", (1, 9, 4))
    return g.finish(
        [
            g.op(
                "STRIDED_SLICE",
                [x, g.ints("b", 0, -1, 0), g.ints("e", 1, -10, 4), g.ints("s", 1, -2, 1)],
                [g.tensor("y", (1, 5, 4))],
                beginMask=1 | 4,
                endMask=1 | 2 | 4,
            )
        ]
    )


@kind(
    cpu="error pass inconclusive",
    gpu="error unsupported inconclusive pass warn",
    fp32="error unsupported inconclusive pass warn",
)
def two_signatures_one_subgraph() -> bytes:
    return sigs(0)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def two_signatures_shared_names() -> bytes:
    g = Graph(subgraphs=2)
    x = g.input("x", (1, 8))
    g.sub.outputs = [g.op("TANH", [x], [g.tensor("y", (1, 8))])]
    g.signature("one", {"x": x}, {"y": g.sub.outputs[0]}, 0)
    g.at(1)
    x = g.input("x", (1, 4))
    g.sub.outputs = [g.op("EXP", [x], [g.tensor("y", (1, 4))])]
    g.signature("two", {"x": x}, {"y": g.sub.outputs[0]}, 1)
    return g.finish()


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def no_signature_two_io() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    y = g.input("y", (1, 8))
    return g.finish(
        [g.op("SUB", [x, y], [g.tensor("d", (1, 8))]), g.op("ADD", [x, y], [g.tensor("s", (1, 8))])], signature=None
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def no_signature_empty_names() -> bytes:
    g = Graph()
    x = g.input("", (1, 8))
    return g.finish([g.op("TANH", [x], [g.tensor("", (1, 8))])], signature=None)


@kind(
    cpu="error pass inconclusive",
    gpu="error unsupported inconclusive pass warn",
    fp32="error unsupported inconclusive pass warn",
)
def same_tensor_names() -> bytes:
    g = Graph()
    x = g.input("t", (1, 8))
    return g.finish(
        [g.op("TANH", [x], [g.tensor("t", (1, 8))]), g.op("EXP", [x], [g.tensor("t", (1, 8))])], signature=None
    )


@kind(
    cpu="error pass inconclusive",
    gpu="error unsupported inconclusive pass warn",
    fp32="error unsupported inconclusive pass warn",
)
def signature_subset_inputs() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    y = g.input("y", (1, 4))
    o = g.op("ADD", [x, y], [g.tensor("o", (1, 4))])
    g.signature("s", {"x": x}, {"o": o})
    return g.finish([o])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def depth_to_space() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 16))
    return g.finish([g.op("DEPTH_TO_SPACE", [x], [g.tensor("y", (1, 8, 8, 4))], blockSize=2)])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def resize_bilinear() -> bytes:
    g = Graph()
    x = g.input("x", (1, 6, 6, 3))
    return g.finish(
        [
            g.op(
                "RESIZE_BILINEAR",
                [x, g.ints("s", 13, 13)],
                [g.tensor("y", (1, 13, 13, 3))],
                alignCorners=False,
                halfPixelCenters=True,
                version=3,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def transpose_conv() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 8))
    return g.finish(
        [
            g.op(
                "TRANSPOSE_CONV",
                [g.ints("s", 1, 8, 8, 4), g.const("w", _floats(4, 3, 3, 8)), x],
                [g.tensor("y", (1, 8, 8, 4))],
                padding=0,
                strideW=2,
                strideH=2,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def prelu_hardswish() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 8))
    p = g.op("PRELU", [x, g.const("a", _floats(1, 1, 8))], [g.tensor("p", (1, 4, 4, 8))])
    return g.finish([g.op("HARD_SWISH", [p], [g.tensor("y", (1, 4, 4, 8))])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def conv_dilated_relu6() -> bytes:
    g = Graph()
    x = g.input("x", (1, 12, 12, 4))
    return g.finish(
        [
            g.op(
                "CONV_2D",
                [x, g.const("w", _floats(8, 3, 3, 4)), g.const("b", _floats(8))],
                [g.tensor("y", (1, 12, 12, 8))],
                padding=0,
                strideW=1,
                strideH=1,
                dilationWFactor=2,
                dilationHFactor=2,
                fusedActivationFunction=3,
                version=2,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def clip_unit_map() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8, 8, 2))
    a = g.op("MAXIMUM", [x, k(g, "z", 0.0)], [g.tensor("a", (1, 8, 8, 2))])
    return g.finish([g.op("MINIMUM", [a, k(g, "o", 1.0)], [g.tensor("y", (1, 8, 8, 2))])])
