"""Topics and payloads: pure. Ids come from inventories, models and devices, so no topic is made of one as it is.

    PREFIX/SOURCE/status              retained, last will: {"state": "online" | "offline"}
    PREFIX/SOURCE/device/DEVICE       retained: {"state": "idle" | "busy", "run", "cell"}
    PREFIX/SOURCE/run/RUN/started | stage | finished
    PREFIX/SOURCE/run/RUN/cell/CELL   a cell has finished
    PREFIX/SOURCE/night/summary
    PREFIX/SOURCE/request             a sweep asked for (farm serve listens)
    PREFIX/SOURCE/reply/REQUEST       its answers

Every payload is JSON with schema_version, source, session, seq and time. `seq` counts from 1 within a session, over all
topics but the retained ones: a gap tells a reader that it must look at the run folder (or ask again).
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping
from typing import Any

from farm import codec

MAX_PAYLOAD = 8192
"""Bytes. Brokers drop what is beyond their own limit without telling anybody (mosquitto answers success)."""
MAX_LEVEL = 100
MAX_TEXT = 500


def level(name: str) -> str:
    """Return `name` as one level of a topic: letters, digits, '.', '_', '~', '-'; unique where it had to be changed."""
    safe = re.sub(r"[^A-Za-z0-9._~-]", "_", name)[:MAX_LEVEL]
    if safe == name and name:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe[: MAX_LEVEL - 9]}-{digest}"


def base(prefix: str, source: str) -> str:
    """The topic below which everything of one farm host lies."""
    return f"{prefix.strip('/')}/{level(source)}"


def this_host() -> str:
    """The name this machine goes by on the broker."""
    return socket.gethostname().split(".")[0] or "farm"


def payload(body: Mapping[str, Any]) -> bytes:
    """Encode a body; long texts are cut, and one that is still too large keeps its plain short fields and says so."""
    data = codec.to_json(_cut(dict(body)))
    if len(data) <= MAX_PAYLOAD:
        return data
    short: dict[str, Any] = {k: v for k, v in body.items() if v is None or isinstance(v, bool | int | float)}
    short |= {k: v[:MAX_TEXT] for k, v in body.items() if isinstance(v, str) and len(v) <= MAX_TEXT}
    kept: dict[str, Any] = {"truncated": True, "sha256": hashlib.sha256(data).hexdigest()}
    for key in sorted(short, key=lambda k: (k not in _HEAD, k)):
        if len(codec.to_json({**kept, key: short[key]})) <= MAX_PAYLOAD:
            kept[key] = short[key]
    return codec.to_json(kept)


def printable(text: str) -> str:
    """Without control characters: whoever may publish must not move a reader's cursor."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


_HEAD = ("schema_version", "source", "session", "seq", "time", "type", "run")


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        # Lone surrogates come from file names and cannot be encoded.
        text = value.encode("utf-8", "replace").decode()
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    if isinstance(value, Mapping):
        return {str(k): _cut(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(v) for v in value]
    return value
