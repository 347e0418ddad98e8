"""What FP16 holds and what it does not: reductions, norms, elementwise ranges, large sums."""

from __future__ import annotations

import numpy as np

from tests.graphs import Graph, _floats
from tests.kinds.base import F, full, k, kind, red, two, un


def rms(gain, eps, shape=(1, 6, 64), axis=2):
    g = Graph()
    x = g.input("x", shape)
    one = (*shape[:-1], 1)
    s = g.op("MUL", [x, k(g, "gain", [gain])], [g.tensor("s", shape)])
    sq = g.op("SQUARE", [s], [g.tensor("sq", shape)])
    m = g.op("MEAN", [sq, g.ints("ax", axis)], [g.tensor("m", one)], keepDims=True)
    e = g.op("ADD", [m, k(g, "eps", [eps])], [g.tensor("e", one)])
    r = g.op("RSQRT", [e], [g.tensor("r", one)])
    return g.finish([g.op("MUL", [s, r], [g.tensor("y", shape)])])


def sparse(side=96, ch=8, bias=-1.2, n_in=32):
    g = Graph()
    x = g.input("x", (1, side, side, n_in))
    w = _floats(ch, 3, 3, n_in, scale=0.12)
    return g.finish(
        [
            g.op(
                "CONV_2D",
                [x, g.const("w", w), g.const("b", np.full(ch, bias, F))],
                [g.tensor("y", (1, side, side, ch))],
                padding=0,
                strideW=1,
                strideH=1,
                fusedActivationFunction=1,
            )
        ]
    )


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", fast=True, inputs=lambda: two(x=full((1, 8, 8, 16), 1.5, 0.9)))
def reduce_max_overflow() -> bytes:
    return red("REDUCE_MAX", (1, 8, 8, 16), (1, 2), (1, 16), scale=1e5, back=1e-5)


@kind(inputs=lambda: two(x=full((1, 8, 8, 16), 1.5, 0.9)))
def reduce_max_control() -> bytes:
    return red("REDUCE_MAX", (1, 8, 8, 16), (1, 2), (1, 16), scale=1e3, back=1e-3)


@kind(gpu="fail", reason="SATURATION", fast=True, inputs=lambda: two(x=full((1, 4096, 1, 8), 20)))
def sum_over_height() -> bytes:
    return red("SUM", (1, 4096, 1, 8), (1,), (1, 1, 8))


@kind(gpu="fail", reason="SATURATION", inputs=lambda: two(x=full((1, 2, 2, 8192), 10)))
def sum_over_channels() -> bytes:
    return red("SUM", (1, 2, 2, 8192), (3,), (1, 2, 2))


@kind(fast=True, inputs=lambda: two(x=full((1, 64, 64, 8), 15)))
def sum_just_below() -> bytes:
    return red("SUM", (1, 64, 64, 8), (1, 2), (1, 8))


@kind(gpu="fail", reason="SATURATION", inputs=lambda: two(x=full((1, 64, 64, 8), 17)))
def sum_just_above() -> bytes:
    return red("SUM", (1, 64, 64, 8), (1, 2), (1, 8))


@kind(gpu="fail", reason="SATURATION", inputs=lambda: two(x=full((1, 64, 64, 8), -17)))
def sum_negative_above() -> bytes:
    return red("SUM", (1, 64, 64, 8), (1, 2), (1, 8))


@kind(inputs=lambda: two(x=full((1, 2, 2, 8192), 10)))
def mean_channels_control() -> bytes:
    return red("MEAN", (1, 2, 2, 8192), (3,), (1, 2, 2, 1), keep=True)


@kind(gpu="unsupported", fp32="unsupported", inputs=lambda: two(x=full((1, 8, 8, 8), 300)))
def l2_pool_squares_overflow() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8, 8, 8))
    return g.finish(
        [
            g.op(
                "L2_POOL_2D",
                [x],
                [g.tensor("y", (1, 2, 2, 8))],
                padding=1,
                strideW=4,
                strideH=4,
                filterWidth=4,
                filterHeight=4,
            )
        ]
    )


