"""LiteRT runtimes (libLiteRt and its accelerators) per platform and version, standing side by side.

They come from the installed wheel or from bundles added with `farm runtime add`; plan names them, the session pushes
their files. Nothing here loads a library or imports ai_edge_litert.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform as _platform
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from farm.caches import cache_root
from farm.codec import from_json, to_json, write_whole
from farm.errors import BuildError, InvalidInput, Problem
from farm.native_library import NotALibrary, has_symbol, inspect_library
from farm.paths import check_file

MINIMUM_VERSION = "2.1.3"
"""The agent speaks to this version and newer: before, GPU options were another ABI."""

_LIBRARY = re.compile(r"libLiteRt(|[A-Z][A-Za-z]*Accelerator|Dispatch_[A-Za-z0-9]+)\.(so|dylib)")
_VERSION = re.compile(r"(?<![0-9.])([0-9]+\.[0-9]+\.[0-9]+)(?![0-9])")
_WHEELS = ("ai-edge-litert", "ai-edge-litert-nightly")
_LARGEST = 512 << 20
"""Bytes; no library is near it, and a zip bomb must not fill the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One runtime for one platform.

    name: "litert-2.3.0". library: file name of libLiteRt in `folder`. files: name → (sha256, size in bytes) of every
    file a device needs. accelerators: short names from the files, e.g. ("WebGpu",); empty means CPU only.
    origin: where it came from, for reports. damage: why it must not be used, or "".
    """

    name: str
    version: str
    platform: str
    folder: Path
    library: str
    accelerators: tuple[str, ...]
    files: dict[str, tuple[str, int]]
    origin: str
    damage: str = ""

    @property
    def library_path(self) -> Path:
        return self.folder / self.library


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """manifest.json of an added bundle, written last: a folder without one is not a runtime."""

    version: str
    platform: str
    files: dict[str, tuple[str, int]]
    origin: str
    warnings: tuple[str, ...] = field(default_factory=tuple)


def host_platform() -> str:
    """Return this machine's platform, e.g. "linux-x86_64", "linux-aarch64", "macos-arm64"."""
    system = {"linux": "linux", "darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    machine = _platform.machine().lower()
    if machine == "amd64":
        machine = "x86_64"
    if system == "linux" and machine == "arm64":
        machine = "aarch64"
    return f"{system}-{machine}"


def runtime_store() -> Path:
    """Return where added runtimes are kept; FARM_DATA_DIR overrides the user's data folder."""
    given = os.environ.get("FARM_DATA_DIR")
    if given:
        return Path(given) / "runtimes"
    import platformdirs

    return platformdirs.user_data_path("litert-farm") / "runtimes"


def installed_runtime() -> Runtime | None:
    """Return the runtime inside the installed ai-edge-litert wheel, or None. The wheel is found, not imported."""
    spec = importlib.util.find_spec("ai_edge_litert")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    named = _wheel_of(folder)
    if named is None:
        return None
    wheel, version = named
    names = sorted(p.name for p in folder.iterdir() if _LIBRARY.fullmatch(p.name))
    library = next((n for n in names if n.startswith("libLiteRt.")), None)
    if library is None:
        return None
    return Runtime(
        name=f"litert-{version}",
        version=version,
        platform=host_platform(),
        folder=folder,
        library=library,
        accelerators=_accelerators(names),
        files=_hashes(folder, names),
        origin=f"wheel {wheel} {version}",
    )


def _wheel_of(folder: Path) -> tuple[str, str] | None:
    """Name and version of the wheel that put the package at `folder`."""
    for wheel in _WHEELS:
        # pip keeps them in this folder's name; reading the METADATA in it would load the standard library's e-mail
        # parser, which every sweep would pay for.
        stem = wheel.replace("-", "_")
        found = [p.name for p in folder.parent.glob(f"{stem}-*.dist-info")]
        if len(found) == 1:
            return wheel, found[0].removeprefix(f"{stem}-").removesuffix(".dist-info")
    import importlib.metadata

    for wheel in _WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return wheel, importlib.metadata.version(wheel)
    return None


def list_runtimes(store: Path | None = None) -> list[Runtime]:
    """Return every runtime of this machine, newest first; at one version the installed wheel before added ones.

    Damaged bundles are listed with their `damage`, so that `farm runtime list` can show them.
    """
    found = []
    installed = installed_runtime()
    if installed:
        found.append(installed)
    found.extend(_added(m) for m in sorted((store or runtime_store()).glob("litert-*/*/manifest.json")))
    return sorted(found, key=lambda r: _key(r.version), reverse=True)


def find_runtime(selector: str | None, platform: str, store: Path | None = None) -> Runtime:
    """Return the runtime for `platform` that `selector` names: "litert-2.3.0", "2.3.0", a version prefix like "2.3"
    (the newest of them), or None for the installed wheel, else the newest there is.

    Raises InvalidInput naming what is there, and BuildError when the one chosen is damaged.
    """
    everything = list_runtimes(store)
    here = [r for r in everything if r.platform == platform]
    if selector is None:
        chosen = [r for r in here if r.origin.startswith("wheel ") and r.folder == _wheel_folder()] or here
    else:
        wanted = selector.removeprefix("litert-").split(".")
        chosen = [r for r in here if r.name == selector or r.version.split(".")[: len(wanted)] == wanted]
    if not chosen:
        there = ", ".join(f"{r.name} for {r.platform}" for r in everything) or "none at all"
        which = f"LiteRT runtime '{selector}'" if selector else "LiteRT runtime"
        raise InvalidInput(
            Problem(
                message=f"no {which} for {platform}; there is {there}",
                cure=("" if selector or platform != host_platform() else "`pip install ai-edge-litert`, or ")
                + "add one with `farm runtime add FILE`: a wheel, an .aar, a zip or a folder",
            )
        )
    if chosen[0].damage:
        raise BuildError(f"the runtime {chosen[0].name} for {platform} is damaged: {chosen[0].damage}; add it again")
    return chosen[0]


def add_runtime(source: Path, version: str | None = None, store: Path | None = None) -> list[Runtime]:
    """Take LiteRT's libraries out of a wheel, .aar, zip or folder and keep them, one runtime per platform found.

    Several sources of one version complete each other (litert.aar and litert-gpu.aar). Raises InvalidInput for what
    is no LiteRT runtime of MINIMUM_VERSION or newer, before anything is written.
    """
    store = store or runtime_store()
    check_file(source)
    if not os.path.exists(source):
        raise _bad(source, "there is no such file or folder, or it cannot be read", cure="check the path")
    if os.path.isfile(source) and os.access(source, os.R_OK) and not zipfile.is_zipfile(source):
        raise _bad(source, "not a wheel, .aar or zip file", cure="give one of these, or a folder that holds libLiteRt")
    version = version or _version_of(source)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){2}[A-Za-z0-9.]*", version):
        raise _bad(source, f"'{version}' is not a version like 2.3.0")
    if _key(version) < _key(MINIMUM_VERSION):
        raise _bad(source, f"LiteRT {version} is older than {MINIMUM_VERSION}, the first version the agent can drive")
    bundles: dict[str, dict[str, bytes]] = {}
    for name, data in _libraries(source):
        for target in _platforms(source, name, data):
            bundle = bundles.setdefault(target, {})
            base = name.rsplit("/", 1)[-1]
            if bundle.setdefault(base, data) != data:
                raise _bad(source, f"it holds two different {base} for {target}; give a folder with one of them")
    if not bundles:
        raise _bad(source, "it holds no LiteRT library (libLiteRt.so, libLiteRt.dylib or a LiteRT accelerator)")
    folders = {target: store / f"litert-{version}" / target for target in bundles}
    for target, bundle in bundles.items():
        known = _read_manifest(folders[target] / "manifest.json")
        if not any(n.startswith("libLiteRt.") for n in (*bundle, *(known.files if known else ()))):
            raise _bad(
                source, f"it holds accelerators for {target} but no libLiteRt; add that of version {version} first"
            )
    return [_keep(folders[target], target, version, bundle, source) for target, bundle in sorted(bundles.items())]


