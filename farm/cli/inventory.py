"""farm inventory: keep inventory.yaml in step with the phones that are there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli._common import show
from farm.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from farm.discovery import Found
    from farm.inventory import Inventory

EPILOG = """\b
Examples:
  farm inventory sync
  farm inventory sync --file lab.yaml"""

SYNC_EPILOG = """\b
Examples:
  farm inventory sync
  farm inventory sync --file lab.yaml --dry-run

Devices that are in the file already stay as they are, comments included; none is removed. Ids are the phone's model and
the end of its serial; a USB phone gets the tag usb/<hub port>."""


@click.group(epilog=EPILOG)
def command() -> None:
    """Keep an inventory in step with the devices there are."""


@command.command("sync", epilog=SYNC_EPILOG)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    default=Path("inventory.yaml"),
    show_default=True,
    help="The inventory to make or to add to.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be added; write nothing.")
def sync(file: Path, dry_run: bool) -> None:
    """Add the phones that the running adb server lists and the inventory lacks."""
    from farm.discovery import discover
    from farm.inventory import load_inventory

    discovered = discover()
    for note in discovered.notes:
        print(f"note: {note}", file=sys.stderr)
    inventory = load_inventory(file) if file.exists() else None
    known = {d.address.get("serial") for d in inventory.devices} if inventory is not None else set()
    fresh = [
        f
        for f in discovered.found
        if f.state != "ambiguous"
        and (inventory is None if f.device.transport == "local" else f.device.address["serial"] not in known)
    ]
    for f in discovered.found:
        if f.cure:
            print(f"{f.device.id} is {f.state}: {f.cure}", file=sys.stderr)
    text = entries(fresh, inventory)
    if dry_run or not fresh:
        show(text if fresh else f"{file}: nothing to add")
        return
    write(file, text)
    if inventory is not None:
        load_inventory(file)
    show(f"{file}: added {', '.join(f.device.id for f in fresh)}")


def entries(found: list[Found], inventory: Inventory | None) -> str:
    """Return YAML list entries; texts are quoted as JSON, which YAML reads alike, whatever is in them."""
    from farm.discovery import short_id

    taken = {d.id for d in inventory.devices} if inventory is not None else set()
    lines: list[str] = []
    for f in found:
        device = f.device
        name = device.id
        if name in taken:
            name = short_id(f.about.get("model", ""), device.address.get("serial", ""), taken)
        taken.add(name)
        lines += [f"- id: {name}", f"  transport: {device.transport}"]
        lines += [f"  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(device.address.items())]
        usb = re.sub(r"[^A-Za-z0-9._-]", "-", f.about.get("usb", "")).strip("-")
        if usb:
            lines.append(f"  tags: [usb/{usb}]")
    return "\n".join(lines)


def write(file: Path, text: str) -> None:
    """Make the file, or put the entries first in its `devices:`. Raises InvalidInput where that has another form."""
    from farm.paths import write_named

    try:
        if not file.exists():
            write_named(file, f"devices:\n{text}\n".encode())
            return
        old = file.read_text("utf-8")
        found = re.search(r"^devices:[ \t]*(#[^\n]*)?\n(?P<indent>[ \t]*)(?=- |#|\n|\Z)", old, re.MULTILINE)
        if found is None and not re.search(r"^devices:", old, re.MULTILINE):
            new = f"{old.rstrip()}\n\ndevices:\n{text}\n"
        elif found is None:
            raise InvalidInput(
                Problem(
                    message="'devices:' is not a list with a line for each entry, so nothing can be added to it",
                    file=str(file),
                    cure="write it as '- id: …' lines, or add the entries of --dry-run by hand",
                )
            )
        else:
            first = re.search(r"^([ \t]*)- ", old[found.end("indent") - len(found["indent"]) :], re.MULTILINE)
            indent = first[1] if first else ""
            block = "".join(f"{indent}{line}\n" for line in text.splitlines())
            at = old.index("\n", found.start()) + 1
            new = old[:at] + block + old[at:]
        write_named(file, new.encode())
    except OSError as e:
        raise InvalidInput(Problem(message=f"cannot be written: {e.strerror or e}", file=str(file))) from e
