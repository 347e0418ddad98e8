"""adb's own faults, as phones and servers were seen to have them (A1-A9), against a real adb server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import DeadlineExceeded, DeviceLost, DeviceUnavailable, InvalidInput, NoSpace, TransferFailed
from farm.probe import probe
from farm.transports import adb
from farm.transports.adb import AdbTransport, parse_devices, server_address
from farm.transports.adb_wire import EXIT, STDERR, STDOUT, _unpack
from farm.transports.base import Deadline
from tests.lab.adb_server import AdbServer, LabPhone, Phones
from tests.lab.faults import scripted_adb_server, silent_listener
from tests.lab.ports import free_port, listens
from tests.transports.contract import alive, until


@pytest.fixture(scope="module")
def bad_phones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phones]:
    made = Phones(tmp_path_factory.mktemp("bad"), 1)
    yield made
    made.stop()


@pytest.fixture
def phone(bad_phones: Phones) -> Iterator[LabPhone]:
    """A phone whose faults a test may switch on; sound again afterwards."""
    yield bad_phones.phones[0]
    bad_phones.tell(faults={}, do="on" if not listens(bad_phones.phones[0].port) else "")


@pytest.fixture
def link(adb_server: AdbServer, bad_phones: Phones, phone: LabPhone) -> Iterator[AdbTransport]:
    bad_phones.tell(faults={})
    transport = AdbTransport(phone.serial, adb_server=adb_server.address)
    transport.connect(20)
    transport.run(["rm", "-rf", "/data/local/tmp/t"], 20)
    transport.run(["mkdir", "-p", "/data/local/tmp/t"], 20)
    yield transport
    transport.close()


@pytest.fixture
def big(tmp_path: Path) -> Path:
    file = tmp_path / "big"
    file.write_bytes(os.urandom(400_000))
    return file


def names(phone: LabPhone) -> list[str]:
    return sorted(p.name for p in (phone.root / "data/local/tmp/t").iterdir())


# --- A1: silent devices -------------------------------------------------------------------------------------------


def test_a_silent_shell_ends_at_the_deadline(
    link: AdbTransport, bad_phones: Phones, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adb, "KILL_LIMIT_S", 0.5)
    bad_phones.tell(faults={"mute_shell": True})
    start = time.monotonic()
    # It can be neither run on nor cleaned: the device is unavailable, not merely late.
    with pytest.raises(DeviceUnavailable, match="no longer answers"):
        link.run(["true"], 0.5)
    assert time.monotonic() - start < 4


def test_a_silent_sync_ends_at_the_deadline(link: AdbTransport, bad_phones: Phones, phone: LabPhone, big: Path) -> None:
    bad_phones.tell(faults={"mute_sync": True})
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="longer than"):
        link.push(big, "/data/local/tmp/t/file", 1.0)
    assert time.monotonic() - start < 6
    assert names(phone) == []


# --- A2: lost in the middle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut_shell", "clse_shell"])
def test_an_end_without_the_devices_word_is_a_lost_device(link: AdbTransport, bad_phones: Phones, fault: str) -> None:
    bad_phones.tell(faults={fault: True})
    with pytest.raises(DeviceLost) as caught:
        link.run(["sh", "-c", "echo FIRST; sleep 1; echo second"], 10)
    assert "FIRST" in caught.value.output


def test_what_a_lost_link_left_running_is_dead_after_reconnecting(link: AdbTransport, bad_phones: Phones) -> None:
    mark = f"farm{os.urandom(6).hex()}"
    bad_phones.tell(faults={"cut_shell": True})
    with pytest.raises(DeviceLost):
        link.run(["sh", "-c", "trap '' HUP; echo FIRST; sh -c \"sleep 60; : $1$2\"", "sh", mark[:4], mark[4:]], 10)
    bad_phones.tell(faults={})
    link.connect(20)
    assert not alive(link, mark)


def test_what_ran_is_dead_after_the_host_went_away_for_good(
    link: AdbTransport, adb_server: AdbServer, phone: LabPhone
) -> None:
    mark = f"farm{os.urandom(6).hex()}"
    going = AdbTransport(phone.serial, adb_server=adb_server.address)
    going.connect(20)

    def work() -> None:
        with pytest.raises(DeviceLost):
            going.run(["sh", "-c", f"trap '' HUP; sleep 60; : {mark}"], 60)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: alive(link, mark))
    going.close()
    thread.join(10)
    until(lambda: not alive(link, mark))


def test_a_phone_that_was_cut_off_connects_again(link: AdbTransport, bad_phones: Phones) -> None:
    bad_phones.tell(do="cut")
    link.connect(20)
    assert link.run(["echo", "back"], 10).stdout == b"back\n"


def test_a_server_that_was_replaced_finds_the_phone_again(phone: LabPhone, tmp_path: Path) -> None:
    server = AdbServer(tmp_path / "adb")
    server.start()
    link = AdbTransport(phone.serial, adb_server=server.address)
    try:
        link.connect(20)
        server.stop()
        with pytest.raises(DeviceLost):
            link.run(["true"], 5)
        server.start()
        link.connect(20)
        assert link.run(["echo", "back"], 10).stdout == b"back\n"
    finally:
        link.close()
        server.stop()


# --- A3: states that a person has to change ------------------------------------------------------------------------


def test_an_unauthorized_phone_says_what_to_do_on_it(adb_server: AdbServer, tmp_path: Path) -> None:
    refusing = Phones(tmp_path / "refusing", auth="refuse")
    try:
        link = AdbTransport(refusing.phones[0].serial, adb_server=adb_server.address)
        start = time.monotonic()
        with pytest.raises(DeviceUnavailable, match="RSA dialog"):
            link.connect(8)
        assert time.monotonic() - start < 8
    finally:
        refusing.stop()


STATES = [
    ("ABC\tunauthorized\n", "ABC", "RSA dialog"),
    ("ABC\tno permissions (missing udev rules? user is in the plugdev group); see [http://x]\n", "ABC", "udev"),
    ("ABC\trecovery\n", "ABC", "into Android"),
    ("ABC\toffline\n", "ABC", "is offline"),
    ("ABC\tdevice\nABC\tdevice\n", "ABC", "2 phones"),
    ("DEF\tdevice\n", "ABC", "sees no phone 'ABC'"),
    ("ABC\tdevice\nDEF\tdevice\n", None, "ABC, DEF"),
    ("", None, "none"),
]


@pytest.mark.parametrize(("rows", "serial", "words"), STATES)
def test_states_come_with_their_cure(rows: str, serial: str | None, words: str) -> None:
    answers = {"host:version": "0029", "host:devices": rows, "host-serial:ABC:reconnect": "done"}
    with scripted_adb_server(answers) as port:
        link = AdbTransport(serial, adb_server=f"127.0.0.1:{port}")
        start = time.monotonic()
        with pytest.raises(DeviceUnavailable, match=words):
            link.connect(0.7)
        assert time.monotonic() - start < 3


def test_the_only_phone_is_taken_when_no_serial_is_named() -> None:
    row = "adb-XX (2)._adb-tls-connect._tcp\tdevice\n"
    features = "host-serial:adb-XX (2)._adb-tls-connect._tcp:features"
    with scripted_adb_server({"host:version": "0029", "host:devices": row, features: "cmd,shell_v2"}) as port:
        link = AdbTransport(adb_server=f"127.0.0.1:{port}")
        link.connect(3)
        assert link.serial == "adb-XX (2)._adb-tls-connect._tcp"


def test_rows_are_parted_at_the_tab() -> None:
    text = "adb-XX (2)._adb-tls-connect._tcp\tdevice\n(no serial number)\tno permissions (x)\n* daemon\n\n0123\tdevice"
    assert parse_devices(text) == [
        ("adb-XX (2)._adb-tls-connect._tcp", "device"),
        ("(no serial number)", "no permissions (x)"),
        ("0123", "device"),
    ]


# --- A5, A6: files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["trunc_push", "corrupt_push"])
def test_a_damaged_push_is_found_and_removed(
    link: AdbTransport, bad_phones: Phones, phone: LabPhone, big: Path, fault: str
) -> None:
    bad_phones.tell(faults={fault: True})
    with pytest.raises(TransferFailed, match="sha256"):
        link.push(big, "/data/local/tmp/t/model", 20)
    assert names(phone) == []


def test_a_push_that_is_cut_leaves_nothing_under_the_name(
    link: AdbTransport, bad_phones: Phones, phone: LabPhone, big: Path
) -> None:
    bad_phones.tell(faults={"cut_push": True})
    with pytest.raises(DeviceLost):
        link.push(big, "/data/local/tmp/t/model", 20)
    assert "model" not in names(phone)
    bad_phones.tell(faults={})
    link.connect(20)
    link.push(big, "/data/local/tmp/t/model", 20)
    assert (phone.root / "data/local/tmp/t/model").read_bytes() == big.read_bytes()


def test_a_push_that_is_too_slow_leaves_nothing(
    link: AdbTransport, bad_phones: Phones, phone: LabPhone, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(20_000_000))
    bad_phones.tell(faults={"delay_ms": 50})
    with pytest.raises(DeadlineExceeded, match="longer than"):
        link.push(source, "/data/local/tmp/t/model", 0.6)
    assert names(phone) == []


def test_a_full_phone_is_no_space_and_not_a_broken_link(
    link: AdbTransport, bad_phones: Phones, phone: LabPhone, big: Path
) -> None:
    bad_phones.tell(faults={"enospc_after": 100_000})
    with pytest.raises(NoSpace, match="no space left"):
        link.push(big, "/data/local/tmp/t/model", 20)
    assert names(phone) == []
    assert link.run(["true"], 10).exit_status == 0


def test_a_damaged_pull_is_found(link: AdbTransport, bad_phones: Phones, big: Path, tmp_path: Path) -> None:
    link.push(big, "/data/local/tmp/t/out", 20)
    bad_phones.tell(faults={"corrupt_pull": True})
    with pytest.raises(TransferFailed, match="sha256"):
        link.pull("/data/local/tmp/t/out", tmp_path / "out", 20)
    bad_phones.tell(faults={"cut_pull": True})
    with pytest.raises(DeviceLost):
        link.pull("/data/local/tmp/t/out", tmp_path / "out", 20)
    assert [p.name for p in tmp_path.iterdir()] == ["big"]


# --- A9, A4 and the rest ------------------------------------------------------------------------------------------


def test_a_reboot_is_waited_for(link: AdbTransport, bad_phones: Phones, phone: LabPhone) -> None:
    bad_phones.tell(boot_s=1.0, do="off")
    assert not listens(phone.port)
    with pytest.raises(DeviceLost):
        link.run(["true"], 5)
    bad_phones.tell(do="on")
    link.connect(20)
    assert link.run(["echo", "up"], 10).stdout == b"up\n"


def test_a_phone_that_stays_away_is_given_up_at_the_deadline(link: AdbTransport, bad_phones: Phones) -> None:
    bad_phones.tell(do="off")
    start = time.monotonic()
    with pytest.raises(DeviceUnavailable):
        link.connect(2)
    assert time.monotonic() - start < 6


def test_a_command_longer_than_adb_carries_is_refused(link: AdbTransport) -> None:
    with pytest.raises(InvalidInput, match="64 KiB"):
        link.run(["echo", "x" * 70_000], 10)


def test_the_devices_environment_reaches_programs_and_the_calls_own_wins(
    phone: LabPhone, adb_server: AdbServer
) -> None:
    link = AdbTransport(phone.serial, adb_server=adb_server.address, env={"A": "1", "B": "1"})
    link.connect(20)
    assert link.run(["sh", "-c", "echo $A$B"], 10, env={"B": "2"}).stdout == b"12\n"
    link.close()


def test_a_phone_is_probed(link: AdbTransport, bad_phones: Phones, phone: LabPhone) -> None:
    bad_phones.tell(gles="Qualcomm, Adreno (TM) 730, OpenGL ES 3.2 V@0615.73")
    facts = probe(link, 20)
    assert facts["os"] == "Android 14"
    assert facts["gpu"] == "Adreno (TM) 730"
    assert facts["serial"] == f"LAB{phone.port}"
    assert facts["battery_temperature_c"] == 28.1
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# --- servers ------------------------------------------------------------------------------------------------------


def test_a_server_that_hangs_is_named() -> None:
    with silent_listener() as port:
        link = AdbTransport("ABC", adb_server=f"127.0.0.1:{port}")
        start = time.monotonic()
        with pytest.raises(DeviceUnavailable, match="does not answer"):
            link.connect(1)
        assert time.monotonic() - start < 3


def test_no_server_is_started_on_another_machine() -> None:
    with pytest.raises(DeviceUnavailable, match="start one there"):
        adb.start_server(("lab-host", 5037), Deadline(1))


def test_a_server_is_started_where_none_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The daemon leaves our process tree, so the test's own adb notes the daemon's id to end it by.
    port = free_port()
    fake = tmp_path / "adb"
    fake.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/argv\n'
        f"setsid {adb._bundled_adb()} -P $2 nodaemon server >/dev/null 2>&1 </dev/null & echo $! >{tmp_path}/pid\n"
        f"while ! {adb._bundled_adb()} -P $2 version >/dev/null; do :; done\n"
        "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3; done\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ADB_LOCAL_TRANSPORT_MAX_PORT", "5554")
    link = AdbTransport("ABC", adb_server=f"127.0.0.1:{port}")
    try:
        with pytest.raises(DeviceUnavailable, match="sees no phone"):
            link.connect(20)
        assert (tmp_path / "argv").read_text() == f"-P {port} start-server\n"
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)
        until(lambda: not listens(port))


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        (None, {}, ("127.0.0.1", 5037)),
        (None, {"ANDROID_ADB_SERVER_PORT": "6000", "ANDROID_ADB_SERVER_ADDRESS": "lab"}, ("lab", 6000)),
        ("lab:6001", {"ANDROID_ADB_SERVER_PORT": "6000"}, ("lab", 6001)),
        ("tcp:[::1]:6001", {}, ("::1", 6001)),
    ],
)
def test_server_addresses(given: str | None, environ: dict[str, str], expected: tuple[str, int]) -> None:
    assert server_address(given, environ) == expected


@pytest.mark.parametrize("given", ["lab", "lab:", "lab:x", "lab:0", "lab:70000"])
def test_what_is_no_server_address_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="host:port"):
        server_address(given, {})


def test_shell_packets_split_anywhere_come_out_whole() -> None:
    wire = b"\1\3\0\0\0abc" + b"\2\0\0\0\0" + b"\3\1\0\0\0\7"
    buffer, got = bytearray(), []
    for byte in wire:
        buffer.append(byte)
        got += list(_unpack(buffer))
    assert got == [(STDOUT, b"abc"), (STDERR, b""), (EXIT, b"\7")]
    assert not buffer
