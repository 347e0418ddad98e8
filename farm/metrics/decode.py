"""From raw output arrays to numbers: quantised ints, bfloat16 and bools become float64, chunk by chunk.

First step of every metric; nothing here copies a whole tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """How stored elements become values: value = scale * (stored - zero_point).

    bfloat16: the array is uint16 holding the upper half of float32 (numpy has no such type).
    """

    scale: float = 1.0
    zero_point: int = 0
    bfloat16: bool = False

    def values(self, chunk: Array) -> F64:
        """Return the chunk's values as float64, same shape; always a new array."""
        if self.bfloat16:
            return (chunk.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        out = chunk.astype(np.float64)
        if self.zero_point:
            out -= self.zero_point
        if self.scale != 1.0:
            out *= self.scale
        return out


PLAIN = Decoder()


def is_plain(decoder: Decoder) -> bool:
    """Tell whether stored elements are the values themselves."""
    return not decoder.bfloat16 and decoder.zero_point == 0 and decoder.scale == 1.0
