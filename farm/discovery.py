"""Which devices there are without anybody writing them down: this machine, the phones of adb servers, those of hosts.

`farm devices`, a sweep without inventory and `hosts:` entries ask here. Only servers that run already are asked: farm
starts none here, because a second adb version kills the first one's server and every job on it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError, InfraError
from farm.inventory import Host, Inventory, default_inventory
from farm.lease import Lease, new_owner
from farm.place import far_root
from farm.plan import PlannedDevice
from farm.probe import probe
from farm.profiles import load_profiles, match_profile
from farm.runner import open_transport
from farm.transports.adb import Listed, list_phones, server_address
from farm.transports.adb_wire import Dial
from farm.transports.base import Deadline

if TYPE_CHECKING:
    from farm.transports.gateway import Gateways

ASK_S = 8.0
"""For a server's list; one that just started says nothing for 3 s while it looks for USB devices."""
AT_ONCE = 8
"""Devices looked at side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A device and its state. state: "ready", or what it is instead. cure: what a person has to do, "" if nothing.

    about: what an adb server says of it (model, usb, …). facts: of a device that was looked at.
    """

    device: PlannedDevice
    state: str
    cure: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    profile: str | None = None

    @property
    def ready(self) -> bool:
        return self.state == "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """Everything found, and in `notes` one sentence for each server that could not be asked."""

    found: tuple[Found, ...]
    notes: tuple[str, ...] = ()

    def inventory(self, base: Inventory) -> Inventory:
        """`base` with the ready devices as its own."""
        return dataclasses.replace(base, devices=tuple(f.device for f in self.found if f.ready), hosts=())


def discover(environ: Mapping[str, str] = os.environ) -> Discovered:
    """Find this machine and the phones of the adb server that adb itself would use, if one runs."""
    found = [Found(device=d, state="ready") for d in default_inventory().devices]
    server = server_address(None, environ)
    where = f"{server[0]}:{server[1]}"
    address = {} if server_address(None, {}) == server else {"adb_server": where}
    try:
        rows = list_phones(server, Deadline(ASK_S))
    except OSError:
        note = f"no adb server runs at {where}, so no phone was looked for; start one with: adb start-server"
        return Discovered(found=tuple(found), notes=(note,))
    except InfraError as e:
        return Discovered(found=tuple(found), notes=(str(e),))
    found += _phones(rows, address, taken=[f.device.id for f in found], transient=True)
    return Discovered(found=tuple(found))


def expand_hosts(inventory: Inventory, gateways: Gateways) -> Discovered:
    """The inventory's devices, and the phones that its hosts' adb servers list now.

    A phone that `devices:` names already (by `via` and serial) is not listed twice. A host that cannot be asked stands
    for its phones: one device with the host's id, whose cells say why nothing was run.
    """
    found = [Found(device=d, state="ready") for d in inventory.devices]
    notes: list[str] = []
    for host in inventory.hosts:
        base = {"via": host.id, "ssh": host.ssh, "adb_server": host.adb}
        try:
            rows = list_phones(server_address(host.adb, {}), Deadline(3 * ASK_S), _dial(host, gateways))
        except (InfraError, OSError) as e:
            notes.append(f"host {host.id}: {e}")
            lost = PlannedDevice(id=host.id, transport="adb", address=base, env=dict(host.env), tags=host.tags)
            found.append(Found(device=lost, state="unreachable", cure=str(e)))
            continue
        named = {d.address.get("serial") for d in inventory.devices if d.address.get("via") == host.id}
        more = _phones(
            [row for row in rows if row.serial not in named], base, taken=[f.device.id for f in found], prefix=host.id
        )
        found += [
            dataclasses.replace(f, device=dataclasses.replace(f.device, env=dict(host.env), tags=host.tags))
            for f in more
        ]
    return Discovered(found=tuple(found), notes=tuple(notes))


def planned(inventory: Inventory, gateways: Gateways) -> Inventory:
    """The inventory with the phones of its `hosts:` as devices, ready or not, so that none is missing in a report."""
    if not inventory.hosts:
        return inventory
    return dataclasses.replace(
        inventory, devices=tuple(f.device for f in expand_hosts(inventory, gateways).found), hosts=()
    )


def look(found: Sequence[Found], gateways: Gateways, timeout_s: float) -> tuple[Found, ...]:
    """Connect to every device that may be ready and say what it is, and whether somebody holds it. Bounded."""
    seen: dict[int, Found] = {}
    profiles = load_profiles()
    waiting = list(enumerate(found))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                number, one = waiting.pop(0)
            seen[number] = _look(one, gateways, timeout_s, profiles)

    threads = [threading.Thread(target=work, name="look") for _ in range(min(AT_ONCE, len(found)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(seen.get(n, one) for n, one in enumerate(found))


def _look(one: Found, gateways: Gateways, timeout_s: float, profiles: Any) -> Found:
    if not one.ready:
        return one
    transport = None
    try:
        transport = open_transport(one.device, gateways)
        transport.connect(timeout_s)
        facts = probe(transport, timeout_s)
        holder = None
        if not transport.shares_filesystem:
            root = far_root(transport, timeout_s)
            holder = Lease(transport, root, nonce=new_owner(), timeout_s=timeout_s).show()
    except FarmError as e:
        return dataclasses.replace(one, state="unreachable", cure=str(e))
    finally:
        if transport is not None:
            transport.close()
    profile = match_profile(facts, profiles)
    known = dataclasses.replace(
        one, facts=facts, profile=one.device.profile or (profile.id if profile is not None else None)
    )
    return known if holder is None else dataclasses.replace(known, state="leased", cure=f"by {holder}")


def short_id(model: str, serial: str, taken: Iterable[str] = (), prefix: str = "") -> str:
    """A stable name for a phone: its model and the end of its serial, more of it where that is taken."""
    words = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in (prefix, model or "phone")]
    tail = re.sub(r"[^a-z0-9]", "", serial.lower()) or "x"
    used = {t.lower() for t in taken}
    for length in range(4, len(tail) + 5):
        name = "-".join([w for w in words if w] + [tail[-length:]])[-64:].lstrip("-")
        if name not in used:
            return name
    number = 2
    while f"{name}-{number}" in used:
        number += 1
    return f"{name}-{number}"


def _phones(
    rows: Sequence[Listed],
    address: Mapping[str, str],
    *,
    taken: Sequence[str],
    prefix: str = "",
    transient: bool = False,
) -> list[Found]:
    found: list[Found] = []
    for row in rows:
        name = short_id(row.about.get("model", ""), row.serial, [*taken, *(f.device.id for f in found)], prefix)
        device = PlannedDevice(id=name, transport="adb", address={"serial": row.serial, **address}, transient=transient)
        state = "ready" if row.state == "device" else row.state
        found.append(Found(device=device, state=state, cure=row.cure, about=row.about))
    return found


def _dial(host: Host, gateways: Gateways) -> Dial:
    dial: Callable[[tuple[str, int], float], Any] = gateways.of(host.ssh).dial
    return dial
