"""One small model per op, and ops whose batch, group or axis a delegate must get right."""

from __future__ import annotations

from tests import graphs
from tests.graphs import Graph, _floats
from tests.kinds.base import F, Kind, R, kind, red, two, un

ANY = {"gpu": "pass warn unsupported", "fp32": "pass warn unsupported"}
UNARY = tuple(
    Kind(name=f"op_{op.lower()}", make=lambda op=op: un(op, (2, 5, 7, 9)), **ANY)
    for op in ("ABS", "NEG", "SIGN", "SQUARE", "EXP", "ELU", "RELU6", "RELU_N1_TO_1", "COS", "FLOOR", "CEIL", "ROUND",
               "HARD_SWISH")
)  # fmt: skip
POSITIVE = tuple(
    Kind(
        name=f"op_{op.lower()}", make=lambda op=op: un(op, (1, 6, 8)), **ANY,
        inputs=lambda: two(x=R(3).uniform(0.05, 4, (1, 6, 8)).astype(F)),
    )
    for op in ("SQRT", "RSQRT", "LOG")
)  # fmt: skip


def _binary(op: str, shape: tuple[int, ...] = (1, 4, 6, 8)) -> bytes:
    g = Graph()
    x, y = g.input("x", shape), g.input("y", shape)
    return g.finish([g.op(op, [x, y], [g.tensor("o", shape)])])


BINARY = tuple(
    Kind(
        name=f"op_{op.lower()}", make=lambda op=op: _binary(op), **ANY,
        inputs=lambda: two(
            x=R(1).uniform(0.5, 3, (1, 4, 6, 8)).astype(F), y=R(2).uniform(0.5, 3, (1, 4, 6, 8)).astype(F)
        ),
    )
    for op in ("SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV", "FLOOR_MOD")
)  # fmt: skip


@kind(gpu="fail", fp32="fail", reason="PRECISION_DEGRADATION", fast=True)
def matmul_broadcast_batch() -> bytes:
    """[2,3,5,7] x [1,1,7,4]: the delegate is right for batch 0 alone (checked with numpy)."""
    g = Graph()
    x, y = g.input("x", (2, 3, 5, 7)), g.input("y", (1, 1, 7, 4))
    return g.finish([g.op("BATCH_MATMUL", [x, y], [g.tensor("o", (2, 3, 5, 4))])])


@kind()
def matmul_adjoint_batch() -> bytes:
    g = Graph()
    x, y = g.input("x", (2, 3, 5, 7)), g.input("y", (2, 3, 6, 7))
    return g.finish([g.op("BATCH_MATMUL", [x, y], [g.tensor("o", (2, 3, 5, 6))], adjY=True)])


@kind(gpu="fail", fp32="fail", reason="PRECISION_DEGRADATION")
def grouped_conv() -> bytes:
    """Four groups of two channels: the delegate computes something else (checked with numpy)."""
    g = Graph()
    x = g.input("x", (1, 8, 8, 8))
    y = g.tensor("y", (1, 8, 8, 8))
    weights = [x, g.const("w", _floats(8, 3, 3, 2)), g.const("b", _floats(8))]
    return g.finish([g.op("CONV_2D", weights, [y], padding=0, strideW=1, strideH=1, version=6)])


def _segment(op: str, side: int) -> bytes:
    g = Graph()
    x = g.input("x", (1, side, side, 8))
    c = g.tensor("c", (1, side, side, 4))
    weights = [x, g.const("w", _floats(4, 1, 1, 8, scale=2.0)), g.const("b", _floats(4))]
    g.op("CONV_2D", weights, [c], padding=0, strideW=1, strideH=1)
    if op == "SOFTMAX":
        return g.finish([g.op(op, [c], [g.tensor("p", (1, side, side, 4))], beta=1.0)])
    return g.finish([g.op(op, [c, g.ints("a", 3)], [g.tensor("p", (1, side, side), "int32")], outputType=2)])


@kind(fast=True)
def segment_softmax() -> bytes:
    return _segment("SOFTMAX", 6)


@kind(fast=True)
def segment_argmax() -> bytes:
    return _segment("ARG_MAX", 24)


@kind()
def mean_over_batch() -> bytes:
    return red("MEAN", (8, 4, 6), (0,), (4, 6))


@kind()
def sum_over_negative_axis() -> bytes:
    return red("SUM", (2, 5, 16), (-1,), (2, 5))


@kind()
def classifier() -> bytes:
    return graphs.tiny_cnn()


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def int64_output() -> bytes:
    g = Graph()
    x = g.input("x", (1, 16))
    return g.finish([g.op("CAST", [g.op("ROUND", [x], [g.tensor("r", (1, 16))])], [g.tensor("o", (1, 16), "int64")])])


@kind(cpu="inconclusive", gpu="inconclusive unsupported", fp32="inconclusive unsupported")
def nothing_is_equal() -> bytes:
    """All False for any input: what a buffer nobody wrote would hold too."""
    g = Graph()
    x, y = g.input("x", (4, 32)), g.input("y", (4, 32))
    return g.finish([g.op("EQUAL", [x, y], [g.tensor("o", (4, 32), "bool")])])
