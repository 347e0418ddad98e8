"""What all doors share: strictness, words for ids and commands, and pydantic's complaints as sentences with a line."""

from __future__ import annotations

import difflib
import re
import shlex
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from farm.errors import Problem
from farm.yaml_lines import YamlFile

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_ID = re.compile(ID_PATTERN.replace("$", r"\Z"))


class Door(BaseModel):
    """Base of every model at the doors: unknown keys are refused and no type is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def complaint(message: str, cure: str | None = None) -> PydanticCustomError:
    """Return the error a validator raises. `message` goes on from the key's name: "must be …"."""
    context: dict[str, Any] = {"cure": cure} if cure else {}
    return PydanticCustomError("farm", "{text}", {"text": message, **context})


def _check_id(value: str) -> str:
    if not _ID.match(value):
        raise complaint(
            f"must be an id, not {shorten(value)}",
            "an id starts with a letter or digit and goes on with letters, digits, '.', '_' or '-', 64 at most",
        )
    return value


def _no_control(value: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise complaint(f"must not hold control characters, got {shorten(value)}")
    return value


def _filled(value: str) -> str:
    if not value.strip():
        raise complaint("must not be empty")
    return value


def _command(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as e:
        raise complaint(f"is no command line: {e}", "close the quotes, or give a list of words") from e


def _command_filled(value: list[str]) -> list[str]:
    if not value or not value[0]:
        raise complaint("must name a program", "give its name and arguments")
    if any("\0" in word for word in value):
        raise complaint("must not hold NUL characters")
    return value


Id = Annotated[str, AfterValidator(_check_id), WithJsonSchema({"type": "string", "pattern": ID_PATTERN})]
Text = Annotated[str, AfterValidator(_no_control), AfterValidator(_filled)]
Command = Annotated[
    list[str],
    BeforeValidator(_command, json_schema_input_type=str | list[str]),
    AfterValidator(_command_filled),
]
"""A program and its arguments: a list of words, or one text that is split as a POSIX shell would; no shell runs it."""


def _iso_date(value: Any) -> Any:
    import datetime

    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        try:
            return datetime.date.fromisoformat(value).isoformat()
        except ValueError as e:
            raise complaint(f"is no date of the calendar: {value}") from e
    raise complaint(f"must be a date, not {shorten(str(value))}", "write it as 2026-12-31")


IsoDate = Annotated[str, BeforeValidator(_iso_date), WithJsonSchema({"type": "string", "format": "date"})]


def one_of(words: Iterable[str], what: str) -> Any:
    """Return the type of a text that must be one of `words`; the nearest one is offered otherwise."""
    known = tuple(words)

    def check(value: str) -> str:
        if value not in known:
            raise complaint(f"unknown {what} {shorten(value)}", suggestion(value, known))
        return value

    return Annotated[str, AfterValidator(check), WithJsonSchema({"type": "string", "enum": list(known)})]


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return "did you mean 'x'? known: …" or only the list."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    listed = "known: " + (", ".join(known) if known else "none")
    return f"did you mean '{near[0]}'? {listed}" if near else listed


def shorten(text: str, limit: int = 60) -> str:
    """Quote user text for a message: one line, bounded, control characters escaped."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def problems(error: ValidationError, door: type[Door], file: YamlFile, at: Sequence[str | int] = ()) -> list[Problem]:
    """Turn every complaint of pydantic about `file` into a sentence with line and cure.

    `at` is where in the file the validated value lies.
    """
    found: list[Problem] = list(file.problems)
    damaged = {p.line for p in found}  # lines whose text is already complained about
    for e in error.errors(include_url=False, include_input=False):
        loc = (*at, *e["loc"])
        # Pydantic names a faulty key of a mapping ("env", "A B", "[key]"); the line of that key is the right one.
        place = tuple(step for step in loc if step != "[key]")
        message, cure = _sentence(e["type"], e["loc"], e["msg"], e.get("ctx", {}), door, file, place)
        line = file.line(place)
        if line not in damaged:
            found.append(Problem(message=message, file=str(file.path), line=line, cure=cure))
    found.sort(key=lambda p: p.line or 0)
    return found


_SORTS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "finite_number": "a finite number",
}


def _sentence(
    kind: str,
    loc: tuple[int | str, ...],
    said: str,
    ctx: dict[str, Any],
    door: type[Door],
    file: YamlFile,
    place: tuple[int | str, ...],
) -> tuple[str, str | None]:
    name = _name(place)
    if kind == "missing":
        above = _name(place[:-1])
        return f"'{place[-1]}' is missing" + (f" in {above}" if above else ""), f"add '{place[-1]}: …'"
    if kind == "extra_forbidden":
        known = _known_keys(door, loc[:-1])
        return f"unknown key {shorten(str(place[-1]))}", suggestion(str(place[-1]), known)
    if kind in _SORTS:
        node = file.node(place)
        got = _sort(node.data, node.raw)
        cure = None
        if kind == "string_type" and node.raw is not None and node.data is not None:
            cure = f'quote it: "{node.raw}"'
        return f"{name} must be {_SORTS[kind]}, not {got}", cure
    for word, bound in (("ge", "{} or more"), ("gt", "more than {}"), ("le", "{} at most"), ("lt", "less than {}")):
        if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than") and word in ctx:
            limit = ctx[word]
            shown = f"{limit:g}" if isinstance(limit, float) else str(limit)
            return f"{name} must be {bound.format(shown)}, not {shorten(str(file.node(place).raw))[1:-1]}", None
    if kind == "literal_error":
        value = file.node(place).data
        words = [w.strip().strip("'") for w in re.split(r",| or ", str(ctx.get("expected", "")))]
        words = [w for w in words if w]
        return f"{name}: unknown word {shorten(str(value))}", suggestion(str(value), words)
    if kind == "farm":
        text = str(ctx.get("text", said))
        if text.startswith(("must ", "is ", "needs ")):
            text = f"{name} {text}".strip()
        return text, str(ctx["cure"]) if "cure" in ctx else None
    return f"{name}: {said[:1].lower()}{said[1:]}", None


def _name(place: Sequence[int | str]) -> str:
    """Return the last key of a place in quotes, with what it is an element of: "'serial'", "element 2 of 'tags'"."""
    if not place:
        return ""
    last = place[-1]
    if isinstance(last, str):
        return f"'{last}'" if last.isprintable() and len(last) <= 64 else shorten(last)
    parent = _name(place[:-1])
    return f"element {last + 1} of {parent}" if parent else f"element {last + 1}"


def _sort(value: Any, raw: str | None) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"true/false ({raw})"
    if isinstance(value, (int, float)):
        return f"a number ({shorten(raw or str(value))[1:-1]})"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, str):
        return f"text ({shorten(value)})"
    return f"a date ({raw})"


def _known_keys(door: type[Door], loc: Sequence[int | str]) -> tuple[str, ...]:
    """Return the keys allowed at `loc`, found by walking the models' annotations."""
    current: type[Door] | None = door
    skip = 0
    for step in loc:
        if skip:
            skip -= 1
            continue
        field: FieldInfo | None = current.model_fields.get(str(step)) if current else None
        if field is None:
            continue
        current = _door_in(field.annotation)
        skip = 0 if _is_door(field.annotation) else 1
    return tuple(current.model_fields) if current else ()


def _is_door(annotation: Any) -> bool:
    """Tell whether a field holds a door itself (or None), not a list or mapping of doors."""
    options = [a for a in typing.get_args(annotation) if a is not type(None)] or [annotation]
    return any(isinstance(a, type) and issubclass(a, Door) for a in options) and typing.get_origin(annotation) not in (
        list,
        dict,
    )


def _door_in(annotation: Any) -> type[Door] | None:
    if isinstance(annotation, type) and not typing.get_args(annotation) and issubclass(annotation, Door):
        return annotation
    for inner in typing.get_args(annotation):
        found = _door_in(inner)
        if found is not None:
            return found
    return None
