"""inventory.yaml → Inventory: devices, models, configs and expectations; every problem at once, each with its line.

First stage of the flow. Nothing here touches a device; the files it names are only looked for.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cases import ModelRequest
from farm.configs import CONFIGS, Config
from farm.defaults import Limits
from farm.errors import InvalidInput, Problem
from farm.plan import Known, PlannedDevice

if TYPE_CHECKING:
    from farm.doors.inventory import DeviceDoor, HostDoor, InventoryDoor
    from farm.yaml_lines import YamlFile

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host whose phones are discovered through its adb server (host:port, as seen from there) over SSH."""

    id: str
    ssh: str
    adb: str
    env: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What the inventory says of a device beyond what a plan needs. Commands are argv; no shell runs them."""

    lock: tuple[str, ...] | None = None
    reset: tuple[str, ...] | None = None
    usb_reset: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """What `farm nightly` runs. Empty devices, configs or runtimes mean the usual ones."""

    models: tuple[str, ...] = ("*",)
    devices: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    repeats: int = 1
    time_budget_s: float | None = None
    coverage_models: tuple[str, ...] = ("*",)
    coverage_families: tuple[str, ...] = ("*",)
    quarantine_after_failures: int = 3
    quarantine_for_s: float = 86_400.0
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    root: Path | None = None
    budget_bytes: int | None = None
    database: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mqtt:
    """A broker; credentials are read from the named environment variables when it is used."""

    host: str
    port: int = 1883
    tls: bool = False
    ca_file: str | None = None
    username_env: str | None = None
    password_env: str | None = None
    topic: str = "farm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A checked inventory. path and sha256 (hex, of the file's bytes) are None for the default one.

    configs: the user's own, by name. limits: overrides only, by name (see `with_limits`).
    options: per device id.
    """

    devices: tuple[PlannedDevice, ...]
    hosts: tuple[Host, ...] = ()
    models: tuple[ModelRequest, ...] = ()
    known: tuple[Known, ...] = ()
    configs: dict[str, Config] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    options: dict[str, DeviceOptions] = field(default_factory=dict)
    nightly: Nightly | None = None
    store: StoreSettings | None = None
    mqtt: Mqtt | None = None
    path: Path | None = None
    sha256: str | None = None

    def with_limits(self, limits: Limits) -> Limits:
        """Return `limits` with this inventory's overrides."""
        return dataclasses.replace(limits, **self.limits)


def default_inventory() -> Inventory:
    """Return the inventory of who wrote none: this machine."""
    return Inventory(devices=(PlannedDevice(id="local", transport="local"),))


def load_inventory(path: Path) -> Inventory:
    """Read and check an inventory. Raises InvalidInput with every problem, each with file, line and cure."""
    # pydantic costs more than the rest of a small sweep's start, so only those who have an inventory pay for it.
    from pydantic import ValidationError

    from farm.doors.base import problems as sentences
    from farm.doors.inventory import InventoryDoor
    from farm.yaml_lines import read_yaml

    file = read_yaml(path, "inventory")
    own = file.data.get("configs")
    names = (*CONFIGS, *(own if isinstance(own, dict) else ()))
    hosts, doubles = _host_ids(file), tuple(_double_ids(file))
    context = {"configs": names, "profiles": profile_names()}
    problems: list[Problem] = []
    try:
        door = InventoryDoor.model_validate(file.data, context=context)
        problems += file.problems
    except ValidationError as e:
        problems += sentences(e, InventoryDoor, file)
        # What is left without the faulty entries is checked too, so that one round mends everything.
        file = file.without([error["loc"] for error in e.errors(include_url=False, include_input=False)])
        try:
            door = InventoryDoor.model_validate(file.data, context=context)
        except ValidationError:
            raise InvalidInput([*problems, *doubles]) from e
    problems += [*doubles, *_double_phones(door, file), *_references(door, file, names, hosts)]
    models = _models(door, file, names, problems)
    if problems:
        raise InvalidInput(sorted(problems, key=lambda p: (p.file != str(path), p.file or "", p.line or 0)))
    return _inventory(door, file, models)


def profile_names() -> tuple[str, ...]:
    """Return the ids of the profiles that travel with farm: the file names of device_profiles/."""
    from farm.resources import resource_path

    try:
        return tuple(sorted(f.stem for f in resource_path("device_profiles").glob("*.yaml")))
    except FileNotFoundError:
        return ()


