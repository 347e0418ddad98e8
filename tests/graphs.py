"""Small .tflite graphs for tests: a compact builder over the wheel's schema classes, and ready kinds.

    g = Graph()
    x = g.input("x", (1, 4))
    y = g.op("MUL", [x, g.const("k", np.float32([2]))], [g.tensor("y", (1, 4))])
    data = g.finish([y])                      # bytes of a model with the signature "serving_default"

Several subgraphs: `Graph(subgraphs=n)` and `g.at(i)`. A kind is a function returning bytes; KINDS lists all by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

DTYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "float64": "FLOAT64", "bfloat16": "BFLOAT16", "int8": "INT8",
    "uint8": "UINT8", "int16": "INT16", "uint16": "UINT16", "int32": "INT32", "uint32": "UINT32", "int64": "INT64",
    "uint64": "UINT64", "bool": "BOOL", "string": "STRING", "resource": "RESOURCE", "variant": "VARIANT",
    "int4": "INT4", "int2": "INT2", "complex64": "COMPLEX64",
}  # fmt: skip

OPTIONS = {
    "CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions", "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions", "L2_POOL_2D": "Pool2DOptions", "SUM": "ReducerOptions", "MEAN": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions", "REDUCE_MIN": "ReducerOptions", "REDUCE_PROD": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions", "REDUCE_ALL": "ReducerOptions", "BATCH_MATMUL": "BatchMatMulOptions",
    "TOPK_V2": "TopKV2Options", "ARG_MAX": "ArgMaxOptions", "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions", "L2_NORMALIZATION": "L2NormOptions", "SELECT_V2": "SelectV2Options",
    "RANDOM_UNIFORM": "RandomOptions", "RANDOM_STANDARD_NORMAL": "RandomOptions", "PADV2": "PadV2Options",
    "SVDF": "SVDFOptions",
}  # fmt: skip
NO_OPTIONS = frozenset(
    ("LOGISTIC", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "TANH", "SQRT", "RSQRT", "SIN", "LOG", "ELU", "FLOOR",
     "CEIL", "ROUND", "EMBEDDING_LOOKUP", "CUSTOM", "PRELU", "HASHTABLE_LOOKUP")
)  # fmt: skip


class _Builder(flatbuffers.Builder):  # type: ignore[misc]
    def CreateNumpyVector(self, x: np.ndarray) -> Any:
        """Align byte vectors to 16 as the schema's force_align does; the wheel's Python packer forgets it."""
        if x.dtype != np.uint8:
            return super().CreateNumpyVector(x)
        self.StartVector(1, x.size, 16)
        self.head -= x.size
        self.Bytes[self.head : self.head + x.size] = x.tobytes()
        self.vectorNumElems = x.size
        return self.EndVector()


class Graph:
    """One model under construction. Tensor indices are per subgraph; methods act on the subgraph chosen by `at`."""

    def __init__(self, subgraphs: int = 1, description: str = "made for a test") -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.description = 3, description
        self.model.operatorCodes, self.model.buffers, self.model.signatureDefs = [], [self._buffer(None)], []
        self.model.metadata = []
        self.model.subgraphs = []
        for i in range(subgraphs):
            s = schema.SubGraphT()
            s.name, s.tensors, s.inputs, s.outputs, s.operators = f"graph{i}", [], [], [], []
            self.model.subgraphs.append(s)
        self.sub = self.model.subgraphs[0]

    @staticmethod
    def _buffer(data: np.ndarray | None) -> Any:
        b = schema.BufferT()
        b.data = None if data is None else np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        return b

    def at(self, subgraph: int) -> Graph:
        """Go on with another subgraph."""
        self.sub = self.model.subgraphs[subgraph]
        return self

    def buffer(self, data: np.ndarray) -> int:
        self.model.buffers.append(self._buffer(data))
        return len(self.model.buffers) - 1

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str = "float32", *, scale: float | Sequence[float] | None = None,
        zero_point: int | Sequence[int] = 0, axis: int = 0, buffer: int = 0, variable: bool = False,
        signature: Sequence[int] | None = None, sparsity: Any = None,
    ) -> int:  # fmt: skip
        """Add a tensor; `signature` is its shape_signature (-1 = may change)."""
        t = schema.TensorT()
        t.name, t.shape, t.type, t.buffer = (
            name,
            np.array(shape, np.int32),
            getattr(schema.TensorType, DTYPES[dtype]),
            buffer,
        )
        t.isVariable, t.hasRank, t.sparsity = variable, True, sparsity
        if signature is not None:
            t.shapeSignature = np.array(signature, np.int32)
        if scale is not None:
            q = schema.QuantizationParametersT()
            q.scale = np.atleast_1d(np.array(scale, np.float32))
            q.zeroPoint = np.broadcast_to(np.array(zero_point, np.int64), q.scale.shape).copy()
            q.quantizedDimension = axis
            t.quantization = q
        self.sub.tensors.append(t)
        return len(self.sub.tensors) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32", **more: Any) -> int:
        i = self.tensor(name, shape, dtype, **more)
        self.sub.inputs.append(i)
        return i

    def const(
        self, name: str, array: Any, dtype: str | None = None, shape: Sequence[int] | None = None, **more: Any
    ) -> int:
        """A constant. `dtype`/`shape` override the array's (packed int4 and the like)."""
        a = np.asarray(array)
        return self.tensor(
            name, a.shape if shape is None else shape, dtype or a.dtype.name, buffer=self.buffer(a), **more
        )

    def ints(self, name: str, *values: int) -> int:
        return self.const(name, np.array(values, np.int32))

    def op(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], *,
        version: int = 1, custom: str | None = None, **options: Any,
    ) -> int:  # fmt: skip
        """Add an op; options by the object API's names (strideW=1). Returns its first output, or -1."""
        key = (name, version, custom)
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version, code.customCode = min(code.builtinCode, 127), version, custom
        keys = [(c.builtinCode, c.version, c.customCode) for c in self.model.operatorCodes]
        wanted = (code.builtinCode, version, custom)
        if wanted not in keys:
            self.model.operatorCodes.append(code)
            keys.append(wanted)
        o = schema.OperatorT()
        o.opcodeIndex, o.inputs, o.outputs = keys.index(wanted), np.array(inputs, np.int32), np.array(outputs, np.int32)
        if key[0] not in NO_OPTIONS:
            kind = OPTIONS.get(name) or "".join(p.capitalize() for p in name.split("_")) + "Options"
            o.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
            o.builtinOptions = getattr(schema, kind + "T")()
            for k, v in options.items():
                if not hasattr(o.builtinOptions, k):
                    raise AttributeError(f"{kind} has no {k}")
                setattr(o.builtinOptions, k, v)
        self.sub.operators.append(o)
        return int(outputs[0]) if len(outputs) else -1

    def signature(self, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int], subgraph: int = 0) -> None:
        s = schema.SignatureDefT()
        s.signatureKey, s.subgraphIndex = key, subgraph
        s.inputs, s.outputs = [_map(*kv) for kv in inputs.items()], [_map(*kv) for kv in outputs.items()]
        self.model.signatureDefs.append(s)

    def metadata(self, name: str, data: bytes) -> None:
        m = schema.MetadataT()
        m.name, m.buffer = name, self.buffer(np.frombuffer(data, np.uint8))
        self.model.metadata.append(m)

    def finish(
        self,
        outputs: Sequence[int] = (),
        *,
        signature: str | None = "serving_default",
        names: Sequence[str] | None = None,
    ) -> bytes:
        """Name the outputs of the current subgraph, add a signature over tensor names (None: no signature) and pack."""
        if outputs:
            self.sub.outputs = list(outputs)
        if signature is not None and not self.model.signatureDefs:
            t = self.sub.tensors
            self.signature(
                signature,
                {t[i].name: i for i in self.sub.inputs},
                dict(zip(names or [t[i].name for i in self.sub.outputs], self.sub.outputs, strict=True)),
                self.model.subgraphs.index(self.sub),
            )
        for s in self.model.subgraphs:
            s.inputs, s.outputs = np.array(s.inputs, np.int32), np.array(s.outputs, np.int32)
        b = _Builder(1024)
        b.Finish(self.model.Pack(b), b"TFL3")
        return bytes(b.Output())


