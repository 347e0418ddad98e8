"""docs/judging.md tables row by row: verdict words, order of checks, kinds. Sums are done in the comments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farm.cases import Spec
from farm.defaults import Limits
from farm.graph import LargeReduction
from farm.judge import judge_cell
from farm.outcome import Failure, IndexScores
from farm.tflite import Quantization
from tests.judge.kit import Bench, noisy, values

RAMP = np.arange(1, 17, dtype=np.float32)


def judged(ref, tgt, **more):
    return judge_cell(Bench().evidence(ref, tgt, **more))


def said(ref, tgt, **more):
    verdict = judged(ref, tgt, **more)
    return verdict.verdict, verdict.reasons


def kind_of(ref, **more):
    output = judged(ref, ref, **more).outputs[0]
    return output.kind


# Verdicts of a cell without outputs


@pytest.mark.parametrize(
    ("code", "infra", "verdict"),
    [
        ("CRASH", False, "error"),
        ("TIMEOUT", False, "error"),
        ("INVALID_MODEL", False, "error"),
        ("RUNTIME_ERROR", False, "error"),
        ("OUT_OF_MEMORY", False, "error"),
        ("UNSUPPORTED", False, "unsupported"),
        ("NO_ACCELERATOR", False, "unsupported"),
        ("DEVICE_LOST", True, "infra"),
        ("NO_SPACE", False, "infra"),
        ("LEASE_LOST", True, "infra"),
        ("TIMEOUT", True, "infra"),
    ],
)
def test_a_failure_gives_its_verdict_and_keeps_its_words(code, infra, verdict):
    found = judged(RAMP, None, failure=Failure(code=code, message="the words", infra=infra))
    assert (found.verdict, found.reasons, found.message) == (verdict, (code,), "the words")


def test_a_cell_that_never_finished_is_not_run():
    assert judged(RAMP, RAMP, finished=False).verdict == "not_run"


def test_a_damaged_model_is_an_error_even_though_nothing_ran():
    assert said(RAMP, RAMP, finished=False, invalid="truncated") == ("error", ("INVALID_MODEL",))


def test_no_result_and_no_failure_is_infra_never_a_pass():
    assert judged(RAMP, None).verdict == "infra"


def test_a_result_that_is_not_ok_is_infra_never_a_pass():
    evidence = Bench().evidence(RAMP, RAMP)
    broken = replace(evidence.outcome, result=replace(evidence.outcome.result, ok=False))
    assert judge_cell(replace(evidence, outcome=broken)).verdict == "infra"


def test_a_gpu_cell_that_ran_on_the_cpu_is_unsupported():
    assert judged(RAMP, RAMP, delegation="none").verdict == "unsupported"
    assert judged(RAMP, RAMP, delegation="partial").verdict == "pass"
    assert judged(RAMP, RAMP, delegation="none", config="cpu").verdict == "pass"


@pytest.mark.parametrize(
    ("config", "api", "verdict"),
    [
        ("gpu-cl", "WebGPU/Vulkan", "unsupported"),
        ("gpu-cl", "OpenCL", "pass"),
        ("gpu-gl", "OpenCL", "unsupported"),
        ("gpu-gl", "OpenGL", "pass"),
        ("gpu-webgpu", "Metal", "unsupported"),
        ("gpu-webgpu", "WebGPU/Vulkan", "pass"),
        ("gpu", "OpenCL", "pass"),
        ("gpu-cl", None, "pass"),
    ],
)
def test_right_numbers_of_another_gpu_api_prove_nothing_of_the_one_asked_for(config, api, verdict):
    evidence = Bench().evidence(RAMP, RAMP, config=config)
    delegation = replace(evidence.outcome.delegation, gpu_api=api)
    judged = judge_cell(replace(evidence, outcome=replace(evidence.outcome, delegation=delegation)))
    assert judged.verdict == verdict
    assert (judged.reasons == ("OTHER_BACKEND",)) == (verdict == "unsupported")


# 1. Shape, dtype, presence


def test_another_shape_is_a_shape_mismatch():
    assert said(RAMP, RAMP.reshape(4, 4)) == ("fail", ("SHAPE_MISMATCH",))


def test_another_dtype_is_a_shape_mismatch():
    assert said(RAMP, RAMP.astype(np.int32)) == ("fail", ("SHAPE_MISMATCH",))


def test_an_output_that_did_not_arrive_is_missing():
    assert said({"a": RAMP, "b": RAMP}, {"a": RAMP}) == ("fail", ("MISSING_OUTPUT",))


def test_an_input_set_that_did_not_arrive_is_missing():
    assert said([{"y": RAMP}, {"y": RAMP * 2}], [{"y": RAMP}]) == ("fail", ("MISSING_OUTPUT",))


def test_shape_comes_before_the_reference():
    assert said(RAMP * np.nan, RAMP.reshape(4, 4)) == ("fail", ("SHAPE_MISMATCH",))


# 2. Reference


def test_a_crashed_reference_is_missing():
    crash = Failure(code="CRASH", message="signal 11")
    found = judged(None, RAMP, reference_failure=crash)
    assert (found.verdict, found.reasons, found.reference_status) == ("inconclusive", ("REFERENCE_MISSING",), "missing")


def test_a_crashed_reference_does_not_hide_that_the_target_crashed_too():
    crash = Failure(code="CRASH", message="signal 11")
    assert judged(None, None, reference_failure=crash, failure=crash).verdict == "error"


def test_no_reference_at_all_is_missing():
    evidence = replace(Bench().evidence(RAMP, RAMP), reference=None)
    assert judge_cell(evidence).reasons == ("REFERENCE_MISSING",)


def test_a_nan_in_the_reference_is_invalid_whatever_the_target_holds():
    bad = RAMP.copy()
    bad[3] = np.nan
    for target in (bad, RAMP, RAMP * np.nan):
        assert said(bad, target) == ("inconclusive", ("REFERENCE_INVALID",))


def _masked(n=200, at=(5, 6)):
    out = values(n)
    out[list(at)] = -np.inf
    return out


def test_shared_mask_infinities_up_to_one_percent_are_ignored():
    # 2 of 200 elements = 1 %.
    assert judged(_masked(), _masked(), graph={"inf_constants": True}).verdict == "pass"
    # 3 of 200 = 1.5 %.
    more = _masked(at=(5, 6, 7))
    assert said(more, more, graph={"inf_constants": True}) == ("inconclusive", ("REFERENCE_INVALID",))


def test_mask_infinities_do_not_excuse_a_wrong_finite_part():
    assert (
        judged(_masked(), _masked() * np.float32(-1) * np.float32(-0.2), graph={"inf_constants": True}).verdict
        == "fail"
    )


def test_infinities_without_a_mask_constant_or_elsewhere_or_of_other_sign_are_invalid():
    invalid = ("inconclusive", ("REFERENCE_INVALID",))
    assert said(_masked(), _masked()) == invalid
    other = _masked()
    other[5] = np.inf
    assert said(_masked(), other, graph={"inf_constants": True}) == invalid
    other[5] = -65504
    assert said(_masked(), other, graph={"inf_constants": True}) == invalid


@pytest.mark.parametrize("fact", [{"unwritten": True}, {"alias_of": "input:x"}, {"alias_of": "output:a"}])
def test_an_output_nothing_computed_is_invalid(fact):
    assert said(RAMP, RAMP, facts={"y": fact}) == ("inconclusive", ("REFERENCE_INVALID",))


def test_two_cpu_runs_that_differ_are_unstable():
    other = RAMP.copy()
    other[0] = np.nextafter(other[0], np.float32(2))
    assert said(RAMP, RAMP, second=other) == ("inconclusive", ("REFERENCE_UNSTABLE",))


def test_a_missing_second_cpu_run_is_unstable():
    evidence = Bench().evidence(RAMP, RAMP)
    alone = replace(evidence.reference, second=None)
    assert judge_cell(replace(evidence, reference=alone)).reasons == ("REFERENCE_UNSTABLE",)


def test_an_unstable_reference_comes_before_nan_in_the_target():
    assert said(RAMP, RAMP * np.nan, second=RAMP * 2) == ("inconclusive", ("REFERENCE_UNSTABLE",))


def test_an_output_or_input_set_the_reference_lacks_is_not_passed_over():
    bench = Bench()
    evidence = bench.evidence({"a": RAMP, "b": RAMP}, {"a": RAMP, "b": RAMP})
    alone = bench.result([{"a": RAMP}])
    short = replace(evidence.reference, first=alone, second=alone)
    assert judge_cell(replace(evidence, reference=short)).reasons == ("REFERENCE_MISSING",)
    both = [{"y": RAMP}, {"y": RAMP * 2}]
    evidence = bench.evidence(both, both)
    one = bench.result(both[:1])
    short = replace(evidence.reference, first=one, second=one)
    assert judge_cell(replace(evidence, reference=short)).reasons == ("REFERENCE_MISSING",)


# 3. Target non-finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_non_finite_element_is_instability(bad):
    target = RAMP.copy()
    target[7] = bad
    assert said(RAMP, target) == ("fail", ("NUMERICAL_INSTABILITY",))


def test_nan_comes_before_zero_and_never_passes():
    target = np.zeros_like(RAMP)
    target[0] = np.nan
    assert said(RAMP, target) == ("fail", ("NUMERICAL_INSTABILITY",))


# 4. Probabilities near zero; 5. vacuous references

SIGMOID = {"y": {"activation": "LOGISTIC", "class_axis": None, "tail": ("LOGISTIC",)}}


def test_a_probability_of_7e_6_may_flush_to_zero():
    tiny = np.array([[7e-6]], np.float32)
    found = judged(tiny, np.zeros_like(tiny), facts=SIGMOID)
    assert (found.verdict, found.outputs[0].kind) == ("pass", "probability")


def test_a_probability_of_a_half_may_not_flush_to_zero():
    half = np.array([[0.5]], np.float32)
    assert said(half, np.zeros_like(half), facts=SIGMOID) == ("fail", ("SILENT_ZERO_VECTOR",))


def test_nan_in_a_tiny_probability_still_fails():
    tiny = np.array([[7e-6]], np.float32)
    assert said(tiny, tiny * np.nan, facts=SIGMOID) == ("fail", ("NUMERICAL_INSTABILITY",))


def test_an_all_zero_reference_is_vacuous_whatever_the_target_holds():
    zero = np.zeros_like(RAMP)
    for target in (zero, RAMP):
        found = judged(zero, target)
        assert (found.verdict, found.reasons) == ("inconclusive", ("REFERENCE_VACUOUS",))
        assert found.reference_status == "vacuous"


def test_a_reference_below_two_to_the_minus_14_is_vacuous_for_fp16_only():
    # 2^-14 = 6.1035e-5; 6.1e-5 lies below, 6.2e-5 above.
    below, above = np.full(16, 6.1e-5, np.float32), np.full(16, 6.2e-5, np.float32)
    assert judged(below, below, precision="fp16").reasons == ("REFERENCE_VACUOUS",)
    assert judged(below, below, precision="fp32").verdict == "pass"
    assert judged(above, above, precision="fp16").verdict == "pass"


def test_a_vacuous_input_set_is_left_out_where_another_one_speaks():
    zero = np.zeros_like(RAMP)
    found = judged([{"y": zero}, {"y": RAMP}], [{"y": zero}, {"y": RAMP}])
    assert found.verdict == "pass"
    assert any("set0" in note for note in found.notes)
    assert judged([{"y": zero}, {"y": RAMP}], [{"y": zero}, {"y": zero + 1}]).verdict == "fail"


def test_an_empty_output_is_vacuous():
    empty = np.zeros((0, 4), np.float32)
    assert said(empty, empty) == ("inconclusive", ("REFERENCE_VACUOUS",))


# 6. Zero


def test_an_all_zero_target_is_a_silent_zero_vector():
    assert said(RAMP, np.zeros_like(RAMP)) == ("fail", ("SILENT_ZERO_VECTOR",))


def test_a_norm_below_min_norm_is_a_silent_zero_vector_unless_the_reference_is_as_small():
    # 16 × (1e-5)² = 1.6e-9, norm 4e-5 < 1e-4.
    assert said(RAMP, np.full_like(RAMP, 1e-5)) == ("fail", ("SILENT_ZERO_VECTOR",))
    small = np.full(16, 1e-5, np.float32)
    assert judged(small, small, precision="fp32").verdict == "pass"


def test_an_all_zero_target_is_found_below_min_norm_too():
    # The reference's own norm, 4e-5, is below min_norm.
    small = np.full(16, 1e-5, np.float32)
    assert said(small, np.zeros_like(small), precision="fp32") == ("fail", ("SILENT_ZERO_VECTOR",))


def test_min_norm_is_a_limit_of_the_run():
    # norm of RAMP/1e4 = sqrt(1496)/1e4 = 3.9e-3: above 1e-4 (bands decide: 0 dB → precision), below 1e-2.
    faint = RAMP / np.float32(1e4)
    assert judged(RAMP, faint).reasons != ("SILENT_ZERO_VECTOR",)
    assert judged(RAMP, faint, limits=Limits(min_norm=1e-2)).reasons == ("SILENT_ZERO_VECTOR",)


def _rows():
    return np.tile(RAMP, (100, 1))


def test_one_dead_row_of_a_hundred_is_a_silent_zero_vector():
    # 1 of 100 equal rows lost: SNR = 10 log10(100/1) = 20 dB, cosine = sqrt(0.99) = 0.995: the bands alone would warn.
    target = _rows()
    target[41] = 0
    assert said(_rows(), target) == ("fail", ("SILENT_ZERO_VECTOR",))


def test_a_dead_row_counts_only_from_a_thousandth_of_the_largest_value():
    # Largest value 16. A row of 0.015 is below 16/1000 = 0.016, one of 0.017 above.
    for size, verdict in ((0.015, "pass"), (0.017, "fail")):
        ref = _rows()
        ref[41] = size
        target = ref.copy()
        target[41] = 0
        assert judged(ref, target).verdict == verdict, size


def test_rows_of_fewer_than_eight_elements_are_no_rows():
    ref = np.ones((1000, 7), np.float32)
    target = ref.copy()
    target[3] = 0  # 1 of 1000: 30 dB, a warn
    assert judged(ref, target).verdict == "warn"


# 7. Saturation


def test_exactly_65504_where_the_reference_is_beyond_is_saturation():
    ref = RAMP * np.float32(5000)  # up to 80000: elements 14 to 16 (70000, 75000, 80000) are beyond
    assert said(ref, np.minimum(ref, np.float32(65504))) == ("fail", ("SATURATION",))


def test_65504_where_the_reference_is_65504_is_no_saturation():
    ref = RAMP * np.float32(4094)  # 16 × 4094 = 65504
    assert judged(ref, ref).verdict == "pass"


# 8. Repeats


def test_repeats_prove_nothing_where_the_references_own_repeats_differ():
    y = values()
    bench = Bench()
    evidence = bench.evidence(y, y, repeats={"y": [noisy(y, 10)]})
    assert judge_cell(evidence).reasons == ("NONDETERMINISTIC",)
    drawing = bench.result([{"y": y}], repeats={"y": [noisy(y, 10, seed=2)]})
    evidence = replace(evidence, reference=replace(evidence.reference, first=drawing, second=drawing))
    found = judge_cell(evidence)
    assert (found.verdict, found.reasons) == ("inconclusive", ("REFERENCE_UNSTABLE",))


def test_repeats_that_miss_the_pass_band_are_nondeterministic():
    y = values()
    found = judged(y, y, repeats={"y": [y, noisy(y, 34)]})
    assert (found.verdict, found.reasons) == ("fail", ("NONDETERMINISTIC",))


def test_a_smaller_spread_of_repeats_is_recorded_only():
    y = values()
    found = judged(y, y, repeats={"y": [noisy(y, 36)]})
    assert found.verdict == "pass"
    assert found.outputs[0].metrics["repeat_max_abs"] > 0


def test_a_repeat_with_nan_is_nondeterministic():
    y = values()
    bad = y.copy()
    bad[0] = np.nan
    assert said(y, y, repeats={"y": [bad]}) == ("fail", ("NONDETERMINISTIC",))


def test_nondeterminism_comes_before_the_bands():
    y = values()
    assert said(y, noisy(y, 10), repeats={"y": [y]}) == ("fail", ("NONDETERMINISTIC",))


# 9. Input sets


def test_an_output_that_ignores_its_inputs_fails():
    # The constant is near enough to both references to warn in the bands: only the sets together show the fault.
    one, other = values(seed=0), noisy(values(seed=0), 27)
    middle = ((one + other) / 2).astype(np.float32)
    found = judged([{"y": one}, {"y": other}], [{"y": middle}, {"y": middle}])
    assert (found.verdict, found.reasons) == ("fail", ("INPUT_INDEPENDENT",))


def test_a_reference_that_moves_less_than_the_pass_band_proves_nothing():
    one = values()
    other = noisy(one, 60)
    assert judged([{"y": one}, {"y": other}], [{"y": one}, {"y": one}]).verdict == "pass"


def test_equal_references_are_noted_where_the_graph_connects_inputs():
    runs = [{"y": RAMP}, {"y": RAMP}]
    assert any("do not exercise" in n for n in judged(runs, runs).notes)
    assert not any("do not exercise" in n for n in judged(runs, runs, facts={"y": {"depends_on_inputs": False}}).notes)


def test_steps_are_compared_with_their_own_step():
    counter = [{"y": np.full(8, n, np.float32)} for n in (1, 2, 3)]
    assert judged(counter, counter, steps=3).verdict == "pass"
    assert judged(counter, [counter[0], counter[0], counter[0]], steps=3).verdict == "fail"


# 10. Bands of values


@pytest.mark.parametrize(
    ("precision", "snr_db", "verdict"),
    [
        ("fp32", 81, "pass"), ("fp32", 79, "warn"), ("fp32", 51, "warn"), ("fp32", 49, "fail"),
        ("fp16", 36, "pass"), ("fp16", 34, "warn"), ("fp16", 21, "warn"), ("fp16", 19, "fail"),
        ("fp16-storage", 36, "pass"), ("fp16-storage", 34, "warn"),
        ("unknown", 36, "pass"), ("unknown", 19, "fail"), (None, 36, "pass"), (None, 34, "warn"),
    ],
)  # fmt: skip
def test_values_bands(precision, snr_db, verdict):
    y = values(4096)
    found = judged(y, noisy(y, snr_db), precision=precision)
    assert found.verdict == verdict
    assert found.outputs[0].metrics["snr_db"] == pytest.approx(snr_db, abs=0.1)
    assert found.outputs[0].limits["pass_snr_db"] == (80 if precision == "fp32" else 35)


def test_an_unknown_class_is_said():
    for precision in ("unknown", None):
        assert any("precision class unknown" in n for n in judged(RAMP, RAMP, precision=precision).notes)


@pytest.mark.parametrize("dtype", ["float16"])
def test_tensors_stored_as_float16_use_fp16_bands_in_fp32_class(dtype):
    y = values(4096).astype(dtype)
    assert judged(y, noisy(y, 40), precision="fp32").verdict == "pass"


def test_bfloat16_comes_as_raw_halves_and_uses_fp16_bands():
    y = values(4096)
    raw = (y.view(np.uint32) >> 16).astype(np.uint16)
    other = (noisy(y, 40).view(np.uint32) >> 16).astype(np.uint16)
    found = judged(raw, other, precision="fp32", dtypes={"y": "bfloat16"})
    # Truncation costs up to 2^-8 of each value: about 45 dB on top of the noise at 40 dB.
    assert found.verdict == "pass"
    assert 35 < found.outputs[0].metrics["snr_db"] < 45


def test_fewer_than_eight_elements_go_by_the_largest_value():
    # max|d| / max|ref| = 0.02 / 2 = 0.01 → −20 log10(0.01) = 40 dB.
    ref = np.array([2.0, 1.0], np.float32)
    found = judged(ref, np.array([2.0, 1.02], np.float32))
    assert found.verdict == "pass"
    assert found.outputs[0].metrics["small_snr_db"] == pytest.approx(40.0, abs=1e-4)
    # A scalar ten times too small: 0.9 → −20 log10(1.8/2) = 0.9 dB, though its cosine is 1.
    assert judged(np.float32([2.0]), np.float32([0.2])).verdict == "fail"
    # 0.1/2 → 26 dB: warn.
    assert judged(np.float32([2.0]), np.float32([1.9])).verdict == "warn"


def test_a_zero_dimensional_output_is_judged():
    assert judged(np.array(2.0, np.float32), np.array(2.0, np.float32)).verdict == "pass"
    assert judged(np.array(2.0, np.float32), np.array(0.2, np.float32)).verdict == "fail"


def test_a_wrong_length_in_the_right_direction_is_a_scale_error():
    # ref × 0.9: SNR = −20 log10(0.1) = 20 dB would warn, × 0.89: −20 log10(0.11) = 19.2 dB fails at cosine 1.
    assert said(RAMP, RAMP * np.float32(0.89)) == ("fail", ("SCALE_ERROR",))
    assert said(RAMP, noisy(RAMP, 10)) == ("fail", ("PRECISION_DEGRADATION",))


def test_a_large_mean_does_not_hide_that_nothing_is_right():
    # 100 + noise against 100 + other noise: cosine 0.9999, 37 dB, centred cosine near 0.
    a, b = 100 + values(4096, 0), 100 + values(4096, 1)
    found = judged(a, b)
    assert abs(found.outputs[0].metrics["centred_cosine"]) < 0.1
    assert "centred_cosine" not in judged(values(), values()).outputs[0].metrics


def test_min_cosine_similarity_fails_in_addition_to_the_bands():
    # 28 dB → cosine about 1/sqrt(1 + 10^-2.8) = 0.9992: a warn in FP16 bands.
    y = values(4096)
    target = noisy(y, 28)
    assert judged(y, target).verdict == "warn"
    strict = judged(y, target, limits=Limits(min_cosine_similarity=0.9995))
    assert (strict.verdict, strict.reasons) == ("fail", ("PRECISION_DEGRADATION",))
    assert strict.outputs[0].limits["min_cosine_similarity"] == 0.9995
    assert judged(y, target, limits=Limits(min_cosine_similarity=0.999)).verdict == "warn"
    assert judged(y, target, spec=Spec(min_cosine_similarity=0.9995)).verdict == "fail"


def test_min_cosine_similarity_leaves_small_outputs_alone():
    ref, tgt = np.float32([1.0, 0.02]), np.float32([1.0, -0.02])  # cosine 0.9992; 0.04/1 → 28 dB
    assert judged(ref, tgt, limits=Limits(min_cosine_similarity=0.9999)).verdict == "warn"


def test_bands_can_be_overridden_by_kind_and_by_output_and_the_limit_is_stored():
    y = values(4096)
    target = noisy(y, 30)
    assert judged(y, target).verdict == "warn"
    by_kind = judged(y, target, bands={"values": {"pass_snr_db": 29}})
    assert by_kind.verdict == "pass"
    assert by_kind.outputs[0].limits["pass_snr_db"] == 29
    assert judged(y, target, spec=Spec(bands={"y": {"fail_snr_db": 31}})).verdict == "fail"
    assert judged(
        y, target, bands={"values": {"pass_snr_db": 29}}, spec=Spec(bands={"y": {"pass_snr_db": 40}})
    ).verdict == ("warn")


def test_the_message_names_the_limit_that_would_pass():
    y = values(4096)
    message = judged(y, noisy(y, 30.5)).message
    assert "pass_snr_db: 30 would pass" in message
    assert "35" in message


# The worst input set and the worst output are kept


def test_the_worst_input_set_is_kept():
    y, z = values(4096, 0), values(4096, 5)
    found = judged([{"y": y}, {"y": z}], [{"y": noisy(y, 60)}, {"y": noisy(z, 30)}])
    assert (found.verdict, found.outputs[0].input_set) == ("warn", "set1")


def test_a_proven_fault_outweighs_a_doubt_and_a_doubt_a_pass():
    nan = RAMP * np.float32(np.nan)
    assert judged({"a": nan, "b": RAMP}, {"a": nan, "b": np.zeros_like(RAMP)}).verdict == "fail"
    found = judged({"a": nan, "b": RAMP}, {"a": nan, "b": RAMP})
    assert (found.verdict, found.reference_status) == ("inconclusive", "invalid")


# Noise floor, hybrid kernels, large reductions


def test_a_noise_floor_loosens_limits_to_six_db_below_it():
    y = values(4096)
    floor = noisy(y, 60, seed=2)  # pass limit becomes 60 − 6 = 54
    found = judged(y, noisy(y, 55), floor=floor, precision="fp32")
    assert found.verdict == "pass"
    assert found.floor_db == pytest.approx(60, abs=0.1)
    assert found.outputs[0].limits["pass_snr_db"] == pytest.approx(54, abs=0.1)
    assert judged(y, noisy(y, 53), floor=floor, precision="fp32").verdict == "warn"


def test_a_high_floor_tightens_nothing():
    y = values(4096)
    assert judged(y, noisy(y, 81), floor=noisy(y, 120), precision="fp32").outputs[0].limits["pass_snr_db"] == 80


def test_a_floor_in_the_fail_band_leaves_no_reference():
    y = values(4096)
    floor = noisy(y, 45, seed=2)
    for target in (noisy(y, 90), noisy(y, 10)):
        assert said(y, target, floor=floor, precision="fp32") == ("inconclusive", ("REFERENCE_UNSTABLE",))
    assert judged(y, noisy(y, 40), floor=floor, precision="fp16").verdict == "pass"  # 45 dB is no fail in FP16 bands


def test_a_floor_with_nan_leaves_no_reference():
    y = values(4096)
    bad = y.copy()
    bad[0] = np.nan
    assert said(y, noisy(y, 90), floor=bad, precision="fp32") == ("inconclusive", ("REFERENCE_UNSTABLE",))


def test_an_unknown_floor_is_said():
    assert any("noise floor unknown" in n for n in judged(RAMP, RAMP).notes)
    assert not any("noise floor unknown" in n for n in judged(RAMP, RAMP, floor=RAMP).notes)


def test_a_miss_of_a_hybrid_model_is_inconclusive_in_fp32_bands_only():
    y = values(4096)
    hybrid = {"hybrid_ops": ("FULLY_CONNECTED",)}
    assert said(y, noisy(y, 45), graph=hybrid, precision="fp32") == ("inconclusive", ("REFERENCE_UNSTABLE",))
    assert judged(y, noisy(y, 60), graph=hybrid, precision="fp32").verdict == "warn"
    assert judged(y, noisy(y, 10), graph=hybrid, precision="fp16").verdict == "fail"
    assert judged(y, np.zeros_like(y), graph=hybrid, precision="fp32").reasons == ("SILENT_ZERO_VECTOR",)


def test_a_miss_after_a_large_reduction_blames_the_reference():
    y = values(4096)
    large = {"y": {"large_reduction": LargeReduction(op="SUM", op_index=3, elements=1 << 20, last=True)}}
    assert said(y, noisy(y, 10), facts=large) == ("inconclusive", ("REFERENCE_INVALID",))
    assert judged(y, noisy(y, 40), facts=large).verdict == "pass"


def test_a_reduction_beyond_two_to_the_24_is_never_conclusive():
    y = values(4096)
    huge = {"y": {"large_reduction": LargeReduction(op="MEAN", op_index=0, elements=(1 << 24) + 1, last=True)}}
    assert said(y, y, facts=huge) == ("inconclusive", ("REFERENCE_INVALID",))


# Kinds

SOFTMAX = {"y": {"activation": "SOFTMAX", "class_axis": 1, "tail": ("SOFTMAX",)}}
BYTES = Quantization(scale=(1 / 256,), zero_point=(0,))


def test_kinds_are_inferred_in_judge_md_order():
    unit = np.full((2, 16), 0.25, np.float32)  # 16 × 0.25² = 1
    logits = {"y": {"logits": True}}
    assert kind_of(RAMP) == "values"
    assert kind_of(unit) == "embedding"
    assert kind_of(unit, facts=SOFTMAX) == "classification"
    assert kind_of(unit, spec=Spec(kinds={"y": "values"})) == "values"
    assert kind_of(np.full((1, 1), 0.5, np.float32), facts=SIGMOID) == "probability"
    assert kind_of(np.full((1, 8, 8, 1), 0.5, np.float32), facts=SIGMOID) == "mask"
    assert kind_of(RAMP / 16, facts={"y": {"clipped_unit": True}}) == "probability"
    assert kind_of(np.ones((4, 2000), np.float32), facts=logits) == "distribution"
    assert kind_of(np.full((2, 16), 0.25, np.float32), facts=logits) == "embedding"
    assert kind_of(RAMP.astype(np.uint8), facts={"y": {"quantization": BYTES}}) == "quantised"
    assert kind_of(RAMP.astype(np.uint8).reshape(1, 16), facts={"y": {**SOFTMAX["y"], "quantization": BYTES}}) == (
        "classification"
    )
    assert kind_of(RAMP.astype(np.int32)) == "ints"
    assert kind_of(RAMP.astype(np.uint8)) == "ints"
    assert kind_of(RAMP.astype(np.int32), facts={"y": {"index_source": 3, "tail": ("ARG_MAX",)}}) == "indices"
    assert kind_of(RAMP > 3) == "bools"


def test_short_unit_rows_are_no_embedding():
    # Norm 1 by chance: [0.6, 0.8]; as an embedding a scalar 1.0 against 0.995 would be direction only.
    assert kind_of(np.float32([[0.6, 0.8]])) == "values"


def test_why_a_kind_was_chosen_is_stored():
    assert judged(RAMP, RAMP, spec=Spec(kinds={"y": "mask"})).outputs[0].kind_source == "spec"
    assert judged(RAMP, RAMP).outputs[0].kind_source == "default"


def _turned(rows, cosine):
    """Unit rows turned towards an orthogonal direction so that the cosine is exact."""
    base = np.zeros((rows, 16), np.float64)
    base[:, 0] = 1
    turned = base.copy()
    turned[-1, 0], turned[-1, 1] = cosine, np.sqrt(1 - cosine**2)
    return base.astype(np.float32), turned.astype(np.float32)


@pytest.mark.parametrize(("cosine", "verdict"), [(0.9995, "pass"), (0.995, "warn"), (0.98, "fail")])
def test_embedding_goes_by_the_worst_row(cosine, verdict):
    ref, target = _turned(50, cosine)
    assert judged(ref, target).verdict == verdict


@pytest.mark.parametrize(("length", "verdict"), [(1.004, "pass"), (1.01, "warn"), (1.03, "fail")])
def test_embedding_checks_the_length_too(length, verdict):
    ref, _ = _turned(4, 1.0)
    found = judged(ref, ref * np.float32(length))
    assert found.verdict == verdict
    assert found.reasons == (("SCALE_ERROR",) if verdict == "fail" else ())


def test_classification_keeps_the_best_class():
    ref = np.float32([[0.7, 0.2, 0.1]])
    assert judged(ref, np.float32([[0.68, 0.21, 0.11]]), facts=SOFTMAX).verdict == "pass"
    assert judged(ref, np.float32([[0.6, 0.3, 0.1]]), facts=SOFTMAX).verdict == "warn"  # 0.1 > 0.05
    assert said(ref, np.float32([[0.2, 0.7, 0.1]]), facts=SOFTMAX) == ("fail", ("PRECISION_DEGRADATION",))


def test_a_flip_is_a_near_tie_only_when_margin_and_error_are_small():
    # margin 0.002 below the error 0.02
    assert (
        judged(np.float32([[0.401, 0.399, 0.2]]), np.float32([[0.39, 0.419, 0.191]]), facts=SOFTMAX).verdict == "warn"
    )
    # margin 0.1 above the error 0.06
    assert judged(np.float32([[0.45, 0.35, 0.2]]), np.float32([[0.39, 0.41, 0.2]]), facts=SOFTMAX).verdict == "fail"
    # margin 0.2 below the error 0.5: a large error does not excuse itself
    assert judged(np.float32([[0.6, 0.4]]), np.float32([[0.1, 0.9]]), facts=SOFTMAX).verdict == "fail"


def test_a_uniform_answer_is_no_agreement():
    assert judged(np.float32([[0.9, 0.1]]), np.float32([[0.5, 0.5]]), facts=SOFTMAX).verdict == "fail"


def test_a_quantised_tie_with_the_best_class_is_a_near_tie():
    # Seen on an int8 image classifier: 46 and 39 of 256 became 41 and 41; the best class shares the first place.
    facts = {"y": {**SOFTMAX["y"], "quantization": BYTES}}
    assert judged(np.uint8([[46, 39, 20]]), np.uint8([[41, 41, 20]]), facts=facts).verdict == "warn"


def test_quantised_classification_is_dequantised_first():
    facts = {"y": {**SOFTMAX["y"], "quantization": BYTES}}
    ref = np.uint8([[200, 30, 26]])
    assert judged(ref, np.uint8([[194, 34, 28]]), facts=facts).verdict == "pass"  # 6/256 = 0.023
    assert judged(ref, np.uint8([[30, 200, 26]]), facts=facts).verdict == "fail"


@pytest.mark.parametrize(("error", "verdict"), [(0.009, "pass"), (0.04, "warn"), (0.06, "fail")])
def test_probability_goes_by_the_largest_error(error, verdict):
    ref = np.full((1, 8, 8, 1), 0.5, np.float32)
    target = ref.copy()
    target[0, 3, 3, 0] += error
    assert judged(ref, target, facts=SIGMOID).verdict == verdict


def test_a_mask_of_tiny_values_is_not_judged_by_cosine():
    ref = np.full((1, 8, 8, 1), 8e-9, np.float32)
    found = judged(ref, np.zeros_like(ref), facts=SIGMOID, limits=Limits(min_cosine_similarity=0.99))
    assert found.verdict == "pass"


def test_a_probability_that_never_leaves_zero_passes_with_a_note():
    ref = np.full((1, 1), 7e-6, np.float32)
    found = judged(ref, np.zeros_like(ref), facts=SIGMOID)
    assert found.verdict == "pass"
    assert "say little" in " ".join(found.notes)
    assert "say little" not in " ".join(judged(ref + 0.5, ref + 0.5, facts=SIGMOID).notes)


def test_labels_that_all_stay_far_below_the_limit_are_probabilities():
    labels = {"y": {"activation": "LOGISTIC", "class_axis": 1, "tail": ("LOGISTIC",)}}
    ref = np.float32([[7e-6, 8e-6, 3e-6]])
    assert judged(ref, np.zeros_like(ref), facts=labels).verdict == "pass"
    assert judged(ref, np.float32([[7e-6, 0.2, 3e-6]]), facts=labels).verdict == "fail"


def test_a_softmax_over_many_equal_classes_is_no_flat_mask():
    facts = {"y": {"activation": "SOFTMAX", "class_axis": 2, "tail": ("SOFTMAX",)}}
    ref = np.random.default_rng(0).dirichlet(np.full(1000, 50.0), (1, 3)).astype(np.float32)
    assert ref.max() < 0.01
    assert judged(ref, noisy(ref, 60), facts=facts).verdict == "pass"
    assert said(ref, np.zeros_like(ref), facts=facts) == ("fail", ("SILENT_ZERO_VECTOR",))
    assert judged(ref, np.full_like(ref, 1e-3)[..., ::-1] * np.float32(0.5), facts=facts).verdict == "fail"


def test_distribution_goes_by_top1_and_kl():
    rng = np.random.default_rng(0)
    ref = rng.standard_normal((200, 1200)).astype(np.float32) * 4
    facts = {"y": {"logits": True}}
    assert judged(ref, ref + np.float32(0.5), facts=facts).verdict == "pass"  # softmax ignores a constant
    swapped = ref.copy()
    swapped[:6] = np.roll(ref[:6], 1, axis=1)  # 6 of 200 positions wrong: top-1 0.97, KL far above 0.1
    found = judged(ref, swapped, facts=facts)
    assert (found.verdict, found.outputs[0].metrics["top1"]) == ("fail", 0.97)
    assert "last_cosine" in found.outputs[0].metrics


def test_a_flip_between_equal_tokens_warns_where_nothing_else_moved():
    ref = np.zeros((4, 1200), np.float32)
    ref[:, 5], ref[:, 9] = 10.0, 9.999
    flipped = ref.copy()
    flipped[0, 9] = 10.001
    facts = {"y": {"logits": True}}
    assert judged(ref, flipped, facts=facts).verdict == "warn"
    flipped[0, 9] = 14.0
    assert said(ref, flipped, facts=facts) == ("fail", ("PRECISION_DEGRADATION",))


@pytest.mark.parametrize(
    ("off", "count", "verdict"),
    [(1, 2000, "pass"), (2, 2, "warn"), (2, 3, "fail"), (3, 1, "fail")],
)
def test_quantised_goes_by_steps(off, count, verdict):
    # 2 of 2000 elements = 0.1 %, 3 = 0.15 %.
    ref = np.tile(np.arange(50, 90, dtype=np.int8), 50)
    target = ref.copy()
    target[:count] += np.int8(off)
    facts = {"y": {"quantization": Quantization(scale=(0.1,), zero_point=(-3,))}}
    assert judged(ref, target, facts=facts).verdict == verdict


def test_a_quantised_floor_allows_one_step_more():
    ref = np.tile(np.arange(50, 90, dtype=np.int8), 50)
    facts = {"y": {"quantization": Quantization(scale=(0.1,), zero_point=(-3,))}}
    floor = ref.copy()
    floor[0] += 2  # the floor warns: 2 steps on 0.05 %
    found = judged(ref, ref + np.int8(3), facts=facts, floor=floor)
    assert (found.verdict, found.outputs[0].limits["pass_steps"]) == ("pass", 3)
    assert judged(ref, ref + np.int8(4), facts=facts, floor=floor).verdict == "fail"


def test_per_channel_integers_are_counted_in_steps():
    facts = {"y": {"quantization": Quantization(scale=(0.1, 0.2), zero_point=(0, 0), axis=1)}}
    ref = np.tile(np.int8([[50, 60]]), (20, 1))
    assert judged(ref, ref + np.int8(1), facts=facts).verdict == "pass"
    assert judged(ref, ref + np.int8(9), facts=facts).verdict == "fail"


def test_quantised_zero_is_the_zero_point():
    facts = {"y": {"quantization": Quantization(scale=(0.1,), zero_point=(7,))}}
    ref = np.arange(8, 40, dtype=np.int8)
    assert said(ref, np.full_like(ref, 7), facts=facts) == ("fail", ("SILENT_ZERO_VECTOR",))
    assert said(np.full_like(ref, 7), ref, facts=facts) == ("inconclusive", ("REFERENCE_VACUOUS",))


def test_ints_must_be_equal():
    ref = np.arange(1, 2001, dtype=np.int32)
    one, three = ref.copy(), ref.copy()
    one[0] += 1  # 1 of 2000 wrong: 99.95 %
    three[:3] += 1  # 99.85 %
    assert judged(ref, ref).verdict == "pass"
    assert judged(ref, one).verdict == "warn"
    assert said(ref, three) == ("fail", ("VALUE_MISMATCH",))


def test_int64_beyond_float64_is_compared_exactly():
    ref = np.full(9, 2**53, np.int64)
    assert said(ref, ref + 1) == ("fail", ("VALUE_MISMATCH",))  # float64 would call them equal


def test_bools_must_be_equal():
    ref = np.tile([True, False, True], 100)
    flipped = ref.copy()
    flipped[0] = False
    assert judged(ref, ref).verdict == "pass"
    assert said(ref, flipped) == ("fail", ("VALUE_MISMATCH",))  # 1 of 300 = 99.67 %


def test_indices_may_swap_near_ties_and_nothing_else():
    facts = {"i": {"index_source": 3, "index_values": "v", "tail": ("TOPK_V2",)}}
    ref = {"v": np.float32([9.0, 5.001, 5.0]), "i": np.int32([4, 2, 7])}
    swap = {"v": np.float32([9.0, 5.002, 5.001]), "i": np.int32([4, 7, 2])}
    found = judged(ref, swap, facts=facts)
    assert found.verdict == "warn", found
    wrong = {"v": np.float32([9.0, 5.002, 5.001]), "i": np.int32([2, 4, 7])}
    assert said(ref, wrong, facts=facts) == ("fail", ("VALUE_MISMATCH",))


def test_an_index_may_move_to_a_near_tie_of_the_tensor_it_was_chosen_from():
    bench = Bench()
    scores = np.float32([[0.2, 1.0, 0.997, 0.1]])
    facts = {"y": {"index_source": 3, "tail": ("ARG_MAX",)}}

    def verdict(chosen, **more):
        evidence = bench.evidence(np.int32([1]), np.int32([chosen]), facts=facts, **more)
        runs = bench.result([{"scores": scores}]).runs
        kept = IndexScores(position=0, dtype="float32", axis=1, runs=runs)
        return judge_cell(replace(evidence, reference=replace(evidence.reference, index_scores=(kept,)))).verdict

    assert verdict(2) == "warn"  # 0.3 % below the best
    assert verdict(0) == "fail"
    assert verdict(2, precision="fp32") == "fail"


def test_an_index_that_stays_where_the_reference_moves_between_near_ties_depends_on_its_inputs():
    bench = Bench()
    facts = {"y": {"index_source": 3, "tail": ("ARG_MAX",)}}

    def reasons(second):
        refs = [{"y": np.int32([1])}, {"y": np.int32([2])}]
        evidence = bench.evidence(refs, [{"y": np.int32([1])}, {"y": np.int32([1])}], facts=facts)
        first = np.float32([[0.2, 1.0, 0.997, 0.1]])
        runs = bench.result([{"scores": first}, {"scores": second}]).runs
        kept = IndexScores(position=0, dtype="float32", axis=1, runs=runs)
        return judge_cell(replace(evidence, reference=replace(evidence.reference, index_scores=(kept,)))).reasons

    assert reasons(np.float32([[0.2, 0.998, 1.0, 0.1]])) == ()
    assert reasons(np.float32([[0.2, 0.1, 1.0, 0.1]])) == ("INPUT_INDEPENDENT",)


def test_a_zero_index_is_an_ordinary_answer():
    ref = np.int32([5])
    facts = {"y": {"index_source": 3, "tail": ("ARG_MAX",)}}
    assert said(ref, np.int32([0]), facts=facts) == ("fail", ("VALUE_MISMATCH",))


# What is no longer kept


def test_outputs_that_are_not_kept_never_pass():
    bench = Bench()
    evidence = bench.evidence(RAMP, RAMP * np.float32(1.0001))
    target = evidence.outcome.result.runs[0].outputs[0].sha256
    reference = evidence.reference.first.runs[0].outputs[0].sha256
    kept = dict(bench.kept)
    del bench.kept[target]
    assert judge_cell(evidence).verdict == "infra"
    bench.kept = kept
    del bench.kept[reference]
    assert judge_cell(evidence).reasons == ("REFERENCE_MISSING",)


def test_metrics_hold_no_nan_and_no_infinity():
    bad = RAMP * np.float32(np.nan)
    for ref, target in ((RAMP, bad), (bad, RAMP), (RAMP, RAMP), (np.zeros_like(RAMP), RAMP)):
        for output in judged(ref, target).outputs:
            assert all(np.isfinite(v) for v in output.metrics.values())
