"""Real models of the shared material: known faults named at their op, healthy ones named nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layers.kit import named, study

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("config", ["gpu", "gpu-fp32"])
def test_the_first_conv_behind_densified_weights_is_named(tmp_path: Path, shared: Path, config: str) -> None:
    (found,) = study(tmp_path, shared / "models" / "pose_detection.tflite", configs=[config])
    assert named(found) == (10, "intrinsic")
    assert found.first is not None
    assert found.first.layer.op_name == "CONV_2D"
    assert found.first.reasons[0].code == "WEIGHTS_ON_CPU"


@pytest.mark.parametrize("name", ["made_geg_fp16_zero", "made_geg_fp16_nan"])
def test_the_norm_that_overflows_is_named(tmp_path: Path, shared: Path, name: str) -> None:
    fp16, fp32 = study(tmp_path, shared / "models" / f"{name}.tflite", configs=["gpu", "gpu-fp32"])
    assert named(fp16)[1] == "intrinsic"
    assert fp16.first is not None
    assert "Norm" in fp16.first.layer.name
    assert fp16.first.reasons[0].code == "FP16_RANGE"
    assert fp32.named == ()


@pytest.mark.parametrize(
    ("name", "fp16_db"),
    [("face_detection_short_range", 30), ("iris_landmark", 30), ("made_geg_ok", 30)],
)
def test_no_layer_of_a_healthy_model_is_named(tmp_path: Path, shared: Path, name: str, fp16_db: float) -> None:
    fp16, fp32 = study(tmp_path, shared / "models" / f"{name}.tflite", configs=["gpu", "gpu-fp32"])
    for found in (fp16, fp32):
        assert (found.error, found.named, found.unseen) == (None, (), {})
    inner = [r.health.snr_db for r in fp32.rows if r.layer.own_output is None]
    assert min(db for db in inner if db is not None) > 90
    assert min(r.health.snr_db for r in fp16.rows if r.health.snr_db is not None) > fp16_db


def test_a_mask_that_drifts_in_fp16_has_no_guilty_op(tmp_path: Path, shared: Path) -> None:
    # Its layers are as healthy as others' (37 dB and more); the sigmoid at the end makes 0.08 of it.
    fp16, fp32 = study(tmp_path, shared / "models" / "selfie_segmentation.tflite", configs=["gpu", "gpu-fp32"])
    assert (fp32.error, fp32.named, fp32.unseen) == (None, (), {})
    if fp16.named:
        assert named(fp16)[1] == "accumulated"