def _map(name: str, index: int) -> Any:
    m = schema.TensorMapT()
    m.name, m.tensorIndex = name, index
    return m


def write(folder: Path, name: str, data: bytes) -> Path:
    """`folder/name.tflite`."""
    path = folder / f"{name}.tflite"
    path.write_bytes(data)
    return path


def _rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def _floats(*shape: int, seed: int = 7, scale: float = 0.3) -> np.ndarray:
    return (_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def normalisation(mean: float, std: float) -> bytes:
    """TFLite metadata with one NormalizationOptions, by the field numbers of metadata_schema.fbs."""
    b = flatbuffers.Builder(256)

    def floats(value: float) -> int:
        b.StartVector(4, 1, 4)
        b.PrependFloat32(value)
        return int(b.EndVector())

    def table(**slots: int) -> int:
        b.StartObject(8)
        for slot, value in slots.items():
            b.PrependUOffsetTRelativeSlot(int(slot[1:]), value, 0)
        return int(b.EndObject())

    def one(child: int) -> int:
        b.StartVector(4, 1, 4)
        b.PrependUOffsetTRelative(child)
        return int(b.EndVector())

    means, stds = floats(mean), floats(std)
    options = table(_0=means, _1=stds)
    b.StartObject(2)
    b.PrependUint8Slot(0, 1, 0)
    b.PrependUOffsetTRelativeSlot(1, options, 0)
    units = one(int(b.EndObject()))
    tensors = one(table(_4=units))
    subgraphs = one(table(_2=tensors))
    b.Finish(table(_3=subgraphs), b"M001")
    return bytes(b.Output())


# --- values that FP16 holds, and that it does not ---------------------------------------------------------------------


def square_scaled(before: Sequence[float] = (1.0,), after: Sequence[float] = (), n: int = 16) -> bytes:
    """(x·before)² · after. (1), () is harmless; (1e-5), (1e10) underflows FP16; (1e4), (1e-8) overflows it."""
    g = Graph(description="canary: x squared, by way of other magnitudes")
    x = t = g.input("x", (1, n))
    for i, factor in enumerate(before):
        t = g.op("MUL", [t, g.const(f"before{i}", np.float32([factor]))], [g.tensor(f"scaled{i}", (1, n))])
    t = g.op("MUL", [t, t if after else x], [g.tensor("square" if after else "y", (1, n))])
    for i, factor in enumerate(after):
        name = "y" if i + 1 == len(after) else f"back{i}"
        t = g.op("MUL", [t, g.const(f"after{i}", np.float32([factor]))], [g.tensor(name, (1, n))])
    return g.finish([t])


def fc_chain(layers: int = 3, n: int = 16, activation: int = 1) -> bytes:
    """FULLY_CONNECTED layers with RELU between."""
    g = Graph()
    t = g.input("x", (1, n))
    for i in range(layers):
        w, b = g.const(f"w{i}", _floats(n, n, seed=i)), g.const(f"b{i}", _floats(n, seed=100 + i))
        last = i == layers - 1
        t = g.op("FULLY_CONNECTED", [t, w, b], [g.tensor(f"h{i}" if not last else "y", (1, n))],
                 fusedActivationFunction=0 if last else activation)  # fmt: skip
    return g.finish([t])


def tiny_cnn(side: int = 8, softmax: bool = True) -> bytes:
    """CONV_2D, MAX_POOL_2D, FULLY_CONNECTED, SOFTMAX over 10 classes: a healthy classifier."""
    g = Graph()
    x = g.input("image", (1, side, side, 3))
    k, kb, c = g.const("k", _floats(8, 3, 3, 3)), g.const("kb", _floats(8)), g.tensor("c", (1, side, side, 8))
    c = g.op("CONV_2D", [x, k, kb], [c], padding=0, strideW=1, strideH=1, fusedActivationFunction=1)
    half = side // 2
    p = g.op(
        "MAX_POOL_2D",
        [c],
        [g.tensor("p", (1, half, half, 8))],
        padding=0,
        strideW=2,
        strideH=2,
        filterWidth=2,
        filterHeight=2,
    )
    r = g.op(
        "RESHAPE",
        [p, g.ints("rs", 1, half * half * 8)],
        [g.tensor("r", (1, half * half * 8))],
        newShape=np.int32([1, half * half * 8]),
    )
    f = g.op(
        "FULLY_CONNECTED",
        [r, g.const("w", _floats(10, half * half * 8)), g.const("b", _floats(10))],
        [g.tensor("logits", (1, 10))],
    )
    return g.finish([g.op("SOFTMAX", [f], [g.tensor("scores", (1, 10))], beta=1.0) if softmax else f])


def rmsnorm(gain: float = 1.0, eps: float = 1e-6, n: int = 32) -> bytes:
    """x·gain, then x·rsqrt(mean(x²)+eps): gain 1e-4 underflows FP16 to zero, 1e4 overflows it."""
    g = Graph()
    x = g.input("x", (1, n))
    s = g.op("MUL", [x, g.const("gain", np.float32([gain]))], [g.tensor("s", (1, n))])
    sq = g.op("MUL", [s, s], [g.tensor("sq", (1, n))])
    m = g.op("MEAN", [sq, g.ints("axis", 1)], [g.tensor("m", (1, 1))], keepDims=True)
    e = g.op("ADD", [m, g.const("eps", np.float32([eps]))], [g.tensor("e", (1, 1))])
    r = g.op("RSQRT", [e], [g.tensor("r", (1, 1))])
    return g.finish([g.op("MUL", [s, r], [g.tensor("y", (1, n))])])


def layernorm(tap: str | None = None, rows: int = 4, n: int = 32) -> bytes:
    """MEAN/SUB/MUL/MEAN/RSQRT/MUL; `tap` (mu, d, sq, var) makes an inner tensor an output as well."""
    g = Graph()
    x = g.input("x", (rows, n))
    axis = g.ints("axis", 1)
    mu = g.op("MEAN", [x, axis], [g.tensor("mu", (rows, 1))], keepDims=True)
    d = g.op("SUB", [x, mu], [g.tensor("d", (rows, n))])
    sq = g.op("MUL", [d, d], [g.tensor("sq", (rows, n))])
    var = g.op("MEAN", [sq, axis], [g.tensor("var", (rows, 1))], keepDims=True)
    e = g.op("ADD", [var, g.const("eps", np.float32([1e-6]))], [g.tensor("e", (rows, 1))])
    r = g.op("RSQRT", [e], [g.tensor("r", (rows, 1))])
    ln = g.op("MUL", [d, r], [g.tensor("ln", (rows, n))])
    taps = {"mu": mu, "d": d, "sq": sq, "var": var}
    return g.finish([ln] + ([taps[tap]] if tap else []), names=["ln"] + (["tap"] if tap else []))


def reduce_sum(op: str = "SUM", side: int = 64, channels: int = 8) -> bytes:
    """SUM or MEAN over height and width."""
    g = Graph()
    x = g.input("x", (1, side, side, channels))
    return g.finish([g.op(op, [x, g.ints("axes", 1, 2)], [g.tensor("y", (1, channels))], keepDims=False)])


def reduce_long(op: str = "SUM", n: int = 1 << 17, then: bool = False) -> bytes:
    """One reduction over n elements; `then` puts a MUL behind it."""
    g = Graph()
    x = g.input("x", (1, n))
    y = g.op(op, [x, g.ints("axes", 1)], [g.tensor("s", (1,))], keepDims=False)
    return g.finish([g.op("MUL", [y, g.const("k", np.float32([0.5]))], [g.tensor("y", (1,))]) if then else y])


def masked_attention(tokens: int = 6, dim: int = 8, low: float = -1e9) -> bytes:
    """softmax(q·qᵀ + (1−mask)·low)·q with an int32 0/1 attention_mask."""
    g = Graph()
    q = g.input("hidden", (1, tokens, dim))
    mask = g.input("attention_mask", (1, tokens), "int32")
    f = g.op("CAST", [mask], [g.tensor("f", (1, tokens))])
    inv = g.op("SUB", [g.const("one", np.float32([1])), f], [g.tensor("inv", (1, tokens))])
    add = g.op("MUL", [inv, g.const("low", np.float32([low]))], [g.tensor("add", (1, tokens))])
    s = g.op("BATCH_MATMUL", [q, q], [g.tensor("s", (1, tokens, tokens))], adjY=True)
    sm = g.op("ADD", [s, add], [g.tensor("sm", (1, tokens, tokens))])
    p = g.op("SOFTMAX", [sm], [g.tensor("p", (1, tokens, tokens))], beta=1.0)
    return g.finish([g.op("BATCH_MATMUL", [p, q], [g.tensor("y", (1, tokens, dim))])])


def encoder(vocab: int = 100, tokens: int = 8, dim: int = 16) -> bytes:
    """input_ids, attention_mask, token_type_ids, position_ids → embeddings → masked mean → L2 norm: a text embedder."""
    g = Graph()
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    ids, mask, kinds, positions = (g.input(f"serving_default_{n}:0", (1, tokens), "int32") for n in names)
    total = -1
    for name, ix, rows in (("word", ids, vocab), ("kind", kinds, 2), ("position", positions, tokens)):
        flat = g.op(
            "RESHAPE",
            [ix, g.ints(f"{name}_to", tokens)],
            [g.tensor(f"{name}_flat", (tokens,), "int32")],
            newShape=np.int32([tokens]),
        )
        e = g.op(
            "EMBEDDING_LOOKUP",
            [flat, g.const(f"{name}_table", _floats(rows, dim, seed=rows))],
            [g.tensor(f"{name}_e", (tokens, dim))],
        )
        total = e if total < 0 else g.op("ADD", [total, e], [g.tensor(f"{name}_sum", (tokens, dim))])
    f = g.op("CAST", [mask], [g.tensor("mf", (1, tokens))])
    col = g.op(
        "RESHAPE", [f, g.ints("col_to", tokens, 1)], [g.tensor("col", (tokens, 1))], newShape=np.int32([tokens, 1])
    )
    m = g.op("MUL", [total, col], [g.tensor("m", (tokens, dim))])
    s = g.op("SUM", [m, g.ints("ax", 0)], [g.tensor("s", (1, dim))], keepDims=True)
    y = g.op("L2_NORMALIZATION", [s], [g.tensor("y", (1, dim))])
    g.signature("serving_default", dict(zip(names, (ids, mask, kinds, positions), strict=True)), {"output_0": y})
    return g.finish([y])


def gather_ids(vocab: int = 50, tokens: int = 5, dim: int = 8, dtype: str = "int32") -> bytes:
    """GATHER from a table of `vocab` rows by a [1, tokens] input."""
    g = Graph()
    ids = g.input("ids", (1, tokens), dtype)
    return g.finish(
        [g.op("GATHER", [g.const("table", _floats(vocab, dim)), ids], [g.tensor("y", (1, tokens, dim))], axis=0)]
    )


def embedding_lookup(vocab: int = 50, tokens: int = 5, dim: int = 8) -> bytes:
    g = Graph()
    ids = g.input("ids", (tokens,), "int32")
    return g.finish(
        [g.op("EMBEDDING_LOOKUP", [ids, g.const("table", _floats(vocab, dim))], [g.tensor("y", (tokens, dim))])]
    )


def logits(vocab: int = 1500, tokens: int = 4, dim: int = 8) -> bytes:
    """Token logits [1, tokens, vocab]: the distribution kind."""
    g = Graph()
    x = g.input("x", (tokens, dim))
    f = g.op(
        "FULLY_CONNECTED",
        [x, g.const("w", _floats(vocab, dim)), g.const("b", _floats(vocab))],
        [g.tensor("f", (tokens, vocab))],
    )
    return g.finish([g.op("RESHAPE", [f, g.ints("to", 1, tokens, vocab)], [g.tensor("logits", (1, tokens, vocab))],
                          newShape=np.int32([1, tokens, vocab]))])  # fmt: skip


# --- dtypes ---------------------------------------------------------------------------------------------------------


def quantised_fc(dtype: str = "int8", n: int = 8) -> bytes:
    """FULLY_CONNECTED with quantised input and output (int8, uint8 or int16)."""
    g = Graph()
    zero = {"int8": 3, "uint8": 128, "int16": 0}[dtype]
    wide = dtype == "int16"
    s = 1 / 4096 if wide else 0.02
    x = g.input("x", (1, n), dtype, scale=s, zero_point=zero)
    w = _rng().integers(-100, 100, (n, n))
    if dtype == "uint8":
        kernel = g.const("w", (w + 128).astype(np.uint8), scale=0.01, zero_point=128)
    else:
        kernel = g.const("w", w.astype(np.int8), scale=0.01, zero_point=0)
    bias = g.const("b", np.zeros(n, np.int64 if wide else np.int32), scale=s * 0.01, zero_point=0)
    y = g.tensor("y", (1, n), dtype, scale=s * 4, zero_point=zero)
    return g.finish([g.op("FULLY_CONNECTED", [x, kernel, bias], [y], version=7 if wide else 4)])


def quantised_softmax(n: int = 10) -> bytes:
    """int8 logits → int8 SOFTMAX with scale 1/256, zero point −128."""
    g = Graph()
    x = g.input("x", (1, n), "int8", scale=0.1, zero_point=0)
    return g.finish(
        [g.op("SOFTMAX", [x], [g.tensor("p", (1, n), "int8", scale=1 / 256, zero_point=-128)], beta=1.0, version=2)]
    )


def dynamic_range_fc(n: int = 32) -> bytes:
    """int8 weights read directly by a FULLY_CONNECTED with float activations: a hybrid kernel on the CPU."""
    g = Graph()
    x = g.input("x", (1, n))
    w = g.const("w", _rng().integers(-127, 127, (n, n)).astype(np.int8), scale=0.01, zero_point=0)
    return g.finish(
        [g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor("y", (1, n))], version=4, asymmetricQuantizeInputs=True)]
    )


