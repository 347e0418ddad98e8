"""Devices that nobody wrote down, and the commands around them: real adb server, emulated phones, real sshd."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.cli._app import run
from farm.discovery import discover, short_id
from farm.inventory import load_inventory
from farm.lease import Lease, new_owner
from farm.transports.adb import AdbTransport
from tests import graphs
from tests.lab.adb_server import Phones
from tests.lab.box import Box, box, plug, unplug
from tests.lab.faults import scripted_adb_server
from tests.lab.gpus import gpus
from tests.lab.ports import free_port

pytestmark = pytest.mark.gpu
ROOT = "/data/local/tmp/farm"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    missing = {"llvmpipe", "swiftshader"} - set(gpus())
    if missing:
        pytest.skip(f"no software GPU here: {', '.join(sorted(missing))} (make lab-gpus)")
    with box(tmp_path_factory.mktemp("box")) as made:
        if made.sshd is None:
            pytest.skip("sshd is not installed (openssh-server)")
        yield made


@pytest.fixture
def here(lab: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the lab's adb server and known hosts as the user's own."""
    import platformdirs

    monkeypatch.setenv("FARM_CACHE_DIR", str(platformdirs.user_cache_path("litert-farm")))
    home = tmp_path / "home"
    shutil.copytree(lab.home, home)
    for name, value in {**lab.environment, "HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "m.tflite").write_bytes(graphs.square_scaled())
    return work


def ids(lab: Box) -> list[str]:
    return [
        short_id(model, phone.serial)
        for model, phone in zip(("Lab_llvmpipe", "Lab_swiftshader"), lab.phones.phones, strict=True)
    ]


def test_devices_are_found_without_an_inventory_and_told_what_they_are(
    lab: Box, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["devices", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"local", *ids(lab)}
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert rows[ids(lab)[0]]["facts"]["model"] == "Farm Lab llvmpipe"
    assert rows[ids(lab)[0]]["facts"]["os"] == "Android 14"


def test_a_phone_that_is_not_ready_comes_with_what_to_do(
    lab: Box, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = Phones(tmp_path / "locked", 1, auth="refuse")
    try:
        plug(lab.server, locked.phones[0].serial)
        assert run(["devices", "--no-probe"]) == 0
    finally:
        unplug(lab.server, locked.phones[0].serial)
        locked.stop()
    out, err = capsys.readouterr()
    assert "unauthorized" in out
    assert "confirm the RSA dialog" in err


def test_without_an_adb_server_none_is_started_and_this_machine_is_left(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    discovered = discover()
    assert [f.device.id for f in discovered.found] == ["local"]
    assert f"no adb server runs at 127.0.0.1:{port}" in discovered.notes[0]
    from tests.lab.ports import listens

    assert not listens(port)


def test_two_phones_of_one_serial_are_never_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "host:devices": "0123456\tdevice\n0123456\tdevice\nadb-X (2)._adb\tdevice\n",
        "host:devices-l": "adb-X (2)._adb         device model:Pixel_9 transport_id:3\n",
    }
    with scripted_adb_server(table) as port:
        found = discover({"ANDROID_ADB_SERVER_PORT": str(port)}).found
    assert [f.state for f in found] == ["ready", "ambiguous", "ambiguous", "ready"]
    assert found[3].device.address["serial"] == "adb-X (2)._adb"
    assert len({f.device.id for f in found}) == 4


@given(st.text(), st.text(min_size=1), st.lists(st.text(max_size=8)))
def test_an_id_made_of_any_model_and_serial_is_a_plain_new_name(model: str, serial: str, taken: list[str]) -> None:
    name = short_id(model, serial, taken)
    assert name
    assert len(name) <= 80
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert name not in taken


def test_a_sweep_without_inventory_uses_every_ready_phone_and_leaves_nothing_there(
    lab: Box, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "m.tflite", "--config", "cpu", "--iterations", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    cells = json.loads(out)["cells"]
    assert {(c["device"], c["verdict"]) for c in cells if c["config"] == "cpu"} == {
        (name, "pass") for name in ("local", *ids(lab))
    }
    for name in ids(lab):
        assert f"found: {name}, about" in err
    assert [lab.farm_root(phone).exists() for phone in lab.phones.phones] == [False, False]


def test_phones_behind_a_host_are_swept_through_its_adb_server(
    lab: Box, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free_port()))  # ours sees nothing: only the host's does
    (here / "lab.yaml").write_text(
        f'hosts:\n- {{id: rack, ssh: lab, adb: "{lab.server.address}"}}\n'
        f'- {{id: dark, ssh: "127.0.0.1:{free_port()}"}}\n'
    )
    assert run(["sweep", "m.tflite", "--inventory", "lab.yaml", "--config", "cpu", "--iterations", "1", "--json"]) == 3
    cells = [c for c in json.loads(capsys.readouterr().out)["cells"] if c["config"] == "cpu"]
    assert {(c["device"], c["verdict"]) for c in cells} == {
        *((f"rack-{name}", "pass") for name in ids(lab)),
        ("dark", "infra"),
    }
    (dark,) = [c for c in cells if c["device"] == "dark"]
    assert "refuses SSH connections" in dark["error"]["message"]


def test_a_held_device_is_shown_refused_and_freed(lab: Box, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = ids(lab)[0]
    assert run(["lease", "hold", name, "--for", "2h", "--reason", "driver; $(id) debugging"]) == 0
    assert run(["lease", "list", "--json"]) == 0
    rows = {row["device"]: row for row in json.loads(capsys.readouterr().out.partition("\n")[2])}
    assert rows[name]["state"] == "leased"
    assert "driver; $(id) debugging" in rows[name]["holder"]
    assert rows["local"]["state"] == "ready"
    sweep = ["sweep", "m.tflite", "--device", name, "--config", "cpu", "--json"]
    assert run(sweep) == 3
    cell = json.loads(capsys.readouterr().out)["cells"][0]
    assert cell["verdict"] == "infra"
    assert "driver; $(id) debugging" in cell["error"]["message"]
    assert run(["clean", name]) == 3
    assert run(["lease", "break", name]) == 0
    assert run(sweep) == 0


def test_clean_removes_all_of_ours_and_nothing_else(lab: Box, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phone = lab.phones.phones[0]
    run(["sweep", "m.tflite", "--inventory", str(lab.inventory), "--device", "phone-fp16", "--config", "cpu"])
    neighbour = phone.root / "data/local/tmp/farm-of-others"
    neighbour.write_text("mine")
    assert (lab.farm_root(phone) / "model").is_dir()
    assert run(["clean", "phone-fp16", "--inventory", str(lab.inventory)]) == 0
    assert not lab.farm_root(phone).exists()
    assert neighbour.read_text() == "mine"
    assert "removed /data/local/tmp/farm" in capsys.readouterr().out


def test_sync_adds_new_phones_and_keeps_what_was_written(lab: Box, here: Path) -> None:
    file = here / "inventory.yaml"
    first, other = lab.phones.phones
    file.write_text(
        f'devices:  # ours\n# the old one\n- id: mine\n  transport: adb\n  serial: "{first.serial}"\n'
        f'  adb_server: "{lab.server.address}"\n\nmodels: []\n'
    )
    assert run(["inventory", "sync"]) == 0
    text = file.read_text()
    assert "# the old one" in text
    assert "devices:  # ours" in text
    assert [(d.id, d.address["serial"]) for d in load_inventory(file).devices] == [
        (ids(lab)[1], other.serial),
        ("mine", first.serial),
    ]
    assert run(["inventory", "sync"]) == 0
    assert file.read_text() == text


def test_sync_makes_an_inventory_that_loads(lab: Box, here: Path) -> None:
    assert run(["inventory", "sync", "--file", "new.yaml"]) == 0
    assert {d.id for d in load_inventory(here / "new.yaml").devices} == {"local", *ids(lab)}


def test_an_unknown_host_is_trusted_by_its_fingerprint_only_and_a_changed_one_never(
    lab: Box, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tmp_path / "home/.ssh/known_hosts"
    kept = known.read_text()
    known.write_text("")
    inventory = str(lab.inventory)
    assert run(["probe", "host", "--inventory", inventory]) == 3
    refused = capsys.readouterr().err
    assert "farm trust" in refused
    fingerprint = refused.partition("SHA256:")[2].split(".")[0].split()[0]
    assert run(["trust", "lab"]) == 2
    assert run(["trust", "lab", "--fingerprint", "SHA256:wrong"]) == 2
    assert known.read_text() == ""
    assert run(["trust", "lab", "--fingerprint", f"SHA256:{fingerprint}"]) == 0
    assert run(["probe", "host", "--inventory", inventory, "--json"]) == 0
    name, kind, key = kept.split()
    known.write_text(f"{name} {kind} {key[:-8]}AAAAAAA=\n" if key.endswith("=") else f"{name} {kind} {key[:-4]}AAAA\n")
    capsys.readouterr()
    assert run(["trust", "lab", "--fingerprint", f"SHA256:{fingerprint}"]) == 2
    assert "has changed" in capsys.readouterr().err


def test_a_lease_is_read_from_the_device_itself(lab: Box) -> None:
    transport = AdbTransport(lab.phones.phones[1].serial, adb_server=lab.server.address)
    transport.connect(10)
    lease = Lease(transport, ROOT, nonce=new_owner(), owner="a\nb", reason="x" * 500)
    lease.take(0, ttl_s=30)
    holder = Lease(transport, ROOT, nonce=new_owner()).show()
    assert holder is not None
    assert holder.owner == "a b"
    assert len(holder.reason) == 200
    assert 25 < holder.left_s <= 31
    lease.free()
    transport.close()
