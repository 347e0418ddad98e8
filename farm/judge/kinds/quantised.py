"""quantised: int8, uint8 or int16 with a scale. Differences count in steps of that scale."""

from __future__ import annotations

from farm.judge.bands import SMALL_OUTPUT
from farm.judge.kinds.values import scale_or_precision
from farm.judge.pair import Band, Decision, Limits, Pair, Values, number
from farm.metrics.steps import steps


class Quantised:
    def measure(self, pair: Pair) -> dict[str, float]:
        """Return max_steps, share_above (share further apart than each allowance 1 … 8 by name) and mean_steps."""
        if pair.ref.size == 0:
            return {}
        seen = steps(pair.ref, pair.tgt)
        found = {"max_steps": float(seen.largest), "mean_steps": seen.mean, "share_above_1": seen.above}
        # The allowance moves with the noise floor, which decide() knows only later: a few shares are kept ready.
        for allowance in range(2, min(seen.largest, 16) + 1):
            found[f"share_above_{allowance}"] = steps(pair.ref, pair.tgt, limit=allowance).above
        figures = {"cosine": pair.metrics.cosine, "norm_ratio": pair.metrics.norm_ratio}
        if pair.ref.size >= SMALL_OUTPUT:
            found |= {name: value for name, value in figures.items() if value is not None}
        return found

    def decide(self, values: Values, limits: Limits) -> Decision:
        largest = values.get("max_steps")
        if largest is None:
            return Decision(band="fail", reason="PRECISION_DEGRADATION", message="no element can be compared")
        allowance = int(limits["pass_steps"])
        # Without a stored share (allowances beyond 16) the worst is assumed: every element is further apart.
        share = 0.0 if largest <= allowance else values.get(f"share_above_{allowance}", 1.0)
        band: Band = "fail"
        if largest <= limits["pass_steps"]:
            band = "pass"
        elif largest <= limits["fail_steps"] and share <= limits["fail_share_above"]:
            band = "warn"
        message = f"up to {number(largest)} steps apart"
        if band != "pass":
            message += (
                f", {number(100 * share)} % of elements more than {number(allowance)} "
                f"(limits {number(limits['pass_steps'])} to pass; {number(limits['fail_steps'])} on at most "
                f"{number(100 * limits['fail_share_above'])} % to warn); pass_steps: {number(largest)} would pass"
            )
        return Decision(band=band, reason=scale_or_precision(values) if band == "fail" else None, message=message)

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        """The floor plus one step."""
        out = dict(limits)
        if floor.get("max_steps", 0.0) > 0:
            for name in ("pass_steps", "fail_steps"):
                out[name] = max(out[name], floor["max_steps"] + 1.0)
        return out
