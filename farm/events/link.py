"""One connection to the broker in a thread of its own: connects, comes back with growing pauses, ends by a deadline.

asyncio lives here and in the two files that build on it, nowhere else in farm.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import ssl
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiomqtt

from farm.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from farm.inventory import Inventory

KEEPALIVE_S = 10
TIMEOUT_S = 5.0
"""Of one publish, connect or subscribe: a frozen broker answers none of them."""
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where the broker is and how to come in. The password is kept out of every repr."""

    host: str
    port: int
    prefix: str
    username: str | None = None
    password: _Secret | None = None
    tls: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


class _Secret(str):
    """A text that does not print itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def broker_of(inventory: Inventory) -> Broker | None:
    """Return the inventory's broker with credentials from the environment, or None if it names none.

    Raises InvalidInput for a variable that is not set or a CA file that cannot be used.
    """
    mqtt = inventory.mqtt
    if mqtt is None:
        return None
    file = str(inventory.path) if inventory.path else None
    problems = []
    values: dict[str, str | None] = {}
    for what, name in (("username", mqtt.username_env), ("password", mqtt.password_env)):
        values[what] = os.environ.get(name) if name else None
        if name and values[what] is None:
            problems.append(
                Problem(message=f"mqtt: the environment has no {name}", file=file, cure=f"export {name}=… first")
            )
    context = None
    if mqtt.tls or mqtt.ca_file:
        ca = None
        if mqtt.ca_file:
            ca = (inventory.path.parent if inventory.path else Path()) / mqtt.ca_file
        try:
            context = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            problems.append(
                Problem(
                    message=f"mqtt: the CA file {ca} cannot be used: {error.strerror or error}",
                    file=file,
                    cure="name a PEM file of certificates",
                )
            )
    if problems:
        raise InvalidInput(problems)
    password = values["password"]
    return Broker(
        host=mqtt.host,
        port=mqtt.port,
        prefix=mqtt.topic,
        username=values["username"],
        password=_Secret(password) if password is not None else None,
        tls=context,
    )


class Link(ABC):
    """A thread that keeps one connection. Subclasses say what to do with it."""

    def __init__(self, broker: Broker, *, role: str, timeout_s: float = TIMEOUT_S) -> None:
        self.broker = broker
        self._timeout_s = timeout_s
        # Unique: a broker throws out the older of two clients that share an identifier.
        self._identifier = f"farm-{role}-{os.getpid()}-{secrets.token_hex(4)}"
        self._thread = threading.Thread(target=self._run, name=f"mqtt {role}", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._closing = threading.Event()
        self._connected = threading.Event()
        self._error: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def last_error(self) -> str | None:
        """What went wrong last, in the library's words."""
        return self._error

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the broker has taken us, at most so long. For tests and for `farm watch`; runs never wait."""
        return self._connected.wait(timeout_s)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(TIMEOUT_S)

    def close(self, timeout_s: float = TIMEOUT_S) -> None:
        """Finish what is queued if that is possible within `timeout_s`, then end. Never raises, never hangs."""
        self._closing.set()
        self.wake()
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._loop is not None:
            self._call(self._cancel)
            self._thread.join(2 * self._timeout_s)

    def wake(self) -> None:
        """Have the thread look at its queue."""
        if self._wake is not None:
            self._call(self._wake.set)

    @abstractmethod
    async def serve(self, client: aiomqtt.Client) -> None:
        """Use the connection until closing (return) or until it breaks (raise MqttError)."""

    def will(self) -> aiomqtt.Will | None:
        """What the broker tells others when we vanish."""
        return None

    def link_changed(self, up: bool) -> None:  # noqa: B027
        """Told when the connection comes or goes."""

    def _call(self, work: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(work)  # type: ignore[arg-type]
        except RuntimeError:
            pass  # the thread has ended meanwhile; there is nobody left to tell

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._task = asyncio.current_task()
        # aiomqtt leaves futures with exceptions behind when a connection breaks; each would print a traceback.
        self._loop.set_exception_handler(lambda *_: None)
        self._ready.set()
        pause = FIRST_PAUSE_S
        while True:
            try:
                async with self._client() as client:
                    self._connected.set()
                    self.link_changed(True)
                    pause = FIRST_PAUSE_S
                    await self.serve(client)
                    return
            except (aiomqtt.MqttError, OSError, ValueError) as error:
                self._error = str(error) or type(error).__name__
            finally:
                if self._connected.is_set():
                    self._connected.clear()
                    self.link_changed(False)
            if self._closing.is_set():
                return
            await self._pause(pause * random.uniform(0.5, 1.0))
            if self._closing.is_set():
                return
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not past the wish to close."""
        assert self._wake is not None
        end = asyncio.get_running_loop().time() + seconds
        while not self._closing.is_set() and (rest := end - asyncio.get_running_loop().time()) > 0:
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                await asyncio.wait_for(self._wake.wait(), rest)
            except asyncio.TimeoutError:
                return

    def _client(self) -> aiomqtt.Client:
        log = logging.getLogger("farm.mqtt")
        if not log.handlers:
            log.addHandler(logging.NullHandler())
        return aiomqtt.Client(
            self.broker.host,
            self.broker.port,
            username=self.broker.username,
            password=self.broker.password,
            identifier=self._identifier,
            will=self.will(),
            timeout=self._timeout_s,
            keepalive=KEEPALIVE_S,
            max_queued_incoming_messages=10_000,
            tls_context=self.broker.tls,
            logger=log,
        )
