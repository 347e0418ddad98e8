"""Users' own checks: expressions that run no code, functions that never pass by accident, shown with the built-in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.assertions import BROKEN, UNDEFINED, apply_assertions
from farm.cases import Spec
from farm.errors import InvalidInput
from farm.expressions import METRICS, Refused, Undefined, holds, names_in, parse
from farm.judge import judge_cell
from farm.judge.verdict import CellVerdict
from farm.specs import load_spec
from farm.sweep import judge_run, sweep
from tests import graphs
from tests.judge.kit import Arrays, Bench

REF = np.linspace(-1, 1, 64, dtype=np.float32)


def judged(
    *assertions: dict[str, str],
    ref: list[Arrays] | Arrays | np.ndarray = REF,
    tgt: list[Arrays] | Arrays | np.ndarray | None = None,
    functions: bool = True,
    latency: float = 1.0,
    kinds: dict[str, str] | None = None,
) -> CellVerdict:
    bench = Bench()
    evidence = bench.evidence(
        ref, REF + np.float32(1e-6) if tgt is None else tgt, spec=Spec(assertions=assertions, kinds=kinds or {})
    )
    return apply_assertions(evidence, judge_cell(evidence), functions=functions)


@pytest.mark.parametrize(
    ("text", "values", "true"),
    [
        ("cosine > 0.99", {"cosine": 0.991}, True),
        ("cosine > 0.99", {"cosine": 0.99}, False),
        ("0.9 < norm_ratio <= 1.1", {"norm_ratio": 1.1}, True),
        ("0.9 < norm_ratio <= 1.1", {"norm_ratio": 1.11}, False),
        ("max_abs / ref_norm < 0.1 and not (target_nan > 0)", {"max_abs": 1, "ref_norm": 20, "target_nan": 0}, True),
        ("cosine > 1 or snr_db >= -3 + 2 * 4", {"cosine": 0, "snr_db": 5}, True),
        ("abs(ref_min) == max(ref_max, 1)", {"ref_min": -2, "ref_max": 2}, True),
        ("min(cosine, snr_db, 3) != 3", {"cosine": 4, "snr_db": 5}, False),
    ],
)
def test_an_expression_is_true_or_false_of_its_values(text: str, values: dict[str, float], true: bool) -> None:
    assert holds(parse(text), values) is true


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "cosine.real > 0", "(lambda: 1)() > cosine", "[c for c in (1,)] == cosine",
        "cosine > 0 if cosine else 1", "cosine ** 9 > 1", "cosine", "1", "1 > 0", "'a' > cosine", "True > cosine",
        "cosine > exec('1')", "cosine := 1", "cosine > 0; snr_db > 0", "", "cosinus > 0", "cosine in (1, 2)",
        "cosine is 1",
        "f'{cosine}' > 0", "cosine > 1j", "max(cosine) > 0", "abs(cosine, 1) > 0", "max(*cosine) > 0", "cosine > 1e999",
        "-" * 300 + "cosine > 0", "(1+" * 60 + "cosine" + ")" * 60 + "> 0", "cosine > 0 and 1", "cosine > " + "9" * 400,
        "cosine >\n 0 >", "cosine > " + "1+" * 300 + "1",
    ],
)  # fmt: skip
def test_what_is_more_than_a_comparison_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse(text)


@pytest.mark.parametrize("text", ["cosine > 0", "1 / max_abs > 0", "cosine > 0 or snr_db > 0", "max_abs * 1e299 > 0"])
def test_a_missing_value_is_neither_true_nor_false(text: str) -> None:
    with pytest.raises(Undefined):
        holds(parse(text), {"max_abs": 1e308 if "1e299" in text else 0.0, "snr_db": 1.0})


def test_the_names_are_those_the_judge_stores() -> None:
    stored = set()
    ints = np.arange(64, dtype=np.int32)
    rows = np.eye(16, dtype=np.float32)
    many = np.random.default_rng(0).standard_normal((3, 1200)).astype(np.float32)
    for kind, array in (
        ("values", REF), ("values", REF[:4]), ("embedding", rows), ("distribution", many), ("classification", rows),
        ("mask", rows), ("quantised", ints.astype(np.int8)), ("ints", ints),
    ):  # fmt: skip
        bench = Bench()
        evidence = bench.evidence({"y": array}, {"y": array + array.dtype.type(1)}, spec=Spec(kinds={"y": kind}))
        for output in judge_cell(evidence).outputs:
            stored |= {name for name in output.metrics if name != "repeat_max_abs"}
    assert stored <= set(METRICS) | {"share_above_2"}
    assert names_in(parse("cosine > 0 and max(cosine, snr_db) > 1")) == ("cosine", "snr_db")


def test_a_broken_check_fails_the_cell_with_the_users_words() -> None:
    verdict = judged({"check": "max_abs < 1e-9", "message": "the ranking would change"})
    assert (verdict.verdict, verdict.reasons) == ("fail", (BROKEN,))
    assert "the ranking would change" in verdict.message
    assert "max_abs < 1e-9" in verdict.message
    assert verdict.outputs[0].verdict == "fail"
    assert "SNR" in verdict.outputs[0].message  # what the built-in check said stays beside it


def test_a_check_that_holds_changes_nothing_and_is_said() -> None:
    plain = judged()
    verdict = judged({"check": "cosine > 0.99", "message": "m"})
    assert (verdict.verdict, verdict.reasons, verdict.outputs) == (plain.verdict, plain.reasons, plain.outputs)
    assert "assertion holds: cosine > 0.99" in verdict.notes


def test_a_check_is_asked_of_every_input_set_not_of_the_worst_one_only() -> None:
    # Set 0 is worse by SNR (small reference), set 1 by its largest difference, which is what the user asks about.
    small, large = REF * np.float32(1e-2), REF * np.float32(100)
    noise = np.where(np.arange(64) % 2, 1, -1).astype(np.float32)
    verdict = judged(
        {"check": "max_abs < 0.05", "message": "m"},
        ref=[{"y": small}, {"y": large}],
        tgt=[{"y": small + noise * np.float32(1e-4)}, {"y": large + noise * np.float32(0.1)}],
    )
    assert verdict.verdict == "fail"
    assert "set1" in verdict.message


def test_a_metric_that_is_not_defined_never_passes() -> None:
    verdict = judged({"check": "kl < 1", "message": "m"})
    assert (verdict.verdict, verdict.reasons) == ("inconclusive", (UNDEFINED,))
    assert "kl is not defined here" in verdict.message


def test_outputs_without_the_metric_are_not_meant_unless_named() -> None:
    ints = np.arange(64, dtype=np.int32)
    both = {"y": REF, "n": ints}
    steps = {"n": "quantised"}
    check = {"check": "max_steps < 1", "message": "m"}
    assert judged(check, ref=both, tgt=both, kinds=steps).verdict == "pass"
    named = judged({**check, "output": "y"}, ref=both, tgt=both, kinds=steps)
    assert named.verdict == "inconclusive"
    assert [o.verdict for o in named.outputs] == ["inconclusive", "pass"]


def test_an_output_that_is_not_there_never_passes() -> None:
    assert judged({"check": "cosine > 0", "output": "other", "message": "m"}).verdict == "inconclusive"


def test_a_failing_cell_keeps_its_own_reasons_first() -> None:
    verdict = judged({"check": "cosine > 0.99", "message": "mine"}, tgt=-REF)
    assert verdict.verdict == "fail"
    assert verdict.reasons == ("PRECISION_DEGRADATION", BROKEN)
    assert verdict.message.index("SNR") < verdict.message.index("mine")


def test_latency_can_be_asserted() -> None:
    assert judged({"check": "latency_ms < 2", "message": "m"}).verdict == "pass"
    assert judged({"check": "latency_ms < 0.5", "message": "slow"}).verdict == "fail"


def test_a_cell_without_numbers_is_left_alone() -> None:
    bench = Bench()
    evidence = bench.evidence(
        np.full(64, np.nan, np.float32), REF, spec=Spec(assertions=({"check": "cosine > 2", "message": "m"},))
    )
    verdict = apply_assertions(evidence, judge_cell(evidence))
    assert verdict.verdict == "inconclusive"
    assert verdict.reasons == ("REFERENCE_INVALID",)
    assert any("not evaluated" in n for n in verdict.notes)


FUNCTIONS = """\
def right(c):
    assert c.reference.dtype == "float64" and c.target.shape == c.reference.shape
    return bool(abs(c.target - c.reference).max() < 1)
