"""Checks 1 and 3 to 7 of docs/judging.md order: what one output of one input set shows by itself, before any band."""

from __future__ import annotations

from farm.agent_protocol import OutputData
from farm.judge import reference as trust
from farm.judge.bands import FP16_SMALLEST_NORMAL, SMALL_OUTPUT
from farm.judge.pair import Limits, Pair, number
from farm.judge.reference import Hit
from farm.metrics.rows import dead_rows

EXACT_KINDS = ("ints", "bools", "indices")
UNIT_KINDS = ("probability", "mask")


def check_shape(ref: OutputData, tgt: OutputData | None, *, ref_dtype: str, tgt_dtype: str, label: str) -> Hit | None:
    """Presence, type and shape against the reference."""
    if tgt is None:
        return _fail("MISSING_OUTPUT", f"no such output for input set {label}")
    if tgt_dtype != ref_dtype:
        return _fail("SHAPE_MISMATCH", f"is {tgt_dtype}, the reference {ref_dtype}")
    if tgt.shape != ref.shape or tgt.size_bytes != ref.size_bytes:
        return _fail(
            "SHAPE_MISMATCH",
            f"has shape {list(tgt.shape)} ({tgt.size_bytes} bytes), the reference {list(ref.shape)} "
            f"({ref.size_bytes} bytes)",
        )
    return None


def check_values(pair: Pair, *, kind: str, limits: Limits, min_norm: float, fp16_float: bool) -> Hit | None:
    """Non-finite, vacuous reference, zero, saturation; first hit wins.

    limits: the kind's own. fp16_float: a float tensor in FP16 bands, whose smallest values may flush to zero.
    """
    m = pair.metrics
    if m.new_nonfinite:
        return _fail(
            "NUMERICAL_INSTABILITY",
            f"{m.new_nonfinite} of {m.n} elements are NaN or Inf where the reference is finite "
            f"({m.tgt_nan} NaN, {m.tgt_inf} Inf in all)",
        )
    allowed = limits["pass_max_abs"] if kind in UNIT_KINDS else 0.0
    # 7e-6 flushed to 0 is within a probability's limit: harmless, and neither vacuous nor a vanished output.
    if not (kind in UNIT_KINDS and m.n and m.ref_max_abs <= allowed):
        hit = trust.vacuous(m, low_precision=fp16_float) or _check_zero(pair, kind, limits, allowed, min_norm)
        if hit is not None:
            return hit
    if m.saturated:
        return _fail(
            "SATURATION",
            f"{m.saturated} elements are exactly ±65504, FP16's largest value; the reference is beyond",
        )
    return None


def _check_zero(pair: Pair, kind: str, limits: Limits, allowed: float, min_norm: float) -> Hit | None:
    m = pair.metrics
    # A few zero indices or flags are ordinary answers; their share decides (check 10).
    if kind in EXACT_KINDS and (m.n < SMALL_OUTPUT or kind != "ints"):
        return None
    least = max(allowed, FP16_SMALLEST_NORMAL)
    if kind == "quantised":
        # Up to the fail limit in steps, zeros are rounding.
        least = (limits["fail_steps"] + 0.5) * pair.decoder.scale
        if m.ref_max_abs <= least:
            return None
    if m.tgt_zeros == m.compared and m.compared:
        return _zero(f"all {m.n} elements are zero; the reference's largest is {number(m.ref_max_abs)}")
    # A norm just below the limit beside one just above it is rounding, not a vanished output.
    if m.tgt_norm < min_norm <= m.ref_norm and m.tgt_norm < 0.5 * m.ref_norm:
        return _zero(f"norm {number(m.tgt_norm)} is below {number(min_norm)}; the reference's is {number(m.ref_norm)}")
    if kind in EXACT_KINDS or pair.ref.ndim < 2:
        return None
    dead, rows = dead_rows(
        pair.ref, pair.tgt, at_least=least, ref_max=m.ref_max_abs, min_norm=min_norm, decoder=pair.decoder
    )
    return _zero(f"{dead} of {rows} rows are zero where the reference is not") if dead else None


def _fail(reason: str, message: str) -> Hit:
    return Hit(verdict="fail", reason=reason, message=message)


def _zero(message: str) -> Hit:
    return _fail("SILENT_ZERO_VECTOR", message)
