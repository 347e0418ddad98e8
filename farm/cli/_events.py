"""Events of the runs that commands start: there if the inventory names a broker, silent otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.events import RunEvents
    from farm.inventory import Inventory
    from farm.runner import Progress

CLOSE_S = 3.0
"""How long the end of a run waits for its last events; a broker that is away costs no more."""


@contextmanager
def run_events(inventory: Inventory | None) -> Iterator[RunEvents | None]:
    """Give the events of one run, or None without a broker; say at the end if some did not get through.

    Raises InvalidInput if the broker's credentials are missing.
    """
    if inventory is None or inventory.mqtt is None:
        yield None
        return
    from farm.events import Publisher, RunEvents, broker_of

    broker = broker_of(inventory)
    assert broker is not None
    publisher = Publisher(broker)
    publisher.start()
    try:
        yield RunEvents(publisher)
    finally:
        publisher.close(CLOSE_S)
        if trouble := publisher.trouble():
            print(f"farm: {trouble}", file=sys.stderr)


def listeners(progress: Progress, events: RunEvents | None) -> dict[str, Any]:
    """What `sweep()` is told with: the progress and, where there is a broker, the events."""
    if events is None:
        return {"progress": progress}
    from farm.events import Both

    return {"progress": Both(progress, events), "on_run": lambda store: events.begin(store.plan)}
