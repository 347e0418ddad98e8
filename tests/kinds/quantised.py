"""Quantised tensors, hybrid kernels, 16-bit floats."""

from __future__ import annotations

import numpy as np

from tests import graphs
from tests.graphs import Graph, _floats
from tests.kinds.base import I8, R, kind


def qconv(depthwise=False, per_channel=True, dtype="int8"):
    g = Graph()
    z = 3
    x = g.input("x", (1, 8, 8, 4), dtype, scale=0.02, zero_point=z)
    n = 4 if depthwise else 8
    sc = [0.01 * (1 + i / 8) for i in range(n)] if per_channel else 0.01
    w = g.const(
        "w", I8(1, 3, 3, 4) if depthwise else I8(8, 3, 3, 4), scale=sc, zero_point=0, axis=3 if depthwise else 0
    )
    b = g.const(
        "b", R(2).integers(-500, 500, n).astype(np.int32), scale=[s * 0.02 for s in sc] if per_channel else 0.0002
    )
    y = g.tensor("y", (1, 8, 8, n), dtype, scale=0.1, zero_point=-5)
    o = {"padding": 0, "strideW": 1, "strideH": 1}
    if depthwise:
        o["depthMultiplier"] = 1
    return g.finish([g.op("DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", [x, w, b], [y], version=3, **o)])


def drq(shape, out, n, op="FULLY_CONNECTED", asym=True, per_channel=False, keep=False, wd="int8"):
    g = Graph()
    x = g.input("x", shape)
    sc = [0.01 * (1 + i / out) for i in range(out)] if per_channel else 0.01
    w = g.const("w", I8(out, n), scale=sc, zero_point=0)
    return g.finish(
        [
            g.op(
                "FULLY_CONNECTED",
                [x, w, -1],
                [g.tensor("y", (*shape[:-1], out) if keep else (shape[0], out))],
                version=9,
                asymmetricQuantizeInputs=asym,
                keepNumDims=keep,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def int8_conv_per_channel() -> bytes:
    return qconv()


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def int8_depthwise() -> bytes:
    return qconv(True)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def int8_add() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 8), "int8", scale=0.02, zero_point=3)
    y = g.input("y", (1, 4, 4, 8), "int8", scale=0.03, zero_point=-7)
    return g.finish([g.op("ADD", [x, y], [g.tensor("o", (1, 4, 4, 8), "int8", scale=0.04, zero_point=1)], version=2)])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def int8_logistic() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 8), "int8", scale=0.05, zero_point=0)
    return g.finish(
        [g.op("LOGISTIC", [x], [g.tensor("o", (1, 4, 4, 8), "int8", scale=1 / 256, zero_point=-128)], version=2)]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def int8_softmax_batch() -> bytes:
    g = Graph()
    x = g.input("x", (4, 20), "int8", scale=0.1, zero_point=0)
    return g.finish(
        [g.op("SOFTMAX", [x], [g.tensor("p", (4, 20), "int8", scale=1 / 256, zero_point=-128)], beta=1.0, version=2)]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def quantize_out() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64))
    return g.finish([g.op("QUANTIZE", [x], [g.tensor("o", (1, 64), "int8", scale=0.02, zero_point=0)])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def dequantize_in() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64), "int8", scale=0.02, zero_point=5)
    return g.finish(
        [g.op("TANH", [g.op("DEQUANTIZE", [x], [g.tensor("d", (1, 64))], version=2)], [g.tensor("o", (1, 64))])]
    )


@kind(gpu="unsupported", fp32="unsupported", fast=True)
def int16_fc() -> bytes:
    return graphs.quantised_fc("int16", 16)


