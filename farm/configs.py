"""The delegate precision configs and what each asks of the runtime.

What a config *really* gives is measured by the canaries (canary.py), never believed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from farm.errors import InvalidInput, Problem

Accelerator = Literal["cpu", "gpu", "npu"]
Precision = Literal["default", "fp32", "fp16", "fp16-acc32"]
Backend = Literal["auto", "opencl", "opengl", "webgpu"]
KernelMode = Literal["delegate", "builtin", "reference"]

XNNPACK_FORCE_FP16 = 0x4


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One way to run a model. Precision and backend only mean something for `accelerator == "gpu"`."""

    name: str
    accelerator: Accelerator
    precision: Precision = "default"
    backend: Backend = "auto"
    kernel_mode: KernelMode = "delegate"
    xnnpack_flags: int = 0
    gpu_options: tuple[str, ...] = ()
    """Extra lines of the runtime's TOML `gpu_options`, e.g. ``priority = 2``."""
    diagnostic: bool = False
    """Run and shown and used for causes, never counted in the exit code."""
    summary: str = ""


CONFIGS: dict[str, Config] = {
    c.name: c
    for c in (
        Config(name="cpu", accelerator="cpu", summary="XNNPACK on the device's CPU"),
        Config(
            name="cpu-ref",
            accelerator="cpu",
            kernel_mode="reference",
            diagnostic=True,
            summary="LiteRT's reference kernels: how far two right CPU answers lie apart",
        ),
        Config(
            name="cpu-fp16",
            accelerator="cpu",
            xnnpack_flags=XNNPACK_FORCE_FP16,
            diagnostic=True,
            summary="XNNPACK forced to FP16: an FP16 device without a device",
        ),
        Config(
            name="gpu", accelerator="gpu", summary="the GPU delegate's default precision (FP16 where the GPU has it)"
        ),
        Config(name="gpu-fp32", accelerator="gpu", precision="fp32", summary="the GPU delegate, FP32 asked for"),
        Config(name="gpu-fp16", accelerator="gpu", precision="fp16", summary="the GPU delegate, FP16 asked for"),
        Config(
            name="gpu-fp16-acc32",
            accelerator="gpu",
            precision="fp16-acc32",
            summary="FP16 storage and arithmetic with FP32 accumulation (LiteRT 2.2 and newer)",
        ),
        Config(name="gpu-cl", accelerator="gpu", backend="opencl", summary="the GPU delegate through OpenCL"),
        Config(name="gpu-gl", accelerator="gpu", backend="opengl", summary="the GPU delegate through OpenGL"),
        Config(name="gpu-webgpu", accelerator="gpu", backend="webgpu", summary="the GPU delegate through WebGPU"),
        Config(name="npu", accelerator="npu", summary="the vendor's NPU through a dispatch library"),
    )
}
DEFAULT_CONFIGS = ("cpu", "gpu", "gpu-fp32")
DEFAULT_DIAGNOSTICS = ("cpu-ref", "cpu-fp16")


def select_configs(
    names: Sequence[str] | None = None, own: Mapping[str, Config] | None = None, *, diagnostics: bool = True
) -> tuple[Config, ...]:
    """Return the configs of the given names, in their order, each once; the default ones for none.

    A name may be a comma-separated list. `own`: the inventory's configs by name. With `diagnostics` the default
    diagnostics follow, without which the cause of a failure cannot be told. Raises InvalidInput for unknown names.
    """
    known = {**CONFIGS, **(own or {})}
    wanted = [n.strip() for name in names or () for n in name.split(",") if n.strip()]
    if names and not wanted:
        raise InvalidInput(Problem(message="no config is named", cure="known: " + ", ".join(known)))
    problems = []
    for name in dict.fromkeys(n for n in wanted if n not in known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        problems.append(Problem(message=f"unknown config {name!r}", cure=hint + "known: " + ", ".join(known)))
    if problems:
        raise InvalidInput(problems)
    chosen = [*(wanted or DEFAULT_CONFIGS), *(DEFAULT_DIAGNOSTICS if diagnostics else ())]
    return tuple(known[name] for name in dict.fromkeys(chosen))
