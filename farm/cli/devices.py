"""farm devices: the devices of the inventory, without touching any."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli._common import inventory_option, json_option, open_inventory, print_json, show

EPILOG = """\b
Examples:
  farm devices
  farm devices --inventory lab.yaml --json

Without --inventory: ./inventory.yaml where it exists, else this machine alone.
farm probe ID connects to one and says what it is."""


@click.command(epilog=EPILOG)
@inventory_option
@json_option
def command(inventory_path: Path | None, as_json: bool) -> None:
    """List the inventory's devices."""
    inventory = open_inventory(inventory_path)
    if as_json:
        print_json(inventory.devices)
        return
    from tabulate import tabulate

    show(
        tabulate(
            [
                (
                    device.id,
                    device.transport,
                    " ".join(f"{key}={value}" for key, value in device.address.items()),
                    device.profile or "",
                    " ".join(device.tags),
                )
                for device in inventory.devices
            ],
            headers=("device", "transport", "address", "profile", "tags"),
            disable_numparse=True,
        )
    )
