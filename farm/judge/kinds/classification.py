"""classification: class probabilities of one or a few rows. The best class must stay, near ties apart."""

from __future__ import annotations

from farm.judge.bands import BANDS, NOISE_MARGIN
from farm.judge.pair import Decision, Limits, Pair, Values, number
from farm.metrics.ranking import top_one


class Classification:
    def measure(self, pair: Pair) -> dict[str, float]:
        """Return top1 (share), near_ties and flips (other rows whose best class changed), probability_max_abs."""
        if pair.ref.size == 0 or pair.ref.ndim == 0:
            return {}
        shipped = BANDS["classification"]
        seen = top_one(
            pair.ref,
            pair.tgt,
            near_tie_margin=shipped["near_tie_margin"].value,
            near_tie_error=shipped["pass_max_abs"].value,
            decoder=pair.decoder,
        )
        return {
            "top1": seen.agree / seen.positions,
            "near_ties": float(seen.near_ties),
            "flips": float(seen.positions - seen.agree - seen.near_ties),
            "probability_max_abs": seen.max_abs,
        }

    def decide(self, values: Values, limits: Limits) -> Decision:
        if "top1" not in values:
            return Decision(band="fail", reason="PRECISION_DEGRADATION", message="no row can be compared")
        error = values["probability_max_abs"]
        if values["flips"]:
            return Decision(
                band="fail",
                reason="PRECISION_DEGRADATION",
                message=f"the best class changed in {number(values['flips'])} row(s), probabilities by up to "
                f"{number(error)}; as kind probability, pass_max_abs: {error * 1.001:.3g} would pass",
            )
        if values["near_ties"]:
            return Decision(
                band="warn",
                message=f"the best class changed in {number(values['near_ties'])} row(s) between near ties "
                f"(probabilities differ by up to {number(error)})",
            )
        if error > limits["pass_max_abs"]:
            return Decision(
                band="warn",
                message=f"same best class, but probabilities differ by {number(error)}, more than "
                f"{number(limits['pass_max_abs'])}; pass_max_abs: {error * 1.001:.3g} would pass",
            )
        return Decision(band="pass", message=f"same best class, probabilities within {number(error)}")

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        """A floor with flips is in the fail band by itself, so only the error needs room."""
        out = dict(limits)
        if "probability_max_abs" in floor:
            out["pass_max_abs"] = max(out["pass_max_abs"], NOISE_MARGIN * floor["probability_max_abs"])
        return out
