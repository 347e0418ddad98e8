"""In which order a night runs: every (model, family) first, work spread, nothing lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from farm.cases import Case
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.nightly.order import covering_order
from farm.plan import Plan, PlannedDevice, make_plan


def case(name: str) -> Case:
    return Case(
        id=name,
        model=name,
        model_path=f"{name}.tflite",
        model_sha256="0" * 64,
        model_size_bytes=1,
        signature=0,
        signature_key="",
        graph=None,
        input_sets=(),
    )


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    devices = [PlannedDevice(id=d, transport="local") for d in ("mali-1", "mali-2", "adreno")]
    return make_plan(
        devices,
        [case(m) for m in "abcd"],
        [CONFIGS[c] for c in ("cpu", "gpu", "cpu-fp16")],
        {d.id: ["litert-2.3.0"] for d in devices},
        Limits(),
        run_id="r",
        created="2025-01-01T00:00:00Z",
        farm_version="0",
    )


FAMILIES = {"mali-1": "mali", "mali-2": "mali", "adreno": "adreno"}


def test_every_model_and_family_comes_before_any_comes_twice(plan: Plan) -> None:
    ordered = covering_order(plan, FAMILIES)
    assert Counter(ordered.cells) == Counter(plan.cells)
    pairs = [(cell.case, FAMILIES[cell.device]) for cell in ordered.cells if cell.config == "gpu"]
    assert len(set(pairs[:8])) == 8


def test_the_work_of_a_family_is_spread_over_its_devices(plan: Plan) -> None:
    first = [cell for cell in covering_order(plan, FAMILIES).cells if cell.config == "gpu"][:8]
    assert Counter(cell.device for cell in first) == {"adreno": 4, "mali-1": 2, "mali-2": 2}


def test_diagnostics_come_last_and_the_cpu_before_the_gpu(plan: Plan) -> None:
    cells = covering_order(plan, FAMILIES).cells
    assert {cell.config for cell in cells[-12:]} == {"cpu-fp16"}
    for device in FAMILIES:
        for model in "abcd":
            mine = [cell.config for cell in cells if (cell.device, cell.case) == (device, model)]
            assert mine == ["cpu", "gpu", "cpu-fp16"]


def test_devices_of_no_known_family_are_their_own(plan: Plan) -> None:
    assert covering_order(plan, {}).cells[:1] == plan.cells[:1]
    first = [cell for cell in covering_order(plan, {}).cells if cell.config == "gpu"]
    assert len({(cell.device, cell.case) for cell in first}) == 12
