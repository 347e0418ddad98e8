"""Facts of devices: parsers on text (tests/data/devices), the questionnaire on this machine through a real shell."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from farm import probe_parsers as parsers
from farm.errors import DeviceUnavailable
from farm.probe import probe, script
from farm.transports.local import LocalTransport

DEVICES = Path(__file__).parent / "data" / "devices"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def answer(device: str, question: str) -> dict[str, Any]:
    return getattr(parsers, question)((DEVICES / device / f"{question}.txt").read_text())


def facts_of(device: str, *questions: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for question in questions:
        facts.update(answer(device, question))
    return facts | parsers.name_gpu(facts)


class ShellOnly:
    """This machine as if it were far away: no shortcut through /proc, every question through the script."""

    kind = "ssh"
    shares_filesystem = False

    def __init__(self, env: dict[str, str] | None = None, path: str | None = None) -> None:
        self._local = LocalTransport({**(env or {}), **({"PATH": path} if path else {})})
        self.connect, self.push, self.pull, self.close = (
            self._local.connect,
            self._local.push,
            self._local.pull,
            self._local.close,
        )

    def run(self, argv: Any, timeout: float, **more: Any) -> Any:
        return self._local.run(["/bin/sh", *argv[1:]], timeout, **more)


# --- phones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (
            "adreno-730",
            {
                "os": "Android 14",
                "model": "samsung SM-S901U",
                "soc": "SM8450",
                "gpu": "Adreno (TM) 730",
                "gpu_vendor": "Qualcomm",
                "temperature_c": 42.25,
                "temperature_of": "gpu",
                "battery_temperature_c": 28.1,
                "thermal_status": 0,
                "charging": True,
                "boot_completed": True,
            },
        ),
        (
            "mali-g715",
            {
                "model": "Google Pixel 8",
                "soc": "Tensor G3",
                "gpu": "Mali-G715",
                "thermal_status": 1,
                "temperature_of": "cpu",
            },
        ),
        (
            "powervr-ge8320",
            {
                "soc": "mt6765",
                "gpu": "PowerVR Rogue GE8320",
                "gpu_driver": "OpenGL ES 3.2 build 1.11@5516664",
                "serial": "0123456789",
                "battery_temperature_c": 31.0,
                "charging": False,
            },
        ),
        (
            "xclipse-920",
            {
                "gpu": "ANGLE (Samsung Xclipse 920) on Vulkan 1.3.231",
                "battery_temperature_c": 41.2,
                "battery_percent": 33,
                "thermal_status": 3,
            },
        ),
        ("emulator", {"abi": "x86_64", "boot_completed": False, "soc": "ranchu"}),
    ],
)
def test_phones_are_read(device: str, expected: dict[str, Any]) -> None:
    facts = facts_of(device, "getprop", "battery", "thermal_service", "surface_flinger")
    assert {key: facts.get(key) for key in expected} == expected


def test_a_vendor_with_commas_in_its_name_does_not_shift_the_renderer() -> None:
    assert answer("xclipse-920", "surface_flinger")["gpus"] == ["ANGLE (Samsung Xclipse 920) on Vulkan 1.3.231"]


def test_a_property_over_two_lines_does_not_hide_the_next() -> None:
    assert answer("adreno-730", "getprop")["soc_vendor"] == "QTI"


def test_a_cached_temperature_is_never_taken_for_a_current_one() -> None:
    assert 90.0 not in answer("mali-g715", "thermal_service").values()


def test_the_kernels_files_name_the_gpu_where_surface_flinger_is_silent() -> None:
    assert answer("adreno-730", "gpu_files")["gpus"] == ["Adreno (TM) 730v2"]
    assert answer("mali-g715", "gpu_files")["gpus"] == ["Mali-G715 7 cores r0p0 0x0B070000"]


@pytest.mark.parametrize("device", ["adreno-730", "powervr-ge8320", "mac-m1"])
def test_free_space_is_the_available_column(device: str) -> None:
    assert (
        answer(device, "df")["free_bytes"]
        == {
            "adreno-730": 65096276 * 1024,
            "powervr-ge8320": 13760740 * 1024,
            "mac-m1": 61012000 * 1024,
        }[device]
    )


def test_a_full_disk_and_a_blank_in_the_name_are_read() -> None:
    assert answer("mac-intel", "df") == {"free_bytes": 0}


# --- Macs and Linux -----------------------------------------------------------------------------------------------


def test_macs_are_read() -> None:
    m1 = facts_of("mac-m1", "sw_vers", "sysctl", "ioreg", "pmset", "df")
    assert m1["os"] == "macOS 14.5"
    assert m1["gpu"] == "Apple M1"
    assert m1["gpu_cores"] == 8
    assert m1["page_size_bytes"] == 16384
    assert m1["boot_id"] == "6f1f6c3e-9d0c-4c7f-8a63-3b8b1d2c4e5f"
    assert "speed_limit_percent" not in m1
    intel = facts_of("mac-intel", "sw_vers", "sysctl", "ioreg", "pmset")
    assert intel["gpu"] == "Radeon Pro 555, Intel HD Graphics 630"
    assert intel["speed_limit_percent"] == 62


def test_a_linux_laptop_is_read() -> None:
    facts = facts_of(
        "linux-laptop", "uname", "os_release", "cpuinfo", "machine_model", "drm_cards", "nvidia", "thermal_zones"
    )
    assert facts["os"] == "Ubuntu 24.04.1 LTS"
    assert facts["model"] == "LENOVO 21FV0015GE"
    assert facts["cpu_count"] == 2
    assert facts["gpu"] == "NVIDIA GeForce RTX 4060 Laptop GPU"
    assert facts["gpu_driver"] == "nvidia 550.107.02"
    assert (facts["temperature_c"], facts["temperature_of"]) == (61.0, "x86_pkg")


def test_only_whole_cards_count_as_gpus() -> None:
    assert answer("linux-laptop", "drm_cards")["gpus"] == ["NVIDIA PCI 10DE:28A0", "Intel PCI 8086:A7A0"]


def test_a_board_is_read() -> None:
    facts = facts_of("raspberry-pi", "uname", "machine_model", "drm_cards", "thermal_zones")
    assert facts["model"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert facts["gpu"] == "brcm,2711-v3d"
    assert facts["temperature_c"] == pytest.approx(48.686)


def test_a_broken_driver_manifest_does_not_hide_the_others() -> None:
    assert answer("linux-laptop", "vulkan_icds") == {"vulkan_drivers": ["libvulkan_intel", "llvmpipe"]}


PARSERS = [
    parsers.uname,
    parsers.os_release,
    parsers.cpuinfo,
    parsers.meminfo,
    parsers.df,
    parsers.page_size,
    parsers.boot_id,
    parsers.thermal_zones,
    parsers.machine_model,
    parsers.drm_cards,
    parsers.nvidia,
    parsers.vulkan_icds,
    parsers.getprop,
    parsers.battery,
    parsers.thermal_service,
    parsers.surface_flinger,
    parsers.gpu_files,
    parsers.sw_vers,
    parsers.sysctl,
    parsers.ioreg,
    parsers.pmset,
]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text", ["", "\n", "garbage\0\n[[[", "Can't find service: x\n", "sh: not found\n", "@file /x\n"]
)
def test_no_parser_invents_a_fact(parse: Any, text: str) -> None:
    assert parse(text) == {}


@pytest.mark.parametrize(
    ("system", "machine", "bionic", "expected"),
    [
        ("Linux", "x86_64", False, "linux-x86_64"),
        ("Linux", "aarch64", False, "linux-aarch64"),
        ("Linux", "aarch64", True, "android-arm64"),
        ("Linux", "armv8l", True, "android-arm"),
        ("Linux", "x86_64", True, "android-x86_64"),
        ("Darwin", "arm64", False, "macos-arm64"),
        ("Darwin", "x86_64", False, "macos-x86_64"),
    ],
)
def test_platform_names(system: str, machine: str, bionic: bool, expected: str) -> None:
    assert parsers.platform_of(system, machine, bionic=bionic) == expected


# --- which GPU is it ----------------------------------------------------------------------------------------------


def test_a_chosen_software_driver_is_the_gpu_whatever_hardware_there_is() -> None:
    facts = {"gpus": ["Intel PCI 8086:A7A0"], "vulkan_drivers": ["llvmpipe"], "vulkan_chosen": True}
    assert parsers.name_gpu(facts) == {"gpu": "llvmpipe", "gpus": ["llvmpipe"]}


def test_hardware_is_the_gpu_when_nothing_is_chosen() -> None:
    facts = {"gpus": ["Intel PCI 8086:A7A0"], "vulkan_drivers": ["libvulkan_intel", "llvmpipe"]}
    assert parsers.name_gpu(facts)["gpu"] == "Intel PCI 8086:A7A0"


def test_no_gpu_is_named_when_two_software_drivers_are_offered() -> None:
    assert parsers.name_gpu({"vulkan_drivers": ["SwiftShader", "llvmpipe"]}) == {}


# --- the real thing -----------------------------------------------------------------------------------------------


@on_linux
def test_this_machine_is_read_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    facts = probe(LocalTransport(), 5)
    assert facts["platform"] == f"linux-{platform.machine()}"
    assert facts["page_size_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert facts["memory_bytes"] > 1 << 28
    assert facts["free_bytes"] > 0
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@on_linux
def test_probing_this_machine_is_cheap() -> None:
    best = min(_timed(lambda: probe(LocalTransport(), 5)) for _ in range(3))
    assert best < 0.05


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@on_linux
@pytest.mark.parametrize("driver", ["libvk_swiftshader", "libvulkan_lvp"])
def test_the_shell_finds_what_this_process_finds(tmp_path: Path, driver: str) -> None:
    manifest = tmp_path / "icd with blank.json"
    manifest.write_text(f'{{"ICD": {{"library_path": "./{driver}.so"}}}}')
    env = {"VK_ICD_FILENAMES": str(manifest)}
    here, there = probe(LocalTransport(env), 5), probe(ShellOnly(env), 10)  # type: ignore[arg-type]
    for moving in ("memory_free_bytes", "free_bytes", "clock_offset_s", "temperature_c"):
        here.pop(moving, None), there.pop(moving, None)
    assert here == there
    assert here["gpu"] == parsers.SOFTWARE_GPUS[driver]


@on_linux
def test_a_phone_is_told_by_getprop_and_its_platform_by_the_linker(tmp_path: Path) -> None:
    for tool in ("getprop", "dumpsys"):
        (tmp_path / tool).write_text(
            f'#!/bin/sh\nset -- {tool} "$@"\n'
            f'case "$*" in getprop) cat {DEVICES}/adreno-730/getprop.txt;;\n'
            f'"dumpsys battery") cat {DEVICES}/adreno-730/battery.txt;;\n'
            f'"dumpsys SurfaceFlinger") echo x; cat {DEVICES}/adreno-730/surface_flinger.txt;; esac\n'
        )
        (tmp_path / tool).chmod(0o755)
    facts = probe(ShellOnly(path=f"{tmp_path}:{os.environ['PATH']}"), 10)  # type: ignore[arg-type]
    assert facts["os"] == "Android 14"
    assert facts["gpu"] == "Adreno (TM) 730"
    assert facts["battery_percent"] == 87
    # This machine has no Android linker: what runs here are its own programs.
    assert facts["platform"] == f"linux-{platform.machine()}"
    assert abs(facts["clock_offset_s"]) <= 2


@on_linux
def test_a_device_without_a_posix_shell_is_unavailable() -> None:
    far = ShellOnly()
    far.run = lambda *_, **__: LocalTransport().run(["echo", "'sh' is not recognized"], 5)  # type: ignore[method-assign]
    with pytest.raises(DeviceUnavailable, match="POSIX shell"):
        probe(far, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_questionnaire_is_posix(shell: str) -> None:
    try:
        done = subprocess.run([shell, "-n"], input=script("@x "), text=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip(f"{shell} is not installed")
    assert (done.returncode, done.stderr) == (0, "")