def select_devices(inventory: Inventory, patterns: Sequence[str] = ()) -> tuple[PlannedDevice, ...]:
    """Return the devices that ids, globs or `tag:NAME` (also a glob) name, in the inventory's order; all for none.

    Raises InvalidInput for every pattern that names no device, with the list of ids and tags.
    """
    wanted = [p.strip() for pattern in patterns for p in pattern.split(",") if p.strip()]
    if not wanted:
        return inventory.devices
    chosen: set[str] = set()
    problems = []
    for pattern in wanted:
        hits = {d.id for d in inventory.devices if _names(pattern, d)}
        if not hits:
            ids = ", ".join(d.id for d in inventory.devices) or "none"
            tags = sorted({t for d in inventory.devices for t in d.tags})
            problems.append(
                Problem(
                    message=f"no device is named by {pattern!r}",
                    cure=f"devices: {ids}" + (f"; tags: {', '.join(tags)}" if tags else ""),
                )
            )
        chosen |= hits
    if problems:
        raise InvalidInput(problems)
    return tuple(d for d in inventory.devices if d.id in chosen)


def _names(pattern: str, device: PlannedDevice) -> bool:
    if pattern.startswith("tag:"):
        return any(fnmatch.fnmatchcase(tag, pattern[4:]) for tag in device.tags)
    return device.id == pattern or fnmatch.fnmatchcase(device.id, pattern)


def _double_ids(file: YamlFile) -> Iterable[Problem]:
    """Yield ids given twice. They become folder names, so upper and lower case do not tell them apart."""
    first: dict[str, int] = {}
    for key, i, name in _ids(file, "devices", "hosts"):
        line = file.line((key, i, "id"))
        if name.lower() in first:
            yield Problem(
                message=f"the id '{name}' is given twice (first on line {first[name.lower()]})",
                file=str(file.path),
                line=line,
                cure="ids are unique among devices and hosts; upper and lower case count as the same",
            )
        first.setdefault(name.lower(), line)


def _double_phones(door: InventoryDoor, file: YamlFile) -> Iterable[Problem]:
    phones: dict[tuple[str | None, ...], int] = {}
    for i, d in enumerate(door.devices or []):
        line = file.line(("devices", i))
        where = (d.serial, d.adb_server, d.via)
        if d.transport == "adb" and where in phones:
            yield Problem(
                message=f"the phone with serial {d.serial!r} is listed twice (first on line {phones[where]})",
                file=str(file.path),
                line=line,
                cure="remove one; two phones that share a serial need different 'adb_server' or 'via'",
            )
        phones.setdefault(where, line)


def _host_ids(file: YamlFile) -> tuple[str, ...]:
    """Return the ids of all hosts, those of faulty entries too: a fault there is no reason to complain about `via`."""
    return tuple(name for _, _, name in _ids(file, "hosts"))


def _ids(file: YamlFile, *sections: str) -> Iterable[tuple[str, int, str]]:
    """Yield (section, index, id) as written, whether or not the entries are right otherwise."""
    for section in sections:
        entries = file.data.get(section)
        for i, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                yield section, i, entry["id"]


def _references(door: InventoryDoor, file: YamlFile, configs: Sequence[str], hosts: Sequence[str]) -> Iterable[Problem]:
    """Yield names that refer to nothing: hosts in `via`, configs in `nightly` and `configs`."""
    from farm.doors.base import suggestion

    for i, d in enumerate(door.devices or []):
        if d.via is not None and d.via not in hosts:
            yield Problem(
                message=f"'via' names the host '{d.via}', which is not in 'hosts'",
                file=str(file.path),
                line=file.line(("devices", i, "via")),
                cure=suggestion(d.via, hosts),
            )
    for name in door.configs:
        if name in CONFIGS:
            yield Problem(
                message=f"the config '{name}' is built in and cannot be redefined",
                file=str(file.path),
                line=file.line(("configs", name)),
                cure="give yours another name",
            )
    for i, name in enumerate(door.nightly.configs if door.nightly else []):
        if name not in configs:
            yield Problem(
                message=f"unknown config {name!r}",
                file=str(file.path),
                line=file.line(("nightly", "configs", i)),
                cure=suggestion(name, configs),
            )


