"""values: any float tensor without a better name. SNR in dB; outputs of fewer than 8 elements on the same scale."""

from __future__ import annotations

import math

from farm.judge.bands import FP16_SMALLEST_NORMAL, NOISE_MARGIN_DB, SCALE_COSINE, SCALE_NORM_OFF, SMALL_OUTPUT
from farm.judge.pair import Band, Decision, Limits, Pair, Values, number, worse
from farm.metrics import EXACT_SNR_DB

FP32_SMALLEST_NORMAL = 2.0**-126


class ValuesKind:
    def measure(self, pair: Pair) -> dict[str, float]:
        """Return snr_db, and cosine and norm_ratio for 8 elements or more.

        For fewer, snr_db is −20 log10(max|d| / max(max|ref|, floor)), floor being the smallest normal number of the
        class, and goes by the name small_snr_db too.
        """
        m = pair.metrics
        if pair.ref.size < SMALL_OUTPUT:
            value = small_snr_db(m.max_abs, m.ref_max_abs, pair.low_precision) if m.compared else None
            return {} if value is None else {"snr_db": value, "small_snr_db": value}
        figures = {"snr_db": m.snr_db, "cosine": m.cosine, "norm_ratio": m.norm_ratio}
        return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}

    def decide(self, values: Values, limits: Limits) -> Decision:
        snr = values.get("snr_db")
        if snr is None:
            return Decision(band="fail", reason="PRECISION_DEGRADATION", message="no SNR can be computed")
        band: Band = "pass" if snr >= limits["pass_snr_db"] else "warn" if snr >= limits["fail_snr_db"] else "fail"
        message = f"SNR {number(snr)} dB" if snr < EXACT_SNR_DB else "no difference"
        if band != "pass":
            limit = limits["pass_snr_db" if band == "warn" else "fail_snr_db"]
            message += f" is below {number(limit)} dB; pass_snr_db: {math.floor(snr)} would pass"
        cosine, least = values.get("cosine"), limits.get("fail_cosine")
        if least is not None and cosine is not None and cosine < least:
            band = worse(band, "fail")
            message += f"; cosine {number(cosine)} is below {number(least)}"
        return Decision(band=band, reason=scale_or_precision(values) if band == "fail" else None, message=message)

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        out = dict(limits)
        if "snr_db" in floor:
            for name in ("pass_snr_db", "fail_snr_db"):
                out[name] = min(out[name], floor["snr_db"] - NOISE_MARGIN_DB)
        return out


def small_snr_db(max_abs: float, ref_max_abs: float, low_precision: bool) -> float | None:
    """Map the largest difference over the largest value to dB; None where that is not finite."""
    if max_abs == 0.0:
        return EXACT_SNR_DB
    floor = FP16_SMALLEST_NORMAL if low_precision else FP32_SMALLEST_NORMAL
    ratio = max_abs / max(ref_max_abs, floor)
    return -20.0 * math.log10(ratio) if math.isfinite(ratio) and ratio > 0 else None


def scale_or_precision(values: Values) -> str:
    """Name the reason of a failed band: right direction with a wrong length is another fault than lost digits."""
    cosine, ratio = values.get("cosine"), values.get("norm_ratio")
    wrong_length = ratio is not None and abs(ratio - 1.0) > SCALE_NORM_OFF
    return "SCALE_ERROR" if cosine is not None and cosine >= SCALE_COSINE and wrong_length else "PRECISION_DEGRADATION"
