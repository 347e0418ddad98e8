"""Faults planted at a known op, in trunks and inside branches, at random depth: each is named, none is invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layers.kit import named, study
from tests.layers.planted import healthy, planted

FAULTS = ("range", "underflow", "accumulation")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("branch", [False, True], ids=["trunk", "branch"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fault", FAULTS)
def test_the_planted_op_is_named(tmp_path: Path, fault: str, seed: int, branch: bool) -> None:
    graph = planted(fault, seed, branch=branch)
    (found,) = study(tmp_path, graph.data)
    assert named(found) == (graph.op, "intrinsic")
    assert found.first is not None
    assert found.first.layer.name == graph.tensor


@pytest.mark.parametrize(
    ("fault", "code"),
    [("range", "FP16_RANGE"), ("underflow", "FP16_UNDERFLOW"), ("accumulation", "FP16_ACCUMULATION")],
)
def test_the_reason_is_the_planted_one(tmp_path: Path, fault: str, code: str) -> None:
    (found,) = study(tmp_path, planted(fault, 11, branch=True).data)
    assert found.first is not None
    assert found.first.reasons[0].code == code


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_graph_is_clean_in_fp32(tmp_path: Path, fault: str) -> None:
    (found,) = study(tmp_path, planted(fault, 5, branch=True).data, configs=["gpu-fp32"])
    assert (found.error, found.named) == (None, ())


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_named_in_healthy_graphs(tmp_path: Path, seed: int) -> None:
    for found in study(tmp_path, healthy(seed), configs=["gpu", "gpu-fp32"]):
        assert (found.error, found.named) == (None, ())
        assert not any(row.health.bad for row in found.rows)
