"""Read a flatbuffer by a schema table, checking every offset on the way: the ground farm/tflite.py stands on.

As strict as flatbuffers' C++ Verifier, which LiteRT applies to models in memory but not to files (a damaged file kills
it with SIGSEGV). Tables and vectors are remembered by position, so shared or overlapping parts cost nothing extra and
hostile files are read in time linear in their size. Rules: flatbuffers/include/flatbuffers/verifier.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_TABLES = 1_000_000
"""The C++ Verifier's own limit."""

_SCALARS = {
    "bool": ("?", 1), "i8": ("b", 1), "u8": ("B", 1), "i16": ("h", 2), "u16": ("H", 2), "i32": ("i", 4),
    "u32": ("I", 4), "i64": ("q", 8), "u64": ("Q", 8), "f32": ("f", 4), "f64": ("d", 8),
}  # fmt: skip


class Damaged(ValueError):
    """The bytes are no valid flatbuffer of this schema; the sentence names table, field and byte offset."""


class Bytes(NamedTuple):
    """A byte vector that was checked but not copied: data[start : start + size]."""

    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    kind: str
    """scalar, str, table, vector, strings, tables or union."""
    of: str = ""
    """Table or union name, or the scalar's struct letter."""
    size: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    fields: tuple[_Field | None, ...]
    defaults: dict[str, Any]


def _layout(text: str) -> _Layout:
    fields: list[_Field | None] = []
    defaults: dict[str, Any] = {}
    for word in text.split():
        if word == "-":
            fields.append(None)
            continue
        name, _, kind = word.partition(":")
        kind, _, default = kind.partition("=")
        defaults[name] = None
        if kind in _SCALARS:
            letter, size = _SCALARS[kind]
            fields.append(_Field(name=name, kind="scalar", of=letter, size=size))
            number = float(default or 0)
            defaults[name] = bool(number) if kind == "bool" else number if letter in "fd" else int(number)
        elif kind == "str":
            fields.append(_Field(name=name, kind="str"))
        elif kind.startswith("{"):
            fields.append(_Field(name=name, kind="table", of=kind[1:]))
        elif kind.startswith("|"):
            fields.append(_Field(name=name, kind="union", of=kind[1:]))
        elif kind == "[str":
            fields.append(_Field(name=name, kind="strings"))
        elif kind.startswith("[{"):
            fields.append(_Field(name=name, kind="tables", of=kind[2:]))
        else:
            letter, size = _SCALARS[kind[1:]]
            fields.append(_Field(name=name, kind="vector", of=letter, size=size))
    return _Layout(fields=tuple(fields), defaults=defaults)


