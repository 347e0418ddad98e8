"""What a native library's own bytes say: platform, page alignment, LiteRT symbols. Reads ELF and Mach-O, loads nothing.

Used when a runtime bundle is added: a library of the wrong platform must be refused here, not by a phone's linker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
_MACHO_CPUS = {0x0100000C: "arm64", 0x01000007: "x86_64"}
_MACHO_64 = 0xFEEDFACF
_MACHO_FAT = 0xCAFEBABE
_LC_BUILD_VERSION = 0x32
_LC_SEGMENT_64 = 0x19
_MACOS = 1


class NotALibrary(ValueError):
    """These bytes are no shared library this farm can use; the message says what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLibrary:
    """What the headers say.

    platforms: as in `farm.runtimes.host_platform`; a universal Mach-O file has two. page_size: the largest alignment of
    an ELF segment in bytes, 0 for Mach-O.
    """

    platforms: tuple[str, ...]
    page_size: int


def inspect_library(data: bytes) -> NativeLibrary:
    """Read the headers of a shared library. Raises NotALibrary."""
    if data.startswith(b"version https://git-lfs"):
        raise NotALibrary("a Git LFS pointer, not the library itself; run `git lfs pull` where it came from")
    try:
        if data.startswith(b"\x7fELF"):
            return _elf(data)
        if data[:4] == struct.pack(">I", _MACHO_FAT):
            count = struct.unpack_from(">I", data, 4)[0]
            slices = [struct.unpack_from(">IIIII", data, 8 + 20 * i) for i in range(min(count, 16))]
            return NativeLibrary(
                platforms=tuple(_macho(data[off : off + size]) for _, _, off, size, _ in slices), page_size=0
            )
        return NativeLibrary(platforms=(_macho(data),), page_size=0)
    except struct.error as e:
        raise NotALibrary("cut short: its headers point outside the file") from e


def has_symbol(data: bytes, name: str) -> bool:
    """Tell whether the string table names `name`. A string search, since stripped libraries keep the dynamic table."""
    return b"\0" + name.encode() + b"\0" in data or b"\0_" + name.encode() + b"\0" in data


def _elf(data: bytes) -> NativeLibrary:
    if data[4:6] != b"\x02\x01":
        raise NotALibrary("not a 64-bit little-endian ELF library")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != 3 or machine not in _ELF_MACHINES:
        raise NotALibrary(f"an ELF file of type {kind} for machine {machine}, not a library for x86_64 or aarch64")
    table = struct.unpack_from("<Q", data, 32)[0]
    entry, count = struct.unpack_from("<HH", data, 54)
    page_size, notes, end = 0, b"", 0
    for i in range(count):
        type_, _, offset, _, _, size, _, align = struct.unpack_from("<IIQQQQQQ", data, table + i * entry)
        if type_ == 1:
            page_size, end = max(page_size, align), max(end, offset + size)
        elif type_ == 4:
            notes += data[offset : offset + size]
    if end > len(data):
        raise NotALibrary(f"cut short: {len(data)} of at least {end} bytes")
    bionic = b"Android\0" in notes or (b"\0libc.so\0" in data and b"\0libc.so.6\0" not in data)
    arch = _ELF_MACHINES[machine]
    platform = f"android-{'arm64' if arch == 'aarch64' else arch}" if bionic else f"linux-{arch}"
    return NativeLibrary(platforms=(platform,), page_size=page_size)


def _macho(data: bytes) -> str:
    if data[:4] != struct.pack("<I", _MACHO_64):
        raise NotALibrary("neither a 64-bit ELF nor a 64-bit Mach-O library")
    _, cpu, _, kind, count, _ = struct.unpack_from("<IIIIII", data)
    if cpu not in _MACHO_CPUS:
        raise NotALibrary(f"a Mach-O file for CPU {cpu:#x}, not for ARM64 or x86_64")
    if kind != 6:
        raise NotALibrary(f"a Mach-O file of type {kind}, not a dynamic library")
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        if command == _LC_BUILD_VERSION and struct.unpack_from("<I", data, at + 8)[0] != _MACOS:
            raise NotALibrary("a Mach-O library for iOS or another Apple system, not for macOS")
        if command == _LC_SEGMENT_64:
            offset, length = struct.unpack_from("<QQ", data, at + 40)
            if offset + length > len(data):
                raise NotALibrary(f"cut short: {len(data)} of at least {offset + length} bytes")
        if size < 8:
            break
        at += size
    return f"macos-{_MACHO_CPUS[cpu]}"
