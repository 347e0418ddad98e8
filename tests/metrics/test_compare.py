"""compare(): hand-computed figures, every dtype and odd size, and a float64 oracle under hypothesis."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from farm.metrics import EXACT_SNR_DB, Decoder, compare

SIZES = (8, 1024, 1025, 4096, 4097, 8192, 8193, 16384, 16385, 65536, 65537, 200_001)
"""On both sides of every path: small, medium, chunks, padded last chunk."""


def test_figures_by_hand():
    # ref = (3, 4), target = (3, 3): d = (0, 1).
    m = compare(np.float32([3, 4]), np.float32([3, 3]))
    assert m.ref_norm == 5.0
    assert m.tgt_norm == pytest.approx(math.sqrt(18))
    assert m.cosine == pytest.approx(21 / (5 * math.sqrt(18)), abs=1e-15)  # (9 + 12) / (5 · 4.2426)
    assert (m.max_abs, m.mean_abs, m.p99_abs) == (1.0, 0.5, 1.0)
    assert m.relative_l2 == 0.2
    assert m.snr_db == pytest.approx(10 * math.log10(25), abs=1e-12)  # 13.979 dB
    assert m.nrmse == pytest.approx(math.sqrt(0.5))  # rmse sqrt(1/2) over range 4 − 3
    assert m.norm_ratio == pytest.approx(math.sqrt(18) / 5)
    assert (m.equal_share, m.zero_share) == (0.5, 0.0)
    assert (m.ref_min, m.ref_max) == (3.0, 4.0)


def test_no_difference_has_the_snr_that_stands_for_exact():
    assert compare(np.float32([1, 2]), np.float32([1, 2])).snr_db == EXACT_SNR_DB


def test_both_zero_defines_no_cosine_and_no_ratio():
    m = compare(np.zeros(9, np.float32), np.zeros(9, np.float32))
    assert m.cosine is m.norm_ratio is m.relative_l2 is m.nrmse is None
    assert m.zero_share == 1.0


def test_a_zero_reference_that_is_missed_has_no_snr():
    assert compare(np.zeros(9, np.float32), np.ones(9, np.float32)).snr_db is None


def test_a_zero_target_has_no_cosine_and_zero_db():
    m = compare(np.ones(9, np.float32), np.zeros(9, np.float32))
    assert m.cosine is None
    assert (m.snr_db, m.norm_ratio, m.zero_share) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("n", [3, 5000, 70_000])
def test_non_finite_values_are_counted_and_left_out(n):
    ref, tgt = np.ones(n, np.float32), np.ones(n, np.float32)
    ref[0], tgt[0] = np.nan, np.nan
    ref[1], tgt[1] = np.inf, -np.inf
    tgt[2] = np.nan
    m = compare(ref, tgt)
    assert (m.ref_nan, m.ref_inf, m.tgt_nan, m.tgt_inf) == (1, 1, 2, 1)
    assert (m.new_nonfinite, m.nonfinite_differ, m.compared) == (1, 1, n - 3)
    assert m.equal == n - 3  # NaN equals nothing


def test_everything_non_finite_defines_nothing_and_equals_nothing():
    m = compare(np.full(5, np.nan, np.float32), np.full(5, np.nan, np.float32))
    assert (m.compared, m.equal_share) == (0, 0.0)
    assert m.cosine is m.snr_db is m.mean_abs is None
    assert all(math.isfinite(v) for v in m.numbers().values())


@pytest.mark.parametrize("n", [16, 5000, 70_000])
def test_saturation_is_65504_where_the_reference_is_beyond(n):
    ref, tgt = np.ones(n, np.float32), np.ones(n, np.float32)
    ref[:4] = (65505, -70000, 65504, 1e6)
    tgt[:4] = (65504, -65504, 65504, 65503)
    assert compare(ref, tgt).saturated == 2


def test_empty_and_zero_dimensional_arrays():
    assert compare(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).n == 0
    m = compare(np.array(2.0, np.float32), np.array(0.2, np.float32))
    assert m.max_abs == pytest.approx(1.8)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"],
)
@pytest.mark.parametrize("n", [1, 9, 5000, 70_000])
def test_every_dtype(dtype, n):
    ref = (np.arange(n) % 2).astype(dtype)
    tgt = ref.copy()
    tgt[-1] = not tgt[-1]
    m = compare(ref, tgt)
    assert (m.equal, m.max_abs, m.sum_dd) == (n - 1, 1.0, 1.0)


def test_64_bit_integers_differ_exactly_beyond_float64():
    ref = np.array([2**53, -(2**62), 2**63 - 1], np.int64)
    m = compare(ref, ref + np.array([1, 1, -1]))
    assert (m.equal, m.max_abs, m.sum_abs) == (0, 1.0, 3.0)
    far = compare(np.array([2**63 - 1], np.int64), np.array([-(2**63)], np.int64))
    assert far.max_abs == 2.0**64
    big = np.array([2**64 - 1], np.uint64)
    assert compare(big, big - np.uint64(1)).max_abs == 1.0


def test_bfloat16_is_the_upper_half_of_float32():
    # 0x3f80 = 1.0, 0x4000 = 2.0, 0x7fc0 = NaN
    m = compare(np.uint16([0x4000, 0x3F80]), np.uint16([0x3F80, 0x7FC0]), decoder=Decoder(bfloat16=True))
    assert (m.ref_max, m.tgt_nan, m.new_nonfinite) == (2.0, 1, 1)


def test_quantised_values_are_scaled_and_shifted():
    # 0.5 · (12 − 10) = 1, 0.5 · (16 − 10) = 3
    m = compare(np.int8([12]), np.int8([16]), decoder=Decoder(scale=0.5, zero_point=10))
    assert (m.sum_rr, m.sum_tt, m.max_abs) == (1.0, 9.0, 2.0)


@pytest.mark.parametrize("size", [1e200, 1e300, 1e-200, 1e-300])
def test_float64_values_whose_squares_leave_float64(size):
    m = compare(np.array([3.0, 4.0]) * size, np.array([3.0, 3.0]) * size)
    assert m.max_abs == pytest.approx(size)
    assert m.cosine == pytest.approx(21 / (5 * math.sqrt(18)))
    assert m.snr_db == pytest.approx(10 * math.log10(25))
    assert m.ref_norm == pytest.approx(5 * size)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("size", [1.0, 1e-20, 1e25, 3e38, 1e-44])
def test_float32_values_whose_squares_leave_float32(n, size):
    ref = np.full(n, size, np.float32)
    tgt = ref.copy()
    tgt[0] = 0
    m = compare(ref, tgt)
    assert m.tgt_zeros == 1
    assert m.norm_ratio == pytest.approx(math.sqrt((n - 1) / n), rel=1e-6)
    assert m.snr_db == pytest.approx(10 * math.log10(n), rel=1e-6)


def test_differing_shapes_or_types_are_refused():
    with pytest.raises(ValueError, match="cannot compare"):
        compare(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match="cannot compare"):
        compare(np.zeros(3), np.zeros(3, np.float32))


def test_centred_cosine_by_hand():
    # Deviations of ref: (−1, 0, 1, …) repeated; of target: the same turned round. Centred cosine −1, plain nearly 1.
    wave = np.tile(np.float32([-1, 0, 1]), 40)
    m = compare(100 + wave, 100 - wave)
    assert m.centred_cosine == pytest.approx(-1.0, abs=1e-9)
    assert m.cosine > 0.999
    assert compare(wave, wave).centred_cosine is None  # no large mean
    assert compare(np.full(9, 7, np.float32), np.full(9, 7, np.float32)).centred_cosine is None  # no spread


def test_p99_is_exact_up_to_a_chunk_and_within_a_bin_above():
    for n, rel in ((100, 0), (1000, 0), (10_000, 0), (65_536, 0), (100_000, 0.008), (1 << 21, 0.02)):
        d = np.random.default_rng(0).exponential(size=n).astype(np.float32)
        m = compare(np.zeros(n, np.float32) + 5, d + 5)
        exact = float(np.sort(np.abs(np.float32(5) - (d + np.float32(5))))[math.ceil(0.99 * n) - 1])
        assert m.p99_abs == pytest.approx(exact, rel=rel + 1e-6), n


def test_the_same_arrays_give_the_same_bits():
    rng = np.random.default_rng(0)
    ref, tgt = rng.standard_normal((2, 300_000)).astype(np.float32)
    assert compare(ref, tgt) == compare(ref.copy(), tgt.copy())


def test_memory_stays_within_a_few_chunks():
    ref = np.zeros(1 << 24, np.float32)  # 64 MiB each
    ref[::3] = 1
    tgt = ref + np.float32(0.5)
    for decoder in (Decoder(), Decoder(scale=2.0)):
        tracemalloc.start()
        compare(ref, tgt, decoder=decoder)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10 << 20


def _oracle(ref, tgt):
    r, t = ref.astype(np.longdouble).ravel(), tgt.astype(np.longdouble).ravel()
    keep = np.isfinite(r) & np.isfinite(t)
    new = int((np.isfinite(r) & ~np.isfinite(t)).sum())
    r, t = r[keep], t[keep]
    return r, t, r - t, new


finite = st.floats(-1e6, 1e6, width=32)
odd = st.sampled_from([0.0, -0.0, 1e-40, 1e-30, 3e38, -3e38, 65504.0, 70000.0, math.inf, -math.inf, math.nan])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_float32_agrees_with_a_wider_oracle(data):
    n = data.draw(st.integers(0, 60))
    repeat = data.draw(st.sampled_from([1, 1, 30, 200, 2000]))
    draw = lambda: np.tile(data.draw(arrays(np.float32, n, elements=finite | odd)), repeat)  # noqa: E731
    ref, tgt = draw(), draw()
    with np.errstate(all="ignore"):
        _agrees(compare(ref, tgt), ref, tgt)


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int32"])
def test_other_types_agree_with_a_wider_oracle(dtype, data):
    elements = st.floats(-1e4, 1e4, width=16) if dtype.startswith("float") else st.integers(-128, 127)
    n = data.draw(st.integers(0, 60))
    repeat = data.draw(st.sampled_from([1, 100]))
    ref = np.tile(data.draw(arrays(dtype, n, elements=elements)), repeat)
    tgt = np.tile(data.draw(arrays(dtype, n, elements=elements)), repeat)
    _agrees(compare(ref, tgt), ref, tgt)


def _agrees(m, ref, tgt):
    r, t, d, new = _oracle(ref, tgt)
    assert m.new_nonfinite == new
    assert m.compared == r.size
    assert m.equal == int((ref == tgt).sum())
    assert m.tgt_zeros == int((tgt == 0).sum())
    assert m.ref_zeros == int((ref == 0).sum())
    close = lambda x: pytest.approx(float(x), rel=3e-6, abs=1e-300)  # noqa: E731
    assert m.sum_rr == close((r * r).sum())
    assert m.sum_tt == close((t * t).sum())
    assert m.sum_dd == close((d * d).sum())
    assert m.sum_abs == close(np.abs(d).sum())
    assert m.sum_rt == pytest.approx(float((r * t).sum()), abs=3e-6 * float(np.abs(r * t).sum()) + 1e-300)
    assert m.max_abs == close(np.abs(d).max(initial=0))
    if r.size:
        assert (m.ref_min, m.ref_max) == (float(r.min()), float(r.max()))
    lengths = float(np.sqrt((r * r).sum()) * np.sqrt((t * t).sum()))
    if lengths > 1e-30:
        assert m.cosine == pytest.approx(float((r * t).sum()) / lengths, abs=3e-6)
    assert all(math.isfinite(v) for v in m.numbers().values())


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("snr", [20, 80, 140])
def test_snr_and_cosine_hold_their_digits_on_every_path(n, snr):
    rng = np.random.default_rng(n)
    ref = rng.standard_normal(n).astype(np.float32)
    tgt = (ref + rng.standard_normal(n) * 10 ** (-snr / 20)).astype(np.float32)
    m = compare(ref, tgt)
    r, t, d, _ = _oracle(ref, tgt)
    assert m.snr_db == pytest.approx(float(10 * np.log10((r * r).sum() / (d * d).sum())), abs=1e-4)
    lost = 1 - float((r * t).sum() / np.sqrt((r * r).sum() * (t * t).sum()))
    assert 1 - m.cosine == pytest.approx(lost, rel=1e-4, abs=2e-14)
