"""The sending side: a bounded queue that never blocks who fills it, states that are sent again after a reconnect.

Every event is read back through the broker, because a broker drops what is too large for it and still answers success.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import aiomqtt
import msgspec

from farm import codec
from farm.events import messages
from farm.events.link import TIMEOUT_S, Broker, Link

QUEUE = 2000
"""Events kept while the broker is away; beyond, the oldest go."""
ECHO_S = 2.0
"""How long closing waits for the last events to come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How the events of a session fared. unconfirmed: sent, but not seen to come out of the broker."""

    published: int
    delivered: int
    dropped: int
    waiting: int
    unconfirmed: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class _Event:
    seq: int
    topic: str
    data: bytes


class Publisher(Link):
    """Publishes events and retained states of one farm host. `publish` and `state` return at once and never raise."""

    def __init__(
        self, broker: Broker, *, source: str | None = None, queue: int = QUEUE, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(broker, role="run", timeout_s=timeout_s)
        self.source = source or messages.this_host()
        self.session = secrets.token_hex(6)
        self.base = messages.base(broker.prefix, self.source)
        self._lock = threading.Lock()
        self._size = queue
        self._events: deque[_Event] = deque()
        self._states: OrderedDict[str, bytes] = OrderedDict()
        self._unsent: OrderedDict[str, None] = OrderedDict()
        self._seq = self._delivered = self._dropped = 0
        self._unconfirmed: OrderedDict[int, None] = OrderedDict()
        self._reads_back = False

    def publish(self, topic: str, kind: str, **body: Any) -> int:
        """Queue an event below this host's base topic; return its sequence number."""
        with self._lock:
            self._seq += 1
            seq = self._seq
            event = _Event(seq, f"{self.base}/{topic}", messages.payload({**body, **self._head(kind), "seq": seq}))
            self._events.append(event)
            if len(self._events) > self._size:
                self._events.popleft()
                self._dropped += 1
        self.wake()
        return seq

    def state(self, topic: str, **body: Any) -> None:
        """Set a retained state below this host's base topic; only the latest is ever sent."""
        data = messages.payload({**body, **self._head("state")})
        with self._lock:
            self._states[f"{self.base}/{topic}"] = data
            self._unsent[f"{self.base}/{topic}"] = None
        self.wake()

    def sent(self) -> Sent:
        with self._lock:
            return Sent(
                published=self._seq,
                delivered=self._delivered,
                dropped=self._dropped,
                waiting=len(self._events),
                unconfirmed=len(self._unconfirmed),
                last_error=self.last_error,
            )

    def trouble(self) -> str | None:
        """One sentence if not every event got through, for the end of a run; None if all did."""
        sent = self.sent()
        lost = sent.dropped + sent.waiting + sent.unconfirmed
        if not lost:
            return None
        why = f" ({sent.last_error})" if sent.last_error else ""
        return (
            f"{lost} of {sent.published} events did not reach {self.broker.name}{why}; the run is not affected, its "
            "folder holds everything"
        )

    def will(self) -> aiomqtt.Will:
        return aiomqtt.Will(f"{self.base}/status", self._status("offline"), qos=1, retain=True)

    async def serve(self, client: aiomqtt.Client) -> None:
        with self._lock:
            self._unsent = OrderedDict.fromkeys(self._states)
        reader = asyncio.create_task(self._read_back(client))
        try:
            await client.publish(f"{self.base}/status", self._status("online"), qos=1, retain=True)
            while True:
                item = self._next()
                if item is not None:
                    await self._send(client, item)
                elif self._closing.is_set():
                    break
                else:
                    await self._idle(reader)
            await self._settle(reader)
            await client.publish(f"{self.base}/status", self._status("offline"), qos=1, retain=True)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _idle(self, reader: asyncio.Task[None]) -> None:
        """Wait until there is something to send; a connection that breaks meanwhile shows at the reader."""
        assert self._wake is not None
        wake = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait({wake, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()
        self._wake.clear()
        if reader.done() and (error := reader.exception()) is not None:
            raise error

    async def _settle(self, reader: asyncio.Task[None]) -> None:
        """Give the last events time to come back."""
        end = asyncio.get_running_loop().time() + ECHO_S
        while self._reads_back and self._unconfirmed and not reader.done():
            rest = end - asyncio.get_running_loop().time()
            if rest <= 0:
                return
            assert self._wake is not None
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), rest)
            except asyncio.TimeoutError:
                return

    def _next(self) -> _Event | str | None:
        """The oldest event, or the topic of a state that is to be sent; states first, they are few and short."""
        with self._lock:
            if self._unsent:
                return next(iter(self._unsent))
            return self._events[0] if self._events else None

    async def _send(self, client: aiomqtt.Client, item: _Event | str) -> None:
        if isinstance(item, str):
            with self._lock:
                data = self._states[item]
                self._unsent.pop(item, None)
            try:
                await client.publish(item, data, qos=1, retain=True)
            except aiomqtt.MqttError:
                with self._lock:
                    self._unsent[item] = None
                raise
            return
        with self._lock:
            if self._reads_back:
                self._unconfirmed[item.seq] = None
        try:
            await client.publish(item.topic, item.data, qos=1)
        except aiomqtt.MqttError:
            with self._lock:
                self._unconfirmed.pop(item.seq, None)
            raise
        with self._lock:
            self._delivered += 1
            if self._events and self._events[0] is item:
                self._events.popleft()

    async def _read_back(self, client: aiomqtt.Client) -> None:
        """Tick off our own events as they come out of the broker. A broker that lets us read nothing is believed."""
        try:
            codes = await client.subscribe([(f"{self.base}/{room}/#", 1) for room in ("run", "night", "reply")])
            self._reads_back = all((code if isinstance(code, int) else code.value) < 128 for code in codes)
        except aiomqtt.MqttCodeError:
            self._reads_back = False
        async for message in client.messages:
            data = message.payload
            if not isinstance(data, bytes | bytearray):
                continue
            try:
                body = codec.from_json(bytes(data), _Echo)
            except msgspec.DecodeError:
                continue
            if body.session == self.session:
                with self._lock:
                    self._unconfirmed.pop(body.seq, None)
                if self._closing.is_set() and self._wake is not None:
                    self._wake.set()

    def _head(self, kind: str) -> Mapping[str, Any]:
        return {
            "schema_version": 1,
            "source": self.source,
            "session": self.session,
            "type": kind,
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }

    def _status(self, state: str) -> bytes:
        return messages.payload({**self._head("status"), "state": state})


class _Echo(msgspec.Struct):
    session: str
    seq: int
