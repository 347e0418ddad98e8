"""Questions about rows (the last axis): rows that died while the reference's live, cosine and norm of each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from farm.metrics.decode import F64, PLAIN, Array, Decoder

ROW_ELEMENTS = 8
"""Shorter rows are no evidence: a handful of zeros happens in healthy tensors."""
NOISE_FACTOR = 6.0
"""Standard deviations of the elements that moved at all: what one of 10^8 rows would lose by chance."""
PIECE = 1 << 18
"""Elements looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAgreement:
    """Per-row cosine and norm, the worst of all rows.

    min_cosine: None where no row has a length on both sides. max_norm_off: largest |norm ratio − 1|.
    last_cosine: cosine of the last row, the one a text model continues from.
    """

    rows: int
    min_cosine: float | None
    max_norm_off: float | None
    last_cosine: float | None


def row_pieces(ref: Array, tgt: Array, decoder: Decoder = PLAIN) -> Iterator[tuple[F64, F64]]:
    """Yield both arrays as float64 (rows, columns) pieces; at least one row each, about PIECE elements."""
    columns = ref.shape[-1] if ref.ndim else 1
    if ref.size == 0:
        return
    left, right = ref.reshape(-1, columns), tgt.reshape(-1, columns)
    step = max(1, PIECE // columns)
    for start in range(0, left.shape[0], step):
        yield decoder.values(left[start : start + step]), decoder.values(right[start : start + step])


def dead_rows(
    ref: Array, tgt: Array, *, at_least: float, ref_max: float, min_norm: float, decoder: Decoder = PLAIN
) -> tuple[int, int]:
    """Count (dead rows, rows that count): dead = all zero, or norm below `min_norm` and half of the reference row's.

    A row counts when it has 8 elements or more and its reference max is ≥ `at_least` and ≥ 1e-3 of `ref_max`
    (the whole output's). A row no larger than 6 times the error that living rows show is no dead one: behind a RELU the
    one small positive of a row may well come out as 0. Positions that are not finite on both sides are taken as zero.
    """
    if ref.ndim == 0 or ref.shape[-1] < ROW_ELEMENTS:
        return 0, 0
    floor = max(at_least, 1e-3 * ref_max)
    counted = moved = 0
    squares = 0.0
    lost: list[F64] = []
    for r, t in row_pieces(ref, tgt, decoder):
        r[~np.isfinite(r)] = 0.0
        t[~np.isfinite(t)] = 0.0
        height = np.max(np.abs(r), axis=1)
        lives = height >= floor
        norm_r, norm_t = np.sqrt(np.einsum("ij,ij->i", r, r)), np.sqrt(np.einsum("ij,ij->i", t, t))
        faded = (norm_t < min_norm) & (norm_r >= min_norm) & (norm_t < 0.5 * norm_r)
        counted += int(np.count_nonzero(lives))
        dead = lives & (~t.any(axis=1) | faded)
        lost.append(height[dead])
        off = (r - t)[lives & ~dead]
        squares += float(np.vdot(off, off))
        moved += int(np.count_nonzero(off))
    noise = NOISE_FACTOR * (squares / moved) ** 0.5 if moved else 0.0
    return sum(int(np.count_nonzero(h > noise)) for h in lost), counted


def row_agreement(ref: Array, tgt: Array, *, decoder: Decoder = PLAIN) -> RowAgreement:
    """Compare row by row. Rows without a length in the reference are left out; one lost in the target has cosine 0."""
    rows, lowest, furthest, last = 0, None, None, None
    for r, t in row_pieces(ref, tgt, decoder):
        r[~np.isfinite(r)] = 0.0  # what is left here is the same ±inf mask on both sides
        t[~np.isfinite(t)] = 0.0
        norm_r, norm_t = np.sqrt(np.einsum("ij,ij->i", r, r)), np.sqrt(np.einsum("ij,ij->i", t, t))
        dot = np.einsum("ij,ij->i", r, t)
        real = norm_r > 0
        rows += int(np.count_nonzero(real))
        product = norm_r * norm_t
        cosine = np.clip(np.divide(dot, product, out=np.zeros_like(dot), where=product > 0), -1.0, 1.0)
        if real.any():
            off = np.abs(norm_t[real] / norm_r[real] - 1.0)
            lowest = float(np.min(cosine[real], initial=lowest if lowest is not None else 1.0))
            furthest = float(np.max(off, initial=furthest if furthest is not None else 0.0))
        last = float(cosine[-1]) if real[-1] else None
    return RowAgreement(rows=rows, min_cosine=lowest, max_norm_off=furthest, last_cosine=last)


def unit_rows(ref: Array, *, tolerance: float, decoder: Decoder = PLAIN) -> bool:
    """Tell whether every row's L2 norm is 1 within `tolerance`; False for no rows and for NaN."""
    if ref.ndim == 0 or ref.size == 0:
        return False
    for r, _ in row_pieces(ref, ref, decoder):
        norms = np.sqrt(np.einsum("ij,ij->i", r, r))
        if not bool(np.all(np.abs(norms - 1.0) <= tolerance)):
            return False
    return True
