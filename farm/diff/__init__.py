"""From two matrices to what changed between them and why: pure, needs no device and no run folder.

old matrix + new matrix (+ earlier ones)  ──▶  pair  ──▶  changes, drift, flaky cells  ──▶  Diff  ──▶  text or JSON
"""

from farm.diff.compare import compare
from farm.diff.value import Change, Diff, Drift, Flaky

__all__ = ["Change", "Diff", "Drift", "Flaky", "compare"]