@kind(inputs=lambda: two(x=full((1, 8, 8, 8), 30000)))
def avg_pool_sum_overflow() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8, 8, 8))
    return g.finish(
        [
            g.op(
                "AVERAGE_POOL_2D",
                [x],
                [g.tensor("y", (1, 2, 2, 8))],
                padding=1,
                strideW=4,
                strideH=4,
                filterWidth=4,
                filterHeight=4,
            )
        ]
    )


@kind(fast=True)
def rmsnorm_rank3() -> bytes:
    return rms(1.0, 1e-5)


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", fast=True)
def rmsnorm_rank3_underflow() -> bytes:
    return rms(1e-5, 1e-12)


@kind(gpu="fail", reason="SILENT_ZERO_VECTOR", fast=True)
def rmsnorm_rank3_overflow() -> bytes:
    return rms(2e3, 1e-5)


@kind()
def rmsnorm_small_but_eps() -> bytes:
    return rms(1e-2, 1e-3)


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", inputs=lambda: two(x=full((1, 32), 11.5, 0.05)))
def exp_overflow() -> bytes:
    return un("EXP", (1, 32))


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", inputs=lambda: two(x=full((1, 32), 300, 0.05)))
def square_overflow() -> bytes:
    return un("SQUARE", (1, 32), back=1e-5)


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY", fast=True)
def add_sub_large() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64))
    a = g.op("ADD", [x, k(g, "c", [1e5])], [g.tensor("a", (1, 64))])
    return g.finish([g.op("SUB", [a, k(g, "c2", [1e5])], [g.tensor("y", (1, 64))])])


@kind(gpu="fail", reason="PRECISION_DEGRADATION")
def add_sub_2048() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64))
    a = g.op("ADD", [x, k(g, "c", [2048])], [g.tensor("a", (1, 64))])
    return g.finish([g.op("SUB", [a, k(g, "c2", [2048])], [g.tensor("y", (1, 64))])])


@kind()
def partly_subnormal_output() -> bytes:
    return un("TANH", (1, 64), scale=1e-3)


@kind(gpu="warn")
def div_by_tiny() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64))
    a = g.op("MUL", [x, k(g, "c", [1e-6])], [g.tensor("a", (1, 64))])
    return g.finish([g.op("DIV", [a, k(g, "c2", [1e-6])], [g.tensor("y", (1, 64))])])


@kind()
def sin_of_large() -> bytes:
    return un("SIN", (1, 64), scale=4.0)


@kind(gpu="fail", reason="PRECISION_DEGRADATION")
def sin_of_very_large() -> bytes:
    return un("SIN", (1, 64), scale=3000.0)


@kind()
def gelu_like() -> bytes:
    return un("GELU", (1, 64))


@kind(gpu="pass warn unsupported", fp32="pass warn unsupported")
def cumsum() -> bytes:
    g = Graph()
    x = g.input("x", (1, 128))
    return g.finish([g.op("CUMSUM", [x, g.const("ax", np.int32(1))], [g.tensor("y", (1, 128))])])


@kind(gpu="fail unsupported", fp32="pass warn unsupported", inputs=lambda: two(x=full((1, 256), 500)))
def cumsum_overflow() -> bytes:
    g = Graph()
    x = g.input("x", (1, 256))
    return g.finish([g.op("CUMSUM", [x, g.const("ax", np.int32(1))], [g.tensor("y", (1, 256))])])


@kind(cpu="inconclusive", gpu="inconclusive", fp32="inconclusive", fast=True)
def true_zero_values() -> bytes:
    return un("RELU", (1, 64), scale=0.0)


@kind(gpu="fail", fp32="fail", reason="PRECISION_DEGRADATION", fast=True)
def one_zero_row() -> bytes:
    g = Graph()
    x = g.input("x", (4, 32))
    m = np.ones((4, 1), F)
    m[2] = 0
    return g.finish([g.op("MUL", [x, g.const("m", m)], [g.tensor("y", (4, 32))])])


