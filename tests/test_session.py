"""What one agent process means: the table of classify(), and real visits to this machine with the real agent."""

from __future__ import annotations

import dataclasses

import pytest

from farm.agent_protocol import AgentResult
from farm.classify import classify, last_stage, refused
from farm.outcome import Failure
from farm.transports.base import Completed

REFUSED_LOG = (
    "ERROR: Following operations are not supported by GPU delegate:\n"
    "LOG_SOFTMAX: Operation is not supported.\n"
    "1 operations will run on the GPU, and the remaining 2 operations will run on the CPU.\n"
)


def result(**fields: object) -> AgentResult:
    base = AgentResult(
        protocol=1, agent_version="1", nonce="n", ok=False, stage="compile", accelerators=("GPU WebGPU",)
    )
    return dataclasses.replace(base, **fields)  # type: ignore[arg-type]


def ended(status: int | None, stdout: bytes = b"", stderr: bytes = b"") -> Completed:
    return Completed(exit_status=status, stdout=stdout, stderr=stderr, wall_s=0.1)


def failure(seen: Failure | None) -> Failure:
    assert seen is not None
    return seen


def test_a_success_has_no_failure_whatever_the_exit_status_says() -> None:
    assert classify(result(ok=True, stage="done"), ended(1), "ERROR: Failed to invoke") is None


@pytest.mark.parametrize(
    ("fields", "log", "accelerator", "code"),
    [
        ({"timed_out": True, "stage": "run"}, "", "gpu", "TIMEOUT"),
        ({"signal": 11}, "", "gpu", "CRASH"),
        ({"signal": 8}, "", "gpu", "CRASH"),
        ({"signal": 6}, "terminate called after throwing an instance of 'std::bad_alloc'", "cpu", "OUT_OF_MEMORY"),
        ({"signal": 15}, "", "cpu", "INFRA"),
        ({"status": 504}, "", "gpu", "UNSUPPORTED"),
        ({"status": 3}, REFUSED_LOG, "gpu", "UNSUPPORTED"),
        ({"status": 504}, REFUSED_LOG, "cpu", "RUNTIME_ERROR"),
        ({"status": 504, "accelerators": ("CpuAccelerator",)}, "", "gpu", "NO_ACCELERATOR"),
        (
            {"status": 3},
            "ERROR: Failed to initialize WebGPU environment: INTERNAL: No adapters found",
            "gpu",
            "NO_ACCELERATOR",
        ),
        ({"status": 2, "stage": "buffers"}, "", "cpu", "OUT_OF_MEMORY"),
        ({"status": 3, "stage": "run"}, "VK_ERROR_OUT_OF_DEVICE_MEMORY", "gpu", "OUT_OF_MEMORY"),
        ({"status": 3, "stage": "compile"}, "ERROR: Failed to allocate tensors", "cpu", "RUNTIME_ERROR"),
        ({"status": 501, "stage": "model"}, "", "cpu", "INVALID_MODEL"),
        ({"status": 3, "stage": "run"}, "", "gpu", "RUNTIME_ERROR"),
    ],
)
def test_a_failed_result_is_named_by_signal_status_and_words(
    fields: dict[str, object], log: str, accelerator: str, code: str
) -> None:
    assert failure(classify(result(**fields), ended(1), log, accelerator=accelerator)).code == code


def test_a_refusal_that_came_with_words_about_adapters_is_still_a_refusal() -> None:
    # OpenCL may find no device before another backend takes the GPU and refuses an op.
    log = "INFO: no OpenCL device found\n" + REFUSED_LOG
    assert failure(classify(result(status=504), ended(1), log, accelerator="gpu")).code == "UNSUPPORTED"


def test_runtime_error_keeps_the_runtimes_own_words_without_their_prefixes() -> None:
    log = (
        "INFO: Failed to load OpenCL library with dlopen: libOpenCL.so\n"
        "ERROR: tflite/kernels/gather.cc:166 indices_has_only_positive_elements was not true.\n"
        "E0000 00:00:1796068056.200182     953 delegate_webgpu.cc:736] Failed to get the delegate\n"
    )
    seen = failure(classify(result(status=3, status_name="ErrorRuntimeFailure", stage="run"), ended(1), log))
    assert "indices_has_only_positive_elements was not true" in seen.message
    assert "Failed to get the delegate" in seen.message
    assert "OpenCL" not in seen.message
    assert seen.message.startswith("run: ErrorRuntimeFailure")


def test_sigill_says_that_the_cpu_is_too_old() -> None:
    assert "newer CPU" in failure(classify(result(signal=4, stage="compile"), ended(132), "")).message


def test_sigkill_is_out_of_memory_only_with_evidence() -> None:
    killed = ended(137, b"@stage run 12.0\n")
    assert failure(classify(None, killed, "", oom_killed=True)).code == "OUT_OF_MEMORY"
    without = failure(classify(None, killed, ""))
    assert without.code == "INFRA"
    assert without.infra


def test_a_crash_without_a_result_takes_stage_from_the_progress_lines() -> None:
    seen = failure(classify(None, ended(139, b"@stage dlopen 0.1\nnoise @stage fake\n@stage compile 2.0\n"), ""))
    assert (seen.code, seen.signal, seen.stage, seen.infra) == ("CRASH", 11, "compile", False)


@pytest.mark.parametrize("status", [0, None, 255])
def test_no_result_and_no_evidence_is_a_lost_device(status: int | None) -> None:
    # adb gives 0 or 255 for a device that vanished, so neither says anything about the model.
    seen = failure(classify(None, ended(status, b"@stage run 1.0\n"), ""))
    assert (seen.code, seen.infra) == ("DEVICE_LOST", True)


def test_a_runtime_that_ends_the_process_itself_crashed() -> None:
    assert failure(classify(None, ended(3, b"@stage compile 1.0\n"), "")).code == "CRASH"


def test_an_agent_that_cannot_start_or_write_is_no_fault_of_the_model() -> None:
    assert failure(classify(None, ended(64, b"", b"unknown key"), "")).infra
    assert failure(classify(None, ended(127, b"", b"not found"), "")).infra
    assert failure(classify(None, ended(74, b"@stage run 1\n"), "")).infra
    full = failure(classify(None, ended(74, b"@stage run 1\n", b"write: No space left on device"), ""))
    assert (full.code, full.infra) == ("NO_SPACE", True)


def test_our_own_deadline_is_a_timeout() -> None:
    seen = failure(classify(None, None, "", deadline_s=130.0))
    assert seen.code == "TIMEOUT"
    assert "130 s" in seen.message


def test_last_stage_ignores_lines_that_only_mention_it() -> None:
    assert last_stage(b"x @stage run 1\n") == ""


def test_fallback_is_tried_only_where_the_gpu_would_have_taken_something() -> None:
    refusal = Failure(code="UNSUPPORTED", message="refused")
    assert refused(refusal, REFUSED_LOG)
    nothing = REFUSED_LOG.replace(
        "1 operations will run on the GPU, and the remaining 2 operations",
        "No operations will run on the GPU, and all 3",
    )
    assert not refused(refusal, nothing)
    assert not refused(Failure(code="CRASH", message=""), REFUSED_LOG)
    assert not refused(None, REFUSED_LOG)
