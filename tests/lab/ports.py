"""Loopback ports for the real services of the lab."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
    return port


def listens(port: int) -> bool:
    """Does anybody take connections there?"""
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex(("127.0.0.1", port)) == 0


def wait_until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path, limit_s: float = 15.0) -> None:
    """Return once a service started as `process` takes connections; fail with its log if it ends or takes too long."""
    end = time.monotonic() + limit_s
    while not listens(port):
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(log.read_text(errors="replace"))
        time.sleep(0.02)
