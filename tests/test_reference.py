"""References come from two fresh CPU processes and a floor run, are cached by content, and never trusted unverified."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from farm.agents import agent_binary, agent_digest
from farm.cases import Case
from farm.defaults import Limits
from farm.graph import graph_facts
from farm.objects import Objects
from farm.outcome import Reference
from farm.reference import REDUCED_PRECISION, References, _fp32_model
from farm.runtimes import Runtime, find_runtime, host_platform
from farm.tflite import read_model
from farm.transports.base import Completed
from farm.transports.local import LocalTransport
from tests import graphs
from tests.spinekit import X, fake_runtime, one_input_case


class Counting(LocalTransport):
    """A real link to this machine that counts the agent processes started through it."""

    started: int = 0

    def run(self, argv: Sequence[str], timeout: float, **more: object) -> Completed:  # type: ignore[override]
        Counting.started += 1
        return super().run(argv, timeout, **more)  # type: ignore[arg-type]


@pytest.fixture
def runtime() -> Runtime:
    return find_runtime(None, host_platform())


def maker(tmp_path: Path, runtime: Runtime, objects: Objects | None = None, limits: Limits | None = None) -> References:
    Counting.started = 0
    return References(
        objects=objects or Objects(tmp_path / "objects"),
        limits=limits or Limits(),
        runtime=runtime,
        agent_digest=agent_digest(agent_binary(host_platform())),
        connect=Counting,
        cache=tmp_path / "cache",
    )


def case(tmp_path: Path, data: bytes, objects: Objects | None = None, x: np.ndarray = X, sets: int = 2) -> Case:
    return one_input_case(
        graphs.write(tmp_path, "model", data), objects or Objects(tmp_path / "objects"), x=x, sets=sets
    )


def hashes(reference: Reference, which: str) -> list[str]:
    result = getattr(reference, which)
    return [o.sha256 for run in result.runs for o in run.outputs]


def test_a_reference_is_two_equal_runs_and_a_floor(tmp_path: Path, runtime: Runtime) -> None:
    got = maker(tmp_path, runtime).get(case(tmp_path, graphs.fc_chain()))
    assert got.failure is None
    assert len(hashes(got, "first")) == 2
    assert hashes(got, "first") == hashes(got, "second")
    assert got.floor is not None
    assert got.floor_note == "reference kernels"
    assert Counting.started == 3


def test_an_output_that_nobody_writes_differs_between_the_two_runs(tmp_path: Path) -> None:
    # The stand-in runtime leaves its outputs as they are; both runs then show their own fill.
    fake = fake_runtime(tmp_path / "fakert")

    class Unwritten(Counting):
        def __init__(self) -> None:
            super().__init__({"FAKERT": "unwritten"})

    made = maker(tmp_path, fake)
    made.connect = Unwritten
    got = made.get(case(tmp_path, b"\x1c\x00\x00\x00TFL3", sets=1))
    assert got.failure is None
    assert hashes(got, "first") != hashes(got, "second")


def test_a_cached_reference_starts_no_process_and_fills_the_runs_own_store(tmp_path: Path, runtime: Runtime) -> None:
    made = maker(tmp_path, runtime).get(case(tmp_path, graphs.fc_chain()))
    fresh = Objects(tmp_path / "other" / "objects")
    again = maker(tmp_path, runtime, fresh)
    same = dataclasses.replace(case(tmp_path, graphs.fc_chain(), fresh), id="another-id")
    got = again.get(same)
    assert Counting.started == 0
    assert got == dataclasses.replace(made, case="another-id")
    for sha256 in hashes(got, "first"):
        fresh.load(sha256, "float32", (1, 16))


@pytest.mark.parametrize("damage", ["other bytes", "gone"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, runtime: Runtime, damage: str) -> None:
    made = maker(tmp_path, runtime).get(case(tmp_path, graphs.fc_chain()))
    kept = Objects(tmp_path / "cache" / "objects").path(hashes(made, "first")[0])
    if damage == "gone":
        kept.unlink()
    else:
        kept.chmod(0o644)
        raw = bytearray(kept.read_bytes())
        raw[0] ^= 1
        kept.write_bytes(bytes(raw))
    fresh = Objects(tmp_path / "other" / "objects")
    got = maker(tmp_path, runtime, fresh).get(case(tmp_path, graphs.fc_chain(), fresh))
    assert Counting.started == 3
    assert hashes(got, "first") == hashes(made, "first")
    for sha256 in hashes(got, "first"):
        fresh.load(sha256, "float32", (1, 16))


@pytest.mark.parametrize("what", ["inputs", "model", "repeats", "runtime"])
def test_the_cache_is_keyed_by_all_the_numbers_depend_on(tmp_path: Path, runtime: Runtime, what: str) -> None:
    one = case(tmp_path, graphs.fc_chain())
    maker(tmp_path, runtime).get(one)
    limits, other, used = Limits(), one, runtime
    if what == "inputs":
        other = case(tmp_path, graphs.fc_chain(), x=X * np.float32(3))
    elif what == "model":
        other = case(tmp_path, graphs.fc_chain(layers=2))
    elif what == "repeats":
        limits = Limits(repeats=2)
    else:
        used = dataclasses.replace(runtime, files={**runtime.files, runtime.library: ("0" * 64, 1)})
    maker(tmp_path, used, limits=limits).get(other)
    assert Counting.started == 3


def test_a_model_the_cpu_refuses_has_no_reference_and_is_asked_again(tmp_path: Path, runtime: Runtime) -> None:
    one = case(tmp_path, graphs.custom_op(), x=np.zeros((1, 8), np.float32))
    got = maker(tmp_path, runtime).get(one)
    assert got.first is None
    assert got.failure is not None
    assert not got.failure.infra
    assert got.failure.message.startswith("first reference run: ")
    maker(tmp_path, runtime).get(one)
    assert Counting.started > 0


def test_metadata_that_allows_half_precision_is_hidden_from_the_reference(tmp_path: Path) -> None:
    graph = graphs.Graph()
    x = graph.input("x", (1, 4))
    graph.metadata(REDUCED_PRECISION.decode(), b"fp16accfp32")
    data = graph.finish([graph.op("MUL", [x, x], [graph.tensor("y", (1, 4))])])
    path = graphs.write(tmp_path, "reduced", data)
    with _fp32_model(path) as plain:
        copy = plain.read_bytes()
    assert not plain.exists()
    assert REDUCED_PRECISION in data
    assert REDUCED_PRECISION not in copy
    assert len(copy) == len(data)
    assert sum(a != b for a, b in zip(copy, data, strict=True)) == 1


def test_a_model_without_that_metadata_is_used_as_it_is(tmp_path: Path) -> None:
    path = graphs.write(tmp_path, "plain", graphs.fc_chain())
    with _fp32_model(path) as plain:
        assert plain == path


def test_what_indices_were_chosen_from_is_kept_with_the_reference(tmp_path: Path, runtime: Runtime) -> None:
    scores = np.random.default_rng(3).standard_normal((1, 4, 16)).astype(np.float32)
    objects = Objects(tmp_path / "objects")
    made = maker(tmp_path, runtime, objects)
    plain = case(tmp_path, graphs.argmax(), objects, x=scores, sets=1)
    known = dataclasses.replace(plain, graph=graph_facts(read_model(Path(plain.model_path)), 0))
    try:
        reference = made.get(known)
    finally:
        made.close()
    (kept,) = reference.index_scores
    assert (kept.position, kept.dtype, kept.axis) == (0, "float32", 2)
    shown = kept.runs[0].outputs[0]
    assert np.array_equal(objects.load(shown.sha256, "float32", shown.shape), scores)
