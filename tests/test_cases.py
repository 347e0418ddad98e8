"""Every shared case on both software GPUs through the Python API: the verdicts that are right, kind by kind."""

from __future__ import annotations

from collections.abc import Iterable
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
from farm.prepare import prepare
from farm.report.matrix import MatrixCell
from farm.sweep import sweep
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


HEAVY = {"h28_memory_bomb", "h28b_1gib_intermediate"}
"""Up to 9 GB and a minute per cell."""


def _refusal(request: ModelRequest, inventory: Inventory, out: Path) -> str | None:
    try:
        prepare([request], inventory=inventory, out=out, limits=LIMITS)
    except InvalidInput as e:
        return str(e)
    return None


def _sweep(root: Path, names: Iterable[str]) -> Seen:
    """Sweep the named cases on both GPUs, with what is refused beforehand left out."""
    assert _SHARED is not None
    found = gpus()
    if len(found) < 2:
        pytest.skip("needs llvmpipe and SwiftShader (make lab-gpus)")
    inventory = Inventory(
        devices=tuple(
            PlannedDevice(id=name, transport="local", env={"VK_ICD_FILENAMES": str(icd)}) for name, icd in found.items()
        )
    )
    folder = _SHARED / "cases"
    wanted = {n: ModelRequest(path=folder / CASES[n]["model"], inputs=(folder / CASES[n]["inputs"],)) for n in names}
    refusals = {name: _refusal(request, inventory, root / "tried") for name, request in wanted.items()}
    refused = {name: why for name, why in refusals.items() if why is not None}
    requests = [request for name, request in wanted.items() if name not in refused]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE_DIR", str(root / "cache"))
        result = sweep(requests, inventory=inventory, out=root / "runs", limits=LIMITS)
    return Seen(refused=refused, cells={(c.model, c.device, c.config): c for c in result})


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Seen:
    return _sweep(tmp_path_factory.mktemp("cases"), [n for n in CASES if n not in HEAVY])


@pytest.fixture(scope="session")
def seen_heavy(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Seen:
    return _sweep(tmp_path_factory.mktemp("heavy"), [n for n in CASES if n in HEAVY])


def _describe(cell: MatrixCell) -> str:
    return f"{cell.verdict} {','.join(cell.reasons)}: {cell.message}"


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["expect"].get("refused_input")])
def test_inputs_that_do_not_fit_are_refused_before_anything_runs(seen: Seen, name: str) -> None:
    assert name in seen.refused


def _rows(names: Iterable[str]) -> list[tuple[str, str, str]]:
    return [(n, d, c) for n in names for d in ("llvmpipe", "swiftshader") for c in ("cpu", "gpu", "gpu-fp32")]


def _check(seen: Seen, name: str, device: str, config: str) -> None:
    expect = CASES[name]["expect"]
    # Without FP16 the default precision is FP32 (README of the cases).
    right = expect["gpu-fp32" if config == "gpu" and device == "swiftshader" else config]
    if name in seen.refused:
        assert "error" in right, f"refused: {seen.refused[name]}"
        return
    cell = seen.cells[Path(CASES[name]["model"]).stem, device, config]
    assert cell.verdict in right, _describe(cell)


@pytest.mark.parametrize(
    ("name", "device", "config"),
    _rows(n for n, c in CASES.items() if n not in HEAVY and not c["expect"].get("refused_input")),
)
def test_verdict_is_one_of_the_right_ones(seen: Seen, name: str, device: str, config: str) -> None:
    _check(seen, name, device, config)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "device", "config"), _rows(n for n in CASES if n in HEAVY))
def test_verdict_of_a_heavy_case_is_a_right_one(seen_heavy: Seen, name: str, device: str, config: str) -> None:
    _check(seen_heavy, name, device, config)
