"""Graphs no runtime can run, and damaged files."""

from __future__ import annotations

import numpy as np

from tests import graphs
from tests.graphs import Graph, _floats
from tests.kinds.base import Kind, kind


@kind(cpu="error", gpu="unsupported error", fp32="unsupported error", fast=True)
def custom_op() -> bytes:
    return graphs.custom_op("MyOp")


@kind(cpu="error", gpu="error unsupported", fp32="error unsupported")
def bad_op_version() -> bytes:
    return graphs.op_version(77)


@kind(cpu="error", gpu="unsupported error", fp32="unsupported error")
def concat_mismatch() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    y = g.input("y", (2, 5))
    return g.finish([g.op("CONCATENATION", [x, y], [g.tensor("o", (1, 9))], axis=1)])


@kind(cpu="error", gpu="unsupported error", fp32="unsupported error", fast=True)
def pool_stride_zero() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 2))
    return g.finish(
        [
            g.op(
                "MAX_POOL_2D",
                [x],
                [g.tensor("y", (1, 2, 2, 2))],
                padding=1,
                strideW=0,
                strideH=0,
                filterWidth=2,
                filterHeight=2,
            )
        ]
    )


@kind(cpu="error", gpu="inconclusive unsupported error", fp32="inconclusive unsupported error", fast=True)
def fc_mismatch() -> bytes:
    g = Graph()
    x = g.input("x", (1, 10))
    return g.finish([g.op("FULLY_CONNECTED", [x, g.const("w", _floats(4, 7)), -1], [g.tensor("y", (1, 4))])])


@kind(cpu="error", gpu="unsupported error", fp32="unsupported error", fast=True)
def two_op_cycle() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    a, b = g.tensor("a", (1, 4)), g.tensor("b", (1, 4))
    g.op("ADD", [x, b], [a])
    g.op("TANH", [a], [b])
    return g.finish([b])


@kind(cpu="pass error inconclusive", gpu="error unsupported inconclusive", fp32="error unsupported inconclusive")
def ops_out_of_order() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    a, b = g.tensor("a", (1, 4)), g.tensor("b", (1, 4))
    g.op("EXP", [a], [b])
    g.op("TANH", [x], [a])
    return g.finish([b])


@kind(cpu="error", gpu="error", fp32="error", fast=True)
def while_calls_itself() -> bytes:
    g = Graph(subgraphs=2)
    x = g.input("x", (1, 4))
    y = g.op("IF", [g.input("c", (1,), "bool"), x], [g.tensor("y", (1, 4))], thenSubgraphIndex=1, elseSubgraphIndex=1)
    g.sub.outputs = [y]
    g.at(1)
    x = g.input("x", (1, 4))
    z = g.op(
        "IF", [g.const("t", np.array([True])), x], [g.tensor("z", (1, 4))], thenSubgraphIndex=1, elseSubgraphIndex=1
    )
    g.sub.outputs = [z]
    g.at(0)
    return g.finish([y])


@kind(cpu="pass error inconclusive", gpu="error unsupported inconclusive", fp32="error unsupported inconclusive")
def two_writers() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    a = g.tensor("a", (1, 4))
    g.op("EXP", [x], [a])
    g.op("TANH", [x], [a])
    return g.finish([a])


@kind(gpu="pass warn unsupported error inconclusive fail", fp32="pass warn unsupported error inconclusive fail")
def dead_op() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    g.op("EXP", [x], [g.tensor("dead", (1, 8))])
    return g.finish([g.op("TANH", [x], [g.tensor("y", (1, 8))])])


TRUNCATED = tuple(
    Kind(
        name=f"truncated_{int(1000 * share)}",
        make=lambda share=share: (b := graphs.tiny_cnn())[: max(8, int(len(b) * share))],
        cpu="error", gpu="error", fp32="error", fast=share in (0.3, 0.99),
    )
    for share in (0.02, 0.1, 0.3, 0.6, 0.8, 0.95, 0.99, 0.999)
)  # fmt: skip
