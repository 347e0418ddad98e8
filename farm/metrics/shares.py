"""Questions about exact tensors (ints, bools, indices): the share that is equal, and swaps between near ties."""

from __future__ import annotations

import numpy as np

from farm.metrics.decode import Array
from farm.metrics.sums import CHUNK


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
