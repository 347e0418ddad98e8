"""The job and result contract with the agent (twin of agents/PROTOCOL.md).

A job becomes the agent's argv; what it leaves behind is one result file, written last. A cell succeeded only if
a result with our nonce and matching hashes arrived: exit codes never decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

PROTOCOL = 1

OUTPUT_FILE = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(\.r[0-9]{1,9})?\.raw")
"""SET.STEP.INDEX.raw, or SET.STEP.INDEX.rREPEAT.raw for a repeat that differs: the only names a result may hold."""

_NONCE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ResultRefused(ValueError):
    """The agent's result file cannot be trusted: it counts as no result at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One agent process: one model, one signature, one config, all input sets. Paths are paths on the device.

    inputs[set][i]: file with the raw little-endian bytes of signature input i.
    shapes[i]: shape to resize signature input i to, or None to keep the model's own.
    steps: inference steps per set of a stateful model (then no warm-up, no repeats and exactly one set), else 0.
    fill: byte every output buffer starts with, 0 to leave it as it is. Two runs with different fills differ in what
    the runtime never wrote.
    """

    nonce: str
    library: str
    runtime_dir: str
    model: str
    out_dir: str
    result: str
    log: str
    accelerators: tuple[str, ...]
    """("gpu",) or ("gpu", "cpu") for a run with CPU fallback."""
    signature: int = 0
    precision: str = "default"
    backend: str = "auto"
    kernel_mode: str = "delegate"
    xnnpack_flags: int = 0
    gpu_options: tuple[str, ...] = ()
    threads: int = 1
    inputs: tuple[tuple[str, ...], ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    warmup: int = 1
    iterations: int = 5
    iterations_ms: int = 2000
    repeats: int = 3
    steps: int = 0
    deadline_s: float = 120.0
    fill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A signature input or output as the runtime saw it after compiling and resizing."""

    index: int
    name: str
    dtype: str
    """numpy's name (float32, int64, bool, …); bfloat16, int4, string and the like by LiteRT's name."""
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputData:
    """One output of one run: raw bytes in `file` (relative to out_dir), hashed on the device.

    repeat_sha256: hash of this output in every repeat, the first included.
    repeat_files: file per repeat whose bytes differ from the first, by repeat number as text.
    """

    index: int
    sha256: str
    size_bytes: int
    file: str
    shape: tuple[int, ...]
    repeat_sha256: tuple[str, ...] = ()
    repeat_files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """What one input set (and one step of it, for stateful models) gave."""

    set: int
    step: int = 0
    outputs: tuple[OutputData, ...] = ()
    latency_ms: tuple[float, ...] = ()
    """Per timed iteration: run plus reading every output, since a GPU run returns before it is done."""
    run_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The agent's result file. `ok` false says how far it came: stage, status, signal or timeout."""

    protocol: int
    agent_version: str
    nonce: str
    ok: bool
    stage: str
    status: int = 0
    status_name: str = ""
    error: str = ""
    signal: int = 0
    timed_out: bool = False
    accelerators: tuple[str, ...] = ()
    """Accelerators the runtime registered, by its own names, e.g. "GPU WebGPU"."""
    fully_accelerated: bool | None = None
    non_cpu_fully_accelerated: bool | None = None
    """None before LiteRT 2.3."""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    runs: tuple[RunData, ...] = ()
    load_ms: float = 0.0
    environment_ms: float = 0.0
    model_ms: float = 0.0
    compile_ms: float = 0.0
    warmup_ms: float = 0.0
    total_ms: float = 0.0
    peak_rss_bytes: int = 0


def _pairs(job: Job) -> Iterator[tuple[str, str]]:
    """The job as the agent's keys and values, in the order of PROTOCOL.md."""
    yield "nonce", job.nonce
    yield "result", job.result
    yield "log", job.log
    yield "library", job.library
    if job.runtime_dir:
        yield "runtime_dir", job.runtime_dir
    yield "model", job.model
    yield "out_dir", job.out_dir
    yield "accelerators", ",".join(job.accelerators)
    yield "signature", str(job.signature)
    yield "precision", job.precision
    yield "backend", job.backend
    yield "kernel_mode", job.kernel_mode
    yield "xnnpack_flags", str(job.xnnpack_flags)
    for line in job.gpu_options:
        yield "gpu_option", line
    yield "threads", str(job.threads)
    yield "warmup", str(job.warmup)
    yield "iterations", str(job.iterations)
    yield "iterations_ms", str(job.iterations_ms)
    yield "repeats", str(job.repeats)
    yield "steps", str(job.steps)
    yield "deadline_s", f"{job.deadline_s:.3f}"
    yield "fill", str(job.fill)
    yield "sets", str(len(job.inputs))
    for index, shape in enumerate(job.shapes):
        if shape is not None:
            yield f"shape.{index}", "x".join(map(str, shape))
    for number, files in enumerate(job.inputs):
        for index, file in enumerate(files):
            yield f"input.{number}.{index}", file


