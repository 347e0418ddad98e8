"""The door of inventory.yaml, field by field; parts that only later stages use are checked here too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from farm.doors.base import Command, Door, Id, IsoDate, Text, complaint, one_of, shorten, suggestion
from farm.doors.spec import VERDICTS, SpecDoor

REASONS = (
    "SILENT_ZERO_VECTOR",
    "NUMERICAL_INSTABILITY",
    "SATURATION",
    "SCALE_ERROR",
    "PRECISION_DEGRADATION",
    "VALUE_MISMATCH",
    "SHAPE_MISMATCH",
    "MISSING_OUTPUT",
    "NONDETERMINISTIC",
    "INPUT_INDEPENDENT",
    "CRASH",
    "TIMEOUT",
    "INVALID_MODEL",
    "RUNTIME_ERROR",
    "OUT_OF_MEMORY",
    "UNSUPPORTED",
    "NO_ACCELERATOR",
    "REFERENCE_INVALID",
    "REFERENCE_UNSTABLE",
    "REFERENCE_VACUOUS",
    "REFERENCE_MISSING",
    "DEVICE_LOST",
    "DEVICE_UNAVAILABLE",
    "HOST_KEY_REFUSED",
    "TRANSFER_FAILED",
    "NO_SPACE",
    "DEADLINE_EXCEEDED",
    "LEASE_LOST",
    "INFRA",
)


def transports() -> tuple[str, ...]:
    """Return the transports there are: the files of farm/transports whose class says `kind = "<file name>"`."""
    folder = Path(__file__).resolve().parent.parent / "transports"
    found = {
        f.stem
        for f in folder.glob("*.py")
        if re.search(rf'^\s+kind\b[^=\n]*= "{re.escape(f.stem)}"', f.read_text("utf-8"), re.MULTILINE)
    }
    return tuple(sorted({"adb", "local", "ssh"} | found))


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}\Z")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})\Z")
_SSH = re.compile(
    r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9._-]*)(?::(\d{1,5}))?\Z"
)
_GPU_OPTION = re.compile(r"[A-Za-z_]\w* = \S.*\Z")


def _endpoint(value: str) -> str:
    match = _ENDPOINT.match(value)
    if not match or not 0 < int(match[2]) < 65536:
        raise complaint(f"must be host:port, not {shorten(value)}", "e.g. 127.0.0.1:5037")
    return value


def _ssh(value: str) -> str:
    match = _SSH.match(value)
    if not match or (match[1] and not 0 < int(match[1]) < 65536):
        raise complaint(f"must be [user@]host[:port] or a Host of ssh_config, not {shorten(value)}")
    return value


def _tag(value: str) -> str:
    if not _TAG.match(value):
        raise complaint(f"must be a tag, not {shorten(value)}", "letters, digits, '.', '_', '-' and '/', 64 at most")
    return value


def _adb(value: Any) -> Any:
    return "127.0.0.1:5037" if value is True else value


if TYPE_CHECKING:  # what one_of builds at run time is a text for those who read the code
    Transport: TypeAlias = str
    Verdict: TypeAlias = str
    Reason: TypeAlias = str
else:
    Transport = one_of(transports(), "transport")
    Verdict = one_of(VERDICTS, "verdict")
    Reason = one_of(REASONS, "reason")

Endpoint = Annotated[str, AfterValidator(_endpoint)]
Ssh = Annotated[str, AfterValidator(_ssh)]
Tag = Annotated[str, AfterValidator(_tag)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


def _env_name(value: str) -> str:
    if not _ENV_NAME.match(value):
        raise complaint(f"{shorten(value)} is no name of an environment variable", "letters, digits and '_'")
    return value


def _env_value(value: str) -> str:
    if "\0" in value:
        raise complaint("must not hold a NUL character")
    return value


Env = dict[Annotated[str, AfterValidator(_env_name)], Annotated[str, AfterValidator(_env_value)]]


def _gpu_option(value: str) -> str:
    if not _GPU_OPTION.match(value):
        raise complaint(f"{shorten(value)} is no option of the GPU delegate", "write e.g. 'priority = 2'")
    return value


def _profile(value: str, info: ValidationInfo) -> str:
    known: tuple[str, ...] = tuple((info.context or {}).get("profiles", ()))
    if value not in known:
        raise complaint(f"unknown profile {shorten(value)}", suggestion(value, known))
    return value


class DeviceDoor(Door):
    """A device: a phone (adb), a Mac or Linux host (ssh), or this machine (local)."""

    id: Id
    transport: Transport
    serial: Text | None = None
    host: Ssh | None = None
    via: Id | None = None
    adb_server: Endpoint | None = None
    env: Env = Field(default_factory=dict)
    profile: Annotated[str, AfterValidator(_profile)] | None = None
    tags: list[Tag] = Field(default_factory=list)
    lock: Command | None = None
    reset: Command | None = None
    usb_reset: Command | None = None

    @model_validator(mode="after")
    def _fits_transport(self) -> DeviceDoor:
        belongs = {"serial": "adb", "adb_server": "adb", "via": "adb", "usb_reset": "adb", "host": "ssh"}
        wrong = [
            k
            for k, t in belongs.items()
            if getattr(self, k) is not None and self.transport in {"adb", "local", "ssh"} - {t}
        ]
        if wrong:
            listed = ", ".join(f"'{k}'" for k in wrong)
            raise complaint(f"device '{self.id}': {listed} means nothing for transport '{self.transport}'", "remove it")
        if self.transport == "adb" and self.serial is None:
            raise complaint(f"device '{self.id}': transport 'adb' needs a 'serial'", "'adb devices' shows it")
        if self.transport == "ssh" and self.host is None:
            raise complaint(f"device '{self.id}': transport 'ssh' needs a 'host'", "e.g. host: me@mac-mini.local")
        if self.via is not None and self.adb_server is not None:
            raise complaint(f"device '{self.id}': give 'via' or 'adb_server', not both")
        return self


class HostDoor(Door):
    """A host whose phones are discovered through its adb server over SSH."""

    id: Id
    ssh: Ssh
    adb: Annotated[Endpoint, BeforeValidator(_adb, json_schema_input_type=Literal[True] | str)] = "127.0.0.1:5037"
    env: Env = Field(default_factory=dict)
    tags: list[Tag] = Field(default_factory=list)


class ConfigDoor(Door):
    """A config of the user's own; see `farm plan` for the built-in ones."""

    accelerator: Literal["cpu", "gpu", "npu"]
    precision: Literal["default", "fp32", "fp16", "fp16-acc32"] = "default"
    backend: Literal["auto", "opencl", "opengl", "webgpu"] = "auto"
    kernel_mode: Literal["delegate", "builtin", "reference"] = "delegate"
    flags: Annotated[int, Field(ge=0, lt=2**31)] = 0
    gpu_options: list[Annotated[Text, AfterValidator(_gpu_option)]] = Field(default_factory=list)
    diagnostic: bool = False
    summary: Text | None = None

    @model_validator(mode="after")
    def _fits_accelerator(self) -> ConfigDoor:
        gpu_only = [
            k
            for k, default in (("precision", "default"), ("backend", "auto"), ("gpu_options", []))
            if getattr(self, k) != default
        ]
        cpu_only = [k for k, default in (("kernel_mode", "delegate"), ("flags", 0)) if getattr(self, k) != default]
        wrong = (gpu_only if self.accelerator != "gpu" else []) + (cpu_only if self.accelerator != "cpu" else [])
        if wrong:
            listed = ", ".join(f"'{k}'" for k in wrong)
            raise complaint(f"{listed} means nothing for accelerator '{self.accelerator}'", "remove it")
        return self


