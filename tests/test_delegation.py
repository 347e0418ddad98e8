"""Delegation evidence from logs recorded with LiteRT 2.3.0 (tests/data/logs), and from the words of other backends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.agent_protocol import AgentResult
from farm.delegation import Delegation, parse_log, refused_ops

LOGS = Path(__file__).parent / "data" / "logs"
BOTH = ("GPU WebGPU", "CpuAccelerator")
CPU = ("CpuAccelerator",)
GPU_ONLY, GPU_CPU = ("gpu",), ("gpu", "cpu")
LLVMPIPE = "llvmpipe (LLVM 15.0.6, 256 bits)"
SWIFTSHADER = "SwiftShader Device (Subzero)"


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text("utf-8")


def result(
    accelerators: tuple[str, ...] = BOTH, fully: bool | None = True, non_cpu: bool | None = True, *, ok: bool = True
) -> AgentResult:
    return AgentResult(
        protocol=1, agent_version="1", nonce="n", ok=ok, stage="done" if ok else "compile", accelerators=accelerators,
        fully_accelerated=fully, non_cpu_fully_accelerated=non_cpu,
    )  # fmt: skip


def failed(accelerators: tuple[str, ...] = BOTH) -> AgentResult:
    return result(accelerators, None, None, ok=False)


# Each row: log, what the agent reported beside it in the same run, what was asked, what it proves.
RECORDED = [
    ("cpu", result(CPU, True, False), ("cpu",), Delegation(level="none")),
    ("gpu_full_llvmpipe", result(), GPU_ONLY, Delegation(level="full", gpu_api="WebGPU/Vulkan", adapter=LLVMPIPE)),
    (
        "gpu_full_swiftshader",
        result(),
        GPU_ONLY,
        Delegation(level="full", gpu_api="WebGPU/Vulkan", adapter=SWIFTSHADER),
    ),
    ("gpu_multi_signature", result(), GPU_CPU, Delegation(level="full", gpu_api="WebGPU/Vulkan", adapter=LLVMPIPE)),
    (
        "gpu_cpu_partial",
        result(fully=False, non_cpu=False),
        GPU_CPU,
        Delegation(
            level="partial",
            cpu_ops=("DEQUANTIZE: Dequantize for Densify is not supported",),
            partitions=((2, 3),),
            gpu_api="WebGPU/Vulkan",
            adapter=LLVMPIPE,
        ),
    ),
    # XNNPACK took everything and the runtime calls that fully accelerated.
    (
        "gpu_cpu_all_refused",
        result(fully=True, non_cpu=False),
        GPU_CPU,
        Delegation(
            level="none",
            cpu_ops=("FULLY_CONNECTED: Expected Int8, Int4, or Int2 quantized tensor: 1",),
            partitions=((0, 1),),
            gpu_api="WebGPU/Vulkan",
            adapter=SWIFTSHADER,
        ),
    ),
    # WHILE itself stays on the CPU, its branches run on the GPU.
    (
        "gpu_cpu_while",
        result(fully=False, non_cpu=False),
        GPU_CPU,
        Delegation(
            level="partial",
            cpu_ops=("WHILE: Operation is not supported.",),
            partitions=((0, 1),),
            gpu_api="WebGPU/Vulkan",
            adapter=LLVMPIPE,
        ),
    ),
    (
        "gpu_refused_gather",
        failed(),
        GPU_ONLY,
        Delegation(
            level="none",
            cpu_ops=("GATHER: Only support 1D indices",),
            partitions=((0, 1),),
            gpu_api="WebGPU/Vulkan",
            adapter=SWIFTSHADER,
        ),
    ),
    ("gpu_no_adapter", failed(), GPU_ONLY, Delegation(level="unknown")),
    ("gpu_no_library", failed(CPU), GPU_ONLY, Delegation(level="none")),
    # No accelerator library, right numbers, fully accelerated: the CPU.
    ("gpu_cpu_no_library", result(CPU, True, False), GPU_CPU, Delegation(level="none")),
]


@pytest.mark.parametrize(("name", "reported", "asked", "proves"), RECORDED, ids=[r[0] for r in RECORDED])
def test_recorded_logs(name: str, reported: AgentResult, asked: tuple[str, ...], proves: Delegation) -> None:
    assert parse_log(log(name), reported, asked) == proves


def test_dynamic_tensors_are_a_refusal_in_the_runtimes_words() -> None:
    assert refused_ops(log("gpu_cpu_dynamic")) == (
        "Attempting to use a delegate that only supports static-sized tensors with a graph that has dynamic-sized "
        "tensors (tensor#1 is a dynamic-sized tensor).",
    )


def test_fully_accelerated_is_no_proof_where_the_cpu_was_allowed_and_the_runtime_is_older_than_2_3() -> None:
    assert parse_log("", result(non_cpu=None), GPU_CPU).level == "unknown"
    assert parse_log("", result(non_cpu=None), GPU_ONLY).level == "full"


def test_a_flag_that_denies_the_gpu_outweighs_fully_accelerated() -> None:
    assert parse_log("", result(non_cpu=False), GPU_ONLY).level == "unknown"


def test_an_npu_run_needs_an_npu_accelerator() -> None:
    assert parse_log("", result(), ("npu",)).level == "none"
    assert parse_log("", result(("NpuAccelerator", "CpuAccelerator")), ("npu",)).level == "full"


def test_a_crash_proves_nothing() -> None:
    assert parse_log(log("gpu_full_llvmpipe"), None, GPU_ONLY).level == "unknown"


# Words of other backends, put together from LiteRT's sources and public reports (facts of 2.3.0's libraries).
OPENCL = """\
INFO: [gpu_registry.cc:138] Dynamically loaded GPU accelerator(libLiteRtClGlAccelerator.so) registered.
INFO: Initializing OpenCL-based API from graph.
VERBOSE: Replacing 61 out of 64 node(s) with delegate (LITERT_CL) node, yielding 2 partitions for subgraph 0 (main).
VERBOSE: Replacing 3 out of 64 node(s) with delegate (TfLiteXNNPackDelegate) node, yielding 3 partitions for subgraph 0.
"""
LOGCAT = """\
11-30 12:00:00.123  1234  1240 E tflite : Following operations are not supported by GPU delegate:
11-30 12:00:00.123  1234  1240 E tflite : RESHAPE: Tensor "a/b" has bad input dims size: 5.
11-30 12:00:00.123  1234  1240 E tflite : TRANSPOSE: Tensor "a/b" has bad input dims size: 5.
11-30 12:00:00.124  1234  1240 E tflite : 277 operations will run on the GPU, and the remaining 121 operations will run
"""
OLDER = """\
ERROR: Next operations are not supported by GPU delegate:
MUL: MUL requires one tensor that not less than second in all dimensions.
First 25 operations will run on the GPU, and the remaining 40 on the CPU.
"""


def test_opencl_words_give_api_and_partitions_and_leave_xnnpack_out() -> None:
    found = parse_log(OPENCL, result(("GPU OpenCL", "CpuAccelerator"), False, False), GPU_CPU)
    assert (found.gpu_api, found.partitions, found.level) == ("OpenCL", ((61, 64),), "partial")


def test_failing_to_load_opencl_does_not_make_it_the_api() -> None:
    assert "OpenCL library" in log("gpu_full_llvmpipe")
    assert parse_log("INFO: Failed to load OpenCL library with dlopen: libOpenCL.so", None, GPU_ONLY).gpu_api is None


def test_logcat_prefixes_are_taken_off_the_refused_ops() -> None:
    assert refused_ops(LOGCAT) == (
        'RESHAPE: Tensor "a/b" has bad input dims size: 5.',
        'TRANSPOSE: Tensor "a/b" has bad input dims size: 5.',
    )
    assert parse_log(LOGCAT, result(fully=False, non_cpu=False), GPU_CPU).partitions == ((277, 398),)


def test_older_words_are_read_too() -> None:
    assert refused_ops(OLDER) == ("MUL: MUL requires one tensor that not less than second in all dimensions.",)
    assert parse_log(OLDER, failed(), GPU_ONLY).partitions == ((25, 65),)


def test_one_split_reported_by_both_lines_counts_once() -> None:
    text = log("gpu_cpu_partial") + "Replacing 2 out of 3 node(s) with delegate (LITERT_WEBGPU) node, yielding 2\n"
    assert parse_log(text, result(fully=False, non_cpu=False), GPU_CPU).partitions == ((2, 3),)


def test_metal_and_opengl_are_named() -> None:
    assert parse_log("Initializing Metal-based API from graph.", None, GPU_ONLY).gpu_api == "Metal"
    assert parse_log("with delegate (LITERT_GL) node", None, GPU_ONLY).gpu_api == "OpenGL"
    assert parse_log("Selected adapter: Apple M2, arch=, vendor=apple, backend=Metal", None, GPU_ONLY) == Delegation(
        level="unknown", gpu_api="WebGPU/Metal", adapter="Apple M2"
    )


def test_other_threads_lines_are_not_refused_ops() -> None:
    text = OLDER.replace("MUL:", "I0000 00:00:1.0 7 environment.cc:1] hello\nINFO: there\nMUL:", 1)
    assert refused_ops(text) == refused_ops(OLDER)


def test_a_hostile_log_is_bounded() -> None:
    text = "Following operations are not supported by GPU delegate:\n" + "\n".join(
        f"OP{i}: {'x' * 999}" for i in range(999)
    )
    found = refused_ops(text)
    assert len(found) == 200
    assert max(map(len, found)) <= 300


@given(st.text(max_size=400))
def test_any_text_is_parsed(text: str) -> None:
    for prefix in ("", "Following operations are not supported by GPU delegate:\n", "Selected adapter: "):
        parse_log(prefix + text, result(), GPU_CPU)
