"""Runtimes side by side: the installed wheel, and bundles added from wheels, .aar files, zips and folders."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from farm import runtimes
from farm.errors import BuildError, InvalidInput
from farm.native_library import NotALibrary, inspect_library
from farm.runtimes import add_runtime, find_runtime, host_platform, installed_runtime, list_runtimes

NEW = b"\0LiteRtCreateCompiledModel\0LiteRtCreateModelFromFd\0"
OLD = NEW + b"LiteRtCreateGpuOptions\0"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FARM_DATA_DIR", str(tmp_path / "data"))


def elf(machine: int = 183, *, android: bool = True, symbols: bytes = NEW, page: int = 0x4000, kind: int = 3) -> bytes:
    """The least of a 64-bit ELF library: header, one PT_LOAD, one PT_NOTE, then the string table's bytes."""
    note = struct.pack("<III", 8, 4, 1) + (b"Android\0" if android else b"GNU\0\0\0\0\0") + struct.pack("<I", 26)
    body = note + symbols
    start = 64 + 2 * 56
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, start + len(body), start + len(body), page)
    notes = struct.pack("<IIQQQQQQ", 4, 4, start, start, start, len(note), len(note), 4)
    return header + load + notes + body


def macho(cpu: int = 0x0100000C, platform: int = 1, symbols: bytes = b"\0_LiteRtCreateCompiledModel\0") -> bytes:
    build = struct.pack("<IIIIII", 0x32, 24, platform, 0, 0, 0)
    size = 32 + 72 + len(build) + len(symbols)
    segment = struct.pack("<II16sQQQQIIII", 0x19, 72, b"__TEXT", 0, size, 0, size, 5, 5, 0, 0)
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, cpu, 0, 6, 2, 72 + len(build), 0, 0)
    return header + segment + build + symbols


def archive(path: Path, **files: bytes) -> Path:
    """A zip whose member names are the keyword names with __ for /."""
    with zipfile.ZipFile(path, "w") as z:
        for name, data in files.items():
            z.writestr(name, data)
    return path


