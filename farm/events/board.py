"""What `farm watch` knows: the state of every device of every farm on the broker, put together from messages. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from farm import codec
from farm.events.subscription import LinkState, Received

MAX_DATA = 1 << 16
"""Larger payloads are no event of ours."""


@dataclass(slots=True, kw_only=True)
class Board:
    """Fed message by message. sources: host → online | offline. devices: (host, device) → its last state."""

    sources: dict[str, str] = field(default_factory=dict)
    devices: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    connected: bool = False
    _seen: dict[str, int] = field(default_factory=dict)

    def take(self, item: Received | LinkState) -> list[str]:
        """Take one message or change of the link in; return the lines a person should see of it."""
        if isinstance(item, LinkState):
            self.connected = item.up
            return ["connected" if item.up else f"the broker is away: {item.error or 'connection lost'}"]
        body = _body(item)
        if body is None:
            return []
        source = str(body.get("source", "?"))
        kind = body.get("type")
        if kind == "status":
            before, state = self.sources.get(source), str(body.get("state"))
            self.sources[source] = state
            return [f"{source}: {state}"] if before != state else []
        if kind == "state":
            self.devices[source, str(body.get("device"))] = body
            return []
        if item.retained:
            return []  # whatever left that behind, it is not happening now
        return [*self._gap(source, body), f"{source}: {_line(body)}"]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(host, device, state, cell) per device; those of a host that is gone are `unknown`."""
        return [
            (
                source,
                device,
                str(body.get("state", "?"))
                if self.sources.get(source) == "online"
                else "unknown (its farm is offline)",
                str(body.get("cell") or ""),
            )
            for (source, device), body in sorted(self.devices.items())
        ]

    def _gap(self, source: str, body: dict[str, Any]) -> list[str]:
        session, seq = str(body.get("session")), body.get("seq")
        if not isinstance(seq, int):
            return []
        last = self._seen.get(session)
        self._seen[session] = max(seq, last or 0)
        if last is not None and seq > last + 1:
            return [f"{source}: {seq - last - 1} events were missed here; the run folder has everything"]
        return []


def _body(item: Received) -> dict[str, Any] | None:
    if len(item.data) > MAX_DATA:
        return None
    try:
        return codec.from_json(item.data, dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _line(body: dict[str, Any]) -> str:
    kind = body.get("type")
    if kind == "run_started":
        devices = body.get("devices")
        count = len(devices) if isinstance(devices, list) else "?"
        return f"run {body.get('run')} started: {body.get('cells')} cells on {count} device(s)"
    if kind == "run_finished":
        verdicts = body.get("verdicts")
        counts = ", ".join(f"{n} {word}" for word, n in verdicts.items()) if isinstance(verdicts, dict) else ""
        return f"run {body.get('run')} finished: {counts}; exit code {body.get('exit_code')}"
    if kind == "cell_finished":
        ms = body.get("latency_ms")
        took = f", {ms:.3g} ms" if isinstance(ms, int | float) and abs(ms) < 1e12 else ""
        return f"{body.get('device')}  {body.get('model')}  {body.get('config')}: {body.get('outcome')}{took}"
    if kind == "run_stage":
        return str(body.get("stage"))
    if kind == "night":
        return str(body.get("text"))
    return str(kind)