def int4_fc(n: int = 32) -> bytes:
    """The same with packed int4 weights."""
    g = Graph()
    x = g.input("x", (1, n))
    w = g.const(
        "w", _rng().integers(0, 256, n * n // 2).astype(np.uint8), "int4", (n, n), scale=[0.01] * n, zero_point=0
    )
    return g.finish(
        [g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor("y", (1, n))], version=10, asymmetricQuantizeInputs=False)]
    )


def weight_only_fc(n: int = 32) -> bytes:
    """int8 weights through an explicit DEQUANTIZE: a float op, not a hybrid one."""
    g = Graph()
    x = g.input("x", (1, n))
    w = g.const("w", _rng().integers(-127, 127, (n, n)).astype(np.int8), scale=0.01, zero_point=0)
    d = g.op("DEQUANTIZE", [w], [g.tensor("wd", (n, n))], version=2)
    return g.finish([g.op("FULLY_CONNECTED", [x, d, -1], [g.tensor("y", (1, n))])])


def float16_weights(n: int = 32) -> bytes:
    g = Graph()
    x = g.input("x", (1, n))
    d = g.op("DEQUANTIZE", [g.const("w", _floats(n, n).astype(np.float16))], [g.tensor("wd", (n, n))], version=3)
    return g.finish([g.op("FULLY_CONNECTED", [x, d, -1], [g.tensor("y", (1, n))])])