class KnownDoor(Door):
    """An expected result. model, device and config are globs."""

    model: Text = "*"
    device: Text = "*"
    config: Text = "*"
    verdict: Verdict
    reason: Reason | None = None
    link: Text | None = None
    until: IsoDate | None = None


class CoverageDoor(Door):
    """What a night must have judged: each model on at least one device of each family."""

    models: list[Text] = Field(default_factory=lambda: ["*"])
    families: list[Text] = Field(default_factory=lambda: ["*"])


class QuarantineDoor(Door):
    """When a device is set aside, and for how long at most before it is probed again."""

    after_failures: Count = 3
    for_s: Seconds = 86_400.0


class NightlyDoor(Door):
    models: list[Text] = Field(default_factory=lambda: ["*"])
    devices: list[Text] = Field(default_factory=list)
    configs: list[Text] = Field(default_factory=list)
    runtimes: list[Text] = Field(default_factory=list)
    repeats: Count = 1
    time_budget_s: Seconds | None = None
    coverage: CoverageDoor = Field(default_factory=CoverageDoor)
    quarantine: QuarantineDoor = Field(default_factory=QuarantineDoor)
    explain: bool = False


class StoreDoor(Door):
    """Where runs are kept. root is relative to the inventory."""

    root: Text | None = None
    budget_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    database: Text | None = None


class MqttDoor(Door):
    """A broker. Credentials come from the environment: here only the variables' names are written."""

    host: Text
    port: Annotated[int, Field(ge=1, le=65535)] = 1883
    tls: bool = False
    ca_file: Text | None = None
    username_env: Text | None = None
    password_env: Text | None = None
    topic: Text = "farm"

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, value: Any) -> Any:
        if isinstance(value, dict) and "password" in value:
            raise complaint(
                "must not hold a password", "set an environment variable and name it: password_env: FARM_MQTT_PASSWORD"
            )
        return value

    @field_validator("topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        if any(c in value for c in "+#") or value.startswith("$"):
            raise complaint(f"must be a plain topic, not {shorten(value)}", "no '+', '#' or leading '$'")
        return value


class LimitsDoor(Door):
    """Overrides of farm/defaults.py; the names are the same."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    input_sets: Annotated[int, Field(ge=1, le=100)] | None = None
    warmup: Annotated[int, Field(ge=0, le=1000)] | None = None
    iterations: Count | None = None
    iterations_ms: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    repeats: Annotated[int, Field(ge=1, le=1000)] | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    connect_timeout_s: Seconds | None = None
    cpu_timeout_s: Seconds | None = None
    gpu_first_timeout_s: Seconds | None = None
    gpu_timeout_s: Seconds | None = None
    lease_wait_s: Annotated[float, Field(ge=0, le=30 * 86_400)] | None = None
    attempts: Annotated[int, Field(ge=1, le=10)] | None = None
    min_norm: Annotated[float, Field(ge=0)] | None = None
    min_cosine_similarity: Annotated[float, Field(ge=-1, le=1)] | None = None


def _model(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class ModelDoor(SpecDoor):
    """A model or a glob of models; in a mapping, with its spec."""

    path: Text


class InventoryDoor(Door):
    """inventory.yaml."""

    devices: list[DeviceDoor] | None = None
    hosts: list[HostDoor] = Field(default_factory=list)
    models: list[Annotated[ModelDoor, BeforeValidator(_model, json_schema_input_type=str | ModelDoor)]] = Field(
        default_factory=list
    )
    configs: dict[Id, ConfigDoor] = Field(default_factory=dict)
    known: list[KnownDoor] = Field(default_factory=list)
    limits: LimitsDoor = Field(default_factory=LimitsDoor)
    nightly: NightlyDoor | None = None
    store: StoreDoor | None = None
    mqtt: MqttDoor | None = None
