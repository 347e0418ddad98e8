"""Agents on devices behind links: they outlive a lost link, are found again or killed, and a device has one user.

Real adb server, real sshd, the real agent; the stand-in runtime gives runs that last as long as a test needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.errors import DeviceUnavailable, InfraError, LeaseLost
from farm.far_job import remains, start_argv
from farm.lease import Lease, new_owner, whoami
from farm.objects import Objects
from farm.plan import PlannedDevice
from farm.runtimes import Runtime
from farm.session import Observation, Session, Task, case_task
from farm.transports.adb import AdbTransport
from farm.transports.base import Transport
from farm.transports.local import LocalTransport
from farm.transports.ssh import SshTransport
from tests import graphs
from tests.lab.adb_server import AdbServer, Phones
from tests.lab.sshd import Sshd, sshd_program
from tests.spinekit import fake_runtime, one_input_case


@dataclass(frozen=True, kw_only=True)
class Far:
    """A device behind a link. root: farm's folder there, seen from here; path: seen there. cut: breaks the link."""

    kind: str
    root: Path
    path: str
    fresh: Callable[[], Transport]
    cut: Callable[[], None]


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Far]]:
    folder = tmp_path_factory.mktemp("devices")
    made: dict[str, Far] = {}
    server = AdbServer(folder / "adb")
    server.start()
    phones = Phones(folder / "phones")
    phone = phones.phones[0]
    made["adb"] = Far(
        kind="adb",
        root=phone.root / "data/local/tmp/farm",
        path="/data/local/tmp/farm",
        fresh=lambda: AdbTransport(phone.serial, adb_server=server.address),
        cut=lambda: phones.tell(do="cut"),
    )
    sshd: Sshd | None = None
    if sshd_program() is not None:
        home = folder / "home"
        home.mkdir()
        host = sshd = Sshd(folder=folder / "sshd", extra=(f"SetEnv HOME={home}",))
        sshd.start()

        def cut() -> None:
            for pid in host.sessions():
                os.kill(pid, 9)

        root = home / ".cache/litert-farm"
        made["ssh"] = Far(
            kind="ssh",
            root=root,
            path=str(root),
            fresh=lambda: SshTransport("lab", config=host.config, known_hosts=host.known_hosts),
            cut=cut,
        )
    yield made
    phones.stop()
    server.stop()
    if sshd is not None:
        sshd.stop()


@pytest.fixture(params=["adb", "ssh"])
def far(request: pytest.FixtureRequest, devices: dict[str, Far]) -> Far:
    if request.param not in devices:
        pytest.skip("sshd is not installed (openssh-server)")
    return devices[request.param]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return fake_runtime(tmp_path_factory.mktemp("fakert"))


@pytest.fixture
def work(tmp_path: Path) -> tuple[Objects, Task]:
    objects = Objects(tmp_path / "objects")
    model = tmp_path / "m.tflite"
    model.write_bytes(graphs.square_scaled())
    limits = Limits(iterations=8, repeats=1, warmup=0)
    return objects, case_task(one_input_case(model, objects), CONFIGS["cpu"], limits, 30.0)


def visit(far: Far, objects: Objects, fault: str = "", **given: object) -> Session:
    device = PlannedDevice(id="far", transport=far.kind, env={"FAKERT": fault})
    limits = Limits(lease_wait_s=given.pop("lease_wait_s", 0.0))  # type: ignore[arg-type]
    return Session(device=device, transport=far.fresh(), objects=objects, limits=limits, **given)  # type: ignore[arg-type]


def jobs(far: Far) -> list[Path]:
    folder = far.root / "jobs"
    return sorted(f for f in folder.iterdir() if (f / "pid").exists()) if folder.is_dir() else []


def processes(word: str) -> list[int]:
    """Processes that have `word` in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


def when(fact: Callable[[], object], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not fact():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)


def started(session: Session, task: Task, runtime: Runtime) -> tuple[threading.Thread, list[object]]:
    """Observe in a thread; what came of it lies in the list afterwards."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(session.observe(task, runtime))
        except InfraError as e:
            came.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


