"""Where the files that travel with farm are: profiles, agent source, schemas, demo models.

In an installed wheel they lie under `farm/_data`; in a checkout under the repository root.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource_path(name: str) -> Path:
    """Return the folder or file `name` (e.g. ``agents``, ``device_profiles``, ``demo``).

    Raises FileNotFoundError if this installation lacks it.
    """
    for base in (_PACKAGE / "_data", _PACKAGE.parent):
        if (base / name).exists():
            return base / name
    raise FileNotFoundError(f"this installation of farm lacks '{name}'; reinstall it")
