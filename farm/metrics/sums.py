"""One chunk of both arrays added to the running totals: a float32 kernel and an exact float64 one."""

from __future__ import annotations

import math

import numpy as np

from farm.metrics.decode import F64, Array, Decoder
from farm.metrics.result import Metrics
from farm.metrics.tail import Tail

CHUNK = 1 << 16
"""Elements: three float32 buffers of it stay in a core's second-level cache (measured best of 2^13 … 2^18)."""
BLOCK = 4096
"""Elements per float32 dot product; short enough to keep its error near 1e-7 and to stay below BLAS's own threading."""
DOT = 8192
FP16_MAX = 65504.0
UNSAFE_SMALL = 1e-12
"""Below this, float32 squares may lose digits (smallest normal 1.2e-38) that count in a sum."""
_ONES = np.ones((BLOCK, 1), np.float32)
_ONES.flags.writeable = False


class Totals:
    """Running sums of one pass; the fields are those of Metrics, scaled by the pass's `scale`."""

    __slots__ = (
        "buffer", "compared", "equal", "flags", "largest", "max_abs", "new_nonfinite", "nonfinite_differ", "ref_inf",
        "ref_max", "ref_min", "ref_nan", "ref_zeros", "saturated", "smallest", "sum_abs", "sum_dd", "sum_r", "sum_rr",
        "sum_rt", "sum_tt", "tgt_inf", "tgt_nan", "tgt_zeros",
    )  # fmt: skip

    def __init__(self, n: int) -> None:
        size = min(-(-n // BLOCK) * BLOCK, CHUNK)
        self.compared = self.equal = self.ref_zeros = self.tgt_zeros = self.saturated = 0
        self.ref_nan = self.ref_inf = self.tgt_nan = self.tgt_inf = self.new_nonfinite = self.nonfinite_differ = 0
        self.sum_r = self.sum_rr = self.sum_tt = self.sum_rt = self.sum_dd = self.sum_abs = 0.0
        self.max_abs = self.largest = 0.0
        self.ref_min, self.ref_max = math.inf, -math.inf
        self.buffer = np.empty(size, np.float32)
        self.flags = np.empty(size, np.bool_)

    def unscaled(self) -> bool:
        """Tell whether float64 sums overflowed or vanished, so that the pass must be run again on scaled values."""
        finite = math.isfinite(self.sum_rr + self.sum_tt + self.sum_dd + self.sum_abs + abs(self.sum_r))
        return self.largest > 0.0 and math.isfinite(self.largest) and (not finite or self.largest < 1e-150)

    def metrics(self, n: int, p99: float, scale: float) -> Metrics:
        """Close the pass. Sums stay in its unit, since undoing the scale would throw them out of float64 again."""
        unit = 1.0 / scale
        some = self.compared > 0
        return Metrics(
            n, self.compared, self.ref_nan, self.ref_inf, self.tgt_nan, self.tgt_inf, self.new_nonfinite,
            self.nonfinite_differ, self.equal, self.ref_zeros, self.tgt_zeros, self.saturated,
            self.sum_r, self.sum_rr, self.sum_tt, self.sum_rt, self.sum_dd, self.sum_abs,
            self.max_abs * unit, p99 * unit,
            self.ref_min * unit if some else 0.0, self.ref_max * unit if some else 0.0, None, unit,
        )  # fmt: skip


def add_float32(totals: Totals, tail: Tail, ref: Array, tgt: Array, start: int) -> bool:
    """Add a chunk of float32 pairs; False (and nothing added) where it must be added exactly instead."""
    n = ref.size
    k = -(-n // BLOCK)
    padded = k * BLOCK
    low, high = float(np.minimum.reduce(ref)), float(np.maximum.reduce(ref))
    if not -FP16_MAX <= low <= high <= FP16_MAX or max(high, -low) < UNSAFE_SMALL:
        return False  # NaN ends here too
    whole_diff = totals.buffer[:padded]
    diff, flags = whole_diff[:n], totals.flags[:n]
    if padded != n:
        # Zeros added to both sides change no sum; lengths and counts below use the real n.
        ref, tgt = _padded(ref, padded), _padded(tgt, padded)
    np.subtract(ref, tgt, out=whole_diff)
    row, column = (k, 1, BLOCK), (k, BLOCK, 1)
    r_row, t_col = ref.reshape(row), tgt.reshape(column)
    d_row = whole_diff.reshape(row)
    blocks = np.empty((6, k, 1, 1), np.float32)
    np.matmul(r_row, ref.reshape(column), out=blocks[0])
    np.matmul(tgt.reshape(row), t_col, out=blocks[1])
    np.matmul(d_row, whole_diff.reshape(column), out=blocks[2])
    np.matmul(r_row, t_col, out=blocks[3])
    np.matmul(r_row, _ONES, out=blocks[4])
    np.absolute(whole_diff, out=whole_diff)
    np.matmul(d_row, _ONES, out=blocks[5])
    sums = [float(v) for v in blocks.reshape(6, k).sum(axis=1, dtype=np.float64)]
    sum_rr, sum_tt, sum_dd, sum_rt, sum_r, sum_abs = sums
    if not math.isfinite(sum_tt + sum_dd):
        return False  # NaN or Inf in the target, or a square beyond float32
    top = float(np.maximum.reduce(diff))
    np.equal(tgt[:n], 0, out=flags)
    tgt_zeros = int(np.count_nonzero(flags))
    if 0.0 < top < UNSAFE_SMALL or (tgt_zeros < n and sum_tt < UNSAFE_SMALL**2):
        return False
    if low <= 0.0 <= high:
        np.equal(ref[:n], 0, out=flags)
        totals.ref_zeros += int(np.count_nonzero(flags))
    totals.compared += n
    # |d| has no negative zero, so its bits are zero exactly where the values are equal.
    totals.equal += n - int(np.count_nonzero(diff.view(np.uint32)))
    totals.tgt_zeros += tgt_zeros
    totals.sum_r += sum_r
    totals.sum_rr += sum_rr
    totals.sum_tt += sum_tt
    totals.sum_rt += sum_rt
    totals.sum_dd += sum_dd
    totals.sum_abs += sum_abs
    totals.max_abs = max(totals.max_abs, top)
    totals.largest = max(totals.largest, high, -low, top)
    totals.ref_min, totals.ref_max = min(totals.ref_min, low), max(totals.ref_max, high)
    tail.add(diff, start)
    return True


def _padded(values: Array, size: int) -> Array:
    out = np.zeros(size, np.float32)
    out[: values.size] = values
    return out


def add_exact(
    totals: Totals, tail: Tail, ref: Array, tgt: Array, start: int, decoder: Decoder, scale: float = 1.0
) -> None:
    """Add a chunk in float64, counting and then leaving out positions where either side is NaN or infinite."""
    r, t = decoder.values(ref), decoder.values(tgt)
    same = ref == tgt if not decoder.bfloat16 else r == t
    totals.equal += int(np.count_nonzero(same))
    totals.ref_zeros += int(np.count_nonzero(r == 0))
    totals.tgt_zeros += int(np.count_nonzero(t == 0))
    finite_r, finite_t = np.isfinite(r), np.isfinite(t)
    keep = finite_r & finite_t
    if not keep.all():
        _count_nonfinite(totals, r, t, finite_r, finite_t, same)
        wide_ref, wide_tgt = ref[keep], tgt[keep]
        r, t = r[keep], t[keep]
    else:
        wide_ref, wide_tgt = ref, tgt
    n = r.size
    totals.compared += n
    if n == 0:
        return
    totals.largest = max(totals.largest, float(np.max(np.abs(r))), float(np.max(np.abs(t))))
    totals.saturated += int(np.count_nonzero((np.abs(t) == FP16_MAX) & (np.abs(r) > FP16_MAX)))
    if scale != 1.0:
        r *= scale
        t *= scale
    d = _difference(r, t, wide_ref, wide_tgt, decoder)
    totals.sum_r += float(r.sum())
    totals.sum_rr += _dot(r, r)
    totals.sum_tt += _dot(t, t)
    totals.sum_rt += _dot(r, t)
    totals.sum_dd += _dot(d, d)
    np.absolute(d, out=d)
    totals.sum_abs += float(d.sum())
    totals.max_abs = max(totals.max_abs, float(d.max()))
    totals.ref_min, totals.ref_max = min(totals.ref_min, float(r.min())), max(totals.ref_max, float(r.max()))
    tail.add(d, start)


def _count_nonfinite(totals: Totals, r: F64, t: F64, finite_r: Array, finite_t: Array, same: Array) -> None:
    nan_r, nan_t = np.isnan(r), np.isnan(t)
    totals.ref_nan += int(np.count_nonzero(nan_r))
    totals.tgt_nan += int(np.count_nonzero(nan_t))
    totals.ref_inf += int(np.count_nonzero(np.isinf(r)))
    totals.tgt_inf += int(np.count_nonzero(np.isinf(t)))
    totals.new_nonfinite += int(np.count_nonzero(finite_r & ~finite_t))
    totals.nonfinite_differ += int(np.count_nonzero(~finite_r & ~(same | (nan_r & nan_t))))


def _dot(a: F64, b: F64) -> float:
    """Dot product in pieces that stay below the length from which BLAS wakes its own threads (10,000)."""
    if a.size <= DOT:
        return float(a.dot(b))
    whole = a.size - a.size % DOT
    pieces = np.matmul(a[:whole].reshape(-1, 1, DOT), b[:whole].reshape(-1, DOT, 1))
    return float(pieces.sum()) + float(a[whole:].dot(b[whole:]))


def _difference(r: F64, t: F64, ref: Array, tgt: Array, decoder: Decoder) -> F64:
    """r − t; for 64-bit integers exact where the difference fits, since float64 rounds them beyond 2^53."""
    d: F64 = r - t
    if ref.dtype.kind in "iu" and ref.dtype.itemsize == 8:
        wrapped = (ref.view(np.int64) - tgt.view(np.int64)).astype(np.float64) * decoder.scale
        d = np.where(np.abs(d) < 2.0**52, wrapped, d)
    return d
