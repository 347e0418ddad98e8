"""Devices that fall away and come back, that are hot, locked or set aside: real adb server, stand-in runtime."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.defaults import Limits
from farm.errors import DeviceUnavailable
from farm.lease import Lease, new_owner
from farm.outcome import Outcome
from farm.place import ANDROID_ROOT
from farm.plan import PlannedDevice
from farm.profiles import Safety, Sourced
from farm.recovery import lab_command
from farm.runner import Runner
from farm.runtimes import Runtime
from farm.sensors import Watch, has_to_rest, read_sensors
from farm.transports.adb import AdbTransport
from farm.transports.local import LocalTransport
from tests import graphs
from tests.lab.adb_server import AdbServer, Phones
from tests.spinekit import fake_runtime, new_run

QUICK = Limits(iterations=1, repeats=1, warmup=0, connect_timeout_s=3.0, lease_wait_s=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lab:
    server: AdbServer
    phones: Phones

    def device(self, **more: Any) -> PlannedDevice:
        address = {"serial": self.phones.phones[0].serial, "adb_server": self.server.address}
        return PlannedDevice(id="phone", transport="adb", address=address, **more)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    server = AdbServer(folder / "adb")
    server.start()
    phones = Phones(folder / "phones")
    # A new server is silent for some seconds, longer than the short patience of these tests.
    first = AdbTransport(phones.phones[0].serial, adb_server=server.address)
    first.connect(30)
    first.close()
    yield Lab(server=server, phones=phones)
    phones.stop()
    server.stop()


@pytest.fixture(autouse=True)
def nobody_holds_it(lab: Lab) -> None:
    """A phone that was gone at the end of a run keeps that run's lease for a minute."""
    transport = AdbTransport(lab.phones.phones[0].serial, adb_server=lab.server.address)
    transport.connect(15)
    Lease(transport, ANDROID_ROOT, nonce=new_owner()).break_()
    transport.close()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return fake_runtime(tmp_path_factory.mktemp("fakert"))


def swept(
    root: Path, device: PlannedDevice, runtime: Runtime, *, models: int = 2, prepare: Any = None
) -> tuple[list[Outcome], str]:
    """Run some models on a device; what the journal and the device's own log say."""
    files = []
    for number in range(models):
        files.append(root / f"m{number}.tflite")
        files[-1].write_bytes(graphs.square_scaled(after=(1.0 + number,)))
    with new_run(root / "runs", files, devices=[device], limits=QUICK) as store:
        Runner(store=store, find_runtime=lambda *_: runtime, prepare=prepare).run()
        log = store.device_folder(device.id) / "log.txt"
        found = store.outcomes()
        return [found[c.id] for c in store.plan.cells], log.read_text() if log.exists() else ""


