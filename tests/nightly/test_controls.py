"""After an upgrade that brought a failure the old runtime is run once more, if it is at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from farm.diff import compare
from farm.inventory import Inventory, Nightly
from farm.nightly.night import _controls
from farm.plan import PlannedDevice
from farm.report import write_reports
from farm.report.read import read_matrix
from farm.specs import model_requests
from farm.sweep import sweep
from tests import graphs


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "sweep-cache"))


@pytest.mark.parametrize("at_hand", [True, False])
def test_the_old_runtime_says_whether_it_is_the_upgrade(tmp_path: Path, at_hand: bool) -> None:
    root = tmp_path / "runs"
    fc = graphs.write(tmp_path, "fc", graphs.fc_chain())
    inventory = Inventory(devices=(PlannedDevice(id="here", transport="local"),))
    before = sweep([fc], inventory=inventory, configs=["cpu"], out=root)
    old = before.matrix
    if not at_hand:
        old = replace(old, cells=tuple(replace(c, runtime="litert-0.0.1") for c in old.cells))
        write_reports(old, before.run_folder)
    # As if tonight's run had used a newer runtime, and failed.
    new = replace(
        old,
        run=replace(old.run, id="29990101T000000Z-aaaaaa"),
        cells=tuple(replace(c, id=f"{c.id}-n", runtime="litert-9.9.9", verdict="fail") for c in old.cells),
    )
    diff = compare(read_matrix(before.run_folder), new)
    assert [c.trigger for c in diff.of("new_failure")] == [("runtime",)]
    controls, notes = _controls(inventory, Nightly(), model_requests([fc], configs=("cpu",)), diff, root=root)
    if at_hand:
        (control,) = controls
        assert "still passes: it is the upgrade" in str(control)
        assert (root / control.run / "matrix.json").is_file()
    else:
        assert controls == ()
        assert "litert-0.0.1 was not run again as a control" in notes[0]