def test_a_job_outlives_its_link_and_its_result_is_brought_in_later(
    far: Far, work: tuple[Objects, Task], runtime: Runtime
) -> None:
    objects, task = work
    session = visit(far, objects, "slow")
    session.open()
    thread, came = started(session, task, runtime)
    when(lambda: jobs(far))
    names = {job.name for job in jobs(far)}
    far.cut()
    while thread.is_alive():
        names |= {job.name for job in jobs(far)}
        thread.join(0.02)
    (seen,) = came
    assert isinstance(seen, Observation), seen
    assert seen.failure is None
    assert seen.result is not None
    assert objects.has(seen.result.runs[0].outputs[0].sha256)
    assert len(names) == 1, "the agent was started again instead of being waited for"
    session.leave()
    assert jobs(far) == []


def test_the_next_visit_kills_what_an_earlier_farm_left_and_touches_nothing_foreign(
    far: Far, work: tuple[Objects, Task], runtime: Runtime
) -> None:
    objects, task = work
    first = visit(far, objects, "hang")
    first.open()
    thread, _ = started(first, task, runtime)
    when(lambda: jobs(far))
    (job,) = jobs(far)
    first.close()  # as kill -9 would: no goodbye, the lease stays
    thread.join(20)
    assert processes(job.name), "the agent should have outlived its link"
    foreign = [far.root / "jobs/notes.txt", far.root / "jobs/my stuff/file", far.root / "other/file"]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")

    second = visit(far, objects, "")
    with pytest.raises(DeviceUnavailable, match=r"leased by .*process"):
        second.open()
    transport = far.fresh()
    transport.connect(10)
    assert Lease(transport, far.path, nonce=new_owner()).break_() is not None
    transport.close()
    second = visit(far, objects, "")
    second.open()
    assert not processes(job.name)
    assert not job.exists()
    assert [file.read_text() for file in foreign] == ["mine"] * 3
    assert second.observe(task, runtime).failure is None
    second.leave()


def test_an_agent_that_never_ends_is_killed_at_its_deadline_and_named_by_its_stage(
    far: Far, work: tuple[Objects, Task], runtime: Runtime
) -> None:
    objects, task = work
    session = visit(far, objects, "hang")
    session.open()
    seen = session.observe(dataclasses.replace(task, deadline_s=1.0), runtime)
    assert seen.failure is not None
    assert (seen.failure.code, seen.failure.stage) == ("TIMEOUT", "run")
    assert not processes(session.owner + "-")
    session.leave()


def test_leaving_for_good_removes_all_of_ours(far: Far, work: tuple[Objects, Task], runtime: Runtime) -> None:
    objects, task = work
    session = visit(far, objects)
    session.open()
    session.observe(task, runtime)
    assert {"agent", "runtime", "model", "input"} <= {f.name for f in far.root.iterdir()}
    session.leave(clean=True)
    left = {f.name for f in far.root.iterdir()} if far.root.exists() else set()
    assert left <= {"jobs", "other"}  # what the test above put there as somebody else's
    assert not (far.root / "model").exists()


def test_of_two_farms_one_runs_and_the_late_first_one_is_refused(
    far: Far, work: tuple[Objects, Task], runtime: Runtime
) -> None:
    objects, task = work
    first, second = visit(far, objects), far.fresh()
    first.open()
    second.connect(10)
    other = Lease(second, far.path, nonce=new_owner(), reason="the night's run")
    with pytest.raises(DeviceUnavailable, match="leased by"):
        other.take(0)
    # kill -9 of the first: nobody renews it any more. Its last second is all that is waited for.
    assert first._lease is not None
    first._lease.renew(1)
    other.take(10)
    with pytest.raises(LeaseLost, match="the night's run"):
        first.observe(task, runtime)
    assert jobs(far) == []
    first.leave()
    other.renew()
    other.free()
    assert other.show() is None
    second.close()


