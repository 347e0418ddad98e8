"""The 99th percentile of absolute differences without keeping them: a histogram over the float32 bit pattern."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.metrics.decode import Array

SHIFT = 16
"""Keeps sign, 8 exponent and 7 mantissa bits: bins at most 2^-7 (0.8 %) wide."""
EXACT = 1 << 16
"""Up to this many elements all differences are kept (one chunk) and the percentile is exact."""
SAMPLES = 1 << 20
PRIMES = (1, 2, 3, 5, 7, 11, 13, 17, 23, 31, 61, 127, 251, 509, 1021, 2053, 4099)
"""Steps between samples: prime, so that no channel count or row length shares a factor with them by design."""


class Tail:
    """Collects |difference| values of one pass and tells their 99th percentile."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._exact: list[Array] = []
        self._step = next((p for p in PRIMES if n <= p * SAMPLES), PRIMES[-1])
        self._counts: NDArray[np.int64] = np.zeros(0 if n <= EXACT else 1 << 15, np.int64)
        self._waiting: list[NDArray[Any]] = []
        self._waiting_size = 0

    def add(self, differences: Array, start: int) -> None:
        """Take float32 or float64 |differences| (finite) that begin at element `start` of the whole tensor."""
        if self._n <= EXACT:
            self._exact.append(differences.copy())
            return
        picked = differences[(-start) % self._step :: self._step]
        bits = picked.astype(np.float32).view(np.uint32) >> SHIFT
        self._waiting.append(bits)
        self._waiting_size += bits.size
        if self._waiting_size >= 1 << 18:
            self._count()

    def quantile(self, largest: float) -> float:
        """Upper edge of the bin that holds the 99th percentile, never above `largest`."""
        if self._exact:
            found = np.concatenate(self._exact)
            rank = math.ceil(0.99 * found.size) - 1
            found.partition(rank)
            return float(found[rank])
        if self._n <= EXACT:
            return largest
        self._count()
        total = int(self._counts.sum())
        if total == 0:
            return largest
        bin_ = int(np.searchsorted(np.cumsum(self._counts), math.ceil(0.99 * total)))
        # Bin 0 holds exact zeros and float32 subnormals below 9e-41, which no unit of ours can tell from zero.
        edge = float(np.array([(bin_ + 1) << SHIFT], np.uint32).view(np.float32)[0]) if bin_ else 0.0
        return min(largest, edge) if math.isfinite(edge) else largest

    def _count(self) -> None:
        if self._waiting:
            self._counts += np.bincount(np.concatenate(self._waiting), minlength=1 << 15)[: 1 << 15]
            self._waiting, self._waiting_size = [], 0
