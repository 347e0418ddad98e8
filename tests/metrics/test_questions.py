"""rows, ranking, steps, shares: one question each, on numbers done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from farm.metrics import Decoder
from farm.metrics.ranking import kl_per_position, top_one
from farm.metrics.rows import dead_rows, row_agreement, unit_rows
from farm.metrics.shares import equal_share, near_tie_swaps, near_ties
from farm.metrics.steps import steps


def dead(ref, tgt, **more):
    options = {"at_least": 2.0**-14, "ref_max": float(np.max(np.abs(ref))), "min_norm": 1e-4} | more
    return dead_rows(ref, tgt, **options)


def test_dead_rows_are_counted_among_rows_that_live():
    ref = np.ones((5, 8), np.float32)
    ref[4] = 0  # no row to lose
    tgt = ref.copy()
    tgt[1] = 0
    assert dead(ref, tgt) == (1, 4)
    assert dead(ref, ref) == (0, 4)


def test_a_faded_row_is_dead_by_its_norm():
    ref = np.ones((2, 8), np.float32)
    tgt = ref.copy()
    tgt[0] = 1e-5  # norm 2.8e-5 < 1e-4
    assert dead(ref, tgt) == (1, 2)


def test_a_zero_row_is_dead_below_min_norm_too():
    ref = np.zeros((2, 8), np.float32)
    ref[:, 0] = 7e-5  # above 2^-14, norm below 1e-4
    tgt = ref.copy()
    tgt[0] = 0
    assert dead(ref, tgt) == (1, 2)


def test_dead_rows_cross_pieces():
    ref = np.ones((3, 1 << 18), np.float32)
    tgt = ref.copy()
    tgt[2] = 0
    assert dead(ref, tgt) == (1, 3)


def test_scalars_and_short_rows_have_no_rows():
    assert dead(np.float32(1), np.float32(0)) == (0, 0)
    assert dead(np.ones((9, 7), np.float32), np.zeros((9, 7), np.float32)) == (0, 0)


def test_row_agreement_keeps_the_worst_and_the_last_row():
    # Row 0: (3,4) vs (4,3): cosine 24/25 = 0.96, same length. Row 1: doubled length.
    seen = row_agreement(np.float32([[3, 4], [1, 0]]), np.float32([[4, 3], [2, 0]]))
    assert (seen.rows, seen.min_cosine, seen.last_cosine) == (2, pytest.approx(0.96), 1.0)
    assert seen.max_norm_off == 1.0


def test_a_row_lost_in_the_target_has_cosine_zero():
    assert row_agreement(np.float32([[3, 4]]), np.float32([[0, 0]])).min_cosine == 0.0
    assert row_agreement(np.float32([[0, 0]]), np.float32([[1, 0]])).min_cosine is None


def test_unit_rows_within_tolerance():
    assert unit_rows(np.float32([[0.6, 0.8], [1, 0]]), tolerance=0.01)
    assert not unit_rows(np.float32([[0.6, 0.8], [1.02, 0]]), tolerance=0.01)
    assert not unit_rows(np.float32([[np.nan, 0.8]]), tolerance=0.01)
    assert not unit_rows(np.zeros((0, 2), np.float32), tolerance=0.01)


def tops(ref, tgt, **more):
    seen = top_one(np.float32(ref), np.float32(tgt), near_tie_margin=0.01, near_tie_error=0.05, **more)
    return seen.positions, seen.agree, seen.near_ties


def test_top_one_counts_rows_that_agree():
    assert tops([[0.7, 0.3], [0.2, 0.8]], [[0.6, 0.4], [0.9, 0.1]]) == (2, 1, 0)


def test_equal_classes_in_the_reference_are_one_answer():
    assert tops([[0.5, 0.5]], [[0.4, 0.6]]) == (1, 1, 0)


def test_logits_are_softmaxed_for_the_error():
    # softmax(2, 0) = 0.8808, softmax(1, 0) = 0.7311: apart by 0.1497.
    seen = top_one(np.float32([[2, 0]]), np.float32([[1, 0]]), near_tie_margin=0.01, near_tie_error=0.05)
    assert seen.max_abs == pytest.approx(0.1497, abs=1e-4)


def test_quantised_scores_are_decoded():
    decoder = Decoder(scale=1 / 256, zero_point=-128)
    seen = top_one(np.int8([[127, -128]]), np.int8([[117, -118]]), near_tie_margin=0, near_tie_error=0, decoder=decoder)
    assert (seen.agree, seen.max_abs) == (1, 10 / 256)


def test_kl_by_hand():
    # p = (1/2, 1/2) from logits (0, 0); q = (3/4, 1/4) from (ln 3, 0).
    # KL = 1/2 ln(2/3) + 1/2 ln 2 = 1/2 ln(4/3) = 0.14384.
    assert kl_per_position(np.array([[0.0, 0.0]]), np.array([[math.log(3), 0.0]])) == pytest.approx(
        0.5 * math.log(4 / 3)
    )
    assert kl_per_position(np.array([[1.0, 2.0]]), np.array([[101.0, 102.0]])) == pytest.approx(0, abs=1e-12)
    assert kl_per_position(np.zeros((0, 3)), np.zeros((0, 3))) is None


def test_classes_masked_on_both_sides_add_nothing_to_kl():
    ref = np.array([[0.0, 0.0, -np.inf]])
    assert kl_per_position(ref, ref) == 0.0


def test_steps_by_hand():
    seen = steps(np.int8([0, -128, 5, 7]), np.int8([1, 127, 5, 9]))
    assert (seen.largest, seen.above, seen.mean) == (255, 0.5, (1 + 255 + 0 + 2) / 4)
    assert steps(np.int8([]), np.int8([])).largest == 0


def test_equal_share_is_exact():
    assert equal_share(np.int64([2**53, 1]), np.int64([2**53 + 1, 1])) == 0.5
    assert equal_share(np.zeros(0, bool), np.zeros(0, bool)) == 1.0


def test_a_swap_of_near_ties_is_told_from_a_wrong_index():
    scores, moved = np.float32([9, 5.001, 5]), np.float32([9, 5.002, 5.001])
    assert near_tie_swaps(np.int32([4, 2, 7]), np.int32([4, 7, 2]), scores, moved) == 2
    assert near_tie_swaps(np.int32([4, 2, 7]), np.int32([7, 2, 4]), scores, moved) == 0
    # 8 is not listed; its score 5.001 is within 2 · 0.001 of the last one's 5.
    assert near_tie_swaps(np.int32([4, 2, 7]), np.int32([4, 2, 8]), scores, moved) == 1
    assert near_tie_swaps(np.int32([4, 2, 7]), np.int32([4, 2, 8]), scores, moved * 2) == 0


SCORES = np.float32([[0.1, 1.0, 0.5, 0.995], [2.0, 0.0, -1.0, 1.0]])


def ties(ref: list[int], tgt: list[int], scores: np.ndarray = SCORES, other: np.ndarray | None = None, **more) -> int:
    return near_ties(np.int32(ref), np.int32(tgt), scores, other, **{"axis": 1, "low_precision": True, **more})


def test_an_index_of_an_almost_equal_score_is_a_near_tie():
    # Row 0: 0.995 lies 0.5 % of the largest score below 1.0; row 1: 1.0 lies half of it below 2.0.
    assert ties([1, 0], [3, 0]) == 1
    assert ties([1, 0], [3, 3]) == 1
    assert ties([1, 0], [1, 0]) == 0


def test_fp32_near_ties_lie_closer_together():
    assert ties([1, 0], [3, 0], low_precision=False) == 0


def test_the_targets_own_error_bounds_a_near_tie():
    assert ties([1, 0], [3, 0], other=SCORES + np.float32([[0, -0.003, 0, 0.003], [0, 0, 0, 0]])) == 1
    assert ties([1, 0], [3, 0], other=SCORES) == 0
    assert ties([1, 0], [3, 0], other=SCORES * np.nan) == 0


def test_integer_scores_may_change_places_at_one_step():
    assert ties([1], [2], np.int8([[0, 101, 100, 99]])) == 1
    assert ties([1], [3], np.int8([[0, 101, 100, 99]])) == 0


def test_near_ties_are_looked_for_along_the_axis_the_indices_count():
    assert ties([1, 0], [3, 0], np.ascontiguousarray(SCORES.T), axis=0) == 1


def test_the_order_of_top_k_indices_may_change_between_near_ties():
    assert ties([1, 3, 2], [3, 1, 2], SCORES[:1]) == 2
    assert ties([1, 3, 2], [3, 2, 1], SCORES[:1]) == 1


def test_indices_outside_or_not_of_these_scores_are_no_near_ties():
    assert ties([1, 0], [4, -1]) == 0
    assert ties([2, 0], [3, 0]) == 0  # the reference's own choice is neither largest nor smallest here


def test_a_small_row_lost_in_noise_is_no_dead_row():
    ref = np.ones((50, 8), np.float32)
    ref[7] = [0.01] + [0] * 7
    tgt = ref + np.float32(0.005) * np.where(np.arange(400).reshape(50, 8) % 2, 1, -1)
    tgt[7] = 0
    lost = dead_rows(ref, tgt, at_least=1e-3, ref_max=1.0, min_norm=1e-4)
    assert lost == (0, 50)
    exact = ref.copy()
    exact[7] = 0
    assert dead_rows(ref, exact, at_least=1e-3, ref_max=1.0, min_norm=1e-4) == (1, 50)
    tgt[8] = 0
    assert dead_rows(ref, tgt, at_least=1e-3, ref_max=1.0, min_norm=1e-4) == (1, 50)


def test_among_many_equal_classes_a_wrong_one_is_no_near_tie():
    ref = np.full((1, 1000), 0.001, np.float32)
    ref[0, 3] = 0.003
    assert tops(ref, np.roll(ref, 1, axis=1)) == (1, 0, 0)  # off by 0.002, two thirds of the best score
    ref[0, 4] = 0.00299
    near = ref.copy()
    near[0, 4] = 0.0031
    assert tops(ref, near) == (1, 0, 1)
