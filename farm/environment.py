"""What farm itself ran on: Python, operating system, versions of every installed package; and how two of them differ.

A sweep keeps it in the run folder, a qualification record binds it, `farm record verify` compares it with today's.
Package versions are read from the names of `*.dist-info` folders: parsing their METADATA would cost every sweep.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_DIST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*)-(?P<version>[^-]+)\.(dist|egg)-info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """python: "CPython 3.11.4". os: name and version of the system as it calls itself. packages: name → version."""

    python: str
    os: str
    kernel: str
    machine: str
    packages: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One item that is not what it was. None: it was not there, or is not there any more."""

    item: str
    recorded: str | None
    now: str | None

    def __str__(self) -> str:
        if self.recorded is None:
            return f"{self.item}: {self.now}, which was not there"
        if self.now is None:
            return f"{self.item}: was {self.recorded}, now gone"
        return f"{self.item}: was {self.recorded}, now {self.now}"


def current_environment() -> Environment:
    """Read this process's environment: a few directory listings, nothing is imported and nothing started."""
    name = os.uname()
    version = ".".join(map(str, sys.version_info[:3]))
    implementation = {"cpython": "CPython", "pypy": "PyPy"}.get(sys.implementation.name, sys.implementation.name)
    return Environment(
        python=f"{implementation} {version}",
        os=_os_name(name.sysname),
        kernel=f"{name.sysname} {name.release}",
        machine=name.machine,
        packages=dict(sorted(_packages(sys.path))),
    )


def drift(recorded: Environment, now: Environment) -> tuple[Drift, ...]:
    """Return every item in which two environments differ, in a fixed order: system first, then packages by name."""
    plain = [
        Drift(item=item, recorded=getattr(recorded, item), now=getattr(now, item))
        for item in ("python", "os", "kernel", "machine")
        if getattr(recorded, item) != getattr(now, item)
    ]
    return (*plain, *mapping_drift("package", recorded.packages, now.packages))


def mapping_drift(what: str, recorded: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Drift]:
    """Yield the entries in which two mappings differ, each named `what key`."""
    for name in sorted({*recorded, *now}):
        if recorded.get(name) != now.get(name):
            yield Drift(item=f"{what} {name}", recorded=recorded.get(name), now=now.get(name))


def _os_name(system: str) -> str:
    if system == "Darwin":
        import platform

        return f"macOS {platform.mac_ver()[0]}"
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            found = re.search(r'^PRETTY_NAME="?([^"\n]*)', Path(path).read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            continue
        if found:
            return found[1]
    return system


def _packages(places: list[str]) -> Iterator[tuple[str, str]]:
    """(normalised name, version) of what these folders hold; of two with one name the first on the path counts."""
    seen: set[str] = set()
    for place in places:
        try:
            entries = sorted(os.listdir(place or "."))
        except OSError:
            continue  # a zip file or a folder that is gone
        for entry in entries:
            found = _DIST.fullmatch(entry)
            if not found:
                continue
            name = re.sub(r"[-_.]+", "-", found["name"]).lower()
            if name not in seen:
                seen.add(name)
                yield name, found["version"]


def joined(first: Environment, later: Environment) -> Environment:
    """Return the environment of a run that was resumed in another one: both values where they differ."""

    def both(a: str | None, b: str | None) -> str:
        same = a == b or (a or "").endswith(f"after a resume {b or 'absent'}")
        return (a or "") if same else f"{a or 'absent'}, after a resume {b or 'absent'}"

    names = sorted({*first.packages, *later.packages})
    return Environment(
        python=both(first.python, later.python),
        os=both(first.os, later.os),
        kernel=both(first.kernel, later.kernel),
        machine=both(first.machine, later.machine),
        packages={name: both(first.packages.get(name), later.packages.get(name)) for name in names},
    )
