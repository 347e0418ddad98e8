"""device_profiles/*.yaml → Profile, and which profile a device's probed facts fit.

A profile is what is publicly known or was measured of a GPU family. It never decides a verdict by itself: expected
precision is compared with what the canaries measured, and band overrides carry their source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from farm.configs import CONFIGS
from farm.errors import InvalidInput, Problem
from farm.resources import resource_path

if TYPE_CHECKING:
    from farm.yaml_lines import YamlFile

T = TypeVar("T")
_FACT_CHARS = 300
"""Facts are cut to this before patterns run over them: they come from devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced(Generic[T]):
    """A value and where it comes from."""

    value: T
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """A public report of the family. pattern: zeros | nan | wrong | nondeterministic | refused | crash | hang."""

    title: str
    link: str
    pattern: str
    configs: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Safety:
    """When to let a device rest; None where nothing is known. thermal_status is Android's: wait from it on."""

    thermal_status: Sourced[int] | None = None
    temperature_c: Sourced[float] | None = None
    battery_percent: Sourced[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One GPU family.

    match: alternatives; in each, fact name → regular expression, all of which must be found.
    configs: configs worth running here. precision: config name → class to expect.
    bands: kind or output name → limit → value, laid over the judge's own.
    """

    id: str
    title: str
    vendor: Sourced[str]
    match: tuple[dict[str, str], ...]
    examples: tuple[dict[str, str], ...]
    configs: Sourced[tuple[str, ...]]
    default_backend: Sourced[str] | None = None
    precision: dict[str, Sourced[str]] = field(default_factory=dict)
    known_issues: tuple[KnownIssue, ...] = ()
    safety: Safety = Safety()
    bands: dict[str, dict[str, Sourced[float]]] = field(default_factory=dict)

    def band_overrides(self) -> dict[str, dict[str, float]]:
        """Return the bands as plain numbers."""
        return {where: {name: limit.value for name, limit in limits.items()} for where, limits in self.bands.items()}


def load_profiles(folder: Path | None = None, *, check: bool | None = None) -> tuple[Profile, ...]:
    """Read every profile of a folder (by default those that travel with farm), in the order of their ids.

    `check` runs the whole door: by default for any folder but farm's own, which the tests check, since that costs
    more than a small sweep. Raises InvalidInput with every problem of every file, ties between profiles among them.
    """
    from farm.yaml_lines import read_yaml

    own = folder is None
    folder = resource_path("device_profiles") if folder is None else folder
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise InvalidInput(Problem(message="there is no profile here", file=str(folder), cure="a profile is NAME.yaml"))
    problems: list[Problem] = []
    found: list[Profile] = []
    files: dict[str, YamlFile] = {}
    for path in paths:
        try:
            file = read_yaml(path, "profile")
            if check if check is not None else not own:
                _check(file)
        except InvalidInput as e:
            problems += e.problems
            continue
        files[path.stem] = file
        found.append(_profile(path.stem, file.data))
    if check if check is not None else not own:
        problems += _ties(found, files)
    if problems:
        raise InvalidInput(problems)
    return tuple(found)


def match_profile(facts: Mapping[str, Any], profiles: Iterable[Profile]) -> Profile | None:
    """Return the profile that fits the facts best, or None if none does or two fit equally well.

    The GPU is taken from what the runtime said it used (`adapter`), else from `gpu`, else from `gpus`. The profile
    whose matching alternative names most facts wins: {gpu, platform} before {gpu}.
    """
    profiles = tuple(profiles)
    for gpu in _gpu_facts(facts):
        ranked = [(_rank(profile, gpu), profile) for profile in profiles]
        best = max((rank for rank, _ in ranked), default=0)
        if best:
            winners = [profile for rank, profile in ranked if rank == best]
            return winners[0] if len(winners) == 1 else None
    return None


def _gpu_facts(facts: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    """Yield the facts with one claim about the GPU each, the most trustworthy first; "" when nothing claims any."""
    gpus = facts.get("gpus") or ()
    joined = gpus if isinstance(gpus, str) else ", ".join(str(g) for g in gpus)
    claims = [str(facts.get("adapter") or ""), str(facts.get("gpu") or ""), joined]
    rest = {
        "vendor": str(facts.get("gpu_vendor") or facts.get("vendor") or ""),
        "soc": str(facts.get("soc") or ""),
        "platform": str(facts.get("platform") or ""),
        "model": str(facts.get("model") or ""),
    }
    for claim in [c for c in claims if c] or [""]:
        yield {"gpu": claim, **rest}


def _rank(profile: Profile, facts: Mapping[str, str]) -> int:
    """Return how many patterns of the best matching alternative fit; 0 if none matches."""
    return max(
        (
            len(patterns)
            for patterns in profile.match
            if all(re.search(p, facts.get(name, "")[:_FACT_CHARS], re.IGNORECASE) for name, p in patterns.items())
        ),
        default=0,
    )


def _check(file: YamlFile) -> None:
    from pydantic import ValidationError

    from farm.doors.base import problems, suggestion
    from farm.doors.profile import FIELDS, ProfileDoor
    from farm.doors.spec import misplaced_limits

    try:
        door = ProfileDoor.model_validate(file.data)
    except ValidationError as e:
        raise InvalidInput(problems(e, ProfileDoor, file)) from e
    found = list(file.problems)

    def add(loc: Sequence[str | int], message: str, cure: str) -> None:
        found.append(Problem(message=message, file=str(file.path), line=file.line(loc), cure=cure))

    for i, alternative in enumerate(door.match):
        if not alternative.model_dump(exclude_none=True):
            add(
                ("match", i),
                "this alternative has no pattern and would fit every device",
                "give it one, e.g. gpu: Mali",
            )
    for i, example in enumerate(door.examples):
        for name in set(example) - set(FIELDS):
            add(("examples", i, name), f"unknown fact {name!r}", suggestion(name, FIELDS))
    named: list[tuple[tuple[str | int, ...], str]]
    named = [(("configs", "value", i), name) for i, name in enumerate(door.configs.value)]
    named += [(("precision", name), name) for name in door.precision]
    named += [
        (("known_issues", i, "configs", j), name)
        for i, issue in enumerate(door.known_issues)
        for j, name in enumerate(issue.configs)
    ]
    for loc, name in named:
        if name not in CONFIGS:
            add(loc, f"unknown config {name!r}", suggestion(name, tuple(CONFIGS)))
    for where, name, cure in misplaced_limits(door.bands, {}):
        add(("bands", where, name), f"the limit '{name}' of '{where}' means nothing there", cure)
    if found:
        raise InvalidInput(sorted(found, key=lambda p: p.line or 0))


def _ties(profiles: Sequence[Profile], files: Mapping[str, YamlFile]) -> Iterable[Problem]:
    """Yield every example that its own profile does not win alone."""
    for profile in profiles:
        for i, example in enumerate(profile.examples):
            ranks = {p.id: _rank(p, example) for p in profiles}
            best = max(ranks.values())
            winners = [name for name, rank in ranks.items() if rank == best] if best else []
            if winners != [profile.id]:
                file = files[profile.id]
                others = ", ".join(name for name in winners if name != profile.id)
                yield Problem(
                    message=f"the example {example} is not this profile's alone"
                    if others
                    else f"the example {example} fits no pattern of this profile",
                    file=str(file.path),
                    line=file.line(("examples", i)),
                    cure=f"{others} fits it at least as well: make a pattern more specific"
                    if others
                    else "mend 'match'",
                )


def _profile(name: str, data: Mapping[str, Any]) -> Profile:
    """Return checked data as a Profile."""
    safety = data.get("safety", {})
    return Profile(
        id=name,
        title=data["title"],
        vendor=_sourced(data["vendor"]),
        match=tuple(dict(m) for m in data["match"]),
        examples=tuple(dict(e) for e in data["examples"]),
        configs=Sourced(value=tuple(data["configs"]["value"]), source=data["configs"]["source"]),
        default_backend=_sourced(data["default_backend"]) if data.get("default_backend") else None,
        precision={config: _sourced(value) for config, value in data.get("precision", {}).items()},
        known_issues=tuple(
            KnownIssue(
                title=i["title"],
                link=i["link"],
                pattern=i["pattern"],
                configs=tuple(i.get("configs", ())),
                note=i.get("note"),
            )
            for i in data.get("known_issues", ())
        ),
        safety=Safety(**{key: _sourced(value) for key, value in safety.items() if value is not None}),
        bands={
            where: {limit: _sourced(value) for limit, value in limits.items()}
            for where, limits in data.get("bands", {}).items()
        },
    )


def _sourced(entry: Mapping[str, Any]) -> Sourced[Any]:
    return Sourced(value=entry["value"], source=entry["source"])
