"""Lines to paste into an app for a config, by language: our own lines over API names read in the sources below.

- Kotlin: `CompiledModel.Options`, `CompiledModel.GpuOptions(precision, backend)`: LiteRT's Kotlin API
  (https://developers.google.com/edge/litert/next/android_kotlin); `gpuOptions` seen in public apps on litert 2.2.0.
- C++: `litert/cc/options/litert_gpu_options.h` in https://github.com/google-ai-edge/LiteRT.
- Python: `ai_edge_litert/options.py` and `gpu_options.py` of the ai-edge-litert wheel; the same classes are used with
  2.1.4 in https://github.com/google-ai-edge/LiteRT/issues/7693.
- FP16 with FP32 accumulation: https://github.com/google-ai-edge/LiteRT/releases/tag/v2.2.0.
"""

from __future__ import annotations

from farm.configs import Config

_KOTLIN_PRECISION = {"fp32": "FP32", "fp16": "FP16", "fp16-acc32": "FP16_WITH_FP32_ACCUM"}
_CPP_PRECISION = {"fp32": "kFp32", "fp16": "kFp16", "fp16-acc32": "kFp16WithFp32Accum"}
_KOTLIN_BACKEND = {"opencl": "OPENCL"}
_CPP_BACKEND = {"opencl": "kOpenCl", "opengl": "kOpenGl", "webgpu": "kWebGpu"}

_SOURCES = (
    "Python: ai-edge-litert 2.1.4 or newer (source: its options.py; google-ai-edge/LiteRT#7693). "
    "C++: LiteRT C++ SDK 2.1.3 or newer (source: litert/cc/options/litert_gpu_options.h). "
    "Kotlin: com.google.ai.edge.litert:litert, seen in use with 2.2.0 (source: LiteRT's Kotlin API); from 2.3.0 on "
    "also add com.google.ai.edge.litert:litert-gpu."
)
_CPU_SOURCES = (
    "Works on every LiteRT 2.x runtime this tool supports (2.1.3 or newer). "
    "Source: LiteRT's CompiledModel API in Kotlin, C++ and Python."
)


def snippets(config: Config) -> tuple[dict[str, str], str]:
    """Return (language → lines that ask for `config`, note with minimum version and source).

    There are no lines where none are known; the note then says so.
    """
    if config.xnnpack_flags or config.gpu_options or config.kernel_mode != "delegate":
        return {}, f"{config.name} sets runtime options that have no ready lines for apps."
    if config.accelerator == "cpu":
        return _cpu(), _CPU_SOURCES
    if config.accelerator == "gpu" and (config.precision != "default" or config.backend != "auto"):
        return _gpu(config)
    return {}, ""


def _cpu() -> dict[str, str]:
    return {
        "kotlin": 'val model = CompiledModel.create(\n    context.assets,\n    "model.tflite",\n'
        "    CompiledModel.Options(Accelerator.CPU),\n)\n",
        "cpp": "LITERT_ASSIGN_OR_RETURN(auto options, litert::Options::Create());\n"
        "options.SetHardwareAccelerators(litert::HwAccelerators::kCpu);\n"
        "// pass `options` to litert::CompiledModel::Create\n",
        "python": "from ai_edge_litert.compiled_model import CompiledModel\n"
        "from ai_edge_litert.hardware_accelerator import HardwareAccelerator\n"
        "from ai_edge_litert.options import Options\n\n"
        "options = Options(hardware_accelerators=HardwareAccelerator.CPU)\n"
        'model = CompiledModel.from_file("model.tflite", options=options)\n',
    }


def _gpu(config: Config) -> tuple[dict[str, str], str]:
    lines: dict[str, str] = {}
    missing: list[str] = []
    precision, backend = config.precision, config.backend

    kotlin = []
    if backend in _KOTLIN_BACKEND:
        kotlin.append(f"backend = CompiledModel.GpuOptions.Backend.{_KOTLIN_BACKEND[backend]}")
    if precision in _KOTLIN_PRECISION:
        kotlin.append(f"precision = CompiledModel.GpuOptions.Precision.{_KOTLIN_PRECISION[precision]}")
    if backend == "auto" or backend in _KOTLIN_BACKEND:
        body = "".join(f"        {argument},\n" for argument in kotlin)
        lines["kotlin"] = (
            "val options = CompiledModel.Options(Accelerator.GPU).apply {\n"
            f"    gpuOptions = CompiledModel.GpuOptions(\n{body}    )\n}}\n"
            'val model = CompiledModel.create(context.assets, "model.tflite", options)\n'
        )
    else:
        missing.append("Kotlin")

    cpp = [
        "LITERT_ASSIGN_OR_RETURN(auto options, litert::Options::Create());",
        "options.SetHardwareAccelerators(litert::HwAccelerators::kGpu);",
        "LITERT_ASSIGN_OR_RETURN(auto& gpu, options.GetGpuOptions());",
    ]
    if backend in _CPP_BACKEND:
        cpp.append(f"LITERT_RETURN_IF_ERROR(gpu.SetBackend(litert::GpuOptions::Backend::{_CPP_BACKEND[backend]}));")
    if precision in _CPP_PRECISION:
        cpp.append(
            f"LITERT_RETURN_IF_ERROR(gpu.SetPrecision(litert::GpuOptions::Precision::{_CPP_PRECISION[precision]}));"
        )
    lines["cpp"] = "\n".join([*cpp, "// pass `options` to litert::CompiledModel::Create", ""])

    if precision == "fp32" and backend == "auto":
        lines["python"] = (
            "from ai_edge_litert.compiled_model import CompiledModel\n"
            "from ai_edge_litert.hardware_accelerator import HardwareAccelerator\n"
            "from ai_edge_litert.options import GpuOptions, Options\n\n"
            "options = Options(\n"
            "    hardware_accelerators=HardwareAccelerator.GPU,\n"
            "    gpu_options=GpuOptions(enforce_f32=True),\n"
            ")\n"
            'model = CompiledModel.from_file("model.tflite", options=options)\n'
        )
    else:
        missing.append("Python")

    note = _SOURCES
    if precision == "fp16-acc32":
        note = "FP16 with FP32 accumulation needs LiteRT 2.2.0 or newer (its release notes). " + note
    if missing:
        note = f"No way to ask for this from {' or '.join(missing)} is known to us. " + note
    return lines, note