def aar(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as z:
        for name, data in files.items():
            z.writestr(name, data)
    return path


def folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


# ---- the installed wheel ---------------------------------------------------------------------------------------------


def test_the_installed_wheel_is_a_runtime_found_without_importing_it() -> None:
    code = (
        "import sys; from farm.runtimes import installed_runtime; r = installed_runtime(); "
        "print(r.name, r.platform, r.library_path, 'ai_edge_litert' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    name, platform, library, imported = done.stdout.split()
    assert name.startswith("litert-")
    assert platform == host_platform()
    assert Path(library).is_file()
    assert imported == "False"


def test_the_installed_wheel_is_the_default_and_has_an_accelerator() -> None:
    found = find_runtime(None, host_platform())
    assert found == installed_runtime()
    assert found.accelerators
    assert set(found.files) == {found.library, *(f"libLiteRt{a}Accelerator.so" for a in found.accelerators)} or (
        sys.platform == "darwin"
    )


def test_files_are_hashed_once_until_they_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hashed: list[str] = []
    real = runtimes._sha256
    monkeypatch.setattr(runtimes, "_sha256", lambda read: hashed.append("x") or real(read))  # counts, then does it
    source = folder(tmp_path / "litert-2.3.0", {"libLiteRt.so": elf()})
    add_runtime(source)
    first = len(hashed)
    assert first >= 1
    list_runtimes()
    list_runtimes()
    only_wheel = len(hashed)
    list_runtimes()
    assert len(hashed) == only_wheel
    library = next((tmp_path / "data").rglob("libLiteRt.so"))
    os.utime(library, (1, 1))
    list_runtimes()
    assert len(hashed) == only_wheel + 1


# ---- adding ----------------------------------------------------------------------------------------------------------


def test_an_aar_gives_one_runtime_per_platform(tmp_path: Path) -> None:
    source = aar(
        tmp_path / "litert-2.3.0.aar",
        {
            "jni/arm64-v8a/libLiteRt.so": elf(183),
            "jni/arm64-v8a/libLiteRtClGlAccelerator.so": elf(183, symbols=b""),
            "jni/x86_64/libLiteRt.so": elf(62),
            "jni/armeabi-v7a/libLiteRt.so": b"\x7fELF\x01\x01" + bytes(100),
            "jni/arm64-v8a/liblitert_jni.so": elf(183),
            "AndroidManifest.xml": b"<x/>",
        },
    )
    added = add_runtime(source)
    assert [(r.name, r.platform, r.accelerators) for r in added] == [
        ("litert-2.3.0", "android-arm64", ("ClGl",)),
        ("litert-2.3.0", "android-x86_64", ()),
    ]
    found = find_runtime("2.3", "android-arm64")
    assert sorted(found.files) == ["libLiteRt.so", "libLiteRtClGlAccelerator.so"]
    assert (found.folder / found.library).read_bytes() == elf(183)
    assert found.origin == "litert-2.3.0.aar"


def test_a_second_aar_of_the_version_adds_its_accelerator(tmp_path: Path) -> None:
    add_runtime(aar(tmp_path / "litert-2.3.0.aar", {"jni/arm64-v8a/libLiteRt.so": elf()}))
    gpu = aar(tmp_path / "litert-gpu-2.3.0.aar", {"jni/arm64-v8a/libLiteRtClGlAccelerator.so": elf(symbols=b"")})
    (both,) = add_runtime(gpu)
    assert both.accelerators == ("ClGl",)
    assert sorted(both.files) == ["libLiteRt.so", "libLiteRtClGlAccelerator.so"]
    assert both.origin == "litert-2.3.0.aar + litert-gpu-2.3.0.aar"


def test_an_accelerator_without_its_library_is_refused(tmp_path: Path) -> None:
    gpu = aar(tmp_path / "litert-gpu-2.3.0.aar", {"jni/arm64-v8a/libLiteRtClGlAccelerator.so": elf(symbols=b"")})
    with pytest.raises(InvalidInput, match=r"no libLiteRt; add that of version 2\.3\.0 first"):
        add_runtime(gpu)
    assert not (tmp_path / "data").exists()


def test_a_folder_and_a_mac_library_can_be_added(tmp_path: Path) -> None:
    source = folder(
        tmp_path / "mac-2.3.0", {"a/libLiteRt.dylib": macho(), "a/libLiteRtMetalAccelerator.dylib": macho()}
    )
    (added,) = add_runtime(source)
    assert (added.platform, added.library, added.accelerators) == ("macos-arm64", "libLiteRt.dylib", ("Metal",))


def test_the_installed_wheels_own_files_stand_beside_it_under_another_version(tmp_path: Path) -> None:
    installed = installed_runtime()
    assert installed is not None
    source = tmp_path / "copy"
    source.mkdir()
    for name in installed.files:
        (source / name).symlink_to(installed.folder / name)
    (added,) = add_runtime(source, "2.2.9")
    assert added.platform == host_platform()
    assert added.files == installed.files
    assert find_runtime("2.2", host_platform()) == added
    assert find_runtime(None, host_platform()) == installed
    assert [r.version for r in list_runtimes()] == [installed.version, "2.2.9"]


def test_a_wheel_takes_its_version_from_its_metadata(tmp_path: Path) -> None:
    source = archive(
        tmp_path / "renamed-9.9.9.whl",
        **{
            "ai_edge_litert/libLiteRt.so": elf(62, android=False, symbols=NEW + b"\0libc.so.6\0"),
            "ai_edge_litert-2.2.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: ai-edge-litert\nVersion: 2.2.0\n",
        },
    )
    (added,) = add_runtime(source)
    assert (added.version, added.platform) == ("2.2.0", "linux-x86_64")


def refusals(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    good = {"libLiteRt.so": elf()}
    (tmp_path / "text-2.3.0.whl").write_text("no zip")
    return {
        "not a zip": (tmp_path / "text-2.3.0.whl", "not a wheel"),
        "missing": (tmp_path / "absent-2.3.0.aar", "cannot be read"),
        "no version": (folder(tmp_path / "plain", good), "states no version"),
        "too old by name": (folder(tmp_path / "litert-2.1.2", good), "older than 2.1.3"),
        "too old by symbols": (folder(tmp_path / "old-2.3.0", {"libLiteRt.so": elf(symbols=OLD)}), "older than LiteRT"),
        "other library": (folder(tmp_path / "tf-2.3.0", {"libLiteRt.so": elf(symbols=b"")}), "not a LiteRT 2"),
        "lfs": (
            folder(tmp_path / "lfs-2.3.0", {"libLiteRt.so": b"version https://git-lfs.github.com/spec/v1\n"}),
            "Git LFS pointer",
        ),
        "text": (folder(tmp_path / "txt-2.3.0", {"libLiteRt.so": b"hello there"}), "neither a 64-bit ELF"),
        "cut short": (folder(tmp_path / "cut-2.3.0", {"libLiteRt.so": elf()[:-5]}), "cut short"),
        "headers cut": (folder(tmp_path / "hdr-2.3.0", {"libLiteRt.so": elf()[:70]}), "cut short"),
        "nothing in it": (folder(tmp_path / "none-2.3.0", {"a.txt": b""}), "no LiteRT library"),
        "executable": (folder(tmp_path / "exe-2.3.0", {"libLiteRt.so": elf(kind=2)}), "no LiteRT library"),
        "zip slip": (aar(tmp_path / "slip-2.3.0.aar", {"../../libLiteRt.so": elf()}), "leaves it"),
        "zip absolute": (aar(tmp_path / "abs-2.3.0.aar", {"/etc/libLiteRt.so": elf()}), "leaves it"),
        "two of one": (
            folder(tmp_path / "two-2.3.0", {"a/libLiteRt.so": elf(), "b/libLiteRt.so": elf(page=0x1000)}),
            "two different libLiteRt.so",
        ),
    }


@pytest.mark.parametrize(
    "kind",
    ["not a zip", "missing", "no version", "too old by name", "too old by symbols", "other library", "lfs", "text",
     "cut short", "headers cut", "nothing in it", "executable", "zip slip", "zip absolute", "two of one"],
)  # fmt: skip
def test_a_bad_bundle_is_refused_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    source, words = refusals(tmp_path)[kind]
    with pytest.raises(InvalidInput, match=words):
        add_runtime(source)
    assert not (tmp_path / "data").exists()


def test_a_version_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a version"):
        add_runtime(folder(tmp_path / "x", {"libLiteRt.so": elf()}), "../../../2.3.0")


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_a_selector_is_a_name_a_version_or_a_prefix_by_components(tmp_path: Path) -> None:
    for version in ("2.1.3", "2.2.0", "2.2.10", "2.2.9"):
        add_runtime(folder(tmp_path / version, {"libLiteRt.so": elf()}))
    versions = {s: find_runtime(s, "android-arm64").version for s in ("2.2", "2", "2.2.0", "litert-2.1.3", "2.2.1")[:4]}
    assert versions == {"2.2": "2.2.10", "2": "2.2.10", "2.2.0": "2.2.0", "litert-2.1.3": "2.1.3"}
    assert find_runtime(None, "android-arm64").version == "2.2.10"
    with pytest.raises(InvalidInput):
        find_runtime("2.2.1", "android-arm64")  # not a prefix of 2.2.10


def test_a_runtime_that_is_not_there_is_refused_with_the_list_of_what_is(tmp_path: Path) -> None:
    add_runtime(folder(tmp_path / "2.2.0", {"libLiteRt.so": elf()}))
    with pytest.raises(InvalidInput) as caught:
        find_runtime("9.9", "macos-arm64")
    text = str(caught.value)
    assert "no LiteRT runtime '9.9' for macos-arm64" in text
    assert "litert-2.2.0 for android-arm64" in text
    assert "farm runtime add" in text


def test_a_changed_file_is_damage_and_the_runtime_is_not_used(tmp_path: Path) -> None:
    (added,) = add_runtime(folder(tmp_path / "2.2.0", {"libLiteRt.so": elf()}))
    (added.folder / "libLiteRt.so").write_bytes(elf(page=0x1000))
    listed = next(r for r in list_runtimes() if r.version == "2.2.0")
    assert "changed since it was added" in listed.damage
    with pytest.raises(BuildError, match="add it again"):
        find_runtime("2.2.0", "android-arm64")


def test_a_missing_file_and_a_broken_manifest_are_damage_too(tmp_path: Path) -> None:
    (added,) = add_runtime(folder(tmp_path / "2.2.0", {"libLiteRt.so": elf()}))
    (added.folder / "libLiteRt.so").unlink()
    assert "cannot be read" in next(r for r in list_runtimes() if r.version == "2.2.0").damage
    (added.folder / "manifest.json").write_text('{"files": {"../x": ["", 0]}}')
    assert "manifest.json" in next(r for r in list_runtimes() if r.version == "2.2.0").damage


def test_a_folder_without_a_manifest_is_not_a_runtime(tmp_path: Path) -> None:
    (added,) = add_runtime(folder(tmp_path / "2.2.0", {"libLiteRt.so": elf()}))
    (added.folder / "manifest.json").unlink()
    assert [r.version for r in list_runtimes() if r.version == "2.2.0"] == []


# ---- native libraries ------------------------------------------------------------------------------------------------


def test_platforms_are_read_from_the_headers() -> None:
    assert inspect_library(elf(183)).platforms == ("android-arm64",)
    assert inspect_library(elf(62, android=False)).platforms == ("linux-x86_64",)
    assert inspect_library(elf(183, android=False, symbols=b"\0libc.so\0")).platforms == ("android-arm64",)
    assert inspect_library(elf(183, android=False, symbols=b"\0libc.so.6\0")).platforms == ("linux-aarch64",)
    assert inspect_library(elf(page=0x1000)).page_size == 0x1000
    assert inspect_library(macho(0x01000007)).platforms == ("macos-x86_64",)


def test_a_universal_mac_library_serves_two_platforms() -> None:
    arm, intel = macho(), macho(0x01000007)
    start = 8 + 2 * 20
    table = struct.pack(">II", 0xCAFEBABE, 2)
    table += struct.pack(">IIIII", 0x0100000C, 0, start, len(arm), 0)
    table += struct.pack(">IIIII", 0x01000007, 0, start + len(arm), len(intel), 0)
    assert inspect_library(table + arm + intel).platforms == ("macos-arm64", "macos-x86_64")


def test_an_ios_library_is_not_for_macos() -> None:
    with pytest.raises(NotALibrary, match="iOS"):
        inspect_library(macho(platform=2))


@pytest.mark.parametrize("size", [0, 3, 4, 20, 40, 63, 64, 100, 140])
def test_a_header_cut_anywhere_is_refused_not_a_crash(size: int) -> None:
    for whole in (elf(), macho()):
        with pytest.raises(NotALibrary):
            inspect_library(whole[:size])
