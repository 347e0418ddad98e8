"""The door of device_profiles/*.yaml: what is known of one GPU family. Every value says where it comes from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from farm.doors.base import Door, Text, complaint, one_of, shorten
from farm.doors.spec import LimitName

T = TypeVar("T")
FIELDS = ("gpu", "vendor", "soc", "platform", "model")
PATTERNS = ("zeros", "nan", "wrong", "nondeterministic", "refused", "crash", "hang")


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as e:
        raise complaint(f"is no regular expression: {e}") from e
    return value


def _link(value: str) -> str:
    if not re.match(r"(https://\S+|[\w.-]+/[\w.-]+#\d+)\Z", value):
        raise complaint(f"must be a link, not {shorten(value)}", "an https:// address or owner/repository#number")
    return value


if TYPE_CHECKING:
    Pattern: TypeAlias = str
else:
    Pattern = one_of(PATTERNS, "pattern")
Regex = Annotated[Text, AfterValidator(_regex)]


class Sourced(Door, Generic[T]):
    """A value and where it comes from: a public thread or page, or "measured on …"."""

    value: T
    source: Text


class MatchDoor(Door):
    """One way to know the family: every given pattern is found in its fact, whatever the case of letters."""

    gpu: Regex | None = None
    vendor: Regex | None = None
    soc: Regex | None = None
    platform: Regex | None = None
    model: Regex | None = None


class IssueDoor(Door):
    """A public report of wrong results on this family."""

    title: Text
    link: Annotated[Text, AfterValidator(_link)]
    pattern: Pattern
    configs: list[Text] = Field(default_factory=list)
    note: Text | None = None


class SafetyDoor(Door):
    """When to let a device rest. thermal_status is Android's (0 none … 6 shutdown): wait from it on."""

    thermal_status: Sourced[Annotated[int, Field(ge=1, le=6)]] | None = None
    temperature_c: Sourced[Annotated[float, Field(gt=0, le=150)]] | None = None
    battery_percent: Sourced[Annotated[int, Field(ge=0, le=100)]] | None = None


class ProfileDoor(Door):
    """A profile; its id is the file's name. examples: facts of devices that this profile, and no other, must win."""

    title: Text
    vendor: Sourced[Text]
    match: Annotated[list[MatchDoor], Field(min_length=1)]
    examples: Annotated[list[dict[Text, str]], Field(min_length=1)]
    default_backend: Sourced[Literal["opencl", "opengl", "webgpu", "metal", "none"]] | None = None
    configs: Sourced[list[Text]]
    precision: dict[Text, Sourced[Literal["fp32", "fp16-storage", "fp16"]]] = Field(default_factory=dict)
    known_issues: list[IssueDoor] = Field(default_factory=list)
    safety: SafetyDoor = Field(default_factory=SafetyDoor)
    bands: dict[Text, dict[LimitName, Sourced[float]]] = Field(default_factory=dict)
