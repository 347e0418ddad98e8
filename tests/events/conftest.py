"""A broker per test, and readers that wait for what they want to see with a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.events import Publisher, Received, Subscription
from tests.lab.broker import Mosquitto, mosquitto_program

LIMIT_S = 20.0


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mosquitto]:
    """A running mosquitto; parametrize indirectly with keyword arguments for another one."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    made = Mosquitto(folder=tmp_path / "broker", **getattr(request, "param", {}))
    made.start()
    yield made
    if made.process is not None:
        made.thaw()
    made.kill()


@pytest.fixture
def publisher(broker: Mosquitto) -> Iterator[Publisher]:
    made = Publisher(broker.address(), source="lab", timeout_s=1.0)
    made.start()
    yield made
    made.close(1.0)


class Reader:
    """A subscription that remembers everything."""

    def __init__(self, broker: Mosquitto, topic: str = "farm/#") -> None:
        self.subscription = Subscription(broker.address(), [topic], timeout_s=1.0)
        self.subscription.start()
        self.seen: list[Received] = []
        self.links: list[bool] = []
        self.until(lambda: self.links[-1:] == [True])

    def until(self, true: Callable[[], bool]) -> None:
        """Read until `true()` holds; fail with what has been read after the deadline."""
        end = time.monotonic() + LIMIT_S
        while not true():
            got = self.subscription.get(0.2)
            if isinstance(got, Received):
                self.seen.append(got)
            elif got is not None:
                self.links.append(got.up)
            assert time.monotonic() < end, (self.seen, self.links, self.subscription.last_error)

    def bodies(self, kind: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(message.data) for message in self.seen if message.data]
        return [body for body in found if kind is None or body.get("type") == kind]


@pytest.fixture
def reader(broker: Mosquitto) -> Iterator[Reader]:
    made = Reader(broker)
    yield made
    made.subscription.close(2.0)
