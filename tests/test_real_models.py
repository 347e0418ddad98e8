"""Real models of the shared material on both software GPUs: the verdicts and causes that analysis says are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.report.matrix import MatrixCell
from farm.sweep import sweep
from tests.lab.gpus import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# (model, config) → verdict, cause, on the GPU with FP16 and on the one without.
FP16, FP32 = "llvmpipe", "swiftshader"
RIGHT: dict[str, dict[tuple[str, str], tuple[str, str | None]]] = {
    "pose_detection": {(gpu, c): ("fail", "PARTITION_BOUNDARY") for gpu in (FP16, FP32) for c in ("gpu", "gpu-fp32")},
    "made_minilm_l4_wi8_wo": {
        (gpu, c): ("fail", "PARTITION_BOUNDARY") for gpu in (FP16, FP32) for c in ("gpu", "gpu-fp32")
    },
    "made_geg_fp16_zero": {
        (FP16, "gpu"): ("fail", "FP16_RANGE"),
        (FP16, "gpu-fp32"): ("pass", None),
        (FP32, "gpu"): ("pass", None),
    },
    "made_geg_fp16_nan": {
        (FP16, "gpu"): ("fail", "FP16_RANGE"),
        (FP16, "gpu-fp32"): ("pass", None),
        (FP32, "gpu"): ("pass", None),
    },
    **{
        name: {(gpu, c): ("pass", None) for gpu in (FP16, FP32) for c in ("cpu", "gpu", "gpu-fp32")}
        for name in (
            "face_detection_short_range",
            "iris_landmark",
            "made_geg_ok",
            "helia_tiny_cnn_int8",
            "oww_hey_jarvis",
        )
    },
}


@pytest.fixture(scope="module")
def cells(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], MatrixCell]:
    folder = tmp_path_factory.mktemp("real")
    found = gpus()
    if not {FP16, FP32} <= found.keys():
        pytest.skip("needs llvmpipe and SwiftShader")
    devices = [
        {"id": name, "transport": "local", "env": {"VK_ICD_FILENAMES": str(found[name])}} for name in (FP16, FP32)
    ]
    inventory = folder / "inventory.yaml"
    inventory.write_text(json.dumps({"devices": devices}))  # JSON is YAML
    names = (*RIGHT, "selfie_segmentation", "efficientnet_lite0_int8", "basic_pitch_nmp")
    models = [shared / "models" / f"{name}.tflite" for name in names]
    result = sweep(models, inventory=inventory, iterations=1, repeats=2, out=folder / "runs")
    return {(c.model, c.device, c.config): c for c in result}


@pytest.mark.parametrize("model", RIGHT)
def test_a_models_verdicts_and_causes_are_right(model: str, cells: dict[tuple[str, str, str], MatrixCell]) -> None:
    for (gpu, config), (verdict, cause) in RIGHT[model].items():
        cell = cells[model, gpu, config]
        assert (cell.verdict, cell.cause) == (verdict, cause), (gpu, config, cell.reasons, cell.message)


def test_a_mask_gets_what_its_band_says_of_its_real_error(cells: dict[tuple[str, str, str], MatrixCell]) -> None:
    for (model, _, config), cell in cells.items():
        if model != "selfie_segmentation" or cell.diagnostic:
            continue
        (output,) = cell.outputs
        error = output.metrics["max_abs"]
        assert output.kind in ("mask", "probability")
        assert cell.verdict == ("pass" if error <= 0.01 else "warn" if error <= 0.05 else "fail")
        assert config == "gpu" or cell.verdict == "pass"
        assert "SILENT_ZERO_VECTOR" not in cell.reasons


def test_a_quantised_classifier_is_not_failed_for_its_own_noise(cells: dict[tuple[str, str, str], MatrixCell]) -> None:
    seen = {c.verdict for (model, *_), c in cells.items() if model == "efficientnet_lite0_int8" and not c.diagnostic}
    assert seen <= {"pass", "warn"}


def test_garbage_of_the_cpu_never_makes_a_pass(cells: dict[tuple[str, str, str], MatrixCell]) -> None:
    seen = {c.verdict for (model, *_), c in cells.items() if model == "basic_pitch_nmp" and not c.diagnostic}
    assert seen <= {"inconclusive", "error", "unsupported"}
