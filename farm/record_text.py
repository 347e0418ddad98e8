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
            return f"{_path(before, last, number, lines)}: line {number + 1} is damaged"
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
    after = lines[number + 1] if number + 1 < len(lines) else ""
    if (stack and not after.strip()) or (after.strip() and _LINE.fullmatch(after) is None):
        return True  # what follows is damaged itself: the next line is to blame
    follows = after.strip()
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


def _path(levels: list[tuple[str, str]], count: int, fault: int, lines: list[str]) -> str:
    """The field a damaged line belongs to.

    Its own key where that still can be read. Else what is missing: every value has a seal and every seal a value, so
    that the one whose line is damaged is known from the other.
    """
    line, labels = lines[fault], [label for label, _ in levels[1:]]
    if not line.strip() and fault + 1 < len(lines):
        line = lines[fault + 1]  # a blank became the end of a line
    if levels and levels[-1][1] == "[":
        return _joined([*labels, f"[{count}]"])
    values, seals, top = _read(lines, fault)
    region = labels[0] if labels else ""
    found = re.match(r' *"((?:[^"\\\x00-\x1f]|\\.)*)"', line)
    own = _joined([*labels, found[1]]) if found else ""
    if region == "seals":
        known, missing = values, [f"seals.{p}" for p in values if p not in seals]
        own_is_known = found is not None and found[1] in known
    elif region == "digests":
        sections = dict.fromkeys([*(re.split(r"[.\[]", p)[0] for p in values), "seals"])
        here = {m[1] for n, x in enumerate(lines) if n != fault and (m := re.match(r' {4}"(\w+)": "[0-9a-f]{64}"', x))}
        missing = [f"digests.{s}" for s in sections if s not in here]
        own_is_known = found is not None and found[1] in sections
    else:
        inside = f"{_joined(labels)}" if labels else ""
        missing = [p for p in seals if p not in values and p.startswith(inside)]
        own_is_known = any(p == own or p.startswith((f"{own}.", f"{own}[")) for p in seals)
        if not labels:
            absent = [name for name in _TOP if name not in top]
            missing = absent if len(absent) == 1 else missing
            own_is_known = own in _TOP
    if own_is_known:
        return own
    closing = line.strip().rstrip(",") in ("}", "]", "")
    if missing and not closing:
        return " or ".join(missing) if len(missing) < 3 else _shared(missing) or _joined(labels)
    return _joined(labels) or "the outer brackets"


_TOP = (
    "about", "agent", "bands", "config", "device", "digests", "environment", "inputs", "kind", "limits", "metrics",
    "model", "outputs", "plan_digest", "reference", "runtime", "schema_version", "seals", "verdict",
)  # fmt: skip


def _shared(paths: list[str]) -> str:
    """The bracket that all of these paths lie in."""
    steps = [re.findall(r"[^.\[]+|\[\d+\]", path) for path in paths]
    same = 0
    while all(len(s) > same + 1 for s in steps) and len({s[same] for s in steps}) == 1:
        same += 1
    return _joined(steps[0][:same])


def _joined(parts: list[str]) -> str:
    return re.sub(r"\.\[", "[", ".".join(parts))


def _read(lines: list[str], fault: int) -> tuple[dict[str, None], dict[str, None], set[str]]:
    """Paths of the values, keys of the seals and names on the top level, read by indent from all lines but one."""
    values: dict[str, None] = {}
    seals: dict[str, None] = {}
    top: set[str] = set()
    stack: list[_Level] = []
    skipped = (fault,) if lines[fault].strip() else (fault, fault + 1)
    for number, line in enumerate(lines):
        found = _LINE.fullmatch(line)
        if number in skipped or found is None or found["close"]:
            continue
        depth = len(found["indent"]) // 2
        if not depth and number:
            continue  # the end of a line that was split
        del stack[depth:]
        if depth > len(stack):
            continue  # below a bracket that is damaged itself
        label = ""
        if stack:
            stack[-1].count += 1
            label = msgspec.json.decode(found["key"]) if found["key"] else f"[{stack[-1].count - 1}]"
        if depth == 1:
            top.add(label)
        if found["open"]:
            stack.append(_Level(bracket=found["open"], label=label))
            continue
        path = _joined([*(level.label for level in stack[1:]), label])
        if path.startswith("seals."):
            seals[path.removeprefix("seals.")] = None
        elif not path.startswith("digests.") and path != "plan_digest":
            values[path] = None
    return values, seals, top
