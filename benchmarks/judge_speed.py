"""How fast the judge compares two tensors, beside litert-precision-guard's compute_tensor_metrics, in one process.

    python benchmarks/judge_speed.py [--guard SITE_PACKAGES] [--json]

litert-precision-guard is imported from this environment or from the site-packages folder given (any Python 3 virtual
environment into which `pip install litert-precision-guard==0.1.0` went). Both get the same arrays; rounds alternate,
and the ratio is the median of the per-round ratios, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from farm.metrics import compare

SIZES = (1, 8, 100, 1000, 4096, 10_000, 65_536, 100_000, 1 << 20, 1 << 22, 1 << 24, 1 << 26)


def guard_function(site_packages: Path | None) -> Callable[..., Any]:
    """Import compute_tensor_metrics without the rest of its package's dependencies getting in our way."""
    if site_packages is not None:
        sys.path.append(str(site_packages))
    if importlib.util.find_spec("litert_precision_guard") is None:
        raise SystemExit("litert-precision-guard is not installed here; give --guard VENV/lib/pythonX.Y/site-packages")
    from litert_precision_guard.metrics import compute_tensor_metrics

    return compute_tensor_metrics  # type: ignore[no-any-return]


def timed(call: Callable[[], Any], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats


def peak_bytes(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure(guard: Callable[..., Any], rounds: int, largest: int) -> list[dict[str, float]]:
    rows = []
    for n in (size for size in SIZES if size <= largest):
        rng = np.random.default_rng(0)
        ref = rng.standard_normal(n, dtype=np.float32)
        tgt = ref + rng.standard_normal(n, dtype=np.float32) * np.float32(1e-3)
        repeats = max(1, min(2000, (1 << 22) // n))
        pairs = []
        for _ in range(rounds):
            ours = timed(lambda: compare(ref, tgt), repeats)  # noqa: B023
            theirs = timed(lambda: guard("output", ref, tgt), repeats)  # noqa: B023
            pairs.append((ours, theirs))
        rows.append(
            {
                "elements": n,
                "ours_ms": 1e3 * median(o for o, _ in pairs),
                "guard_ms": 1e3 * median(t for _, t in pairs),
                "ratio": median(t / o for o, t in pairs),
                "our_peak_mib": peak_bytes(lambda: compare(ref, tgt)) / 2**20,  # noqa: B023
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guard", type=Path, help="site-packages folder that holds litert-precision-guard")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--largest", type=int, default=1 << 24, help="largest number of elements")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(guard_function(options.guard), options.rounds, options.largest)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"numpy {np.__version__}; float32 pairs; ratio = guard / ours, median of {options.rounds} alternating rounds")
    print(f"{'elements':>10} {'ours ms':>10} {'guard ms':>10} {'ratio':>7} {'our peak MiB':>13}")
    for row in rows:
        print(
            f"{row['elements']:>10.0f} {row['ours_ms']:>10.4f} {row['guard_ms']:>10.4f} {row['ratio']:>7.2f} "
            f"{row['our_peak_mib']:>13.2f}"
        )


if __name__ == "__main__":
    main()
