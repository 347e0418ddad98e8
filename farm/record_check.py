"""Does a qualification record still say what it said, and what is otherwise today? Reads the file alone.

Comes after records.py, which makes them. What changed is named value by value; what merely differs today is drift.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from farm import __version__, codec
from farm.environment import Drift, current_environment, drift, mapping_drift
from farm.errors import InvalidInput, Problem
from farm.record_text import first_fault
from farm.records import SECTIONS, Record, digests_of, leaves, seal, sha256, shipped_bands


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """changed: one sentence per field that is not what was sealed; none = intact. drift: what is otherwise today."""

    file: str
    changed: tuple[str, ...] = ()
    drift: tuple[Drift, ...] = ()
    plan_digest: str = ""
    verdict: str = ""

    @property
    def intact(self) -> bool:
        return not self.changed


def verify(path: Path, *, against_now: bool = False) -> Verification:
    """Check a record's file, and list how far today's environment and bands are from the recorded ones.

    against_now: look at the model file, the runtime and the agent of this machine too. Raises InvalidInput if the file
    cannot be read or is no record at all.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise InvalidInput(Problem(message=f"cannot be read: {e.strerror or e}", file=str(path))) from e
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        fault = first_fault(data)
        if fault is None:
            raise InvalidInput(
                Problem(message=f"is no qualification record: {e}", file=str(path), cure="farm record RUN writes them")
            ) from e
        return Verification(file=str(path), changed=(fault,))
    if not isinstance(plain, dict) or not _resembles(plain):
        raise InvalidInput(
            Problem(message="is no qualification record", file=str(path), cure="farm record RUN writes them")
        )
    changed = list(_changed(plain))
    if not changed and data != codec.to_json(plain, indent=2):
        # Every value is right, so the spelling is not: blanks, escapes, a repeated key.
        changed.append(first_fault(data) or "its bytes are not in canonical form")
    if changed:
        return Verification(file=str(path), changed=tuple(changed), plan_digest=str(plain.get("plan_digest", "")))
    try:
        record = codec.from_json(data, Record)
    except msgspec.ValidationError as e:
        return Verification(file=str(path), changed=(f"it does not have the shape of a record: {e}",))
    return Verification(
        file=str(path),
        drift=tuple(_drift(record, against_now)),
        plan_digest=record.plan_digest,
        verdict=record.verdict.verdict,
    )


def _resembles(plain: Mapping[str, Any]) -> bool:
    """One changed byte must not turn a record into no record: most of its parts have to be missing for that."""
    return len({"kind", "seals", "digests", "plan_digest", *SECTIONS} & plain.keys()) >= 8


def _changed(plain: dict[str, Any]) -> Iterator[str]:
    """Name every field that is not what was sealed; the thing that seals may itself be what changed."""
    known = {"kind", "schema_version", *SECTIONS, "seals", "digests", "plan_digest"}
    for name in sorted(plain.keys() - known):
        yield f"{name}: was added"
    absent = sorted(known - plain.keys())
    for name in absent:
        yield f"{name}: is missing"
    seals, digests = plain.get("seals"), plain.get("digests")
    if not isinstance(seals, dict) or not isinstance(digests, dict):
        yield from (
            f"{n}: is not what it was" for n, v in (("seals", seals), ("digests", digests)) if not isinstance(v, dict)
        )
        return
    computed = digests_of(plain, seals)
    # Whether the list of digests is the original one decides who is to blame below it.
    digests_whole = sha256(codec.to_json(digests)) == plain.get("plan_digest")
    values = dict(leaves(plain))
    named: set[str] = set()
    for path in sorted({*values, *seals}):
        right = path in values and seals.get(path) == seal(path, values[path])
        if right:
            continue
        section = re.split(r"[.\[]", path, maxsplit=1)[0]
        named.add(section)
        if section in absent:
            continue
        if digests.get(section) == computed.get(section):
            named.add("seals")
            yield f"seals.{path}: the seal was changed, the value is as recorded"
        elif path not in values:
            yield f"{path}: is missing"
        elif path not in seals:
            yield f"{path}: was added"
        else:
            yield f"{path}: the value is not what was recorded"
    for name in sorted({*computed, *digests}):
        if digests.get(name) == computed.get(name) or name in named or name in absent:
            continue
        if name not in computed:
            yield f"digests.{name}: was added"
        elif name not in digests:
            yield f"digests.{name}: is missing"
        elif name == "seals" and digests_whole:
            yield "seals: were changed, the values are as recorded"
        else:
            yield f"digests.{name}: the digest was changed, what it binds is as recorded"
        named.add(name)
    if not digests_whole and not named and not absent and "plan_digest" in plain:
        yield "plan_digest: was changed, what it binds is as recorded"


def _drift(record: Record, against_now: bool) -> Iterator[Drift]:
    if record.environment is None:
        yield Drift(item="environment", recorded=None, now="not compared: the run kept none")
    else:
        yield from drift(record.environment, current_environment())
    if record.about.farm_version != __version__:
        yield Drift(item="farm", recorded=record.about.farm_version, now=__version__)
    yield from mapping_drift("band", _flat(record.bands.shipped), _flat(shipped_bands()))
    if against_now:
        yield from _machine_drift(record)


def _flat(bands: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    return {f"{row}.{name}": f"{value:g}" for row, limits in bands.items() for name, value in limits.items()}


def _machine_drift(record: Record) -> Iterator[Drift]:
    """The model file, the runtime and the agent as this machine has them now."""
    from farm.agents import agent_binary, agent_digest, agent_version
    from farm.errors import FarmError
    from farm.runtimes import find_runtime, host_platform

    model = Path(record.model.path)
    now = _file_sha256(model)
    if now != record.model.sha256:
        yield Drift(item=f"model {model}", recorded=record.model.sha256, now=now)
    if record.runtime.files:
        try:
            found = find_runtime(record.runtime.name, record.agent.platform or host_platform())
            files = {name: digest for name, (digest, _) in found.files.items()}
        except FarmError:
            yield Drift(item=f"runtime {record.runtime.name}", recorded=record.runtime.version, now=None)
        else:
            yield from mapping_drift(f"runtime {record.runtime.name}, file", record.runtime.files, files)
    if record.agent.sha256:
        if record.agent.version != agent_version():
            yield Drift(item="agent version", recorded=record.agent.version, now=agent_version())
        # Another platform's agent may have to be compiled first, which a check must not start.
        if record.agent.platform == host_platform():
            try:
                digest: str | None = agent_digest(agent_binary(host_platform()))
            except FarmError:
                digest = None
            if digest != record.agent.sha256:
                yield Drift(item="agent binary", recorded=record.agent.sha256, now=digest)


def _file_sha256(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as f:
            while block := f.read(1 << 20):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()
