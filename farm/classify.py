"""From what came back of one agent process to a Failure or None: pure; session.py asks.

The order of trust: a result file with our nonce, then the signal or exit status the link reports, then nothing at all
(which says something about the device and nothing about the model).
"""

from __future__ import annotations

import re
import signal as signals

from farm.agent_protocol import AgentResult
from farm.delegation import refused_ops
from farm.outcome import Failure
from farm.transports.base import Completed

INVALID_FLATBUFFER = 501
UNSUPPORTED_STATUSES = (5, 504)
"""LiteRtStatus: unsupported, compilation failed (facts of the C API, litert_common.h)."""
ALLOCATION_STATUS, EXPIRED_STATUS = 2, 7
MESSAGE_LIMIT = 600
EXIT_REFUSED, EXIT_NO_RESULT, EXIT_TIMED_OUT = 64, 74, 124
"""What the agent itself ends with when there is no result to read (agents/PROTOCOL.md)."""

ENDED_ITSELF, DISK_FULL = "EXITED", "ENOSPC"
"""`status_name` of a worker that left by exit(), and of a full disk (agents/PROTOCOL.md)."""

_CRASH_SIGNALS = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP"}
_STAGE = re.compile(r"^@stage (\S+)", re.MULTILINE)
_NOT_ACCELERATED = re.compile(
    r"Some ops are not accelerated|operations are not supported by GPU delegate|not supported by GPU", re.I
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|cannot allocate memory|failed to allocate (?:\d+ bytes|(?:device |host )?memory)"
    r"|OUT_OF_(?:HOST|DEVICE)_MEMORY|CL_OUT_OF_RESOURCES|CL_MEM_OBJECT_ALLOCATION_FAILURE|lowmemorykiller",
    re.I,
)
_NO_ADAPTER = re.compile(
    r"no (?:suitable |compatible |supported )?(?:GPU |WebGPU |Vulkan )?adapters?\b"
    r"|failed to (?:get|request|find|create)[^\n]{0,40}adapter|adapter (?:not found|is null)"
    r"|vkCreateInstance: Found no drivers|no OpenCL (?:platform|device)",
    re.I,
)
_NO_SPACE = re.compile(r"no space left on device|ENOSPC", re.I)
_ERROR_LINE = re.compile(r"^(?:ERROR: |FATAL: |[EF]\d{4} \S+ +\d+ )(?:\[[\w.]+:\d+\] |[\w.]+:\d+\] )?(.+)")
_SHARE_LINE = re.compile(r"^(.*)operations will run on the GPU", re.MULTILINE)
_MODEL_STAGES = {"model", "options", "compile", "signature", "resize", "buffers", "inputs", "warmup", "run"}
_NO_GPU_CURE = (
    "install a Vulkan, OpenCL, OpenGL or Metal driver, "
    "or name one in the device's env (VK_ICD_FILENAMES=/path/icd.json)"
)


def last_stage(stdout: bytes) -> str:
    """The last `@stage NAME` line the agent printed, or ""."""
    found = _STAGE.findall(stdout.decode("utf-8", "replace"))
    return found[-1] if found else ""


def refused(failure: Failure | None, log: str) -> bool:
    """Whether a GPU-only run was refused op by op, so that a run with CPU fallback makes sense.

    Not when the delegate would have taken no op at all: that run could only give the CPU's numbers.
    """
    if failure is None or failure.code != "UNSUPPORTED":
        return False
    shares = _SHARE_LINE.findall(log)
    if shares and all(share.strip() == "No" for share in shares):
        return False
    return bool(_NOT_ACCELERATED.search(log) or _NOT_ACCELERATED.search(failure.message))


def classify(
    result: AgentResult | None,
    completed: Completed | None,
    log: str,
    *,
    accelerator: str = "cpu",
    deadline_s: float | None = None,
    oom_killed: bool = False,
) -> Failure | None:
    """Say why there are no outputs, or None when `result` is a success.

    completed None: our own deadline ended the process (`deadline_s` says which) and the far side is dead.
    oom_killed: the kernel's counter of out-of-memory kills rose while the process ran.
    """
    if result is not None:
        return None if result.ok else _from_result(result, log, accelerator, oom_killed)
    if completed is None:
        limit = f" after {deadline_s:g} s" if deadline_s is not None else ""
        return Failure(code="TIMEOUT", message=f"the agent did not end by its own deadline and was killed{limit}")
    return _from_exit(completed, log, oom_killed)


