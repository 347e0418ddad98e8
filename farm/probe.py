"""Facts of a device: platform, GPU, driver, OS build, SoC, temperature, free space. Session asks once per visit.

One round trip: a POSIX script whose sections are the questions below, each with a pure parser (probe_parsers). On this
very machine, if it runs Linux, the same files are read directly: no process is started.
"""

from __future__ import annotations

import glob
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from farm import probe_parsers as parsers
from farm.errors import DeviceUnavailable
from farm.transports.base import Transport

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A question answered by files. `patterns`: shell globs; parse gets the first file, or all with names (`named`)."""

    patterns: tuple[str, ...]
    parse: Callable[[str], parsers.Facts]
    named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A question answered by a command of the far shell."""

    command: str
    parse: Callable[[str], parsers.Facts]


LINUX_FILES = (
    Files(patterns=("/proc/sys/kernel/random/boot_id",), parse=parsers.boot_id),
    Files(patterns=("/etc/os-release", "/usr/lib/os-release"), parse=parsers.os_release),
    Files(patterns=("/proc/cpuinfo",), parse=parsers.cpuinfo),
    Files(patterns=("/proc/meminfo",), parse=parsers.meminfo),
    Files(
        patterns=("/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name", "/proc/device-tree/model"),
        parse=parsers.machine_model,
        named=True,
    ),
    Files(
        patterns=("/sys/class/thermal/thermal_zone*/type", "/sys/class/thermal/thermal_zone*/temp"),
        parse=parsers.thermal_zones,
        named=True,
    ),
    Files(patterns=("/sys/class/drm/card*/device/uevent",), parse=parsers.drm_cards, named=True),
    Files(
        patterns=("/proc/driver/nvidia/version", "/proc/driver/nvidia/gpus/*/information"),
        parse=parsers.nvidia,
        named=True,
    ),
)
ICD_FOLDERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
LINUX_COMMANDS = (
    Command(command="getconf PAGESIZE", parse=parsers.page_size),
    Command(command="df -Pk .", parse=parsers.df),
)
MACOS_COMMANDS = (
    Command(command="sw_vers", parse=parsers.sw_vers),
    Command(
        command="sysctl hw.memsize hw.model hw.ncpu hw.pagesize machdep.cpu.brand_string kern.bootsessionuuid",
        parse=parsers.sysctl,
    ),
    Command(command="ioreg -rd1 -c IOAccelerator", parse=parsers.ioreg),
    Command(command="pmset -g therm", parse=parsers.pmset),
    Command(command="df -Pk .", parse=parsers.df),
)
ANDROID_FILES = (
    Files(patterns=("/proc/sys/kernel/random/boot_id",), parse=parsers.boot_id),
    Files(patterns=("/proc/cpuinfo",), parse=parsers.cpuinfo),
    Files(patterns=("/proc/meminfo",), parse=parsers.meminfo),
    Files(
        patterns=("/sys/class/thermal/thermal_zone*/type", "/sys/class/thermal/thermal_zone*/temp"),
        parse=parsers.thermal_zones,
        named=True,
    ),
    Files(
        patterns=("/sys/class/kgsl/kgsl-3d0/gpu_model", "/sys/class/misc/mali0/device/gpuinfo"),
        parse=parsers.gpu_files,
        named=True,
    ),
)
ANDROID_COMMANDS = (
    Command(command="getprop", parse=parsers.getprop),
    Command(command="dumpsys battery", parse=parsers.battery),
    Command(command="dumpsys thermalservice", parse=parsers.thermal_service),
    Command(command="dumpsys SurfaceFlinger | grep GLES:", parse=parsers.surface_flinger),
    Command(command="getconf PAGESIZE", parse=parsers.page_size),
    Command(command="df -Pk /data/local/tmp", parse=parsers.df),
)


def probe(transport: Transport, timeout: float) -> dict[str, Any]:
    """Ask a device what it is. Facts that cannot be known there are left out; `platform` is always present.

    Keys (all optional but the first): platform, system, kernel, machine, os, os_build, model, soc, cpu, cpu_count,
    memory_bytes, memory_free_bytes, free_bytes (where farm would work), page_size_bytes, boot_id, gpu (one line),
    gpus, gpu_vendor, gpu_driver, vulkan_drivers, temperature_c with temperature_of, clock_offset_s (its clock minus
    ours), and on phones android_sdk, security_patch, abi, serial, battery_percent, battery_temperature_c, charging,
    thermal_status, boot_completed. Raises DeviceUnavailable if no POSIX shell answers, else as transport.run.
    """
    if transport.kind == "local" and os.uname().sysname == "Linux":
        facts = _probe_here({**os.environ, **getattr(transport, "env", {})})
    else:
        facts = _probe_there(transport, timeout)
    facts.update(parsers.name_gpu(facts))
    facts.pop("vulkan_chosen", None)
    return facts


