"""Two arrays in, Metrics out, in one pass over chunks: the judge's only look at large tensors.

Float32 pairs take a path that sums float32 products over short blocks (at most 4,096 elements) and adds the block sums
in float64: about six times as fast as converting first, with relative errors near 1e-8 in the totals. Everything else,
and any chunk where float32 products could overflow or vanish, is computed in float64 throughout.

Memory: a few buffers of one chunk (65,536 elements), whatever the size of the arrays. One thread: on two cores a second
one gained nothing (numpy's short calls wait for each other), and sums in a fixed order give the same bits every time.
"""

from __future__ import annotations

import math

import numpy as np

from farm.metrics.decode import F64, PLAIN, Array, Decoder, is_plain
from farm.metrics.result import Metrics
from farm.metrics.sums import CHUNK, FP16_MAX, UNSAFE_SMALL, Totals, add_exact, add_float32
from farm.metrics.tail import Tail

_ONES = np.ones(1 << 14, np.float32)
_ONES.flags.writeable = False

SMALL = 1024
"""Up to here one float64 pass without chunking is fastest."""
MEDIUM = 16384
"""Up to here float32 pairs are summed in at most two dot products each, without buffers."""
DOT = 8192
"""Longest single float32 dot product; BLAS wakes its own threads above 10,000 elements, which costs milliseconds."""


def compare(reference: Array, target: Array, *, decoder: Decoder = PLAIN) -> Metrics:
    """Compare two arrays of the same shape and dtype, element by element.

    Any real numpy dtype, any rank, empty included. p99 is exact up to 65,536 elements; above that it comes from a
    logarithmic histogram (bins 0.8 % wide, upper edge reported), up to 1 Mi elements of all of them and beyond of every
    k-th, k prime and n / k at most 1 Mi.

    Raises ValueError if shapes or dtypes differ: that is the caller's check number one.
    """
    if reference.shape != target.shape or reference.dtype != target.dtype:
        raise ValueError(f"cannot compare {reference.dtype}{reference.shape} with {target.dtype}{target.shape}")
    ref, tgt = reference.reshape(-1), target.reshape(-1)
    with np.errstate(all="ignore"):
        found = None
        if ref.size <= SMALL:
            found = _small(ref, tgt, decoder)
        elif ref.size <= MEDIUM and _float32(ref, decoder):
            found = _medium(ref, tgt)
        if found is None:
            found = _chunked(ref, tgt, decoder)
        return found if not _needs_centring(found) else _centred(found, ref, tgt, decoder)


def _small(ref: Array, tgt: Array, decoder: Decoder) -> Metrics | None:
    """Whole-array float64 computation; None where NaN, Inf, huge or wide integer values need the careful path."""
    n = ref.size
    if n == 0 or ref.dtype.itemsize == 8 or not is_plain(decoder):
        return None
    r, t = ref.astype(np.float64), tgt.astype(np.float64)
    d = r - t
    sum_rr, sum_tt, sum_dd = float(r.dot(r)), float(t.dot(t)), float(d.dot(d))
    if not (math.isfinite(sum_rr) and math.isfinite(sum_tt)):
        return None
    low, high = float(np.minimum.reduce(ref)), float(np.maximum.reduce(ref))
    if high > FP16_MAX or low < -FP16_MAX:
        return None
    np.absolute(d, out=d)
    equal = n - int(np.count_nonzero(d.view(np.uint64)))
    total_abs = float(np.add.reduce(d))
    rank = math.ceil(0.99 * n) - 1
    if rank == n - 1:
        top = p99 = float(np.maximum.reduce(d))
    else:
        d.partition(rank)
        p99 = float(d[rank])
        top = float(np.maximum.reduce(d[rank:]))
    return Metrics(
        n, n, 0, 0, 0, 0, 0, 0, equal, int(np.count_nonzero(r == 0)), int(np.count_nonzero(t == 0)), 0,
        float(np.add.reduce(r)), sum_rr, sum_tt, float(r.dot(t)), sum_dd, total_abs, top, p99, low, high,
    )  # fmt: skip


