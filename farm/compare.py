"""Two sets of tensors from anywhere into the same judge; or one set into a run, as the column of a device.

    A, B (npz, safetensors, folder) ──▶ compare ──▶ Comparison            A is taken as right
    run folder + tensors           ──▶ add_column ──▶ run folder          judged against the run's own reference

Kinds come from the types and from what the caller says: there is no graph to read them from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from farm.agent_protocol import PROTOCOL, AgentResult, OutputData, RunData, TensorInfo
from farm.arrays import listed
from farm.assertions import apply_assertions
from farm.cases import Case, InputSet, Spec
from farm.configs import Config
from farm.defaults import Limits
from farm.delegation import Delegation
from farm.errors import InvalidInput, Problem
from farm.graph import GraphFacts, OutputFacts
from farm.judge.bands import KINDS
from farm.judge.order import judge_cell
from farm.judge.verdict import COUNTS, CellEvidence, CellVerdict
from farm.outcome import Outcome, PrecisionClass, Reference
from farm.tensors import Role, Tensor, Tensors
from farm.tflite import Quantization

ROLES: tuple[Role, ...] = ("input", "layer", "output")
Precision = Literal["fp32", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the judge says of B, taking A as right. inputs, layers: None where one side has none.

    verdict: of the outputs, or `fail` where the two pipelines were fed different inputs. first_bad_layer: in A's order.
    only_in_b: names that A lacks, compared with nothing.
    """

    a: str
    b: str
    verdict: str
    exit_code: int
    outputs: CellVerdict
    layers: CellVerdict | None = None
    inputs: CellVerdict | None = None
    first_bad_layer: str | None = None
    only_in_b: tuple[str, ...] = ()
    message: str = ""


def compare(
    a: Tensors,
    b: Tensors,
    *,
    kinds: Mapping[str, str] | None = None,
    precision: Precision | None = None,
    spec: Spec | None = None,
    min_cosine_similarity: float | None = None,
    functions: bool = True,
) -> Comparison:
    """Judge every tensor of B against the one of A with the same role, set, step and name.

    kinds: name → kind, over the spec's. precision: "fp32" or "fp16", the class whose bands apply; None = unknown, FP16
    bands. Raises InvalidInput for names and kinds that are not there, or where the two have no output in common.
    """
    spec = spec or Spec()
    spec = replace(spec, kinds={**spec.kinds, **(kinds or {})})
    _check_names(a, spec)
    shared = {(t.role, t.name) for t in a.tensors} & {(t.role, t.name) for t in b.tensors}
    if not any(role == "output" for role, _ in shared):
        raise InvalidInput(
            Problem(
                message=f"{a.path} and {b.path} have no output in common",
                cure=f"A has {listed(t.name for t in a.of('output'))}; B has {listed(t.name for t in b.of('output'))}",
            )
        )
    judged: dict[Role, CellVerdict | None] = {}
    for role in ROLES:
        mine, theirs = a.of(role), b.of(role)
        if role != "output":
            # Pipelines rarely log the very same layers or inputs; what both have is compared.
            mine = tuple(t for t in mine if (role, t.name) in shared)
        judged[role] = _judge(role, mine, theirs, spec, precision, min_cosine_similarity, functions) if mine else None
    outputs, inputs, layers = judged["output"], judged["input"], judged["layer"]
    assert outputs is not None
    fed_other = inputs is not None and inputs.verdict == "fail"
    verdict = "fail" if fed_other else outputs.verdict
    bad = [o.name for o in layers.outputs if o.verdict == "fail"] if layers is not None else []
    if fed_other:
        assert inputs is not None
        message = f"the two were fed different inputs ({inputs.message}): look at the preprocessing first"
    else:
        message = outputs.message
    have = {(t.role, t.name) for t in a.tensors}
    return Comparison(
        a=str(a.path),
        b=str(b.path),
        verdict=verdict,
        exit_code=COUNTS["fail"] if fed_other else COUNTS[outputs.verdict],
        outputs=outputs,
        layers=layers,
        inputs=inputs,
        first_bad_layer=bad[0] if bad else None,
        only_in_b=tuple(dict.fromkeys(t.name for t in b.tensors if (t.role, t.name) not in have)),
        message=message,
    )


def _check_names(a: Tensors, spec: Spec) -> None:
    names = list(dict.fromkeys(t.name for t in a.tensors))
    wanted = [*spec.kinds, *(x["output"] for x in spec.assertions if "output" in x)]
    problems = [
        Problem(message=f"A has no tensor {name!r}", file=str(a.path), cure=f"tensors: {listed(names)}")
        for name in dict.fromkeys(wanted)
        if name not in names
    ]
    problems += [
        Problem(message=f"unknown kind {kind!r} for {name!r}", cure=f"known: {', '.join(KINDS)}")
        for name, kind in spec.kinds.items()
        if kind not in KINDS
    ]
    if problems:
        raise InvalidInput(problems)


