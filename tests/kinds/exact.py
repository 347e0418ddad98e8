"""Bools, integers and indices: equal or not, near ties apart."""

from __future__ import annotations

import numpy as np

from tests.graphs import Graph, _floats
from tests.kinds.base import F, R, k, kind


def near():
    a = (0.1 * R(1).standard_normal((4, 64))).astype(F)
    a[:, 7] = 1.0
    a[:, 40] = 1.0001
    return a


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def bool_and() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64))
    y = g.input("y", (1, 64))
    z = k(g, "z", [0.0])
    a = g.op("GREATER", [x, z], [g.tensor("a", (1, 64), "bool")])
    b = g.op("LESS", [y, z], [g.tensor("b", (1, 64), "bool")])
    return g.finish([g.op("LOGICAL_AND", [a, b], [g.tensor("o", (1, 64), "bool")])])


@kind(
    gpu="warn unsupported",
    fp32="pass warn unsupported",
    fast=True,
    inputs=lambda: {"a/x": near(), "b/x": np.roll(near(), 3, 1)},
)
def argmax_near_tie_hidden() -> bytes:
    g = Graph()
    x = g.input("x", (4, 64))
    m = g.op("MUL", [x, k(g, "m", [0.7])], [g.tensor("m", (4, 64))])
    return g.finish([g.op("ARG_MAX", [m, g.ints("ax", 1)], [g.tensor("o", (4,), "int32")], outputType=2)])


@kind(
    gpu="warn unsupported",
    fp32="pass warn unsupported",
    fast=True,
    inputs=lambda: {"a/x": near(), "b/x": np.roll(near(), 3, 1)},
)
def argmax_near_tie_shown() -> bytes:
    g = Graph()
    x = g.input("x", (4, 64))
    m = g.op("MUL", [x, k(g, "m", [0.7])], [g.tensor("m", (4, 64))])
    return g.finish([m, g.op("ARG_MAX", [m, g.ints("ax", 1)], [g.tensor("o", (4,), "int32")], outputType=2)])


@kind(
    gpu="warn unsupported",
    fp32="pass warn unsupported",
    fast=True,
    inputs=lambda: {"a/x": near(), "b/x": np.roll(near(), 3, 1)},
)
def topk_near_tie() -> bytes:
    g = Graph()
    x = g.input("x", (4, 64))
    m = g.op("MUL", [x, k(g, "m", [0.7])], [g.tensor("m", (4, 64))])
    v, i = g.tensor("v", (4, 3)), g.tensor("i", (4, 3), "int32")
    g.op("TOPK_V2", [m, g.const("k", np.int32(3))], [v, i])
    return g.finish([v, i])


@kind(
    gpu="warn unsupported", fp32="pass warn unsupported", inputs=lambda: {"a/x": near(), "b/x": np.roll(near(), 3, 1)}
)
def topk_indices_only() -> bytes:
    g = Graph()
    x = g.input("x", (4, 64))
    m = g.op("MUL", [x, k(g, "m", [0.7])], [g.tensor("m", (4, 64))])
    v, i = g.tensor("v", (4, 3)), g.tensor("i", (4, 3), "int32")
    g.op("TOPK_V2", [m, g.const("k", np.int32(3))], [v, i])
    return g.finish([i])


@kind(gpu="fail unsupported", fp32="pass warn unsupported", fast=True)
def argmax_overflowed() -> bytes:
    g = Graph()
    x = g.input("x", (4, 64))
    m = g.op("MUL", [x, k(g, "m", [1e6])], [g.tensor("m", (4, 64))])
    return g.finish([g.op("ARG_MAX", [m, g.ints("ax", 1)], [g.tensor("o", (4,), "int32")], outputType=2)])


@kind(gpu="unsupported", fp32="unsupported")
def argmin_int64() -> bytes:
    g = Graph()
    x = g.input("x", (2, 32))
    return g.finish([g.op("ARG_MIN", [x, g.ints("ax", 1)], [g.tensor("o", (2,), "int64")], outputType=4)])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def int32_mul_large() -> bytes:
    g = Graph()
    x = g.input("x", (1, 16), "int32")
    return g.finish([g.op("MUL", [x, g.const("c", np.int32([100003]))], [g.tensor("o", (1, 16), "int32")])])


@kind(gpu="fail unsupported", fp32="pass warn unsupported")
def floor_cast() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64))
    m = g.op("MUL", [x, k(g, "c", [500])], [g.tensor("m", (1, 64))])
    return g.finish([g.op("CAST", [m], [g.tensor("o", (1, 64), "int32")])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def one_hot() -> bytes:
    g = Graph()
    x = g.input("ids", (1, 6), "int32")
    return g.finish(
        [
            g.op(
                "ONE_HOT",
                [x, g.const("d", np.int32(10)), k(g, "on", 1.0), k(g, "off", 0.0)],
                [g.tensor("o", (1, 6, 10))],
                axis=-1,
            )
        ]
    )


@kind(gpu="fail unsupported", fp32="fail unsupported", fast=True)
def int32_above_2_24() -> bytes:
    g = Graph()
    x = g.input("x", (1, 16), "int32")
    return g.finish([g.op("ADD", [x, g.const("c", np.int32([33554433]))], [g.tensor("o", (1, 16), "int32")])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def reduce_min_any() -> bytes:
    g = Graph()
    x = g.input("x", (1, 6, 6, 8))
    b = g.op("GREATER", [x, k(g, "z", [0.5])], [g.tensor("b", (1, 6, 6, 8), "bool")])
    return g.finish([g.op("REDUCE_ANY", [b, g.ints("ax", 1, 2)], [g.tensor("y", (1, 8), "bool")], keepDims=False)])


@kind(gpu="unsupported", fp32="unsupported")
def gather_nd() -> bytes:
    g = Graph()
    x = g.input("ids", (3, 1), "int32")
    return g.finish([g.op("GATHER_ND", [g.const("t", _floats(9, 8)), x], [g.tensor("y", (3, 8))])])
