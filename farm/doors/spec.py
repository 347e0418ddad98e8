"""The door of model specs: `NAME.farm.yaml` beside a model, and the entries of an inventory's `models:`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from farm.doors.base import Door, Text, complaint, one_of, shorten, suggestion
from farm.expressions import Refused, parse

KINDS = (
    "values",
    "embedding",
    "distribution",
    "classification",
    "probability",
    "mask",
    "quantised",
    "ints",
    "bools",
    "indices",
)
VERDICTS = ("pass", "warn", "fail", "error", "unsupported", "inconclusive", "infra", "not_run")
DELEGATIONS = ("full", "partial", "none")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
LIMITS: dict[str, tuple[str, ...]] = {
    "values": ("pass_snr_db", "fail_snr_db", "fail_cosine"),
    "embedding": ("pass_cosine", "fail_cosine", "pass_norm_off", "fail_norm_off"),
    "distribution": ("pass_top1", "fail_top1", "pass_kl", "fail_kl"),
    "classification": ("pass_max_abs", "near_tie_margin"),
    "probability": ("pass_max_abs", "fail_max_abs"),
    "mask": ("pass_max_abs", "fail_max_abs"),
    "quantised": ("pass_steps", "fail_steps", "fail_share_above"),
    "ints": ("pass_equal_share", "fail_equal_share"),
    "bools": ("pass_equal_share", "fail_equal_share"),
    "indices": ("pass_equal_share", "fail_equal_share"),
}
"""Limits of each kind, by the names of farm/judge/bands.py: one that means nothing there would be silently unused."""
_ROWS = {"values-fp32": "values", "values-fp16": "values"}


def _function(value: str) -> str:
    if not _FUNCTION.match(value):
        raise complaint(f"must be module:function, not {shorten(value)}", "e.g. my_models.audio:spectrogram")
    return value


def _check(value: str) -> str:
    try:
        parse(value)
    except Refused as e:
        raise complaint(f"is no expression over metrics: it {e}", "e.g. cosine > 0.99 and max_abs < 0.05") from e
    return value


def _shape(value: list[int]) -> list[int]:
    if len(value) > 16 or any(d < 1 or d > 2**31 - 1 for d in value):
        raise complaint("must be a shape: whole numbers from 1 up", "e.g. [1, 128]")
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


if TYPE_CHECKING:
    Kind: TypeAlias = str
else:
    Kind = one_of(KINDS, "kind")
Function = Annotated[str, AfterValidator(_function)]
Shape = Annotated[list[int], AfterValidator(_shape)]


def _limit_name(value: str) -> str:
    known = tuple(dict.fromkeys(name for names in LIMITS.values() for name in names))
    if value not in known:
        raise complaint(f"unknown limit {shorten(value)}", suggestion(value, known))
    return value


def misplaced_limits(bands: Mapping[str, Iterable[str]], kinds: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (where, limit, cure) for limits that the kind they are given for does not have.

    `bands`: kind or output name → limit names. `kinds`: output name → kind, as far as the spec says it.
    """
    for where, names in bands.items():
        kind = _ROWS.get(where, where) if where in LIMITS or where in _ROWS else kinds.get(where)
        for name in names:
            if kind is not None and name not in LIMITS[kind]:
                yield where, name, f"limits of kind '{kind}': {', '.join(LIMITS[kind])}"


LimitName = Annotated[str, AfterValidator(_limit_name)]


class Limit(Door):
    """One band limit: a number, or a number with the reason for it."""

    value: float
    source: Text | None = None


def _limit(value: Any) -> Any:
    # A bare number is short for {value: number}; done before the model so that errors keep the file's own places.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"value": value}
    if not isinstance(value, dict):
        raise complaint("must be a number, or a number with its source", "e.g. {value: 60, source: …}")
    return value


class Preprocess(Door):
    """How a file (image, WAV, text) becomes one input. Checked here, carried out by the input reader."""

    resize: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    layout: Literal["nhwc", "nchw"] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    dtype: Literal["float32", "float16", "uint8", "int8", "int32", "int64"] | None = None
    values: Literal["0..1", "0..255"] | None = None
    sample_rate: Annotated[int, Field(ge=1)] | None = None
    tokenizer: Text | None = None
    function: Function | None = None

    @field_validator("std")
    @classmethod
    def _positive(cls, value: list[float] | None) -> list[float] | None:
        if value and any(v <= 0 for v in value):
            raise complaint("must be greater than 0 everywhere: inputs are divided by it")
        return value


class Assertion(Door):
    """A user's own check: an expression over metrics, or a Python function."""

    check: Annotated[Text, AfterValidator(_check)] | None = None
    function: Function | None = None
    output: Text | None = None
    message: Text

    @model_validator(mode="after")
    def _one(self) -> Assertion:
        if (self.check is None) == (self.function is None):
            raise complaint("needs either 'check' or 'function', and not both")
        return self


def _preprocess(value: Any) -> Any:
    return {"*": {"function": value}} if isinstance(value, str) else value


class SpecDoor(Door):
    """A model spec. All keys are optional beside a model; in an inventory's `models:` the path is required."""

    path: Text | None = None
    signature: str | None = None
    kind: dict[Text, Kind] = Field(default_factory=dict)
    inputs: Annotated[list[Text], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = Field(
        default_factory=list
    )
    input_shapes: dict[Text, Shape] = Field(default_factory=dict)
    preprocess: Annotated[
        dict[Text, Preprocess], BeforeValidator(_preprocess, json_schema_input_type=str | dict[str, Preprocess])
    ] = Field(default_factory=dict)
    expect: dict[Text, str] = Field(default_factory=dict)
    bands: dict[
        Text, dict[LimitName, Annotated[Limit, BeforeValidator(_limit, json_schema_input_type=float | Limit)]]
    ] = Field(default_factory=dict)
    assertions: list[Assertion] = Field(default_factory=list)
    min_cosine_similarity: Annotated[float, Field(ge=-1, le=1)] | None = None

    @model_validator(mode="after")
    def _limits_fit(self) -> SpecDoor:
        for where, name, cure in misplaced_limits(self.bands, self.kind):
            raise complaint(f"the limit '{name}' of '{where}' means nothing there", cure)
        return self

    @field_validator("expect")
    @classmethod
    def _expectations(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        configs: tuple[str, ...] = tuple((info.context or {}).get("configs", ()))
        faults: list[tuple[str, str]] = []
        for key, word in value.items():
            known: tuple[str, ...]
            if key == "delegation":
                known, what = DELEGATIONS, "delegation"
            elif key == "faster_than":
                known, what = configs, "config"
            elif key in configs:
                known, what = VERDICTS, "verdict"
            else:
                listed = suggestion(key, (*configs, "delegation", "faster_than"))
                faults.append((f"nothing to expect of {shorten(key)}", listed))
                continue
            if word not in known:
                faults.append((f"unknown {what} {shorten(word)} for '{key}'", suggestion(word, known)))
        if faults:
            raise complaint("; ".join(f[0] for f in faults), "; ".join(f[1] for f in faults))
        return value
