"""Questions about class scores: does the best class stay, and how far has the distribution moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.metrics.decode import F64, PLAIN, Array, Decoder
from farm.metrics.rows import row_pieces

RELATIVE_ERROR = 0.25
"""Share of a row's best score an error may have and still pass for a near tie; FP16's own is near 0.001."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOne:
    """positions: rows. agree: rows with the same best class. near_ties: other rows that were a near tie (see top_one).

    max_abs: largest |difference| of probabilities over all rows.
    """

    positions: int
    agree: int
    near_ties: int
    max_abs: float


def top_one(
    ref: Array, tgt: Array, *, near_tie_margin: float, near_tie_error: float, decoder: Decoder = PLAIN
) -> TopOne:
    """Compare the best class of every row (last axis).

    A row agrees when every class the target puts first is first in the reference too. Otherwise it is a near tie when
    the target's best classes tie and the reference's is among them, or the reference's margin (its best minus the
    target's choice) is below the row's own largest error or `near_tie_margin`; and that error is at most
    `near_tie_error` and a quarter of the best score (or one step of a quantised output): a large error must not excuse
    itself, and among a thousand equal classes 0.002 is a large one.
    Rows that are not probabilities (outside [0, 1]) are softmaxed first.
    """
    positions = agree = near = 0
    worst = 0.0
    step = 1.001 * decoder.scale if ref.dtype.kind in "iu" and not decoder.bfloat16 else 0.0
    for r, t in row_pieces(ref, tgt, decoder):
        if r.min() < -1e-3 or r.max() > 1.0 + 1e-3:
            r, t = _softmax(r), _softmax(t)
        best_ref = r.max(axis=1)
        chosen = t == t.max(axis=1, keepdims=True)
        lowest_chosen = np.where(chosen, r, np.inf).min(axis=1)
        margin = best_ref - lowest_chosen
        with np.errstate(invalid="ignore"):
            error = np.nan_to_num(np.abs(r - t), nan=0.0).max(axis=1)  # both −inf: masked on both sides
        same = margin <= 0.0
        # Quantised outputs tie easily: the best class shares the first place.
        shared = (chosen & (r == best_ref[:, None])).any(axis=1)
        small = error <= np.minimum(near_tie_error, np.maximum(RELATIVE_ERROR * np.abs(best_ref), step))
        tie = ~same & (shared | (margin < np.maximum(error, near_tie_margin))) & small
        positions += r.shape[0]
        agree += int(np.count_nonzero(same))
        near += int(np.count_nonzero(tie))
        worst = max(worst, float(error.max()))
    return TopOne(positions=positions, agree=agree, near_ties=near, max_abs=worst)


def kl_per_position(ref: Array, tgt: Array, *, decoder: Decoder = PLAIN) -> float | None:
    """Mean over rows of KL(softmax(ref) ‖ softmax(target)) in nats; None without rows.

    Rows are logits. From log-softmax, so that classes of probability 1e-300 neither overflow nor need a floor.
    """
    total, rows = 0.0, 0
    for r, t in row_pieces(ref, tgt, decoder):
        log_p, log_q = _log_softmax(r), _log_softmax(t)
        p = np.exp(log_p)
        with np.errstate(invalid="ignore"):
            # A class both sides mask out (−inf) adds nothing; 0 · (−inf − −inf) would be NaN.
            total += float(np.where(p > 0, p * (log_p - log_q), 0.0).sum())
        rows += r.shape[0]
    return max(0.0, total / rows) if rows else None


def _log_softmax(x: F64) -> F64:
    shifted = x - x.max(axis=1, keepdims=True)
    out: F64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return out


def _softmax(x: F64) -> F64:
    out: F64 = np.exp(_log_softmax(x))
    return out
