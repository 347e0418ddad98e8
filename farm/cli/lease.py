"""farm lease: who uses a device, and how to keep others off it or end that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from farm.cli._common import every_device, inventory_option, json_option, one_device, print_json, show
from farm.errors import InfraError, InvalidInput, Problem
from farm.lease import Lease

EPILOG = """\b
Examples:
  farm lease list
  farm lease hold pixel9 --for 2h --reason "looking at the driver"
  farm lease break pixel9

A lease lies on the device itself, so every farm that reaches it sees it. This machine has none."""

TIMEOUT_S = 10.0


@click.group(epilog=EPILOG)
def command() -> None:
    """Show, take and end the leases of devices."""


@command.command("list", epilog="\b\nExamples:\n  farm lease list\n  farm lease list --inventory lab.yaml --json")
@inventory_option
@json_option
def list_(inventory_path: Path | None, as_json: bool) -> None:
    """List the devices that somebody holds, with owner, reason and time left."""
    from farm.discovery import look
    from farm.transports.gateway import Gateways

    with Gateways() as gateways:
        found = look(every_device(inventory_path, gateways).found, gateways, TIMEOUT_S)
    rows = [(f.device.id, f.state, f.cure) for f in found]
    if as_json:
        print_json([{"device": device, "state": state, "holder": who} for device, state, who in rows])
        return
    from tabulate import tabulate

    show(tabulate(rows, headers=("device", "state", "holder or reason"), disable_numparse=True))


@command.command("hold", epilog='\b\nExamples:\n  farm lease hold pixel9 --for 2h --reason "driver debugging"')
@click.argument("device", metavar="ID")
@click.option("--for", "length", required=True, metavar="TIME", help="How long: 90s, 30m, 2h or 1d.")
@click.option("--reason", required=True, help="Shown to whoever wants the device meanwhile.")
@inventory_option
def hold(device: str, length: str, reason: str, inventory_path: Path | None) -> None:
    """Keep every farm off the device ID until the time is over or the lease is broken."""
    import getpass
    import socket

    seconds = duration(length)
    with _lease(device, inventory_path, f"{getpass.getuser()}@{socket.gethostname()} by hand", reason) as lease:
        lease.take(0, ttl_s=seconds)
    show(f"{device} is yours for {length}; give it back with: farm lease break {device}")


@command.command("break", epilog="\b\nExamples:\n  farm lease break pixel9")
@click.argument("device", metavar="ID")
@inventory_option
def break_(device: str, inventory_path: Path | None) -> None:
    """End whoever's lease of the device ID; a farm that is using it is refused at its next cell."""
    with _lease(device, inventory_path, "", "") as lease:
        holder = lease.break_()
    show(f"{device}: ended the lease of {holder}" if holder is not None else f"{device}: nobody held it")


@contextmanager
def _lease(device: str, path: Path | None, owner: str, reason: str) -> Iterator[Lease]:
    from farm.lease import new_owner
    from farm.place import far_root
    from farm.runner import open_transport
    from farm.transports.gateway import Gateways

    with Gateways() as gateways:
        planned = one_device(device, path, gateways)
        transport = open_transport(planned, gateways)
        if transport.shares_filesystem:
            raise InvalidInput(Problem(message=f"'{device}' is this machine, which has no lease"))
        try:
            transport.connect(TIMEOUT_S)
            root = far_root(transport, TIMEOUT_S)
            yield Lease(transport, root, nonce=new_owner(), owner=owner, reason=reason, timeout_s=TIMEOUT_S)
        except InfraError as e:
            e.device = e.device or device
            raise
        finally:
            transport.close()


def duration(text: str) -> float:
    """Seconds of a text like 90s, 30m, 2h, 1d. Raises InvalidInput."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if not found or not int(found[1]):
        raise InvalidInput(Problem(message=f"--for {text!r} is no length of time", cure="write 90s, 30m, 2h or 1d"))
    return float(int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]])
