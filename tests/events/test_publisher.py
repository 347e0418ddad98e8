"""Events through a real broker, and every way a broker can fail a run that must not notice (faults M1 to M7)."""

from __future__ import annotations

import gc
import json
import threading
import time

import pytest

from farm.events import Publisher
from farm.events.messages import MAX_PAYLOAD
from tests.events.conftest import LIMIT_S, Reader
from tests.lab.broker import Mosquitto
from tests.lab.ports import free_port


def wait_for(true: object, limit_s: float = LIMIT_S) -> None:
    """Wait for something another thread does; checked often, bounded by a deadline."""
    end, tick = time.monotonic() + limit_s, threading.Event()
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        tick.wait(0.02)


def test_events_arrive_in_order_with_their_numbers(publisher: Publisher, reader: Reader) -> None:
    for n in range(50):
        publisher.publish(f"run/r1/cell/c{n}", "cell_finished", n=n)
    reader.until(lambda: len(reader.bodies("cell_finished")) == 50)
    got = reader.bodies("cell_finished")
    assert [b["seq"] for b in got] == list(range(1, 51))
    assert {(b["source"], b["session"], b["schema_version"]) for b in got} == {("lab", publisher.session, 1)}
    publisher.close()
    assert publisher.trouble() is None
    assert publisher.sent().delivered == 50


# paho leaves the socket of a refused handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("broker", [{"tls": True}], indirect=True)
def test_tls_and_password_are_used_and_a_wrong_ca_is_refused(broker: Mosquitto, reader: Reader) -> None:
    import dataclasses
    import ssl

    publisher = Publisher(broker.address(), source="lab")
    publisher.start()
    publisher.publish("run/r/started", "run_started")
    reader.until(lambda: bool(reader.bodies("run_started")))
    publisher.close()
    stranger = dataclasses.replace(broker.address(), tls=ssl.create_default_context())
    refused = Publisher(stranger, source="other")
    refused.start()
    wait_for(lambda: refused.last_error is not None)
    assert not refused.connected
    assert "certificate" in str(refused.last_error).lower()
    refused.close(1.0)
    gc.collect()


def test_a_wrong_password_is_told_and_nothing_waits(broker: Mosquitto) -> None:
    publisher = Publisher(broker.address(password="wr0ng"), source="lab", timeout_s=1.0)
    publisher.start()
    publisher.publish("run/r/started", "run_started")
    wait_for(lambda: publisher.last_error is not None)
    publisher.close(2.0)
    trouble = publisher.trouble()
    assert trouble is not None
    assert "1 of 1 events did not reach" in trouble
    assert "wr0ng" not in trouble
    assert "wr0ng" not in repr(publisher.broker)


def test_m1_after_a_broker_restart_events_go_on_and_states_are_sent_again(
    broker: Mosquitto, publisher: Publisher, reader: Reader
) -> None:
    publisher.state("device/pixel", device="pixel", state="busy")
    publisher.publish("run/r/started", "run_started")
    reader.until(lambda: bool(reader.bodies("run_started")))
    broker.kill()
    wait_for(lambda: not publisher.connected)
    publisher.publish("run/r/cell/c", "cell_finished")
    broker.start()
    reader.until(lambda: reader.links[-2:] == [False, True])
    wait_for(lambda: publisher.sent().delivered == 2)
    # Whoever came back later than the publisher has missed the second event; the third one's number tells it.
    publisher.publish("run/r/finished", "run_finished")
    reader.until(lambda: bool(reader.bodies("run_finished")))
    assert reader.bodies("run_finished")[0]["seq"] == 3
    # The restarted broker had lost its retained messages: a newcomer sees the state only because it was sent again.
    newcomer = Reader(broker, "farm/lab/device/#")
    newcomer.until(lambda: bool(newcomer.seen))
    assert newcomer.bodies()[0]["state"] == "busy"
    newcomer.subscription.close(1.0)


def test_m2_a_frozen_broker_blocks_nobody_and_gets_the_events_when_it_thaws(
    broker: Mosquitto, publisher: Publisher, reader: Reader
) -> None:
    assert publisher.wait_connected(LIMIT_S)
    broker.freeze()
    clock = time.monotonic()
    for n in range(500):
        publisher.publish("run/r/cell/c", "cell_finished", n=n)
    assert time.monotonic() - clock < 1.0
    wait_for(lambda: publisher.last_error is not None)
    broker.thaw()
    reader.until(lambda: {b["n"] for b in reader.bodies("cell_finished")} == set(range(500)))


def test_m2_closing_against_a_frozen_broker_ends_by_its_deadline(broker: Mosquitto, publisher: Publisher) -> None:
    assert publisher.wait_connected(LIMIT_S)
    broker.freeze()
    publisher.publish("run/r/cell/c", "cell_finished")
    clock = time.monotonic()
    publisher.close(1.0)
    assert time.monotonic() - clock < 5.0
    trouble = publisher.trouble()
    assert trouble is not None
    assert "1 of 1 events" in trouble


