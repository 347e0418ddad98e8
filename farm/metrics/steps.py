"""Questions about quantised tensors: by how many steps, and how often, two of them differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.metrics.decode import Array
from farm.metrics.sums import CHUNK


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """largest: max |difference| in steps. above: share of elements further apart than `limit` steps. mean: in steps."""

    largest: int
    above: float
    mean: float


def steps(ref: Array, tgt: Array, *, limit: float = 1.0) -> Steps:
    """Compare stored integers (up to 32 bits wide) of two tensors with the same scale and zero point."""
    left, right = ref.reshape(-1), tgt.reshape(-1)
    largest = above = total = 0
    for start in range(0, left.size, CHUNK):
        apart = np.abs(left[start : start + CHUNK].astype(np.int64) - right[start : start + CHUNK].astype(np.int64))
        largest = max(largest, int(apart.max()))
        above += int(np.count_nonzero(apart > limit))
        total += int(apart.sum())
    n = max(1, left.size)
    return Steps(largest=largest, above=above / n, mean=total / n)
