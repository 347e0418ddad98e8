"""Whole studies of known kinds of faults on two software GPUs: the op, the label, the reason, the number of runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from farm.layers.study import allowed_runs
from tests import graphs
from tests.layers.kit import named, study
from tests.layers.planted import healthy

pytestmark = pytest.mark.gpu
BOTH = ["gpu", "gpu-fp32"]


def rows(n: int, width: int, low: float, high: float) -> np.ndarray:
    return np.random.default_rng(3).uniform(low, high, (n, width)).astype(np.float32)


@pytest.mark.parametrize(
    ("gain", "op", "code"),
    [(1e4, 1, "FP16_RANGE"), (1e-4, 1, "FP16_UNDERFLOW")],
    ids=["overflow", "underflow"],
)
def test_a_norm_that_leaves_fp16_is_named_by_its_square(tmp_path: Path, gain: float, op: int, code: str) -> None:
    fp16, fp32 = study(tmp_path, graphs.rmsnorm(gain, eps=1e-12), configs=BOTH, arrays=[rows(1, 32, 0.5, 1.5)])
    assert named(fp16) == (op, "intrinsic")
    assert fp16.first is not None
    assert [r.code for r in fp16.first.reasons] == [code]
    assert fp32.named == ()


def test_a_sum_beyond_65504_is_named(tmp_path: Path) -> None:
    (found,) = study(tmp_path, graphs.reduce_long("SUM", n=2000, then=True), arrays=[rows(1, 2000, 40, 60)])
    assert named(found) == (0, "intrinsic")


@pytest.mark.parametrize("gpu", ["llvmpipe", "swiftshader"])
@pytest.mark.parametrize(("tap", "op"), [("mu", 0), ("d", 1), ("var", 3)])
def test_a_fused_intermediate_that_is_an_output_is_named_and_put_down_to_its_context(
    tmp_path: Path, gpu: str, tap: str, op: int
) -> None:
    for found in study(tmp_path, graphs.layernorm(tap), gpu=gpu, configs=BOTH, arrays=[rows(4, 32, 1, 3)]):
        assert named(found) == (op, "context-dependent")
        assert found.first is not None
        assert found.first.reasons[0].code == "FUSED_OUTPUT"


def test_exposing_a_fused_norm_invents_nothing(tmp_path: Path) -> None:
    for found in study(tmp_path, graphs.layernorm(), configs=BOTH, arrays=[rows(4, 32, 1, 3)]):
        assert found.perturbed, "this graph is here because exposing it changes its output"
        assert found.named == ()


@pytest.mark.parametrize("gpu", ["llvmpipe", "swiftshader"])
def test_an_output_lost_when_the_op_is_also_read_is_named(tmp_path: Path, gpu: str) -> None:
    x = np.random.default_rng(1).uniform(0.5, 1, (2, 1, 4, 4, 8)).astype(np.float32)
    (found,) = study(tmp_path, graphs.output_and_consumed(), gpu=gpu, arrays=[x[0], 10 * x[1]])
    assert named(found) == (0, "context-dependent")


@pytest.mark.parametrize(
    "kind", ["fc_chain", "tiny_cnn", "layernorm", "rmsnorm", "masked_attention", "encoder", "weight_only_fc", "sigmoid",
             "dynamic_range_fc", "int4_fc", "topk", "passthrough", "two_signatures", "no_signature", "true_zero"],
)  # fmt: skip
def test_no_layer_of_a_healthy_kind_is_named(tmp_path: Path, kind: str) -> None:
    for found in study(tmp_path, graphs.KINDS[kind](), configs=BOTH):
        if found.error is None:
            assert found.named == ()
        else:
            assert "does not run on" in found.error


def test_small_budgets_take_more_chunks_and_no_more_than_allowed(tmp_path: Path) -> None:
    data = healthy(2)
    (one,) = study(tmp_path / "a", data)
    (many,) = study(tmp_path / "b", data, budget_bytes=256)
    assert one.chunks == 1
    assert many.chunks > 4
    # What is exposed with what changes fusion a little, and FP16 rounding with it.
    ours, theirs = ({r.layer.tensor: r.health.snr_db for r in s.rows} for s in (one, many))
    assert theirs == {t: pytest.approx(db, abs=6) for t, db in ours.items()}


def test_allowed_runs_is_the_formula_of_the_docs() -> None:
    # ceil(1000 / 300) + 2 = 6; two chunks that did not compile add 4; 8 ops take 3 rounds of cuts.
    assert allowed_runs(1000, 300, 0, 8, False) == 6
    assert allowed_runs(1000, 300, 2, 8, True) == 6 + 4 + math.ceil(math.log2(8))


def test_a_thousand_ops_are_watched_within_the_budget(tmp_path: Path) -> None:
    (found,) = study(tmp_path, healthy(1, steps=1000), gpu=None, configs=["cpu"], budget_bytes=8 << 10)
    assert found.error is None
    assert found.chunks == 8
    assert found.named == ()
    assert len(found.rows) + len(found.unseen) >= 1000


def test_a_model_that_the_device_refuses_is_told_as_such(tmp_path: Path) -> None:
    (found,) = study(tmp_path, graphs.custom_op())
    assert found.error is not None
    assert "does not run on llvmpipe" in found.error
