"""farm clean: remove everything farm keeps on devices."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from farm.cli._common import every_device, inventory_option, one_device, show
from farm.errors import FarmError

EPILOG = """\b
Examples:
  farm clean pixel9
  farm clean --inventory lab.yaml

Only what farm put there is removed (agent, runtimes, models, inputs, jobs, lease); the next sweep sends it again.
A device that another farm uses is left alone. Exit code 3 if one could not be cleaned."""

TIMEOUT_S = 10.0


@click.command(epilog=EPILOG)
@click.argument("device", metavar="[ID]", required=False)
@inventory_option
def command(device: str | None, inventory_path: Path | None) -> int:
    """Remove farm's files from the device ID, or from every device."""
    from farm.lease import Lease, new_owner
    from farm.place import RemotePlace, far_root
    from farm.runner import open_transport
    from farm.transports.gateway import Gateways

    failed = False
    with Gateways() as gateways:
        if device is not None:
            chosen = [one_device(device, inventory_path, gateways)]
        else:
            chosen = [f.device for f in every_device(inventory_path, gateways).found]
        for one in chosen:
            if one.transport == "local":
                show(f"{one.id}: this machine's runs and caches are not on a device; nothing to clean")
                continue
            transport = open_transport(one, gateways)
            try:
                transport.connect(TIMEOUT_S)
                root = far_root(transport, TIMEOUT_S)
                owner = new_owner()
                Lease(transport, root, nonce=owner, reason="farm clean", timeout_s=TIMEOUT_S).take(0)
                RemotePlace.bare(transport, root, TIMEOUT_S, owner=owner).remove_all()
                show(f"{one.id}: removed {root}")
            except FarmError as e:
                failed = True
                print(f"farm: {one.id}: {e}", file=sys.stderr)
            finally:
                transport.close()
    return 3 if failed else 0
