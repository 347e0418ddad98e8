"""farm probe: connect to one device and print its facts."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli._common import inventory_option, json_option, open_inventory, print_json, show
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm probe this-machine
  farm probe pixel9 --inventory lab.yaml --json

Runs no model. Exit code 3 when the device cannot be reached, with the reason."""


@click.command(epilog=EPILOG)
@click.argument("device", metavar="ID")
@inventory_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds for connecting and for probing.",
)
@json_option
def command(device: str, inventory_path: Path | None, timeout: float, as_json: bool) -> None:
    """Connect to the device ID and print what it is: GPU, driver, OS, memory, temperature."""
    inventory = open_inventory(inventory_path)
    found = {d.id: d for d in inventory.devices}
    if device not in found:
        raise InvalidInput(
            Problem(message=f"no device '{device}' in the inventory", cure=f"there are: {', '.join(sorted(found))}")
        )
    from farm.probe import probe
    from farm.runner import open_transport

    transport = open_transport(found[device])
    try:
        transport.connect(timeout)
        facts = probe(transport, timeout)
    finally:
        transport.close()
    if as_json:
        print_json(facts)
        return
    from tabulate import tabulate

    show(tabulate([(name, str(facts[name])) for name in sorted(facts)], tablefmt="plain", disable_numparse=True))
