"""What devices answer, turned into facts: pure functions, text in, facts out. `farm.probe` asks the questions.

Every parser takes one command's stdout (or one set of files, see `split_files`) and returns the facts it is sure of;
what it does not understand it leaves out, because a wrong fact is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

Facts = dict[str, Any]

FILE_MARK = "@file "
"""Starts the line that names a file in the answer to a question about files."""

SOFTWARE_GPUS = {"libvulkan_lvp": "llvmpipe", "libvk_swiftshader": "SwiftShader"}
"""Vulkan driver libraries that compute on the CPU, by file name up to the first dot."""

_PCI_VENDORS = {"10DE": "NVIDIA", "1002": "AMD", "8086": "Intel", "1AF4": "virtio", "106B": "Apple", "13B5": "Arm"}
_ARM_CPUS = {
    "0x41": "Arm",
    "0x51": "Qualcomm",
    "0x53": "Samsung",
    "0x61": "Apple",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
}


def split_files(text: str) -> dict[str, str]:
    """Take apart what many files answered: path → contents."""
    found: dict[str, str] = {}
    for piece in re.split(rf"^{re.escape(FILE_MARK)}", text, flags=re.MULTILINE)[1:]:
        path, _, contents = piece.partition("\n")
        found[path.strip()] = contents
    return found


def platform_of(system: str, machine: str, *, bionic: bool = False) -> str:
    """Name the kind of program that runs there, e.g. ``linux-x86_64``, ``macos-arm64``, ``android-arm64``.

    bionic: whether Android's dynamic linker exists; it and not the properties decides what can be executed.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64", "armv8l": "armv7l"}.get(machine.lower(), machine.lower())
    if bionic:
        return "android-" + {"aarch64": "arm64", "armv7l": "arm", "i686": "x86"}.get(machine, machine)
    if system == "Darwin":
        return "macos-" + {"aarch64": "arm64"}.get(machine, machine)
    return f"{system.lower()}-{machine}"


def uname(text: str) -> Facts:
    """`uname -s; uname -r; uname -m`."""
    lines = text.split("\n")
    return (
        {"system": lines[0].strip(), "kernel": lines[1].strip(), "machine": lines[2].strip()} if len(lines) > 2 else {}
    )


def os_release(text: str) -> Facts:
    """/etc/os-release."""
    values = dict(re.findall(r"^([A-Z_]+)=\"?(.*?)\"?$", text, re.MULTILINE))
    facts: Facts = {"os": values["PRETTY_NAME"]} if values.get("PRETTY_NAME") else {}
    if build := values.get("BUILD_ID") or values.get("VERSION_ID"):
        facts["os_build"] = build
    return facts


def cpuinfo(text: str) -> Facts:
    """/proc/cpuinfo of x86 and Arm."""
    count = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    facts: Facts = {"cpu_count": count} if count else {}
    if name := re.search(r"^model name\s*:\s*(\S.*)$", text, re.MULTILINE):
        facts["cpu"] = name[1].strip()
    elif maker := re.search(r"^CPU implementer\s*:\s*(0x[0-9a-fA-F]+)", text, re.MULTILINE):
        parts = sorted(set(re.findall(r"^CPU part\s*:\s*(0x[0-9a-fA-F]+)", text, re.MULTILINE)))
        facts["cpu"] = f"{_ARM_CPUS.get(maker[1].lower(), maker[1])} cores {' '.join(parts)}".strip()
    if soc := re.search(r"^Hardware\s*:\s*(\S.*)$", text, re.MULTILINE):
        facts["soc"] = soc[1].strip()
    return facts


def meminfo(text: str) -> Facts:
    """/proc/meminfo; sizes there are KiB."""
    facts: Facts = {}
    for name, key in (("MemTotal", "memory_bytes"), ("MemAvailable", "memory_free_bytes")):
        if found := re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE):
            facts[key] = int(found[1]) * 1024
    return facts


def df(text: str) -> Facts:
    """`df -Pk FOLDER`: one row, whose numbers come after the file system's name (which may hold blanks)."""
    found = re.search(r"\s(\d+)\s+(\d+)\s+(-?\d+)\s+\d+%\s", text)
    return {"free_bytes": max(0, int(found[3])) * 1024} if found else {}


def page_size(text: str) -> Facts:
    """`getconf PAGESIZE`, bytes."""
    return {"page_size_bytes": int(text)} if text.strip().isdigit() else {}


def boot_id(text: str) -> Facts:
    """/proc/sys/kernel/random/boot_id or `sysctl -n kern.bootsessionuuid`: another one means it was restarted."""
    word = text.strip().lower()
    return {"boot_id": word} if re.fullmatch(r"[0-9a-f-]{36}", word) else {}


