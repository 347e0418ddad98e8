"""Cases with graph facts and a maker of references: what the tests of float copies, reductions and hazards share."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from farm.agents import agent_binary, agent_digest
from farm.cases import Case, InputArray, InputSet
from farm.defaults import Limits
from farm.graph import graph_facts
from farm.objects import Objects
from farm.reference import References
from farm.runtimes import find_runtime, host_platform
from farm.tflite import Model, read_model
from farm.transports.local import LocalTransport
from tests import graphs


def model_of(tmp_path: Path, data: bytes, name: str = "model") -> Model:
    return read_model(graphs.write(tmp_path, name, data))


def case_of(model: Model, objects: Objects, *sets: tuple[np.ndarray, ...], name: str = "case") -> Case:
    """A case fed with the given arrays, in the order of the signature's inputs; resized where their shapes differ."""
    names = [name for name, _ in model.signatures[0].inputs]
    fed = {name: a.shape for name, a in zip(names, sets[0], strict=True)}
    facts = graph_facts(model, 0, fed)
    stored = [model.subgraphs[model.signatures[0].subgraph].tensors[t].shape for _, t in model.signatures[0].inputs]
    made = []
    for number, arrays in enumerate(sets):
        held = tuple(
            InputArray(
                name=i.name,
                dtype=str(a.dtype),
                shape=a.shape,
                sha256=objects.put_bytes(np.ascontiguousarray(a).tobytes()),
                size_bytes=a.nbytes,
                recipe="made for a test",
            )
            for i, a in zip(facts.inputs, arrays, strict=True)
        )
        made.append(InputSet(name=f"set{number}", origin="synthetic", arrays=held))
    return Case(
        id=name,
        model=name,
        model_path=str(model.path),
        model_sha256=hashlib.sha256(model.data).hexdigest(),
        model_size_bytes=model.size_bytes,
        signature=0,
        signature_key="",
        graph=facts,
        input_sets=tuple(made),
        shapes=tuple(None if fed[n] == s else fed[n] for n, s in zip(names, stored, strict=True)),
    )


def maker(tmp_path: Path, objects: Objects) -> References:
    """Real references on this machine's CPU, through the real agent."""
    return References(
        objects=objects,
        limits=dataclasses.replace(Limits(), repeats=1),
        runtime=find_runtime(None, host_platform()),
        agent_digest=agent_digest(agent_binary(host_platform())),
        connect=LocalTransport,
        cache=tmp_path / "cache",
    )


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)
