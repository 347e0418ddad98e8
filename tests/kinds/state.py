"""State, control flow, chance, and outputs nobody computes."""

from __future__ import annotations

import numpy as np

from tests import graphs
from tests.graphs import Graph, _floats
from tests.kinds.base import F, k, kind


def var(two_vars=False, decay=0.5):
    g = Graph(subgraphs=2)
    x = g.input("x", (1, 8))
    g.op("CALL_ONCE", [], [], initSubgraphIndex=1)
    outs = []
    for n in ("v", "w")[: 2 if two_vars else 1]:
        h = g.op("VAR_HANDLE", [], [g.tensor("h" + n, (), "resource")], container="", sharedName=n)
        r = g.op("READ_VARIABLE", [h], [g.tensor("r" + n, (1, 8))])
        m = g.op("MUL", [r, k(g, "d" + n, [decay])], [g.tensor("m" + n, (1, 8))])
        s = g.op("ADD", [m, x], [g.tensor("s" + n, (1, 8))])
        g.op("ASSIGN_VARIABLE", [h, s], [])
        outs.append(s)
    g.sub.outputs = outs
    g.signature("serving_default", {"x": x}, {f"o{i}": o for i, o in enumerate(outs)}, 0)
    g.at(1)
    for n in ("v", "w")[: 2 if two_vars else 1]:
        h = g.op("VAR_HANDLE", [], [g.tensor("h" + n, (), "resource")], container="", sharedName=n)
        g.op("ASSIGN_VARIABLE", [h, g.const("z" + n, np.zeros((1, 8), F))], [])
    return g.finish()


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def variable_decay() -> bytes:
    return var()


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def two_variables() -> bytes:
    return var(True, 0.9)


@kind(
    cpu="error pass inconclusive",
    gpu="error unsupported inconclusive pass warn",
    fp32="error unsupported inconclusive pass warn",
)
def svdf_state() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    st = g.tensor("state", (1, 4 * 3), variable=True)
    return g.finish(
        [
            g.op(
                "SVDF",
                [x, g.const("wf", _floats(4, 8)), g.const("wt", _floats(4, 3)), -1, st],
                [g.tensor("y", (1, 4))],
                rank=1,
            )
        ]
    )


@kind(gpu="unsupported", fp32="unsupported")
def while_float() -> bytes:
    return graphs.while_loop(7)


@kind(gpu="unsupported", fp32="unsupported", fast=True)
def if_both() -> bytes:
    g = Graph(subgraphs=3)
    c = g.input("c", (1,), "bool")
    x = g.input("x", (1, 8))
    y = g.op("IF", [c, x], [g.tensor("y", (1, 8))], thenSubgraphIndex=1, elseSubgraphIndex=2)
    g.sub.outputs = [y]
    g.signature("s", {"c": c, "x": x}, {"y": y}, 0)
    g.at(1)
    x = g.input("x", (1, 8))
    g.sub.outputs = [g.op("LOGISTIC", [x], [g.tensor("a", (1, 8))])]
    g.at(2)
    x = g.input("x", (1, 8))
    g.sub.outputs = [g.op("NEG", [x], [g.tensor("a", (1, 8))])]
    return g.finish()


@kind(cpu="inconclusive", gpu="inconclusive", fp32="inconclusive")
def random_normal() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    r = g.op("RANDOM_STANDARD_NORMAL", [g.ints("s", 1, 4)], [g.tensor("r", (1, 4))])
    return g.finish([g.op("ADD", [x, r], [g.tensor("y", (1, 4))])])


@kind(cpu="inconclusive", gpu="inconclusive", fp32="inconclusive", fast=True)
def random_seeded() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    r = g.op("RANDOM_UNIFORM", [g.ints("s", 1, 4)], [g.tensor("r", (1, 4))], seed=3, seed2=5)
    return g.finish([g.op("ADD", [x, r], [g.tensor("y", (1, 4))])])


@kind(cpu="inconclusive", gpu="inconclusive", fp32="inconclusive")
def output_is_input() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    y = g.op("TANH", [x], [g.tensor("y", (1, 8))])
    g.signature("s", {"x": x}, {"y": y, "same": x})
    return g.finish([y, x])


@kind(cpu="inconclusive", gpu="inconclusive", fp32="inconclusive", fast=True)
def unwritten() -> bytes:
    return graphs.unwritten_output()


@kind(fast=True)
def constant_output_big() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    y = g.op("TANH", [x], [g.tensor("y", (1, 8))])
    return g.finish([y, g.const("c", _floats(4, 16))])


@kind()
def constant_above_fp16() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    y = g.op("TANH", [x], [g.tensor("y", (1, 8))])
    return g.finish([y, g.const("c", np.full((1, 8), 1e6, F))])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def reshape_of_input() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    return g.finish([g.op("RESHAPE", [x, g.ints("to", 2, 4)], [g.tensor("y", (2, 4))], newShape=np.int32([2, 4]))])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def encoder() -> bytes:
    return graphs.encoder(60, 8, 32)
