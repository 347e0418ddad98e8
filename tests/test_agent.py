"""The native agent here: against LiteRT's Python API bit for bit, and against faults of a stand-in runtime."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fakert
import graphs
import numpy as np
import pytest
from lab.gpus import environment, gpus

from farm.agent_protocol import AgentResult, Job, job_argv, job_file, read_result
from farm.agents import agent_binary
from farm.runtimes import Runtime, host_platform, installed_runtime

X16 = np.linspace(0.1, 2, 16, dtype=np.float32)


@dataclass(slots=True)
class Ran:
    """What one agent process left: `outputs` by (set, step, index), checked against their hashes."""

    returncode: int
    stdout: str
    stderr: str
    log: str
    folder: Path
    result: AgentResult | None
    outputs: dict[tuple[int, int, int], bytes] = field(default_factory=dict)

    @property
    def good(self) -> AgentResult:
        assert self.result is not None, self.stderr
        assert self.result.ok, (self.result, self.log)
        return self.result

    @property
    def bad(self) -> AgentResult:
        assert self.result is not None, self.stderr
        assert not self.result.ok
        return self.result

    def array(self, index: int = 0, dtype: Any = np.float32, *, set_: int = 0, step: int = 0) -> np.ndarray:
        return np.frombuffer(self.outputs[set_, step, index], dtype)


class Lab:
    """Starts the real agent on files in one folder."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder, self.runtime, self.count = folder, runtime, 0
        self.agent = str(agent_binary(host_platform()))

    def job(self, model: Path, sets: Sequence[Sequence[np.ndarray]], **options: Any) -> Job:
        self.count += 1
        folder = self.folder / f"job{self.count}"
        folder.mkdir()
        inputs = []
        for s, arrays in enumerate(sets):
            files = []
            for i, array in enumerate(arrays):
                file = folder / f"in{s}.{i}"
                file.write_bytes(np.ascontiguousarray(array).tobytes())
                files.append(str(file))
            inputs.append(tuple(files))
        given: dict[str, Any] = {
            "nonce": f"nonce-{self.count}",
            "library": str(self.runtime.library_path),
            "runtime_dir": str(self.runtime.folder),
            "model": str(model),
            "out_dir": str(folder),
            "result": str(folder / "result.json"),
            "log": str(folder / "log.txt"),
            "accelerators": ("cpu",),
            "inputs": tuple(inputs),
            "deadline_s": 60.0,
        }
        return Job(**(given | options))

    def run(
        self, model: Path, sets: Sequence[Sequence[np.ndarray]], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> Ran:
        return self.start(self.job(model, sets, **options), env=env)

    def start(self, job: Job, *, env: Mapping[str, str] | None = None, argv: list[str] | None = None) -> Ran:
        done = subprocess.run(
            argv or job_argv(self.agent, job),
            env={**os.environ, **(env or {})}, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        folder, file, log = Path(job.out_dir), Path(job.result), Path(job.log)
        ran = Ran(
            returncode=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(),
            log=log.read_text(errors="replace") if log.exists() else "",
            folder=folder,
            result=read_result(file.read_bytes(), job.nonce) if file.exists() else None,
        )
        assert not file.with_name(file.name + ".tmp").exists()
        for run in ran.result.runs if ran.result else ():
            for output in run.outputs:
                data = (folder / output.file).read_bytes()
                assert len(data) == output.size_bytes
                assert hashlib.sha256(data).hexdigest() == output.sha256
                ran.outputs[run.set, run.step, output.index] = data
        return ran


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    found = installed_runtime()
    assert found is not None
    return found


@pytest.fixture
def lab(tmp_path: Path, runtime: Runtime) -> Lab:
    return Lab(tmp_path, runtime)


@pytest.fixture(scope="module")
def fake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fakert.build(tmp_path_factory.mktemp("fakert")).parent


@pytest.fixture
def fake(lab: Lab, fake_folder: Path) -> Lab:
    """The lab with the stand-in runtime."""
    lab.runtime = Runtime(
        name="litert-0.0.0", version="0.0.0", platform=host_platform(), folder=fake_folder, library="libLiteRt.so",
        accelerators=(), files={}, origin="fakert",
    )  # fmt: skip
    return lab


def model(lab: Lab, data: bytes, name: str = "m") -> Path:
    return graphs.write(lab.folder, name, data)


def random_inputs(lab: Lab, path: Path, seed: int = 0) -> list[np.ndarray]:
    """Inputs of the right dtype and shape for the first signature, as the runtime reports them."""
    from ai_edge_litert.interpreter import Interpreter

    rng = np.random.default_rng(seed)
    arrays = []
    for details in Interpreter(str(path)).get_input_details():
        dtype, shape = np.dtype(details["dtype"]), details["shape"]
        if dtype.kind == "f":
            arrays.append(rng.standard_normal(shape).astype(dtype))
        else:
            arrays.append(rng.integers(0, 2, shape).astype(dtype))
    return arrays


# The Python API in a process of its own (a GPU driver must not stay in pytest): argv are accelerator, model, output
# sizes in bytes, input files; stdout is the concatenated outputs.
PYTHON_API = """
import os, sys
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.hardware_accelerator import HardwareAccelerator
from ai_edge_litert.options import CpuOptions, Options
keep = os.dup(1); os.dup2(2, 1)
accelerator, path, sizes, files = sys.argv[1], sys.argv[2], [int(s) for s in sys.argv[3].split(",")], sys.argv[4:]
options = Options(hardware_accelerators=HardwareAccelerator[accelerator.upper()], cpu_options=CpuOptions(num_threads=1))
m = CompiledModel.from_file(path, options=options)
ins, outs = m.create_input_buffers(0), m.create_output_buffers(0)
for b, f in zip(ins, files, strict=True):
    b.write(np.fromfile(f, np.uint8))
m.run_by_index(0, ins, outs)
with os.fdopen(keep, "wb") as f:
    for b, n in zip(outs, sizes, strict=True):
        f.write(np.ascontiguousarray(b.read(n, np.uint8)).tobytes())
os._exit(0)
"""


def assert_same_as_python(lab: Lab, path: Path, accelerator: str, env: Mapping[str, str] | None = None) -> None:
    job = lab.job(path, [random_inputs(lab, path)], accelerators=(accelerator,), iterations=1, repeats=1)
    ran = lab.start(job, env=env)
    sizes = ",".join(str(o.size_bytes) for o in ran.good.outputs)
    done = subprocess.run(
        [sys.executable, "-c", PYTHON_API, accelerator, str(path), sizes, *job.inputs[0]],
        env={**os.environ, **(env or {})}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"".join(ran.outputs[0, 0, o.index] for o in ran.good.outputs) == done.stdout


@pytest.mark.parametrize(
    "kind", ["tiny_cnn", "fc_chain", "quantised_fc", "dynamic_range_fc", "encoder", "topk", "bool_output"]
)
def test_cpu_outputs_are_bit_identical_to_the_python_api(lab: Lab, kind: str) -> None:
    assert_same_as_python(lab, model(lab, getattr(graphs, kind)()), "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("gpu", ["llvmpipe", "swiftshader"])
@pytest.mark.parametrize("kind", ["tiny_cnn", "fc_chain"])
def test_gpu_outputs_are_bit_identical_to_the_python_api(lab: Lab, kind: str, gpu: str) -> None:
    if gpu not in gpus():
        pytest.skip(f"no {gpu}")
    assert_same_as_python(lab, model(lab, getattr(graphs, kind)()), "gpu", environment(gpu))


def test_every_shared_model_gives_the_bits_of_the_python_api_on_cpu(lab: Lab, shared: Path) -> None:
    compared = 0
    for path in sorted((shared / "models").glob("*.tflite")):
        if path.name == "basic_pitch_nmp.tflite":  # its dynamic batch is resized by the Python API, not by us
            continue
        assert_same_as_python(lab, path, "cpu")
        compared += 1
    assert compared >= 10


def test_maths_functions_reach_a_jit_that_looks_in_the_global_scope(lab: Lab) -> None:
    if "llvmpipe" not in gpus():
        pytest.skip("no llvmpipe")
    # exp and tanh are what llvmpipe's JIT calls in libm; without a global libm the process dies by SIGSEGV.
    path = model(lab, graphs.sigmoid())
    ran = lab.run(path, [random_inputs(lab, path)], accelerators=("gpu",), env=environment("llvmpipe"))
    assert ran.good.non_cpu_fully_accelerated
    assert np.all((ran.array() > 0) & (ran.array() < 1))


@pytest.mark.gpu
def test_a_failed_check_inside_the_gpu_delegate_leaves_a_result(lab: Lab) -> None:
    # LiteRT 2.3.0 ends the process by _exit(1) on this graph: "Check failed: … Node 3 is already a consumer".
    if "swiftshader" not in gpus():
        pytest.skip("no swiftshader")
    path = model(lab, graphs.masked_attention())
    ran = lab.run(path, [random_inputs(lab, path)], accelerators=("gpu",), env=environment("swiftshader"))
    if ran.result is not None and ran.result.ok:
        return  # a runtime in which it is mended
    assert (ran.bad.stage, ran.bad.status_name) == ("compile", "EXITED")
    assert "Check failed" in ran.log
    assert ran.bad.accelerators == ("GPU WebGPU", "CpuAccelerator")


@pytest.mark.parametrize(
    "dtype", ["float32", "int32", "int64", "int16", "int8", "uint8", "float64", "float16", "bool", "uint32"]
)
def test_every_dtype_passes_as_raw_bytes(lab: Lab, dtype: str) -> None:
    g = graphs.Graph()
    x = g.input("x", (2, 3), dtype)
    y = g.op("TRANSPOSE", [x, g.ints("perm", 1, 0)], [g.tensor("y", (3, 2), dtype)])
    data = (np.arange(6).reshape(2, 3) * 37 % 5 - (0 if dtype in ("bool", "uint8", "uint32") else 2)).astype(dtype)
    ran = lab.run(model(lab, g.finish([y])), [[data]])
    assert ran.good.inputs[0].dtype == ran.good.outputs[0].dtype == dtype
    assert ran.good.inputs[0].shape == (2, 3)
    assert ran.good.outputs[0].shape == (3, 2)
    assert ran.array(dtype=dtype).tobytes() == data.T.tobytes()


def test_each_of_two_signatures_runs_by_its_index(lab: Lab) -> None:
    path = model(lab, graphs.two_signatures())
    first = lab.run(path, [[np.ones((1, 8), np.float32)]], signature=0)
    second = lab.run(path, [[np.ones((1, 4), np.float32)]], signature=1)
    assert [t.name for t in first.good.outputs] == ["o"]
    assert [t.name for t in second.good.outputs] == ["p"]
    assert first.good.outputs[0].shape == (1, 4)
    assert second.good.outputs[0].shape == (1, 8)


def test_a_signature_the_model_lacks_is_named_in_the_error(lab: Lab) -> None:
    ran = lab.run(model(lab, graphs.two_signatures()), [[]], signature=2)
    assert (ran.bad.stage, ran.bad.error) == ("signature", "the model has 2 signature(s), number 2 was asked for")


def test_inputs_and_outputs_have_the_subgraphs_order_and_the_signatures_names(lab: Lab) -> None:
    # The signature lists b, a and c, d; the subgraph a, b and d, c. LiteRT's C API follows the subgraph.
    a, b = np.float32([[1.0, 2.0]]), np.float32([[0.1, 0.2, 0.3]])
    ran = lab.run(model(lab, graphs.reordered_signature()), [[a, b]])
    assert [t.name for t in ran.good.inputs] == ["a", "b"]
    assert [t.name for t in ran.good.outputs] == ["d", "c"]
    np.testing.assert_allclose(ran.array(0), np.tanh(b[0]), rtol=1e-5)
    np.testing.assert_allclose(ran.array(1), np.tanh(a[0]), rtol=1e-5)


def test_a_model_without_signatures_has_one(lab: Lab) -> None:
    ran = lab.run(model(lab, graphs.no_signature()), [[np.ones((1, 8), np.float32)]])
    assert len(ran.good.runs[0].outputs) == 1


def test_shape_resizes_a_dynamic_input_and_its_output(lab: Lab) -> None:
    path = model(lab, graphs.dynamic_batch())
    one = np.arange(8, dtype=np.float32).reshape(1, 8) / 8
    three = np.concatenate([one, one * 2, one * 3])
    small = lab.run(path, [[one]])
    large = lab.run(path, [[three]], shapes=((3, 8),))
    assert large.good.inputs[0].shape == large.good.outputs[0].shape == (3, 8)
    np.testing.assert_allclose(large.array().reshape(3, 8)[0], small.array(), rtol=1e-5)


def test_an_output_whose_declared_shape_is_stale_has_the_shape_it_really_gets(lab: Lab) -> None:
    g = graphs.Graph()
    x = g.input("x", (1, 64))
    y = g.op("ADD", [x, g.const("one", np.float32([1]))], [g.tensor("y", (1, 4))])
    data = np.arange(64, dtype=np.float32).reshape(1, 64)
    ran = lab.run(model(lab, g.finish([y])), [[data]])
    assert ran.good.outputs[0].shape == (1, 64)
    np.testing.assert_array_equal(ran.array(), data[0] + 1)


def test_an_input_of_the_wrong_size_is_refused_with_both_sizes(lab: Lab) -> None:
    ran = lab.run(model(lab, graphs.dynamic_batch()), [[np.ones((3, 8), np.float32)]])
    assert (ran.bad.stage, ran.bad.error) == ("inputs", "input.0.0 has 96 bytes, the tensor takes 32")


def test_a_missing_input_is_refused(lab: Lab) -> None:
    ran = lab.run(model(lab, graphs.reordered_signature()), [[np.ones((1, 2), np.float32)]])
    assert ran.bad.error == "input set 0 has 1 file(s), the signature takes 2 input(s)"


def test_steps_keep_state_from_step_to_step(lab: Lab) -> None:
    ran = lab.run(model(lab, graphs.resource_variable()), [[np.float32([2.5])]], steps=3)
    assert [(r.set, r.step) for r in ran.good.runs] == [(0, 0), (0, 1), (0, 2)]
    assert [float(ran.array(step=s)[0]) for s in range(3)] == [2.5, 5.0, 7.5]
    assert all(len(r.latency_ms) == 1 for r in ran.good.runs)
    assert ran.good.warmup_ms == 0


def test_steps_with_two_sets_are_refused(lab: Lab) -> None:
    x = [np.float32([1])]
    ran = lab.run(model(lab, graphs.resource_variable()), [x, x], steps=3)
    assert (ran.returncode, ran.bad.stage, ran.bad.status_name) == (64, "arguments", "REFUSED")
    assert "one input set per process" in ran.bad.error


def test_every_set_has_its_own_outputs_and_times(lab: Lab) -> None:
    path = model(lab, graphs.sigmoid())
    sets = [random_inputs(lab, path, seed) for seed in range(3)]
    ran = lab.run(path, sets, iterations=4, repeats=2)
    assert [(r.set, r.step, len(r.latency_ms), len(r.run_ms)) for r in ran.good.runs] == [
        (s, 0, 4, 4) for s in range(3)
    ]
    for s, (x,) in enumerate(sets):
        np.testing.assert_allclose(ran.array(set_=s), 1 / (1 + np.exp(-x.reshape(-1))), rtol=1e-4)
    assert [line.split()[1] for line in ran.stdout.splitlines()].count("warmup") == 1
    assert all(a >= b for r in ran.good.runs for a, b in zip(r.latency_ms, r.run_ms, strict=True))
    assert all(len(o.repeat_sha256) == 2 for r in ran.good.runs for o in r.outputs)


def test_reference_kernels_and_forced_fp16_take_effect(lab: Lab) -> None:
    # (x * 1e-5)^2 * 1e10 underflows in FP16 and nowhere else.
    path = model(lab, graphs.square_scaled((1e-5,), (1e5, 1e5)))
    x = X16.reshape(1, 16)
    plain, reference = lab.run(path, [[x]]), lab.run(path, [[x]], kernel_mode="reference")
    half = lab.run(path, [[x]], xnnpack_flags=4)
    np.testing.assert_allclose(plain.array(), X16**2, rtol=1e-4)
    np.testing.assert_allclose(reference.array(), X16**2, rtol=1e-4)
    assert plain.good.fully_accelerated
    assert not reference.good.fully_accelerated  # no XNNPACK there
    assert not np.allclose(half.array(), X16**2, rtol=0.5)


@pytest.mark.gpu
def test_gpu_precision_takes_effect(lab: Lab) -> None:
    if "llvmpipe" not in gpus():
        pytest.skip("no llvmpipe")
    path = model(lab, graphs.square_scaled((1e-5,), (1e5, 1e5)))
    x, env = X16.reshape(1, 16), environment("llvmpipe")
    fp32 = lab.run(path, [[x]], accelerators=("gpu",), precision="fp32", env=env)
    fp16 = lab.run(path, [[x]], accelerators=("gpu",), precision="fp16", env=env)
    np.testing.assert_allclose(fp32.array(), X16**2, rtol=1e-4)
    assert not np.allclose(fp16.array(), X16**2, rtol=0.5)
    assert fp32.good.accelerators[0].startswith("GPU")
    assert fp32.good.non_cpu_fully_accelerated


@pytest.mark.parametrize("accelerator", ["cpu", "llvmpipe", "swiftshader"])
def test_fill_changes_no_output_that_is_written(lab: Lab, accelerator: str) -> None:
    path = model(lab, graphs.tiny_cnn())
    options: dict[str, Any] = {}
    if accelerator != "cpu":
        if accelerator not in gpus():
            pytest.skip(f"no {accelerator}")
        options = {"accelerators": ("gpu",), "env": environment(accelerator)}
    inputs = [random_inputs(lab, path)]
    outputs = [lab.run(path, inputs, fill=fill, **options).outputs for fill in (0, 0x5A, 0xA5)]
    assert outputs[0]
    assert outputs[0] == outputs[1] == outputs[2]


def test_fill_shows_an_output_that_nothing_writes(lab: Lab) -> None:
    ran = lab.run(model(lab, graphs.no_operators()), [[np.ones((1, 4), np.float32)]], fill=0xA5)
    assert set(ran.outputs[0, 0, 0]) == {0xA5}


def test_a_damaged_model_is_an_error_with_the_runtimes_status(lab: Lab) -> None:
    path = lab.folder / "damaged.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3" + b"\xff" * 200)
    ran = lab.run(path, [[]])
    assert (ran.bad.stage, ran.bad.status_name) in {("model", "ErrorFileIO"), ("model", "ErrorInvalidFlatbuffer")}
    assert "log" in ran.bad.error
    assert ran.log


def test_a_refused_op_is_status_504_and_its_words_are_in_the_log(lab: Lab) -> None:
    if not gpus():
        pytest.skip("no software GPU")
    path = model(lab, graphs.gather_ids())
    ran = lab.run(path, [random_inputs(lab, path)], accelerators=("gpu",), env=environment(next(iter(gpus()))))
    assert (ran.bad.stage, ran.bad.status, ran.bad.status_name) == ("compile", 504, "ErrorCompilation")
    assert "not supported by GPU delegate" in ran.log
    assert "GPU WebGPU" in ran.bad.accelerators


def test_a_missing_library_is_named_by_the_loaders_words(lab: Lab) -> None:
    ran = lab.run(model(lab, graphs.sigmoid()), [[]], library="/nowhere/libLiteRt.so")
    assert (ran.bad.stage, ran.bad.status_name) == ("dlopen", "ErrorDynamicLoading")
    assert "/nowhere/libLiteRt.so" in ran.bad.error


def test_peak_memory_is_the_agents_own_not_its_parents(lab: Lab) -> None:
    # pytest with numpy and LiteRT holds far more than a model of a few kilobytes does.
    ran = lab.run(model(lab, graphs.sigmoid()), [[np.zeros((1, 4, 4, 8), np.float32)]])
    assert 1 << 20 < ran.good.peak_rss_bytes < 40 << 20


def test_args_file_equals_a_command_line(lab: Lab) -> None:
    path = model(lab, graphs.sigmoid())
    job = lab.job(path, [random_inputs(lab, path)])
    args = lab.folder / "job.args"
    args.write_bytes(job_file(job))
    ran = lab.start(job, argv=[lab.agent, "1", f"args={args}"])
    again = lab.run(path, [random_inputs(lab, path)])
    assert ran.outputs == again.outputs
    assert ran.good.runs[0].outputs


# ---- the agent's own manners, on the stand-in runtime ----------------------------------------------------------------


def fake_run(fake: Lab, fault: str, **options: Any) -> Ran:
    path = fake.folder / "ok.tflite"
    path.write_bytes(b"x")
    return fake.run(path, [[X16]], env={"FAKERT": fault, "FAKERT_WATCH": "/nowhere"}, **options)


def test_progress_lines_are_all_that_stdout_carries(fake: Lab) -> None:
    ran = fake_run(fake, "noise")
    assert ran.good.stage == "done"
    assert all(line.startswith("@stage ") for line in ran.stdout.splitlines())
    assert [line.split()[1] for line in ran.stdout.splitlines()] == [
        "dlopen", "environment", "model", "options", "compile", "signature", "resize", "buffers", "inputs", "warmup",
        "run", "done",
    ]  # fmt: skip
    assert "noise on stdout" in ran.log
    assert "noise on stderr" in ran.log
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("fault", "signal", "stage"),
    [("crash", 11, "compile"), ("abort", 6, "compile"), ("overflow", 11, "compile"), ("thread", 11, "warmup")],
)
def test_a_crash_names_signal_and_stage(fake: Lab, fault: str, signal: int, stage: str) -> None:
    ran = fake_run(fake, fault)
    assert (ran.bad.signal, ran.bad.stage, ran.returncode) == (signal, stage, 128 + signal)
    assert f"@signal {signal} {stage}" in ran.stdout.splitlines()
    assert ran.bad.peak_rss_bytes > 0


def test_a_runtime_that_leaves_by_exit_leaves_a_result(fake: Lab) -> None:
    # Abseil's CHECK does that: no signal, no atexit handler.
    ran = fake_run(fake, "exit")
    assert (ran.bad.stage, ran.bad.status_name, ran.bad.signal, ran.returncode) == ("compile", "EXITED", 0, 1)
    assert "exit(1) in stage compile" in ran.bad.error
    assert ran.stdout.splitlines()[-1] == "@exit 1 compile"


def test_a_worker_killed_from_outside_leaves_a_result(fake: Lab) -> None:
    ran = fake_run(fake, "kill")
    assert (ran.bad.stage, ran.bad.signal, ran.returncode) == ("warmup", 9, 137)
    assert "killed from outside" in ran.bad.error
    assert 0 < ran.bad.peak_rss_bytes < 40 << 20  # the worker's, not pytest's


def test_a_hang_that_blocks_every_signal_ends_at_the_deadline_too(fake: Lab) -> None:
    ran = fake_run(fake, "block", deadline_s=0.1)
    assert (ran.bad.timed_out, ran.bad.stage, ran.returncode) == (True, "warmup", 124)


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: PR_SET_PDEATHSIG")
def test_killing_the_agent_kills_its_worker_too(fake: Lab) -> None:
    (fake.folder / "ok.tflite").write_bytes(b"x")
    job = fake.job(fake.folder / "ok.tflite", [[X16]])
    process = subprocess.Popen(
        job_argv(fake.agent, job), env={**os.environ, "FAKERT": "hang"}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if line.startswith("@stage warmup"):
                process.kill()
                break
        # The worker holds the pipe's other end: its end is the worker's end.
        assert process.stdout.read() == ""
        assert process.wait(timeout=30) == -9
    assert not Path(job.result).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: PR_SET_PDEATHSIG")
def test_farm_parent_makes_the_agent_die_with_its_farm(fake: Lab) -> None:
    (fake.folder / "ok.tflite").write_bytes(b"x")
    job = fake.job(fake.folder / "ok.tflite", [[X16]])
    # A farm that starts an agent and is killed while it runs.
    farm = (
        "import os, subprocess, sys\n"
        "env = {**os.environ, 'FAKERT': 'hang', 'FARM_PARENT': str(os.getpid())}\n"
        "subprocess.Popen(sys.argv[1:], env=env).wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", farm, *job_argv(fake.agent, job)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if line.startswith("@stage warmup"):
                process.kill()
                break
        assert process.stdout.read() == ""  # ends when agent and worker are gone, long before the deadline of 60 s
    assert not Path(job.result).exists()


def test_a_hang_ends_at_the_agents_own_deadline(fake: Lab) -> None:
    ran = fake_run(fake, "hang", deadline_s=0.3)
    assert (ran.bad.timed_out, ran.bad.stage, ran.bad.signal, ran.returncode) == (True, "warmup", 0, 124)
    assert 290 <= ran.bad.total_ms < 10_000
    assert ran.stdout.splitlines()[-1] == "@timeout warmup"


def test_sigterm_leaves_a_result(fake: Lab) -> None:
    (fake.folder / "ok.tflite").write_bytes(b"x")
    job = fake.job(fake.folder / "ok.tflite", [[X16]])
    process = subprocess.Popen(
        job_argv(fake.agent, job), env={**os.environ, "FAKERT": "hang"}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:  # wait for the stage, not for a time
            if line.startswith("@stage warmup"):
                process.terminate()
                break
        assert process.wait(timeout=30) == 128 + 15
    result = read_result(Path(job.result).read_bytes(), job.nonce)
    assert (result.ok, result.signal, result.stage) == (False, 15, "warmup")


def test_a_crash_while_the_result_is_written_leaves_one_whole_result(fake: Lab) -> None:
    (fake.folder / "ok.tflite").write_bytes(b"x")
    seen = set()
    for _ in range(20):
        job = fake.job(fake.folder / "ok.tflite", [[X16]])
        ran = fake.start(job, env={"FAKERT": "late", "FAKERT_WATCH": f"{job.result}.tmp"})
        assert ran.result is not None  # read_result has accepted it: whole, ours
        seen.add((ran.result.ok, ran.result.signal))
    assert seen <= {(True, 0), (False, 11)}


def test_repeats_that_differ_are_kept_by_number(fake: Lab) -> None:
    ran = fake_run(fake, "flaky", repeats=3, iterations=5)
    output = ran.good.runs[0].outputs[0]
    assert output.repeat_files == {"1": "0.0.0.r1.raw", "2": "0.0.0.r2.raw"}
    first, second = (np.fromfile(ran.folder / name, np.float32) for name in (output.file, "0.0.0.r1.raw"))
    np.testing.assert_allclose(second - first, 1, rtol=1e-5)
    hashes = [hashlib.sha256((ran.folder / n).read_bytes()).hexdigest() for n in output.repeat_files.values()]
    assert list(output.repeat_sha256) == [output.sha256, *hashes]


def test_timed_iterations_stop_when_their_time_is_spent_but_not_before_the_repeats(fake: Lab) -> None:
    ran = fake_run(fake, "slow", warmup=0, iterations=50, iterations_ms=300, repeats=1)
    assert len(ran.good.runs[0].latency_ms) == 2  # 0.2 s each: the second ends beyond 0.3 s
    ran = fake_run(fake, "slow", warmup=0, iterations=50, iterations_ms=0, repeats=3)
    assert len(ran.good.runs[0].latency_ms) == 3
    assert min(ran.good.runs[0].latency_ms) >= 199


def test_a_failed_call_is_named_with_its_status(fake: Lab) -> None:
    ran = fake_run(fake, "fail")
    assert ran.bad.error.startswith("LiteRtCreateCompiledModel failed: ErrorCompilation (504)")
    assert ran.returncode == 1


def test_names_that_are_not_utf8_are_escaped(fake: Lab) -> None:
    assert fake_run(fake, "names").good.inputs[0].name == 'x\\xff"\\\né\\xed\\xa0\\x80'


def test_a_runtime_from_before_2_1_3_is_refused_with_the_minimum(fake: Lab, tmp_path: Path) -> None:
    old = fakert.build(tmp_path / "old", "-DFAKERT_OLD")
    ran = fake_run(fake, "none", library=str(old))
    assert (ran.bad.stage, ran.bad.status_name) == ("dlopen", "ErrorWrongVersion")
    assert "2.1.3" in ran.bad.error


def test_a_full_disk_is_named_and_leaves_no_result() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only on Linux: needs /dev/full")
    agent = str(agent_binary(host_platform()))
    # /dev/full.tmp cannot be made in /dev by an ordinary user, /proc takes no files from anyone.
    done = subprocess.run(
        [agent, "1", "nonce=n", "result=/proc/farm-result", "sets=1", "bogus=1"],
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 74
    assert b"@error cannot write the result file" in done.stdout


@pytest.mark.parametrize("first", ["", "0", "2", "1x", "one", "nonce=n"])
def test_another_protocol_version_is_refused_before_anything_happens(lab: Lab, first: str) -> None:
    job = lab.job(lab.folder / "none.tflite", [[]])
    ran = lab.start(job, argv=[lab.agent, first, *job_argv("", job)[2:]])
    assert (ran.returncode, ran.result, ran.stdout) == (64, None, "")
    assert "protocol version 1" in ran.stderr
    assert not Path(job.log).exists()


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("bogus=1", "no such key"), ("bogus", "not key=value"), ("=1", "not key=value"), ("threads=0", "allowed range"),
        ("threads=-1", "whole number"), ("threads=1.5", "whole number"), ("threads=99999999999999999999", "range"),
        ("precision=fp8", "PROTOCOL.md"), ("backend=cuda", "PROTOCOL.md"), ("kernel_mode=fast", "PROTOCOL.md"),
        ("accelerators=", "list of"), ("accelerators=tpu", "list of"), ("accelerators=cpu,cpu", "list of"),
        ("accelerators=cpu,", "list of"), ("shape.0=1x", "not a shape"), ("shape.0=ax2", "not a shape"),
        ("shape.0=1x1x1x1x1x1x1x1x1", "not a shape"), ("shape.x=1", "no such key"), ("input.0=f", "no such key"),
        ("input.7.0=f", "sets="), ("input.0.0=", "empty path"), ("deadline_s=0", "seconds"),
        ("deadline_s=x", "seconds"),
        ("fill=256", "range"), ("iterations=0", "range"), ("repeats=0", "range"), ("args=/nowhere", "No such file"),
        ("model=", "empty path"), ("sets=0", "range"),
    ],
)  # fmt: skip
def test_a_bad_argument_is_refused_in_the_result_and_on_stderr(lab: Lab, argument: str, words: str) -> None:
    job = lab.job(lab.folder / "none.tflite", [[]])
    ran = lab.start(job, argv=[*job_argv(lab.agent, job), argument])
    assert (ran.returncode, ran.bad.stage, ran.bad.status_name) == (64, "arguments", "REFUSED")
    assert words in ran.bad.error
    assert words in ran.stderr


@pytest.mark.parametrize("key", ["library", "model", "out_dir", "log", "accelerators", "sets"])
def test_a_missing_required_key_is_named(lab: Lab, key: str) -> None:
    job = lab.job(lab.folder / "none.tflite", [[]])
    argv = [a for a in job_argv(lab.agent, job) if not a.startswith(f"{key}=")]
    ran = lab.start(job, argv=argv)
    assert ran.bad.error.startswith(f"litert_agent: refused {key}: missing")


@pytest.mark.parametrize("value", ["", "a b", 'a"b', "a/b", "x" * 129, "\u00e9"])
def test_a_nonce_that_could_break_the_result_is_refused(lab: Lab, value: str) -> None:
    done = subprocess.run(
        [lab.agent, "1", f"nonce={value}", f"result={lab.folder}/r.json"], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 64
    assert not (lab.folder / "r.json").exists()


def test_version_states_protocol_agent_and_platform(lab: Lab) -> None:
    done = subprocess.run([lab.agent, "--version"], capture_output=True, timeout=30, check=True, text=True)
    assert done.stdout == f"protocol=1 agent=1.0.0 platform={host_platform()}\n"