class Reader:
    """Reads one buffer. `read()` gives the root as nested dicts: field → scalar, str, tuple, dict, list, Bytes or None.

    Absent scalars have the schema's default, other absent fields None. Byte vectors come as Bytes; wider scalar vectors
    as tuples. The same table or vector read twice is the same object. Unknown union members are None, as the Verifier
    allows.
    """

    def __init__(self, data: memoryview, tables: Mapping[str, str], unions: Mapping[str, Mapping[int, str]]) -> None:
        self._data, self._size = data, len(data)
        self._texts, self._unions = tables, unions
        self._layouts: dict[str, _Layout] = {}
        self._read: dict[tuple[int, str], tuple[dict[str, Any], int]] = {}
        self._vectors: dict[tuple[int, str], Any] = {}
        self._vtables: dict[int, tuple[int, ...]] = {}
        self._tables, self._walked = 0, 0

    def read(self, root: str) -> dict[str, Any]:
        """Check and read everything reachable from the root table. Raises Damaged."""
        return self._table(self._offset(0, "the file", "root"), root)

    def _check(self, at: int, size: int, align: int, where: str, what: str) -> None:
        if at % align:
            raise Damaged(f"{where}: its {what} at byte {at} is not aligned to {align}")
        if at < 0 or at + size > self._size:
            raise Damaged(f"{where}: its {what} at byte {at} reaches past the end of the file ({self._size} bytes)")

    def _offset(self, at: int, where: str, what: str) -> int:
        self._check(at, 4, 4, where, what)
        (offset,) = struct.unpack_from("<I", self._data, at)
        if not 0 < offset < 1 << 31 or at + offset >= self._size:
            raise Damaged(f"{where}: its {what} points outside the file (offset {offset} at byte {at})")
        return at + int(offset)

    def _vtable(self, table: int, where: str) -> tuple[int, ...]:
        self._check(table, 4, 4, where, "start")
        (back,) = struct.unpack_from("<i", self._data, table)
        at = table - back
        known = self._vtables.get(at)
        if known is not None:
            return known
        self._check(at, 2, 2, where, "vtable")
        (size,) = struct.unpack_from("<H", self._data, at)
        if size & 1:
            raise Damaged(f"{where}: its vtable at byte {at} has the odd size {size}")
        self._check(at, size, 2, where, "vtable")
        slots = struct.unpack_from(f"<{size // 2 - 2}H", self._data, at + 4) if size > 4 else ()
        self._vtables[at] = slots
        return slots

    def _table(self, at: int, name: str) -> dict[str, Any]:
        known = self._read.get((at, name))
        if known is not None:
            # The C++ Verifier counts every visit, so sharing tables must not help a file past its limit.
            self._count(known[1])
            return known[0]
        before = self._tables
        self._count(1)
        layout = self._layouts.get(name)
        if layout is None:
            layout = self._layouts[name] = _layout(self._texts[name])
        where = f"{name} at byte {at}"
        out = dict(layout.defaults)
        for field, slot in zip(layout.fields, self._vtable(at, where)):  # noqa: B905  newer files have more slots, older ones fewer
            if slot and field is not None:
                if field.kind == "scalar":
                    self._check(at + slot, field.size, field.size, where, field.name)
                    (out[field.name],) = struct.unpack_from("<" + field.of, self._data, at + slot)
                else:
                    target = self._offset(at + slot, where, field.name)
                    out[field.name] = self._reference(field, target, where, out)
        self._read[at, name] = (out, self._tables - before)
        return out

    def _count(self, tables: int) -> None:
        self._tables += tables
        if self._tables > MAX_TABLES:
            raise Damaged(f"the file describes more than {MAX_TABLES} tables")

    def _reference(self, field: _Field, at: int, where: str, out: dict[str, Any]) -> Any:
        if field.kind == "table":
            return self._table(at, field.of)
        if field.kind == "union":
            member = self._unions[field.of].get(out[field.name + "_type"])
            return None if member is None else self._table(at, member)
        if field.kind == "str":
            return self._vector(at, "str", where, field.name, self._string, 1)
        if field.kind == "vector":
            return self._vector(
                at, field.of, where, field.name, lambda start, n: self._scalars(start, n, field), field.size
            )
        # Keyed by kind of row too: the same bytes may be named as two kinds of vector.
        key = field.of or "strings"
        return self._vector(at, "[" + key, where, field.name, lambda start, n: self._rows(start, n, field, where), 4)

    def _vector(self, at: int, key: str, where: str, what: str, read: Callable[[int, int], Any], size: int) -> Any:
        known = self._vectors.get((at, key))
        if known is not None:
            return known
        self._check(at, 4, 4, where, what)
        (n,) = struct.unpack_from("<I", self._data, at)
        if at + 4 + n * size > self._size:
            raise Damaged(f"{where}: its {what} claims {n} elements and reaches past the end of the file")
        if key != "B":
            self._walked += n * size
            if self._walked > 2 * self._size + 4096:
                raise Damaged(
                    f"{where}: its {what} overlaps other parts of the file; together they are larger than the file"
                )
        value = self._vectors[at, key] = read(at + 4, n)
        return value

    def _string(self, start: int, n: int) -> str:
        if start + n >= self._size or self._data[start + n] != 0:
            raise Damaged(f"the text at byte {start - 4} does not end with a zero byte")
        return bytes(self._data[start : start + n]).decode("utf-8", "replace")

    def _scalars(self, start: int, n: int, field: _Field) -> Any:
        if field.of == "B":
            return Bytes(start, n)
        return struct.unpack_from(f"<{n}{field.of}", self._data, start)

    def _rows(self, start: int, n: int, field: _Field, where: str) -> Any:
        rows = []
        for i in range(n):
            target = self._offset(start + 4 * i, where, f"{field.name}[{i}]")
            if field.kind == "strings":
                rows.append(self._vector(target, "str", where, field.name, self._string, 1))
            else:
                rows.append(self._table(target, field.of))
        return rows