def thermal_zones(text: str) -> Facts:
    """/sys/class/thermal/thermal_zone*/{type,temp}; temp is in thousandths of °C, on some old kernels in °C."""
    files = split_files(text)
    temperatures: dict[str, float] = {}
    for path, contents in files.items():
        folder, _, name = path.rpartition("/")
        if name == "temp" and re.fullmatch(r"-?\d+", contents.strip()):
            value = int(contents)
            celsius = value / 1000 if abs(value) > 200 else float(value)
            if 0 < celsius < 150:  # sensors that are switched off say 0, -273 or nonsense
                kind = files.get(f"{folder}/type", folder.rpartition("/")[2]).strip()
                temperatures[kind] = max(celsius, temperatures.get(kind, 0.0))
    for wanted in ("gpu", "soc", "cpu", "x86_pkg"):
        of_kind = [t for kind, t in temperatures.items() if wanted in kind.lower()]
        if of_kind:
            return {"temperature_c": max(of_kind), "temperature_of": wanted}
    return {"temperature_c": max(temperatures.values()), "temperature_of": "hottest zone"} if temperatures else {}


def machine_model(text: str) -> Facts:
    """/sys/class/dmi/id/{sys_vendor,product_name} or /proc/device-tree/model."""
    files = {path.rpartition("/")[2]: contents.strip("\0 \n") for path, contents in split_files(text).items()}
    name = " ".join(filter(None, (files.get("sys_vendor"), files.get("product_name")))) or files.get("model")
    return {"model": name} if name else {}


def drm_cards(text: str) -> Facts:
    """/sys/class/drm/card*/device/uevent: the kernel's word on graphics hardware."""
    gpus, drivers = [], []
    for path, contents in split_files(text).items():
        if not re.search(r"/card\d+/device/uevent$", path):
            continue
        values = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", contents, re.MULTILINE))
        driver, pci, tree = values.get("DRIVER", ""), values.get("PCI_ID", ""), values.get("OF_COMPATIBLE_0", "")
        vendor = _PCI_VENDORS.get(pci.partition(":")[0].upper(), "")
        gpus.append(" ".join(filter(None, (vendor, f"PCI {pci}" if pci else tree or driver))))
        drivers.append(driver)
    facts: Facts = {}
    if named := [g for g in gpus if g]:
        facts["gpus"] = named
    if any(drivers):
        facts["gpu_driver"] = ", ".join(dict.fromkeys(filter(None, drivers)))
    return facts


def nvidia(text: str) -> Facts:
    """/proc/driver/nvidia/{version,gpus/*/information}."""
    files = split_files(text)
    gpus = [m[1].strip() for c in files.values() if (m := re.search(r"^Model:\s*(\S.*)$", c, re.MULTILINE))]
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", files.get("/proc/driver/nvidia/version", ""))
    return {**({"gpus": gpus} if gpus else {}), **({"gpu_driver": f"nvidia {version[1]}"} if version else {})}


def vulkan_icds(text: str) -> Facts:
    """Vulkan driver manifests: which drivers the loader is offered; a software one names the GPU by itself."""
    drivers = []
    for contents in split_files(text).values():
        try:
            library = str(json.loads(contents)["ICD"]["library_path"]).rpartition("/")[2].partition(".")[0]
        except (ValueError, KeyError, TypeError):
            continue
        drivers.append(SOFTWARE_GPUS.get(library, library))
    return {"vulkan_drivers": sorted(set(drivers))} if drivers else {}


def getprop(text: str) -> Facts:
    """`getprop`: lines of ``[name]: [value]``, where a value may go over several lines."""
    props = dict(re.findall(r"^\[(.*?)\]: \[(.*?)\]$", text, re.MULTILINE | re.DOTALL))
    facts: Facts = {}

    def put(key: str, *names: str) -> None:
        if value := next((props[n] for n in names if props.get(n) not in (None, "", "unknown")), None):
            facts[key] = value

    put("os_build", "ro.build.fingerprint", "ro.build.display.id")
    put("android_sdk", "ro.build.version.sdk")
    put("security_patch", "ro.build.version.security_patch")
    put("abi", "ro.product.cpu.abi")
    put("soc", "ro.soc.model", "ro.board.platform", "ro.hardware.chipname", "ro.hardware")
    put("soc_vendor", "ro.soc.manufacturer")
    put("egl", "ro.hardware.egl")
    put("vulkan", "ro.hardware.vulkan")
    put("serial", "ro.serialno", "ro.boot.serialno")
    if release := props.get("ro.build.version.release"):
        facts["os"] = f"Android {release}"
    maker, model = props.get("ro.product.manufacturer", ""), props.get("ro.product.model", "")
    if model:
        facts["model"] = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
    if "sys.boot_completed" in props:
        facts["boot_completed"] = props["sys.boot_completed"] == "1"
    return facts


def battery(text: str) -> Facts:
    """`dumpsys battery`; the temperature there is in tenths of °C, though some builds say whole °C."""
    facts: Facts = {}
    values = dict(re.findall(r"^\s+([A-Za-z ]+): (\S+)$", text, re.MULTILINE))
    level, scale, tenths = (values.get(name, "") for name in ("level", "scale", "temperature"))
    if level.isdigit():
        facts["battery_percent"] = round(int(level) * 100 / (int(scale) if scale.isdigit() and int(scale) else 100))
    if re.fullmatch(r"-?\d+", tenths) and int(tenths) != 0:
        # 100 tenths is 10 °C: a phone that computes is warmer, so a smaller number can only be whole degrees.
        facts["battery_temperature_c"] = int(tenths) / 10 if abs(int(tenths)) >= 100 else float(tenths)
    powered = [values.get(f"{source} powered") for source in ("AC", "USB", "Wireless", "Dock")]
    if any(powered):
        facts["charging"] = "true" in powered
    return facts


