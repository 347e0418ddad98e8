"""The agent binary for a platform: shipped in the wheel, cached, or built from agents/litert_agent.c.

The session pushes what this module returns. A cached binary costs one read of the 40 kB source and one stat;
no compiler is started and nothing large is hashed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from farm.caches import cache_root
from farm.errors import BuildError
from farm.resources import resource_path
from farm.runtimes import host_platform

SOURCE = "litert_agent.c"
BUILD_TIMEOUT_S = 180.0
CURE = (
    "pip install 'litert-farm[zig]' brings a compiler for every platform; "
    "on Debian and Ubuntu `apt install gcc` is enough for this machine"
)

_FLAGS = ("-std=c11", "-O2", "-fPIE", "-Wall", "-Wextra")

TARGETS: dict[str, str] = {
    "linux-x86_64": "x86_64-linux-gnu.2.17",
    "linux-aarch64": "aarch64-linux-gnu.2.17",
    "macos-arm64": "aarch64-macos",
    "macos-x86_64": "x86_64-macos",
    "android-arm64": "aarch64-linux-gnu.2.28",
    "android-x86_64": "x86_64-linux-gnu.2.28",
}
"""Platform → zig's target. glibc 2.17 is the oldest zig offers; for Android glibc's headers stand in for bionic's."""

