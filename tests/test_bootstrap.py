"""tools/bootstrap.sh on machines farm cannot work on: one sentence naming the one thing to do, and nothing made.

The machines are played by a folder of programs put in PATH alone: `uname`, `ldd` and the Pythons say what such a
machine's would say. The script itself is the real one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
TOOLS = ("sh", "dirname", "sed", "grep", "cat", "mktemp", "rm")


class Machine:
    """A PATH of one folder."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.checkout = folder / "bin", folder / "checkout"
        self.bin.mkdir()
        (self.checkout / "tools").mkdir(parents=True)
        shutil.copy(CHECKOUT / "tools" / "bootstrap.sh", self.checkout / "tools")
        for name in TOOLS:
            found = shutil.which(name)
            assert found
            (self.bin / name).symlink_to(found)
        self.is_a("Linux", "x86_64")
        self.program("ldd", 'echo "ldd (Debian GLIBC 2.36-9) 2.36"')

    def program(self, name: str, body: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def is_a(self, system: str, machine: str) -> None:
        self.program("uname", f'case "$1" in -s) echo {system} ;; -m) echo {machine} ;; esac')

    def python(self, name: str, *, right: bool, venv: bool, version: str) -> None:
        """A Python that answers the script's questions: is it right, has it venv, which is it."""
        self.program(
            name,
            f"""case "$1:$2" in
--version:*) echo "Python {version}" ;;
-c:*struct*) exit {0 if right else 1} ;;
-c:*ensurepip*) exit {0 if venv else 1} ;;
-c:*) echo {version.rpartition(".")[0]} ;;
esac""",
        )

    def bootstrap(self, kind: str = "run") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.checkout / "tools" / "bootstrap.sh"), kind],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refused(machine: Machine, words: str) -> None:
    done = machine.bootstrap()
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("farm: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
    assert sorted(p.name for p in machine.checkout.iterdir()) == ["tools"]


def test_an_intel_mac_is_told_to_use_another_machine(machine: Machine) -> None:
    machine.is_a("Darwin", "x86_64")
    machine.program("sysctl", "exit 1")
    refused(machine, "LiteRT has no package for Intel Macs; use an Apple-silicon Mac or a 64-bit Linux machine.")


def test_an_apple_silicon_mac_under_rosetta_is_told_to_leave_it(machine: Machine) -> None:
    machine.is_a("Darwin", "x86_64")
    machine.program("sysctl", "echo 1")
    refused(machine, "runs under Rosetta; open a native one")


@pytest.mark.parametrize("name", ["armv7l", "i686", "riscv64"])
def test_another_processor_is_told_which_ones_work(machine: Machine, name: str) -> None:
    machine.is_a("Linux", name)
    refused(machine, f"LiteRT has no package for Linux on {name}; use an x86-64 or arm64 machine.")


def test_another_system_is_told_which_ones_work(machine: Machine) -> None:
    machine.is_a("FreeBSD", "amd64")
    refused(machine, "LiteRT has no package for FreeBSD")


def test_musl_is_refused(machine: Machine) -> None:
    machine.program("ldd", 'echo "musl libc (x86_64)" >&2; exit 1')
    refused(machine, "musl")


def test_no_python_names_what_to_install(machine: Machine) -> None:
    refused(machine, "found no python3; install one (Debian, Ubuntu: sudo apt install python3 python3-venv)")


def test_an_old_python_is_named(machine: Machine) -> None:
    machine.python("python3", right=False, venv=True, version="3.9.2")
    refused(machine, "found Python 3.9.2; install one")


def test_a_python_without_venv_names_the_package(machine: Machine) -> None:
    machine.python("python3", right=True, venv=False, version="3.11.2")
    refused(machine, "python3 lacks the venv module; install it: sudo apt install python3-venv")


def test_a_newer_python_beside_an_old_python3_is_taken(machine: Machine) -> None:
    machine.python("python3", right=False, venv=True, version="3.9.2")
    machine.python("python3.12", right=True, venv=False, version="3.12.1")
    refused(machine, "python3.12 lacks the venv module; install it: sudo apt install python3.12-venv")


def test_an_unknown_kind_is_refused(machine: Machine) -> None:
    machine.python("python3", right=True, venv=True, version="3.11.2")
    done = machine.bootstrap("everything")
    assert done.returncode != 0
    assert "takes run or dev" in done.stderr
