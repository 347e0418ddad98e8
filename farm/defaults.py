"""Every default of the farm in one place. `Limits` travels inside the plan, so a run says what it used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deadlines (seconds of wall clock), counts and seeds of one run."""

    seed: int = 0
    input_sets: int = 2
    warmup: int = 1
    iterations: int = 5
    iterations_ms: int = 2000
    """Timed iterations stop early once this much time is spent on them."""
    repeats: int = 3
    steps: int = 3
    """Inference steps per input set of a stateful model."""
    threads: int = 1
    connect_timeout_s: float = 10.0
    cpu_timeout_s: float = 120.0
    gpu_first_timeout_s: float = 300.0
    """First GPU cell of a (device, model, config): shader compilation is cold."""
    gpu_timeout_s: float = 120.0
    lease_wait_s: float = 120.0
    """How long to wait for another farm that uses the device."""
    attempts: int = 2
    """Tries at a cell; only `infra` outcomes are tried again."""
    min_norm: float = 1e-4
    min_cosine_similarity: float | None = None
