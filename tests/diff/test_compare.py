"""What a diff says of two runs: every kind of change, its trigger, and what is no change at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from farm.diff import Diff, compare
from farm.diff.text import headline, render
from farm.report.value import MatrixCell
from tests.diff.kit import cell, device, matrix


def diff(old: MatrixCell | None, new: MatrixCell | None) -> Diff:
    return compare(matrix([old] if old else []), matrix([new] if new else [], run="20250102T000000Z-bbbbbb"))


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        ("pass", "fail", "new_failure"),
        ("warn", "error", "new_failure"),
        ("unsupported", "fail", "new_failure"),
        ("inconclusive", "fail", "new_failure"),
        ("fail", "pass", "fixed"),
        ("error", "warn", "fixed"),
        ("pass", "unsupported", "newly_unsupported"),
        ("fail", "unsupported", "newly_unsupported"),
        ("pass", "infra", "no_longer_judged"),
        ("fail", "not_run", "no_longer_judged"),
        ("unsupported", "inconclusive", "no_longer_judged"),
        ("pass", "warn", "worse"),
        ("warn", "pass", "better"),
    ],
)
def test_a_change_of_verdict_has_its_kind(was: str, now: str, kind: str) -> None:
    (change,) = diff(cell(verdict=was), cell(verdict=now)).changes
    assert (change.kind, change.was, change.now) == (kind, was, now)
    assert change.trigger == ()
    assert change.why == "nothing changed"


@pytest.mark.parametrize(
    ("was", "now"),
    [("pass", "pass"), ("fail", "fail"), ("unsupported", "unsupported"), ("infra", "not_run"), ("infra", "pass"),
     ("fail", "error")],
)  # fmt: skip
def test_what_stays_as_it_was_is_no_change(was: str, now: str) -> None:
    assert diff(cell(verdict=was), cell(verdict=now)).changes == ()


def test_only_what_was_good_or_refused_can_regress() -> None:
    regressed = {
        was: diff(cell(verdict=was), cell(verdict="fail")).changes[0].regression
        for was in ("pass", "warn", "unsupported", "inconclusive", "infra", "not_run")
    }
    assert regressed == {
        "pass": True, "warn": True, "unsupported": True, "inconclusive": False, "infra": False, "not_run": False,
    }  # fmt: skip


def test_a_pass_that_fails_after_an_upgrade_is_a_regression_with_the_runtime_as_trigger() -> None:
    found = diff(cell(runtime="litert-2.2.0"), cell(verdict="fail", runtime="litert-2.10.0"))
    (change,) = found.changes
    assert change.regression
    assert change.trigger == ("runtime",)
    assert change.why == "runtime litert-2.2.0 → litert-2.10.0"
    assert found.exit_code == 1


def test_a_runtime_that_is_new_is_compared_with_the_nearest_older_one() -> None:
    old = matrix([cell(runtime="litert-2.9.0"), cell(runtime="litert-2.1.0", verdict="fail")])
    new = matrix([cell(runtime="litert-2.9.0"), cell(runtime="litert-2.10.0", verdict="fail")])
    changes = {c.kind: c for c in compare(old, new).changes}
    assert changes["new_failure"].why == "runtime litert-2.9.0 → litert-2.10.0"
    assert changes["missing"].cell.runtime == "litert-2.1.0"
    assert len(changes) == 2


def test_triggers_are_model_system_driver_inputs_and_limits() -> None:
    old, new = cell(), cell(verdict="fail", model_sha256="b" * 64, inputs="user")
    new = replace(new, outputs=(replace(new.outputs[0], limits={"pass_snr_db": 70.0, "fail_snr_db": 50.0}),))
    found = compare(matrix([old], devices=[device()]), matrix([new], devices=[device(driver="r49p1", os="Android 17")]))
    (change,) = found.changes
    assert change.trigger == ("model", "os", "driver", "inputs", "limits")
    assert "driver r48p0 → r49p1" in change.why
    assert "limit pass_snr_db of y 80 → 70" in change.why
    assert change.regression


def test_a_device_that_was_never_reached_has_not_changed_its_driver() -> None:
    old = matrix([cell()], devices=[device()])
    new = matrix([cell(verdict="infra")], devices=[device(driver="", os="", facts_sha256=None)])
    assert compare(old, new).changes[0].trigger == ()


def test_a_planned_cell_that_is_gone_is_missing_and_makes_exit_3() -> None:
    found = diff(cell(), None)
    assert [c.kind for c in found.changes] == ["missing"]
    assert found.exit_code == 3


def test_a_damaged_file_answers_to_every_signature_it_had_and_its_mending_to_the_damage() -> None:
    whole = matrix([cell(signature=s, id=s) for s in ("encode", "decode")])
    broken = matrix([cell(signature="", verdict="error", reasons=("INVALID_MODEL",))])
    (change,) = compare(whole, broken).changes
    assert (change.kind, change.was, change.regression) == ("new_failure", "pass", True)
    assert [c.kind for c in compare(broken, whole).changes] == ["fixed", "fixed"]


def test_a_renamed_signature_is_compared_with_its_old_self_and_a_dropped_one_is_missing() -> None:
    old = matrix([cell(signature=s, id=s) for s in ("encode", "decode")])
    new = matrix([cell(signature=s, id=s, verdict=v) for s, v in (("encode", "pass"), ("decode_v2", "fail"))])
    assert [(c.kind, c.was) for c in compare(old, new).changes] == [("new_failure", "pass")]
    assert [(c.kind, c.cell.signature) for c in compare(old, matrix(new.cells[:1])).changes] == [("missing", "decode")]


def test_a_cell_that_is_new_is_added_but_a_new_failing_one_is_a_failure() -> None:
    assert [c.kind for c in diff(None, cell()).changes] == ["added"]
    (change,) = diff(None, cell(verdict="error", reasons=("CRASH",))).changes
    assert (change.kind, change.was, change.regression) == ("new_failure", None, False)


def test_another_reason_is_told() -> None:
    found = diff(cell(verdict="fail", reasons=("SATURATION",)), cell(verdict="fail", reasons=("SILENT_ZERO_VECTOR",)))
    assert [c.kind for c in found.changes] == ["reason_changed"]
    assert found.exit_code == 0


def test_ops_that_moved_to_the_cpu_are_told() -> None:
    (change,) = diff(cell(), cell(delegation="partial", cpu_ops=("GATHER: refused",))).changes
    assert change.kind == "less_delegated"
    assert "GATHER" in change.message


def test_known_failures_are_counted_apart_and_one_whose_entry_ended_is_new() -> None:
    known = {"verdict": "fail", "reason": None, "link": None, "until": "2025-01-05"}
    first = diff(cell(), cell(verdict="fail", known=known))
    assert [c.kind for c in first.changes] == ["known_failure"]
    assert first.exit_code == 0
    assert first.known == 1
    ended = diff(cell(verdict="fail", known=known), cell(verdict="fail"))
    assert [c.kind for c in ended.changes] == ["new_failure"]


def test_known_entries_that_end_within_a_week_are_told() -> None:
    known = {"verdict": "fail", "reason": None, "link": None, "until": "2025-01-05"}
    run = matrix([cell(verdict="fail", known=known)])
    for day, told in ((date(2024, 12, 28), False), (date(2024, 12, 29), True), (date(2025, 1, 6), False)):
        assert bool(compare(run, run, today=day).expiring) is told


def test_diagnostics_take_no_part() -> None:
    assert diff(cell(config="cpu-fp16"), cell(config="cpu-fp16", verdict="fail")).changes == ()


def test_a_cell_that_flips_twice_with_nothing_changed_is_flaky() -> None:
    nights = [matrix([cell(verdict=v)], run=f"2025010{n}T000000Z-aaaaaa") for n, v in enumerate(("pass", "fail"), 1)]
    last = matrix([cell()], run="20250103T000000Z-aaaaaa")
    found = compare(nights[1], last, nights[:1])
    assert [(f.history, f.flips) for f in found.flaky] == [(("pass", "fail", "pass"), 2)]
    assert [c.flaky for c in found.changes] == [True]


def test_a_flip_that_a_driver_explains_is_not_flaky() -> None:
    good = matrix([cell()], devices=[device(driver="r49p1")])
    bad = matrix([cell(verdict="fail")], devices=[device(driver="r48p0")])
    assert compare(bad, good, [good]).flaky == ()
    unknown = matrix([cell(verdict="infra")])
    assert compare(unknown, matrix([cell()]), [matrix([cell()])]).flaky == ()


def test_the_text_names_cell_verdicts_and_trigger() -> None:
    text = render(diff(cell(), cell(verdict="fail", reasons=("SILENT_ZERO_VECTOR",))))
    assert "1 new failure (1 regressed)" in text
    assert "m gpu on phone: pass → fail SILENT_ZERO_VECTOR (nothing changed)" in text
    assert "it is fail" in text
    assert headline(diff(cell(), cell())) == "nothing changed"


def test_a_changed_farm_is_noted() -> None:
    found = compare(matrix([cell()]), matrix([cell()], farm_version="0.2.0"))
    assert found.notes == ("farm itself changed: 0.1.0 → 0.2.0",)
