"""In which order a night runs its cells: every (model, GPU family) once before any of them twice. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping

from farm.plan import Plan


def covering_order(plan: Plan, families: Mapping[str, str]) -> Plan:
    """Return the plan with its cells in an order that makes a night cut short still useful.

    families: device id → GPU family. First comes, for each model and family, one device of that family; work is spread
    over the devices of a family. Then the other devices, last the diagnostics. Within that the plan's order stays (CPU
    before GPU), since every device runs its own cells one after the other.
    """
    diagnostic = {config.name for config in plan.configs if config.diagnostic}
    members: dict[str, list[str]] = defaultdict(list)
    for device in plan.devices:
        members[families.get(device.id, device.id)].append(device.id)
    has = {(cell.device, cell.case) for cell in plan.cells}
    first: set[tuple[str, str]] = set()
    load: Counter[str] = Counter()
    for case in plan.cases:
        for devices in members.values():
            able = [device for device in devices if (device, case.id) in has]
            if able:
                chosen = min(able, key=lambda device: (load[device], devices.index(device)))
                load[chosen] += 1
                first.add((chosen, case.id))

    def rank(index: int) -> tuple[int, int]:
        cell = plan.cells[index]
        return (2 if cell.config in diagnostic else 0 if (cell.device, cell.case) in first else 1, index)

    return dataclasses.replace(plan, cells=tuple(plan.cells[i] for i in sorted(range(len(plan.cells)), key=rank)))
