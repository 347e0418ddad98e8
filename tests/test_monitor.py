"""The logging API: what goes in comes out of the folder, timing leaves logging out, half a dump is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from farm.errors import InvalidInput
from farm.monitor import Monitor
from farm.tensors import open_tensors

DOCS = Path(__file__).resolve().parents[1] / "docs"


@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.float16, np.int8, np.int64, np.bool_, np.uint16, ">f4", ">i8"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    layout=st.sampled_from(["C", "F"]),
)
def test_every_array_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, layout: Any
) -> None:
    folder = tmp_path_factory.mktemp("m") / "d"
    with Monitor(folder) as monitor, monitor.inference() as run:
        run.output("y", np.asarray(array, order=layout))
    (tensor,) = open_tensors(folder).tensors
    back = tensor.array.read()
    assert back.shape == array.shape
    assert back.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


def test_bfloat16_is_kept_as_its_bits(tmp_path: Path) -> None:
    array = np.array([1.5, -2, 3e30], ml_dtypes.bfloat16)
    with Monitor(tmp_path / "d") as monitor, monitor.inference() as run:
        run.output("y", array)
    (tensor,) = open_tensors(tmp_path / "d").tensors
    assert tensor.array.dtype == "bfloat16"
    assert tensor.array.read().tobytes() == array.tobytes()


def test_anything_numpy_reads_can_be_logged_and_nothing_else(tmp_path: Path) -> None:
    class Foreign:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(3, dtype=np.float32)

    with Monitor(tmp_path / "d") as monitor, monitor.inference() as run:
        run.outputs({"a": Foreign(), "b": [1.0, 2.0], "c": 3})
        with pytest.raises(InvalidInput, match="cannot be kept"):
            run.output("d", np.array(["text"]))
    assert [t.array.shape for t in open_tensors(tmp_path / "d").tensors] == [(3,), (2,), ()]


def test_latency_is_between_start_and_stop_only(tmp_path: Path) -> None:
    big = np.zeros((1 << 20,), np.float32)
    with Monitor(tmp_path / "d") as monitor, monitor.inference("one") as run:
        run.input("x", big)
        run.start()
        first = run.stop()
        run.output("y", big)
        run.start()
        second = run.stop()
    manifest = open_tensors(tmp_path / "d").manifest
    assert manifest is not None
    assert manifest.latency_ms == {"one": (first, second)}
    assert max(first, second) < 1.0  # writing 4 MiB and hashing it is far beyond that


def test_layers_are_kept_on_request_only(tmp_path: Path) -> None:
    for layers in (False, True):
        with Monitor(tmp_path / str(layers), layers=layers) as monitor, monitor.inference() as run:
            run.layer("conv", np.ones(3))
            run.output("y", np.ones(3))
    assert [t.role for t in open_tensors(tmp_path / "False").tensors] == ["output"]
    assert [t.role for t in open_tensors(tmp_path / "True").tensors] == ["layer", "output"]


def test_a_name_that_comes_again_is_the_next_step(tmp_path: Path) -> None:
    with Monitor(tmp_path / "d") as monitor:
        for _ in range(3):
            with monitor.inference("chat") as run:
                run.output("y", np.ones(3))
    assert [(t.set, t.step) for t in open_tensors(tmp_path / "d").tensors] == [("chat", 0), ("chat", 1), ("chat", 2)]


def test_half_a_dump_is_no_dump(tmp_path: Path) -> None:
    def fail() -> None:
        with Monitor(tmp_path / "d") as monitor, monitor.inference() as run:
            run.output("y", np.ones(3))
            raise KeyError("the model broke")

    with pytest.raises(KeyError):
        fail()
    assert not (tmp_path / "d" / "tensors.json").exists()


def test_misuse_is_told(tmp_path: Path) -> None:
    with Monitor(tmp_path / "d") as monitor:
        with pytest.raises(InvalidInput, match="without start"):
            monitor.inference().stop()
        with pytest.raises(InvalidInput, match="never stopped"), monitor.inference("a") as run:
            run.start()
        monitor.inference().output("y", np.ones(1))
    with pytest.raises(InvalidInput, match="after close"):
        monitor.inference().output("y", np.ones(1))
    with pytest.raises(InvalidInput, match="holds a dump already"):
        Monitor(tmp_path / "d")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be made"):
        Monitor(tmp_path / "file" / "d")


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "monitor.md").read_text()
    example = next(code for code in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "numpy" in code)
    exec(compile(example, "monitor.md", "exec"), {"__name__": "example"})
    assert json.loads((tmp_path / "numpy_dump" / "tensors.json").read_text())["latency_ms"]
