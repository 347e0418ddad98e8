"""Outputs that other ops consume as well: taps of norms, and pairs of ops."""

from __future__ import annotations

import numpy as np

from tests import graphs
from tests.graphs import Graph, _floats
from tests.kinds.base import Kind, k, kind


def _groupnorm(scale=1.0, tap=None, groups=4):
    g = Graph()
    x = g.input("x", (1, 8, 8, 16))
    r = g.op(
        "RESHAPE",
        [x, g.ints("to", 1, 64, groups, 16 // groups)],
        [g.tensor("r", (1, 64, groups, 16 // groups))],
        newShape=np.int32([1, 64, groups, 16 // groups]),
    )
    sh = (1, 64, groups, 16 // groups)
    one = (1, 1, groups, 1)
    if scale != 1.0:
        r = g.op("MUL", [r, k(g, "s", [scale])], [g.tensor("rs", sh)])
    mu = g.op("MEAN", [r, g.ints("ax", 1, 3)], [g.tensor("mu", one)], keepDims=True)
    d = g.op("SQUARED_DIFFERENCE", [r, mu], [g.tensor("d", sh)])
    v = g.op("MEAN", [d, g.ints("ax2", 1, 3)], [g.tensor("v", one)], keepDims=True)
    e = g.op("ADD", [v, k(g, "eps", [1e-5])], [g.tensor("e", one)])
    q = g.op("RSQRT", [e], [g.tensor("q", one)])
    c = g.op("SUB", [r, mu], [g.tensor("c", sh)])
    y = g.op("MUL", [c, q], [g.tensor("y", sh)])
    return g.finish([y] + ([{"mu": mu, "d": d, "v": v, "q": q, "c": c}[tap]] if tap else []))


def outcons(op, consumer, shape=(1, 6, 6, 16)):
    g = Graph()
    x, y = g.input("x", shape), g.input("y", shape)
    s = g.op(op, [x, y], [g.tensor("s", shape)])
    if consumer == "SUM":
        c = g.op("SUM", [s, g.ints("ax", 1, 2)], [g.tensor("c", (1, 16))], keepDims=False)
    elif consumer == "MEAN":
        c = g.op("MEAN", [s, g.ints("ax", 3)], [g.tensor("c", (1, 6, 6, 1))], keepDims=True)
    elif consumer == "CONV_2D":
        c = g.op(
            "CONV_2D",
            [s, g.const("k", _floats(8, 3, 3, 16)), g.const("b", _floats(8))],
            [g.tensor("c", (1, 6, 6, 8))],
            padding=0,
            strideW=1,
            strideH=1,
        )
    elif consumer == "RELU":
        c = g.op("RELU", [s], [g.tensor("c", shape)])
    elif consumer == "MUL2":
        c = g.op("MUL", [s, x], [g.tensor("c", shape)])
    elif consumer == "ADDSELF":
        c = g.op("ADD", [s, s], [g.tensor("c", shape)])
    elif consumer == "RESHAPE":
        c = g.op("RESHAPE", [s, g.ints("to", 1, 36, 16)], [g.tensor("c", (1, 36, 16))], newShape=np.int32([1, 36, 16]))
    return g.finish([s, c])


TAPS = tuple(
    Kind(name=f"groupnorm_tap_{tap}", make=lambda tap=tap: _groupnorm(tap=tap)) for tap in ("mu", "d", "v", "q", "c")
)
"""GroupNorm by SQUARED_DIFFERENCE is not fused by the delegate: its taps are right."""


@kind(gpu="fail", fp32="fail", reason="PRECISION_DEGRADATION", fast=True)
def layernorm_tap_sq() -> bytes:
    return graphs.layernorm("sq", 8, 48)


def _pair(op: str, consumer: str, broken: bool = False) -> Kind:
    right = {"gpu": "fail", "fp32": "fail", "reason": "PRECISION_DEGRADATION"} if broken else {}
    return Kind(
        name=f"{op.lower()}_and_{consumer.lower()}", make=lambda: outcons(op, consumer),
        fast=consumer in ("MEAN", "CONV_2D"), **right,
    )  # fmt: skip


PAIRS = (
    _pair("ADD", "MEAN", broken=True),
    _pair("ADD", "CONV_2D"),
    _pair("ADD", "MUL2"),
    _pair("SUB", "SUM"),
    _pair("MUL", "MUL2"),
    _pair("MAXIMUM", "SUM"),
    _pair("ADD", "RESHAPE"),
    _pair("SUB", "RELU"),
    _pair("DIV", "ADDSELF"),
    _pair("ADD", "ADDSELF"),
)
"""An output that is consumed as well. ADD before a reduction returns one of its operands (LiteRT #8599)."""


@kind()
def groupnorm() -> bytes:
    return _groupnorm()


@kind(gpu="fail", reason="SILENT_ZERO_VECTOR", fast=True)
def groupnorm_overflow() -> bytes:
    return _groupnorm(3000.0)


@kind(gpu="fail", fp32="fail", reason="SILENT_ZERO_VECTOR")
def layernorm_tap_var_big() -> bytes:
    return graphs.layernorm("var", 2, 128)


@kind()
def layernorm_none_big() -> bytes:
    return graphs.layernorm(None, 2, 128)
