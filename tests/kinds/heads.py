"""Heads and what leads to them: probabilities, logits, masks, embeddings."""

from __future__ import annotations

import numpy as np

from tests.graphs import Graph, _floats
from tests.kinds.base import F, full, k, kind, two


def head(op, shape, w=1.0, bias=0.0, spread=1.0, n_in=16):
    g = Graph()
    x = g.input("x", (shape[0], n_in))
    f = g.op(
        "FULLY_CONNECTED",
        [
            x,
            g.const("w", _floats(shape[-1], n_in, scale=w)),
            g.const("b", (_floats(shape[-1], seed=3, scale=spread) + F(bias))),
        ],
        [g.tensor("f", (shape[0], shape[-1]))],
    )
    return g.finish(
        [g.op(op, [f], [g.tensor("p", (shape[0], shape[-1]))], **({"beta": 1.0} if op == "SOFTMAX" else {}))]
    )


def attn(low, how="mul", tokens=8, dim=16, dtype="int32"):
    g = Graph()
    q = g.input("hidden", (1, tokens, dim))
    m = g.input("attention_mask", (1, tokens), dtype)
    kk = g.op("MUL", [q, g.const("kw", _floats(1, 1, dim, scale=1.0))], [g.tensor("kk", (1, tokens, dim))])
    v = g.op("ADD", [q, g.const("vw", _floats(1, 1, dim, seed=9))], [g.tensor("v", (1, tokens, dim))])
    s = g.op("BATCH_MATMUL", [q, kk], [g.tensor("s", (1, tokens, tokens))], adjY=True)
    if how == "mul":
        f = g.op("CAST", [m], [g.tensor("f", (1, tokens))]) if dtype != "float32" else m
        inv = g.op("SUB", [k(g, "one", [1]), f], [g.tensor("inv", (1, tokens))])
        a = g.op("MUL", [inv, k(g, "low", [low])], [g.tensor("add", (1, tokens))])
        a = g.op(
            "RESHAPE",
            [a, g.ints("to", 1, 1, tokens)],
            [g.tensor("a3", (1, 1, tokens))],
            newShape=np.int32([1, 1, tokens]),
        )
        sm = g.op("ADD", [s, a], [g.tensor("sm", (1, tokens, tokens))])
    else:
        b = g.op("NOT_EQUAL", [m, g.const("z", np.int32([0]))], [g.tensor("bm", (1, tokens), "bool")])
        b = g.op(
            "RESHAPE",
            [b, g.ints("to", 1, 1, tokens)],
            [g.tensor("bm3", (1, 1, tokens), "bool")],
            newShape=np.int32([1, 1, tokens]),
        )
        sm = g.op("SELECT_V2", [b, s, k(g, "low", [low])], [g.tensor("sm", (1, tokens, tokens))])
    p = g.op("SOFTMAX", [sm], [g.tensor("p", (1, tokens, tokens))], beta=1.0)
    return g.finish([g.op("BATCH_MATMUL", [p, v], [g.tensor("y", (1, tokens, dim))])])


def l2(shape, gain, eps=1e-12, manual=True):
    g = Graph()
    x = g.input("x", shape)
    one = (*shape[:-1], 1)
    f = g.op("MUL", [x, k(g, "gain", [gain])], [g.tensor("f", shape)])
    if not manual:
        return g.finish([g.op("L2_NORMALIZATION", [f], [g.tensor("y", shape)])])
    s = g.op(
        "SUM",
        [g.op("MUL", [f, f], [g.tensor("sq", shape)]), g.ints("ax", len(shape) - 1)],
        [g.tensor("s", one)],
        keepDims=True,
    )
    m = g.op("MAXIMUM", [s, k(g, "eps", [eps])], [g.tensor("m", one)])
    return g.finish([g.op("MUL", [f, g.op("RSQRT", [m], [g.tensor("r", one)])], [g.tensor("y", shape)])])


@kind()
def softmax_sure() -> bytes:
    return head("SOFTMAX", (1, 12), 3.0)


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", fast=True, inputs=lambda: two(x=full((1, 16), 1.0)))
def softmax_overflow() -> bytes:
    return head("SOFTMAX", (1, 12), 1e5)


@kind(fast=True)
def softmax_1000_flat() -> bytes:
    return head("SOFTMAX", (1, 1000), 0.02, spread=0.02)


@kind()
def log_softmax() -> bytes:
    return head("LOG_SOFTMAX", (2, 50), 1.0)


@kind(fast=True)
def sigmoid_tiny_scalar() -> bytes:
    return head("LOGISTIC", (1, 1), 0.05, bias=-12)


@kind(fast=True)
def sigmoid_tiny_multilabel() -> bytes:
    return head("LOGISTIC", (1, 10), 0.05, bias=-12, spread=0.1)


@kind()
def sigmoid_small_multilabel() -> bytes:
    return head("LOGISTIC", (1, 10), 0.05, bias=-9.2, spread=0.01)


@kind(fast=True)
def sigmoid_batch() -> bytes:
    return head("LOGISTIC", (4, 1), 1.0)


