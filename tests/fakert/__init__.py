"""A stand-in libLiteRt for faults a real runtime will not produce on demand. See fakert.c for the list."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fakert.c")


def build(folder: Path, *flags: str) -> Path:
    """Compile the stand-in to `folder`/libLiteRt.so and return it. `flags` go to the compiler, e.g. "-DFAKERT_OLD"."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("no C compiler on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "libLiteRt.so"
    command = [
        compiler,
        "-std=gnu11",
        "-O1",
        "-w",
        "-fPIC",
        "-shared",
        *flags,
        str(SOURCE),
        "-o",
        str(target),
        "-lpthread",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return target
