"""embedding: rows compared by direction. The worst row decides, so that one lost row of a batch cannot hide."""

from __future__ import annotations

from farm.judge.bands import NOISE_MARGIN, SCALE_COSINE, SCALE_NORM_OFF
from farm.judge.pair import Band, Decision, Limits, Pair, Values, number
from farm.metrics.rows import row_agreement


class Embedding:
    def measure(self, pair: Pair) -> dict[str, float]:
        """Return min_row_cosine and max_row_norm_off (largest |norm ratio − 1| of a row)."""
        rows = row_agreement(pair.ref, pair.tgt, decoder=pair.decoder)
        found = {"min_row_cosine": rows.min_cosine, "max_row_norm_off": rows.max_norm_off}
        return {name: value for name, value in found.items() if value is not None}

    def decide(self, values: Values, limits: Limits) -> Decision:
        cosine, off = values.get("min_row_cosine"), values.get("max_row_norm_off")
        if cosine is None or off is None:
            return Decision(band="fail", reason="PRECISION_DEGRADATION", message="no row has a direction to compare")
        band: Band = "fail"
        if cosine >= limits["pass_cosine"] and off <= limits["pass_norm_off"]:
            band = "pass"
        elif cosine >= limits["fail_cosine"] and off <= limits["fail_norm_off"]:
            band = "warn"
        message = f"worst row: cosine {number(cosine)}, norm off by {number(100 * off)} %"
        if band != "pass":
            step = "pass" if band == "warn" else "fail"
            message += (
                f" (limits {number(limits[step + '_cosine'])} and {number(100 * limits[step + '_norm_off'])} %); "
                f"pass_cosine: {cosine - 5e-7:.6f} with pass_norm_off: {off + 5e-7:.6f} would pass"
            )
        reason = "SCALE_ERROR" if cosine >= SCALE_COSINE and off > SCALE_NORM_OFF else "PRECISION_DEGRADATION"
        return Decision(band=band, reason=reason if band == "fail" else None, message=message)

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        """6 dB on an error are a factor of 2, and of 4 on 1 − cosine, which grows with the error's square."""
        out = dict(limits)
        if "min_row_cosine" in floor:
            loose = 1.0 - NOISE_MARGIN**2 * (1.0 - floor["min_row_cosine"])
            for name in ("pass_cosine", "fail_cosine"):
                out[name] = min(out[name], loose)
        if "max_row_norm_off" in floor:
            for name in ("pass_norm_off", "fail_norm_off"):
                out[name] = max(out[name], NOISE_MARGIN * floor["max_row_norm_off"])
        return out
