"""Chunks that do not compile are split and tried again; what cannot be exposed is said; this CPU as the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.delegation import Delegation
from farm.layers.bench import Bench
from farm.layers.study import allowed_runs
from farm.layers.sweep import CannotStudy, Feed, Sweep, sweep, worst_first
from farm.layers.view import View, watch
from farm.outcome import Failure
from farm.runner import open_transport
from farm.runtimes import find_runtime, host_platform
from farm.session import Observation, Session
from farm.tflite import read_model
from tests import graphs
from tests.layers.kit import case_of, lab_device
from tests.layers.planted import healthy


class Picky(Bench):
    """The real bench, but files with certain tensors exposed do not compile.

    No graph is known whose copies the lab's GPUs refuse, so the refusal is made here; everything else really runs.
    """

    refused: frozenset[str] = frozenset()
    most: int = 1 << 30

    def run(self, name: str, data: bytes, inputs: object, **more: object) -> Observation:  # type: ignore[override]
        path = self.folder / "seen.tflite"
        path.write_bytes(data)
        shown = [n for n, _ in read_model(path).signatures[0].outputs if n.startswith("farm/layer")]
        if len(shown) > self.most or self.refused.intersection(shown):
            self.runs += 1
            failure = Failure(code="RUNTIME_ERROR", message="does not compile", stage="compile")
            return Observation(result=None, failure=failure, delegation=Delegation())
        return super().run(name, data, inputs, **more)  # type: ignore[arg-type]


def swept(tmp_path: Path, data: bytes, *, most: int = 1 << 30, refused: int | None = None) -> tuple[View, Sweep, Bench]:
    case, objects = case_of(tmp_path, data)
    device = lab_device(None)
    session = Session(device=device, transport=open_transport(device), objects=objects, limits=Limits())
    session.open()
    parts = {"session": session, "runtime": find_runtime(None, host_platform()), "config": CONFIGS["cpu"]}
    bench, host = Picky(folder=tmp_path, **parts), Bench(folder=tmp_path, **parts)
    view = watch(read_model(Path(case.model_path)), 0)
    bench.most = most
    bench.refused = frozenset() if refused is None else frozenset((f"farm/layer{list(view.layers)[refused]}",))
    feed = Feed(signature=0, sets=tuple(tuple(a.sha256 for a in s.arrays) for s in case.input_sets))
    return view, sweep(case, view, feed, bench, host, low_precision=False), bench


def test_a_chunk_that_does_not_compile_is_split_until_it_does(tmp_path: Path) -> None:
    view, found, bench = swept(tmp_path, healthy(4), most=3)
    assert set(found.health) == set(view.layers)
    assert found.unseen == {}
    assert found.chunks == 1
    assert found.failed_chunks > 1
    # One plain run, one for the chunk, two more for each that failed.
    assert bench.runs == 2 + 2 * found.failed_chunks
    assert bench.runs <= allowed_runs(1000, 1 << 20, found.failed_chunks, len(view.graph.ops), cuts=False)


def test_a_tensor_that_cannot_be_exposed_is_named_and_costs_no_other(tmp_path: Path) -> None:
    view, found, _ = swept(tmp_path, healthy(4), refused=9)
    (tensor,) = found.unseen
    assert tensor == list(view.layers)[9]
    assert "RUNTIME_ERROR: does not compile" in found.unseen[tensor]
    assert set(found.health) == set(view.layers) - {tensor}


def test_the_same_device_agrees_with_itself_to_the_bit(tmp_path: Path) -> None:
    view, found, _ = swept(tmp_path, healthy(4))
    assert found.perturbed == []
    assert {h.snr_db for h in found.health.values()} == {200.0}
    assert [la.op for la, _ in worst_first(view, found.health)] == [la.op for la in view.layers.values()]


def test_a_model_that_does_not_run_cannot_be_studied(tmp_path: Path) -> None:
    with pytest.raises(CannotStudy, match="does not run on here"):
        swept(tmp_path, graphs.custom_op())
