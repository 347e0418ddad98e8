"""ints, bools and indices: equal or not. Indices may swap near ties."""

from __future__ import annotations

from farm.judge.bands import NOISE_MARGIN
from farm.judge.pair import Band, Decision, Limits, Pair, Values, number
from farm.metrics.shares import equal_share, near_tie_swaps, near_ties


class Exact:
    def measure(self, pair: Pair) -> dict[str, float]:
        """Return equal_share and, where the scores of indices are known, tie_share: equal or swapped near ties."""
        share = equal_share(pair.ref, pair.tgt)
        found = {"equal_share": share}
        if pair.scores is not None and share < 1.0:
            found["tie_share"] = share + near_tie_swaps(pair.ref, pair.tgt, *pair.scores) / pair.ref.size
        elif pair.source is not None and share < 1.0:
            scores, other, axis = pair.source
            near = near_ties(pair.ref, pair.tgt, scores, other, axis=axis, low_precision=pair.low_precision)
            found["tie_share"] = share + near / pair.ref.size
        return found

    def decide(self, values: Values, limits: Limits) -> Decision:
        share = values["equal_share"]
        band: Band = "fail"
        if share >= limits["pass_equal_share"]:
            band = "pass"
        elif share >= limits["fail_equal_share"] or values.get("tie_share", 0.0) >= 1.0 - 1e-12:
            band = "warn"
        message = f"{number(100 * share)} % equal"
        if band != "pass":
            least = limits["pass_equal_share" if band == "warn" else "fail_equal_share"]
            message += f", below {number(100 * least)} %; pass_equal_share: {share - 5e-7:.6f} would pass"
        return Decision(band=band, reason="VALUE_MISMATCH" if band == "fail" else None, message=message)

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        out = dict(limits)
        if "equal_share" in floor:
            for name in ("pass_equal_share", "fail_equal_share"):
                out[name] = min(out[name], 1.0 - NOISE_MARGIN * (1.0 - floor["equal_share"]))
        return out
