"""Where a device's profile ends up: the matrix names it, its bands reach GPU cells, the run's own limits win."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path

import pytest

from farm.delegation import Delegation
from farm.judging import device_profiles, gather, judge_store
from farm.outcome import Failure, Outcome
from farm.plan import PlannedDevice
from farm.profiles import Profile, Sourced, load_profiles
from farm.store import RunStore
from tests.spinekit import new_run

ADAPTER = "llvmpipe (LLVM 15.0.6, 256 bits)"


def outcome(cell: str, adapter: str | None) -> Outcome:
    failure = Failure(code="DEVICE_LOST", message="gone", infra=True)
    seen = Delegation(adapter=adapter)
    return Outcome(
        cell=cell, attempts=1, started="", finished="", wall_s=0, result=None, failure=failure, delegation=seen
    )


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    model = tmp_path / "m.tflite"
    model.write_bytes(b"\x1c\x00\x00\x00TFL3")
    devices = [
        PlannedDevice(id="seen", transport="local"),
        PlannedDevice(id="told", transport="local", profile="swiftshader"),
        PlannedDevice(id="blank", transport="local"),
    ]
    store = new_run(tmp_path / "runs", [model], devices=devices, configs=("cpu", "gpu"))
    # What probing found first, a card of another vendor, gives way to the adapter that was really used.
    store.write_facts("seen", {"platform": "linux-x86_64", "gpus": ["Intel Iris Xe"]})
    for cell in store.plan.cells:
        store.append(outcome(cell.id, ADAPTER if cell.device != "blank" and cell.config == "gpu" else None))
    return store


def test_the_adapter_really_used_names_the_profile_and_the_inventory_overrules_it(run: RunStore) -> None:
    assert {d: p.id for d, p in device_profiles(run).items()} == {"seen": "llvmpipe", "told": "swiftshader"}
    matrix = judge_store(run, date(2025, 1, 1))
    assert {d.id: d.profile for d in matrix.devices} == {"seen": "llvmpipe", "told": "swiftshader", "blank": None}


def test_a_profiles_bands_reach_its_gpu_cells_only_and_the_runs_own_win(
    run: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"pass_snr_db": Sourced(value=30.0, source="t"), "fail_snr_db": Sourced(value=15.0, source="t")}

    def with_bands() -> tuple[Profile, ...]:
        """The shipped profiles, one of them with bands: none has any yet."""
        return tuple(
            dataclasses.replace(p, bands={"values": limits}) if p.id == "llvmpipe" else p for p in load_profiles()
        )

    monkeypatch.setattr("farm.judging.load_profiles", with_bands)
    run.plan = dataclasses.replace(run.plan, band_overrides={"values": {"fail_snr_db": 18.0}})
    bands = {(e.device, e.config.name): e.bands for e in gather(run)}
    assert bands["seen", "gpu"] == {"values": {"pass_snr_db": 30.0, "fail_snr_db": 18.0}}
    assert bands["seen", "cpu"] == bands["told", "gpu"] == {"values": {"fail_snr_db": 18.0}}
