"""YAML with line numbers, for the three files people write: inventory, profiles and model specs.

Comes before the doors (farm/doors): bytes go in, plain data and the line of every value come out, or every problem
of the text at once. Only YAML's safe types exist here, and hostile text is bounded: file size, nesting and the
number of values after aliases are expanded ("billion laughs").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from farm.errors import InvalidInput, Problem
from farm.paths import check_file

MAX_BYTES = 4 << 20
MAX_DEPTH = 40
MAX_VALUES = 100_000
"""Values in all, aliases counted as often as they are used."""

_SCALAR_TAGS = frozenset(f"tag:yaml.org,2002:{t}" for t in ("str", "int", "float", "bool", "null", "timestamp"))
_COLLECTION_TAGS = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_MERGE = "tag:yaml.org,2002:merge"
# libyaml's scanner is some ten times faster; without it the pure one gives the same events.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Node:
    """One value: its plain data, its line (from 1), and for a scalar its text as written."""

    data: Any
    line: int
    raw: str | None = None
    keys: dict[str, tuple[int, Node]] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)
    values: int = 1
    height: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """A file that was read. `data` is what it says; `sha256` (hex) is that of its bytes.

    problems: what is wrong with the text although its structure is clear (a key given twice, a tag, an impossible
    date); whoever checks the data reports them together with its own.
    """

    path: Path
    root: Node
    sha256: str
    problems: tuple[Problem, ...] = ()

    @property
    def data(self) -> Any:
        return self.root.data

    def node(self, loc: Sequence[str | int]) -> Node:
        """Return the value at `loc`, or the nearest one above it."""
        return self._walk(loc)[0]

    def line(self, loc: Sequence[str | int]) -> int:
        """Return the line where `loc` is written: a key's own line, else that of the nearest value above it."""
        return self._walk(loc)[1]

    def without(self, locs: Iterable[Sequence[str | int]]) -> YamlFile:
        """Return the file less the parts that `locs` lie in: an element of a top-level list or mapping, or the key."""
        items: dict[str, set[int]] = {}
        inner: dict[str, set[str]] = {}
        whole: set[str] = set()
        for loc in locs:
            section = str(loc[0]) if loc else ""
            step = loc[1] if len(loc) > 1 else None
            node = self.root.keys[section][1] if section in self.root.keys else None
            if node is not None and isinstance(step, int) and step < len(node.items):
                items.setdefault(section, set()).add(step)
            elif (
                node is not None and isinstance(step, str) and isinstance(node.keys.get(step, (0, node))[1].data, dict)
            ):
                inner.setdefault(section, set()).add(step)
            else:
                whole.add(section)
        root = Node({}, self.root.line)
        for key, (line, node) in self.root.keys.items():
            if key in whole:
                continue
            if key in items:
                kept = [n for i, n in enumerate(node.items) if i not in items[key]]
                node = Node([n.data for n in kept], node.line, items=kept)
            elif key in inner:
                pairs = {k: v for k, v in node.keys.items() if k not in inner[key]}
                node = Node({k: n.data for k, (_, n) in pairs.items()}, node.line, keys=pairs)
            root.keys[key] = (line, node)
            root.data[key] = node.data
        return YamlFile(path=self.path, root=root, sha256=self.sha256, problems=self.problems)

    def _walk(self, loc: Sequence[str | int]) -> tuple[Node, int]:
        node, line = self.root, self.root.line
        for step in loc:
            if isinstance(step, str) and step in node.keys:
                line, node = node.keys[step]
            elif isinstance(step, int) and 0 <= step < len(node.items):
                node = node.items[step]
                line = node.line
            # Other steps are pydantic's own (a union's member, "[key]"): the value stays the same.
        return node, line


