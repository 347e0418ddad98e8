"""Is one layer's tensor bad? Numbers of one comparison in, a word and its reason out. Pure.

"Bad" means beyond the fail limit of the measured precision class: healthy layers of real models lie at 28–70 dB in
FP16 and above 100 dB in FP32, and what small values lose to underflow is sorted out by who suffers from it (locate.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from farm.graph import FP16_MAX
from farm.judge.bands import BANDS, FP16_SMALLEST_NORMAL, SMALL_OUTPUT
from farm.judge.kinds.values import small_snr_db
from farm.metrics import Decoder, Metrics, compare
from farm.tflite import Quantization

MAX_DB = 200.0
"""Shown for "no difference"; also the cap of every figure in plots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One tensor on the device against this host's CPU.

    snr_db: capped at MAX_DB; on tensors of fewer than 8 elements largest difference over largest value, in dB.
    why: one sentence for a bad one, else "". tiny: the CPU's values are too small for FP16's normal numbers.
    """

    bad: bool
    why: str
    snr_db: float | None
    cosine: float | None
    nrmse: float | None
    max_abs: float | None
    ref_max: float
    new_nonfinite: int
    tiny: bool
    mask: bool = False
    """Every NaN or Inf is a −Inf where the CPU has a number below −65504: what an additive mask becomes in FP16."""
    bad_beside_mask: bool = False
    """Bad at the other positions too."""
    error_norm: float = math.inf
    """L2 norm of the difference over the positions where both sides are finite; infinite where some are not."""


def assess(
    golden: np.ndarray,
    seen: np.ndarray,
    *,
    low_precision: bool,
    quantization: Quantization | None = None,
) -> Health:
    """Compare a tensor with the limits of inner layers (outputs.py has those of the model's own outputs)."""
    if golden.shape != seen.shape or golden.dtype != seen.dtype:
        why = f"came as {seen.dtype}{list(seen.shape)} instead of {golden.dtype}{list(golden.shape)}"
        return Health(
            bad=True, why=why, snr_db=None, cosine=None, nrmse=None, max_abs=None, ref_max=0.0, new_nonfinite=0,
            tiny=False,
        )  # fmt: skip
    m = compare(golden, seen, decoder=_decoder(golden, quantization))
    low = low_precision or golden.dtype == np.float16 or quantization is not None
    snr = _snr(m)
    # Of all positions, not only of those where the device is finite too.
    ref_max = _largest(golden, quantization)
    tiny = low_precision and ref_max < FP16_SMALLEST_NORMAL
    why = _why(m, golden, snr, low=low, quantization=quantization)
    mask = bool(m.new_nonfinite) and _is_mask(golden, seen)
    return Health(
        bad=bool(why),
        mask=mask,
        bad_beside_mask=mask
        and snr is not None
        and snr < BANDS["values-fp16" if low else "values-fp32"]["fail_snr_db"].value,
        why=why,
        snr_db=None if snr is None else round(min(snr, MAX_DB), 3),
        cosine=m.cosine,
        nrmse=m.nrmse,
        max_abs=m.max_abs if m.compared else None,
        ref_max=ref_max,
        new_nonfinite=m.new_nonfinite,
        tiny=tiny,
        error_norm=math.inf if m.new_nonfinite else math.sqrt(m.sum_dd),
    )


def _is_mask(golden: np.ndarray, seen: np.ndarray) -> bool:
    new = np.isfinite(golden) & ~np.isfinite(seen)
    return bool(np.all(np.isneginf(seen[new]) & (golden[new] < -FP16_MAX)))


def _largest(golden: np.ndarray, quantization: Quantization | None) -> float:
    if not golden.size:
        return 0.0
    values = _decoder(golden, quantization).values(np.array([golden.min(), golden.max()]))
    if np.isfinite(values).all():
        return float(np.abs(values).max())
    finite = golden[np.isfinite(golden)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _decoder(golden: np.ndarray, quantization: Quantization | None) -> Decoder:
    if quantization is None or len(quantization.scale) != 1 or golden.dtype.kind not in "iu":
        return Decoder()
    return Decoder(scale=quantization.scale[0], zero_point=quantization.zero_point[0])


def _snr(m: Metrics) -> float | None:
    if m.n < SMALL_OUTPUT:
        # The judge's floor for tiny outputs is left out: a mean of 1e-8 that flushed to zero explains what follows.
        return small_snr_db(m.max_abs, m.ref_max_abs, False) if m.compared else None
    value = m.snr_db
    return value if value is None or math.isfinite(value) else None


def _why(m: Metrics, golden: np.ndarray, snr: float | None, *, low: bool, quantization: Quantization | None) -> str:
    if m.n == 0 or m.equal == m.n:
        return ""
    if golden.dtype.kind in "iub" and quantization is None:
        share = m.equal_share or 0.0
        limit = BANDS["ints"]["fail_equal_share"].value
        return f"{share:.2%} of the elements are equal, less than {limit:.1%}" if share < limit else ""
    if m.new_nonfinite:
        return f"{m.new_nonfinite} of {m.n} elements are NaN or Inf"
    if m.saturated:
        return f"{m.saturated} of {m.n} elements stop at 65504"
    band = BANDS["values-fp16" if low else "values-fp32"]
    limit = band["fail_snr_db"].value
    if snr is None:
        return "" if m.compared == 0 else "not zero where the CPU gives zeros only"
    if snr >= limit and not (
        m.n >= SMALL_OUTPUT and "fail_cosine" in band and m.cosine is not None and m.cosine < band["fail_cosine"].value
    ):
        return ""
    if m.tgt_zeros == m.n:
        return f"all zeros where the CPU has up to {m.ref_max_abs:.3g}"
    return f"SNR {snr:.1f} dB is below {limit:g} dB" if snr < limit else f"cosine {m.cosine:.4f} is below 0.99"
