"""What farm.monitor costs the program around it, by size of the logged output; one JSON line per size.

    python benchmarks/monitor_overhead.py

Two loops of the same numpy inference alternate, one bare and one logging an input and an output per inference into a
fresh folder; the cost is the difference of their medians. `clock_us` is what start() and stop() add to the latency that
is reported: the same pair with nothing between.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from farm.monitor import Monitor

SIZES = (256, 4096, 65_536, 1_048_576)
ROUNDS, PER_ROUND = 9, 20


def main() -> None:
    """Measure and print."""
    for elements in SIZES:
        x = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
        bare, logged, clock = [], [], []
        with tempfile.TemporaryDirectory() as tmp:
            for number in range(ROUNDS):
                began = time.perf_counter()
                for _ in range(PER_ROUND):
                    np.tanh(x)
                bare.append((time.perf_counter() - began) / PER_ROUND)
                began = time.perf_counter()
                with Monitor(Path(tmp) / str(number)) as monitor:
                    for i in range(PER_ROUND):
                        with monitor.inference(str(i)) as run:
                            run.input("x", x)
                            run.start()
                            y = np.tanh(x)
                            run.stop()
                            run.output("y", y)
                logged.append((time.perf_counter() - began) / PER_ROUND)
                with Monitor(Path(tmp) / f"clock{number}") as monitor, monitor.inference() as run:
                    for _ in range(200):
                        run.start()
                        clock.append(run.stop())
                    run.output("y", y)
        print(
            json.dumps(
                {
                    "elements": elements,
                    "bytes_logged": 2 * 4 * elements,
                    "inference_us": round(statistics.median(bare) * 1e6, 1),
                    "cost_us": round((statistics.median(logged) - statistics.median(bare)) * 1e6, 1),
                    "clock_us": round(statistics.median(clock) * 1e3, 2),
                }
            )
        )


if __name__ == "__main__":
    main()
