"""The numbers of one comparison: sums from one pass over two arrays, everything else derived from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

EXACT_SNR_DB = 999.0
"""Stands for "no difference at all", where the formula gives infinity (JSON has none)."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What `compare` saw. Sums run over the `compared` positions, where both sides are finite.

    n: elements. ref_nan … tgt_inf: counts. new_nonfinite: target NaN/Inf where the reference is finite.
    nonfinite_differ: reference NaN/Inf where the target is not the same (finite, other sign, NaN for Inf).
    equal: positions with the same value (exact in the stored type; NaN equals nothing).
    saturated: |target| = 65504 where the reference is finite and beyond it.
    sum_rr, sum_tt, sum_rt, sum_dd: of ref², target², ref·target, (ref − target)². sum_abs: of |ref − target|.
    unit: what the sums' values were divided by first, a power of two; 1 unless squares would have left float64.
    p99_abs: 99 % of all |ref − target| are at most this (resolution: see compare).
    centred_cosine: cosine after taking both means away; only where |mean ref| > 3 std.
    """

    n: int
    compared: int
    ref_nan: int
    ref_inf: int
    tgt_nan: int
    tgt_inf: int
    new_nonfinite: int
    nonfinite_differ: int
    equal: int
    ref_zeros: int
    tgt_zeros: int
    saturated: int
    sum_r: float
    sum_rr: float
    sum_tt: float
    sum_rt: float
    sum_dd: float
    sum_abs: float
    max_abs: float
    p99_abs: float
    ref_min: float
    ref_max: float
    centred_cosine: float | None = None
    unit: float = 1.0

    def with_centred(self, value: float) -> Metrics:
        return replace(self, centred_cosine=value)

    @property
    def ref_norm(self) -> float:
        return math.sqrt(self.sum_rr) * self.unit

    @property
    def tgt_norm(self) -> float:
        return math.sqrt(self.sum_tt) * self.unit

    @property
    def ref_max_abs(self) -> float:
        """max |ref| over the compared positions; 0 where there are none."""
        return max(self.ref_max, -self.ref_min, 0.0)

    @property
    def cosine(self) -> float | None:
        """Cosine similarity; None where one side has no length."""
        ref, tgt = math.sqrt(self.sum_rr), math.sqrt(self.sum_tt)
        if ref == 0.0 or tgt == 0.0:
            return None
        if 0.5 <= tgt / ref <= 2.0:
            # 1 − cos = (|d|² − (|r| − |t|)²) / (2 |r| |t|): keeps its digits where cos is nearly 1.
            value = 1.0 - (self.sum_dd - (ref - tgt) ** 2) / (2.0 * ref * tgt)
        else:
            value = self.sum_rt / ref / tgt
        return min(1.0, max(-1.0, value))

    @property
    def mean_abs(self) -> float | None:
        return self.sum_abs / self.compared * self.unit if self.compared else None

    @property
    def relative_l2(self) -> float | None:
        """|ref − target| / |ref|."""
        return math.sqrt(self.sum_dd / self.sum_rr) if self.sum_rr > 0.0 else None

    @property
    def snr_db(self) -> float | None:
        """10 log10(Σ ref² / Σ (ref − target)²); EXACT_SNR_DB for no difference; None for a missed zero reference."""
        if not self.compared:
            return None
        if self.sum_dd == 0.0:
            return EXACT_SNR_DB
        if self.sum_rr == 0.0:
            return None
        return 10.0 * (math.log10(self.sum_rr) - math.log10(self.sum_dd))

    @property
    def nrmse(self) -> float | None:
        """Root mean square error over the reference's range (max − min); None for a constant reference."""
        spread = self.ref_max - self.ref_min
        if not self.compared or spread <= 0.0 or not math.isfinite(spread):
            return None
        return math.sqrt(self.sum_dd / self.compared) * (self.unit / spread)

    @property
    def norm_ratio(self) -> float | None:
        """|target| / |ref|."""
        return math.sqrt(self.sum_tt) / math.sqrt(self.sum_rr) if self.sum_rr > 0.0 else None

    @property
    def zero_share(self) -> float | None:
        """Share of the target's elements that are exactly zero."""
        return self.tgt_zeros / self.n if self.n else None

    @property
    def equal_share(self) -> float | None:
        return self.equal / self.n if self.n else None

    def numbers(self) -> dict[str, float]:
        """Return every defined figure by name, as stored beside a verdict."""
        named = {
            "cosine": self.cosine,
            "centred_cosine": self.centred_cosine,
            "max_abs": self.max_abs if self.compared else None,
            "mean_abs": self.mean_abs,
            "p99_abs": self.p99_abs if self.compared else None,
            "relative_l2": self.relative_l2,
            "snr_db": self.snr_db,
            "nrmse": self.nrmse,
            "norm_ratio": self.norm_ratio,
            "ref_norm": self.ref_norm,
            "target_norm": self.tgt_norm,
            "ref_max": self.ref_max if self.compared else None,
            "ref_min": self.ref_min if self.compared else None,
            "ref_nan": self.ref_nan,
            "ref_inf": self.ref_inf,
            "target_nan": self.tgt_nan,
            "target_inf": self.tgt_inf,
            "zero_share": self.zero_share,
            "equal_share": self.equal_share,
            "saturated": self.saturated,
            "elements": self.n,
        }
        return {name: float(value) for name, value in named.items() if value is not None and math.isfinite(value)}
