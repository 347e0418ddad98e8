"""The run folder: what is written is read back, what is damaged is told, what is finished survives kill -9."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.configs import Config
from farm.defaults import Limits
from farm.delegation import Delegation
from farm.errors import InvalidInput, NoSpace, TransferFailed
from farm.objects import MMAP_FROM_BYTES, Objects
from farm.outcome import Failure, Outcome, PrecisionClass, Reference
from farm.plan import Plan, PlannedDevice
from farm.store import RunStore

SHA_EMPTY = hashlib.sha256(b"").hexdigest()


def plan(run_id: str = "20260102T030405-abc") -> Plan:
    return Plan(
        run_id=run_id,
        created="2026-01-02T03:04:05Z",
        farm_version="0",
        inventory_sha256=None,
        limits=Limits(),
        devices=(PlannedDevice(id="here", transport="local"),),
        configs=(Config(name="gpu-fp32", accelerator="gpu", precision="fp32"),),
        cases=(),
        cells=(),
    )


def outcome(cell: str, attempts: int = 1) -> Outcome:
    return Outcome(
        cell=cell,
        attempts=attempts,
        started="2026-01-02T03:04:05Z",
        finished="2026-01-02T03:04:06Z",
        wall_s=1.0,
        result=None,
        failure=Failure(code="CRASH", message="it crashed\nhere", signal=11),
        delegation=Delegation(level="unknown"),
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.create(tmp_path / "runs", plan()) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "farm-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk needs root (tmpfs)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


# --- objects ------------------------------------------------------------------------------------------------------


def test_an_object_is_kept_under_its_sha256_once(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    sha = objects.put_bytes(b"abcd")
    assert objects.put_bytes(memoryview(b"abcd")) == sha == hashlib.sha256(b"abcd").hexdigest()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / sha[:2] / sha]
    assert objects.has(sha)
    assert not objects.has(SHA_EMPTY)


def test_adopt_moves_a_file_in_and_refuses_other_bytes(tmp_path: Path) -> None:
    objects, file = Objects(tmp_path / "objects"), tmp_path / "out.bin"
    file.write_bytes(b"abcd")
    with pytest.raises(TransferFailed, match="announced"):
        objects.adopt(file, SHA_EMPTY)
    assert file.exists()
    sha = hashlib.sha256(b"abcd").hexdigest()
    for _ in range(2):
        file.write_bytes(b"abcd")
        objects.adopt(file, sha)
        assert not file.exists()
    assert objects.path(sha).read_bytes() == b"abcd"


def test_adopt_of_a_missing_file_is_a_failed_transfer(tmp_path: Path) -> None:
    with pytest.raises(TransferFailed, match="cannot read"):
        Objects(tmp_path).adopt(tmp_path / "nothing", SHA_EMPTY)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int8", "uint8", "bool", "complex64"])
def test_arrays_come_back_as_they_were(tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    objects = Objects(tmp_path)
    back = objects.load(objects.put_bytes(array.tobytes()), dtype, (2, 3))
    assert back.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(back, array)
    assert not back.flags.writeable


def test_types_numpy_has_no_name_for_come_raw(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    sha = objects.put_bytes(bytes([1, 2, 3, 4]))
    assert objects.load(sha, "bfloat16", (2,)).tolist() == [0x0201, 0x0403]
    packed = objects.load(sha, "int4", (8,))
    assert (packed.dtype, packed.shape) == (np.uint8, (4,))
    assert objects.load(sha, "int4", (2, 2)).shape == (2, 2)
    assert objects.load(sha, "string", (1,)).tolist() == [1, 2, 3, 4]


def test_scalars_and_empty_arrays_load(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    assert objects.load(objects.put_bytes(np.float32(2.5).tobytes()), "float32", ()) == 2.5
    assert objects.load(objects.put_bytes(b""), "float32", (0, 4)).shape == (0, 4)


def test_large_objects_are_memory_mapped(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    array = np.arange(MMAP_FROM_BYTES // 4, dtype=np.float32)
    back = objects.load(objects.put_bytes(array.tobytes()), "float32", array.shape)
    assert type(back.base.base.obj if isinstance(back.base.base, memoryview) else back.base.obj).__name__ == "mmap"
    np.testing.assert_array_equal(back, array)
    assert not back.flags.writeable


def test_what_is_not_kept_is_a_key_error(tmp_path: Path) -> None:
    for sha in (SHA_EMPTY, "../../etc/passwd", "", "A" * 64):
        with pytest.raises(KeyError):
            Objects(tmp_path).load(sha, "uint8", (0,))


def test_an_object_that_does_not_fill_the_shape_is_not_loaded(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    sha = objects.put_bytes(bytes(8))
    with pytest.raises(KeyError, match="holds 8 bytes"):
        objects.load(sha, "float32", (3,))


@pytest.mark.parametrize("damage", [b"", b"abce"])
def test_a_damaged_object_is_not_kept_and_can_be_stored_again(tmp_path: Path, damage: bytes) -> None:
    objects = Objects(tmp_path)
    sha = objects.put_bytes(b"abcd")
    objects.path(sha).write_bytes(damage)
    with pytest.raises(KeyError, match="damaged"):
        objects.load(sha, "uint8", (4,))
    assert not objects.has(sha)
    objects.put_bytes(b"abcd")
    assert objects.load(sha, "uint8", (4,)).tobytes() == b"abcd"


def test_an_object_is_checked_again_when_its_file_changed(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    sha = objects.put_bytes(b"abcd")
    objects.load(sha, "uint8", (4,))
    objects.path(sha).write_bytes(b"abce")
    os.utime(objects.path(sha), ns=(1, 1))
    with pytest.raises(KeyError, match="damaged"):
        objects.load(sha, "uint8", (4,))


def test_a_name_that_lost_its_bytes_is_filled_again(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    objects.path(objects.put_bytes(b"abcd")).write_bytes(b"")
    assert objects.path(objects.put_bytes(b"abcd")).read_bytes() == b"abcd"


def test_no_path_is_made_of_what_is_no_sha256(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        Objects(tmp_path).path("../../../etc/passwd")


def test_a_full_disk_is_no_space_and_leaves_no_part(small_disk: Path) -> None:
    with pytest.raises(NoSpace, match="free some space"):
        Objects(small_disk).put_bytes(os.urandom(1 << 20))
    assert [p for p in small_disk.rglob("*") if p.is_file()] == []


# --- run folder ---------------------------------------------------------------------------------------------------


def test_a_run_opens_as_it_was_made(store: RunStore) -> None:
    assert RunStore.open(store.folder).plan == store.plan
    assert store.objects.root == store.folder.parent / "objects"


def test_a_run_id_is_used_once(store: RunStore) -> None:
    with pytest.raises(InvalidInput, match="--resume"):
        RunStore.create(store.folder.parent, store.plan)


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidInput, match="writable") as caught:
        RunStore.create(tmp_path / "file", plan())
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("run_id", ["", "..", ".hidden", "a/b", "../x", "a\0b", "x" * 300, "new\nline"])
def test_a_hostile_run_id_makes_no_folder(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(InvalidInput, match="file name"):
        RunStore.create(tmp_path / "runs", plan(run_id))
    assert list(tmp_path.iterdir()) == []


def test_opening_what_is_no_run_says_which_kind_of_nothing_it_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such run folder"):
        RunStore.open(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"no run: it holds no plan\.json"):
        RunStore.open(tmp_path)
    (tmp_path / "plan.json").write_text('{"run_id": ')
    with pytest.raises(InvalidInput, match="damaged"):
        RunStore.open(tmp_path)


def test_a_plan_of_another_schema_is_refused(store: RunStore) -> None:
    file = store.folder / "plan.json"
    file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(InvalidInput, match="version 9"):
        RunStore.open(store.folder)


@pytest.mark.parametrize("name", ["..", "a/../../b", "/etc/x", ".x", "", "a\0", "x" * 201])
def test_hostile_ids_never_leave_the_folder(store: RunStore, name: str) -> None:
    reference = Reference(case=name, first=None, second=None, floor=None)
    for use in (
        lambda: store.cell_folder(name),
        lambda: store.write_facts(name, {}),
        lambda: store.write_precision(name, []),
        lambda: store.write_reference(reference),
    ):
        with pytest.raises(InvalidInput, match="file name"):
            use()


def test_records_come_back(store: RunStore) -> None:
    reference = Reference(case="net", first=None, second=None, floor=None, floor_note="none")
    measured = PrecisionClass(device="here", runtime="r", config="gpu", value="fp16", evidence="NaN on two")
    store.write_reference(reference)
    store.write_facts("here", {"gpu": "llvmpipe", "n": 3, "list": ["a"]})
    store.write_precision("here", [measured])
    again = RunStore.open(store.folder)
    assert again.references() == {"net": reference}
    assert again.facts() == {"here": {"gpu": "llvmpipe", "n": 3, "list": ["a"]}}
    assert again.precision() == [measured]
    assert store.cell_folder("a@b").is_dir()
    assert again.damage == []


def test_a_damaged_record_counts_as_missing_and_is_told(store: RunStore) -> None:
    store.write_facts("here", {"gpu": "x"})
    (store.folder / "devices" / "here" / "facts.json").write_text("{")
    assert store.facts() == {}
    assert store.facts() == {}
    assert len(store.damage) == 1
    assert "facts.json" in store.damage[0]


# --- journal ------------------------------------------------------------------------------------------------------


def test_outcomes_come_back_and_the_last_line_about_a_cell_counts(store: RunStore) -> None:
    for one in (outcome("a"), outcome("b"), outcome("a", attempts=2)):
        store.append(one)
    assert RunStore.open(store.folder).outcomes() == {"a": outcome("a", attempts=2), "b": outcome("b")}


def test_a_run_without_a_finished_cell_has_no_outcomes(store: RunStore) -> None:
    assert store.outcomes() == {}


def journal(store: RunStore) -> Path:
    return store.folder / "journal.jsonl"


def test_a_torn_last_line_is_ignored_and_cut_on_resume(store: RunStore) -> None:
    store.append(outcome("a"))
    store.append(outcome("b"))
    store.close()
    journal(store).write_bytes(journal(store).read_bytes()[:-40])
    again = RunStore.open(store.folder)
    assert set(again.outcomes()) == {"a"}
    assert again.damage == []
    again.append(outcome("c"))
    again.close()
    assert set(RunStore.open(store.folder).outcomes()) == {"a", "c"}
    assert again.damage == []


def test_a_whole_last_line_without_its_newline_is_kept(store: RunStore) -> None:
    store.append(outcome("a"))
    store.close()
    journal(store).write_bytes(journal(store).read_bytes()[:-1])
    again = RunStore.open(store.folder)
    assert set(again.outcomes()) == {"a"}
    again.append(outcome("b"))
    again.close()
    assert set(again.outcomes()) == {"a", "b"}


def test_a_torn_line_longer_than_one_read_is_cut(store: RunStore) -> None:
    store.append(outcome("a"))
    store.close()
    with journal(store).open("ab") as f:
        f.write(b'{"cell": "' + b"x" * 200_000)
    again = RunStore.open(store.folder)
    again.append(outcome("b"))
    again.close()
    assert set(again.outcomes()) == {"a", "b"}
    assert again.damage == []


def test_a_damaged_line_is_skipped_and_told_with_its_number(store: RunStore) -> None:
    for cell in "abc":
        store.append(outcome(cell))
    store.close()
    lines = journal(store).read_bytes().split(b"\n")
    lines[1] = b"\xff\x00" + lines[1][2:]
    journal(store).write_bytes(b"\n".join(lines))
    again = RunStore.open(store.folder)
    assert set(again.outcomes()) == {"a", "c"}
    assert len(again.damage) == 1
    assert "journal.jsonl:2:" in again.damage[0]


def test_two_stores_never_write_one_run(store: RunStore) -> None:
    other = RunStore.open(store.folder)
    for use in (other.claim, lambda: other.append(outcome("x"))):
        with pytest.raises(InvalidInput, match="another farm process"):
            use()
    assert other.outcomes() == {}
    store.close()
    other.claim()
    other.close()


def test_kill_9_keeps_what_was_appended_and_frees_the_run(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_store as t\n"
        "from pathlib import Path\n"
        "store = t.RunStore.create(Path(sys.argv[1]), t.plan())\n"
        "store.append(t.outcome('a'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    with RunStore.open(tmp_path / plan().run_id) as store:
        store.claim()
        assert set(store.outcomes()) == {"a"}


def test_a_store_that_is_dropped_lets_go(tmp_path: Path) -> None:
    RunStore.create(tmp_path, plan())
    with RunStore.open(tmp_path / plan().run_id) as store:
        store.claim()


def test_threads_append_whole_lines(store: RunStore) -> None:
    def write(name: str) -> None:
        for n in range(10):
            store.append(outcome(f"{name}{n}"))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.outcomes()) == 40
    assert store.damage == []


def test_a_full_disk_leaves_the_journal_as_it_was(small_disk: Path) -> None:
    with RunStore.create(small_disk, plan()) as store:
        store.append(outcome("a"))
        (small_disk / "filler").write_bytes(b"x" * 200_000)
        long = Outcome(**{**{f: getattr(outcome("b"), f) for f in Outcome.__slots__}, "log_tail": "y" * 100_000})
        with pytest.raises(NoSpace):
            store.append(long)
        assert journal(store).read_bytes().endswith(b"}\n")
        (small_disk / "filler").unlink()
        store.append(outcome("c"))
        assert set(store.outcomes()) == {"a", "c"}
        assert store.damage == []


def _put(root: str, count: int) -> None:
    objects = Objects(Path(root))
    for n in range(count):
        objects.put_bytes(f"{n}".encode() * 1000)


def test_processes_store_the_same_objects_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_put, args=(str(tmp_path), 50)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == 50
    assert all(hashlib.sha256(p.read_bytes()).hexdigest() == p.name for p in files)
