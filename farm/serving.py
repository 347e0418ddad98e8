"""Sweeps asked for over MQTT: checks a request, answers, runs one at a time. Nothing from a request becomes a path.

A request names models and devices of this farm's own inventory by name; what the inventory does not have, or the
allow-list leaves out, cannot be run. A second delivery of a request (QoS 1 allows it) is answered, not run again.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import msgspec

from farm.cases import ModelRequest
from farm.configs import CONFIGS
from farm.errors import FarmError, InvalidInput
from farm.events import Publisher, Received, RunEvents, Subscription
from farm.events.messages import level
from farm.inventory import Inventory
from farm.runner import Stop
from farm.store import RunStore
from farm.sweep import SweepResult, sweep

MAX_REQUEST = 4096
"""Bytes."""
WAITING = 16
"""Requests that may wait; more are refused."""
REMEMBERED = 1000
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request's JSON. models: file stems of the inventory's models; devices, configs: none = the usual ones."""

    schema_version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    id: Id
    models: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100)]
    devices: Annotated[list[Name], msgspec.Meta(max_length=100)] = []
    configs: Annotated[list[Name], msgspec.Meta(max_length=20)] = []
    repeats: Annotated[int, msgspec.Meta(ge=1, le=20)] | None = None


def request_schema() -> dict[str, Any]:
    """The JSON Schema of a request."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Request)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Globs over model names and device ids of the inventory."""

    models: tuple[str, ...] = ("*",)
    devices: tuple[str, ...] = ("*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request that may run: models and devices found in the inventory."""

    request: Request
    models: tuple[ModelRequest, ...]
    devices: tuple[str, ...]


def check(data: bytes, inventory: Inventory, allowed: Allowed) -> Job:
    """Turn a request's bytes into a job. Raises InvalidInput with every problem found."""
    if len(data) > MAX_REQUEST:
        raise InvalidInput(f"a request may have {MAX_REQUEST} bytes, this one has {len(data)}")
    try:
        request = msgspec.json.decode(data, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"not a request: {error}") from error
    mine = {m.path.stem: m for m in inventory.models if _fits(m.path.stem, allowed.models)}
    devices = [d.id for d in inventory.devices if _fits(d.id, allowed.devices)]
    problems = [f"model {name!r} is not on offer" for name in request.models if name not in mine]
    problems += [f"device {name!r} is not on offer" for name in request.devices if name not in devices]
    names = {*CONFIGS, *inventory.configs}
    problems += [f"there is no config {name!r}" for name in request.configs if name not in names]
    if not devices:
        problems.append("no device is on offer")
    if problems:
        raise InvalidInput("; ".join(problems))
    return Job(
        request=request,
        models=tuple(mine[name] for name in dict.fromkeys(request.models)),
        devices=tuple(dict.fromkeys(request.devices)) or tuple(devices),
    )


class Server:
    """Listens in a thread of its own, runs jobs in the caller's."""

    def __init__(
        self,
        *,
        inventory: Inventory,
        allowed: Allowed,
        publisher: Publisher,
        subscription: Subscription,
        root: Path,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._inventory, self._allowed, self._root, self._say = inventory, allowed, root, say
        self._publisher, self._subscription = publisher, subscription
        self._jobs: queue.Queue[Job] = queue.Queue(WAITING)
        self._answers: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def topic(self) -> str:
        return f"{self._publisher.base}/request"

    def run(self, stop: Stop, *, most: int | None = None) -> None:
        """Serve until `stop` asks for the end (a run in flight is drained), or until `most` sweeps are done."""
        listener = threading.Thread(target=self._listen, name="requests", daemon=True)
        listener.start()
        done = 0
        try:
            while not stop.draining and (most is None or done < most):
                try:
                    job = self._jobs.get(timeout=0.5)
                except queue.Empty:
                    continue
                self._work(job, stop)
                done += 1
        finally:
            self._ended.set()
            listener.join(5.0)

    def take(self, item: Received) -> None:
        """Look at one message of the request topic and answer it."""
        if item.retained:
            self._say("a retained request was ignored: it may be older than anybody remembers")
            return
        try:
            job = check(item.data, self._inventory, self._allowed)
        except InvalidInput as error:
            self._say(f"refused: {error}")
            if (name := _id_of(item.data)) is not None and name not in self._answers:
                self._reply(name, "refused", problems=str(error))
            return
        name = job.request.id
        with self._lock:
            known = self._answers.get(name)
        if known is not None:
            self._publish(name, *known)
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._reply(name, "refused", problems=f"{WAITING} requests wait already; ask again later")
            return
        self._say(f"accepted {name}: {', '.join(job.request.models)}")
        self._reply(name, "accepted", waiting=self._jobs.qsize())

    def _listen(self) -> None:
        while not self._ended.is_set():
            item = self._subscription.get(0.5)
            if isinstance(item, Received):
                self.take(item)

    def _work(self, job: Job, stop: Stop) -> None:
        name = job.request.id
        events = RunEvents(self._publisher)

        def begin(store: RunStore) -> None:
            events.begin(store.plan)
            self._reply(name, "started", run=store.plan.run_id)

        try:
            result: SweepResult = sweep(
                job.models,
                inventory=self._inventory,
                devices=job.devices,
                configs=job.request.configs or None,
                repeats=job.request.repeats,
                out=self._root,
                progress=events,
                stop=stop,
                on_run=begin,
            )
        except FarmError as error:
            self._say(f"{name}: {error}")
            self._reply(name, "failed", problems=str(error), exit_code=error.exit_code)
            return
        events.end(result.matrix, result.run_folder, interrupted=result.interrupted)
        counts = Counter(cell.verdict for cell in result.matrix.cells if not cell.diagnostic)
        self._say(f"{name}: run {result.matrix.run.id} ended with {result.exit_code}")
        self._reply(
            name,
            "finished",
            run=result.matrix.run.id,
            exit_code=result.exit_code,
            verdicts=dict(counts),
            interrupted=result.interrupted,
        )

    def _reply(self, name: str, state: str, **body: Any) -> None:
        with self._lock:
            self._answers[name] = (state, body)
            self._answers.move_to_end(name)
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        self._publish(name, state, body)

    def _publish(self, name: str, state: str, body: dict[str, Any]) -> None:
        self._publisher.publish(f"reply/{level(name)}", "reply", request=name, state=state, **body)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class _OnlyId(msgspec.Struct):
    id: Id


def _id_of(data: bytes) -> str | None:
    """The id of a request that is otherwise no good, so that its sender hears of it; None where there is none."""
    if len(data) > 1 << 16:
        return None
    try:
        return msgspec.json.decode(data, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
