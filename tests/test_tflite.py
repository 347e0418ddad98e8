"""Reading and verifying .tflite files: what is found in whole ones, said of damaged ones, and what the runtime says."""

from __future__ import annotations

import importlib.util
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import flatbuffers
import graphs
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from farm.errors import InvalidInput
from farm.flatbuffer import Damaged, Reader
from farm.tflite import InvalidModel, Model, read_model
from farm.tflite_schema import OPERATORS, TABLES, TENSOR_TYPES, UNIONS

ROOT = Path(__file__).resolve().parents[1]


def model_of(tmp_path: Path, data: bytes) -> Model:
    return read_model(graphs.write(tmp_path, "m", data))


# --- whole files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_every_whole_file_is_read(tmp_path: Path, kind: str) -> None:
    model = model_of(tmp_path, graphs.KINDS[kind]())
    assert model.signatures
    assert model.size_bytes == len(model.data)


def test_agrees_with_the_generated_schema_classes_on_every_field(tmp_path: Path) -> None:
    for make in (graphs.encoder, graphs.tiny_cnn, graphs.while_loop, graphs.resource_variable, graphs.int4_fc):
        data = make()
        ours = model_of(tmp_path, data)
        theirs = schema.ModelT.InitFromPackedBuf(data)
        for mine, g in zip(ours.subgraphs, theirs.subgraphs, strict=True):
            for t, other in zip(mine.tensors, g.tensors, strict=True):
                assert (t.name, t.shape) == (other.name.decode(), tuple(other.shape))
                assert TENSOR_TYPES[other.type].lower() == t.dtype
                scale = () if other.quantization is None else tuple(other.quantization.scale)
                assert (t.quantization.scale if t.quantization else ()) == scale
                stored = theirs.buffers[other.buffer].data
                assert ours.raw(t) == (b"" if stored is None else stored.tobytes())
            for op, other in zip(mine.ops, g.operators, strict=True):
                code = theirs.operatorCodes[other.opcodeIndex]
                assert (op.name, op.version) == (OPERATORS[code.builtinCode], code.version)
                assert op.inputs == (() if other.inputs is None else tuple(other.inputs))
                assert op.outputs == (() if other.outputs is None else tuple(other.outputs))
                named = vars(other.builtinOptions) if other.builtinOptions else {}
                assert list(op.options.values()) == [_plain(v) for v in named.values()]


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, np.ndarray) else value.decode() if isinstance(value, bytes) else value


def test_options_have_the_schemas_names(tmp_path: Path) -> None:
    conv = model_of(tmp_path, graphs.tiny_cnn()).subgraphs[0].ops[0]
    assert (conv.options["stride_w"], conv.options["fused_activation_function"], conv.options["dilation_w_factor"]) == (
        1,
        1,
        1,
    )


def test_signature_order_is_the_subgraphs_not_the_files(tmp_path: Path) -> None:
    (s,) = model_of(tmp_path, graphs.reordered_signature()).signatures
    assert s.inputs == (("a", 0), ("b", 1))
    assert s.outputs == (("d", 3), ("c", 2))


def test_model_without_signatures_gets_one_named_by_its_tensors(tmp_path: Path) -> None:
    (s,) = model_of(tmp_path, graphs.no_signature()).signatures
    assert (s.index, s.key, s.subgraph, s.inputs, s.outputs) == (0, "", 0, (("x", 0),), (("o", 1),))


def test_repeated_and_missing_names_become_unique(tmp_path: Path) -> None:
    g = graphs.Graph()
    a, b, c = g.input("same", (1,)), g.input("same", (1,)), g.input("", (1,))
    y = g.op("ADD", [a, b], [g.tensor("y", (1,))])
    (s,) = model_of(tmp_path, g.finish([g.op("ADD", [y, c], [g.tensor("", (1,))])], signature=None)).signatures
    assert [n for n, _ in s.inputs] == ["same", "same~2", "in2"]
    assert [n for n, _ in s.outputs] == ["out0"]


