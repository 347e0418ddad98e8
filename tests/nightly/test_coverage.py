"""Which gaps count: exit code 3 only for a (model, family) that no device judged; suspects among twins."""

from __future__ import annotations

import pytest

from farm.diff.twins import suspects, twins
from farm.nightly.coverage import away, coverage, families_of
from farm.profiles import load_profiles
from farm.report.value import Matrix
from tests.diff.kit import cell, device, matrix

FAMILIES = {"mali-1": "mali", "mali-2": "mali", "adreno": "adreno"}


def covered(run: Matrix, families: tuple[str, ...] = ("*",), models: tuple[str, ...] = ("*",)) -> dict[str, bool]:
    found = coverage([run], families=FAMILIES, models=models, wanted_families=families, accelerated={"gpu"})
    return {c.family: c.covered for c in found}


def test_a_device_that_is_away_costs_nothing_when_a_sibling_answered() -> None:
    run = matrix([cell(device="mali-1", verdict="infra"), cell(device="mali-2"), cell(device="adreno")])
    assert covered(run) == {"mali": True, "adreno": True}
    (gone,) = away([run], FAMILIES)
    assert (gone.device, gone.reason) == ("mali-1", "infra: it is infra")


@pytest.mark.parametrize("verdict", ["infra", "not_run", "inconclusive"])
def test_a_family_without_an_answer_is_uncovered(verdict: str) -> None:
    run = matrix([cell(device="mali-1", verdict=verdict), cell(device="adreno")])
    assert covered(run) == {"mali": False, "adreno": True}
    assert covered(run, ("adreno",)) == {"adreno": True}
    assert covered(run, models=("other",)) == {}


@pytest.mark.parametrize("verdict", ["pass", "warn", "fail", "error", "unsupported"])
def test_every_answer_covers(verdict: str) -> None:
    assert covered(matrix([cell(device="adreno", verdict=verdict)]), ("adreno",)) == {"adreno": True}


def test_the_answer_of_the_cpu_says_nothing_of_a_gpu() -> None:
    run = matrix([cell(device="adreno", config="cpu"), cell(device="adreno", verdict="infra")])
    assert covered(run, ("adreno",)) == {"adreno": False}


def test_a_required_family_nobody_has_is_uncovered() -> None:
    assert covered(matrix([cell(device="adreno")]), ("adreno", "powervr")) == {"adreno": True, "powervr": False}


def test_families_come_from_profiles_and_are_remembered_for_devices_that_are_away() -> None:
    profiles = load_profiles()
    run = matrix(
        [cell(device="a"), cell(device="b"), cell(device="c")],
        devices=[
            device("a", profile=None),
            device("b", profile=None, gpu="unknown GPU", facts_sha256=None),
            device("c", profile=None, gpu="unknown GPU", facts_sha256=None),
        ],
    )
    assert families_of(run, {"b": "adreno-7xx"}, profiles) == {"a": "mali", "b": "adreno-7xx", "c": "c"}


def fleet(*verdicts: str) -> Matrix:
    return matrix([cell(device=f"d{n}", verdict=v) for n, v in enumerate(verdicts)])


def test_the_one_that_differs_from_agreeing_twins_is_suspect() -> None:
    (odd,) = suspects(fleet("pass", "fail", "warn"))
    assert odd.device == "d1"
    assert odd.twins == ("d0", "d2")
    assert "look at the device before the model" in str(odd)
    assert [s.device for s in suspects(fleet("error", "fail", "pass"))] == ["d2"]


def test_nobody_is_suspect_where_nobody_can_tell() -> None:
    assert suspects(fleet("pass", "fail")) == ()
    assert suspects(fleet("pass", "fail", "infra")) == ()
    assert suspects(fleet("pass", "pass", "fail", "fail")) == ()
    assert suspects(fleet("pass", "pass", "pass")) == ()


def test_another_driver_makes_no_twin() -> None:
    run = matrix(
        [cell(device=d, verdict=v) for d, v in (("a", "pass"), ("b", "pass"), ("c", "fail"))],
        devices=[device("a"), device("b"), device("c", driver="r49p1")],
    )
    assert twins(run) == [("a", "b")]
    assert suspects(run) == ()
