"""What one agent process means: the table of classify(), and real visits to this machine with the real agent."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from farm.agent_protocol import AgentResult
from farm.classify import classify, last_stage, refused
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.delegation import Delegation
from farm.objects import Objects
from farm.outcome import Failure
from farm.plan import PlannedDevice
from farm.runtimes import Runtime, find_runtime, host_platform
from farm.session import Observation, Session, Task, _with_fallback, _without_silent_cpu, case_task
from farm.transports.base import Completed
from farm.transports.local import LocalTransport
from tests import graphs
from tests.lab.gpus import gpus
from tests.spinekit import fake_runtime, one_input_case

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
        # The log of a partly delegated model always holds a refusal; it is not what ended this run.
        ({"status": 7, "stage": "warmup"}, REFUSED_LOG, "gpu", "TIMEOUT"),
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
        ({"status": -1, "status_name": "EXITED", "stage": "compile"}, "F0000 check failed", "gpu", "CRASH"),
        ({"status": 504, "status_name": "EXITED", "stage": "compile"}, REFUSED_LOG, "gpu", "UNSUPPORTED"),
        ({"status": -1, "status_name": "ENOSPC", "stage": "outputs"}, "", "cpu", "NO_SPACE"),
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


# --- real visits ------------------------------------------------------------------------------------------------------


class Far(LocalTransport):
    """This machine behind a link: nothing is shared, every file is pushed and pulled. Counts what it carries."""

    kind = "ssh"
    shares_filesystem = False

    def __init__(self, home: Path) -> None:
        super().__init__({"HOME": str(home)})
        self.pushed: list[str] = []
        self.pulled: list[str] = []
        self.argv: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], timeout: float, **more: Any) -> Completed:
        self.argv.append(argv)
        return super().run(argv, timeout, **more)

    def push(self, local: Path, remote: str, timeout: float, *, mode: int = 0o644) -> None:
        self.pushed.append(remote)
        super().push(local, remote, timeout, mode=mode)

    def pull(self, remote: str, local: Path, timeout: float, *, sha256: str | None = None) -> None:
        self.pulled.append(remote)
        super().pull(remote, local, timeout, sha256=sha256)


def visit(tmp_path: Path, transport: LocalTransport, **env: str) -> Session:
    session = Session(
        device=PlannedDevice(id="d", transport="ssh", env=env),
        transport=transport,
        objects=Objects(tmp_path / "objects"),
        limits=Limits(),
    )
    session.open()
    return session


def task(session: Session, model: Path, config: str = "cpu", **more: Any) -> Task:
    case = one_input_case(model, session.objects, sets=2)
    return dataclasses.replace(case_task(case, CONFIGS[config], Limits(), 30.0), **more)


def output_hashes(seen: Observation) -> list[str]:
    assert seen.result is not None, seen.failure
    return [o.sha256 for run in seen.result.runs for o in run.outputs]


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return fake_runtime(tmp_path_factory.mktemp("fakert"))


@pytest.fixture
def runtime() -> Runtime:
    return find_runtime(None, host_platform())


def test_a_device_behind_a_link_gives_the_same_bits_and_gets_each_file_once(tmp_path: Path, runtime: Runtime) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    here = visit(tmp_path / "here", LocalTransport())
    far = Far(tmp_path / "home")
    there = visit(tmp_path / "there", far)
    expected = output_hashes(here.observe(task(here, model), runtime))
    assert output_hashes(there.observe(task(there, model), runtime)) == expected
    sent = list(far.pushed)
    assert len(sent) == len(set(sent)) == 2 + 1 + 1 + len(runtime.files)  # inputs, model, agent, runtime
    assert all(path.startswith(f"{tmp_path}/home/.cache/litert-farm/") for path in sent)
    far.pulled.clear()
    there.observe(task(there, model), runtime)
    assert far.pushed == sent
    assert far.pulled == []  # the device's own hashes told that nothing is new
    there.leave()
    assert list((tmp_path / "home/.cache/litert-farm/jobs").iterdir()) == []
    for sha256 in expected:
        there.objects.load(sha256, "float32", (1, 16))


def test_a_second_visit_sends_nothing_again(tmp_path: Path, runtime: Runtime) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    first = visit(tmp_path, Far(tmp_path / "home"))
    first.observe(task(first, model), runtime)
    first.leave()
    far = Far(tmp_path / "home")
    second = visit(tmp_path, far)
    assert second.observe(task(second, model), runtime).failure is None
    assert far.pushed == []


def test_a_truncated_file_on_the_device_is_sent_again(tmp_path: Path, runtime: Runtime) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    first = visit(tmp_path, Far(tmp_path / "home"))
    first.observe(task(first, model), runtime)
    first.leave()
    (there,) = (tmp_path / "home/.cache/litert-farm/model").iterdir()
    there.write_bytes(there.read_bytes()[:-1])
    far = Far(tmp_path / "home")
    second = visit(tmp_path, far)
    assert second.observe(task(second, model), runtime).failure is None
    assert far.pushed == [str(there)]


def test_a_long_job_travels_as_a_file(tmp_path: Path, fake: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "a.tflite"
    model.write_bytes(b"TFL3")
    far = Far(tmp_path / "home")
    session = visit(tmp_path, far)
    expected = output_hashes(session.observe(task(session, model), fake))
    monkeypatch.setattr("farm.session.ARGV_LIMIT", 100)
    assert output_hashes(session.observe(task(session, model), fake)) == expected
    assert any(path.endswith("/job.txt") for path in far.pushed)
    (long,) = [a for a in far.argv if str(a[-1]).startswith("args=")]
    assert str(long[-3]).endswith("litert_agent")


@pytest.mark.parametrize("far", [False, True])
def test_a_crash_leaves_signal_stage_and_log_and_no_folder(tmp_path: Path, fake: Runtime, far: bool) -> None:
    model = tmp_path / "a.tflite"
    model.write_bytes(b"TFL3")
    transport = Far(tmp_path / "home") if far else LocalTransport()
    session = visit(tmp_path, transport, FAKERT="crash")
    seen = session.observe(task(session, model), fake)
    assert failure(seen.failure).code == "CRASH"
    assert (failure(seen.failure).signal, failure(seen.failure).stage) == (11, "compile")
    session.leave()
    jobs = tmp_path / ("home/.cache/litert-farm/jobs" if far else "objects/.jobs")
    assert list(jobs.iterdir()) == []


@pytest.mark.parametrize("far", [False, True])
def test_a_hang_ends_at_the_agents_deadline_with_its_stage(tmp_path: Path, fake: Runtime, far: bool) -> None:
    model = tmp_path / "a.tflite"
    model.write_bytes(b"TFL3")
    session = visit(tmp_path, Far(tmp_path / "home") if far else LocalTransport(), FAKERT="hang")
    seen = session.observe(task(session, model, deadline_s=0.5), fake)
    assert (failure(seen.failure).code, failure(seen.failure).stage) == ("TIMEOUT", "warmup")


def test_leftovers_of_a_dead_farm_are_removed_and_those_of_a_living_one_kept(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    jobs = tmp_path / "objects" / ".jobs"
    dead, alive = jobs / f"{int(done.stdout)}-x", jobs / f"{os.getpid()}-x"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    visit(tmp_path, LocalTransport())
    assert not dead.exists()
    assert alive.exists()


def test_a_result_of_another_job_is_refused(tmp_path: Path, fake: Runtime) -> None:
    class Forging(LocalTransport):
        # A device that hands back an old answer: the real result, but with the nonce of another job.
        def run(self, argv: Sequence[str], timeout: float, **more: Any) -> Completed:
            done = super().run(argv, timeout, **more)
            path = Path(next(a for a in argv if a.startswith("result=")).removeprefix("result="))
            path.write_bytes(re.sub(rb'"nonce":"[^"]*"', b'"nonce":"0"', path.read_bytes()))
            return done

    model = tmp_path / "a.tflite"
    model.write_bytes(b"TFL3")
    session = visit(tmp_path, Forging())
    seen = session.observe(task(session, model), fake)
    assert failure(seen.failure).infra
    assert "nonce" in failure(seen.failure).message


@pytest.mark.gpu
@pytest.mark.parametrize("gpu", ["llvmpipe", "swiftshader"])
def test_a_graph_the_gpu_takes_in_part_is_partial_and_names_what_it_left(
    tmp_path: Path, runtime: Runtime, gpu: str
) -> None:
    if gpu not in gpus():
        pytest.skip(f"needs {gpu} (make lab-gpus)")
    graph = graphs.Graph()
    x = graph.input("x", (1, 16))
    a = graph.op("ADD", [x, x], [graph.tensor("a", (1, 16))])
    b = graph.op("RELU_0_TO_1", [a], [graph.tensor("b", (1, 16))])
    model = graphs.write(tmp_path, "mixed", graph.finish([graph.op("MUL", [b, b], [graph.tensor("y", (1, 16))])]))
    session = visit(tmp_path, LocalTransport(), VK_ICD_FILENAMES=str(gpus()[gpu]))
    seen = session.observe(task(session, model, "gpu"), runtime)
    assert seen.failure is None
    assert seen.delegation.level == "partial"
    assert any("RELU_0_TO_1" in op for op in seen.delegation.cpu_ops)
    assert "once more, with CPU fallback" in seen.log


@pytest.mark.gpu
def test_a_graph_the_gpu_takes_nothing_of_is_unsupported_with_its_words(tmp_path: Path, runtime: Runtime) -> None:
    if "swiftshader" not in gpus():
        pytest.skip("needs swiftshader (make lab-gpus)")
    model = graphs.write(tmp_path, "clip", graphs.clip_unit(relu=True, n=16))
    session = visit(tmp_path, LocalTransport(), VK_ICD_FILENAMES=str(gpus()["swiftshader"]))
    seen = session.observe(task(session, model, "gpu"), runtime)
    assert failure(seen.failure).code == "UNSUPPORTED"
    assert "RELU_0_TO_1" in failure(seen.failure).message


# --- a GPU that took nothing, or only something -----------------------------------------------------------------------

GOOD = result(ok=True, stage="done")
REFUSAL = Failure(code="UNSUPPORTED", message="the GPU delegate refused: LOG_SOFTMAX", stage="compile")
ALONE = Observation(result=result(), failure=REFUSAL, delegation=Delegation(level="none"), log=REFUSED_LOG)


def both(level: str, failed: Failure | None = None, ops: tuple[str, ...] = ()) -> Observation:
    delegation = Delegation(level=level, cpu_ops=ops)  # type: ignore[arg-type]
    return Observation(result=GOOD if failed is None else result(), failure=failed, delegation=delegation, log="second")


@pytest.mark.parametrize("accelerator", ["gpu", "npu"])
def test_numbers_of_the_cpu_never_stand_for_an_accelerators(accelerator: str) -> None:
    seen = _without_silent_cpu(both("none", ops=("GATHER: no",)), accelerator)
    assert failure(seen.failure).code == "UNSUPPORTED"
    assert "GATHER: no" in failure(seen.failure).message


@pytest.mark.parametrize("level", ["full", "partial", "unknown"])
def test_an_accelerator_that_took_part_is_left_alone(level: str) -> None:
    assert _without_silent_cpu(both(level), "gpu").failure is None
    assert _without_silent_cpu(both("none"), "cpu").failure is None


def test_fallback_after_a_refusal_is_never_full_and_keeps_the_refused_ops() -> None:
    seen = _with_fallback(REFUSAL, ALONE, both("full"))
    assert seen.failure is None
    assert seen.delegation.level == "partial"
    assert any("LOG_SOFTMAX" in op for op in seen.delegation.cpu_ops)
    assert REFUSED_LOG in seen.log
    assert "second" in seen.log


def test_fallback_that_ran_wholly_on_the_cpu_is_unsupported() -> None:
    assert failure(_with_fallback(REFUSAL, ALONE, both("none")).failure).code == "UNSUPPORTED"


def test_fallback_that_does_not_compile_keeps_the_refusal_and_its_words() -> None:
    broken = Failure(code="RUNTIME_ERROR", message="Failed to modify graph", stage="compile")
    seen = failure(_with_fallback(REFUSAL, ALONE, both("unknown", broken)).failure)
    assert seen.code == "UNSUPPORTED"
    assert "LOG_SOFTMAX" in seen.message
    assert "Failed to modify graph" in seen.message


@pytest.mark.parametrize("code", ["CRASH", "TIMEOUT", "OUT_OF_MEMORY"])
def test_fallback_that_crashes_is_told_as_a_crash(code: str) -> None:
    crashed = Failure(code=code, message="", stage="compile")  # type: ignore[arg-type]
    assert failure(_with_fallback(REFUSAL, ALONE, both("unknown", crashed)).failure).code == code


def test_a_fallback_that_compiled_and_failed_later_is_the_runtimes_error() -> None:
    late = Failure(code="RUNTIME_ERROR", message="Failed to invoke", stage="run")
    assert failure(_with_fallback(REFUSAL, ALONE, both("partial", late)).failure).code == "RUNTIME_ERROR"