def _medium(ref: Array, tgt: Array) -> Metrics | None:
    """Float32 pairs of 1,025 to 16,384 elements; None where float32 sums would not do."""
    n = ref.size
    low, high = float(np.minimum.reduce(ref)), float(np.maximum.reduce(ref))
    if not -FP16_MAX <= low <= high <= FP16_MAX or max(high, -low) < UNSAFE_SMALL:
        return None  # NaN ends here too
    d = ref - tgt
    sum_dd, sum_tt = _dot32(d, d), _dot32(tgt, tgt)
    if not math.isfinite(sum_dd + sum_tt):
        return None
    np.absolute(d, out=d)
    total_abs = _dot32(d, _ONES)
    equal = n - int(np.count_nonzero(d.view(np.uint32)))
    rank = math.ceil(0.99 * n) - 1
    d.partition(rank)
    p99, top = float(d[rank]), float(np.maximum.reduce(d[rank:]))
    tgt_zeros = int(np.count_nonzero(tgt == 0))
    if 0.0 < top < UNSAFE_SMALL or (tgt_zeros < n and sum_tt < UNSAFE_SMALL**2):
        return None
    ref_zeros = int(np.count_nonzero(ref == 0)) if low <= 0.0 <= high else 0
    return Metrics(
        n, n, 0, 0, 0, 0, 0, 0, equal, ref_zeros, tgt_zeros, 0,
        _dot32(ref, _ONES), _dot32(ref, ref), sum_tt, _dot32(ref, tgt), sum_dd, total_abs, top, p99, low, high,
    )  # fmt: skip


def _dot32(a: Array, b: Array) -> float:
    if a.size <= DOT:
        return float(a.dot(b[: a.size]))
    return float(a[:DOT].dot(b[:DOT])) + float(a[DOT:].dot(b[DOT : a.size]))


def _float32(ref: Array, decoder: Decoder) -> bool:
    return ref.dtype == np.float32 and ref.dtype.isnative and is_plain(decoder)


def _chunked(ref: Array, tgt: Array, decoder: Decoder) -> Metrics:
    scale = 1.0
    totals, tail = _one_pass(ref, tgt, decoder, scale)
    if totals.unscaled():
        # float64 values near the ends of the range: their squares leave it. A power of two brings them back exactly.
        scale = 2.0 ** -math.frexp(totals.largest)[1]
        totals, tail = _one_pass(ref, tgt, decoder, scale)
    return totals.metrics(ref.size, tail.quantile(totals.max_abs), scale)


def _one_pass(ref: Array, tgt: Array, decoder: Decoder, scale: float) -> tuple[Totals, Tail]:
    totals, tail = Totals(ref.size), Tail(ref.size)
    fast = _float32(ref, decoder) and scale == 1.0
    for start in range(0, ref.size, CHUNK):
        r, t = ref[start : start + CHUNK], tgt[start : start + CHUNK]
        if not (fast and add_float32(totals, tail, r, t, start)):
            add_exact(totals, tail, r, t, start, decoder, scale)
    return totals, tail


def _needs_centring(found: Metrics) -> bool:
    if found.compared < 8:
        return False
    mean = found.sum_r / found.compared
    variance = max(0.0, found.sum_rr / found.compared - mean * mean)
    return mean * mean > 9.0 * variance


def _centred(found: Metrics, ref: Array, tgt: Array, decoder: Decoder) -> Metrics:
    """Add the centred cosine: a second look, taken only where a large mean hides the differences from the plain one."""
    mean_r = found.sum_r / found.compared * found.unit
    sums = np.zeros(4)  # Σ(t − mean_r), Σ(r − mean_r)², Σ(t − mean_r)², Σ(r − mean_r)(t − mean_r)
    scale = 2.0 ** -math.frexp(max(found.ref_max_abs, found.tgt_norm, 1e-300))[1]
    sum_r = 0.0
    for start in range(0, ref.size, CHUNK):
        r, t = decoder.values(ref[start : start + CHUNK]), decoder.values(tgt[start : start + CHUNK])
        keep = np.isfinite(r) & np.isfinite(t)
        x: F64 = (r[keep] - mean_r) * scale
        y: F64 = (t[keep] - mean_r) * scale
        sum_r += float(x.sum())
        sums += (y.sum(), x.dot(x), y.dot(y), x.dot(y))
    n = found.compared
    var_r, var_t = sums[1] - sum_r * sum_r / n, sums[2] - sums[0] ** 2 / n
    # A spread at the level of float64 rounding of the mean itself is no spread.
    tiny = n * (mean_r * scale * 1e-14) ** 2
    if not (var_r > tiny and var_t > tiny):
        return found
    value = (sums[3] - sum_r * sums[0] / n) / math.sqrt(var_r) / math.sqrt(var_t)
    if not math.isfinite(value):
        return found
    return found.with_centred(float(min(1.0, max(-1.0, value))))