def elementwise(op: str = "ADD", dtype: str = "float32", shape: Sequence[int] = (1, 8)) -> bytes:
    """x op x in any dtype (float16, int32, int64, float64 …)."""
    g = Graph()
    x = g.input("x", shape, dtype)
    return g.finish([g.op(op, [x, x], [g.tensor("y", shape, dtype)])])


def bool_output(n: int = 8) -> bytes:
    g = Graph()
    x = g.input("x", (1, n))
    return g.finish([g.op("GREATER", [x, g.const("zero", np.float32([0]))], [g.tensor("y", (1, n), "bool")])])


def bool_input(n: int = 8) -> bytes:
    g = Graph()
    m, x = g.input("mask", (1, n), "bool"), g.input("x", (1, n))
    return g.finish([g.op("SELECT_V2", [m, x, g.const("zero", np.zeros((1, n), np.float32))], [g.tensor("y", (1, n))])])


def argmax(n: int = 16) -> bytes:
    g = Graph()
    x = g.input("x", (1, 4, n))
    return g.finish([g.op("ARG_MAX", [x, g.ints("axis", 2)], [g.tensor("y", (1, 4), "int32")], outputType=2)])


def topk(n: int = 16, k: int = 4) -> bytes:
    g = Graph()
    x = g.input("x", (1, n))
    vals, idx = g.tensor("vals", (1, k)), g.tensor("idx", (1, k), "int32")
    g.op("TOPK_V2", [x, g.const("k", np.int32(k))], [vals, idx])
    return g.finish([vals, idx])


