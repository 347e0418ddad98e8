"""farm: does a LiteRT model compute the right numbers on every GPU it ships to?

import farm
result = farm.sweep(["model.tflite"])
assert result.all_passed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.sweep import SweepResult as SweepResult
    from farm.sweep import sweep as sweep

__version__ = "0.1.0"
__all__ = ["SweepResult", "__version__", "sweep"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `farm --version` and one-module imports must not pay for the whole flow.
    if name not in ("SweepResult", "sweep"):
        raise AttributeError(f"module 'farm' has no attribute {name!r}")
    from importlib import import_module

    module = import_module("farm.sweep")
    return module if name == "sweep" else module.SweepResult