def test_a_phone_that_is_gone_is_set_aside_and_costs_the_later_cells_nothing(
    lab: Lab, runtime: Runtime, tmp_path: Path
) -> None:
    def unplug(*_: object) -> None:
        lab.phones.tell(do="off")

    began = time.monotonic()
    try:
        outcomes, log = swept(tmp_path, lab.device(), runtime, models=6, prepare=unplug)
    finally:
        lab.phones.tell(do="on")
    assert {o.failure.code for o in outcomes if o.failure} <= {"DEVICE_LOST", "DEVICE_UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert all(o.failure is not None and o.failure.infra for o in outcomes)
    assert "set aside" in log
    assert [o.wall_s < 0.5 for o in outcomes[1:4]] == [True] * 3
    assert time.monotonic() - began < 60


def test_the_labs_commands_bring_a_phone_back_and_are_told_in_its_log(
    lab: Lab, runtime: Runtime, tmp_path: Path
) -> None:
    # The command leaves a word; what plugs the phone in again here is a thread that waits for it.
    import threading

    word = tmp_path / "reset"

    def plug() -> None:
        end = time.monotonic() + 40
        while not word.exists() and time.monotonic() < end:
            time.sleep(0.05)
        lab.phones.tell(do="on")

    helper = threading.Thread(target=plug)
    helper.start()
    script = f"import os, pathlib; pathlib.Path({str(word)!r}).write_text(os.environ['FARM_SERIAL'])"
    device = lab.device(usb_reset=(sys.executable, "-c", script))
    outcomes, log = swept(tmp_path, device, runtime, prepare=lambda *_: lab.phones.tell(do="off"))
    helper.join()
    assert [o.failure for o in outcomes] == [None, None]
    assert outcomes[0].attempts == 2
    assert word.read_text() == lab.phones.phones[0].serial
    assert "resetting its USB port" in log
    assert "it answers again" in log


def test_a_device_that_somebody_holds_is_neither_reset_nor_waited_for(
    lab: Lab, runtime: Runtime, tmp_path: Path
) -> None:
    transport = AdbTransport(lab.phones.phones[0].serial, adb_server=lab.server.address)
    transport.connect(15)
    lease = Lease(transport, ANDROID_ROOT, nonce=new_owner(), reason="by hand")
    lease.take(0)
    word = tmp_path / "reset"
    device = lab.device(usb_reset=("touch", str(word)), reset=("touch", str(word)))
    outcomes, _ = swept(tmp_path, device, runtime)
    lease.free()
    transport.close()
    failures = [o.failure for o in outcomes]
    assert all(f is not None and f.code == "DEVICE_UNAVAILABLE" and "by hand" in f.message for f in failures)
    assert not word.exists()


def test_the_labs_lock_is_taken_and_given_back_and_refuses_when_it_is_held(
    lab: Lab, runtime: Runtime, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    script = f"import sys; open({str(said)!r}, 'a').write(sys.argv[1] + ' ')"
    outcomes, _ = swept(tmp_path, lab.device(lock=(sys.executable, "-c", script)), runtime)
    assert [o.failure for o in outcomes] == [None, None]
    assert said.read_text() == "acquire release "
    again = tmp_path / "again"
    again.mkdir()
    held = (sys.executable, "-c", "import sys; sys.exit('held by anna')")
    outcomes, _ = swept(again, lab.device(lock=held), runtime)
    failures = [o.failure for o in outcomes]
    assert all(f is not None and f.code == "DEVICE_UNAVAILABLE" and "held by anna" in f.message for f in failures)


def test_a_command_of_the_lab_that_hangs_or_is_missing_is_named(lab: Lab) -> None:
    with pytest.raises(DeviceUnavailable, match=r"did not end within 0\.2 s"):
        lab_command((sys.executable, "-c", "import time; time.sleep(9)"), lab.device(), timeout_s=0.2)
    with pytest.raises(DeviceUnavailable, match="cannot be run"):
        lab_command(("/no/such/tool",), lab.device())


def test_heat_marks_latency_and_only_a_safety_limit_waits_and_not_for_ever(lab: Lab) -> None:
    lab.phones.tell(props={})
    transport = AdbTransport(lab.phones.phones[0].serial, adb_server=lab.server.address)
    transport.connect(10)
    facts = read_sensors(transport, 10)
    assert facts["battery_percent"] == 87
    assert facts["thermal_status"] == 0
    battery = Safety(battery_percent=Sourced(value=90, source="a test"))
    told: list[str] = []
    watch = Watch(transport=transport, safety=battery, timeout_s=10, say=told.append, rest_s=0.3, look_s=0.1)
    with pytest.raises(DeviceUnavailable, match="battery is at 87 %, the profile's limit is 90 %"):
        watch.before(lambda: False)
    assert told == ["resting: its battery is at 87 %, the profile's limit is 90 %"]
    easy = Watch(transport=transport, safety=Safety(), timeout_s=10)
    assert not easy.thermal(easy.before(lambda: False)).throttled
    assert easy.thermal({"thermal_status": 2, "temperature_c": 51.5}).throttled
    assert easy.thermal({"temperature_c": 51.5}).before_c == 51.5
    transport.close()


@pytest.mark.parametrize(
    ("facts", "rests"),
    [
        ({"thermal_status": 3}, True),
        ({"thermal_status": 2}, False),
        ({"temperature_c": 45.0}, True),
        ({"temperature_c": 44.9}, False),
        ({"battery_percent": 14}, True),
        ({"battery_percent": 15}, False),
        ({}, False),
    ],
)
def test_limits_are_met_exactly(facts: dict[str, Any], rests: bool) -> None:
    limits = Safety(
        thermal_status=Sourced(value=3, source="t"),
        temperature_c=Sourced(value=45.0, source="t"),
        battery_percent=Sourced(value=15, source="t"),
    )
    assert bool(has_to_rest(facts, limits)) is rests
    assert not has_to_rest(facts, Safety())


def test_this_machine_tells_its_warmth_without_a_process() -> None:
    assert all(isinstance(v, (int, float, str)) for v in read_sensors(LocalTransport(), 1).values())