def sigmoid(n: int = 8) -> bytes:
    """LOGISTIC of a [1, 4, 4, n] map: the probability kind."""
    g = Graph()
    x = g.input("x", (1, 4, 4, n))
    return g.finish([g.op("LOGISTIC", [x], [g.tensor("y", (1, 4, 4, n))])])


def clip_unit(relu: bool = False, n: int = 8) -> bytes:
    """RELU_0_TO_1, or MINIMUM(MAXIMUM(x, 0), 1)."""
    g = Graph()
    x = g.input("x", (1, n))
    y = g.tensor("y", (1, n))
    if relu:
        return g.finish([g.op("RELU_0_TO_1", [x], [y])])
    a = g.op("MAXIMUM", [x, g.const("zero", np.float32(0))], [g.tensor("a", (1, n))])
    return g.finish([g.op("MINIMUM", [a, g.const("one", np.float32(1))], [y])])


def string_io() -> bytes:
    g = Graph()
    x = g.input("x", (1,), "string")
    return g.finish([g.op("RESHAPE", [x, g.ints("to", 1)], [g.tensor("y", (1,), "string")], newShape=np.int32([1]))])


# --- shapes and signatures ------------------------------------------------------------------------------------------


def dynamic_batch(n: int = 8) -> bytes:
    g = Graph()
    x = g.input("x", (1, n), signature=(-1, n))
    y = g.tensor("y", (1, n), signature=(-1, n))
    return g.finish([g.op("FULLY_CONNECTED", [x, g.const("w", _floats(n, n)), -1], [y])])


