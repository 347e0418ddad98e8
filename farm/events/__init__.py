"""What a run tells others over MQTT, and what it hears from them. Off unless the inventory names a broker.

    runner ──progress──▶ RunEvents ──▶ Publisher (own thread, asyncio inside) ──▶ broker ──▶ farm watch, dashboards
    broker ──▶ Subscription (own thread) ──▶ farm watch, farm serve

The journal is the truth. An event is a copy, at most once lost and never waited for: a broker that is away, frozen or
full costs a run nothing.
"""

from farm.events.board import Board
from farm.events.link import Broker, broker_of
from farm.events.progress import Both, RunEvents
from farm.events.publisher import Publisher
from farm.events.subscription import LinkState, Received, Subscription

__all__ = ["Board", "Both", "Broker", "LinkState", "Publisher", "Received", "RunEvents", "Subscription", "broker_of"]