@kind(fast=True)
def sigmoid_map_tiny() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8, 8, 3))
    c = g.op(
        "CONV_2D",
        [x, g.const("k", _floats(1, 3, 3, 3, scale=0.05)), k(g, "b", [-11])],
        [g.tensor("c", (1, 8, 8, 1))],
        padding=0,
        strideW=1,
        strideH=1,
    )
    return g.finish([g.op("LOGISTIC", [c], [g.tensor("m", (1, 8, 8, 1))])])


@kind(fast=True)
def logits_1200x3() -> bytes:
    g = Graph()
    x = g.input("x", (3, 32))
    return g.finish(
        [g.op("FULLY_CONNECTED", [x, g.const("w", _floats(1200, 32)), -1], [g.tensor("logits", (3, 1200))])]
    )


@kind()
def logits_1x30000() -> bytes:
    g = Graph()
    x = g.input("x", (1, 32))
    return g.finish(
        [g.op("FULLY_CONNECTED", [x, g.const("w", _floats(30000, 32)), -1], [g.tensor("logits", (1, 30000))])]
    )


@kind()
def logits_softcapped() -> bytes:
    g = Graph()
    x = g.input("x", (4, 32))
    f = g.op("FULLY_CONNECTED", [x, g.const("w", _floats(2000, 32)), -1], [g.tensor("f", (4, 2000))])
    t = g.op("TANH", [g.op("MUL", [f, k(g, "c", [1 / 30])], [g.tensor("d", (4, 2000))])], [g.tensor("t", (4, 2000))])
    return g.finish([g.op("MUL", [t, k(g, "c2", [30])], [g.tensor("logits", (4, 2000))])])


@kind()
def inf_mask_in_output() -> bytes:
    g = Graph()
    x = g.input("x", (1, 400))
    m = np.zeros((1, 400), F)
    m[0, :3] = -np.inf
    return g.finish([g.op("ADD", [x, g.const("m", m)], [g.tensor("y", (1, 400))])])


@kind(cpu="inconclusive", gpu="inconclusive", fp32="inconclusive", fast=True)
def inf_mask_in_output_many() -> bytes:
    g = Graph()
    x = g.input("x", (1, 400))
    m = np.zeros((1, 400), F)
    m[0, :30] = -np.inf
    return g.finish([g.op("ADD", [x, g.const("m", m)], [g.tensor("y", (1, 400))])])


@kind(fast=True)
def embedding_384() -> bytes:
    return l2((2, 384), 1.0)


@kind(gpu="fail", reason="SILENT_ZERO_VECTOR", fast=True)
def embedding_overflow() -> bytes:
    return l2((2, 384), 40.0)


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY")
def embedding_underflow() -> bytes:
    return l2((2, 384), 1e-5)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def embedding_l2norm_op() -> bytes:
    return l2((3, 256), 5.0, manual=False)


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", fast=True)
def mask_1e9() -> bytes:
    return attn(-1e9)


@kind()
def mask_1e4_float() -> bytes:
    return attn(-1e4, dtype="float32")


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", fast=True)
def mask_finfo_min() -> bytes:
    return attn(float(np.finfo(F).min))


@kind(cpu="inconclusive", gpu="inconclusive", fp32="inconclusive", fast=True)
def mask_inf_mul() -> bytes:
    return attn(-np.inf)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def mask_inf_select() -> bytes:
    return attn(-np.inf, "select")


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def mask_min_select() -> bytes:
    return attn(float(np.finfo(F).min), "select")


@kind(fast=True)
def softmax_2000_rank3() -> bytes:
    g = Graph()
    x = g.input("x", (1, 3, 16))
    f = g.op(
        "FULLY_CONNECTED",
        [x, g.const("w", _floats(2000, 16, scale=0.05)), -1],
        [g.tensor("f", (1, 3, 2000))],
        keepNumDims=True,
        version=9,
    )
    return g.finish([g.op("SOFTMAX", [f], [g.tensor("p", (1, 3, 2000))], beta=1.0)])


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY")
def mask_head_underflow() -> bytes:
    # a mask whose logits vanish: sigmoid(0) = 0.5 everywhere instead of 0.1 .. 0.9
    g = Graph()
    x = g.input("x", (1, 8, 8, 3))
    s = g.op("MUL", [x, k(g, "s", [1e-9])], [g.tensor("s", (1, 8, 8, 3))])
    c = g.op("MUL", [s, k(g, "b", [4e9])], [g.tensor("c", (1, 8, 8, 3))])
    return g.finish([g.op("LOGISTIC", [c], [g.tensor("m", (1, 8, 8, 3))])])


@kind(gpu="fail", reason="INPUT_INDEPENDENT", fast=True)
def logits_shift_top1() -> bytes:
    # logits with a large common offset: FP16 rounds the differences away
    g = Graph()
    x = g.input("x", (4, 16))
    f = g.op(
        "FULLY_CONNECTED",
        [x, g.const("w", _floats(1500, 16, scale=0.05)), g.const("b", np.full(1500, 3000, F))],
        [g.tensor("logits", (4, 1500))],
    )
    return g.finish([f])