def dynamic_image(side: int = 1) -> bytes:
    """[1, -1, -1, 3] image whose stored shape is [1, side, side, 3]."""
    g = Graph()
    x = g.input("image", (1, side, side, 3), signature=(1, -1, -1, 3))
    y = g.tensor("y", (1, side, side, 4), signature=(1, -1, -1, 4))
    g.op(
        "CONV_2D",
        [x, g.const("k", _floats(4, 3, 3, 3)), g.const("b", _floats(4))],
        [y],
        padding=0,
        strideW=1,
        strideH=1,
    )
    return g.finish([y])


def scalar_io() -> bytes:
    g = Graph()
    x = g.input("x", ())
    return g.finish([g.op("MUL", [x, g.const("two", np.float32(2))], [g.tensor("y", ())])])


def empty_input() -> bytes:
    g = Graph()
    x = g.input("x", (0, 4))
    return g.finish([g.op("ADD", [x, x], [g.tensor("y", (0, 4))])])


def no_signature(n: int = 8) -> bytes:
    g = Graph()
    x = g.input("x", (1, n))
    return g.finish([g.op("TANH", [x], [g.tensor("o", (1, n))])], signature=None)


def two_signatures(n: int = 8) -> bytes:
    """encode and decode, one subgraph each, with different shapes."""
    g = Graph(subgraphs=2)
    x = g.input("x", (1, n))
    o = g.op("FULLY_CONNECTED", [x, g.const("w", _floats(4, n)), -1], [g.tensor("o", (1, 4))])
    g.sub.outputs = [o]
    g.signature("encode", {"x": x}, {"o": o}, 0)
    g.at(1)
    y = g.input("y", (1, 4))
    p = g.op("FULLY_CONNECTED", [y, g.const("v", _floats(n, 4)), -1], [g.tensor("p", (1, n))])
    g.sub.outputs = [p]
    g.signature("decode", {"y": y}, {"p": p}, 1)
    return g.finish()