def _lines(job: Job) -> list[str]:
    if not _NONCE.fullmatch(job.nonce):
        raise ValueError(f"a nonce is 1 to 128 letters, digits, '.', '_' or '-', not {job.nonce!r}")
    if not job.inputs:
        raise ValueError("a job needs an input set; a signature without inputs has one empty set: inputs=((),)")
    lines = [f"{key}={value}" for key, value in _pairs(job)]
    for line in lines:
        if "\n" in line or "\0" in line:
            raise ValueError(f"a value of the agent's job holds a line break or NUL: {line!r}")
    return lines


def job_argv(agent: str, job: Job) -> list[str]:
    """Return the agent's whole command line. Raises ValueError for what the contract cannot carry."""
    return [agent, str(PROTOCOL), *_lines(job)]


def job_file(job: Job) -> bytes:
    """Return what `args=FILE` reads: one key=value per line. For jobs too long for a command line."""
    return "".join(f"{line}\n" for line in _lines(job)).encode("utf-8", "surrogateescape")


def read_result(data: bytes, job_nonce: str) -> AgentResult:
    """Decode a result file and check everything later stages rely on.

    Raises ResultRefused if it is not JSON, not this protocol, not this job's (stale or foreign nonce), or holds
    values the agent never writes: other file names, negative sizes, malformed hashes.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ResultRefused(f"the agent's result is not what PROTOCOL.md describes: {e}") from e
    if head.protocol != PROTOCOL:
        raise ResultRefused(f"the agent's result speaks protocol {head.protocol}, this farm speaks {PROTOCOL}")
    if head.nonce != job_nonce:
        raise ResultRefused("the result on the device belongs to another job (its nonce differs)")
    try:
        result = msgspec.json.decode(data, type=AgentResult)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ResultRefused(f"the agent's result is not what PROTOCOL.md describes: {e}") from e
    for problem in _problems(result):
        raise ResultRefused(f"the agent's result is not what PROTOCOL.md describes: {problem}")
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """Read first, so that a result of another protocol is named as such rather than as malformed."""

    protocol: int
    nonce: str


def _problems(result: AgentResult) -> Iterator[str]:
    times = (
        result.load_ms, result.environment_ms, result.model_ms, result.compile_ms, result.warmup_ms, result.total_ms
    )  # fmt: skip
    if min(times) < 0 or result.peak_rss_bytes < 0:
        yield "a time or size is negative"
    if result.ok and (result.signal or result.timed_out or result.status):
        yield "it claims success and a failure at once"
    if result.ok and not result.runs:
        yield "it claims success and holds no run"
    for tensor in (*result.inputs, *result.outputs):
        if tensor.index < 0 or tensor.size_bytes < 0 or any(d < 0 for d in tensor.shape):
            yield f"tensor {tensor.index} has a negative number"
    files: set[str] = set()
    for run in result.runs:
        if run.set < 0 or run.step < 0 or any(t < 0 for t in (*run.latency_ms, *run.run_ms)):
            yield f"run {run.set}.{run.step} has a negative number"
        if tuple(o.index for o in run.outputs) != tuple(range(len(result.outputs))):
            yield f"run {run.set}.{run.step} does not hold every output once, in order"
        for output in run.outputs:
            yield from _output_problems(output, files)


def _output_problems(output: OutputData, files: set[str]) -> Iterator[str]:
    """`files`: names seen so far in this result; each may be named once."""
    if output.size_bytes < 0 or any(d < 0 for d in output.shape):
        yield f"output {output.index} has a negative number"
    if not all(_SHA256.fullmatch(h) for h in (output.sha256, *output.repeat_sha256)):
        yield f"output {output.index} has a malformed sha256"
    if output.repeat_sha256[:1] != (output.sha256,):
        yield f"output {output.index} does not start its repeats with the first run"
    different = {str(n) for n, h in enumerate(output.repeat_sha256) if h != output.sha256}
    if different != set(output.repeat_files):
        yield f"output {output.index} does not name one file for each repeat that differs"
    for name in (output.file, *output.repeat_files.values()):
        if not OUTPUT_FILE.fullmatch(name) or name in files:
            yield f"output {output.index} names the file {name[:80]!r}"
        files.add(name)