def test_constants_are_read_back(tmp_path: Path) -> None:
    g = graphs.Graph()
    g.input("x", (1, 4))
    packed = np.uint8([0x21, 0xF8])  # low bits first: 1, 2, -8, -1
    g.const("i4", packed, "int4", (1, 4))
    g.const("i2", np.uint8([0b11100100]), "int2", (4,))  # 0, 1, -2, -1
    g.const("bf", np.uint16([0x3F80, 0xC020]), "bfloat16", (2,))  # 1.0, -2.5
    g.const("f16", np.float16([0.5, -1]))
    y = g.const("y", np.float32([[1, 2, 3, 4]]))
    model = model_of(tmp_path, g.finish([y]))
    read = {t.name: model.constant(t) for t in model.subgraphs[0].tensors}
    assert read["x"] is None
    assert read["i4"].tolist() == [[1, 2, -8, -1]]
    assert read["i2"].tolist() == [0, 1, -2, -1]
    assert read["bf"].tolist() == [1.0, -2.5]
    assert read["f16"].tolist() == [0.5, -1.0]
    assert read["y"].tolist() == [[1, 2, 3, 4]]


def test_custom_op_keeps_its_code(tmp_path: Path) -> None:
    assert model_of(tmp_path, graphs.custom_op("Vendor")).subgraphs[0].ops[0].name == "CUSTOM:Vendor"


def test_data_behind_the_flatbuffer_is_found(tmp_path: Path) -> None:
    """Files over 2 GiB keep constants after the flatbuffer, by offset and size."""

    def build(offset: int, size: int) -> bytes:
        g = graphs.Graph()
        x = g.input("x", (1, 4))
        k = g.tensor("k", (1, 4), buffer=g.buffer(np.empty(0, np.uint8)))
        g.model.buffers[-1].data, g.model.buffers[-1].offset, g.model.buffers[-1].size = None, offset, size
        return g.finish([g.op("ADD", [x, k], [g.tensor("y", (1, 4))])])

    at = len(build(1 << 20, 16))
    model = model_of(tmp_path, build(at, 16) + np.float32([1, 2, 3, 4]).tobytes())
    k = model.subgraphs[0].tensors[1]
    assert k.has_data
    assert model.constant(k).tolist() == [[1, 2, 3, 4]]
    with pytest.raises(InvalidModel, match="past the end of the file"):
        model_of(tmp_path, build(at, 17) + bytes(16))


def test_ten_megabytes_are_verified_in_well_under_50_ms(shared: Path) -> None:
    path = max((shared / "models").glob("*.tflite"), key=lambda p: p.stat().st_size)
    data = memoryview(path.read_bytes())
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        Reader(data, TABLES, UNIONS).read("Model")
        best = min(best, time.perf_counter() - start)
    assert best < 0.05


# --- not models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html><body>Access denied</body></html>", "HTML page"),
        (b"\n  <html>", "HTML page"),
        (b"PK\x03\x04" + bytes(100), r"zip archive.*\.task bundle"),
        (b"\x1f\x8b" + bytes(100), "gzip"),
        (b"LITERTLM" + bytes(100), "litertlm"),
        (b"TFL", "not TFL3"),
        (bytes(1000), "not TFL3"),
    ],
)
def test_a_file_that_is_no_model_is_refused_with_one_sentence_and_its_cure(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=said) as e:
        read_model(path)
    (problem,) = e.value.problems
    assert problem.file == str(path)
    assert problem.cure


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        read_model(tmp_path / "none.tflite")
    with pytest.raises(InvalidInput, match="is a directory"):
        read_model(tmp_path)


# --- damaged ones ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", graphs.DAMAGED)
def test_a_damaged_model_says_where_and_keeps_its_digest(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InvalidModel, match=r"tensor|byte|subgraph") as e:
        model_of(tmp_path, graphs.DAMAGED[kind]())
    assert len(e.value.sha256) == 64
    assert e.value.size_bytes > 0


def test_the_first_part_of_a_model_is_never_taken_for_a_model(tmp_path: Path) -> None:
    data = graphs.fc_chain()
    for end in range(8, len(data) - 16, 37):
        with pytest.raises(InvalidModel):
            model_of(tmp_path, data[:end])


def test_subgraphs_calling_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    g = graphs.Graph(subgraphs=2)
    c, x = g.input("c", (1,), "bool"), g.input("x", (1,))
    y = g.op("IF", [c, x], [g.tensor("y", (1,))], thenSubgraphIndex=1, elseSubgraphIndex=1)
    g.signature("s", {"c": c, "x": x}, {"y": y}, 0)
    g.sub.outputs = [y]
    g.at(1)
    x = g.input("x", (1,))
    c = g.const("yes", np.array([True]))
    g.sub.outputs = [g.op("IF", [c, x], [g.tensor("y", (1,))], thenSubgraphIndex=1, elseSubgraphIndex=1)]
    with pytest.raises(InvalidModel, match="circle"):
        model_of(tmp_path, g.finish())


