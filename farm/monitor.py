"""Logging around any Python inference code: named tensors, latency, layers on request; `farm compare` reads the folder.

    from farm.monitor import Monitor

    with Monitor("keras_dump", source="keras 3.9") as monitor:
        for name, image in images.items():
            with monitor.inference(name) as run:
                run.input("image", image)
                run.start()
                scores = model(image)
                run.stop()
                run.output("scores", scores)

Writes raw files at once and tensors.json when it closes (tensors.py has the format). Uses numpy alone: whatever
`numpy.asarray` understands can be logged. Copying and writing lie outside start() … stop() and are never timed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from farm.codec import to_json, write_whole
from farm.errors import InvalidInput, NoSpace, Problem
from farm.tensors import MANIFEST, Manifest, Role, Scale, TensorEntry, stored

_FULL = (28, 122)
"""ENOSPC, and EDQUOT where the disk is shared."""


class Monitor:
    """One folder of tensors. `layers`: keep what `Inference.layer` is given (else those calls cost nothing)."""

    def __init__(
        self,
        folder: str | Path,
        *,
        source: str = "",
        runtime: str = "",
        device: str = "",
        layers: bool = False,
        model_sha256: str = "",
    ) -> None:
        """Begin a new dump. Raises InvalidInput if the folder holds one already or cannot be written."""
        self.folder = Path(folder)
        self.layers = layers
        self._about = Manifest(tensors=(), source=source, runtime=runtime, device=device, model_sha256=model_sha256)
        self._entries: list[TensorEntry] = []
        self._latency_ms: dict[str, list[float]] = {}
        self._steps: dict[str, int] = {}
        self._closed = False
        if (self.folder / MANIFEST).exists():
            raise InvalidInput(
                Problem(message="holds a dump already", file=str(self.folder), cure="name another folder, or delete it")
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise InvalidInput(Problem(message=f"cannot be made: {e.strerror or e}", file=str(self.folder))) from e

    def inference(self, name: str = "") -> Inference:
        """Begin one inference on the input set `name`; a name that comes again is the next step of the same set."""
        step = self._steps.get(name, 0)
        self._steps[name] = step + 1
        return Inference(self, name, step)

    def close(self) -> None:
        """Write tensors.json, whole; a dump without it is no dump. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        latency = {name: tuple(times) for name, times in self._latency_ms.items()}
        made = Manifest(
            tensors=tuple(self._entries),
            source=self._about.source,
            runtime=self._about.runtime,
            device=self._about.device,
            model_sha256=self._about.model_sha256,
            latency_ms=latency,
        )
        self._write(self.folder / MANIFEST, to_json(made, indent=1))

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception the dump lacks tensors, and what lacks tensors must not look like a whole one.
        if kind is None:
            self.close()

    def _keep(
        self, role: Role, name: str, array: Any, inference: str, step: int, quantization: tuple[float, int] | None
    ) -> None:
        if self._closed:
            raise InvalidInput(Problem(message=f"{name!r} comes after close()", file=str(self.folder)))
        dtype, values = stored(array)
        data = values.tobytes()
        file = f"{len(self._entries)}.raw"
        entry = TensorEntry(
            name=name,
            dtype=dtype,
            shape=values.shape,
            file=file,
            set=inference,
            step=step,
            role=role,
            sha256=hashlib.sha256(data).hexdigest(),
            quantization=Scale(scale=quantization[0], zero_point=quantization[1]) if quantization else None,
        )
        try:
            (self.folder / file).write_bytes(data)
        except OSError as e:
            raise self._disk(e, file) from e
        self._entries.append(entry)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            write_whole(path, data)
        except OSError as e:
            raise self._disk(e, path.name) from e

    def _disk(self, error: OSError, file: str) -> Exception:
        where = str(self.folder / file)
        if error.errno in _FULL:
            return NoSpace(f"no space left on the disk of {where}")
        return InvalidInput(Problem(message=f"cannot be written: {error.strerror or error}", file=where))


class Inference:
    """One inference: its tensors and its time. A context manager, so that a forgotten stop() is told."""

    def __init__(self, monitor: Monitor, name: str, step: int) -> None:
        self._monitor, self._name, self._step = monitor, name, step
        self._started: int | None = None

    def start(self) -> None:
        """Start the clock. Call it right before the inference, after the inputs were logged."""
        self._started = time.perf_counter_ns()

    def stop(self) -> float:
        """Stop the clock and return this latency in ms; start and stop again for another timed iteration."""
        now = time.perf_counter_ns()
        if self._started is None:
            raise InvalidInput(
                Problem(message="stop() without start()", cure="call start() right before the inference")
            )
        latency = (now - self._started) / 1e6
        self._started = None
        self._monitor._latency_ms.setdefault(self._name, []).append(latency)
        return latency

    def input(self, name: str, array: Any, *, quantization: tuple[float, int] | None = None) -> None:
        """Keep an input as it was fed, after all preprocessing: `farm compare` looks at inputs first."""
        self._monitor._keep("input", name, array, self._name, self._step, quantization)

    def output(self, name: str, array: Any, *, quantization: tuple[float, int] | None = None) -> None:
        """Keep an output. quantization: (scale, zero point) of a quantised tensor, so that it is judged in steps."""
        self._monitor._keep("output", name, array, self._name, self._step, quantization)

    def outputs(self, arrays: Mapping[str, Any]) -> None:
        """Keep several outputs by name."""
        for name, array in arrays.items():
            self.output(name, array)

    def layer(self, name: str, array: Any) -> None:
        """Keep an inner tensor, where the monitor was made with layers=True; in the order of the calls."""
        if self._monitor.layers:
            self._monitor._keep("layer", name, array, self._name, self._step, None)

    def __enter__(self) -> Inference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._started is not None:
            raise InvalidInput(
                Problem(message=f"inference {self._name!r} was started and never stopped", cure="call stop()")
            )