def reordered_signature() -> bytes:
    """The signature names inputs b, a and outputs c, d; the subgraph's order is a, b and d, c."""
    g = Graph()
    a, b = g.input("t_a", (1, 2)), g.input("t_b", (1, 3))
    c = g.op("TANH", [a], [g.tensor("t_c", (1, 2))])
    d = g.op("TANH", [b], [g.tensor("t_d", (1, 3))])
    g.signature("serving_default", {"b": b, "a": a}, {"c": c, "d": d})
    return g.finish([d, c])


def hostile_names() -> bytes:
    g = Graph()
    x = g.input("x y\"'z", (1, 4))
    y = g.op("TANH", [x], [g.tensor("out/../../etc", (1, 4))])
    g.signature("sig with space/é$(id)", {"x y\"'z": x}, {"out/../../etc": y})
    return g.finish([y])


def signature_bad_tensor() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    y = g.op("TANH", [x], [g.tensor("y", (1, 4))])
    g.signature("serving_default", {"x": x}, {"y": 99})
    return g.finish([y])


def unused_input() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    g.input("mask", (1, 4), "int32")
    return g.finish([g.op("TANH", [x], [g.tensor("y", (1, 4))])])


# --- outputs nobody computes ----------------------------------------------------------------------------------------


def no_operators() -> bytes:
    g = Graph()
    g.input("x", (1, 4))
    return g.finish([g.tensor("y", (1, 4))])


def unwritten_output() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    y = g.op("TANH", [x], [g.tensor("y", (1, 4))])
    return g.finish([y, g.tensor("ghost", (1, 4))])


def passthrough() -> bytes:
    """Outputs: the input itself, y, and y again under another name."""
    g = Graph()
    x = g.input("x", (1, 4))
    y = g.op("TANH", [x], [g.tensor("y", (1, 4))])
    return g.finish([x, y, y], names=["same", "y", "again"])


def constant_output() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    y = g.op("TANH", [x], [g.tensor("y", (1, 4))])
    return g.finish([y, g.const("const", np.float32([[1, 2, 3, 4]]))])


def output_and_consumed(op: str = "ADD") -> bytes:
    """`sum` is an output and feeds SUM: LiteRT#8599's kind."""
    g = Graph()
    x, y = g.input("x", (1, 4, 4, 8)), g.input("y", (1, 4, 4, 8))
    s = g.op(op, [x, y], [g.tensor("sum", (1, 4, 4, 8))])
    return g.finish([s, g.op("SUM", [s, g.ints("axes", 1, 2)], [g.tensor("acc", (1, 8))], keepDims=False)])


def true_zero() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8))
    return g.finish([g.op("SUB", [x, x], [g.tensor("y", (1, 8))])])


# --- state, control flow, chance ------------------------------------------------------------------------------------


def resource_variable() -> bytes:
    """A counter: CALL_ONCE sets 0, every run adds x and returns the sum."""
    g = Graph(subgraphs=2)
    x = g.input("x", (1,))
    g.op("CALL_ONCE", [], [], initSubgraphIndex=1)
    h = g.op("VAR_HANDLE", [], [g.tensor("h", (), "resource")], container="", sharedName="v")
    r = g.op("READ_VARIABLE", [h], [g.tensor("r", (1,))])
    s = g.op("ADD", [r, x], [g.tensor("s", (1,))])
    g.op("ASSIGN_VARIABLE", [h, s], [])
    g.sub.outputs = [s]
    g.signature("serving_default", {"x": x}, {"s": s}, 0)
    g.at(1)
    h = g.op("VAR_HANDLE", [], [g.tensor("h1", (), "resource")], container="", sharedName="v")
    g.op("ASSIGN_VARIABLE", [h, g.const("start", np.float32([0]))], [])
    return g.finish()


def while_loop(times: int = 5, factor: float = 2) -> bytes:
    """i, x = 0, x; while i < times: i, x = i + 1, x · factor."""
    g = Graph(subgraphs=3)
    x = g.input("x", (1,))
    i, y = g.tensor("i_out", (1,), "int32"), g.tensor("y", (1,))
    g.op("WHILE", [g.const("zero", np.int32([0])), x], [i, y], condSubgraphIndex=1, bodySubgraphIndex=2)
    g.sub.outputs = [y]
    g.signature("serving_default", {"x": x}, {"y": y}, 0)
    g.at(1)
    i, x = g.input("i", (1,), "int32"), g.input("x", (1,))
    g.sub.outputs = [g.op("LESS", [i, g.const("n", np.int32([times]))], [g.tensor("c", (1,), "bool")])]
    g.at(2)
    i, x = g.input("i", (1,), "int32"), g.input("x", (1,))
    n = g.op("ADD", [i, g.const("one", np.int32([1]))], [g.tensor("n", (1,), "int32")])
    g.sub.outputs = [n, g.op("MUL", [x, g.const("two", np.float32([factor]))], [g.tensor("xx", (1,))])]
    return g.finish()