def test_text_without_its_final_zero_is_damage(tmp_path: Path) -> None:
    data = bytearray(graphs.fc_chain())
    end = data.index(b"made for a test") + len(b"made for a test")
    assert data[end] == 0
    data[end] = ord("x")
    with pytest.raises(InvalidModel, match="does not end with a zero byte"):
        model_of(tmp_path, bytes(data))


def test_an_offset_to_an_odd_place_is_damage(tmp_path: Path) -> None:
    data = bytearray(graphs.fc_chain())
    (root,) = struct.unpack_from("<I", data)
    struct.pack_into("<I", data, 0, root + 2)
    with pytest.raises(InvalidModel, match=f"Model at byte {root + 2}: its start .* not aligned to 4"):
        model_of(tmp_path, bytes(data))


def test_a_convolution_without_weights_is_refused_and_one_without_bias_is_not(tmp_path: Path) -> None:
    """LiteRT's kernels take an absent bias, and die of SIGSEGV while compiling on an absent kernel."""

    def build(*absent: int) -> bytes:
        g = graphs.Graph()
        inputs = [
            g.input("x", (1, 4, 4, 1)),
            g.const("k", np.ones((1, 1, 1, 1), np.float32)),
            g.const("b", np.float32([0])),
        ]
        inputs = [-1 if i in absent else t for i, t in enumerate(inputs)]
        y = g.tensor("y", (1, 4, 4, 1))
        return g.finish([g.op("CONV_2D", inputs, [y], padding=0, strideW=1, strideH=1)])

    assert model_of(tmp_path, build(2)).subgraphs[0].ops[0].inputs == (0, 1, -1)
    with pytest.raises(InvalidModel, match="op 0 of subgraph 0 lacks one of the first 2 inputs"):
        model_of(tmp_path, build(1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: None, None),
        (lambda s: setattr(s, "traversalOrder", np.int32([0, 0])), "rank"),
        (lambda s: setattr(s.dimMetadata[0], "denseSize", 5), "dimension of 5"),
        (lambda s: setattr(s.dimMetadata[1].arraySegments, "values", np.int32([0, 2, 1, 3, 4])), "indices outside"),
        (lambda s: setattr(s.dimMetadata[1].arraySegments, "values", np.int32([0, 4])), "segments"),
        (lambda s: setattr(s.dimMetadata[1].arrayIndices, "values", np.int32([0, 1, 2, 9])), "indices outside"),
    ],
)
def test_sparse_constants_are_checked_before_densify_trusts_them(
    tmp_path: Path, change: object, said: str | None
) -> None:
    """4×4, one nonzero per row, rows dense and columns compressed."""
    s = schema.SparsityParametersT()
    s.traversalOrder, s.dimMetadata = np.int32([0, 1]), [schema.DimensionMetadataT(), schema.DimensionMetadataT()]
    s.dimMetadata[0].format, s.dimMetadata[0].denseSize = 0, 4
    columns = s.dimMetadata[1]
    columns.format, columns.arraySegmentsType, columns.arrayIndicesType = 1, 1, 1
    columns.arraySegments, columns.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
    columns.arraySegments.values, columns.arrayIndices.values = np.int32([0, 1, 2, 3, 4]), np.int32([0, 1, 2, 3])
    change(s)  # type: ignore[operator]
    g = graphs.Graph()
    x = g.input("x", (1, 4))
    w = g.const("w", np.ones(4, np.float32), shape=(4, 4), sparsity=s)
    d = g.op("DENSIFY", [w], [g.tensor("d", (4, 4))])
    data = g.finish([g.op("FULLY_CONNECTED", [x, d, -1], [g.tensor("y", (1, 4))])])
    if said is None:
        assert model_of(tmp_path, data).subgraphs[0].tensors[1].sparse
        return
    with pytest.raises(InvalidModel, match=said):
        model_of(tmp_path, data)


