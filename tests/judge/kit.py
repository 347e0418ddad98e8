"""Evidence of one cell from plain arrays: a small object store in memory and the real contract dataclasses."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from farm.agent_protocol import PROTOCOL, AgentResult, OutputData, RunData, TensorInfo
from farm.cases import Case, InputSet, Spec
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.delegation import Delegation
from farm.graph import GraphFacts, OutputFacts
from farm.judge.verdict import CellEvidence
from farm.outcome import Failure, Outcome, PrecisionClass, Reference

Arrays = Mapping[str, np.ndarray]
"""Output name → array: what one run gave."""


class Bench:
    """Holds arrays by sha256 and builds results, references and evidence over them."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def keep(self, array: np.ndarray) -> str:
        data = np.ascontiguousarray(array).tobytes()
        sha = hashlib.sha256(data + str(array.dtype).encode()).hexdigest()
        self.kept[sha] = data
        return sha

    def load(self, sha256: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        kind = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        return np.frombuffer(self.kept[sha256], kind).reshape(shape)

    def result(
        self,
        runs: Sequence[Arrays],
        *,
        steps: int = 0,
        repeats: Mapping[str, Sequence[np.ndarray]] | None = None,
        dtypes: Mapping[str, str] | None = None,
        latency_ms: Sequence[float] = (1.0,),
    ) -> AgentResult:
        """One run per input set, or `steps` runs per set. repeats: output → further repeats of set 0."""
        data = []
        for number, arrays in enumerate(runs):
            outputs = []
            for index, (name, array) in enumerate(arrays.items()):
                sha = self.keep(array)
                more = [self.keep(a) for a in (repeats or {}).get(name, ())] if number == 0 else []
                outputs.append(
                    OutputData(
                        index=index, sha256=sha, size_bytes=array.nbytes, file=f"{number}.{index}", shape=array.shape,
                        repeat_sha256=(sha, *more),
                    )
                )  # fmt: skip
            key = (number // steps, number % steps) if steps else (number, 0)
            data.append(RunData(set=key[0], step=key[1], outputs=tuple(outputs), latency_ms=tuple(latency_ms)))
        infos = tuple(
            TensorInfo(
                index=i, name=name, dtype=(dtypes or {}).get(name, str(a.dtype)), shape=a.shape, size_bytes=a.nbytes
            )
            for i, (name, a) in enumerate(runs[0].items())
        )
        return AgentResult(
            protocol=PROTOCOL, agent_version="1", nonce="n", ok=True, stage="done", outputs=infos, runs=tuple(data)
        )

    def evidence(
        self,
        ref: Sequence[Arrays] | Arrays | np.ndarray | None,
        tgt: Sequence[Arrays] | Arrays | np.ndarray | None,
        *,
        second: Sequence[Arrays] | Arrays | np.ndarray | None = None,
        floor: Sequence[Arrays] | Arrays | np.ndarray | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        graph: Mapping[str, Any] | None = None,
        config: str = "gpu",
        precision: str | None = "fp16",
        failure: Failure | None = None,
        reference_failure: Failure | None = None,
        delegation: str = "full",
        spec: Spec | None = None,
        limits: Limits | None = None,
        bands: dict[str, dict[str, float]] | None = None,
        repeats: Mapping[str, Sequence[np.ndarray]] | None = None,
        steps: int = 0,
        dtypes: Mapping[str, str] | None = None,
        invalid: str | None = None,
        finished: bool = True,
    ) -> CellEvidence:
        """Evidence of one cell; a bare array is output "y" of one input set. second defaults to ref."""
        ref_runs, tgt_runs = _runs(ref), _runs(tgt)
        shown = ref_runs or tgt_runs or [{"y": np.zeros(1, np.float32)}]
        outputs = tuple(
            _facts(i, name, array, dtypes, (facts or {}).get(name, {}))
            for i, (name, array) in enumerate(shown[0].items())
        )
        count = len(shown) // steps if steps else len(shown)
        case = Case(
            id="m",
            model="m",
            model_path="m.tflite",
            model_sha256="0" * 64,
            model_size_bytes=1,
            signature=0,
            signature_key="",
            graph=_graph(outputs, graph or {}),
            input_sets=tuple(InputSet(name=f"set{i}", origin="synthetic", arrays=()) for i in range(count)),
            spec=spec or Spec(),
            invalid=invalid,
        )
        make = lambda runs, **more: self.result(runs, steps=steps, dtypes=dtypes, **more) if runs else None  # noqa: E731
        reference = Reference(
            case="m",
            first=make(ref_runs),
            second=make(_runs(second) or ref_runs),
            floor=make(_runs(floor)),
            failure=reference_failure,
        )
        outcome = Outcome(
            cell="c",
            attempts=1,
            started="",
            finished="",
            wall_s=1.0,
            result=make(tgt_runs, repeats=repeats),
            failure=failure,
            delegation=Delegation(level=delegation),  # type: ignore[arg-type]
        )
        measured = None
        if precision is not None:
            measured = PrecisionClass(device="d", runtime="r", config=config, value=precision, evidence="")  # type: ignore[arg-type]
        return CellEvidence(
            cell="c",
            device="d",
            case=case,
            config=CONFIGS[config],
            outcome=outcome if finished else None,
            reference=reference,
            precision=measured,
            limits=limits or Limits(),
            bands=bands or {},
            load=self.load,
        )


def _runs(given: Sequence[Arrays] | Arrays | np.ndarray | None) -> list[Arrays]:
    if given is None:
        return []
    if isinstance(given, np.ndarray):
        return [{"y": given}]
    return [given] if isinstance(given, Mapping) else list(given)


def _facts(
    index: int, name: str, array: np.ndarray, dtypes: Mapping[str, str] | None, more: Mapping[str, Any]
) -> OutputFacts:
    base = OutputFacts(
        name=name,
        tensor=index,
        dtype=(dtypes or {}).get(name, str(array.dtype)),
        shape=array.shape,
        shape_signature=None,
        quantization=None,
        tail=("ADD",),
        unwritten=False,
        alias_of=None,
        constant=False,
        depends_on_inputs=True,
        clipped_unit=False,
        large_reduction=None,
    )
    return replace(base, **more)


def _graph(outputs: tuple[OutputFacts, ...], more: Mapping[str, Any]) -> GraphFacts:
    base = GraphFacts(
        inputs=(),
        outputs=outputs,
        op_count=1,
        op_histogram={"ADD": 1},
        stateful=False,
        hybrid_ops=(),
        custom_ops=(),
        inf_constants=False,
        random_ops=(),
        fp16_hazards=(),
        densify=False,
    )
    return replace(base, **more)


def noisy(ref: np.ndarray, snr_db: float, seed: int = 1) -> np.ndarray:
    """`ref` plus noise scaled so that 10 log10(Σ ref² / Σ d²) is `snr_db` (up to the rounding of the stored type)."""
    noise = np.random.default_rng(seed).standard_normal(ref.shape)
    power = float(np.sum(ref.astype(np.float64) ** 2)) / 10 ** (snr_db / 10)
    return (ref + noise * np.sqrt(power / np.sum(noise**2))).astype(ref.dtype)


def values(n: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)
