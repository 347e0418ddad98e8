"""Which kind an output is, and why: from the spec, its type, the graph that ends in it, and its reference values.

Precedence, by docs/judging.md: spec > bool/index > classification or probability (quantised ones too, dequantised) >
quantised ints > embedding > distribution > values.
"""

from __future__ import annotations

from collections.abc import Sequence

from farm.graph import OutputFacts
from farm.judge.bands import BANDS, KINDS, SMALL_OUTPUT, UNIT_NORM_TOLERANCE
from farm.metrics import Decoder
from farm.metrics.decode import Array
from farm.metrics.rows import unit_rows

FLOATS = ("float16", "float32", "float64", "bfloat16")
HALVES = ("float16", "bfloat16")
QUANTISED = ("int8", "uint8", "int16")


def infer_kind(
    *,
    dtype: str,
    facts: OutputFacts | None,
    spec_kind: str | None,
    references: Sequence[Array],
    decoder: Decoder,
) -> tuple[str, str]:
    """Return (kind, kind_source). references: the output's reference arrays, one per input set and step."""
    if spec_kind is not None and spec_kind in KINDS:
        return spec_kind, "spec"
    if dtype == "bool":
        return "bools", "stored as bool"
    shape = references[0].shape if references else facts.shape if facts else ()
    is_float, quantised = dtype in FLOATS, dtype in QUANTISED and has_scale(facts)
    if facts is not None and not is_float and not quantised and facts.index_source is not None:
        return "indices", f"indices from {_core(facts)}"
    if facts is not None and (is_float or quantised):
        unit = _unit_kind(facts, shape, faint=_faint(references, decoder))
        if unit is not None:
            return unit
    if quantised:
        return "quantised", f"{dtype} with a scale"
    if not is_float:
        return "ints", f"stored as {dtype}"
    # A row of one or two elements has norm 1 by chance, and cosine would pass anything of its sign.
    long_rows = len(shape) in (1, 2) and shape[-1] >= SMALL_OUTPUT and len(references) > 0
    if long_rows and all(unit_rows(a, tolerance=UNIT_NORM_TOLERANCE, decoder=decoder) for a in references):
        return "embedding", "every reference row has L2 norm 1"
    if facts is not None and facts.logits:
        return "distribution", "logits over 1,000 or more classes at several positions"
    return "values", "default"


def _unit_kind(facts: OutputFacts, shape: tuple[int, ...], *, faint: bool) -> tuple[str, str] | None:
    if facts.activation in ("SOFTMAX", "LOGISTIC"):
        classes = facts.class_axis is not None and 1 <= len(shape) <= 2 and shape[-1] >= 2
        if faint and facts.activation == "LOGISTIC":
            # Nothing is claimed, so there is no best class to keep; 7e-6 flushed to 0 is as harmless in ten labels.
            return "probability", "ends in LOGISTIC, and no class reaches the pass limit of probabilities"
        if faint and not classes:
            # A row of a SOFTMAX sums to 1: with so many small shares an absolute limit would pass any row, zeros too.
            return None
        if classes:
            return "classification", f"ends in {facts.activation} over {shape[-1]} classes"
        return ("mask" if len(shape) >= 3 else "probability"), f"ends in {facts.activation}"
    if facts.clipped_unit or facts.activation == "CLIP":
        return ("mask" if len(shape) >= 3 else "probability"), "clipped to [0, 1]"
    return None


def _faint(references: Sequence[Array], decoder: Decoder) -> bool:
    """Tell whether every value lies within the pass limit of probabilities, where an absolute error says nothing."""
    limit = BANDS["probability"]["pass_max_abs"].value
    values = (decoder.values(a) for a in references if a.size)
    return any(a.size for a in references) and all(float(v.max()) <= limit for v in values)


def _core(facts: OutputFacts) -> str:
    return next((op for op in facts.tail if "ARG" in op or "TOPK" in op), facts.tail[0] if facts.tail else "the graph")


def has_scale(facts: OutputFacts | None) -> bool:
    """Tell whether a tensor is quantised, with one scale for all of it or one per channel."""
    return facts is not None and facts.quantization is not None and len(facts.quantization.scale) > 0


def decoder_for(dtype: str, facts: OutputFacts | None) -> Decoder:
    """Return how stored elements become values."""
    if dtype == "bfloat16":
        return Decoder(bfloat16=True)
    if dtype in QUANTISED and facts is not None and has_scale(facts) and facts.quantization is not None:
        zero = facts.quantization.zero_point
        scale = facts.quantization.scale[0]
        # Per channel, stored steps stand for values: differences are counted in steps anyway.
        if scale > 0 and len(facts.quantization.scale) == 1:
            return Decoder(scale=scale, zero_point=zero[0] if zero else 0)
    return Decoder()
