"""Generated cases of every kind on the software GPUs: the verdicts that are right, without any shared file.

A chosen third runs on llvmpipe, which has FP16, in every test run; all of them on both GPUs only in slow runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from farm.cases import ModelRequest
from farm.defaults import Limits
from farm.inventory import Inventory
from farm.plan import PlannedDevice
from farm.report.matrix import MatrixCell
from farm.sweep import sweep
from tests.kinds import exact, faults, heads, numbers, ops, quantised, shapes, state, taps
from tests.kinds.base import Kind, collect
from tests.lab.gpus import gpus

pytestmark = pytest.mark.gpu

KINDS = collect(numbers, taps, heads, quantised, exact, ops, shapes, state, faults)
FAST = {name: kind for name, kind in KINDS.items() if kind.fast}
LIMITS = Limits(cpu_timeout_s=60, gpu_timeout_s=60, gpu_first_timeout_s=120, repeats=2, iterations=1)
CONFIGS = ("cpu", "gpu", "gpu-fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """(model, device, config) → its cells, one per signature."""

    cells: dict[tuple[str, str, str], list[MatrixCell]]


def _swept(root: Path, kinds: Iterable[Kind], devices: tuple[str, ...]) -> Swept:
    found = gpus()
    if any(d not in found for d in devices):
        pytest.skip(f"needs {' and '.join(devices)} (make lab-gpus)")
    models = root / "models"
    models.mkdir()
    requests = []
    for kind in kinds:
        path = models / f"{kind.name}.tflite"
        path.write_bytes(kind.make())
        inputs = ()
        if kind.inputs is not None:
            np.savez(models / f"{kind.name}.npz", **kind.inputs())
            inputs = (models / f"{kind.name}.npz",)
        requests.append(ModelRequest(path=path, inputs=inputs, input_shapes=kind.shapes))
    inventory = Inventory(
        devices=tuple(PlannedDevice(id=d, transport="local", env={"VK_ICD_FILENAMES": str(found[d])}) for d in devices)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE_DIR", str(root / "cache"))
        result = sweep(requests, inventory=inventory, configs=CONFIGS, out=root / "runs", limits=LIMITS)
    cells: dict[tuple[str, str, str], list[MatrixCell]] = {}
    for cell in result:
        cells.setdefault((cell.model, cell.device, cell.config), []).append(cell)
    return Swept(cells=cells)


@pytest.fixture(scope="session")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    return _swept(tmp_path_factory.mktemp("kinds"), FAST.values(), ("llvmpipe",))


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    return _swept(tmp_path_factory.mktemp("all-kinds"), KINDS.values(), ("llvmpipe", "swiftshader"))


def _check(swept: Swept, kind: Kind, device: str) -> None:
    for config in CONFIGS:
        fp16 = config == "gpu" and device == "llvmpipe"
        right = (kind.cpu if config == "cpu" else kind.gpu if fp16 else kind.fp32).split()
        for cell in swept.cells[kind.name, device, config]:
            said = f"{device} {config}: {cell.verdict} {','.join(cell.reasons)}: {cell.message}"
            assert cell.verdict in right, said
            if fp16 and cell.verdict == "fail" and kind.reason:
                assert kind.reason in cell.reasons, said


@pytest.mark.parametrize("name", FAST)
def test_verdicts_of_a_kind_are_right(fast: Swept, name: str) -> None:
    _check(fast, KINDS[name], "llvmpipe")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["llvmpipe", "swiftshader"])
@pytest.mark.parametrize("name", KINDS)
def test_verdicts_of_every_kind_are_right_on_both_gpus(everything: Swept, name: str, device: str) -> None:
    _check(everything, KINDS[name], device)
