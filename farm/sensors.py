"""How warm a device is, and whether it has to rest: asked between cells, never during one.

Heat never delays numerics: a hot device runs on and its latency is marked throttled. Only a safety limit of its profile
(temperature, thermal status, battery) waits, and that has an end too.
"""

from __future__ import annotations

import glob
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farm import probe_parsers as parsers
from farm.errors import DeviceUnavailable, InfraError
from farm.outcome import Thermal
from farm.profiles import Safety
from farm.transports.base import Transport

EVERY_S = 2.0
"""A sample this young is used again: asking an Android phone costs some 50 ms."""
REST_S = 900.0
"""How long a device may rest in one visit, all waits together."""
LOOK_S = 10.0
"""How often a resting device is asked."""
THROTTLED_FROM = 2
"""Android's thermal status from which on speed suffers (PowerManager.THERMAL_STATUS_MODERATE)."""
_ZONES = ("/sys/class/thermal/thermal_zone*/type", "/sys/class/thermal/thermal_zone*/temp")


def read_sensors(transport: Transport, timeout: float) -> dict[str, Any]:
    """Temperature, thermal status, battery as the device tells them now; what it does not tell is left out."""
    if transport.shares_filesystem:
        return parsers.thermal_zones("".join(_zone(path) for pattern in _ZONES for path in sorted(glob.glob(pattern))))
    mark = f"@farm-{secrets.token_hex(8)} "
    script = (
        f"m() {{ printf '\\n%s%s\\n' '{mark}' \"$1\"; }}\n"
        "exec 2>/dev/null </dev/null\nm zones\n"
        f"for p in {' '.join(_ZONES)}; do\n"
        f'[ -r "$p" ] && printf \'\\n%s%s\\n\' "{parsers.FILE_MARK}" "$p" && cat "$p"; done\n'
        "if command -v dumpsys >/dev/null; then m battery; dumpsys battery; m thermal; dumpsys thermalservice; fi\n"
        'if [ "$(uname -s)" = Darwin ]; then m pmset; pmset -g therm; fi\nexit 0'
    )
    text = transport.run(["sh", "-c", script], timeout).stdout.decode(errors="replace").replace("\r\n", "\n")
    facts: dict[str, Any] = {}
    parse = {
        "zones": parsers.thermal_zones,
        "battery": parsers.battery,
        "thermal": parsers.thermal_service,
        "pmset": parsers.pmset,
    }
    for piece in text.split("\n" + mark)[1:]:
        name, _, answer = piece.partition("\n")
        if name.strip() in parse:
            facts.update({k: v for k, v in parse[name.strip()](answer).items() if v is not None})
    return facts


def _zone(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f"{parsers.FILE_MARK}{path}\n{f.read(4096)}\n"
    except OSError:  # zones that are switched off give EAGAIN, EINVAL or EIO
        return ""


def has_to_rest(facts: Mapping[str, Any], safety: Safety) -> str:
    """Why a device must rest now, or ""."""
    status, hot, battery = facts.get("thermal_status"), facts.get("temperature_c"), facts.get("battery_percent")
    if safety.thermal_status is not None and status is not None and status >= safety.thermal_status.value:
        return f"its thermal status is {status}, the profile's limit is {safety.thermal_status.value}"
    if safety.temperature_c is not None and hot is not None and hot >= safety.temperature_c.value:
        return f"it is at {hot:g} °C, the profile's limit is {safety.temperature_c.value:g} °C"
    if safety.battery_percent is not None and battery is not None and battery < safety.battery_percent.value:
        return f"its battery is at {battery} %, the profile's limit is {safety.battery_percent.value} %"
    return ""


@dataclass(slots=True, kw_only=True)
class Watch:
    """The warmth of one device over a visit. say: told of every rest, one sentence."""

    transport: Transport
    safety: Safety
    timeout_s: float
    say: Callable[[str], None] = lambda _: None
    rest_s: float = REST_S
    look_s: float = LOOK_S
    _last: dict[str, Any] = field(default_factory=dict)
    _at: float = float("-inf")

    def before(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """A sample, after as much rest as safety asks for. Raises DeviceUnavailable when no time for rest is left."""
        facts, told, pause = self._sample(), "", threading.Event()
        while why := has_to_rest(facts, self.safety):
            if self.rest_s <= 0 or stopped():
                raise DeviceUnavailable(f"the device has to rest: {why}; let it cool down or charge, then run again")
            if why != told:
                self.say(f"resting: {why}")
                told = why
            began = time.monotonic()
            pause.wait(min(self.look_s, self.rest_s))
            facts = self._sample(fresh=True)
            self.rest_s -= time.monotonic() - began
        return facts

    def thermal(self, before: Mapping[str, Any]) -> Thermal:
        """What a cell that has just ended gets recorded."""
        after = self._sample()
        return Thermal(
            before_c=before.get("temperature_c"),
            after_c=after.get("temperature_c"),
            throttled=any(_throttled(facts) for facts in (before, after)),
        )

    def _sample(self, *, fresh: bool = False) -> dict[str, Any]:
        if fresh or time.monotonic() - self._at >= EVERY_S:
            try:
                self._last = read_sensors(self.transport, self.timeout_s)
            except InfraError:
                # A link that is gone shows at the cell itself; warmth is no reason to fail one.
                self._last = {}
            self._at = time.monotonic()
        return self._last


def _throttled(facts: Mapping[str, Any]) -> bool:
    status, speed = int(facts.get("thermal_status", 0)), float(facts.get("speed_limit_percent", 100))
    return status >= THROTTLED_FROM or speed < 100
