"""What the runtime's log says about who really ran the model: a pure parser of the agent's log.

LiteRT counts XNNPACK as acceleration, so "fully accelerated" alone is no evidence of a GPU: a "gpu" run may have
taken place on the CPU and be right in every bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from farm.agent_protocol import AgentResult

Level = Literal["full", "partial", "none", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """Evidence of delegation. `level == "none"` for a GPU config is `unsupported`, never `pass`.

    cpu_ops: ops the delegate refused, with its words, e.g. "GATHER: Only support 1D indices".
    partitions: per subgraph (nodes on the delegate, nodes in all), from "Replacing N out of M node(s)" lines
    or "N operations will run on the GPU, and the remaining M operations will run on the CPU".
    gpu_api: "WebGPU/Vulkan", "OpenCL", "OpenGL", "Metal" or None.
    adapter: the GPU's own name, e.g. "llvmpipe (LLVM 15.0.6, 256 bits)", or None.
    """

    level: Level = "unknown"
    cpu_ops: tuple[str, ...] = ()
    partitions: tuple[tuple[int, int], ...] = ()
    gpu_api: str | None = None
    adapter: str | None = None


_REFUSED = re.compile(r"(?:Following|Next) operations are not supported by GPU delegate:")
_SPLIT = re.compile(r"(?:(\d{1,9})|\bNo) operations will run on the GPU, and (?:the remaining|all) (\d{1,9})")
_REPLACED = re.compile(r"Replacing (\d{1,9}) out of (\d{1,9}) node\(s\) with delegate \(([^)\n]*)\)")
_STATIC_ONLY = re.compile(r"Attempting to use a delegate that only supports static-sized tensors[^\n]*")
_ADAPTER = re.compile(r"Selected adapter: (.+?), (?:arch|vendor|backend)=")
_ADAPTER_BACKEND = re.compile(r"Selected adapter: [^\n]*?\bbackend=(\w+)")
_KERNEL = re.compile(r"Initiali[sz](?:ing|ed) (\w+)-based API")
_DELEGATE_API = re.compile(r"LITERT_(CL|GL|WEBGPU|METAL|VULKAN)\b")
_METAL_DEVICE = re.compile(r"Created a Metal device\.")
_PREFIX = re.compile(r"^(?:\d\d-\d\d [\d:.]+\s+\d+\s+\d+ )?(?:ERROR: |[VDIWEF][ /][\w.-]+\s*(?:\(\s*\d+\))?: )")
_OTHER_LINE = re.compile(r"^(?:[IWEF]\d{4} |INFO: |WARNING: |Warning: |VERBOSE: |=== )")

_APIS = {
    "opencl": "OpenCL", "cl": "OpenCL", "opengl": "OpenGL", "gl": "OpenGL", "metal": "Metal", "vulkan": "Vulkan",
    "webgpu": "WebGPU",
}  # fmt: skip
_MOST = 200
"""Refused ops kept per log, each at most 300 characters: a log may be hostile or a model endless."""


def parse_log(text: str, result: AgentResult | None, accelerators: tuple[str, ...]) -> Delegation:
    """Read the evidence from one agent log. `accelerators`: what the job asked for, e.g. ("gpu",).

    full: the accelerator was registered and the runtime says nothing was left to the CPU. partial: both sides ran
    something, or would have where compiling failed. none: the accelerator is missing or took nothing. unknown: the
    log and the flags do not say, as for a run that crashed. A CPU job has level "none".
    """
    asked = tuple(a for a in accelerators if a != "cpu")
    if not asked:
        return Delegation(level="none")
    cpu_ops = refused_ops(text)
    partitions = tuple(_partitions(text))
    return Delegation(
        level=_level(text, result, accelerators, asked, cpu_ops, partitions),
        cpu_ops=cpu_ops,
        partitions=partitions,
        gpu_api=_gpu_api(text),
        adapter=_adapter(text),
    )


def refused_ops(text: str) -> tuple[str, ...]:
    """Return the ops a GPU delegate refused, in its words and order, each once. () means it refused none."""
    found: dict[str, None] = {}
    for line in _refusals(text):
        found.setdefault(line[:300])
        if len(found) == _MOST:
            break
    return tuple(found)


def _refusals(text: str) -> Iterator[str]:
    """Lines between the heading and the summary; other threads' log lines may lie between them."""
    listing = False
    for raw in text.splitlines():
        static_only = _STATIC_ONLY.search(raw)
        if static_only:
            yield static_only[0].strip()
            continue
        if _REFUSED.search(raw):
            listing = True
            continue
        if not listing:
            continue
        if _SPLIT.search(raw):
            listing = False
        elif not _OTHER_LINE.match(raw):
            line = _PREFIX.sub("", raw).strip()
            if line:
                yield line


def _partitions(text: str) -> Iterator[tuple[int, int]]:
    """(on the delegate, in all) as logged; a split that both kinds of line report is given once."""
    splits = [(int(m[1] or 0), int(m[1] or 0) + int(m[2])) for m in _SPLIT.finditer(text)]
    yield from splits
    left = list(splits)
    for m in _REPLACED.finditer(text):
        pair = (int(m[1]), int(m[2]))
        if "xnnpack" in m[3].lower():  # that is the CPU
            continue
        if pair in left:
            left.remove(pair)
        else:
            yield pair


def _level(
    text: str,
    result: AgentResult | None,
    accelerators: tuple[str, ...],
    asked: tuple[str, ...],
    cpu_ops: tuple[str, ...],
    partitions: tuple[tuple[int, int], ...],
) -> Level:
    if result is not None and result.accelerators and not _registered(result.accelerators, asked):
        return "none"
    on_delegate = any(n for n, _ in partitions) or _KERNEL.search(text) is not None
    on_cpu = bool(cpu_ops) or any(n < m for n, m in partitions)
    if result is not None and result.ok:
        if not result.accelerators:
            return "unknown"
        exclusive = "cpu" not in accelerators
        if result.non_cpu_fully_accelerated and not on_cpu:
            return "full"
        # Before 2.3 the runtime cannot tell XNNPACK from the GPU, but without a CPU to fall back on it need not.
        if result.non_cpu_fully_accelerated is None and exclusive and result.fully_accelerated and not on_cpu:
            return "full"
        on_cpu = on_cpu or (not exclusive and result.non_cpu_fully_accelerated is False)
    if on_delegate and on_cpu:
        return "partial"
    if on_cpu and partitions and not on_delegate:
        return "none"
    return "unknown"


def _registered(names: tuple[str, ...], asked: tuple[str, ...]) -> bool:
    """LiteRT names its accelerators "GPU WebGPU", "GPU Metal", "NpuAccelerator", "CpuAccelerator"."""
    return all(any(a in name.lower() for name in names) for a in asked)


def _gpu_api(text: str) -> str | None:
    backend = _ADAPTER_BACKEND.search(text)
    if backend:
        return f"WebGPU/{backend[1]}"
    for pattern in (_KERNEL, _DELEGATE_API):
        found = pattern.search(text)
        if found and found[1].lower() in _APIS:
            return _APIS[found[1].lower()]
    return "Metal" if _METAL_DEVICE.search(text) else None


def _adapter(text: str) -> str | None:
    found = _ADAPTER.search(text)
    return found[1].strip()[:200] if found else None