def stateful_branch() -> bytes:
    """IF whose then-branch reads a variable: state hidden one subgraph down."""
    g = Graph(subgraphs=3)
    c, x = g.input("c", (1,), "bool"), g.input("x", (1,))
    y = g.op("IF", [c, x], [g.tensor("y", (1,))], thenSubgraphIndex=1, elseSubgraphIndex=2)
    g.sub.outputs = [y]
    g.signature("serving_default", {"c": c, "x": x}, {"y": y}, 0)
    g.at(1)
    x = g.input("x", (1,))
    h = g.op("VAR_HANDLE", [], [g.tensor("h", (), "resource")], container="", sharedName="v")
    g.op("ASSIGN_VARIABLE", [h, x], [])
    g.sub.outputs = [g.op("READ_VARIABLE", [h], [g.tensor("r", (1,))])]
    g.at(2)
    x = g.input("x", (1,))
    g.sub.outputs = [g.op("NEG", [x], [g.tensor("m", (1,))])]
    return g.finish()


def random_uniform() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    r = g.op("RANDOM_UNIFORM", [g.ints("shape", 1, 4)], [g.tensor("r", (1, 4))])
    return g.finish([g.op("ADD", [x, r], [g.tensor("y", (1, 4))])])


def custom_op(code: str = "NoSuchOp") -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    return g.finish([g.op("CUSTOM", [x], [g.tensor("y", (1, 4))], custom=code)])


def op_version(version: int = 99) -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    return g.finish([g.op("TANH", [x], [g.tensor("y", (1, 4))], version=version)])


def self_loop() -> bytes:
    """ADD whose output is its own input."""
    g = Graph()
    x = g.input("x", (1, 4))
    y = g.tensor("y", (1, 4))
    g.op("ADD", [x, y], [y])
    return g.finish([y])


# --- damaged --------------------------------------------------------------------------------------------------------


def truncated(share: float = 0.5) -> bytes:
    data = fc_chain()
    return data[: int(len(data) * share)]


def bit_flipped(flips: int = 40) -> bytes:
    """Bits flipped in the half that holds tables and offsets."""
    data = bytearray(fc_chain())
    for at in _rng(3).integers(8, len(data) // 4, flips):
        data[at] ^= 1 << int(at % 8)
    return bytes(data)


def garbage_after_header() -> bytes:
    return b"\x1c\x00\x00\x00TFL3" + _rng(5).integers(0, 256, 400, dtype=np.uint8).tobytes()


def const_too_short() -> bytes:
    g = Graph()
    x = g.input("x", (1, 16))
    k = g.const("k", np.zeros(3, np.float32), shape=(1, 16))
    return g.finish([g.op("MUL", [x, k], [g.tensor("y", (1, 16))])])


def shape_overflow() -> bytes:
    g = Graph()
    big = (65536, 65536, 65536, 65536)
    x = g.input("x", big)
    return g.finish([g.op("TANH", [x], [g.tensor("y", big)])])


def input_index_out_of_range() -> bytes:
    g = Graph()
    x = g.input("x", (1, 4))
    return g.finish([g.op("ADD", [x, 77], [g.tensor("y", (1, 4))])])


def no_subgraph() -> bytes:
    g = Graph()
    g.model.subgraphs, g.model.signatureDefs = [], []
    b = flatbuffers.Builder(64)
    b.Finish(g.model.Pack(b), b"TFL3")
    return bytes(b.Output())


DAMAGED: dict[str, Callable[[], bytes]] = {
    f.__name__: f
    for f in (truncated, bit_flipped, garbage_after_header, const_too_short, shape_overflow, input_index_out_of_range,
              no_subgraph, signature_bad_tensor)
}  # fmt: skip
"""TFL3 files no cell can run: `error: INVALID_MODEL`."""

KINDS: dict[str, Callable[[], bytes]] = {
    f.__name__: f
    for f in (
        fc_chain, tiny_cnn, rmsnorm, layernorm, reduce_sum, reduce_long, masked_attention, encoder, gather_ids,
        embedding_lookup, logits, quantised_fc, quantised_softmax, dynamic_range_fc, int4_fc, weight_only_fc,
        float16_weights, elementwise, bool_output, bool_input, argmax, topk, sigmoid, clip_unit, string_io,
        dynamic_batch, dynamic_image, scalar_io, empty_input, no_signature, two_signatures, reordered_signature,
        hostile_names, unused_input, no_operators, unwritten_output, passthrough, constant_output, output_and_consumed,
        true_zero, resource_variable, while_loop, stateful_branch, random_uniform, custom_op, op_version, self_loop,
    )
}  # fmt: skip
"""Whole files; not all of them can be computed (string_io, custom_op, op_version, self_loop, empty_input …)."""
