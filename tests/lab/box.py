"""The whole lab in one box: two emulated phones on two GPUs, one SSH host and this machine, as an inventory.

Tests open it as a context; people get it with `make lab` (it stays up until Ctrl-C) and `make lab-sweep`.
Everything lies in one folder and ends with the block: the user's adb server, keys and known hosts are never touched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farm.transports.adb_wire import AdbSocket
from farm.transports.base import Deadline
from tests.lab.adb_server import AdbServer, LabPhone, Phones
from tests.lab.gpus import gpus
from tests.lab.sshd import Sshd, sshd_program


@dataclass(frozen=True, kw_only=True)
class Box:
    """A running lab. home: what HOME has to be for farm to know the host's key; far_home: the host's own home."""

    folder: Path
    server: AdbServer
    phones: Phones
    sshd: Sshd | None
    inventory: Path
    home: Path
    far_home: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a farm process needs to see the lab and nothing of the user's."""
        return {"HOME": str(self.home), "ANDROID_ADB_SERVER_PORT": str(self.server.port)}

    def farm_root(self, phone: LabPhone) -> Path:
        """Where farm keeps its files on a phone, as seen from here."""
        return phone.root / "data/local/tmp/farm"

    @property
    def host_root(self) -> Path:
        """Where farm keeps its files on the host."""
        return self.far_home / ".cache/litert-farm"


def plug(server: AdbServer, serial: str) -> str:
    """Make the server see a phone, as a cable does."""
    return _ask(server, f"host:connect:{serial}")


def unplug(server: AdbServer, serial: str) -> str:
    return _ask(server, f"host:disconnect:{serial}")


def _ask(server: AdbServer, service: str) -> str:
    with AdbSocket(("127.0.0.1", server.port), Deadline(15), "the lab's adb server") as one:
        one.request(service)
        return one.text()


@contextlib.contextmanager
def box(folder: Path, *, ssh: bool = True, models: tuple[str, ...] = ()) -> Iterator[Box]:
    """Start the lab in an empty folder. Raises KeyError when a software GPU is missing (`make lab-gpus` puts it)."""
    drivers = gpus()
    home, far_home = folder / "home", folder / "far-home"
    (home / ".ssh").mkdir(parents=True)
    far_home.mkdir()
    with contextlib.ExitStack() as stack:
        server = AdbServer(folder / "adb")
        server.start()
        stack.callback(server.stop)
        phones = Phones(folder / "phones", 2)
        stack.callback(phones.stop)
        for number, name in enumerate(("llvmpipe", "swiftshader")):
            # As on a real phone, the GPU is the phone's own: no inventory has to choose it.
            phones.tell(
                number,
                env={"VK_ICD_FILENAMES": str(drivers[name])},
                props={
                    "ro.product.model": f"Lab {name}",
                    "ro.build.fingerprint": f"farm/{name}/lab:14/LAB/1:user/keys",
                },
            )
            plug(server, phones.phones[number].serial)
        sshd = None
        if ssh and sshd_program() is not None:
            sshd = Sshd(folder=folder / "sshd", extra=(f"SetEnv HOME={far_home}",))
            sshd.start()
            stack.callback(sshd.stop)
            shutil.copy(sshd.config, home / ".ssh/config")
            shutil.copy(sshd.known_hosts, home / ".ssh/known_hosts")
        inventory = folder / "inventory.yaml"
        inventory.write_text(_inventory(server, phones, sshd, drivers, models))
        yield Box(
            folder=folder, server=server, phones=phones, sshd=sshd, inventory=inventory, home=home, far_home=far_home
        )


def _inventory(
    server: AdbServer, phones: Phones, sshd: Sshd | None, drivers: dict[str, Path], models: tuple[str, ...]
) -> str:
    one, other = phones.phones
    lines = ["devices:"]
    for name, phone, tag in (("phone-fp16", one, "fp16"), ("phone-fp32", other, "fp32")):
        lines += [
            f"- id: {name}",
            "  transport: adb",
            f'  serial: "{phone.serial}"',
            f'  adb_server: "{server.address}"',
            f"  tags: [phone, {tag}]",
        ]
    if sshd is not None:
        lines += ["- id: host", "  transport: ssh", "  host: lab", "  tags: [host]"]
        lines += ["  env:", f'    VK_ICD_FILENAMES: "{drivers["llvmpipe"]}"']
    lines += ["- id: here", "  transport: local", "  env:", f'    VK_ICD_FILENAMES: "{drivers["swiftshader"]}"']
    if models:
        lines += ["models:", *(f'- "{m}"' for m in models)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Keep a lab up for people, or sweep it once."""
    parser = argparse.ArgumentParser(description="the lab in one box")
    parser.add_argument("--sweep", nargs="*", metavar="MODEL", help="sweep these models (default: demo/) and end")
    options = parser.parse_args()
    checkout = Path(__file__).resolve().parents[2]
    folder = Path(tempfile.mkdtemp(prefix="farm-lab-"))
    try:
        with box(folder, models=(f"{checkout}/demo/*.tflite",)) as lab:
            shown = " ".join(f"{k}={v}" for k, v in lab.environment.items())
            cache = os.environ.get("FARM_CACHE_DIR") or str(Path.home() / ".cache/litert-farm")
            if options.sweep is None:
                print(lab.inventory.read_text())
                print("The lab is up until Ctrl-C. In another terminal:\n")
                print(
                    f"  env {shown} FARM_CACHE_DIR={cache} {sys.executable} -m farm sweep --inventory {lab.inventory}"
                )
                sys.stdout.flush()
                ended = threading.Event()
                signal.signal(signal.SIGTERM, lambda *_: ended.set())
                with contextlib.suppress(KeyboardInterrupt):
                    ended.wait()
                return 0
            argv = [sys.executable, "-m", "farm", "sweep", *options.sweep, "--inventory", str(lab.inventory), "--demo"]
            env = {**os.environ, **lab.environment, "FARM_CACHE_DIR": cache}
            return subprocess.run(argv, env=env, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
