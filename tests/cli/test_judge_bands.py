"""farm judge --band: limits for one judging, refused where they would be silently unused."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.cli.judge import _parsed
from farm.errors import InvalidInput
from farm.plan import Plan
from farm.prepare import prepare
from tests import graphs


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return prepare([graphs.write(tmp_path, "fc", graphs.fc_chain())], configs=["cpu"])


@pytest.mark.parametrize(
    ("band", "words"),
    [
        ("mask=1", "names no limit"),
        ("mask.pass_max_bas=1", "names no limit"),
        ("mask.pass_max_abs=much", "names no limit"),
        ("mask.pass_max_abs=nan", "names no limit"),
        ("masks.pass_max_abs=1", "names no kind and no output"),
        (".pass_max_abs=1", "names no kind and no output"),
        ("mask.pass_snr_db=1", "its kind has no such limit"),
    ],
)
def test_a_band_that_would_be_unused_is_refused(band: str, words: str, plan: Plan) -> None:
    with pytest.raises(InvalidInput, match=words):
        _parsed((band,), plan)


def test_bands_are_taken_for_kinds_and_for_outputs(plan: Plan) -> None:
    graph = plan.cases[0].graph
    assert graph is not None
    output = graph.outputs[0].name
    assert _parsed(("mask.pass_max_abs=0.02", f"{output}.pass_snr_db=90"), plan) == {
        "mask": {"pass_max_abs": 0.02},
        output: {"pass_snr_db": 90.0},
    }
