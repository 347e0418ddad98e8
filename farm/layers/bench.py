"""Runs rewritten models on one device through its Session, the same way cells run, and counts the runs."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farm.agent_protocol import AgentResult
from farm.configs import Config
from farm.errors import InfraError
from farm.objects import Objects
from farm.runtimes import Runtime
from farm.session import Observation, Session, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor's raw bytes in the study's object store."""

    sha256: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Bench:
    """One (session, runtime, config). runs: how often a model was run here, fallback tries counted with their run."""

    session: Session
    runtime: Runtime
    config: Config
    folder: Path
    runs: int = 0
    fed: tuple[tuple[tuple[str, str, tuple[int, ...]], ...], ...] = ()
    """Per input set and signature input: sha256, dtype and shape of what the model is fed."""

    @property
    def objects(self) -> Objects:
        return self.session.objects

    def run(
        self,
        name: str,
        data: bytes,
        inputs: Sequence[Sequence[str]],
        *,
        signature: int = 0,
        shapes: tuple[tuple[int, ...] | None, ...] = (),
    ) -> Observation:
        """Run one file once per input set (sha256 of each input's bytes). Raises InfraError after a second loss."""
        self.runs += 1
        limits = self.session.limits
        file = self.folder / f"{secrets.token_hex(8)}.tflite"
        file.write_bytes(data)
        task = Task(
            name=name,
            model=file,
            model_sha256=hashlib.sha256(data).hexdigest(),
            config=self.config,
            signature=signature,
            inputs=tuple(tuple(one) for one in inputs),
            shapes=shapes,
            warmup=0,
            iterations=1,
            repeats=1,
            threads=limits.threads,
            deadline_s=limits.cpu_timeout_s if self.config.accelerator == "cpu" else limits.gpu_first_timeout_s,
        )
        try:
            try:
                return self.session.observe(task, self.runtime)
            except InfraError as e:
                if not e.retryable:
                    raise
                self.session.open()
                return self.session.observe(task, self.runtime)
        finally:
            file.unlink(missing_ok=True)

    def load(self, stored: Stored) -> np.ndarray:
        """Raises KeyError where the bytes do not fill the shape."""
        return self.objects.load(stored.sha256, stored.dtype, stored.shape)


def outputs_of(result: AgentResult, input_set: int = 0) -> list[Stored]:
    """The outputs of one input set, in the runtime's order."""
    (run,) = (r for r in result.runs if r.set == input_set and r.step == 0)
    return [
        Stored(sha256=o.sha256, dtype=info.dtype, shape=o.shape)
        for o, info in zip(run.outputs, result.outputs, strict=True)
    ]
