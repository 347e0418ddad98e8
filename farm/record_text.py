"""Where a record's text leaves its canonical form: names the field of the first line that is not as farm writes it.

Canonical text has one value or bracket per line, two blanks per level and a comma exactly where another line of the
same level follows. So a damaged file can be read line by line where a JSON parser only says "unexpected character".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_SCALAR = rf"(?:{_STRING}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|\{{\}}|\[\])"
_LINE = re.compile(
    rf"(?P<indent> *)(?:(?P<key>{_STRING}): )?(?:(?P<open>[{{\[])|(?P<value>{_SCALAR})|(?P<close>[}}\]]))(?P<comma>,?)"
)


@dataclass(slots=True, kw_only=True)
class _Level:
    """One open bracket: how its parent calls it, its last key, how many elements it has so far."""

    bracket: str
    label: str
    key: str = ""
    count: int = 0


def first_fault(data: bytes) -> str | None:
    """Return a sentence naming the field of the first line that is not canonical; None where there is no such line, or
    where the text is not even nearly a record."""
    if b'"seals"' not in data and b'"plan_digest"' not in data:
        return None
    try:
        text, undecodable = data.decode("utf-8"), None
    except UnicodeDecodeError as e:
        text, undecodable = data.decode("utf-8", "replace"), data[: e.start].count(b"\n")
    lines = text.split("\n")
    stack: list[_Level] = []
    for number, line in enumerate(lines):
        before = [(level.label, level.bracket) for level in stack]
        last = stack[-1].count if stack else 0
        if number == undecodable or not _fits(lines, number, stack):
            if number == len(lines) - 1 and not line and not before and number:
                return None
            return f"{_path(before, last, line)}: line {number + 1} is damaged"
    return f"line {len(lines)}: the text does not end as farm writes it"


def _fits(lines: list[str], number: int, stack: list[_Level]) -> bool:
    """Tell whether one line is in form and in its place; enters or leaves a level."""
    found = _LINE.fullmatch(lines[number])
    if found is None:
        return False
    key = msgspec.json.decode(found["key"]) if found["key"] else ""
    if found["close"]:
        if not stack or key or (stack[-1].bracket, found["close"]) not in (("{", "}"), ("[", "]")):
            return False
        stack.pop()
    if len(found["indent"]) != 2 * len(stack):
        return False
    if not found["close"] and not _named_rightly(found, key, number, stack):
        return False
    if found["value"] is not None and not _canonical(found["value"]):
        return False
    if found["open"]:
        label = key if key or not stack else f"[{stack[-1].count - 1}]"
        stack.append(_Level(bracket=found["open"], label=label))
        return not found["comma"]
    follows = lines[number + 1].strip() if number + 1 < len(lines) else ""
    sibling = bool(stack) and bool(follows) and follows[0] not in "}]"
    return bool(found["comma"]) == sibling


def _canonical(value: str) -> bool:
    try:
        return msgspec.json.encode(msgspec.json.decode(value)).decode() == value
    except msgspec.DecodeError:
        return False  # a number beyond float64


def _named_rightly(found: re.Match[str], key: str, number: int, stack: list[_Level]) -> bool:
    """Keys in objects, rising and spelt the one way; none in lists; the first line opens the object."""
    if not stack:
        return number == 0 and found["open"] == "{" and not key
    level = stack[-1]
    level.count += 1
    if level.bracket == "[":
        return not found["key"]
    if not found["key"] or (level.count > 1 and key <= level.key):
        return False
    level.key = key
    return msgspec.json.encode(key).decode() == found["key"]


def _path(levels: list[tuple[str, str]], count: int, line: str) -> str:
    """The field a line belongs to: the labels of the brackets around it and what can still be read of its own key."""
    parts = [label for label, _ in levels[1:]]
    if levels and levels[-1][1] == "[":
        parts.append(f"[{count}]")
    else:
        found = re.match(r'\s*"((?:[^"\\]|\\.)*)"\s*:', line) or re.match(r"\W*([A-Za-z_][\w. -]*)", line)
        if found and line.strip() not in ("}", "},", "]", "],"):
            parts.append(found[1].strip())
    return re.sub(r"\.\[", "[", ".".join(parts)) or "the outer brackets"