def thermal_service(text: str) -> Facts:
    """`dumpsys thermalservice`: the status (0 none … 6 shutdown) and the sensors of the HAL."""
    facts: Facts = {}
    if status := re.search(r"^Thermal Status: (\d+)", text, re.MULTILINE):
        facts["thermal_status"] = int(status[1])
    # The section of current values; the cached one above it may be hours old.
    current = text.partition("Current temperatures from HAL:")[2].partition("Current cooling")[0]
    sensors = re.findall(r"Temperature\{mValue=(-?[\d.]+), mType=(-?\d+),", current)
    for kind, name in (("1", "gpu"), ("0", "cpu"), ("3", "skin")):  # android.os.Temperature.TYPE_*
        values = [float(value) for value, found in sensors if found == kind and 0 < float(value) < 150]
        if values:
            return {**facts, "temperature_c": max(values), "temperature_of": name}
    return facts


def surface_flinger(text: str) -> Facts:
    """The ``GLES: vendor, renderer, version`` line of `dumpsys SurfaceFlinger`."""
    # Commas part the three, and some vendors' names have them too ("Samsung Electronics Co., Ltd.").
    vendor = r"[^,]+(?:, (?:Co|Corp|Inc|LLC|Ltd)\b\.?)*"
    found = re.search(rf"^\s*GLES: ({vendor}), (.+?), (OpenGL ES.*)$", text, re.MULTILINE)
    if not found:
        return {}
    return {"gpus": [found[2].strip()], "gpu_vendor": found[1].strip(), "gpu_driver": found[3].strip()}


def gpu_files(text: str) -> Facts:
    """Vendor files that name the GPU where SurfaceFlinger does not answer (kgsl: Adreno; mali0: Mali)."""
    for path, contents in split_files(text).items():
        word = contents.strip()
        if path.endswith("gpu_model") and word:
            return {"gpus": [re.sub(r"^Adreno(\d)", r"Adreno (TM) \1", word)]}
        if path.endswith("gpuinfo") and word:
            return {"gpus": [word]}
    return {}


def sw_vers(text: str) -> Facts:
    """`sw_vers`."""
    values = dict(re.findall(r"^(\w+):\s*(.+)$", text, re.MULTILINE))
    facts: Facts = {}
    if "ProductVersion" in values:
        facts["os"] = f"{values.get('ProductName', 'macOS').strip()} {values['ProductVersion'].strip()}"
    if "BuildVersion" in values:
        facts["os_build"] = values["BuildVersion"].strip()
    return facts


def sysctl(text: str) -> Facts:
    """`sysctl hw.memsize hw.model hw.ncpu hw.pagesize machdep.cpu.brand_string kern.bootsessionuuid`."""
    values = dict(re.findall(r"^([\w.]+): (.+)$", text, re.MULTILINE))
    facts: Facts = boot_id(values.get("kern.bootsessionuuid", ""))
    for name, key in (("hw.memsize", "memory_bytes"), ("hw.ncpu", "cpu_count"), ("hw.pagesize", "page_size_bytes")):
        if values.get(name, "").isdigit():
            facts[key] = int(values[name])
    for name, key in (("hw.model", "model"), ("machdep.cpu.brand_string", "cpu")):
        if name in values:
            facts[key] = values[name].strip()
    return facts


def ioreg(text: str) -> Facts:
    """`ioreg -rd1 -c IOAccelerator`: a string on Apple silicon, bytes in angle brackets on Intel Macs."""
    gpus = re.findall(r"^\s*\|?\s*\"model\" = <?\"([^\"]+)\"", text, re.MULTILINE)
    cores = re.search(r"\"gpu-core-count\" = (\d+)", text)
    return {**({"gpus": gpus} if gpus else {}), **({"gpu_cores": int(cores[1])} if cores else {})}


def pmset(text: str) -> Facts:
    """`pmset -g therm`: 100 is full speed; a Mac that has never throttled has no such line."""
    found = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", text)
    return {"speed_limit_percent": int(found[1])} if found else {}


def name_gpu(facts: Mapping[str, Any]) -> Facts:
    """Settle on one ``gpu`` from all that was found: hardware first, else the one software driver there is."""
    gpus = list(facts.get("gpus", ()))
    chosen = facts.get("vulkan_drivers", ())
    software = [driver for driver in chosen if driver in SOFTWARE_GPUS.values()]
    if facts.get("vulkan_chosen") and len(chosen) == 1:
        # VK_ICD_FILENAMES picks the driver whatever hardware there is.
        return {"gpu": software[0] if software else gpus[0] if len(gpus) == 1 else chosen[0], "gpus": software or gpus}
    if gpus:
        return {"gpu": ", ".join(dict.fromkeys(gpus))}
    return {"gpu": software[0], "gpus": software} if len(software) == 1 else {}