@kind()
def row_flushes() -> bytes:
    # row 2 is computed through a value FP16 flushes: (x*1e-9)*1e9
    g = Graph()
    x = g.input("x", (4, 32))
    m = np.ones((4, 1), F)
    m[2] = 1e-9
    a = g.op("MUL", [x, g.const("m", m)], [g.tensor("a", (4, 32))])
    return g.finish([g.op("DIV", [a, g.const("m2", m)], [g.tensor("y", (4, 32))])])


@kind(inputs=lambda: two(x=full((1, 1 << 16), 1.0, 0.5)))
def mean_65536() -> bytes:
    return red("MEAN", (1, 1 << 16), (1,), (1, 1), keep=True)


@kind(inputs=lambda: two(x=full((1, 256, 256, 4), 1000.0, 0.2)))
def mean_256x256_of_1000() -> bytes:
    return red("MEAN", (1, 256, 256, 4), (1, 2), (1, 4))


@kind(inputs=lambda: two(x=full((1, 1 << 20), 1000.0, 0.5)))
def mean_2_20() -> bytes:
    return red("MEAN", (1, 1 << 20), (1,), (1, 1), keep=True)


@kind(gpu="fail", reason="SATURATION", inputs=lambda: two(x=full((1, 1 << 18), 1.0, 0.5)))
def sum_2_18() -> bytes:
    return red("SUM", (1, 1 << 18), (1,), (1, 1), keep=True)


@kind(inputs=lambda: two(x=full((1, 512, 512, 2), 1.0, 0.5)))
def avgpool_512() -> bytes:
    g = Graph()
    x = g.input("x", (1, 512, 512, 2))
    return g.finish(
        [
            g.op(
                "AVERAGE_POOL_2D",
                [x],
                [g.tensor("y", (1, 1, 1, 2))],
                padding=1,
                strideW=512,
                strideH=512,
                filterWidth=512,
                filterHeight=512,
            )
        ]
    )


@kind(inputs=lambda: two(x=full((1, 1 << 17), 1.0, 0.5)))
def layernorm_131072() -> bytes:
    g = Graph()
    n = 1 << 17
    x = g.input("x", (1, n))
    mu = g.op("MEAN", [x, g.ints("ax", 1)], [g.tensor("mu", (1, 1))], keepDims=True)
    return g.finish([g.op("SUB", [x, mu], [g.tensor("y", (1, n))])])


@kind(gpu="inconclusive", fast=True)
def subnormal_abs() -> bytes:
    return un("ABS", (1, 64), scale=1e-6)


@kind()
def values_offset() -> bytes:
    # values around 1000 with spread 0.5: SNR is fine, centred is not
    g = Graph()
    x = g.input("x", (1, 64))
    return g.finish([g.op("ADD", [x, k(g, "c", [1000])], [g.tensor("y", (1, 64))])])


@kind(gpu="fail", reason="NUMERICAL_INSTABILITY")
def two_outputs_one_bad() -> bytes:
    g = Graph()
    x = g.input("x", (1, 64))
    a = g.op("TANH", [x], [g.tensor("good", (1, 64))])
    b = g.op(
        "MUL",
        [g.op("MUL", [x, k(g, "u", [1e6])], [g.tensor("t", (1, 64))]), k(g, "d", [1e-6])],
        [g.tensor("bad", (1, 64))],
    )
    return g.finish([a, b])


@kind(gpu="fail unsupported", fp32="pass warn unsupported")
def reduce_prod_overflow() -> bytes:
    g = Graph()
    x = g.input("x", (1, 16))
    a = g.op("ADD", [x, k(g, "c", [3.0])], [g.tensor("a", (1, 16))])
    return g.finish([g.op("REDUCE_PROD", [a, g.ints("ax", 1)], [g.tensor("y", (1, 1))], keepDims=True)])


@kind()
def stagnating_cnn() -> bytes:
    g = Graph()
    t = g.input("x", (1, 8, 8, 8))
    for i in range(40):
        t = g.op("ADD", [t, k(g, f"c{i}", [0.0001])], [g.tensor(f"t{i}", (1, 8, 8, 8))])
    return g.finish([t])


@kind()
def sparse_relu_rows() -> bytes:
    return sparse()


@kind(fast=True)
def sparse_relu_rows_64() -> bytes:
    return sparse(64, 8, -1.6, 64)