def _keep(folder: Path, target: str, version: str, bundle: dict[str, bytes], source: Path) -> Runtime:
    """Write one bundle, manifest last. Raises BuildError."""
    manifest = folder / "manifest.json"
    known = _read_manifest(manifest)
    files = dict(known.files) if known else {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest.unlink(missing_ok=True)
        for name, data in bundle.items():
            write_whole(folder / name, data)
            files[name] = (hashlib.sha256(data).hexdigest(), len(data))
        origin = source.name if known is None or source.name in known.origin else f"{known.origin} + {source.name}"
        write_whole(
            manifest, to_json(_Manifest(version=version, platform=target, files=files, origin=origin), indent=1)
        )
    except OSError as e:
        raise BuildError(f"the runtime cannot be stored in {folder}: {e}") from e
    return _added(manifest)


def _libraries(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (path inside the source, bytes) of every file with a LiteRT library's name."""
    readers: Iterator[tuple[str, int, Callable[[], bytes]]]
    try:
        if source.is_dir():
            readers = (
                (str(p.relative_to(source)), p.stat().st_size, p.read_bytes)
                for p in sorted(source.rglob("libLiteRt*"))
                if p.is_file()
            )
            yield from _pick(source, readers)
        else:
            with zipfile.ZipFile(source) as z:
                yield from _pick(source, ((i.filename, i.file_size, _reader(z, i)) for i in z.infolist()))
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as e:
        raise _bad(source, f"not a wheel, .aar or zip file: {e}") from e
    except OSError as e:
        raise _bad(source, f"cannot be read: {e.strerror or e}") from e


def _reader(z: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], bytes]:
    return lambda: z.read(info)


def _pick(source: Path, entries: Iterator[tuple[str, int, Callable[[], bytes]]]) -> Iterator[tuple[str, bytes]]:
    for name, size, read in entries:
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "":
            raise _bad(source, f"it holds a path that leaves it: {name!r}")
        if not _LIBRARY.fullmatch(parts[-1]):
            continue
        if size > _LARGEST:
            raise _bad(source, f"{name} claims {size} bytes, more than any LiteRT library has")
        yield name, read()


def _platforms(source: Path, name: str, data: bytes) -> tuple[str, ...]:
    """Return the platforms of one library, () for those we do not serve. Raises InvalidInput."""
    try:
        library = inspect_library(data)
    except NotALibrary as e:
        if data[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe") and "cut short" not in str(e):
            return ()  # a whole library for another kind of device (32-bit ARM, iOS) beside ours is no mistake
        raise _bad(source, f"{name} is {e}") from e
    if name.rsplit("/", 1)[-1].startswith("libLiteRt."):
        if not has_symbol(data, "LiteRtCreateCompiledModel"):
            raise _bad(source, f"{name} does not export LiteRtCreateCompiledModel: not a LiteRT 2 runtime")
        if has_symbol(data, "LiteRtCreateGpuOptions") or has_symbol(data, "LiteRtCreateCpuOptions"):
            raise _bad(source, f"{name} is older than LiteRT {MINIMUM_VERSION}, the first version the agent can drive")
    return library.platforms


def _version_of(source: Path) -> str:
    """From METADATA of a wheel, else from the file or folder name: libLiteRt itself states none."""
    if os.path.isfile(source) and os.access(source, os.R_OK) and zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as z:
            for info in z.infolist():
                if re.fullmatch(r"ai_edge_litert[^/]*\.dist-info/METADATA", info.filename) and info.file_size < 1 << 20:
                    found = re.search(rb"^Version: (\S+)", z.read(info), re.MULTILINE)
                    if found:
                        return found[1].decode("ascii", "replace")
    named = _VERSION.search(source.name)
    if named is None:
        raise _bad(source, "its name states no version", cure="give it: farm runtime add FILE --version 2.3.0")
    return named[1]


def _added(manifest: Path) -> Runtime:
    folder = manifest.parent
    known = _read_manifest(manifest)
    version = folder.parent.name.removeprefix("litert-")
    if known is None:
        return Runtime(
            name=folder.parent.name, version=version, platform=folder.name, folder=folder, library="",
            accelerators=(), files={}, origin=str(folder), damage="its manifest.json cannot be read",
        )  # fmt: skip
    names = sorted(known.files)
    damage = ""
    try:
        wrong = [n for n, facts in _hashes(folder, names).items() if facts != tuple(known.files[n])]
        if wrong:
            damage = f"{', '.join(wrong)} in {folder} changed since it was added"
    except OSError as e:
        damage = f"{e.filename} cannot be read: {e.strerror}"
    return Runtime(
        name=f"litert-{known.version}",
        version=known.version,
        platform=known.platform,
        folder=folder,
        library=next((n for n in names if n.startswith("libLiteRt.")), ""),
        accelerators=_accelerators(names),
        files=known.files,
        origin=known.origin,
        damage=damage,
    )


def _read_manifest(path: Path) -> _Manifest | None:
    try:
        manifest = from_json(path.read_bytes(), _Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return manifest if all(_LIBRARY.fullmatch(n) for n in manifest.files) else None


def _hashes(folder: Path, names: list[str]) -> dict[str, tuple[str, int]]:
    """sha256 and size of files, remembered by path, size and time: a sweep must not hash 30 MB each time."""
    cache = cache_root() / "runtime_hashes.json"
    try:
        known = from_json(cache.read_bytes(), dict[str, tuple[int, int, str]])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        known = {}
    facts: dict[str, tuple[str, int]] = {}
    fresh = False
    for name in names:
        path = folder / name
        stat = path.stat()
        size, mtime, sha256 = known.get(str(path), (-1, -1, ""))
        if (size, mtime) != (stat.st_size, stat.st_mtime_ns):
            with path.open("rb") as f:
                sha256 = _sha256(f.read)
            known[str(path)] = (stat.st_size, stat.st_mtime_ns, sha256)
            fresh = True
        facts[name] = (sha256, stat.st_size)
    if fresh:
        # A read-only cache only costs time.
        with contextlib.suppress(OSError):
            write_whole(cache, to_json(known), durable=False)
    return facts


def _sha256(read: Callable[[int], bytes]) -> str:
    h = hashlib.sha256()
    while block := read(1 << 20):
        h.update(block)
    return h.hexdigest()


def _accelerators(names: list[str]) -> tuple[str, ...]:
    found = (re.fullmatch(r"libLiteRt([A-Za-z]+)Accelerator\.(?:so|dylib)", n) for n in names)
    return tuple(m[1] for m in found if m)


def _wheel_folder() -> Path | None:
    spec = importlib.util.find_spec("ai_edge_litert")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _key(version: str) -> tuple[tuple[int, ...], bool]:
    """Order of versions: numbers first; a pre-release or nightly suffix sorts before its release."""
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    release = numbers[0] if numbers else "0"
    return tuple(int(n) for n in release.split(".")), release == version


def _bad(source: Path, message: str, cure: str | None = None) -> InvalidInput:
    return InvalidInput(Problem(message=message, file=str(source), cure=cure))
