"""Write the JSON Schemas of the files people write: farm/schemas/{inventory,model-spec,profile}.schema.json,
and of the qualification records farm writes.

Editors complete and check YAML with them. Run after a change to farm/doors; `--check` only says whether they are fresh.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "farm" / "schemas"
_LOADER_ONLY = "Some rules (unique ids, files that exist, names that refer to each other) only farm itself checks."


def schemas() -> dict[str, str]:
    """Return file name → text of every schema."""
    from farm.doors.base import Door
    from farm.doors.inventory import InventoryDoor
    from farm.doors.profile import ProfileDoor
    from farm.doors.spec import SpecDoor

    doors: dict[str, type[Door]] = {"inventory": InventoryDoor, "model-spec": SpecDoor, "profile": ProfileDoor}
    from farm import codec, records

    made = {f"{name}.schema.json": _text(name, door.model_json_schema()) for name, door in doors.items()}
    return {**made, "record.schema.json": codec.to_json(records.schema(), indent=2).decode()}


def _text(name: str, schema: dict[str, Any]) -> str:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"farm {name.replace('-', ' ')}",
        "$comment": f"Written by tools/export_schemas.py. {_LOADER_ONLY}",
    }
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(argv: list[str]) -> int:
    stale = [name for name, text in schemas().items() if not _same(FOLDER / name, text)]
    if "--check" in argv:
        for name in stale:
            print(f"farm/schemas/{name} is stale: run tools/export_schemas.py", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(schemas()[name], encoding="utf-8")
        print(f"wrote farm/schemas/{name}")
    return 0


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
