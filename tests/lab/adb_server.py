"""A real adb server on a port of its own with emulated phones: the user's server and phones are never touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbutils

from tests.lab.ports import free_port, wait_until_it_listens


class AdbServer:
    """One adb server in the foreground, ended by its own process id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),  # its key pair lies there, not in the user's home
            "TMPDIR": str(self.folder),
            "ADB_MDNS": "0",
            "ADB_MDNS_AUTO_CONNECT": "0",
            "ADB_LOCAL_TRANSPORT_MAX_PORT": "5554",  # no search for emulators of whoever works on this machine
        }
        with (self.folder / "adb.log").open("ab") as log:
            self.process = subprocess.Popen(
                [adbutils.adb_path(), "-P", str(self.port), "nodaemon", "server"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        wait_until_it_listens(self.port, self.process, self.folder / "adb.log")

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass(frozen=True, kw_only=True)
class LabPhone:
    """One phone of a `Phones`. root/data is its /data."""

    number: int
    port: int
    root: Path
    rewrite: bool

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"


class Phones:
    """Emulated phones in a process of their own."""

    def __init__(self, folder: Path, count: int = 1, *, auth: str = "none", rewrite: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        program = Path(__file__).with_name("phone_adbd.py")
        argv = [sys.executable, str(program), "--root", str(folder), "--phones", str(count), "--auth", auth]
        with (folder / "phones.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, *(["--rewrite"] if rewrite else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, (folder / "phones.log").read_text()
        self.has_tiny_disk = False
        self.phones = [
            LabPhone(number=n, port=one["port"], root=Path(one["root"]), rewrite=one["rewrite"])
            for n, one in enumerate(json.loads(line))
        ]

    def tell(self, number: int = 0, **order: Any) -> None:
        """Change a phone: faults, props, env, gles; do="cut" | "off" | "on"."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"phone": number, **order}) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ok\n", "the phones' process ended"

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout
            self._process.stdout.close()
