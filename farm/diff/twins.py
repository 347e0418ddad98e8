"""Devices that should answer alike: same GPU, driver, OS and model of phone. Who differs from its twins is suspect."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from farm.diff.compare import BAD, GOOD
from farm.report.value import Matrix, MatrixDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A device that alone differs from at least two twins that agree. cells: ids of its cells; of: cells compared."""

    device: str
    twins: tuple[str, ...]
    cells: tuple[str, ...]
    of: int

    def __str__(self) -> str:
        return (
            f"{self.device} alone differs from its twins {', '.join(self.twins)} in {len(self.cells)} of {self.of} "
            f"cells (first: {self.cells[0]}): look at the device before the model"
        )


def twins(matrix: Matrix) -> list[tuple[str, ...]]:
    """Groups of at least two devices that probing cannot tell apart; unprobed devices are nobody's twin."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for device in matrix.devices:
        if device.facts_sha256:
            groups[_kind(device)].append(device.id)
    return [tuple(members) for members in groups.values() if len(members) > 1]


def suspects(matrix: Matrix) -> tuple[Suspect, ...]:
    """Devices whose verdict is good where two or more twins agree on bad, or bad where they agree on good.

    With one twin nobody can tell which of the two is broken, so nobody is named.
    """
    found = []
    answers: dict[tuple[str, ...], dict[str, tuple[str, bool]]] = defaultdict(dict)
    for cell in matrix.cells:
        if not cell.diagnostic and cell.verdict in (*GOOD, *BAD):
            place = (cell.model, cell.signature, cell.config, cell.runtime)
            answers[place][cell.device] = (cell.id, cell.verdict in BAD)
    for group in twins(matrix):
        odd: dict[str, list[str]] = defaultdict(list)
        compared: Counter[str] = Counter()
        for votes in answers.values():
            for device, cell_id in _odd(group, votes, compared):
                odd[device].append(cell_id)
        found += [
            Suspect(
                device=device,
                twins=tuple(d for d in group if d != device),
                cells=tuple(cells),
                of=compared[device],
            )
            for device, cells in odd.items()
        ]
    return tuple(found)


def _odd(
    group: tuple[str, ...], votes: dict[str, tuple[str, bool]], compared: Counter[str]
) -> Iterator[tuple[str, str]]:
    mine = {device: votes[device] for device in group if device in votes}
    if len(mine) < 3:
        return
    compared.update(mine.keys())
    count = Counter(bad for _, bad in mine.values())
    for device, (cell, bad) in mine.items():
        if count[bad] == 1:
            yield device, cell


def _kind(device: MatrixDevice) -> tuple[str, ...]:
    return (device.gpu, device.driver, device.os, device.transport, device.facts.get("model", ""))
