"""Two arrays that should agree, with all a kind needs to judge them: what passes between output.py and kinds/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from farm.metrics import PLAIN, Decoder, Metrics, compare
from farm.metrics.decode import Array

Band = Literal["pass", "warn", "fail"]
RANK: dict[str, int] = {"pass": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Reference and target of one output, same shape and stored type.

    low_precision: the FP16 bands apply. scores: (reference, target) of the sibling output whose order the indices
    give (TOP_K's values), or None. source: the tensor the indices point into as the reference has it, the target's own
    or None, and the axis they count along.
    """

    ref: Array
    tgt: Array
    decoder: Decoder = PLAIN
    low_precision: bool = True
    scores: tuple[Array, Array] | None = field(default=None)
    source: tuple[Array, Array | None, int] | None = field(default=None)

    @cached_property
    def metrics(self) -> Metrics:
        return compare(self.ref, self.tgt, decoder=self.decoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the bands make of measured values. message: one sentence with value, limit and the limit that would pass."""

    band: Band
    reason: str | None = None
    message: str = ""


Values = Mapping[str, float]
"""What a kind measured, by name; what cannot be defined is left out."""
Limits = Mapping[str, float]


class Kind(Protocol):
    """One file of kinds/: three pure functions."""

    def measure(self, pair: Pair) -> dict[str, float]:
        """Return the kind's own figures; `decide` needs no others."""

    def decide(self, values: Values, limits: Limits) -> Decision:
        """Put measured values into bands. A value that is missing never passes."""

    def loosen(self, limits: Limits, floor: Values) -> dict[str, float]:
        """Return limits no stricter than the noise floor (two right CPU answers) allows, never tighter ones."""


def worse(first: Band, second: Band) -> Band:
    return first if RANK[first] >= RANK[second] else second


def number(value: float) -> str:
    """Write a figure for people: enough digits to tell value and limit apart, no more."""
    return f"{value:.6g}"
