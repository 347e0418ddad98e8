"""Rewriting keeps a model what it is: same outputs, same order, same bytes each time, and shows tensors truthfully."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.agent_protocol import AgentResult
from farm.exposed import Exposed, run_exposed
from farm.objects import Objects
from farm.rewrite import NotRewritable, Rewrite
from tests import graphs
from tests.trustkit import case_of, maker, model_of, rng


def test_packing_unchanged_gives_the_same_graph_and_the_same_bytes_twice(tmp_path: Path) -> None:
    model = model_of(tmp_path, graphs.tiny_cnn())
    packed = Rewrite(model).pack()
    assert packed == Rewrite(model).pack()
    again = model_of(tmp_path, packed, "again")
    assert again.subgraphs == model.subgraphs
    assert again.signatures == model.signatures


def test_metadata_and_every_signature_survive(tmp_path: Path) -> None:
    graph = graphs.Graph()
    x = graph.input("x", (1, 4))
    graph.metadata("note", b"keep me")
    model = model_of(tmp_path, graph.finish([graph.op("MUL", [x, x], [graph.tensor("y", (1, 4))])]))
    again = model_of(tmp_path, Rewrite(model).pack(), "again")
    start, size = again.buffers[again.metadata["note"]]
    assert bytes(again.data[start : start + size]) == b"keep me"
    two = model_of(tmp_path, graphs.two_signatures(), "two")
    assert model_of(tmp_path, Rewrite(two).pack(), "two-again").signatures == two.signatures


def test_exposed_tensors_come_after_the_models_own_outputs_and_constants_are_left_out(tmp_path: Path) -> None:
    model = model_of(tmp_path, graphs.fc_chain())
    rewrite = Rewrite(model)
    names = rewrite.expose(0, range(len(model.subgraphs[0].tensors)))
    shown = model_of(tmp_path, rewrite.pack(), "shown")
    outputs = [name for name, _ in shown.signatures[0].outputs]
    assert outputs == [model.signatures[0].outputs[0][0], *names.values()]
    assert {model.subgraphs[0].tensors[t].name for t in names} == {"x", "h0", "h1", "y"}
    for t, name in names.items():
        copy = dict(shown.signatures[0].outputs)[name]
        assert shown.subgraphs[0].tensors[copy].shape == model.subgraphs[0].tensors[t].shape


def test_names_already_taken_are_avoided(tmp_path: Path) -> None:
    graph = graphs.Graph()
    x = graph.input("farm_copy_0", (1, 4))
    model = model_of(tmp_path, graph.finish([graph.op("MUL", [x, x], [graph.tensor("farm_copy_1", (1, 4))])]))
    rewrite = Rewrite(model)
    names = rewrite.expose(0, [0, 1])
    assert names == {0: "farm_copy_0_", 1: "farm_copy_1_"}
    outputs = model_of(tmp_path, rewrite.pack(), "shown").signatures[0].outputs
    assert [name for name, _ in outputs] == ["farm_copy_1", "farm_copy_0_", "farm_copy_1_"]


def shown_run(tmp_path: Path, data: bytes, *arrays: np.ndarray) -> tuple[Exposed, AgentResult, Objects]:
    """A plain reference and a run that shows every float tensor of a model."""
    objects = Objects(tmp_path / "objects")
    model = model_of(tmp_path, data)
    case = case_of(model, objects, arrays)
    references = maker(tmp_path, objects)
    first = references.get(case).first
    assert first is not None
    task = references._task(case)
    with references._lab(task) as lab:
        shown = run_exposed(case, task, model, range(len(model.subgraphs[0].tensors)), lab)
        assert isinstance(shown, Exposed)
        for run in shown.result.runs:
            for output in run.outputs:
                objects.put_bytes(lab.objects.path(output.sha256).read_bytes())
    references.close()
    return shown, first, objects


def test_what_is_shown_is_what_the_ops_compute(tmp_path: Path) -> None:
    x = rng().standard_normal((1, 16)).astype(np.float32)
    shown, first, objects = shown_run(tmp_path, graphs.square_scaled((3.0,), (0.5,)), x)
    (run,) = shown.result.runs
    assert run.outputs[0].sha256 == first.runs[0].outputs[0].sha256
    seen = {t: objects.load(o.sha256, "float32", o.shape) for t in shown.index if (o := shown.output(run, t))}
    scaled = x * np.float32(3)
    assert any(np.array_equal(v, scaled) for v in seen.values())
    assert any(np.array_equal(v, scaled * scaled) for v in seen.values())


def test_a_model_whose_shapes_may_change_shows_tensors_in_the_shape_they_were_fed(tmp_path: Path) -> None:
    x = rng().standard_normal((3, 8)).astype(np.float32)
    shown, first, objects = shown_run(tmp_path, graphs.dynamic_batch(), x)
    (run,) = shown.result.runs
    assert run.outputs[0].sha256 == first.runs[0].outputs[0].sha256
    given = shown.output(run, 0)
    assert given is not None
    assert given.shape == (3, 8)
    assert np.array_equal(objects.load(given.sha256, "float32", given.shape), x)


def test_constants_in_another_file_are_refused_by_name(tmp_path: Path) -> None:
    model = model_of(tmp_path, graphs.fc_chain())
    rewrite = Rewrite(model)
    rewrite.tree.subgraphs[0].tensors[1].externalBuffer = 1
    with pytest.raises(NotRewritable, match="another file"):
        rewrite._gather()
