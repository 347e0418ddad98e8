"""What users name, before it is opened: pipes, devices, loops of links, odd names; and where results may go."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.arrays import open_arrays
from farm.cases import ModelRequest, build_cases
from farm.defaults import Limits
from farm.errors import InvalidInput
from farm.inventory import load_inventory
from farm.objects import HeldObjects, Objects
from farm.paths import check_folder, check_text, same_file_key, write_named
from farm.prepare import prepare
from farm.runtimes import add_runtime
from farm.store import RunStore
from farm.tflite import read_model
from tests import graphs


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("model.tflite", read_model),
        ("in.npz", open_arrays),
        ("in.safetensors", open_arrays),
        ("inventory.yaml", load_inventory),
        ("litert-2.3.0.whl", add_runtime),
    ],
)
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidInput, match="is a pipe, not a file"):
        read(tmp_path / name)


@pytest.mark.timeout(20)
def test_a_run_whose_plan_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(InvalidInput, match="is a pipe, not a file"):
        RunStore.open(tmp_path)


def test_a_device_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is a device, not a file"):
        read_model(Path("/dev/zero"))


def test_a_loop_of_links_is_one_sentence(tmp_path: Path) -> None:
    loop = tmp_path / "loop.tflite"
    loop.symlink_to(loop.name)
    assert same_file_key(loop) == str(loop)
    with pytest.raises(InvalidInput, match="symbolic links"):
        build_cases([ModelRequest(path=loop)], HeldObjects(None), Limits())


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_model_path_without_a_name_is_a_directory(name: str) -> None:
    with pytest.raises(InvalidInput, match="is a directory, not a model"):
        prepare([name])


@pytest.mark.parametrize("name", ["a\nb.tflite", "\udcff.tflite"])
def test_a_name_that_no_plan_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    model = graphs.write(tmp_path, "fc", graphs.fc_chain())
    odd = model.rename(tmp_path / name)
    with pytest.raises(InvalidInput, match=r"(?s)line break \(rename it\)|not text in UTF-8.*rename it") as refused:
        build_cases([ModelRequest(path=odd)], HeldObjects(None), Limits())
    str(refused.value).encode("utf-8")  # can be printed


def test_a_name_with_spaces_quotes_and_other_scripts_is_fine(tmp_path: Path) -> None:
    check_text(tmp_path / "a b'\"$(x)`é漢🎉.tflite", "rename it")


def test_an_out_folder_that_cannot_be_is_told_together_with_the_bad_model(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "page.tflite").write_text("<html>")
    with pytest.raises(InvalidInput) as refused:
        prepare([tmp_path / "page.tflite"], out=tmp_path / "file" / "runs")
    assert [p.message for p in refused.value.problems] == ["is not a folder", "is an HTML page, not a model"]


def test_an_out_folder_to_be_made_is_fine_and_not_made_yet(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", "choose another")
    assert not (tmp_path / "a").exists()


def test_a_refused_sweep_leaves_nothing(tmp_path: Path) -> None:
    good = graphs.write(tmp_path, "fc", graphs.fc_chain())
    (tmp_path / "empty.tflite").touch()
    with pytest.raises(InvalidInput):
        prepare([good, tmp_path / "empty.tflite"], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_plan_alone_writes_nothing_and_names_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = graphs.write(tmp_path, "fc", graphs.fc_chain())
    alone = prepare([good], configs=["cpu"])
    assert sorted(os.listdir()) == [good.name]
    kept = prepare([good], configs=["cpu"], out="runs")
    assert alone.cases == kept.cases
    digests = [a.sha256 for s in kept.cases[0].input_sets for a in s.arrays]
    assert all(Objects(Path("runs/objects")).has(d) for d in digests)


def test_held_objects_beyond_the_room_are_written_through(tmp_path: Path) -> None:
    held = HeldObjects(tmp_path, hold_bytes=4)
    small, large = held.put_bytes(b"abc"), held.put_bytes(b"defgh")
    assert (held.has(small), held.has(large)) == (False, True)
    held.write()
    assert held.path(small).read_bytes() == b"abc"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seed": -1}, "seed cannot be -1"),
        ({"repeats": 0}, "repeats cannot be 0"),
        ({"iterations": 0}, "iterations cannot be 0"),
        ({"min_norm": float("nan")}, "min_norm cannot be nan"),
        ({"min_norm": float("inf")}, "min_norm cannot be inf"),
        ({"min_cosine_similarity": float("nan")}, "min_cosine_similarity cannot be nan"),
    ],
)
def test_limits_that_would_judge_nonsense_are_refused(tmp_path: Path, wrong: dict[str, float], words: str) -> None:
    good = graphs.write(tmp_path, "fc", graphs.fc_chain())
    with pytest.raises(InvalidInput, match=words):
        prepare([good], **wrong)  # type: ignore[arg-type]


def test_a_result_for_a_pipe_goes_through_it_and_leaves_it_a_pipe(tmp_path: Path) -> None:
    """A rename there would put a file in its place; `--json-output /dev/null` as root did that to the system's own."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_named(pipe, b"result")  # six bytes wait in the pipe
    assert os.read(reader, 100) == b"result"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.timeout(20)
def test_a_result_for_a_pipe_that_nobody_reads_is_an_error_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"No such device|Device not configured"):
        write_named(tmp_path / "pipe", b"result")


def test_a_result_behind_a_link_is_written_where_the_link_points(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.json").symlink_to("folder/real.json")
    write_named(tmp_path / "link.json", b"{}")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "folder" / "real.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("name", "words"), [("missing.whl", "there is no such file"), ("page.aar", "not a wheel, .aar or zip file")]
)
def test_a_runtime_source_is_looked_at_before_its_name_is(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "page.aar").write_text("<html>")
    with pytest.raises(InvalidInput, match=words):
        add_runtime(tmp_path / name)