@kind(gpu="unsupported", fp32="unsupported")
def uint8_fc() -> bytes:
    return graphs.quantised_fc("uint8", 16)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def int8_mean() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8, 8, 16), "int8", scale=0.05, zero_point=-10)
    return g.finish(
        [
            g.op(
                "MEAN",
                [x, g.ints("ax", 1, 2)],
                [g.tensor("o", (1, 16), "int8", scale=0.05, zero_point=-10)],
                keepDims=False,
                version=2,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def drq_fc_rank2() -> bytes:
    return drq((4, 48), 24, 48)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def drq_fc_rank3() -> bytes:
    return drq((1, 6, 48), 24, 48, keep=True)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def drq_fc_per_channel() -> bytes:
    return drq((2, 48), 24, 48, per_channel=True)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def drq_fc_symmetric() -> bytes:
    return drq((2, 48), 24, 48, asym=False)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def drq_conv() -> bytes:
    g = Graph()
    x = g.input("x", (1, 10, 10, 8))
    w = g.const("w", I8(12, 3, 3, 8), scale=[0.01] * 12, zero_point=0)
    return g.finish(
        [
            g.op(
                "CONV_2D",
                [x, w, g.const("b", _floats(12))],
                [g.tensor("y", (1, 10, 10, 12))],
                version=5,
                padding=0,
                strideW=1,
                strideH=1,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def drq_depthwise() -> bytes:
    g = Graph()
    x = g.input("x", (1, 10, 10, 8))
    w = g.const("w", I8(1, 3, 3, 8), scale=[0.01] * 8, zero_point=0, axis=3)
    return g.finish(
        [
            g.op(
                "DEPTHWISE_CONV_2D",
                [x, w, g.const("b", _floats(8))],
                [g.tensor("y", (1, 10, 10, 8))],
                version=6,
                padding=0,
                strideW=1,
                strideH=1,
                depthMultiplier=1,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def drq_bmm() -> bytes:
    g = Graph()
    x = g.input("x", (1, 2, 6, 16))
    w = g.const("w", I8(1, 2, 16, 8), scale=0.01, zero_point=0)
    return g.finish([g.op("BATCH_MATMUL", [x, w], [g.tensor("y", (1, 2, 6, 8))], version=4)])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported", fast=True)
def int4_fc_per_channel() -> bytes:
    return graphs.int4_fc(64)


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def drq_two_layers() -> bytes:
    g = Graph()
    t = g.input("x", (1, 64))
    for i in range(3):
        w = g.const(f"w{i}", I8(64, 64, seed=i), scale=0.002, zero_point=0)
        t = g.op(
            "FULLY_CONNECTED",
            [t, w, -1],
            [g.tensor(f"y{i}", (1, 64))],
            version=4,
            asymmetricQuantizeInputs=True,
            fusedActivationFunction=1 if i < 2 else 0,
        )
    return g.finish([t])


@kind(gpu="error unsupported", fp32="error unsupported")
def weight_only_chain() -> bytes:
    g = Graph()
    t = g.input("x", (1, 64))
    for i in range(3):
        w = g.const(f"w{i}", I8(64, 64, seed=i), scale=0.002, zero_point=0)
        d = g.op("DEQUANTIZE", [w], [g.tensor(f"d{i}", (64, 64))], version=2)
        t = g.op("FULLY_CONNECTED", [t, d, -1], [g.tensor(f"y{i}", (1, 64))])
    return g.finish([t])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def fp16_weights_conv() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8, 8, 4))
    d = g.op(
        "DEQUANTIZE", [g.const("w", _floats(8, 3, 3, 4).astype(np.float16))], [g.tensor("wd", (8, 3, 3, 4))], version=3
    )
    e = g.op("DEQUANTIZE", [g.const("b", _floats(8).astype(np.float16))], [g.tensor("bd", (8,))], version=3)
    return g.finish([g.op("CONV_2D", [x, d, e], [g.tensor("y", (1, 8, 8, 8))], padding=0, strideW=1, strideH=1)])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def float16_io() -> bytes:
    g = Graph()
    x = g.input("x", (1, 32), "float16")
    d = g.op("CAST", [x], [g.tensor("d", (1, 32))])
    t = g.op("TANH", [d], [g.tensor("t", (1, 32))])
    return g.finish([g.op("CAST", [t], [g.tensor("y", (1, 32), "float16")])])


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def int8_concat_requant() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, 4, 8), "int8", scale=0.02, zero_point=3)
    y = g.input("y", (1, 4, 4, 8), "int8", scale=0.02, zero_point=3)
    return g.finish(
        [
            g.op(
                "CONCATENATION",
                [x, y],
                [g.tensor("o", (1, 4, 4, 16), "int8", scale=0.02, zero_point=3)],
                axis=3,
                version=2,
            )
        ]
    )


@kind(gpu="unsupported", fp32="unsupported")
def fp16_table_lookup() -> bytes:
    g = Graph()
    i = g.input("ids", (6,), "int32")
    d = g.op("DEQUANTIZE", [g.const("t", _floats(40, 16).astype(np.float16))], [g.tensor("td", (40, 16))], version=3)
    return g.finish([g.op("EMBEDDING_LOOKUP", [i, d], [g.tensor("y", (6, 16))])])


@kind(gpu="fail unsupported", fp32="fail unsupported", fast=True)
def int8_table_lookup() -> bytes:
    g = Graph()
    i = g.input("ids", (6,), "int32")
    return g.finish(
        [
            g.op(
                "EMBEDDING_LOOKUP",
                [i, g.const("t", R(4).integers(-127, 127, (40, 16)).astype(np.int8), scale=0.01, zero_point=0)],
                [g.tensor("y", (6, 16))],
                version=3,
            )
        ]
    )


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def two_dequantized_outputs() -> bytes:
    g = Graph()
    x = g.input("x", (1, 32))
    q = g.op("QUANTIZE", [x], [g.tensor("q", (1, 32), "int8", scale=0.02, zero_point=0)])
    return g.finish([q, g.op("DEQUANTIZE", [q], [g.tensor("d", (1, 32))], version=2)])
