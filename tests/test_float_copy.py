"""Float copies: exact weights, nothing else changed, refusals with a reason, and which cells are judged by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from farm.agent_protocol import AgentResult
from farm.cases import ModelRequest
from farm.float_copy import float_copy
from farm.inventory import Inventory
from farm.judge import judge_cell
from farm.judge.verdict import CellEvidence
from farm.objects import Objects
from farm.outcome import Reference
from farm.plan import PlannedDevice
from farm.rewrite import NotRewritable
from farm.sweep import sweep
from farm.tflite import Model, Tensor
from tests import graphs
from tests.judge.kit import Bench, noisy
from tests.lab.gpus import gpus
from tests.trustkit import case_of, maker, model_of, rng

INT8 = rng(1).integers(-127, 128, (48, 32)).astype(np.int8)
PER_CHANNEL = np.linspace(0.005, 0.02, 48).astype(np.float32)


def fc(weights: np.ndarray = INT8, shape: tuple[int, ...] = (1, 32), dtype: str = "int8", **quantization: Any) -> bytes:
    """FULLY_CONNECTED with the given stored weights and a float input."""
    g = graphs.Graph()
    x = g.input("x", shape)
    units = 48
    w = g.const("w", weights, dtype, (units, 32), **quantization)
    y = g.tensor("y", (*shape[:-1], units))
    return g.finish([g.op("FULLY_CONNECTED", [x, w, -1], [y], version=4, keepNumDims=len(shape) > 2)])


def conv(depthwise: bool = False) -> bytes:
    """CONV_2D or DEPTHWISE_CONV_2D with int8 weights per channel."""
    g = graphs.Graph()
    x = g.input("x", (1, 12, 12, 8))
    out, axis = (8, 3) if depthwise else (16, 0)
    shape = (1, 3, 3, 8) if depthwise else (16, 3, 3, 8)
    stored = rng(2).integers(-127, 128, shape).astype(np.int8)
    w = g.const("w", stored, scale=list(np.linspace(0.005, 0.02, out)), zero_point=0, axis=axis)
    b, y = g.const("b", np.zeros(out, np.float32)), g.tensor("y", (1, 12, 12, out))
    if depthwise:
        options = {"version": 6, "depthMultiplier": 1}
        return g.finish([g.op("DEPTHWISE_CONV_2D", [x, w, b], [y], padding=0, strideW=1, strideH=1, **options)])
    return g.finish([g.op("CONV_2D", [x, w, b], [y], version=5, padding=0, strideW=1, strideH=1)])


def batch_matmul() -> bytes:
    g = graphs.Graph()
    x = g.input("x", (1, 6, 32))
    w = g.const("w", rng(4).integers(-127, 128, (1, 32, 16)).astype(np.int8), scale=0.01, zero_point=0)
    return g.finish([g.op("BATCH_MATMUL", [x, w], [g.tensor("y", (1, 6, 16))], version=4)])


def blockwise(block: int = 8) -> tuple[bytes, np.ndarray]:
    """int8 weights with one float16 scale per block of a row, and what they stand for."""
    g = graphs.Graph()
    x = g.input("x", (1, 32))
    scales = (rng(5).random((48, 32 // block)) * 0.02).astype(np.float16)
    s, w = g.const("scales", scales), g.const("w", INT8)
    q = schema.QuantizationParametersT()
    q.detailsType, q.details = schema.QuantizationDetails.BlockwiseQuantization, schema.BlockwiseQuantizationT()
    q.details.scales, q.details.zeroPoints, q.details.blockSize = s, -1, block
    g.sub.tensors[w].quantization = q
    data = g.finish([g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor("y", (1, 48))], version=4)])
    return data, np.repeat(scales.astype(np.float32), block, axis=1) * INT8


def weights_of(tmp_path: Path, data: bytes) -> np.ndarray:
    """The float weights of a copy of a model whose second tensor of two dimensions or more is `w`."""
    copy = model_of(tmp_path, float_copy(model_of(tmp_path, data)), "copy")
    tensor = named(copy, "w")
    assert tensor.dtype == "float32"
    assert tensor.quantization is None
    values = copy.constant(tensor)
    assert values is not None
    return values


def named(model: Model, name: str) -> Tensor:
    return next(t for t in model.subgraphs[0].tensors if t.name == name)


# --- what is in the copy ----------------------------------------------------------------------------------------------


def test_weights_are_scale_times_stored_less_zero_point(tmp_path: Path) -> None:
    got = weights_of(tmp_path, fc(scale=0.01, zero_point=3))
    assert np.array_equal(got, np.float32(0.01) * (INT8.astype(np.float32) - 3))


def test_weights_per_channel_follow_their_axis(tmp_path: Path) -> None:
    got = weights_of(tmp_path, fc(scale=list(PER_CHANNEL), zero_point=0))
    assert np.array_equal(got, PER_CHANNEL[:, None] * INT8)
    depthwise = weights_of(tmp_path, conv(depthwise=True))
    stored = rng(2).integers(-127, 128, (1, 3, 3, 8)).astype(np.int8)
    assert np.array_equal(depthwise, np.linspace(0.005, 0.02, 8).astype(np.float32) * stored)


def test_int4_weights_are_unpacked_low_bits_first(tmp_path: Path) -> None:
    packed = rng(6).integers(0, 256, 48 * 16).astype(np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(48, 32).astype(np.int8)
    signed = np.where(nibbles > 7, nibbles - 16, nibbles)
    got = weights_of(tmp_path, fc(packed, dtype="int4", scale=list(PER_CHANNEL), zero_point=0))
    assert np.array_equal(got, PER_CHANNEL[:, None] * signed)


def test_blockwise_scales_come_from_their_tensor(tmp_path: Path) -> None:
    data, right = blockwise()
    assert np.array_equal(weights_of(tmp_path, data), right.astype(np.float32))


def test_the_graph_around_the_weights_stays_and_the_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    model = model_of(tmp_path, conv())
    data = float_copy(model)
    assert data == float_copy(model)
    copy = model_of(tmp_path, data, "copy")
    assert copy.signatures == model.signatures
    assert copy.subgraphs[0].ops == model.subgraphs[0].ops
    others = [t for t in model.subgraphs[0].tensors if t.name != "w"]
    assert [t for t in copy.subgraphs[0].tensors if t.name != "w"] == others


def test_weights_that_another_op_reads_too_keep_their_stored_form_for_it(tmp_path: Path) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 32))
    w = g.const("w", INT8, scale=0.01, zero_point=0)
    y = g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor("y", (1, 48))], version=4)
    d = g.op("DEQUANTIZE", [w], [g.tensor("d", (48, 32))], version=2)
    copy = model_of(tmp_path, float_copy(model_of(tmp_path, g.finish([y, d]))), "copy")
    product, dequantize = copy.subgraphs[0].ops
    tensors = copy.subgraphs[0].tensors
    assert tensors[product.inputs[1]].dtype == "float32"
    assert tensors[dequantize.inputs[0]].dtype == "int8"
    assert copy.raw(tensors[dequantize.inputs[0]]).tobytes() == INT8.tobytes()


def test_two_signatures_share_one_float_buffer(tmp_path: Path) -> None:
    g = graphs.Graph(subgraphs=2)
    buffer = None
    for i in range(2):
        g.at(i)
        x = g.input("x", (1, 32))
        buffer = g.buffer(INT8) if buffer is None else buffer
        w = g.tensor("w", (48, 32), "int8", scale=0.01, buffer=buffer)
        y = g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor("y", (1, 48))], version=4)
        g.sub.outputs = [y]
        g.signature(f"s{i}", {"x": x}, {"y": y}, i)
    copy = model_of(tmp_path, float_copy(model_of(tmp_path, g.finish(signature=None))), "copy")
    first, second = (named_in.tensors[1] for named_in in copy.subgraphs)
    assert first.dtype == second.dtype == "float32"
    assert first.buffer == second.buffer
    assert copy.size_bytes < 2 * 4 * INT8.size


def _computed() -> bytes:
    g = graphs.Graph()
    x, v = g.input("x", (1, 32)), g.input("v", (48, 32), "int8", scale=0.01)
    w = g.op("RESHAPE", [v, g.ints("shape", 48, 32)], [g.tensor("w", (48, 32), "int8", scale=0.01)])
    return g.finish([g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor("y", (1, 48))], version=4)])


def _shuffled() -> bytes:
    g = graphs.Graph()
    x, w = g.input("x", (1, 32)), g.const("w", INT8, scale=0.01, zero_point=0)
    y = g.tensor("y", (1, 48))
    return g.finish([g.op("FULLY_CONNECTED", [x, w, -1], [y], version=4, weightsFormat=1)])


def _sparse() -> bytes:
    g = graphs.Graph()
    parts = []
    for size in (48, 32):
        part = schema.DimensionMetadataT()
        part.format, part.denseSize = schema.DimensionType.DENSE, size
        parts.append(part)
    sparsity = schema.SparsityParametersT()
    sparsity.traversalOrder, sparsity.dimMetadata = np.array([0, 1], np.int32), parts
    x, w = g.input("x", (1, 32)), g.const("w", INT8, scale=0.01, zero_point=0, sparsity=sparsity)
    return g.finish([g.op("FULLY_CONNECTED", [x, w, -1], [g.tensor("y", (1, 48))], version=4)])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_sparse, "stored sparse"),
        (lambda: fc(), "have no scale"),
        (lambda: fc(scale=[0.01] * 7, zero_point=0), "7 scales along axis 0"),
        (_computed, "computed, not constant"),
        (_shuffled, "are shuffled"),
    ],
)
def test_weights_of_an_unknown_layout_are_refused_with_a_reason(
    tmp_path: Path, data: Callable[[], bytes], says: str
) -> None:
    with pytest.raises(NotRewritable, match=says):
        float_copy(model_of(tmp_path, data()))


def test_a_copy_beyond_2_gib_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is lowered instead of writing 2 GiB.
    monkeypatch.setattr("farm.float_copy.LARGEST", 4 * INT8.size)
    with pytest.raises(NotRewritable, match="larger than 2 GiB"):
        float_copy(model_of(tmp_path, fc(scale=0.01, zero_point=0)))


# --- the reference of a hybrid model ----------------------------------------------------------------------------------


def test_a_hybrid_model_has_a_float_reference_that_the_cache_keeps(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    x = rng().standard_normal((1, 32)).astype(np.float32)
    case = case_of(model_of(tmp_path, fc(scale=0.01, zero_point=0)), objects, (x,), (2 * x,))
    references = maker(tmp_path, objects)
    got = references.get(case)
    assert got.dequantised is not None
    assert got.dequantised.first is not None
    for run, given in zip(got.dequantised.first.runs, (x, 2 * x), strict=True):
        y = objects.load(run.outputs[0].sha256, "float32", (1, 48))
        assert np.allclose(y, given @ (np.float32(0.01) * INT8.astype(np.float32)).T, rtol=1e-5, atol=1e-5)
    assert got.dequantised.floor is not None
    (near,) = got.dequantised.plain_snr_db
    assert near is not None
    assert 30 < near < 60  # activations in 8 bits
    references.close()
    fresh = Objects(tmp_path / "other")
    again = maker(tmp_path, fresh).get(case_of(model_of(tmp_path, fc(scale=0.01, zero_point=0)), fresh, (x,), (2 * x,)))
    assert again == got
    assert fresh.has(got.dequantised.first.runs[1].outputs[0].sha256)


def test_weights_behind_an_explicit_dequantize_need_no_copy(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    x = rng().standard_normal((1, 32)).astype(np.float32)
    got = maker(tmp_path, objects).get(case_of(model_of(tmp_path, graphs.weight_only_fc()), objects, (x,)))
    assert got.first is not None
    assert got.dequantised is None
    assert got.dequantised_note == ""


def test_why_there_is_no_copy_is_kept_with_the_reference(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    x = rng().standard_normal((1, 32)).astype(np.float32)
    v = np.ones((48, 32), np.int8)
    got = maker(tmp_path, objects).get(case_of(model_of(tmp_path, _computed()), objects, (x, v)))
    assert got.dequantised is None
    assert got.failure is None
    assert "computed, not constant" in got.dequantised_note


# --- who is judged by it ----------------------------------------------------------------------------------------------

PLAIN_SNR = 46.0


def hybrid(
    target: np.ndarray | None = None,
    *,
    config: str = "gpu-fp32",
    precision: str = "fp32",
    copied: bool = True,
    delegation: str = "full",
    near: float = PLAIN_SNR,
) -> CellEvidence:
    """A hybrid model whose plain reference lies 46 dB from its float copy; target defaults to the copy itself."""
    bench = Bench()
    right = rng(9).standard_normal((4, 64)).astype(np.float32)
    plain = noisy(right, near)
    tgt = right if target is None else target
    evidence = bench.evidence(
        plain,
        tgt,
        config=config,
        precision=precision,
        delegation=delegation,
        graph={"hybrid_ops": ("FULLY_CONNECTED",)},
    )
    if not copied:
        reference = replace(_reference(evidence), dequantised_note="no float copy could be made: too large")
        return replace(evidence, reference=reference)
    copy: AgentResult = bench.result([{"y": right}])
    nested = Reference(case="m", first=copy, second=copy, floor=copy, float_copy=True, plain_snr_db=(near,))
    return replace(evidence, reference=replace(_reference(evidence), dequantised=nested))


def _reference(evidence: CellEvidence) -> Reference:
    assert evidence.reference is not None
    return evidence.reference


RIGHT = rng(9).standard_normal((4, 64)).astype(np.float32)


def test_a_gpu_is_judged_against_the_float_copy_in_the_bands_of_its_class() -> None:
    good = judge_cell(hybrid(noisy(RIGHT, 90, seed=5)))
    assert good.verdict == "pass"
    assert any("float copy with dequantised weights" in n and "46 dB" in n for n in good.notes)
    bad = judge_cell(hybrid(noisy(RIGHT, 40, seed=5)))
    assert (bad.verdict, bad.reasons) == ("fail", ("PRECISION_DEGRADATION",))
    assert judge_cell(hybrid(noisy(RIGHT, 40, seed=5), config="gpu", precision="fp16")).verdict == "pass"


def test_a_cpu_cell_is_judged_against_the_plain_reference() -> None:
    same = judge_cell(hybrid(noisy(RIGHT, PLAIN_SNR), config="cpu"))
    assert same.verdict == "pass"
    assert not any("float copy" in n for n in same.notes)


def test_without_a_copy_fp32_bands_never_fail() -> None:
    got = judge_cell(hybrid(copied=False))
    assert (got.verdict, got.reasons) == ("inconclusive", ("REFERENCE_UNSTABLE",))
    assert "no float copy could be made: too large" in got.message
    assert judge_cell(hybrid(copied=False, config="gpu", precision="fp16")).verdict == "pass"


@pytest.mark.parametrize("level", ["partial", "unknown"])
def test_ops_that_stayed_on_the_cpu_may_quantise_there(level: str) -> None:
    quantised = noisy(RIGHT, PLAIN_SNR)
    assert judge_cell(hybrid(quantised)).verdict == "fail"
    got = judge_cell(hybrid(quantised, delegation=level))
    assert (got.verdict, got.reasons) == ("inconclusive", ("REFERENCE_UNSTABLE",))
    assert "quantise there as well" in got.message
    assert judge_cell(hybrid(delegation=level)).verdict == "pass"
    assert judge_cell(hybrid(quantised, delegation=level, config="gpu", precision="fp16")).verdict == "pass"
    # Quantised activations explain 46 dB, not 10.
    assert judge_cell(hybrid(noisy(RIGHT, 10), delegation=level)).verdict == "fail"


def test_the_cpu_forced_to_fp16_is_judged_as_an_fp16_device() -> None:
    got = judge_cell(hybrid(noisy(RIGHT, PLAIN_SNR), config="cpu-fp16", precision="fp16"))
    assert got.verdict == "pass"
    assert any("float copy" in note for note in got.notes)


def test_a_copy_that_quantised_activations_cannot_explain_blames_nobody() -> None:
    got = judge_cell(hybrid(noisy(RIGHT, 10, seed=5), near=8.0))
    assert (got.verdict, got.reasons) == ("inconclusive", ("REFERENCE_UNSTABLE",))
    assert "8 dB apart" in got.message
    assert judge_cell(hybrid(near=8.0)).verdict == "pass"


@pytest.mark.gpu
def test_hybrid_models_pass_on_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpus()
    if len(found) < 2:
        pytest.skip("needs llvmpipe and SwiftShader (make lab-gpus)")
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path / "cache"))
    devices = tuple(
        PlannedDevice(id=name, transport="local", env={"VK_ICD_FILENAMES": str(icd)}) for name, icd in found.items()
    )
    flat, sequence, image = (1, 32), (1, 6, 32), (1, 12, 12, 8)
    packed = rng(6).integers(0, 256, 48 * 16).astype(np.uint8)
    kinds = {
        "fc_rank2": (fc(scale=0.01, zero_point=0), flat),
        "fc_rank3": (fc(shape=sequence, scale=list(PER_CHANNEL), zero_point=0), sequence),
        "int4": (fc(packed, dtype="int4", scale=list(PER_CHANNEL), zero_point=0), flat),
        "conv": (conv(), image),
        "depthwise": (conv(depthwise=True), image),
        "batch_matmul": (batch_matmul(), sequence),
    }
    requests = []
    for name, (data, shape) in kinds.items():
        inputs = tmp_path / f"{name}.npz"
        np.savez(inputs, in0=rng().standard_normal(shape).astype(np.float32))
        requests.append(ModelRequest(path=graphs.write(tmp_path, name, data), inputs=(inputs,)))
    result = sweep(requests, inventory=Inventory(devices=devices), out=tmp_path / "runs")
    seen = {(c.model, c.device, c.config): c for c in result if c.config in ("cpu", "gpu", "gpu-fp32")}
    assert len(seen) == len(kinds) * 2 * 3
    assert {key: c.verdict for key, c in seen.items() if c.verdict != "pass"} == {}
    # Far nearer than the CPU's own 46 dB: this is what makes a real fault of the GPU visible.
    assert all(c.outputs[0].metrics["snr_db"] > 100 for (_, _, config), c in seen.items() if config == "gpu-fp32")
