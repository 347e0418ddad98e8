"""Every limit the judge uses, with its source: the one place to look up, argue about and override.

A band is a pass limit and a fail limit; between them lies `warn`. Names: `pass_X` is what passes, `fail_X` the last
value that still warns. Overrides (spec `bands:`, profile) go by kind or by output name; `values` reaches both of its
classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RULES = "docs/judging.md, kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    value: float
    source: str


def _limit(value: float, source: str = RULES) -> Limit:
    return Limit(value=value, source=source)


FP16_SMALLEST_NORMAL = 2.0**-14
"""Below it a GPU may flush FP16 values to zero (IEEE 754 binary16; OpenCL embedded profile, OpenCL-CTS #540)."""
MAX_SHARED_NONFINITE = 0.01
"""Share of equal ±inf in both that is taken for mask constants (docs/judging.md, order of checks 2)."""
UNIT_NORM_TOLERANCE = 0.01
"""How near 1 every row's norm must be to be taken for an embedding (docs/judging.md, kinds)."""
SMALL_OUTPUT = 8
"""Fewer elements: no cosine, largest difference over largest value instead (docs/judging.md, kinds)."""
NOISE_MARGIN_DB = 6.0
"""How far below the noise floor limits are loosened (docs/judging.md, reference)."""
NOISE_MARGIN = 2.0
"""The same margin as a factor on amplitudes."""
MAX_RECOMPUTED_REDUCTION = 1 << 24
"""Beyond this many summed elements float32 cannot even count (2^24 + 1 = 2^24): no reference (docs/judging.md)."""
LOGITS_CLASSES = 1000
"""Scores over at least so many classes are logits (docs/judging.md, kinds)."""

BANDS: dict[str, dict[str, Limit]] = {
    "values-fp32": {
        "pass_snr_db": _limit(80, "docs/judging.md; healthy FP32 GPU outputs were 102–144 dB"),
        "fail_snr_db": _limit(50),
    },
    "values-fp16": {
        "pass_snr_db": _limit(35, "docs/judging.md; healthy FP16 outputs were 44–69 dB"),
        "fail_snr_db": _limit(20),
        "fail_cosine": _limit(0.99, "docs/judging.md; litert-precision-guard's limit"),
    },
    "embedding": {
        "pass_cosine": _limit(0.999),
        "fail_cosine": _limit(0.99),
        "pass_norm_off": _limit(0.005),
        "fail_norm_off": _limit(0.02),
    },
    "distribution": {
        "pass_top1": _limit(0.99, "docs/judging.md; ai-edge-quantizer's guidance"),
        "fail_top1": _limit(0.95),
        "pass_kl": _limit(0.01),
        "fail_kl": _limit(0.1),
    },
    "classification": {
        "pass_max_abs": _limit(0.05),
        "near_tie_margin": _limit(
            0.01, "the pass limit of probabilities: a smaller margin is not decided by either side"
        ),
    },
    "probability": {"pass_max_abs": _limit(0.01), "fail_max_abs": _limit(0.05)},
    "mask": {"pass_max_abs": _limit(0.01), "fail_max_abs": _limit(0.05)},
    "quantised": {"pass_steps": _limit(1), "fail_steps": _limit(2), "fail_share_above": _limit(0.001)},
    "ints": {"pass_equal_share": _limit(1.0), "fail_equal_share": _limit(0.999)},
    "bools": {"pass_equal_share": _limit(1.0), "fail_equal_share": _limit(0.999)},
    "indices": {"pass_equal_share": _limit(1.0), "fail_equal_share": _limit(0.999)},
}
SCALE_COSINE = 0.99
SCALE_NORM_OFF = 0.02
"""SCALE_ERROR: the direction is right (cosine ≥ 0.99), the length is off by more than 2 % (docs/judging.md, kinds)."""

KINDS = ("values", "embedding", "distribution", "classification", "probability", "mask", "quantised", "ints", "bools",
         "indices")  # fmt: skip


def limits_for(
    kind: str, *, low_precision: bool, output: str, overrides: tuple[Mapping[str, Mapping[str, float]], ...] = ()
) -> dict[str, float]:
    """Return limit name → value for one output.

    overrides are applied in order, later ones win; in each, the kind's entry first, then the output's own.
    Names a kind does not have are left out (the door that read them has checked their spelling).
    """
    row = ("values-fp16" if low_precision else "values-fp32") if kind == "values" else kind
    limits = {name: limit.value for name, limit in BANDS[row].items()}
    for source in overrides:
        for key in (kind, row, output):
            limits.update({name: float(v) for name, v in source.get(key, {}).items() if name in limits})
    return limits


def sources_for(kind: str, *, low_precision: bool) -> dict[str, str]:
    """Return limit name → where the shipped value comes from."""
    row = ("values-fp16" if low_precision else "values-fp32") if kind == "values" else kind
    return {name: limit.source for name, limit in BANDS[row].items()}
