"""farm devices: which devices there are, in which state, and what they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli._common import every_device, inventory_option, json_option, print_json, show

if TYPE_CHECKING:
    from farm.discovery import Found

EPILOG = """\b
Examples:
  farm devices
  farm devices --inventory lab.yaml --json
  farm devices --no-probe

Without --inventory: ./inventory.yaml where it exists, else this machine and the phones of the adb server that runs
here (none is started). Phones of `hosts:` are asked for over SSH."""


@click.command(epilog=EPILOG)
@inventory_option
@click.option("--no-probe", is_flag=True, help="List only; connect to no device.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds for connecting to a device, and for probing it.",
)
@json_option
def command(inventory_path: Path | None, no_probe: bool, timeout: float, as_json: bool) -> None:
    """List the devices with their state, GPU, OS build and profile, and what to do about those not ready."""
    from farm.discovery import look
    from farm.transports.gateway import Gateways

    with Gateways() as gateways:
        discovered = every_device(inventory_path, gateways)
        found = discovered.found if no_probe else look(discovered.found, gateways, timeout)
    if as_json:
        print_json([_row(f) for f in found])
    else:
        from tabulate import tabulate

        rows = [
            (f.device.id, f.state, f.device.transport, _gpu(f), _build(f), f.profile or "", " ".join(f.device.tags))
            for f in found
        ]
        headers = ("device", "state", "transport", "GPU", "OS build", "profile", "tags")
        show(tabulate(rows, headers=headers, disable_numparse=True))
        for f in found:
            if f.cure:
                print(f"{f.device.id} is {f.state}: {f.cure}", file=sys.stderr)
    for note in discovered.notes:
        print(f"note: {note}", file=sys.stderr)


def _gpu(found: Found) -> str:
    gpu = found.facts.get("gpu") or found.facts.get("gpus") or ""
    return gpu if isinstance(gpu, str) else ", ".join(str(g) for g in gpu)


def _build(found: Found) -> str:
    parts = (str(found.facts.get(name) or "") for name in ("os", "os_build"))
    return " ".join(part for part in parts if part)


def _row(found: Found) -> dict[str, object]:
    return {
        "id": found.device.id,
        "transport": found.device.transport,
        "address": found.device.address,
        "tags": found.device.tags,
        "state": found.state,
        "cure": found.cure,
        "profile": found.profile or found.device.profile,
        "about": dict(found.about),
        "facts": dict(found.facts),
    }