def _models(
    door: InventoryDoor, file: YamlFile, configs: tuple[str, ...], problems: list[Problem]
) -> tuple[ModelRequest, ...]:
    """Expand globs and read the specs beside the models. An entry that names a file wins over globs that find it."""
    from farm.specs import request

    named: dict[Path, int] = {}
    requests: dict[Path, ModelRequest] = {}
    base = file.path.parent
    globbed: set[Path] = set()
    for i, entry in enumerate(door.models):
        at: tuple[str | int, ...] = ("models", i)
        line = file.line(at if isinstance(file.data["models"][i], str) else (*at, "path"))
        is_glob = bool(_GLOB & set(entry.path)) and not os.path.exists(base / entry.path)
        paths = _glob(base, entry.path) if is_glob else [base / entry.path]
        if is_glob and not paths:
            _add(problems, file, line, f"no file matches {entry.path!r}", f"paths are relative to {file.path.name}")
        for model in paths:
            key = Path(os.path.abspath(model))
            if not os.path.isfile(model):
                sort = "is a folder" if os.path.isdir(model) else "does not exist"
                cure = "name its files, e.g. with '*.tflite'" if os.path.isdir(model) else "check the path"
                _add(problems, file, line, f"the model {entry.path!r} {sort}", f"{cure}; relative to {file.path.name}")
                continue
            if key in requests and is_glob:
                continue  # an earlier entry has it already
            if key in requests and key not in globbed:
                _add(
                    problems,
                    file,
                    line,
                    f"the model {entry.path!r} is listed twice (first on line {named[key]})",
                    "remove one of them",
                )
                continue
            spec = None if isinstance(file.data["models"][i], str) else (entry, file, at)
            try:
                requests[key] = request(model, configs=configs, entry=spec, named_at=f"{file.path.name}:{line}")
            except InvalidInput as e:
                problems += e.problems
            named[key] = line
            (globbed.add if is_glob else globbed.discard)(key)
    return tuple(requests.values())


def _glob(base: Path, pattern: str) -> list[Path]:
    return [base / p for p in sorted(glob.glob(pattern, root_dir=base, recursive=True)) if os.path.isfile(base / p)]


def _add(problems: list[Problem], file: YamlFile, line: int, message: str, cure: str) -> None:
    problems.append(Problem(message=message, file=str(file.path), line=line, cure=cure))


def _inventory(door: InventoryDoor, file: YamlFile, models: tuple[ModelRequest, ...]) -> Inventory:
    """Return a checked door as plain data."""
    if door.devices is None and not door.hosts:
        devices = default_inventory().devices
    else:
        hosts = {h.id: h for h in door.hosts}
        devices = tuple(_device(d, hosts) for d in door.devices or [])
    nightly, store, mqtt = door.nightly, door.store, door.mqtt
    return Inventory(
        devices=devices,
        hosts=tuple(Host(id=h.id, ssh=h.ssh, adb=h.adb, env=dict(h.env), tags=tuple(h.tags)) for h in door.hosts),
        models=models,
        known=tuple(Known(**k.model_dump()) for k in door.known),
        configs={
            name: Config(
                name=name,
                accelerator=c.accelerator,
                precision=c.precision,
                backend=c.backend,
                kernel_mode=c.kernel_mode,
                xnnpack_flags=c.flags,
                gpu_options=tuple(c.gpu_options),
                diagnostic=c.diagnostic,
                summary=c.summary or f"defined in {file.path.name}",
            )
            for name, c in door.configs.items()
        },
        limits=door.limits.model_dump(exclude_none=True),
        options={
            d.id: DeviceOptions(lock=_argv(d.lock), reset=_argv(d.reset), usb_reset=_argv(d.usb_reset))
            for d in door.devices or []
            if d.lock or d.reset or d.usb_reset
        },
        nightly=None
        if nightly is None
        else Nightly(
            models=tuple(nightly.models),
            devices=tuple(nightly.devices),
            configs=tuple(nightly.configs),
            runtimes=tuple(nightly.runtimes),
            repeats=nightly.repeats,
            time_budget_s=nightly.time_budget_s,
            coverage_models=tuple(nightly.coverage.models),
            coverage_families=tuple(nightly.coverage.families),
            quarantine_after_failures=nightly.quarantine.after_failures,
            quarantine_for_s=nightly.quarantine.for_s,
            explain=nightly.explain,
        ),
        store=None
        if store is None
        else StoreSettings(
            root=file.path.parent / store.root if store.root else None,
            budget_bytes=store.budget_bytes,
            database=store.database,
        ),
        mqtt=None if mqtt is None else Mqtt(**mqtt.model_dump()),
        path=file.path,
        sha256=file.sha256,
    )


def _device(d: DeviceDoor, hosts: Mapping[str, HostDoor]) -> PlannedDevice:
    host = hosts.get(d.via) if d.via is not None else None
    address: Mapping[str, str | None] = {
        "serial": d.serial,
        "host": d.host,
        "via": d.via,
        "ssh": host.ssh if host else None,
        "adb_server": host.adb if host else d.adb_server,
    }
    return PlannedDevice(
        id=d.id,
        transport=d.transport,
        address={key: value for key, value in address.items() if value is not None},
        env=dict(d.env),
        profile=d.profile,
        tags=tuple(d.tags),
        lock=_argv(d.lock) or (),
        usb_reset=_argv(d.usb_reset) or (),
        reset=_argv(d.reset) or (),
    )


def _argv(words: list[str] | None) -> tuple[str, ...] | None:
    return tuple(words) if words else None
