"""Questions about exact tensors (ints, bools, indices): the share that is equal, and swaps between near ties."""

from __future__ import annotations

import numpy as np

from farm.metrics.decode import Array
from farm.metrics.sums import CHUNK

NEAR_TIE = {True: 1e-2, False: 1e-4}
"""Share of a row's largest score within which two scores may change places, in FP16 (1 %: the pass limit of
probabilities, 40 dB) and in FP32 (80 dB: the pass limit of values)."""


def equal_share(ref: Array, tgt: Array) -> float:
    """Share of equal elements, exact in the stored type; 1.0 for empty tensors. Bools compare by truth, not by byte."""
    left, right = ref.reshape(-1), tgt.reshape(-1)
    if left.size == 0:
        return 1.0
    equal = 0
    for start in range(0, left.size, CHUNK):
        equal += int(np.count_nonzero(left[start : start + CHUNK] == right[start : start + CHUNK]))
    return equal / left.size


def near_tie_swaps(ref: Array, tgt: Array, ref_scores: Array, tgt_scores: Array) -> int:
    """Count wrong indices that only swapped near ties, given the scores the indices were sorted by (TOP_K's values).

    All four have one shape; rows are the last axis. A wrong index is a near tie when the reference lists it elsewhere
    in the same row with a score no further away than twice the largest score error of that row, or does not list it
    but its own score is within that of the row's last (it swapped with one just outside).
    """
    if ref.ndim == 0 or not (ref.shape == tgt.shape == ref_scores.shape == tgt_scores.shape):
        return 0
    columns = ref.shape[-1]
    swaps = 0
    for r, t, rs, ts in zip(
        ref.reshape(-1, columns),
        tgt.reshape(-1, columns),
        ref_scores.reshape(-1, columns).astype(np.float64),
        tgt_scores.reshape(-1, columns).astype(np.float64),
        strict=True,
    ):
        wrong = np.flatnonzero(r != t)
        if wrong.size == 0:
            continue
        error = float(np.max(np.abs(rs - ts)))
        if not np.isfinite(error):
            continue
        listed = {int(index): float(score) for index, score in zip(r, rs, strict=True)}
        for position in wrong:
            score = listed.get(int(t[position]), float(ts[position]))
            edge = float(rs[position]) if int(t[position]) in listed else float(rs[-1])
            # A large error must not excuse itself: a near tie is within 1 % of the row's largest score too.
            near = min(2.0 * error, 0.01 * float(np.max(np.abs(rs))))
            swaps += abs(score - edge) <= near
    return swaps


def near_ties(ref: Array, tgt: Array, scores: Array, other: Array | None, *, axis: int, low_precision: bool) -> int:
    """Count wrong indices whose score lies within a near tie of the right one's.

    scores: the tensor the indices point into, by the reference; other: the same by the target, where it is known, which
    then bounds a near tie by twice the row's largest error. Integer scores may change places at one step. 0 where the
    reference's own indices are not in the order of `scores`: then it is not what they were chosen from.
    """
    rows = np.moveaxis(scores, axis, -1)
    rows = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
    if not rows.size or ref.size % rows.shape[0]:
        return 0
    right, chosen = (a.reshape(rows.shape[0], -1).astype(np.int64) for a in (ref, tgt))
    inside = (chosen >= 0) & (chosen < rows.shape[1])
    if right.min() < 0 or right.max() >= rows.shape[1] or not np.isfinite(rows).all():
        return 0
    best = np.take_along_axis(rows, right, axis=1)
    ends = (best[:, :1] == rows.max(axis=1, keepdims=True)) | (best[:, :1] == rows.min(axis=1, keepdims=True))
    if not ends.all() or (right.shape[1] > 1 and (np.diff(best, axis=1) > 0).any()):
        return 0
    near = NEAR_TIE[low_precision] * np.abs(rows).max(axis=1, keepdims=True)
    if scores.dtype.kind in "iu":
        near = np.ones_like(near)
    elif other is not None and other.shape == scores.shape:
        moved = np.moveaxis(other, axis, -1).reshape(rows.shape).astype(np.float64)
        near = np.minimum(near, 2.0 * np.abs(moved - rows).max(axis=1, keepdims=True))  # NaN: no tie
    apart = np.abs(np.take_along_axis(rows, np.where(inside, chosen, 0), axis=1) - best)
    return int(np.count_nonzero((right != chosen) & inside & (apart <= near)))
