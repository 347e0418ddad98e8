"""Every shared case on both software GPUs through the Python API: the verdicts that are right, kind by kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from farm.cases import ModelRequest
from farm.defaults import Limits
from farm.errors import InvalidInput
from farm.inventory import Inventory
from farm.plan import PlannedDevice
from farm.report.matrix import MatrixCell
from farm.sweep import prepare, sweep
from tests.conftest import shared_folder
from tests.lab.gpus import gpus

pytestmark = pytest.mark.gpu

_SHARED = shared_folder()
_FILE = _SHARED / "cases" / "cases.yaml" if _SHARED is not None else None
CASES: dict[str, Any] = yaml.safe_load(_FILE.read_text()) if _FILE is not None and _FILE.is_file() else {}
LIMITS = Limits(cpu_timeout_s=60, gpu_timeout_s=60, gpu_first_timeout_s=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """refused: case name → why the farm took neither model nor inputs. cells: (case, device, config) → cell."""

    refused: dict[str, str]
    cells: dict[tuple[str, str, str], MatrixCell]


def _request(folder: Path, case: dict[str, Any]) -> ModelRequest:
    return ModelRequest(path=folder / case["model"], inputs=(folder / case["inputs"],))


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Seen:
    found = gpus()
    if len(found) < 2:
        pytest.skip("needs llvmpipe and SwiftShader (make lab-gpus)")
    root = tmp_path_factory.mktemp("cases")
    inventory = Inventory(
        devices=tuple(
            PlannedDevice(id=name, transport="local", env={"VK_ICD_FILENAMES": str(icd)}) for name, icd in found.items()
        )
    )
    refused, requests = {}, {}
    for name, case in CASES.items():
        request = _request(shared / "cases", case)
        try:
            prepare([request], inventory=inventory, out=root / "tried", limits=LIMITS)
            requests[name] = request
        except InvalidInput as e:
            refused[name] = str(e)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE_DIR", str(root / "cache"))
        result = sweep(list(requests.values()), inventory=inventory, out=root / "runs", limits=LIMITS)
    return Seen(refused=refused, cells={(c.model, c.device, c.config): c for c in result})


def _describe(cell: MatrixCell) -> str:
    return f"{cell.verdict} {','.join(cell.reasons)}: {cell.message}"


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["expect"].get("refused_input")])
def test_inputs_that_do_not_fit_are_refused_before_anything_runs(seen: Seen, name: str) -> None:
    assert name in seen.refused


@pytest.mark.parametrize(
    ("name", "device", "config"),
    [
        (name, device, config)
        for name, case in CASES.items()
        if not case["expect"].get("refused_input")
        for device in ("llvmpipe", "swiftshader")
        for config in ("cpu", "gpu", "gpu-fp32")
    ],
)
def test_verdict_is_one_of_the_right_ones(seen: Seen, name: str, device: str, config: str) -> None:
    expect = CASES[name]["expect"]
    # Without FP16 the default precision is FP32 (README of the cases).
    right = expect["gpu-fp32" if config == "gpu" and device == "swiftshader" else config]
    if name in seen.refused:
        assert "error" in right, f"refused: {seen.refused[name]}"
        return
    stem = Path(CASES[name]["model"]).stem
    cell = seen.cells[stem, device, config]
    assert cell.verdict in right, _describe(cell)
