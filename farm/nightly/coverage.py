"""What a night had to judge and what it did, per (model, GPU family), whichever device gave the answer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from farm.diff.compare import JUDGED
from farm.nightly.value import Away, Coverage
from farm.profiles import Profile, match_profile
from farm.report.matrix import UNKNOWN_GPU
from farm.report.value import Matrix, MatrixCell

_GLOB = frozenset("*?[")


def families_of(matrix: Matrix, known: Mapping[str, str], profiles: Sequence[Profile]) -> dict[str, str]:
    """Device id → GPU family: the profile tonight's facts fit, else the GPU's name, else what is `known` from before.

    A device nobody has ever reached is its own family.
    """
    found = {}
    for device in matrix.devices:
        seen = device.gpu != UNKNOWN_GPU
        fits = match_profile({**device.facts, "adapter": device.gpu}, profiles) if seen else None
        profile = device.profile or (fits.id if fits else None)
        found[device.id] = profile or (device.gpu if seen else None) or known.get(device.id) or device.id
    return found


def coverage(
    runs: Sequence[Matrix],
    *,
    families: Mapping[str, str],
    models: Sequence[str],
    wanted_families: Sequence[str],
    accelerated: Collection[str],
) -> tuple[Coverage, ...]:
    """Judge the coverage of a night's passes.

    models, wanted_families: globs of the policy. accelerated: configs that use a GPU or NPU; where there are any, only
    they count, since the CPU's answer says nothing of a GPU. A family the policy names that no device has is required
    all the same.
    """
    cells: dict[tuple[str, str], list[MatrixCell]] = defaultdict(list)
    for run in runs:
        for cell in run.cells:
            counts = not cell.diagnostic and (not accelerated or cell.config in accelerated)
            if counts and cell.device in families:
                cells[cell.model, families[cell.device]].append(cell)
    there = dict.fromkeys(families.values())
    required = [f for f in there if any(fnmatchcase(f, pattern) for pattern in wanted_families)]
    required += [p for p in wanted_families if not _GLOB & set(p) and p not in there]
    names = dict.fromkeys(cell.model for run in runs for cell in run.cells)
    found = []
    for model in names:
        if not any(fnmatchcase(model, pattern) for pattern in models):
            continue
        for family in required:
            mine = cells.get((model, family), [])
            judged = tuple(dict.fromkeys(c.device for c in mine if c.verdict in JUDGED))
            found.append(
                Coverage(
                    model=model,
                    family=family,
                    devices=tuple(dict.fromkeys(c.device for c in mine)),
                    judged_on=judged,
                    why="" if judged else _why(mine),
                )
            )
    return tuple(found)


def away(runs: Sequence[Matrix], families: Mapping[str, str]) -> tuple[Away, ...]:
    """Devices without a single answer in any pass: away, retired, quarantined, broken."""
    cells: dict[str, list[MatrixCell]] = defaultdict(list)
    for run in runs:
        for cell in run.cells:
            cells[cell.device].append(cell)
    return tuple(
        Away(device=device, family=families.get(device, device), reason=_why(mine))
        for device, mine in cells.items()
        if not any(c.verdict in JUDGED for c in mine)
    )


def _why(cells: Sequence[MatrixCell]) -> str:
    if not cells:
        return "no device of this family is in the night's plan"
    said = Counter(" ".join((c.verdict, *c.reasons)) + (f": {c.message}" if c.message else "") for c in cells)
    return said.most_common(1)[0][0]