def read_yaml(path: Path, what: str) -> YamlFile:
    """Read a YAML file whose top level is a mapping. `what` names its sort in messages ("inventory", "model spec").

    Raises InvalidInput when nothing can be made of it: missing, unreadable, too large, not UTF-8, not YAML, empty,
    a list at the top, values past the bounds. Smaller problems are in `problems` of the result.
    """
    check_file(path)
    try:
        with path.open("rb") as f:
            raw = f.read(MAX_BYTES + 1)
    except FileNotFoundError as e:
        raise _refused(path, f"there is no such {what}", "check the path") from e
    except IsADirectoryError as e:
        raise _refused(path, "this is a folder, not a file", "name the file inside it") from e
    except OSError as e:
        raise _refused(path, f"cannot read this {what}: {e.strerror or e}", "check its permissions") from e
    if len(raw) > MAX_BYTES:
        raise _refused(path, f"this {what} is larger than {MAX_BYTES >> 20} MiB", "is it really the right file?")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise _refused(path, f"this {what} is not UTF-8 text", "save it as UTF-8", line) from e
    composer = _Composer(path, what)
    try:
        root = composer.compose(text)
    except yaml.YAMLError as e:
        raise InvalidInput([_syntax_problem(path, what, text, e), *composer.problems]) from e
    if root is None or root.data is None:
        raise _refused(path, f"this {what} is empty", "README.md shows one")
    if not isinstance(root.data, dict):
        sort = "a list" if isinstance(root.data, list) else "a single value"
        raise _refused(path, f"this {what} must be a mapping (key: value) at the top, not {sort}", None, root.line)
    sha256 = hashlib.sha256(raw).hexdigest()
    return YamlFile(path=path, root=root, sha256=sha256, problems=tuple(composer.problems))