@pytest.mark.parametrize("broker", [{"extra": ("message_size_limit 1000",)}], indirect=True)
def test_m3_events_the_broker_drops_without_a_word_are_noticed(publisher: Publisher, reader: Reader) -> None:
    publisher.publish("run/r/started", "run_started")
    reader.until(lambda: bool(reader.bodies("run_started")))
    publisher.publish("run/r/finished", "run_finished", texts=["x" * 400] * 4)
    publisher.publish("run/r/after", "run_stage")
    reader.until(lambda: bool(reader.bodies("run_stage")))
    publisher.close()
    assert publisher.sent().unconfirmed == 1
    assert not reader.bodies("run_finished")
    assert "1 of 3 events" in str(publisher.trouble())


def test_m3_no_event_is_larger_than_a_small_brokers_limit(publisher: Publisher, reader: Reader) -> None:
    publisher.publish("run/r/finished", "run_finished", run="r", folder="f", text="y" * 10_000, cells=["z" * 99] * 999)
    reader.until(lambda: bool(reader.bodies("run_finished")))
    (body,) = reader.bodies("run_finished")
    assert len(reader.seen[-1].data) <= MAX_PAYLOAD
    assert body["truncated"] is True
    assert (body["run"], body["folder"], body["seq"]) == ("r", "f", 1)


def test_m4_an_overflowing_queue_loses_the_oldest_and_the_numbers_show_the_gap(broker: Mosquitto) -> None:
    broker.kill()
    publisher = Publisher(broker.address(), source="lab", queue=50, timeout_s=1.0)
    publisher.start()
    for n in range(120):
        publisher.publish("run/r/cell/c", "cell_finished", n=n)
    broker.start()
    reader = Reader(broker)
    publisher.wait_connected(LIMIT_S)
    publisher.publish("run/r/finished", "run_finished")
    publisher.close()
    reader.until(lambda: bool(reader.bodies("run_finished")))
    reader.subscription.close(1.0)
    assert publisher.sent().dropped >= 70
    assert "70 of 121 events" in str(publisher.trouble()) or "71 of 121 events" in str(publisher.trouble())


def test_m6_a_farm_that_dies_is_told_by_the_broker_and_one_that_ends_says_so(broker: Mosquitto, reader: Reader) -> None:
    import os
    import signal
    import subprocess
    import sys

    code = (
        "import sys\nfrom pathlib import Path\nfrom farm.events import Publisher\n"
        "from tests.lab.broker import Mosquitto\n"
        f"broker = Mosquitto(folder=Path({str(broker.folder)!r}), port={broker.port})\n"
        "p = Publisher(broker.address(), source='victim')\np.start()\nassert p.wait_connected(20)\n"
        "p.state('device/pixel', device='pixel', state='busy', run='r1')\nprint('up', flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    reader.until(lambda: bool(reader.bodies("state")))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    reader.until(lambda: [b["state"] for b in reader.bodies("status")][-1:] == ["offline"])
    newcomer = Reader(broker)
    newcomer.until(lambda: len(newcomer.seen) == 2)
    assert all(message.retained for message in newcomer.seen)
    assert {b["state"] for b in newcomer.bodies()} == {"offline", "busy"}
    newcomer.subscription.close(1.0)
    # The next run of that host overwrites what the dead one left.
    heir = Publisher(broker.address(), source="victim")
    heir.start()
    heir.state("device/pixel", device="pixel", state="idle", run="r2")
    reader.until(lambda: [b["run"] for b in reader.bodies("state")][-1:] == ["r2"])
    heir.close()
    reader.until(lambda: [b["state"] for b in reader.bodies("status")][-1:] == ["offline"])


def test_m7_without_a_broker_everything_returns_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    from farm.events import Broker

    publisher = Publisher(Broker(host="127.0.0.1", port=free_port(), prefix="farm"), source="lab")
    publisher.start()
    publisher.publish("run/r/started", "run_started")
    wait_for(lambda: publisher.last_error is not None)
    clock = time.monotonic()
    publisher.close(1.0)
    assert time.monotonic() - clock < 2.0
    assert "refused" in str(publisher.trouble())
    assert capfd.readouterr() == ("", "")


def test_m7_closing_while_connecting_ends(capfd: pytest.CaptureFixture[str]) -> None:
    import socket

    from farm.events import Broker

    with socket.socket() as deaf:  # takes the connection and never says a word
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        publisher = Publisher(
            Broker(host="127.0.0.1", port=deaf.getsockname()[1], prefix="farm"), source="lab", timeout_s=1.0
        )
        publisher.start()
        clock = time.monotonic()
        publisher.close(0.1)
        assert time.monotonic() - clock < 4.0
    assert capfd.readouterr() == ("", "")


def test_many_threads_may_publish_at_once(publisher: Publisher, reader: Reader) -> None:
    def work(name: int) -> None:
        for n in range(50):
            publisher.publish("run/r/cell/c", "cell_finished", id=f"{name}/{n}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.until(lambda: len(reader.bodies("cell_finished")) == 200)
    assert sorted(json.loads(m.data)["seq"] for m in reader.seen if b"cell_finished" in m.data) == list(range(1, 201))
