"""The receiving side: subscribes anew after every reconnect and hands messages over in a bounded queue."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import aiomqtt

from farm.events.link import TIMEOUT_S, Broker, Link

QUEUE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message. retained: it is a state of before we subscribed, maybe of a run long gone."""

    topic: str
    data: bytes
    retained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The connection came or went; while it was away messages may have been missed."""

    up: bool
    error: str | None = None


class Subscription(Link):
    """Everything that arrives under some topics. lost: messages nobody fetched in time."""

    def __init__(self, broker: Broker, topics: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(broker, role="reader", timeout_s=timeout_s)
        self._topics = tuple(topics)
        self._queue: queue.Queue[Received | LinkState] = queue.Queue(QUEUE)
        self.lost = 0
        self._subscribed = threading.Event()

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the broker has taken us and our subscription; what is published after that arrives."""
        return self._subscribed.wait(timeout_s)

    def get(self, timeout_s: float) -> Received | LinkState | None:
        """The next message or change of the link; None if nothing came in time."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def link_changed(self, up: bool) -> None:
        if not up:
            self._subscribed.clear()
            self._put(LinkState(up=False, error=self._error))

    async def serve(self, client: aiomqtt.Client) -> None:
        await client.subscribe([(topic, 1) for topic in self._topics])
        self._put(LinkState(up=True))
        self._subscribed.set()
        reader = asyncio.create_task(self._read(client))
        try:
            await self._until_closing(reader)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _until_closing(self, reader: asyncio.Task[None]) -> None:
        assert self._wake is not None
        while not self._closing.is_set():
            self._wake.clear()
            wake = asyncio.create_task(self._wake.wait())
            try:
                await asyncio.wait({wake, reader}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                wake.cancel()
            if reader.done() and (error := reader.exception()) is not None:
                raise error

    async def _read(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            data = message.payload
            self._put(
                Received(
                    topic=str(message.topic),
                    data=bytes(data) if isinstance(data, bytes | bytearray) else str(data or "").encode(),
                    retained=bool(message.retain),
                )
            )

    def _put(self, item: Received | LinkState) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.lost += 1