class _Composer:
    """Builds the tree from parser events; keeps going after a problem that leaves the structure clear."""

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what = path, what
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node | None] = {}
        self.resolver, self.constructor = Resolver(), SafeConstructor()
        self.total = 0

    def compose(self, text: str) -> Node | None:
        events: Iterator[Any] = iter(yaml.parse(text, Loader=_Loader))
        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 1:
                    root = self._value(events, next(events), 1)
                else:
                    self._problem(
                        _line(event),
                        f"this {self.what} holds more than one YAML document",
                        "remove the line that starts the second one (---)",
                    )
                    break
        return root

    def _problem(self, line: int, message: str, cure: str | None = None) -> None:
        self.problems.append(Problem(message=message, file=str(self.path), line=line, cure=cure))

    def _fatal(self, line: int, message: str, cure: str | None = None) -> InvalidInput:
        return InvalidInput(
            [*self.problems, Problem(message=message, file=str(self.path), line=line, cure=cure)],
        )

    def _value(self, events: Iterator[Any], event: Any, depth: int) -> Node:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent):
            node = self._alias(event, line, depth)
        else:
            if depth > MAX_DEPTH:
                raise self._fatal(line, f"values are nested more than {MAX_DEPTH} deep")
            if event.anchor:
                self.anchors[event.anchor] = None  # open: a reference from inside itself has no end
            if isinstance(event, yaml.ScalarEvent):
                node = self._scalar(event, line)
            elif isinstance(event, yaml.SequenceStartEvent):
                node = self._sequence(events, event, line, depth)
            else:
                node = self._mapping(events, event, line, depth)
            if event.anchor:
                self.anchors[event.anchor] = node
        self.total += node.values if isinstance(event, yaml.AliasEvent) else 1
        if self.total > MAX_VALUES:
            raise self._fatal(line, f"this {self.what} has more than {MAX_VALUES} values once aliases are expanded")
        return node

    def _alias(self, event: Any, line: int, depth: int) -> Node:
        if event.anchor not in self.anchors:
            raise self._fatal(line, f"the alias *{event.anchor} stands before its anchor &{event.anchor}, or has none")
        node = self.anchors[event.anchor]
        if node is None:
            raise self._fatal(line, f"the alias *{event.anchor} refers to a value that contains it")
        if depth + node.height - 1 > MAX_DEPTH:
            raise self._fatal(line, f"values are nested more than {MAX_DEPTH} deep")
        return node

    def _scalar(self, event: Any, line: int) -> Node:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.resolver.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        if tag == "tag:yaml.org,2002:value":  # a lone "="
            tag = "tag:yaml.org,2002:str"
        if tag not in _SCALAR_TAGS and tag != _MERGE:
            self._problem(line, f"the tag {_shown(str(tag))} is not allowed here", "write a plain value")
            return Node(None, line, raw=event.value)
        if tag == _MERGE:
            return Node(event.value, line, raw=event.value)
        try:
            data = self.constructor.construct_object(yaml.ScalarNode(tag, event.value))
        except (ConstructorError, ValueError, OverflowError):
            sort = tag.rsplit(":", 1)[-1].replace("timestamp", "date")
            self._problem(line, f"{_shown(event.value)} is no valid {sort}", "quote it if it is meant as text")
            data = event.value
        return Node(data, line, raw=event.value)

    def _collection_tag(self, event: Any, line: int) -> None:
        if event.tag not in _COLLECTION_TAGS:
            self._problem(
                line, f"the tag {_shown(str(event.tag))} is not allowed here", "write a plain list or mapping"
            )

    def _sequence(self, events: Iterator[Any], event: Any, line: int, depth: int) -> Node:
        self._collection_tag(event, line)
        node = Node([], line)
        for child_event in events:
            if isinstance(child_event, yaml.SequenceEndEvent):
                break
            child = self._value(events, child_event, depth + 1)
            node.items.append(child)
            node.data.append(child.data)
            node.values += child.values
            node.height = max(node.height, child.height + 1)
        return node

    def _mapping(self, events: Iterator[Any], event: Any, line: int, depth: int) -> Node:
        self._collection_tag(event, line)
        node = Node({}, line)
        merged: dict[str, tuple[int, Node]] = {}
        for key_event in events:
            if isinstance(key_event, yaml.MappingEndEvent):
                break
            key_line = _line(key_event)
            plain = isinstance(key_event, yaml.ScalarEvent) and key_event.implicit[0]
            key = self._value(events, key_event, depth + 1)
            value = self._value(events, next(events), depth + 1)
            node.values += value.values + 1
            node.height = max(node.height, value.height + 1)
            if plain and key.raw == "<<":
                self._merge(merged, value, key_line)
            elif not isinstance(key.data, str):
                shown = _shown(key.raw) if key.raw is not None else "a list or mapping"
                self._problem(
                    key_line, f"a key must be text, not {shown}", f'quote it: "{key.raw}"' if key.raw else None
                )
            elif key.data in node.keys:
                first = node.keys[key.data][0]
                self._problem(
                    key_line, f"the key {_shown(key.data)} is given twice (first on line {first})", "remove one of them"
                )
            else:
                node.keys[key.data] = (key_line, value)
        for name, entry in merged.items():  # merged values are defaults: the mapping's own keys win
            node.keys.setdefault(name, entry)
        node.data.update({name: value.data for name, (_, value) in node.keys.items()})
        return node

    def _merge(self, merged: dict[str, tuple[int, Node]], value: Node, line: int) -> None:
        sources = value.items if isinstance(value.data, list) else [value]
        for source in sources:
            if not isinstance(source.data, dict):
                self._problem(line, "'<<' merges mappings only", "give it an alias of a mapping, e.g. <<: *common")
                continue
            for name, entry in source.keys.items():
                merged.setdefault(name, entry)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _refused(path: Path, message: str, cure: str | None, line: int | None = None) -> InvalidInput:
    return InvalidInput(Problem(message=message, file=str(path), line=line, cure=cure))


def _shown(text: str, limit: int = 60) -> str:
    """Quote a piece of the file for a message: one line, bounded, control characters escaped."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def _syntax_problem(path: Path, what: str, text: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else None
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
    cure: str | None = "check indentation, colons and quotes near this line"
    lines = text.splitlines()
    if line is not None and line <= len(lines):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        if "\t" in indent:
            said, cure = "a tab is used to indent", "indent with spaces: YAML allows no tabs there"
    if "special characters are not allowed" in str(error) or "control characters are not allowed" in str(error):
        said, cure = "it holds characters that text files do not have", "is it really the right file?"
    return Problem(message=f"this {what} is not valid YAML: {said}", file=str(path), line=line, cure=cure)
