"""Parts of a run for tests of session, runner, references and canaries: a plan by hand, the stand-in runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from farm.cases import Case, InputArray, InputSet
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.objects import Objects
from farm.plan import Cell, Plan, PlannedDevice
from farm.runtimes import Runtime, host_platform
from farm.store import RunStore
from tests import fakert

X = np.linspace(0.1, 2.0, 16, dtype=np.float32).reshape(1, 16)


def fake_runtime(folder: Path) -> Runtime:
    """The stand-in libLiteRt as a runtime bundle; the device's env FAKERT names the fault."""
    library = fakert.build(folder)
    data = library.read_bytes()
    return Runtime(
        name="litert-9.9.9",
        version="9.9.9",
        platform=host_platform(),
        folder=folder,
        library=library.name,
        accelerators=("gpu",),
        files={library.name: (hashlib.sha256(data).hexdigest(), len(data))},
        origin="tests/fakert",
    )


def one_input_case(model: Path, objects: Objects, *, x: np.ndarray = X, sets: int = 1) -> Case:
    """A case of a model with one input; set k is fed k·x."""
    data = model.read_bytes()
    made = []
    for number in range(1, sets + 1):
        fed = (x * number).astype(x.dtype)
        array = InputArray(
            name="x",
            dtype=str(x.dtype),
            shape=x.shape,
            sha256=objects.put_bytes(fed.tobytes()),
            size_bytes=fed.nbytes,
            recipe="made for a test",
        )
        made.append(InputSet(name=f"set{number}", origin="synthetic", arrays=(array,)))
    return Case(
        id=model.stem,
        model=model.stem,
        model_path=str(model),
        model_sha256=hashlib.sha256(data).hexdigest(),
        model_size_bytes=len(data),
        signature=0,
        signature_key="",
        graph=None,
        input_sets=tuple(made),
    )


def new_run(
    root: Path,
    models: Sequence[Path],
    *,
    devices: Sequence[PlannedDevice] = (PlannedDevice(id="here", transport="local"),),
    configs: Sequence[str] = ("cpu",),
    limits: Limits | None = None,
    runtime: str = "litert-9.9.9",
) -> RunStore:
    """A run folder with every cell planned and none run."""
    objects = Objects(root / "objects")
    cases = tuple(one_input_case(m, objects) for m in models)
    return RunStore.create(
        root,
        Plan(
            run_id="20250101T000000Z-abcdef",
            created="2025-01-01T00:00:00Z",
            farm_version="0",
            inventory_sha256=None,
            limits=limits or Limits(),
            devices=tuple(devices),
            configs=tuple(CONFIGS[name] for name in configs),
            cases=cases,
            cells=tuple(
                Cell(id=f"{d.id}--{c.id}--{name}", device=d.id, case=c.id, config=name, runtime=runtime)
                for d in devices
                for c in cases
                for name in configs
            ),
        ),
    )
