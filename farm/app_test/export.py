"""Writes the folder of an app test: golden inputs as raw files and npz, what to do with them as JSON, and the sources.

Names from models stay in the JSON: the sources read it and hold none of them.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from farm.cases import Case
from farm.codec import to_json, write_whole
from farm.configs import Config
from farm.errors import InvalidInput, Problem
from farm.objects import Objects
from farm.tensors import Manifest, TensorEntry
from farm.tflite import Model, read_model

KOTLIN_TYPES = ("float32", "int32", "int8", "bool")
"""What LiteRT's Kotlin TensorBuffer reads and writes (its writeFloat, writeInt, writeInt8, writeBoolean)."""
SWIFT_TYPES = ("float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
"""What goes through TensorFlowLiteSwift as bytes."""
KOTLIN_PRECISION = {"default": None, "fp32": "FP32", "fp16": "FP16", "fp16-acc32": "FP16_WITH_FP32_ACCUM"}
SWIFT_LOSSY = {"default": "false", "fp32": "false", "fp16": "true"}
"""isPrecisionLossAllowed of MetalDelegate.Options by precision; its own default is false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. left_out: a sentence for each source that could not be, and why."""

    folder: Path
    files: tuple[str, ...]
    input_sets: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def export_app_test(case: Case, objects: Objects, configs: Sequence[Config], folder: Path) -> Exported:
    """Write the app test of one case. Raises InvalidInput where the model is damaged, the folder is in use or cannot be
    written, or no source could be written."""
    if case.invalid is not None or case.graph is None:
        raise InvalidInput(Problem(message=f"cannot be tested: {case.invalid}", file=case.model_path))
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(Problem(message="is not empty", file=str(folder), cure="choose another --out, or empty it"))
    model = read_model(Path(case.model_path))
    kotlin = [c for c in configs if _kotlin_config(c)]
    swift = [c for c in configs if _swift_config(c)]
    left_out = _why_not(case, model, configs, kotlin, swift)
    if not kotlin and not swift:
        raise InvalidInput(
            Problem(message="; ".join(left_out.values()) or "no config is given", cure="choose other configs")
        )
    files: dict[str, bytes] = _golden(case, objects, model)
    sources = _sources(case, kotlin if "kotlin" not in left_out else [], swift if "swift" not in left_out else [])
    if not sources:
        raise InvalidInput(Problem(message="; ".join(left_out.values()), file=case.model_path))
    files |= sources
    files["README.md"] = _render(
        "README.md.j2",
        model=case.model,
        configs=[c.name for c in configs if c in kotlin or c in swift],
        kotlin="android/FarmAppTest.kt" in sources,
        swift="ios/FarmAppTests.swift" in sources,
        left_out=list(left_out.values()),
    )
    try:
        for name, data in files.items():
            write_whole(folder / name, data)
        shutil.copyfile(case.model_path, folder / "golden" / "model.tflite")
    except OSError as e:
        raise InvalidInput(
            Problem(message=f"cannot be written: {e.strerror or e}", file=str(folder), cure="choose another --out")
        ) from e
    return Exported(
        folder=folder,
        files=tuple(sorted([*files, "golden/model.tflite"])),
        input_sets=tuple(s.name for s in case.input_sets),
        left_out=tuple(left_out.values()),
    )


def _kotlin_config(config: Config) -> bool:
    if config.kernel_mode != "delegate" or config.xnnpack_flags or config.gpu_options:
        return False
    return config.accelerator == "cpu" or (
        config.accelerator == "gpu" and config.precision in KOTLIN_PRECISION and config.backend in ("auto", "opencl")
    )


def _swift_config(config: Config) -> bool:
    if config.kernel_mode != "delegate" or config.xnnpack_flags or config.gpu_options:
        return False
    return config.accelerator == "cpu" or (
        config.accelerator == "gpu" and config.precision in SWIFT_LOSSY and config.backend == "auto"
    )


def _why_not(
    case: Case, model: Model, configs: Sequence[Config], kotlin: list[Config], swift: list[Config]
) -> dict[str, str]:
    """A language or config → why it is left out."""
    assert case.graph is not None
    types = {t.dtype for t in case.graph.inputs} | {t.dtype for t in case.graph.outputs}
    told: dict[str, str] = {}
    for config in configs:
        if config not in kotlin and config not in swift:
            told[config.name] = f"config {config.name} has no way to ask for it from an app's code that is known to us"
    if odd := sorted(types - set(KOTLIN_TYPES)):
        told["kotlin"] = f"no Kotlin test: LiteRT's Kotlin API does not carry {', '.join(odd)}"
    elif any(case.shapes) and case.shapes:
        told["kotlin"] = "no Kotlin test: LiteRT's Kotlin API cannot resize inputs, and --input-shape asks for it"
    if odd := sorted(types - set(SWIFT_TYPES)):
        told["swift"] = f"no Swift test: TensorFlowLiteSwift does not carry {', '.join(odd)}"
    elif model.signatures[case.signature].subgraph != 0:
        told["swift"] = "no Swift test: TensorFlowLiteSwift runs a model's first subgraph only"
    if case.graph.stateful:
        for language in ("kotlin", "swift"):
            told.setdefault(
                language, f"no {language.title()} test: the model keeps state, which needs a process per set"
            )
    return told


def _golden(case: Case, objects: Objects, model: Model) -> dict[str, bytes]:
    """Inputs as raw files with tensors.json, test.json for the sources, golden.npz for `farm sweep --inputs`."""
    assert case.graph is not None
    signature = model.signatures[case.signature]
    graph = model.subgraphs[signature.subgraph]
    files: dict[str, bytes] = {}
    entries: list[TensorEntry] = []
    arrays: dict[str, np.ndarray] = {}
    sets: list[dict[str, Any]] = []
    for number, one in enumerate(case.input_sets):
        inputs = []
        for index, array in enumerate(one.arrays):
            name = f"{number}.{index}.raw"
            values = objects.load(array.sha256, array.dtype, array.shape)
            files[f"golden/{name}"] = values.tobytes()
            arrays[f"{one.name}/{array.name}"] = values
            entries.append(
                TensorEntry(
                    name=array.name, set=one.name, role="input", dtype=array.dtype, shape=array.shape, file=name,
                    sha256=array.sha256,
                )
            )  # fmt: skip
            inputs.append(
                {
                    "name": array.name, "index": index, "dtype": array.dtype, "shape": list(array.shape), "file": name,
                    "sha256": array.sha256,
                    "subgraph_index": _position(graph.inputs, signature.inputs[index][1]),
                    "resize": bool(case.shapes and case.shapes[index]),
                }
            )  # fmt: skip
        sets.append({"name": one.name, "inputs": inputs})
    outputs = [
        {
            "name": o.name, "index": index, "dtype": o.dtype, "shape": list(o.shape),
            "subgraph_index": _position(graph.outputs, signature.outputs[index][1]),
        }
        for index, o in enumerate(case.graph.outputs)
    ]  # fmt: skip
    about = {
        "kind": "farm-app-test", "schema_version": 1, "model_sha256": case.model_sha256,
        "signature": case.signature_key, "signature_index": case.signature, "sets": sets,
        "outputs": outputs, "iterations": 5,
    }  # fmt: skip
    manifest = Manifest(
        tensors=tuple(entries), source="golden inputs of farm export-app-test", model_sha256=case.model_sha256,
        signature=case.signature_key,
    )  # fmt: skip
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]  # keys are input names, never `file` alone: they hold a slash
    return {
        **files,
        "golden/tensors.json": to_json(manifest, indent=1),
        "golden/test.json": to_json(about, indent=1),
        "golden.npz": packed.getvalue(),
    }


def _position(tensors: Sequence[int], tensor: int) -> int:
    """Where a tensor stands among the subgraph's own inputs or outputs; -1 where it is none of them."""
    return list(tensors).index(tensor) if tensor in tensors else -1


def _sources(case: Case, kotlin: Sequence[Config], swift: Sequence[Config]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    if kotlin:
        files["android/FarmAppTest.kt"] = _render(
            "FarmAppTest.kt.j2",
            configs=[
                {
                    "name": c.name,
                    "method": c.name.replace("-", "_"),
                    "gpu": c.accelerator == "gpu",
                    "precision": KOTLIN_PRECISION[c.precision],
                    "opencl": c.backend == "opencl",
                }
                for c in kotlin
            ],
        )
    if swift:
        files["ios/FarmAppTests.swift"] = _render(
            "FarmAppTests.swift.j2",
            configs=[
                {
                    "name": c.name,
                    "method": "".join(part.capitalize() for part in c.name.split("-")),
                    "gpu": c.accelerator == "gpu",
                    "lossy": SWIFT_LOSSY[c.precision],
                }
                for c in swift
            ],
        )
    return files


def _render(template: str, **values: Any) -> bytes:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("farm.app_test"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(template).render(**values).encode()
