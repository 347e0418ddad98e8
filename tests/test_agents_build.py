"""Building the agent: cached by content, whole or not at all, for every platform a compiler can be found for."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farm import agents
from farm.agents import TARGETS, Compiler, agent_binary, agent_digest, agent_version, build_agent, find_compiler
from farm.errors import BuildError
from farm.native_library import NotALibrary, inspect_library
from farm.resources import resource_path
from farm.runtimes import host_platform

HOST = host_platform()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    monkeypatch.delenv("ANDROID_NDK_ROOT", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def zig() -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no ziglang (the extra litert-farm[zig])")


def compiler_script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "cc-test"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_host_agent_is_built_and_says_its_version() -> None:
    path = agent_binary(HOST)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == f"protocol=1 agent={agent_version()} platform={HOST}\n"
    assert re.fullmatch(r"[0-9a-f]{64}", agent_digest(path))


def test_a_cached_agent_starts_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    first = agent_binary(HOST)
    stamp = first.stat().st_mtime_ns

    def no_process(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"a process was started: {args}")

    monkeypatch.setattr(subprocess, "run", no_process)  # any use of a compiler would raise
    assert agent_binary(HOST) == first
    assert first.stat().st_mtime_ns == stamp


def test_another_compiler_gets_another_cache_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = agent_binary(HOST)
    monkeypatch.setenv("CC", compiler_script(tmp_path, 'exec cc "$@"'))
    second = agent_binary(HOST)
    assert second != first
    assert second.exists()


def test_two_builds_at_once_both_get_a_whole_agent() -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(agent_binary, [HOST, HOST]))
    assert paths[0] == paths[1]
    subprocess.run([paths[0], "--version"], capture_output=True, timeout=30, check=True)
    assert [p.name for p in paths[0].parent.iterdir()] == ["litert_agent"]


def test_the_compilers_words_and_a_cure_are_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler_script(tmp_path, "echo 'agent.c:1: no luck' >&2; exit 1"))
    with pytest.raises(BuildError, match=r"(?s)agent.c:1: no luck.*litert-farm\[zig\]"):
        agent_binary(HOST)
    assert not list((tmp_path / "cache").rglob("litert_agent"))


def test_a_compiler_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "BUILD_TIMEOUT_S", 0.2)
    monkeypatch.setenv("CC", compiler_script(tmp_path, "exec sleep 60"))
    with pytest.raises(BuildError, match="did not end within"):
        agent_binary(HOST)


def test_no_compiler_at_all_is_an_error_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as if ziglang were not installed
    with pytest.raises(BuildError, match=r"no C compiler.*litert-farm\[zig\]"):
        agent_binary(HOST)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="cannot be built in"):
        agent_binary(HOST)


def test_a_platform_without_an_agent_is_refused_with_the_list() -> None:
    with pytest.raises(BuildError, match=r"no agent for platform 'windows-x86_64'.*android-arm64"):
        agent_binary("windows-x86_64")


def test_a_shipped_agent_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "agents" / "bin" / "android-arm64" / "litert_agent"
    shipped.parent.mkdir(parents=True)
    shipped.write_bytes(b"x")
    monkeypatch.setattr(agents, "resource_path", lambda name: tmp_path / name)  # a wheel that ships one
    assert agent_binary("android-arm64") == shipped


def test_an_ndk_without_the_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="holds no aarch64-linux-android26-clang"):
        find_compiler("android-arm64")


def test_an_ndk_is_preferred_for_android(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clang = tmp_path / "toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android26-clang"
    clang.parent.mkdir(parents=True)
    clang.write_text("")
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    assert find_compiler("android-arm64").argv == (str(clang),)


def test_the_source_compiles_without_a_warning(tmp_path: Path) -> None:
    for name in ("gcc", "clang", "cc"):
        done = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, check=False, timeout=10)
        if done.returncode:
            continue
        subprocess.run(
            [name, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", str(resource_path("agents") / "litert_agent.c"),
             "-o", str(tmp_path / "a"), "-ldl"],
            check=True, timeout=60,
        )  # fmt: skip
    assert (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("zig")
@pytest.mark.parametrize("platform", sorted(TARGETS))
def test_zig_builds_every_platform(platform: str, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("ziglang")
    assert spec is not None
    kind = "zig-bionic" if platform.startswith("android-") else "zig"
    argv = (sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[platform])
    target = tmp_path / platform / "litert_agent"
    build_agent(platform, Compiler(argv=argv, identity="zig", kind=kind), target)
    data = target.read_bytes()
    assert os.access(target, os.X_OK)
    if platform.startswith("macos-"):
        with pytest.raises(NotALibrary, match="type 2"):  # an executable for a CPU we know
            inspect_library(data)
    elif platform.startswith("android-"):
        library = inspect_library(data)
        assert library.platforms == (platform,)
        assert library.page_size == 0x4000
        assert b"/system/bin/linker64\0" in data
        assert b"libc.so.6" not in data[data.index(b"\0libc.so\0") - 400 : data.index(b"\0libc.so\0")]
    else:
        assert inspect_library(data).platforms == (platform,)
    if platform == HOST:
        subprocess.run([target, "--version"], capture_output=True, timeout=30, check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("zig")
def test_the_symbol_list_for_bionic_is_what_the_source_needs(tmp_path: Path) -> None:
    folder = resource_path("agents")
    listed = (folder / "bionic_symbols.txt").read_text().split()
    zig_cc = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS["android-arm64"]]
    flags = ["-std=c11", "-O2", "-fPIC", "-DFARM_BIONIC", "-fno-stack-protector", "-fno-sanitize=all",
             "-U_FORTIFY_SOURCE", "-mno-outline-atomics"]  # fmt: skip
    needed: set[str] = set()
    for name in ("litert_agent.c", "bionic_start.c"):
        obj = tmp_path / f"{name}.o"
        subprocess.run([*zig_cc, *flags, "-c", str(folder / name), "-o", str(obj)], check=True, timeout=120)
        needed |= undefined(obj.read_bytes())
    needed -= {"main", "__errno_location", "_GLOBAL_OFFSET_TABLE_"}
    assert sorted(needed) == sorted(listed)


def undefined(data: bytes) -> set[str]:
    """Names of undefined symbols of a 64-bit ELF object."""
    import struct

    table = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    found = set()
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[link][4]
        for at in range(offset, offset + length, entry):
            name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
            if section == 0 and name:
                found.add(data[strings + name : data.index(b"\0", strings + name)].decode())
    return found
