"""farm probe: connect to one device and print its facts."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli._common import inventory_option, json_option, one_device, print_json, show

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
    from farm.probe import probe
    from farm.profiles import load_profiles, match_profile
    from farm.runner import open_transport
    from farm.transports.gateway import Gateways

    with Gateways() as gateways:
        found = one_device(device, inventory_path, gateways)
        transport = open_transport(found, gateways)
        try:
            transport.connect(timeout)
            facts = dict(probe(transport, timeout))
        finally:
            transport.close()
    profile = match_profile(facts, load_profiles())
    if found.profile or profile is not None:
        facts["profile"] = found.profile or (profile.id if profile is not None else None)
    if as_json:
        print_json(facts)
        return
    from tabulate import tabulate

    show(tabulate([(name, str(facts[name])) for name in sorted(facts)], tablefmt="plain", disable_numparse=True))
