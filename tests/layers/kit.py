"""Studies for tests: a model's bytes or path in, the finished Study per config out; real agent, real devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from farm.canary import measure_device
from farm.cases import Case, ModelRequest, build_cases
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.layers.study import Study, open_model, study_device
from farm.layers.sweep import BUDGET_BYTES
from farm.objects import Objects
from farm.plan import PlannedDevice
from farm.runner import open_transport
from farm.transports.base import Transport
from tests.lab.gpus import environment, gpus


def lab_device(gpu: str | None) -> PlannedDevice:
    """This machine, with one software GPU of the lab or as it is; skips by name where the GPU is absent."""
    if gpu is not None and gpu not in gpus():
        pytest.skip(f"no {gpu} on this machine")
    return PlannedDevice(id=gpu or "here", transport="local", env=environment(gpu) if gpu else {})


def case_of(folder: Path, model: bytes | Path, arrays: Sequence[np.ndarray] | Path = ()) -> tuple[Case, Objects]:
    """The first case of a model; arrays: its inputs in order, or an .npz."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, bytes):
        path = folder / "model.tflite"
        path.write_bytes(model)
    else:
        path = model
    files: tuple[Path, ...] = ()
    if isinstance(arrays, Path):
        files = (arrays,)
    elif len(arrays):
        files = (folder / "inputs.npz",)
        np.savez(files[0], **{f"in{i}": a for i, a in enumerate(arrays)})
    objects = Objects(folder / "objects")
    return build_cases([ModelRequest(path=path, inputs=files)], objects, Limits())[0], objects


def study(
    folder: Path,
    model: bytes | Path,
    *,
    gpu: str | None = "llvmpipe",
    configs: Sequence[str] = ("gpu",),
    arrays: Sequence[np.ndarray] | Path = (),
    budget_bytes: int = BUDGET_BYTES,
    bundles: Path | None = None,
    link: Transport | None = None,
) -> list[Study]:
    """Study a model, behind `link` where one is given; every study must have kept to the number of runs it may take."""
    device = lab_device(gpu)
    case, objects = case_of(folder, model, arrays)
    found = list(
        study_device(
            device,
            case,
            open_model(case),
            [CONFIGS[c] for c in configs],
            limits=Limits(),
            inputs=objects,
            connect=lambda planned: link if link is not None and planned.id == device.id else open_transport(planned),
            measure=measure_device,
            budget_bytes=budget_bytes,
            bundles=bundles,
        )
    )
    for one in found:
        assert one.runs <= one.most_runs, f"{one.runs} runs, at most {one.most_runs} are allowed"
    return found


def named(study: Study) -> tuple[int, str]:
    """Op index and label of the first named op."""
    assert study.error is None, study.error
    assert study.first is not None, "no op was named"
    assert study.first.confirmed is not None
    return study.first.layer.op, study.first.confirmed.label
