"""Which cell of the new run answers to which cell of the old one, and what differs between the two but the answer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from farm.diff.value import NOTHING, Place
from farm.report.value import Matrix, MatrixCell, MatrixDevice

Key = tuple[str, str, str, str]
"""(device, model, signature, config): what names a cell whatever runtime it ran on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One cell in both runs; None on the side that lacks it. trigger, why: as in Change."""

    old: MatrixCell | None
    new: MatrixCell | None
    trigger: tuple[str, ...] = ()
    why: str = NOTHING

    @property
    def place(self) -> Place:
        cell = self.new or self.old
        assert cell is not None
        return place(cell)


def place(cell: MatrixCell) -> Place:
    return Place(
        id=cell.id,
        device=cell.device,
        gpu=cell.gpu,
        model=cell.model,
        signature=cell.signature,
        config=cell.config,
        runtime=cell.runtime,
    )


def pairs(old: Matrix, new: Matrix) -> Iterator[Pair]:
    """Yield every cell of either run once, in the new run's order, then what only the old run has.

    The same runtime answers to itself. A runtime that the old run lacks is compared with the nearest older one it had
    (else its newest), so that a failure which an upgrade brings has something it is a failure against. A signature that
    one run alone has answers to those that the other alone has: they were renamed, or the file is damaged and none of
    its signatures could be read.
    """
    before: dict[Key, dict[str, MatrixCell]] = defaultdict(dict)
    for cell in old.cells:
        before[key(cell)][cell.runtime] = cell
    shared = before.keys() & {key(cell) for cell in new.cells}
    gone: dict[tuple[str, str, str], list[MatrixCell]] = defaultdict(list)
    for cell in old.cells:
        if key(cell) not in shared:
            gone[_anywhere(cell)].append(cell)
    then = {device.id: device for device in old.devices}
    now = {device.id: device for device in new.devices}
    used: set[str] = set()
    for cell in new.cells:
        earlier = _answering(cell.runtime, before.get(key(cell), {}))
        if earlier is None and key(cell) not in shared:
            left = gone.get(_anywhere(cell), [])
            earlier = _answering(cell.runtime, {one.runtime: one for one in reversed(left)})
            if earlier is not None and "INVALID_MODEL" in cell.reasons:
                used.update(one.id for one in left if one.runtime == earlier.runtime)
        if earlier is None:
            yield Pair(old=None, new=cell)
            continue
        used.add(earlier.id)
        changes = tuple(_changes(earlier, cell, then, now))
        yield Pair(
            old=earlier,
            new=cell,
            trigger=tuple(dict.fromkeys(name for name, _ in changes)),
            why="; ".join(words for _, words in changes) or NOTHING,
        )
    for cell in old.cells:
        if cell.id not in used:
            yield Pair(old=cell, new=None)


def key(cell: MatrixCell) -> Key:
    return (cell.device, cell.model, cell.signature, cell.config)


def _anywhere(cell: MatrixCell) -> tuple[str, str, str]:
    return (cell.device, cell.model, cell.config)


def same_ground(old: MatrixCell, new: MatrixCell, then: MatrixDevice | None, now: MatrixDevice | None) -> bool:
    """Does nothing that the answer depends on differ between the two?"""
    devices_then = {then.id: then} if then else {}
    devices_now = {now.id: now} if now else {}
    return old.runtime == new.runtime and not any(_changes(old, new, devices_then, devices_now))


def _answering(runtime: str, cells: Mapping[str, MatrixCell]) -> MatrixCell | None:
    if runtime in cells or not cells:
        return cells.get(runtime)
    ordered = sorted(cells, key=_version)
    older = [name for name in ordered if _version(name) < _version(runtime)]
    return cells[older[-1] if older else ordered[-1]]


def _version(runtime: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(part) for part in re.findall(r"\d+", runtime)), runtime


def _changes(
    old: MatrixCell, new: MatrixCell, then: Mapping[str, MatrixDevice], now: Mapping[str, MatrixDevice]
) -> Iterator[tuple[str, str]]:
    """(trigger, words) for everything a cell depends on that differs."""
    if old.model_sha256 != new.model_sha256:
        yield "model", f"model {old.model_sha256[:8]} → {new.model_sha256[:8]}"
    if old.runtime != new.runtime:
        yield "runtime", f"runtime {old.runtime} → {new.runtime}"
    before, after = then.get(old.device), now.get(new.device)
    # A device that was never reached has no facts: what is not known did not change.
    if before and after and before.facts_sha256 and after.facts_sha256:
        for name, label in (("gpu", "GPU"), ("os", "OS"), ("driver", "driver")):
            was, became = getattr(before, name), getattr(after, name)
            # A run in which no GPU cell came so far as to name an adapter knows less of it; nothing has changed there.
            if was and became and was != became and not (name == "gpu" and not (old.adapter and new.adapter)):
                yield name, f"{label} {was} → {became}"
    if old.inputs != new.inputs or old.input_sets != new.input_sets:
        yield "inputs", f"inputs {_inputs(old)} → {_inputs(new)}"
    limits_then = {(output.name, name): limit for output in old.outputs for name, limit in output.limits.items()}
    limits_now = {(output.name, name): limit for output in new.outputs for name, limit in output.limits.items()}
    moved = sorted(k for k in limits_then.keys() & limits_now.keys() if limits_then[k] != limits_now[k])
    if moved:
        output, name = moved[0]
        more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
        yield "limits", f"limit {name} of {output} {limits_then[moved[0]]:g} → {limits_now[moved[0]]:g}{more}"


def _inputs(cell: MatrixCell) -> str:
    return f"{cell.inputs} ({', '.join(cell.input_sets) or 'none'})"
