"""farm serve: run sweeps that other machines ask for over MQTT."""

from __future__ import annotations

import ipaddress
import signal
import sys
from pathlib import Path

import click

from farm.cli._common import print_json
from farm.errors import DeadlineExceeded, InvalidInput, Problem

CONNECT_S = 10.0
EPILOG = """\b
Examples:
  farm serve --inventory inventory.yaml
  farm serve --inventory inventory.yaml --allow-model 'mobile*' --allow-device 'pixel*'
  farm serve --schema

\b
A request is JSON on PREFIX/HOST/request, e.g. {"id": "pr-17", "models": ["embedder"], "devices": ["pixel9"]}; answers
come on PREFIX/HOST/reply/ID: refused, accepted, started (with the run id), finished (with the exit code and verdicts).
Models and devices are those of the inventory; a broker without user names is refused unless it is on this machine."""


@click.command(epilog=EPILOG)
@click.option(
    "--inventory",
    "inventory_path",
    type=click.Path(path_type=Path),
    default=Path("inventory.yaml"),
    show_default=True,
    metavar="FILE",
    help="The inventory of devices, models and the broker.",
)
@click.option("--allow-model", "models", multiple=True, metavar="GLOB", help="Only these models; repeatable.")
@click.option("--allow-device", "devices", multiple=True, metavar="GLOB", help="Only these devices; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder that holds the runs.")
@click.option("--most", type=click.IntRange(min=1), metavar="N", help="End after so many sweeps.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of a request and end.")
def command(
    inventory_path: Path,
    models: tuple[str, ...],
    devices: tuple[str, ...],
    out: Path | None,
    most: int | None,
    schema: bool,
) -> None:
    """Listen for sweep requests on the inventory's broker and run them one at a time."""
    from farm.serving import Allowed, Server, request_schema

    if schema:
        print_json(request_schema())
        return
    from farm.events import Publisher, Subscription, broker_of
    from farm.events.messages import printable
    from farm.inventory import load_inventory
    from farm.runner import Stop

    inventory = load_inventory(inventory_path)
    broker = broker_of(inventory)
    file = str(inventory_path)
    if broker is None:
        raise InvalidInput(Problem(message="names no broker", file=file, cure="add mqtt: {host: …} to the inventory"))
    if broker.username is None and not _is_here(broker.host):
        raise InvalidInput(
            Problem(
                message=f"the broker {broker.host} lets anybody in, and whoever is in could start sweeps",
                file=file,
                cure="give it users, and name username_env and password_env under mqtt:",
            )
        )
    publisher = Publisher(broker)
    subscription = Subscription(broker, [f"{publisher.base}/request"])
    server = Server(
        inventory=inventory,
        allowed=Allowed(models=models or ("*",), devices=devices or ("*",)),
        publisher=publisher,
        subscription=subscription,
        root=out or (inventory.store.root if inventory.store else None) or Path("runs"),
        say=lambda words: print(printable(words), file=sys.stderr, flush=True),
    )
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.request())
    publisher.start()
    subscription.start()
    try:
        if not subscription.wait_connected(CONNECT_S):
            raise DeadlineExceeded(
                f"{broker.name} did not take us within {CONNECT_S:.0f} s: {subscription.last_error or 'no answer'}"
            )
        print(f"Listening on {server.topic} of {broker.name}.", file=sys.stderr, flush=True)
        server.run(stop, most=most)
    finally:
        subscription.close(2.0)
        publisher.close(3.0)


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
