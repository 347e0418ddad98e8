"""farm watch: what the farms on a broker are doing, live."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli._common import show
from farm.errors import DeadlineExceeded, InvalidInput, Problem

if TYPE_CHECKING:
    from farm.events import Board

CONNECT_S = 10.0
SETTLE_S = 1.0
"""How long --once waits for further states after the last one."""
EPILOG = """\b
Examples:
  farm watch --inventory inventory.yaml
  farm watch --inventory inventory.yaml --once
  farm watch --inventory inventory.yaml --json

\b
Events are copies: what was missed (a gap is said) stands in the run folders. Ends with Ctrl-C.
The broker is the inventory's mqtt:, credentials come from the environment variables it names."""


@click.command(epilog=EPILOG)
@click.option(
    "--inventory",
    "inventory_path",
    type=click.Path(path_type=Path),
    default=Path("inventory.yaml"),
    show_default=True,
    metavar="FILE",
    help="The inventory that names the broker.",
)
@click.option("--once", is_flag=True, help="Show the devices as they are now, and end.")
@click.option("--for", "for_s", type=click.FloatRange(min=0), metavar="SECONDS", help="End after so long.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
def command(inventory_path: Path, once: bool, for_s: float | None, as_json: bool) -> None:
    """Show devices, runs and finished cells of every farm on the broker as they happen."""
    from farm.events import Board, Received, Subscription, broker_of
    from farm.events.messages import printable
    from farm.inventory import load_inventory

    broker = broker_of(load_inventory(inventory_path))
    if broker is None:
        raise InvalidInput(
            Problem(message="names no broker", file=str(inventory_path), cure="add mqtt: {host: …} to the inventory")
        )
    board = Board()
    subscription = Subscription(broker, [f"{broker.prefix.strip('/')}/#"])
    subscription.start()
    try:
        if not subscription.wait_connected(CONNECT_S):
            raise DeadlineExceeded(
                f"{broker.name} did not take us within {CONNECT_S:.0f} s: {subscription.last_error or 'no answer'}"
            )
        end = None if for_s is None else time.monotonic() + for_s
        while end is None or time.monotonic() < end:
            rest = SETTLE_S if once else 1.0
            item = subscription.get(rest if end is None else max(0.0, min(rest, end - time.monotonic())))
            if item is None:
                if once:
                    break
                continue
            lines = board.take(item)
            if as_json and isinstance(item, Received):
                text = item.data.decode("utf-8", "replace").replace("\n", " ")
                print(text, flush=True)
            elif not once:
                for line in lines:
                    print(printable(line), file=sys.stderr if line == "connected" else sys.stdout, flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        subscription.close(2.0)
    if once and not as_json:
        show(_table(board))


def _table(board: Board) -> str:
    from tabulate import tabulate

    from farm.events.messages import printable

    if not board.devices:
        return "No farm on this broker has told of a device yet."
    rows = [tuple(printable(word) for word in row) for row in board.rows()]
    return tabulate(rows, headers=("farm", "device", "state", "cell"), disable_numparse=True)