def _probe_here(env: Mapping[str, str]) -> dict[str, Any]:
    me = os.uname()
    facts: dict[str, Any] = {
        "platform": parsers.platform_of(me.sysname, me.machine),
        "system": me.sysname,
        "kernel": me.release,
        "machine": me.machine,
        "page_size_bytes": os.sysconf("SC_PAGE_SIZE"),
        "clock_offset_s": 0.0,
    }
    disk = os.statvfs(".")
    facts["free_bytes"] = disk.f_bavail * disk.f_frsize
    for question in LINUX_FILES:
        _merge(facts, question.parse(_read_here(question)))
    facts.setdefault("cpu_count", os.cpu_count())
    chosen = tuple(p for p in (env.get("VK_ICD_FILENAMES") or env.get("VK_DRIVER_FILES", "")).split(":") if p)
    manifests = chosen or tuple(f"{folder}/*.json" for folder in ICD_FOLDERS)
    icds = parsers.vulkan_icds(_read_here(Files(patterns=manifests, parse=parsers.vulkan_icds, named=True)))
    _merge(facts, {**icds, "vulkan_chosen": bool(chosen)})
    return facts


def _read_here(question: Files) -> str:
    found = []
    for pattern in question.patterns:
        for path in sorted(glob.glob(pattern)):
            try:
                with open(path, "rb") as f:
                    text = f.read(_READ_BYTES).decode(errors="replace")
            except OSError:  # thermal zones that are switched off give EAGAIN, EINVAL or EIO
                continue
            if not question.named:
                return text
            found.append(f"{parsers.FILE_MARK}{path}\n{text}\n")
    return "".join(found)


def _probe_there(transport: Transport, timeout: float) -> dict[str, Any]:
    mark = f"@farm-{secrets.token_hex(8)} "
    before = time.time()
    done = transport.run(["sh", "-c", script(mark)], timeout)
    sections = _sections(done.stdout.decode(errors="replace"), mark)
    facts = parsers.uname(sections.get("uname", ""))
    if not facts:
        raise DeviceUnavailable(
            f"the device answers no POSIX shell (exit status {done.exit_status}): farm needs `sh` and `uname` there",
            output=(done.stdout + done.stderr).decode(errors="replace")[-2000:],
        )
    facts["platform"] = parsers.platform_of(facts["system"], facts["machine"], bionic="bionic" in sections)
    clock = sections.get("clock", "").strip()
    if clock.isdigit():
        # Its clock counts whole seconds, so half of one is the best guess of what was cut off.
        facts["clock_offset_s"] = round(int(clock) + 0.5 - (before + time.time()) / 2, 1)
    for name, question in _named_questions().items():
        if name in sections:
            answer = sections[name]
            if isinstance(question, Files) and not question.named:
                answer = next(iter(parsers.split_files(answer).values()), "")
            _merge(facts, question.parse(answer))
    for name in ("linux-icd", "linux-icd-chosen"):
        if name in sections:
            _merge(facts, {**parsers.vulkan_icds(sections[name]), "vulkan_chosen": name == "linux-icd-chosen"})
    return facts


def script(mark: str) -> str:
    """The whole questionnaire as one POSIX script; each section starts with a line `mark` + name."""
    lines = [
        f"m() {{ printf '\\n%s%s\\n' '{mark}' \"$1\"; }}",
        # -r before reading: some sysfs files block or shout for the unprivileged.
        'f() { for p in "$@"; do [ -r "$p" ] && [ -f "$p" ] && '
        f"printf '\\n%s%s\\n' '{parsers.FILE_MARK}' \"$p\" && head -c {_READ_BYTES} \"$p\"; done; }}",
        "exec 2>/dev/null </dev/null",
        "m uname; uname -s; uname -r; uname -m",
        "m clock; date +%s",
        "if [ -x /system/bin/linker64 ] || [ -x /system/bin/linker ]; then m bionic; fi",
        "s=$(uname -s)",
    ]
    branches = (
        ("macos", 'if [ "$s" = Darwin ]; then'),
        ("android", "elif command -v getprop >/dev/null; then"),
        ("linux", 'elif [ "$s" = Linux ]; then'),
    )
    for group, branch in branches:
        lines.append(branch)
        for name, question in _named_questions().items():
            if name.startswith(f"{group}-"):
                ask = question.command if isinstance(question, Command) else f"f {' '.join(question.patterns)}"
                lines.append(f"m {name}; {ask}")
    manifests = " ".join(f"{folder}/*.json" for folder in ICD_FOLDERS)
    lines += [
        'i="${VK_ICD_FILENAMES:-$VK_DRIVER_FILES}"',
        'if [ -n "$i" ]; then m linux-icd-chosen; IFS=:; f $i; unset IFS',
        f"else m linux-icd; f {manifests}; fi",
    ]
    return "\n".join([*lines, "fi", "m end", "exit 0"])


def _named_questions() -> dict[str, Files | Command]:
    groups: dict[str, tuple[Files | Command, ...]] = {
        "linux": LINUX_FILES + LINUX_COMMANDS,
        "macos": MACOS_COMMANDS,
        "android": ANDROID_FILES + ANDROID_COMMANDS,
    }
    named: dict[str, Files | Command] = {
        f"{g}-{n}": q for g, questions in groups.items() for n, q in enumerate(questions)
    }
    return named


def _sections(text: str, mark: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for piece in text.replace("\r\n", "\n").split("\n" + mark)[1:]:
        name, _, answer = piece.partition("\n")
        found[name.strip()] = answer
    return found


def _merge(facts: dict[str, Any], new: Mapping[str, Any]) -> None:
    gpus = [g for g in facts.get("gpus", ()) if not g.startswith("NVIDIA")]
    facts.update({key: value for key, value in new.items() if value not in (None, "", [])})
    if any(g.startswith("NVIDIA") for g in new.get("gpus", ())):
        # Its own driver names the GPU by model; what else the kernel listed stays.
        facts["gpus"] = [*gpus, *new["gpus"]]