def _from_result(result: AgentResult, log: str, accelerator: str, oom_killed: bool) -> Failure:
    stage, words = result.stage, runtime_words(result, log)
    if result.timed_out:
        return Failure(code="TIMEOUT", message=f"stopped by the deadline in stage '{stage}'", stage=stage)
    if result.signal:
        return _from_signal(result.signal, stage, log, oom_killed)
    if result.status_name == DISK_FULL:
        return Failure(code="NO_SPACE", message=f"the device's disk is full (stage '{stage}')", stage=stage, infra=True)
    if result.status_name == ENDED_ITSELF and not refused_ops(log):
        # A failed CHECK in a library calls exit(1): no signal, and no word of refusal either.
        return Failure(code="CRASH", message=f"the runtime ended the process in stage '{stage}': {words}", stage=stage)
    if result.status == EXPIRED_STATUS:
        # The log's last error is then an old one, mostly of the ops the delegate left to the CPU.
        return Failure(code="TIMEOUT", message=f"the runtime's own wait expired in stage '{stage}'", stage=stage)
    if accelerator in ("gpu", "npu") and stage == "compile":
        kind = accelerator.upper()
        if not any(kind in name.upper() for name in result.accelerators):
            message = f"the runtime registered no {kind} accelerator: add its library to the bundle (farm runtime add)"
            return Failure(code="NO_ACCELERATOR", message=message, stage=stage)
        if _NOT_ACCELERATED.search(log):
            ops = "; ".join(refused_ops(log))
            message = f"the {kind} delegate refused: {ops}" if ops else words
            return Failure(code="UNSUPPORTED", message=message[:MESSAGE_LIMIT], stage=stage)
        if _NO_ADAPTER.search(log):
            return Failure(code="NO_ACCELERATOR", message=f"no {kind} adapter: {_NO_GPU_CURE}", stage=stage)
        if result.status in UNSUPPORTED_STATUSES:
            return Failure(code="UNSUPPORTED", message=words, stage=stage)
    if result.status == ALLOCATION_STATUS or _OUT_OF_MEMORY.search(result.error) or _OUT_OF_MEMORY.search(log):
        return Failure(code="OUT_OF_MEMORY", message=words, stage=stage)
    if result.status == INVALID_FLATBUFFER:
        return Failure(code="INVALID_MODEL", message=words, stage=stage)
    return Failure(code="RUNTIME_ERROR", message=words, stage=stage)


def _from_signal(number: int, stage: str, log: str, oom_killed: bool) -> Failure:
    try:
        name = signals.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    where = f" in stage '{stage}'" if stage else ""
    if name == "SIGKILL":
        if oom_killed or _OUT_OF_MEMORY.search(log):
            return Failure(
                code="OUT_OF_MEMORY",
                message=f"killed by the system for want of memory{where}",
                stage=stage,
                signal=number,
            )
        return Failure(
            code="INFRA",
            message=f"killed from outside (SIGKILL){where}; the kernel counted no out-of-memory kill",
            stage=stage,
            signal=number,
            infra=True,
        )
    if name == "SIGILL":
        message = f"SIGILL{where}: the runtime needs a newer CPU (an instruction this one lacks), or trapped itself"
        return Failure(code="CRASH", message=message, stage=stage, signal=number)
    if name in _CRASH_SIGNALS:
        if _OUT_OF_MEMORY.search(log):  # abort() after std::bad_alloc
            return Failure(
                code="OUT_OF_MEMORY", message=f"{name}{where} after a failed allocation", stage=stage, signal=number
            )
        return Failure(code="CRASH", message=f"{name}{where}", stage=stage, signal=number)
    return Failure(code="INFRA", message=f"ended from outside by {name}{where}", stage=stage, signal=number, infra=True)


def _from_exit(completed: Completed, log: str, oom_killed: bool) -> Failure:
    stage = last_stage(completed.stdout)
    status = completed.exit_status
    said = completed.stderr.decode("utf-8", "replace").strip().splitlines()
    words = said[-1][:300] if said else ""
    if _NO_SPACE.search(words) or _NO_SPACE.search(log):
        return Failure(
            code="NO_SPACE", message="the device's disk is full: the agent could not write its files", infra=True
        )
    # 129..159 are 128 + signal; 255 is also what a cut adb link gives, so it proves nothing.
    if status is not None and 128 < status < 160:
        return _from_signal(status - 128, stage, log, oom_killed)
    if status == EXIT_TIMED_OUT:
        return Failure(code="TIMEOUT", message=f"stopped by the deadline in stage '{stage}'", stage=stage)
    if status == EXIT_NO_RESULT:
        return Failure(code="INFRA", message=f"the agent could not write its result: {words or 'no words'}", infra=True)
    if status is not None and 0 < status < EXIT_REFUSED and stage in _MODEL_STAGES:
        return Failure(
            code="CRASH", message=f"the process ended itself with exit status {status} in stage '{stage}'", stage=stage
        )
    if status is not None and 0 < status < 128 and not stage:
        return Failure(
            code="INFRA", message=f"the agent did not start (exit status {status}): {words or 'no words'}", infra=True
        )
    after = f" after stage '{stage}'" if stage else ""
    message = f"the agent left no result{after}: the device or the link went away"
    return Failure(code="DEVICE_LOST", message=message, stage=stage, infra=True)


def runtime_words(result: AgentResult, log: str) -> str:
    """Stage, status name and the runtime's own words, on one line."""
    said = []
    for line in log.splitlines():
        found = _ERROR_LINE.match(line.strip())
        if found and found[1] not in said:
            said.append(found[1])
    head = f"{result.stage}: {result.status_name or result.status}"
    words = "; ".join(said) or result.error
    return f"{head}: {words}"[:MESSAGE_LIMIT] if words else head
