"""probability and mask: values in [0, 1]. Largest absolute error; never cosine, which is blind on flat masks."""

from __future__ import annotations

from farm.judge.bands import NOISE_MARGIN
from farm.judge.pair import Band, Decision, Limits, Pair, Values, number


class Probability:
    def measure(self, pair: Pair) -> dict[str, float]:
        """Return max_abs over the positions where both are finite; nothing where there are none."""
        return {"max_abs": pair.metrics.max_abs} if pair.metrics.compared else {}

    def decide(self, values: Values, limits: Limits) -> Decision:
        error = values.get("max_abs")
        if error is None:
            return Decision(band="fail", reason="PRECISION_DEGRADATION", message="no element can be compared")
        band: Band = (
            "pass" if error <= limits["pass_max_abs"] else "warn" if error <= limits["fail_max_abs"] else "fail"
        )
        message = f"largest error {number(error)}"
        if band != "pass":
            limit = limits["pass_max_abs" if band == "warn" else "fail_max_abs"]
            message += f" is above {number(limit)}; pass_max_abs: {error * 1.001:.3g} would pass"
        return Decision(band=band, reason="PRECISION_DEGRADATION" if band == "fail" else None, message=message)

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        out = dict(limits)
        if "max_abs" in floor:
            for name in ("pass_max_abs", "fail_max_abs"):
                out[name] = max(out[name], NOISE_MARGIN * floor["max_abs"])
        return out
