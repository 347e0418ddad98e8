"""The software Vulkan GPUs of this machine: two vendors in one box, chosen by VK_ICD_FILENAMES of the agent.

llvmpipe computes in FP16 when asked for the default precision; SwiftShader has no FP16 and stays exact.
`tools/lab.sh` puts both where this module looks: an environment variable first, then `.lab/` in the checkout, then
the system's folders.
"""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

_PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "llvmpipe": (
        "FARM_LAB_LVP_ICD",
        (
            f"{CHECKOUT}/.lab/llvmpipe/lvp_icd*.json",
            "/usr/share/vulkan/icd.d/lvp_icd*.json",
            "/usr/local/share/vulkan/icd.d/lvp_icd*.json",
        ),
    ),
    "swiftshader": (
        "FARM_LAB_SWIFTSHADER_ICD",
        (
            f"{CHECKOUT}/.lab/swiftshader/vk_swiftshader_icd.json",
            "/usr/lib/chromium/vk_swiftshader_icd.json",
            "/usr/lib/chromium-browser/vk_swiftshader_icd.json",
        ),
    ),
}


def gpus() -> dict[str, Path]:
    """Return name → icd.json of every software GPU found ("llvmpipe", "swiftshader"); an absent one has no entry.

    Raises FileNotFoundError when an environment variable names a file that is not there: a typo must not skip tests.
    """
    found: dict[str, Path] = {}
    for name, (variable, patterns) in _PLACES.items():
        if given := os.environ.get(variable):
            if not Path(given).is_file():
                raise FileNotFoundError(f"{variable} names {given}, which is not a file")
            found[name] = Path(given)
            continue
        for pattern in patterns:
            hits = sorted(Path("/").glob(pattern.lstrip("/")))
            if hits:
                found[name] = hits[0]
                break
    return found


def environment(name: str) -> dict[str, str]:
    """Return the environment that makes `name` the only GPU of a process. Raises KeyError when it is absent."""
    return {"VK_ICD_FILENAMES": str(gpus()[name])}