def wrong(c): return False
def asserts(c): assert c.metrics["cosine"] > 2, f"cosine is {c.metrics['cosine']:.3f}"
def silent(c): pass
def broken(c): return 1 / 0
def number(c): return 1
not_callable = 3
"""


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("right", "pass", ""),
        ("wrong", "fail", "returned False"),
        ("asserts", "fail", "says: cosine is 1.000"),
        ("silent", "inconclusive", "returned None"),
        ("broken", "inconclusive", "raised ZeroDivisionError"),
        ("number", "inconclusive", "returned 1"),
        ("not_callable", "inconclusive", "has no function"),
        ("absent", "inconclusive", "has no function"),
    ],
)
def test_a_function_decides_only_by_true_false_or_assert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, verdict: str, said: str
) -> None:
    (tmp_path / "farm_own_checks.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    seen = judged({"function": f"farm_own_checks:{name}", "message": "mine"})
    assert seen.verdict == verdict
    assert said in seen.message
    assert ("mine" in seen.message) == (verdict != "pass")


def test_functions_are_not_run_when_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "farm_unsafe.py").write_text("raise SystemExit('was imported')\n")
    monkeypatch.chdir(tmp_path)
    seen = judged({"function": "farm_unsafe:x", "message": "m"}, functions=False)
    assert seen.verdict == "inconclusive"
    assert "was not run" in seen.message


def test_a_module_that_is_not_there_is_told(tmp_path: Path) -> None:
    seen = judged({"function": "farm_no_such_module:x", "message": "m"})
    assert seen.verdict == "inconclusive"
    assert "ModuleNotFoundError" in seen.message


def test_the_door_refuses_a_bad_expression_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "m.farm.yaml"
    file.write_text("kind: {}\nassertions:\n- {check: 'cosinus > 0', message: m}\n")
    with pytest.raises(InvalidInput) as refused:
        load_spec(file)
    (problem,) = refused.value.problems
    assert problem.line == 3
    assert "did you mean 'cosine'" in str(problem)


def test_a_sweep_runs_them_and_a_rejudge_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "assert-cache"))
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    (tmp_path / "beside_the_model.py").write_text("def wrong(c): return False\n")
    spec = tmp_path / "fc.farm.yaml"
    spec.write_text(
        "assertions:\n- {check: 'snr_db > 1', message: fine}\n- {function: 'beside_the_model:wrong', message: mine}\n"
    )
    result = sweep([model], configs=["cpu"], out=tmp_path / "runs")
    cell = next(c for c in result if c.config == "cpu")
    assert (cell.verdict, cell.reasons) == ("fail", (BROKEN,))
    assert result.exit_code == 1
    assert judge_run(result.run_folder) == result.matrix
    assert (
        next(c for c in judge_run(result.run_folder, functions=False).cells if c.config == "cpu").verdict
        == "inconclusive"
    )
    spec.write_text("assertions:\n- {check: 'snr_db > 1', output: nowhere, message: fine}\n")
    with pytest.raises(InvalidInput, match="no output 'nowhere'"):
        sweep([model], configs=["cpu"], out=tmp_path / "runs")
