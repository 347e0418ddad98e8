"""Sweeps asked for through a real broker: what is refused, what runs, and that a second delivery runs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import paho.mqtt.publish
import pytest

from farm.cli._app import run
from farm.errors import InvalidInput
from farm.events.messages import level, this_host
from farm.inventory import Inventory, load_inventory
from farm.serving import MAX_REQUEST, Allowed, check, request_schema
from tests import graphs
from tests.events.conftest import Reader
from tests.lab.broker import PASSWORD, USER, Mosquitto


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "sweep-cache"))


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    for name in ("fc", "secret"):
        graphs.write(tmp_path, name, graphs.fc_chain())
    file = tmp_path / "inventory.yaml"
    file.write_text("models: ['*.tflite']\ndevices: [{id: here, transport: local}]\n")
    return load_inventory(file)


def request(**body: Any) -> bytes:
    return json.dumps({"id": "r1", "models": ["fc"], **body}).encode()


def test_a_request_names_models_and_devices_of_the_inventory(inventory: Inventory) -> None:
    job = check(request(models=["fc", "fc"], configs=["cpu"]), inventory, Allowed())
    assert [m.path.stem for m in job.models] == ["fc"]
    assert job.devices == ("here",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (request(models=["../../etc/passwd"]), "is not on offer"),
        (request(models=["secret"]), "is not on offer"),
        (request(devices=["elsewhere"]), "device 'elsewhere' is not on offer"),
        (request(configs=["warp"]), "there is no config 'warp'"),
        (request(shell="rm -rf /"), "unknown field"),
        (request(id="a/b"), "regex"),
        (request(models=[]), "models"),
        (request(repeats=999), "repeats"),
        (b"\xff\x00", "not a request"),
        (b"[" * 4000, "not a request"),
        (b" " * (MAX_REQUEST + 1), "bytes"),
    ],
)
def test_what_is_not_on_offer_or_not_a_request_is_refused(inventory: Inventory, data: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check(data, inventory, Allowed(models=("fc",)))


def test_the_schema_of_requests_is_the_check_itself(inventory: Inventory) -> None:
    import jsonschema

    validator = jsonschema.Draft202012Validator(request_schema())
    assert validator.is_valid(json.loads(request()))
    assert not validator.is_valid(json.loads(request(shell="x")))
    assert not validator.is_valid(json.loads(request(id="a/b")))


def ask(broker: Mosquitto, data: bytes, *, retain: bool = False) -> None:
    paho.mqtt.publish.single(
        f"farm/{level(this_host())}/request",
        data,
        qos=1,
        retain=retain,
        hostname="127.0.0.1",
        port=broker.port,
        auth={"username": USER, "password": PASSWORD},
    )


@pytest.fixture
def lab(broker: Mosquitto, inventory: Inventory) -> Path:
    assert inventory.path is not None
    with inventory.path.open("a") as f:
        f.write(
            f"mqtt: {{host: 127.0.0.1, port: {broker.port}, username_env: T_USER, password_env: T_PASSWORD}}\n"
            "limits: {iterations: 1, repeats: 1}\nstore: {root: runs}\n"
        )
    return inventory.path


def environment() -> dict[str, str]:
    return {**os.environ, "T_USER": USER, "T_PASSWORD": PASSWORD}


def test_a_sweep_that_was_asked_for_runs_once_and_answers_with_its_run(
    broker: Mosquitto, lab: Path, reader: Reader
) -> None:
    ask(broker, request(id="stale"), retain=True)
    served = subprocess.Popen(
        [sys.executable, "-m", "farm", "serve", "--inventory", str(lab), "--allow-model", "fc"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stderr is not None
        while not (line := served.stderr.readline()).startswith("Listening"):
            assert line.startswith("a retained request was ignored"), line
        ask(broker, request(id="bad", models=["secret"]))
        ask(broker, request(id="good", configs=["cpu"]))

        def states(name: str) -> list[str]:
            return [b["state"] for b in reader.bodies("reply") if b["request"] == name]

        reader.until(lambda: states("good")[-1:] == ["finished"])
        ask(broker, request(id="good", configs=["cpu"]))
        reader.until(lambda: states("good")[-2:] == ["finished", "finished"])
    finally:
        served.terminate()
        told = served.communicate(timeout=30)[1]
    assert served.returncode == 0, told
    assert states("good")[:3] == ["accepted", "started", "finished"]
    assert states("bad") == ["refused"]
    assert states("stale") == []
    (folder,) = (lab.parent / "runs").glob("2*")
    finished = [b for b in reader.bodies("reply") if b["request"] == "good"][-1]
    assert (finished["run"], finished["exit_code"], finished["verdicts"]) == (folder.name, 0, {"pass": 1})
    cells = reader.bodies("cell_finished")
    assert {(b["model"], b["device"], b["outcome"]) for b in cells} == {("fc", "here", "ran")}
    assert [b["state"] for b in reader.bodies("state")][-1] == "idle"


def test_watch_shows_the_devices_of_a_sweep(
    broker: Mosquitto, lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("T_USER", USER)
    monkeypatch.setenv("T_PASSWORD", PASSWORD)
    assert run(["sweep", "--inventory", str(lab), "--config", "cpu", "--out", str(lab.parent / "runs")]) == 0
    capsys.readouterr()
    assert run(["watch", "--inventory", str(lab), "--once"]) == 0
    out = capsys.readouterr().out
    assert "here" in out
    assert "unknown (its farm is offline)" in out


def test_a_dead_broker_costs_a_sweep_one_sentence(
    broker: Mosquitto, lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("T_USER", USER)
    monkeypatch.setenv("T_PASSWORD", PASSWORD)
    broker.kill()
    assert run(["sweep", "--inventory", str(lab), "--config", "cpu", "--out", str(lab.parent / "runs")]) == 0
    err = capsys.readouterr().err
    assert "events did not reach" in err
    assert "the run is not affected" in err


def test_serve_wants_a_broker_with_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text("mqtt: {host: broker.example}\n")
    assert run(["serve", "--inventory", str(file)]) == 2
    assert "lets anybody in" in capsys.readouterr().err
    file.write_text("limits: {}\n")
    assert run(["serve", "--inventory", str(file)]) == 2
    assert "names no broker" in capsys.readouterr().err
