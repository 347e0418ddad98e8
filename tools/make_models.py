"""Write the models that travel with farm: the three canaries in farm/canaries/ and the generated ones in demo/.

`python tools/make_models.py` writes them byte for byte the same again (a test compares); `--into DIR` writes elsewhere.
The two real models in demo/ are not made here; demo/README.md says where they come from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from graphs import Graph, output_and_consumed, square_scaled  # noqa: E402  the builder lives with the tests


def weights(seed: int, *shape: int, fan_in: int) -> np.ndarray:
    """Seeded float32 weights of variance 2 / fan_in. RandomState: its stream never changes between numpy versions."""
    return (np.random.RandomState(seed).standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)


def healthy_cnn() -> bytes:
    """32 × 32 image → three convolutions → mean → 10 class scores: right at every precision."""
    g = Graph(description="healthy CNN classifier, seeded weights")
    t, side, channels = g.input("image", (1, 32, 32, 3)), 32, 3
    for i, (filters, stride) in enumerate(((16, 1), (24, 2), (32, 2))):
        side //= stride
        k = g.const(f"kernel{i}", weights(i, filters, 3, 3, channels, fan_in=9 * channels))
        b = g.const(f"bias{i}", weights(10 + i, filters, fan_in=200))
        out = g.tensor(f"conv{i}", (1, side, side, filters))
        t = g.op("CONV_2D", [t, k, b], [out], padding=0, strideW=stride, strideH=stride, fusedActivationFunction=1)
        channels = filters
    m = g.op("MEAN", [t, g.ints("axes", 1, 2)], [g.tensor("mean", (1, channels))], keepDims=False)
    w, b = g.const("w", weights(20, 10, channels, fan_in=channels)), g.const("b", weights(21, 10, fan_in=200))
    logits = g.op("FULLY_CONNECTED", [m, w, b], [g.tensor("logits", (1, 10))])
    return g.finish([g.op("SOFTMAX", [logits], [g.tensor("scores", (1, 10))], beta=1.0)])


def embedder(*, hidden_gain: float = 1.0, tiny: bool = False) -> bytes:
    """Token ids and a 0/1 mask → one attention layer → masked mean → RMSNorm: a text embedder of 32 dimensions.

    hidden_gain scales what goes into the attention scores: 300 takes their sums past FP16's 65504, and the softmax of
    Inf is NaN. tiny sends the pooled vector through 1e-9 and back, which FP16 cannot follow: exact zeros.
    """
    vocabulary, tokens, dim = 128, 16, 32
    g = Graph(description="small text embedder, seeded weights")
    ids, mask = g.input("input_ids", (1, tokens), "int32"), g.input("attention_mask", (1, tokens), "int32")
    flat = g.op(
        "RESHAPE", [ids, g.ints("flat_to", tokens)], [g.tensor("flat", (tokens,), "int32")], newShape=np.int32([tokens])
    )
    table = g.const("table", weights(30, vocabulary, dim, fan_in=2))
    rows = g.op("EMBEDDING_LOOKUP", [flat, table], [g.tensor("rows", (tokens, dim))])
    hidden = g.op("MUL", [rows, g.const("gain", np.float32([hidden_gain]))], [g.tensor("hidden", (tokens, dim))])
    q = g.op(
        "FULLY_CONNECTED",
        [hidden, g.const("wq", weights(31, dim, dim, fan_in=dim)), -1],
        [g.tensor("q", (tokens, dim))],
    )
    k = g.op(
        "FULLY_CONNECTED",
        [hidden, g.const("wk", weights(32, dim, dim, fan_in=dim)), -1],
        [g.tensor("k", (tokens, dim))],
    )
    v = g.op(
        "FULLY_CONNECTED", [rows, g.const("wv", weights(33, dim, dim, fan_in=dim)), -1], [g.tensor("v", (tokens, dim))]
    )
    scores = g.op("BATCH_MATMUL", [q, k], [g.tensor("scores", (tokens, tokens))], adjY=True)
    scale = g.const("scale", np.float32([1 / np.sqrt(dim) / hidden_gain**2]))
    scaled = g.op("MUL", [scores, scale], [g.tensor("scaled", (tokens, tokens))])
    kept = g.op("CAST", [mask], [g.tensor("kept", (1, tokens))])
    gone = g.op("SUB", [kept, g.const("one", np.float32([1]))], [g.tensor("gone", (1, tokens))])
    low = g.op("MUL", [gone, g.const("low", np.float32([1e4]))], [g.tensor("bias", (1, tokens))])
    masked = g.op("ADD", [scaled, low], [g.tensor("masked", (tokens, tokens))])
    p = g.op("SOFTMAX", [masked], [g.tensor("p", (tokens, tokens))], beta=1.0)
    a = g.op("BATCH_MATMUL", [p, v], [g.tensor("attended", (tokens, dim))])
    pooled = g.op("BATCH_MATMUL", [kept, a], [g.tensor("pooled", (1, dim))])
    if tiny:
        for i, factor in enumerate((1e-5, 1e-4, 3e4, 3.3e4)):
            pooled = g.op("MUL", [pooled, g.const(f"f{i}", np.float32([factor]))], [g.tensor(f"step{i}", (1, dim))])
    square = g.op("MUL", [pooled, pooled], [g.tensor("square", (1, dim))])
    mean = g.op("MEAN", [square, g.ints("axis", 1)], [g.tensor("mean", (1, 1))], keepDims=True)
    safe = g.op("ADD", [mean, g.const("eps", np.float32([1e-3]))], [g.tensor("safe", (1, 1))])
    root = g.op("RSQRT", [safe], [g.tensor("root", (1, 1))])
    return g.finish([g.op("MUL", [pooled, root], [g.tensor("embedding", (1, dim))])])


def int8_classifier() -> bytes:
    """16 × 16 grey image, int8 throughout: convolution, pooling, fully connected, softmax."""
    g = Graph(description="int8 classifier, seeded weights")
    x = g.input("image", (1, 16, 16, 1), "int8", scale=1 / 255, zero_point=-128)

    def int8(name: str, seed: int, *shape: int, fan_in: int) -> tuple[int, float]:
        w = weights(seed, *shape, fan_in=fan_in)
        scale = float(np.abs(w).max() / 127)
        return g.const(name, np.rint(w / scale).astype(np.int8), scale=scale, zero_point=0), scale

    k, s = int8("kernel", 40, 8, 3, 3, 1, fan_in=9)
    b = g.const("bias", np.zeros(8, np.int32), scale=s / 255, zero_point=0)
    conv = g.tensor("conv", (1, 16, 16, 8), "int8", scale=3 / 255, zero_point=-128)
    g.op("CONV_2D", [x, k, b], [conv], padding=0, strideW=1, strideH=1, fusedActivationFunction=1, version=3)
    pool = g.tensor("pool", (1, 4, 4, 8), "int8", scale=3 / 255, zero_point=-128)
    g.op("MAX_POOL_2D", [conv], [pool], padding=1, strideW=4, strideH=4, filterWidth=4, filterHeight=4, version=2)
    flat = g.tensor("flat", (1, 128), "int8", scale=3 / 255, zero_point=-128)
    g.op("RESHAPE", [pool, g.ints("to", 1, 128)], [flat], newShape=np.int32([1, 128]))
    w, s = int8("w", 41, 6, 128, fan_in=128)
    bias = g.const("b", np.zeros(6, np.int32), scale=s * 3 / 255, zero_point=0)
    logits = g.tensor("logits", (1, 6), "int8", scale=0.05, zero_point=0)
    g.op("FULLY_CONNECTED", [flat, w, bias], [logits], version=4)
    probabilities = g.tensor("probabilities", (1, 6), "int8", scale=1 / 256, zero_point=-128)
    return g.finish([g.op("SOFTMAX", [logits], [probabilities], beta=1.0, version=2)])


MODELS: dict[str, Callable[[], bytes]] = {
    "farm/canaries/ok.tflite": lambda: square_scaled((1.0,), ()),
    "farm/canaries/underflow.tflite": lambda: square_scaled((1e-5,), (1e10,)),
    "farm/canaries/overflow.tflite": lambda: square_scaled((1e4,), (1e-8,)),
    "demo/healthy_cnn.tflite": healthy_cnn,
    "demo/embedder.tflite": embedder,
    "demo/embedder_zero_in_fp16.tflite": lambda: embedder(tiny=True),
    "demo/embedder_nan_in_fp16.tflite": lambda: embedder(hidden_gain=300.0),
    "demo/sum_also_an_output.tflite": lambda: output_and_consumed("ADD"),
    "demo/int8_classifier.tflite": int8_classifier,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT, help="write under this folder instead of the repository")
    into: Path = parser.parse_args().into
    for name, make in MODELS.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make())
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