def test_hostile_sharing_is_read_in_time_linear_in_the_size() -> None:
    """1,000 rows that all name one vector of 1,000 rows, and so on down: 10^12 tables if they were walked."""
    b = flatbuffers.Builder(1 << 16)
    b.StartObject(2)
    leaf = b.EndObject()
    for slot in (0, 0, 0, 0):
        b.StartVector(4, 1000, 4)
        for _ in range(1000):
            b.PrependUOffsetTRelative(leaf)
        rows = b.EndVector()
        b.StartObject(2)
        b.PrependUOffsetTRelativeSlot(slot, rows, 0)
        leaf = b.EndObject()
    b.Finish(leaf)
    start = time.perf_counter()
    with pytest.raises(Damaged, match="tables"):
        Reader(memoryview(bytes(b.Output())), {"Node": "rows:[{Node next:i32"}, {}).read("Node")
    assert time.perf_counter() - start < 2


def test_vectors_that_overlap_are_refused_once_they_outgrow_the_file() -> None:
    """Every row points at a longer tail of the same numbers: quadratic if each were copied."""
    n = 3000
    b = flatbuffers.Builder(1 << 16)
    b.StartVector(4, n, 4)
    for _ in range(n):
        b.PrependInt32(1000)
    numbers = b.EndVector()
    rows = []
    for _ in range(500):
        b.StartObject(1)
        b.PrependUOffsetTRelativeSlot(0, numbers, 0)
        rows.append(b.EndObject())
    b.StartVector(4, len(rows), 4)
    for r in rows:
        b.PrependUOffsetTRelative(r)
    listed = b.EndVector()
    b.StartObject(1)
    b.PrependUOffsetTRelativeSlot(0, listed, 0)
    b.Finish(b.EndObject())
    tables = {"Root": "rows:[{Row", "Row": "numbers:[i32"}
    data = bytearray(b.Output())
    assert len(Reader(memoryview(bytes(data)), tables, {}).read("Root")["rows"]) == 500
    # Each row now names its own place among the numbers; every number says "1000 follow".
    at = data.find(struct.pack("<I", n) + struct.pack("<I", 1000))
    for i in range(len(data) // 4):
        (offset,) = struct.unpack_from("<I", data, 4 * i)
        if 4 * i + offset == at:
            struct.pack_into("<I", data, 4 * i, offset + 4 * (1 + i % 1500))
    with pytest.raises(Damaged, match="overlaps"):
        Reader(memoryview(bytes(data)), tables, {}).read("Root")


def test_nothing_but_our_own_errors_comes_out_of_random_damage(tmp_path: Path) -> None:
    rng = random.Random(11)
    originals = [make() for make in graphs.KINDS.values()]
    for _ in range(600):
        _reads(graphs.write(tmp_path, "m", mutate(rng, rng.choice(originals))))


def mutate(rng: random.Random, whole: bytes) -> bytes:
    """A truncation, some flipped bits, or a changed 1-, 2- or 4-byte number."""
    b = bytearray(whole)
    match rng.randrange(5):
        case 0:
            del b[rng.randrange(8, len(b)) :]
        case 1:
            for _ in range(rng.choice((1, 1, 2, 8))):
                b[rng.randrange(8, len(b))] ^= 1 << rng.randrange(8)
        case 2:
            b[rng.randrange(8, len(b))] = rng.choice((0, 1, 127, 128, 255))
        case 3:
            at = rng.randrange(2, len(b) // 4) * 4
            b[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 4, 0xFFFFFFFF, 0x7FFFFFFF, rng.randrange(1 << 16))))
        case _:
            at = rng.randrange(4, len(b) // 2) * 2
            b[at : at + 2] = struct.pack("<H", rng.choice((0, 1, 0xFFFF, rng.randrange(64))))
    return bytes(b)


# --- against the runtime --------------------------------------------------------------------------------------------

LOADER = """
import ctypes, os, signal, sys
lib, P = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p
for line in sys.stdin:
    child = os.fork()
    if not child:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        signal.alarm(20)
        env, model = P(), P()
        lib.LiteRtCreateEnvironment(0, None, ctypes.byref(env))
        os._exit(1 if lib.LiteRtCreateModelFromFile(env, os.fsencode(line.rstrip()), ctypes.byref(model)) else 0)
    status = os.waitpid(child, 0)[1]
    print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
"""


class Loader:
    """LiteRT's own loader, each file in a process of its own: 0 loaded, 1 refused, −signal died."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("ai_edge_litert")
        assert spec is not None
        assert spec.origin is not None
        library = Path(spec.origin).with_name("libLiteRt.so")
        if not library.is_file():
            pytest.skip("this platform's wheel has no libLiteRt.so")
        self._child = subprocess.Popen(
            [sys.executable, "-c", LOADER, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def load(self, path: Path) -> int:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{path}\n")
        self._child.stdin.flush()
        return int(self._child.stdout.readline())

    def close(self) -> None:
        self._child.communicate(timeout=30)


@pytest.fixture(scope="module")
def loader() -> Iterator[Loader]:
    one = Loader()
    yield one
    one.close()


def test_whatever_passes_does_not_kill_the_runtimes_loader(tmp_path: Path, loader: Loader) -> None:
    """LiteRT maps files without verifying them: about a fifth of damaged ones kill it. None of those may get past."""
    rng = random.Random(5)
    originals = [make() for make in graphs.KINDS.values()]
    passed = 0
    for i in range(400):
        path = graphs.write(tmp_path, "m", mutate(rng, rng.choice(originals)))
        if not _reads(path):
            continue
        passed += 1
        assert loader.load(path) >= 0, f"mutation {i} passes and kills the loader"
    assert passed > 100


def test_the_loader_does_die_of_what_we_refuse(tmp_path: Path, loader: Loader) -> None:
    """Else the test above could not fail."""
    data = graphs.fc_chain()
    died = [loader.load(graphs.write(tmp_path, "m", data[: len(data) * n // 8])) for n in range(1, 8)]
    assert min(died) < 0


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_what_the_runtime_loads_is_never_refused(tmp_path: Path, loader: Loader, kind: str) -> None:
    path = graphs.write(tmp_path, "m", graphs.KINDS[kind]())
    assert loader.load(path) == 0
    read_model(path)


def test_shared_models_are_refused_only_where_the_runtime_refuses_them(shared: Path, loader: Loader) -> None:
    paths = sorted([*(shared / "models").glob("*.tflite"), *(shared / "cases/models").glob("*.tflite")])
    refused = [path for path in paths if not _reads(path)]
    assert len(refused) < len(paths) / 5
    # LiteRT's own loader checks signatures, the interpreter underneath the rest.
    assert [path.name for path in refused if loader.load(path) == 0 and _interprets(path)] == []


def _reads(path: Path) -> bool:
    try:
        read_model(path)
    except (InvalidModel, InvalidInput):
        return False
    return True


def _interprets(path: Path) -> bool:
    """Whether the interpreter takes a file. Given bytes it verifies them first, so it is safe in this process."""
    from ai_edge_litert.interpreter import Interpreter

    try:
        Interpreter(model_content=path.read_bytes()).allocate_tensors()
    except (ValueError, RuntimeError):
        return False
    return True


def test_the_schema_table_is_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import make_tflite_schema
    finally:
        sys.path.pop(0)
    spec = importlib.util.find_spec("ai_edge_litert.schema_py_generated")
    assert spec is not None
    assert spec.origin is not None
    made: dict[str, object] = {}
    exec(make_tflite_schema.render(Path(spec.origin).read_text(), ""), made)
    # A newer wheel may add tables, members and ops; what the kept table says must still be so.
    assert made["TABLES"] | TABLES == made["TABLES"]
    assert made["TENSOR_TYPES"] | TENSOR_TYPES == made["TENSOR_TYPES"]
    assert made["OPERATORS"] | OPERATORS == made["OPERATORS"]
    assert {u: made["UNIONS"][u] | m for u, m in UNIONS.items()} == made["UNIONS"]


def test_generated_models_are_the_shipped_ones_byte_for_byte() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import make_models
    finally:
        sys.path.pop(0)
    for name, make in make_models.MODELS.items():
        assert (ROOT / name).read_bytes() == make(), name
    assert sum(p.stat().st_size for p in (ROOT / "demo").glob("*.tflite")) < 1_500_000


@pytest.mark.parametrize("folder", ["demo", "farm/canaries"])
def test_shipped_models_are_whole(folder: str) -> None:
    paths = list((ROOT / folder).glob("*.tflite"))
    assert len(paths) >= 3
    for path in paths:
        read_model(path)