_NDK_TARGETS = {"android-arm64": "aarch64-linux-android26", "android-x86_64": "x86_64-linux-android26"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """How to compile for one platform. `identity` tells two compilers apart in the cache's names."""

    argv: tuple[str, ...]
    identity: str
    kind: str
    """"cc" (this machine's), "zig", "ndk" (the NDK's clang) or "zig-bionic" (zig with stub libraries for bionic)."""


def agent_source() -> Path:
    """Return agents/litert_agent.c of this installation."""
    return resource_path("agents") / SOURCE


def agent_version() -> str:
    """Return AGENT_VERSION as the C source states it."""
    found = re.search(r'^#define AGENT_VERSION "([^"]+)"', agent_source().read_text("utf-8"), re.MULTILINE)
    if not found:
        raise BuildError(f"{agent_source()} states no AGENT_VERSION; reinstall farm")
    return found[1]


def agent_digest(path: Path) -> str:
    """Return the sha256 (hex) of an agent binary: its identity in caches and on devices."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def agent_binary(platform: str) -> Path:
    """Return an executable agent for `platform` ("linux-x86_64", "android-arm64", …), building it if need be.

    Two processes may build at once: each writes a name of its own and renames. Raises BuildError with the
    compiler's words when it cannot be built, within BUILD_TIMEOUT_S.
    """
    if platform not in TARGETS:
        raise BuildError(f"no agent for platform '{platform}'; there is one for {', '.join(sorted(TARGETS))}")
    folder = resource_path("agents")
    shipped = folder / "bin" / platform / "litert_agent"
    if shipped.is_file():
        return shipped
    compiler = find_compiler(platform)
    target = cache_folder() / f"{_build_digest(folder, platform, compiler)}-{platform}" / "litert_agent"
    if not os.access(target, os.X_OK):
        build_agent(platform, compiler, target)
    return target


def cache_folder() -> Path:
    """Return where built agents are kept; FARM_CACHE_DIR overrides the user's cache folder."""
    return cache_root() / "agents"


def find_compiler(platform: str) -> Compiler:
    """Return the best compiler for `platform` on this machine. Raises BuildError with the cure if there is none.

    For this machine its own `cc` (or $CC) comes first; for Android the NDK ($ANDROID_NDK_HOME) before zig.
    """
    if platform == host_platform():
        name = os.environ.get("CC") or "cc"
        path = shutil.which(name)
        if path:
            return Compiler(argv=(path,), identity=_file_identity(Path(path)), kind="cc")
    ndk = _ndk_clang(platform)
    if ndk:
        return Compiler(argv=(str(ndk),), identity=_file_identity(ndk), kind="ndk")
    zig = importlib.util.find_spec("ziglang")
    if zig is None or zig.origin is None:
        raise BuildError(f"no C compiler found to build the agent for {platform}; {CURE}")
    return Compiler(
        argv=(sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[platform]),
        identity=_file_identity(Path(zig.origin)),
        kind="zig-bionic" if platform.startswith("android-") else "zig",
    )


def build_agent(platform: str, compiler: Compiler, target: Path) -> None:
    """Compile the agent to `target`, whole or not at all. Raises BuildError."""
    folder = resource_path("agents")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as work:
            out = Path(work) / "litert_agent"
            if compiler.kind == "zig-bionic":
                _build_bionic(folder, compiler, Path(work), out)
            else:
                link = ["-pie", "-s", "-ldl"] if platform.startswith(("linux-", "android-")) else []
                if platform.startswith("android-"):
                    link.append("-Wl,-z,max-page-size=16384")
                _compile([*compiler.argv, *_FLAGS, str(folder / SOURCE), "-o", str(out), *link], Path(work))
            out.chmod(0o755)
            os.replace(out, target)
    except OSError as e:
        raise BuildError(
            f"the agent for {platform} cannot be built in {target.parent}: {e.strerror or e} "
            "(make room there, or let FARM_CACHE_DIR name a folder that can be written to)"
        ) from e


def _build_bionic(folder: Path, compiler: Compiler, work: Path, out: Path) -> None:
    """Link for Android without the NDK: own start code, and stub libc.so/libdl.so made of the symbols we need.

    The stubs only give the linker names; on the phone bionic's libraries of the same names are loaded. Segments are
    aligned to 16 KiB, as newer phones demand.
    """
    cc = list(compiler.argv)
    flags = [
        "-std=c11", "-O2", "-fPIC", "-Wall", "-Wextra", "-DFARM_BIONIC", "-fno-stack-protector", "-fno-sanitize=all",
        "-fno-asynchronous-unwind-tables", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0",
    ]  # fmt: skip
    if "aarch64" in cc[-1]:
        flags.append("-mno-outline-atomics")  # the helpers live in a libgcc that bionic lacks
    _compile([*cc, *flags, "-c", str(folder / SOURCE), "-o", str(work / "agent.o")], work)
    _compile([*cc, *flags, "-c", str(folder / "bionic_start.c"), "-o", str(work / "start.o")], work)
    symbols = (folder / "bionic_symbols.txt").read_text("utf-8").split()
    libraries = []
    for name in ("libdl", "libc"):
        mine = [s for s in symbols if (s in _LIBDL) == (name == "libdl")]
        (work / f"{name}.c").write_text("".join(f"void {s}(void) {{}}\n" for s in mine), "utf-8")
        _compile(
            [*cc, "-w", "-fno-builtin", "-fPIC", "-fno-sanitize=all", "-shared", "-nostdlib",
             f"-Wl,-soname,{name}.so", str(work / f"{name}.c"), "-o", str(work / f"{name}.so")], work,
        )  # fmt: skip
        libraries.append(str(work / f"{name}.so"))
    _compile(
        [*cc, "-fno-sanitize=all", "-nostdlib", "-nostartfiles", "-pie", str(work / "start.o"), str(work / "agent.o"),
         *libraries, "-Wl,--dynamic-linker=/system/bin/linker64", "-Wl,-z,max-page-size=16384", "-Wl,--hash-style=both",
         "-Wl,-z,now", "-s", "-o", str(out)], work,
    )  # fmt: skip


_LIBDL = frozenset({"dlopen", "dlsym", "dlerror"})


def _compile(argv: list[str], work: Path) -> None:
    """Run one compiler step. Raises BuildError with the first lines it printed."""
    try:
        done = subprocess.run(
            argv, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise BuildError(f"the compiler for the agent did not end within {BUILD_TIMEOUT_S:.0f} s: {argv[0]}") from e
    except OSError as e:
        raise BuildError(f"the compiler for the agent cannot be started: {argv[0]}: {e}; {CURE}") from e
    if done.returncode:
        words = "\n".join((done.stderr + done.stdout).decode("utf-8", "replace").splitlines()[:20])
        raise BuildError(f"the agent does not compile ({' '.join(argv[:5])} …):\n{words}\n{CURE}")


def _ndk_clang(platform: str) -> Path | None:
    home = os.environ.get("ANDROID_NDK_HOME") or os.environ.get("ANDROID_NDK_ROOT")
    if not home or platform not in _NDK_TARGETS:
        return None
    found = sorted(Path(home).glob(f"toolchains/llvm/prebuilt/*/bin/{_NDK_TARGETS[platform]}-clang"))
    if not found:
        raise BuildError(
            f"ANDROID_NDK_HOME={home} holds no {_NDK_TARGETS[platform]}-clang; unset it or name an NDK r25+"
        )
    return found[0]


def _file_identity(path: Path) -> str:
    """Path, size and time of a compiler: enough to rebuild after an upgrade, and no process is started."""
    stat = path.resolve().stat()
    return f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"


@functools.lru_cache(maxsize=16)
def _read(path: Path, size: int, mtime_ns: int) -> bytes:
    return path.read_bytes()


def _build_digest(folder: Path, platform: str, compiler: Compiler) -> str:
    names = (SOURCE, "bionic_start.c", "bionic_symbols.txt") if compiler.kind == "zig-bionic" else (SOURCE,)
    h = hashlib.sha256(repr((platform, compiler.argv, compiler.identity, compiler.kind, _FLAGS)).encode())
    for name in names:
        stat = (folder / name).stat()
        h.update(_read(folder / name, stat.st_size, stat.st_mtime_ns))
    return h.hexdigest()[:16]
