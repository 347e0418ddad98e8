"""The night: what to run in which order, what had to be covered, what changed since the last good night.

inventory nightly: ──▶ plan in covering order ──▶ sweep(s) ──▶ coverage, diff, suspects ──▶ nights/ID.json, words
"""

from farm.nightly.night import run_night
from farm.nightly.value import Coverage, Night

__all__ = ["Coverage", "Night", "run_night"]
