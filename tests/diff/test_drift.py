"""Which numbers have drifted and which only make noise; every figure by hand."""

from __future__ import annotations

import math

import pytest

from farm.diff import Diff, compare
from farm.diff.text import render
from farm.report.value import MatrixCell
from tests.diff.kit import cell, device, matrix, output


def fleet(factors: dict[str, float], *, ms: float = 10.0) -> list[MatrixCell]:
    return [cell(model=name, ms=ms * factor) for name, factor in factors.items()]


def latency(diff: Diff) -> list[tuple[str, float]]:
    return [(d.cell.model, round(d.factor or 0, 3)) for d in diff.drifts if d.what == "latency_ms" and d.cells == 1]


def test_one_slower_model_stands_out_against_its_device() -> None:
    old = fleet(dict.fromkeys("abcde", 1.0))
    new = fleet({"a": 1.0, "b": 1.02, "c": 0.98, "d": 1.0, "e": 1.5})
    (drift,) = compare(matrix(old), matrix(new)).drifts
    assert (drift.cell.model, drift.worse) == ("e", True)
    assert drift.factor == pytest.approx(1.5)


def test_a_slower_device_is_one_line_and_no_model_is_blamed() -> None:
    old = fleet(dict.fromkeys("abcde", 1.0))
    new = fleet({"a": 1.5, "b": 1.52, "c": 1.48, "d": 1.5, "e": 1.5})
    (drift,) = compare(matrix(old), matrix(new)).drifts
    assert drift.cells == 5
    assert drift.factor == pytest.approx(1.5)
    assert "phone gpu, all 5 cells: 1.50 times the latency" in render(compare(matrix(old), matrix(new)))


def test_a_median_among_scattered_ratios_is_no_slower_device() -> None:
    new = fleet({"a": 0.5, "b": 0.8, "c": 1.4, "d": 2.4, "e": 2.9})
    assert compare(matrix(fleet(dict.fromkeys("abcde", 1.0))), matrix(new)).drifts == ()


def test_on_a_slower_device_the_model_that_did_not_slow_down_is_seen_relative_to_it() -> None:
    new = fleet({"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0, "e": 1.0})
    found = compare(matrix(fleet(dict.fromkeys("abcde", 1.0))), matrix(new))
    assert latency(found) == [("e", 0.5)]


def test_throttled_cells_are_left_out_and_counted() -> None:
    old = fleet(dict.fromkeys("abcd", 1.0))
    hot = [cell(model=m, ms=30.0, thermal={"throttled": True}) for m in "abcd"]
    found = compare(matrix(old), matrix(hot))
    assert found.drifts == ()
    assert found.throttled == 4


def test_small_differences_and_unsteady_cells_are_noise() -> None:
    assert compare(matrix(fleet({"a": 1.0})), matrix(fleet({"a": 1.25}))).drifts == ()
    tiny = compare(matrix([cell(ms=0.1)]), matrix([cell(ms=0.25)]))
    assert tiny.drifts == ()
    unsteady = compare(matrix([cell(ms=10.0, p95=25.0)]), matrix([cell(ms=20.0)]))
    assert unsteady.drifts == ()


def test_the_usual_spread_of_earlier_runs_widens_the_noise() -> None:
    nights = [matrix(fleet({"a": f}), run=f"2025010{n}T000000Z-aaaaaa") for n, f in enumerate((1.0, 1.6, 0.8, 1.3), 1)]
    new = matrix(fleet({"a": 1.5}))
    assert latency(compare(matrix(fleet({"a": 1.0})), new)) == [("a", 1.5)]
    assert latency(compare(matrix(fleet({"a": 1.0})), new, nights)) == []
    elsewhere = [matrix(n.cells, devices=[device(driver="other")]) for n in nights]
    assert latency(compare(matrix(fleet({"a": 1.0})), new, elsewhere)) == [("a", 1.5)]


def test_snr_drifts_from_three_db_on() -> None:
    found = compare(matrix([cell(snr_db=90)]), matrix([cell(snr_db=86.5)]))
    (drift,) = found.drifts
    assert (drift.what, drift.was, drift.now, drift.worse) == ("snr_db", 90, 86.5, True)
    assert drift.size == pytest.approx(3.5)
    assert compare(matrix([cell(snr_db=90)]), matrix([cell(snr_db=87.5)])).drifts == ()


def test_snrs_beyond_rounding_do_not_drift() -> None:
    assert compare(matrix([cell(snr_db=999)]), matrix([cell(snr_db=131)])).drifts == ()


@pytest.mark.parametrize(
    ("kind", "name", "was", "now", "moved"),
    [
        ("probability", "max_abs", 1e-3, 2.5e-3, True),
        ("probability", "max_abs", 1e-3, 1.5e-3, False),
        ("probability", "max_abs", 1e-9, 5e-7, False),
        ("embedding", "min_row_cosine", 1 - 1e-6, 1 - 1e-5, True),
        ("embedding", "min_row_cosine", 1 - 1e-6, 1 - 2e-6, False),
        ("quantised", "max_steps", 0.0, 1.0, True),
        ("ints", "equal_share", 1.0, 0.9995, False),
        ("ints", "equal_share", 1.0, 0.998, True),
    ],
)
def test_each_kind_drifts_by_its_own_metric(kind: str, name: str, was: float, now: float, moved: bool) -> None:
    old, new = (cell(outputs=(output(kind=kind, metrics={name: value}),)) for value in (was, now))
    assert bool(compare(matrix([old]), matrix([new])).drifts) is moved


def test_another_model_or_other_inputs_are_no_baseline() -> None:
    old = matrix([cell(snr_db=90)])
    assert compare(old, matrix([cell(snr_db=60, ms=90, model_sha256="b" * 64)])).drifts == ()
    assert compare(old, matrix([cell(snr_db=60, ms=90, inputs="user")])).drifts == ()


def test_drift_under_another_driver_names_it() -> None:
    new = matrix([cell(snr_db=70)], devices=[device(driver="r49p1")])
    (drift,) = compare(matrix([cell(snr_db=90)]), new).drifts
    assert drift.trigger == ("driver",)


def test_the_limit_is_said_in_the_measure_of_the_size() -> None:
    (drift,) = compare(matrix(fleet({"a": 1.0})), matrix(fleet({"a": 2.0}))).drifts
    assert drift.size == pytest.approx(math.log(2))
    assert drift.limit == pytest.approx(math.log(1.3))
