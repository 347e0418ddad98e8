"""distribution: logits over a vocabulary at many positions. Top-1 agreement and KL per position.

With a handful of positions one flip between equal candidates is a large share: such near ties warn where KL says that
nothing else moved.
"""

from __future__ import annotations

from farm.judge.bands import BANDS, NOISE_MARGIN
from farm.judge.pair import Band, Decision, Limits, Pair, Values, number
from farm.metrics.ranking import kl_per_position, top_one
from farm.metrics.rows import row_agreement


class Distribution:
    def measure(self, pair: Pair) -> dict[str, float]:
        """Return top1, kl (nats per position), last_cosine (the last position's, for the record) and top1_or_tie.

        top1_or_tie: share with the same best class, or one less likely by no more than the position's own error.
        """
        if pair.ref.size == 0 or pair.ref.ndim == 0:
            return {}
        error = BANDS["classification"]["pass_max_abs"].value
        first = top_one(pair.ref, pair.tgt, near_tie_margin=0.0, near_tie_error=error, decoder=pair.decoder)
        kl = kl_per_position(pair.ref, pair.tgt, decoder=pair.decoder)
        last = row_agreement(pair.ref, pair.tgt, decoder=pair.decoder).last_cosine
        found = {"top1": first.agree / first.positions, "kl": kl, "last_cosine": last}
        if first.near_ties:
            found["top1_or_tie"] = (first.agree + first.near_ties) / first.positions
        return {name: value for name, value in found.items() if value is not None}

    def decide(self, values: Values, limits: Limits) -> Decision:
        top1, kl = values.get("top1"), values.get("kl")
        if top1 is None or kl is None:
            return Decision(band="fail", reason="PRECISION_DEGRADATION", message="no position can be compared")
        tied = values.get("top1_or_tie", 0.0) >= limits["pass_top1"] and kl <= limits["pass_kl"]
        band: Band = "fail"
        if top1 >= limits["pass_top1"] and kl <= limits["pass_kl"]:
            band = "pass"
        elif tied or (top1 >= limits["fail_top1"] and kl <= limits["fail_kl"]):
            band = "warn"
        message = f"top-1 agreement {number(top1)}, KL {number(kl)} nats per position"
        if band != "pass":
            step = "pass" if band == "warn" else "fail"
            message += (
                f" (limits {number(limits[step + '_top1'])} and {number(limits[step + '_kl'])}); "
                f"pass_top1: {top1 - 5e-7:.6f} with pass_kl: {kl * 1.001 + 1e-9:.4g} would pass"
            )
        return Decision(band=band, reason="PRECISION_DEGRADATION" if band == "fail" else None, message=message)

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        """KL grows with the square of a small error, so 6 dB are a factor of 4; lost agreement is doubled."""
        out = dict(limits)
        for name in ("pass_top1", "fail_top1"):
            if "top1" in floor:
                out[name] = min(out[name], 1.0 - NOISE_MARGIN * (1.0 - floor["top1"]))
        for name in ("pass_kl", "fail_kl"):
            if "kl" in floor:
                out[name] = max(out[name], NOISE_MARGIN**2 * floor["kl"])
        return out