def test_only_one_of_many_takers_gets_the_lease(far: Far) -> None:
    won: list[str] = []
    barrier = threading.Barrier(4)
    links = [far.fresh() for _ in range(4)]
    for link in links:
        link.connect(15)

    def take(link: Transport) -> None:
        lease = Lease(link, far.path, nonce=new_owner())
        barrier.wait(20)
        try:
            lease.take(0)
            won.append("won")
        except DeviceUnavailable as e:
            won.append(str(e))

    threads = [threading.Thread(target=take, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert won.count("won") == 1, won
    Lease(links[0], far.path, nonce=new_owner()).break_()
    for link in links:
        link.close()


@pytest.mark.parametrize("said", [b"", b"rc 1 0\n0\n", b"rc x 0\n", b"result.json 5 0\nab\nend\n", b"\xff\n"])
def test_a_jobs_account_that_is_not_whole_is_refused(said: bytes) -> None:
    with pytest.raises(InfraError):
        remains(said)


def test_what_nobody_used_for_long_is_collected_and_what_is_over_the_budget_goes_oldest_first(
    far: Far, work: tuple[Objects, Task], runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, task = work
    session = visit(far, objects)
    session.open()
    session.observe(task, runtime)
    session.leave()
    model = far.root / f"model/{task.model_sha256}.tflite"
    stale, old, older = (far.root / f"input/{digit * 64}" for digit in "abc")
    for file, days in ((stale, 30), (old, 2), (older, 3)):
        file.write_bytes(bytes(200 << 10))
        os.utime(file, (time.time() - 86400 * days,) * 2)
    second = visit(far, objects)
    second.open()
    assert [f.exists() for f in (stale, old, older, model)] == [False, True, True, True]
    second.leave()
    kept = [f for kind in ("agent", "runtime", "model", "input") for f in (far.root / kind).rglob("*")]
    used = sum(f.stat().st_blocks * 512 for f in kept)
    monkeypatch.setattr("farm.place.KEEP_BYTES", used - (100 << 10))  # one of the two must go
    third = visit(far, objects)
    third.open()
    assert [f.exists() for f in (old, older, model)] == [True, False, True]
    third.leave()


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=25)
def test_no_name_leaves_the_lease_it_was_written_in(owner: str, reason: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "it's $(touch pwned); `touch pwned` \"\\"
        transport = LocalTransport()
        transport.connect(1)
        mine = Lease(transport, str(root), nonce=new_owner(), owner=owner, reason=reason)
        mine.take(0, ttl_s=30)
        holder = Lease(transport, str(root), nonce=new_owner()).show()
        assert holder is not None
        # Nobody's name is this process's own.
        assert holder.owner == ("".join(c if c.isprintable() else " " for c in owner) or whoami())
        assert holder.reason == "".join(c if c.isprintable() else " " for c in reason)
        mine.renew(30)
        mine.free()
        assert [f.name for f in Path(folder).iterdir()] == [root.name]


def test_a_hostile_folder_name_reaches_no_shell(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "a'; $(touch pwned) \"b\n-rf"
    transport = LocalTransport()
    transport.connect(1)
    done = transport.run(start_argv(str(folder), ["sh", "-c", "echo said; exit 3"], remove=[str(folder) + "x"]), 20)
    left = remains(done.stdout)
    assert left is not None
    assert (left.exit_status, left.stdout) == (3, b"said\n")
    assert [f.name for f in tmp_path.iterdir()] == ["jobs"]
    assert not list(Path.cwd().glob("pwned"))


def test_a_log_without_end_keeps_its_first_and_last_half(tmp_path: Path) -> None:
    transport = LocalTransport()
    transport.connect(1)
    script = "yes first | head -c 2000000 >log.txt; echo last >>log.txt; echo '{}' >result.json"
    left = remains(transport.run(start_argv(str(tmp_path / "job"), ["sh", "-c", script]), 20).stdout)
    assert left is not None
    assert left.result == b"{}\n"
    assert left.log.startswith(b"first\n")
    assert left.log.endswith(b"last\n")
    assert len(left.log) < (1 << 20) + 100


def test_takers_that_race_for_a_free_lease_never_both_get_it(tmp_path: Path) -> None:
    for round_ in range(12):
        root, barrier = tmp_path / str(round_), threading.Barrier(5)
        won: list[int | None] = []

        def take(root: Path, barrier: threading.Barrier, won: list[int | None]) -> None:
            transport = LocalTransport()
            transport.connect(1)
            lease = Lease(transport, str(root), nonce=new_owner())
            barrier.wait(20)
            with contextlib.suppress(DeviceUnavailable):
                lease.take(0)
                won.append(lease.token)

        threads = [threading.Thread(target=take, args=(root, barrier, won)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(won) == 1, won


@pytest.mark.parametrize(("age_s", "refused"), [(0, True), (200, False)])
def test_a_lease_that_is_just_being_written_is_held_unless_its_writer_died(
    tmp_path: Path, age_s: float, refused: bool
) -> None:
    half = tmp_path / "lease/7"
    half.mkdir(parents=True)
    os.utime(half, (time.time() - age_s,) * 2)
    transport = LocalTransport()
    transport.connect(1)
    lease = Lease(transport, str(tmp_path), nonce=new_owner())
    if refused:
        with pytest.raises(DeviceUnavailable, match="taking it right now"):
            lease.take(0)
        return
    lease.take(0)
    assert lease.token == 8
