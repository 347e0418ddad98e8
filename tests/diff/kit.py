"""Matrices by hand for tests of diff, history and nightly: only what these read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from farm.report.value import (
    Matrix,
    MatrixCell,
    MatrixDevice,
    MatrixLatency,
    MatrixOutput,
    MatrixReference,
    MatrixRun,
)

RUNTIME = "litert-2.3.0"


def output(snr_db: float = 90.0, verdict: str = "pass", **changes: Any) -> MatrixOutput:
    made = MatrixOutput(
        name="y",
        kind="values",
        kind_source="default",
        input_set="set1",
        verdict=verdict,  # type: ignore[arg-type]
        metrics={"snr_db": snr_db, "cosine": 1.0},
        limits={"pass_snr_db": 80.0, "fail_snr_db": 50.0},
    )
    return replace(made, **changes)


def cell(
    model: str = "m",
    config: str = "gpu",
    device: str = "phone",
    verdict: str = "pass",
    *,
    runtime: str = RUNTIME,
    reasons: tuple[str, ...] = (),
    ms: float | None = 10.0,
    p95: float | None = None,
    snr_db: float = 90.0,
    **changes: Any,
) -> MatrixCell:
    ran = verdict in ("pass", "warn", "fail")
    made = MatrixCell(
        id=f"{device}--{model}--{config}--{runtime}",
        device=device,
        gpu="Mali-G715",
        model=model,
        model_sha256="a" * 64,
        signature="serving_default",
        config=config,
        diagnostic=config in ("cpu-ref", "cpu-fp16"),
        runtime=runtime,
        verdict=verdict,  # type: ignore[arg-type]
        reasons=reasons,
        message=f"it is {verdict}",
        known=None,
        delegation="full" if ran and config.startswith("gpu") else "none",
        cpu_ops=(),
        gpu_api="OpenCL",
        adapter="Mali-G715",
        precision_class="fp16",
        inputs="synthetic",
        input_sets=("set1",),
        process="shell",
        reference=MatrixReference(status="ok", floor_db=None),
        outputs=(output(snr_db, verdict),) if ran else (),
        cause=None,
        remedy=None,
        latency_ms=MatrixLatency(median=ms, p95=p95 or ms * 1.05, n=5) if ran and ms is not None else None,
        compile_ms=12.0,
        peak_rss_bytes=1 << 20,
        thermal=None,
        attempts=1,
        error=None,
    )
    return replace(made, **changes)


def device(name: str = "phone", *, driver: str = "r48p0", os: str = "Android 16", **changes: Any) -> MatrixDevice:
    made = MatrixDevice(
        id=name, gpu="Mali-G715", driver=driver, os=os, transport="adb", profile="mali", facts_sha256="f" * 64
    )
    return replace(made, **changes)


def matrix(
    cells: Iterable[MatrixCell],
    *,
    run: str = "20250101T000000Z-aaaaaa",
    devices: Iterable[MatrixDevice] | None = None,
    exit_code: int = 0,
    known_problems: tuple[str, ...] = (),
    farm_version: str = "0.1.0",
) -> Matrix:
    cells = tuple(cells)
    made = tuple(devices) if devices is not None else tuple(device(d) for d in dict.fromkeys(c.device for c in cells))
    day = f"{run[:4]}-{run[4:6]}-{run[6:8]}"
    return Matrix(
        run=MatrixRun(
            id=run,
            started=f"{day}T00:00:00Z",
            finished=f"{day}T01:00:00Z",
            farm_version=farm_version,
            inventory_sha256=None,
            exit_code=exit_code,
        ),
        devices=made,
        precision_classes=(),
        cells=cells,
        known_problems=known_problems,
    )