class _Kept:
    """Tensors by sha256, read again when the judge asks: a pair of any size is held once at most."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def keep(self, tensor: Tensor) -> tuple[str, int]:
        array = tensor.array.read()
        data = np.ascontiguousarray(array)
        digest = hashlib.sha256(data.data)
        # Equal bytes of another type or shape are another tensor.
        digest.update(f"{tensor.array.dtype}{tensor.array.shape}".encode())
        self._tensors[digest.hexdigest()] = tensor
        return digest.hexdigest(), array.nbytes

    def load(self, sha256: str, _dtype: str, _shape: tuple[int, ...]) -> np.ndarray:
        return self._tensors[sha256].array.read()


def _judge(
    role: Role,
    a: Sequence[Tensor],
    b: Sequence[Tensor],
    spec: Spec,
    precision: Precision | None,
    min_cosine_similarity: float | None,
    functions: bool,
) -> CellVerdict:
    names = list(dict.fromkeys(t.name for t in a))
    sets = list(dict.fromkeys(t.set for t in a))
    kept = _Kept()
    first, second = _result(a, names, sets, kept), _result(b, names, sets, kept)
    config = Config(name="compare", accelerator="cpu")
    evidence = CellEvidence(
        cell=role,
        device="compare",
        case=Case(
            id=role,
            model="",
            model_path="",
            model_sha256="",
            model_size_bytes=0,
            signature=0,
            signature_key="",
            graph=_graph(a, names),
            input_sets=tuple(InputSet(name=name, origin="user", arrays=()) for name in sets),
            spec=spec if role == "output" else replace(spec, assertions=()),
        ),
        config=config,
        outcome=Outcome(
            cell=role,
            attempts=1,
            started="",
            finished="",
            wall_s=0.0,
            result=second,
            failure=None,
            delegation=Delegation(level="unknown"),
        ),
        reference=Reference(case=role, first=first, second=first, floor=None),
        precision=PrecisionClass(device="", runtime="", config="", value=precision, evidence="as the user said")
        if precision
        else None,
        limits=replace(Limits(), min_cosine_similarity=min_cosine_similarity),
        bands={},
        load=kept.load,
    )
    verdict = judge_cell(evidence)
    # The judge's words about CPU references do not fit here: A is right because the user says so.
    notes = tuple(n for n in verdict.notes if not n.startswith("noise floor unknown"))
    return apply_assertions(evidence, replace(verdict, notes=notes), functions=functions)


def _result(tensors: Sequence[Tensor], names: Sequence[str], sets: Sequence[str], kept: _Kept) -> AgentResult:
    """The tensors as one agent result, outputs in the order of `names`; other names and sets are left out."""
    infos: dict[str, TensorInfo] = {}
    runs: dict[tuple[int, int], list[OutputData]] = {}
    for t in tensors:
        if t.name not in names or t.set not in sets:
            continue
        sha256, size = kept.keep(t)
        index = names.index(t.name)
        info = TensorInfo(index=index, name=t.name, dtype=t.array.dtype, shape=t.array.shape, size_bytes=size)
        if infos.setdefault(t.name, info).dtype != info.dtype:
            raise InvalidInput(
                Problem(message=f"{t.name!r} is {infos[t.name].dtype} in one input set and {info.dtype} in another")
            )
        data = OutputData(
            index=index, sha256=sha256, size_bytes=size, file="", shape=t.array.shape, repeat_sha256=(sha256,)
        )
        runs.setdefault((sets.index(t.set), t.step), []).append(data)
    return AgentResult(
        protocol=PROTOCOL,
        agent_version="",
        nonce="",
        ok=True,
        stage="done",
        outputs=tuple(infos.values()),
        runs=tuple(
            RunData(set=key[0], step=key[1], outputs=tuple(sorted(found, key=lambda o: o.index)))
            for key, found in sorted(runs.items())
        ),
    )


def _graph(tensors: Sequence[Tensor], names: Sequence[str]) -> GraphFacts | None:
    """What the judge may know without a model: the scales. None where no tensor names one."""
    first = {name: next(t for t in tensors if t.name == name) for name in names}
    if not any(t.quantization for t in first.values()):
        return None
    outputs = tuple(
        OutputFacts(
            name=name,
            tensor=number,
            dtype=t.array.dtype,
            shape=t.array.shape,
            shape_signature=None,
            quantization=Quantization(scale=(t.quantization.scale,), zero_point=(t.quantization.zero_point,))
            if t.quantization
            else None,
            tail=(),
            unwritten=False,
            alias_of=None,
            constant=False,
            depends_on_inputs=True,
            clipped_unit=False,
            large_reduction=None,
        )
        for number, (name, t) in enumerate(first.items())
    )
    return GraphFacts(
        inputs=(),
        outputs=outputs,
        op_count=0,
        op_histogram={},
        stateful=False,
        hybrid_ops=(),
        custom_ops=(),
        inf_constants=False,
        random_ops=(),
        fp16_hazards=(),
        densify=False,
    )
