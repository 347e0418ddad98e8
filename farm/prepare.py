"""Everything up to the first touch of a device: what the user gave becomes a plan, or every problem with it is told.

The first half of sweep.py, and the whole of `farm plan`.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from farm import __version__
from farm.cases import ModelRequest
from farm.configs import CONFIGS, select_configs
from farm.defaults import Limits
from farm.errors import InvalidInput, Problem
from farm.objects import HeldObjects
from farm.paths import check_folder
from farm.plan import Plan

if TYPE_CHECKING:
    from farm.inventory import Inventory

T = TypeVar("T")


def prepare(
    models: Sequence[str | Path | ModelRequest] = (),
    *,
    inventory: str | Path | Inventory | None = None,
    devices: Sequence[str] | None = None,
    configs: Sequence[str] | None = None,
    inputs: Sequence[str | Path] | str | Path | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    runtime: Sequence[str] | str | None = None,
    signature: str | None = None,
    seed: int | None = None,
    repeats: int | None = None,
    iterations: int | None = None,
    min_cosine_similarity: float | None = None,
    min_norm: float | None = None,
    limits: Limits | None = None,
    out: str | Path | None = None,
    held: HeldObjects | None = None,
) -> Plan:
    """Everything up to the first touch of a device: the plan of what `sweep` would do. Raises InvalidInput.

    The inputs are stored in `out`, once nothing is left to refuse; without it nothing is written at all. With `held`
    they wait there, and the caller stores them.
    """
    from farm.cases import build_cases
    from farm.inventory import default_inventory, load_inventory, select_devices
    from farm.plan import make_plan

    if inventory is None:
        stock = default_inventory()
    else:
        stock = load_inventory(Path(inventory)) if isinstance(inventory, (str, Path)) else inventory
    given: dict[str, Any] = {
        "seed": seed,
        "repeats": repeats,
        "iterations": iterations,
        "min_cosine_similarity": min_cosine_similarity,
        "min_norm": min_norm,
    }
    base = limits if limits is not None else stock.with_limits(Limits())
    limits = dataclasses.replace(base, **{k: v for k, v in given.items() if v is not None})

    problems = _Problems()
    for wrong in _wrong_limits(limits):
        problems.add(wrong)
    usable = Limits() if problems.found else limits
    wanted = problems.collect(lambda: select_configs(configs or (), own=stock.configs))
    names = problems.collect(lambda: _runtime_names(runtime))
    files = (inputs,) if isinstance(inputs, (str, Path)) else tuple(inputs or ())
    requests = problems.collect(
        lambda: _requests(models, stock, tuple(Path(f) for f in files), input_shapes or {}, signature)
    )
    if requests == ():
        problems.add(Problem(message="no model given", cure="name a .tflite file, or list models in the inventory"))
    if out is not None:
        problems.collect(lambda: check_folder(Path(out), "choose a writable folder with --out"))
    objects = held or HeldObjects(None if out is None else Path(out) / "objects")
    cases = problems.collect(lambda: build_cases(requests or (), objects, usable))
    if stock.hosts:
        # Their phones are only known once the hosts are asked: not before all else is right.
        if problems.found:
            raise InvalidInput(problems.found)
        stock = _with_phones(stock)
    chosen = problems.collect(lambda: select_devices(stock, tuple(devices or ())))
    if problems.found or chosen is None or wanted is None or names is None or cases is None:
        raise InvalidInput(problems.found)
    if held is None:
        objects.write()
    now = datetime.now(timezone.utc)
    return make_plan(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        created=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        farm_version=__version__,
        inventory_sha256=stock.sha256,
        limits=limits,
        devices=chosen,
        configs=wanted,
        cases=cases,
        runtimes={d.id: names for d in chosen},
        known=stock.known,
    )


def _with_phones(inventory: Inventory) -> Inventory:
    """The inventory with the phones behind its `hosts:`."""
    from farm.discovery import planned
    from farm.transports.gateway import Gateways

    with Gateways() as gateways:
        return planned(inventory, gateways)


def _wrong_limits(limits: Limits) -> Iterator[Problem]:
    """What would make every verdict nonsense: NaN slips through `<` and through click's ranges."""
    cosine = limits.min_cosine_similarity
    for name, value, fits, cure in (
        ("seed", limits.seed, limits.seed >= 0, "give a whole number from 0 up"),
        ("repeats", limits.repeats, limits.repeats >= 1, "give a whole number from 1 up"),
        ("iterations", limits.iterations, limits.iterations >= 1, "give a whole number from 1 up"),
        ("min_norm", limits.min_norm, 0 <= limits.min_norm < math.inf, "give a number from 0 up"),
        ("min_cosine_similarity", cosine, cosine is None or -1 <= cosine <= 1, "give a number from -1 to 1"),
    ):
        if not fits:
            yield Problem(message=f"{name} cannot be {value}", cure=cure)


class _Problems:
    """Everything wrong with what the user gave, so that it is told at once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, problem: Problem) -> None:
        self.found.append(problem)

    def collect(self, work: Callable[[], T]) -> T | None:
        """Do one part; what is wrong with it is kept and the next part still gets its turn."""
        try:
            return work()
        except InvalidInput as e:
            self.found.extend(e.problems)
            return None


def _requests(
    models: Sequence[str | Path | ModelRequest],
    inventory: Inventory,
    inputs: tuple[Path, ...],
    shapes: Mapping[str, tuple[int, ...]],
    signature: str | None,
) -> tuple[ModelRequest, ...]:
    """What the call names, or else the inventory's models, with what the call says of inputs laid over it."""
    from farm.specs import model_requests

    names = (*CONFIGS, *inventory.configs)
    given = (m if isinstance(m, ModelRequest) else model_requests([m], configs=names)[0] for m in models)
    return tuple(
        dataclasses.replace(
            request,
            inputs=inputs or request.inputs,
            input_shapes={**request.input_shapes, **shapes},
            signature=signature if signature is not None else request.signature,
        )
        for request in (tuple(given) if models else inventory.models)
    )


def _runtime_names(selectors: Sequence[str] | str | None) -> tuple[str, ...]:
    """The names of the chosen runtimes; a comma-separated text is a list."""
    from farm.runtimes import find_runtime, host_platform

    given = [selectors] if isinstance(selectors, str) else list(selectors or ())
    wanted: list[str | None] = [one.strip() for text in given for one in text.split(",") if one.strip()]
    platform = host_platform()
    return tuple(dict.fromkeys(find_runtime(one, platform).name for one in wanted or [None]))
