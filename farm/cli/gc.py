"""farm gc: make room among kept tensors; verdicts, metrics and reports stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from farm.cli._common import inventory_option, json_option, print_json, show

EPILOG = """\b
Examples:
  farm gc --dry-run
  farm gc --out /srv/farm/runs --budget-gb 50
  farm gc --inventory inventory.yaml

\b
What goes: objects no run names, outputs of cells that passed in older runs, and beyond the budget (the inventory's
store: budget_bytes, or --budget-gb) the oldest runs' bytes. The newest runs, the last good night, runs being written
and unfinished runs lose nothing; no run folder is ever removed."""


@click.command(epilog=EPILOG)
@inventory_option
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder that holds the runs.")
@click.option("--budget-gb", type=click.FloatRange(min=0), help="Room for objects, in 10^9 bytes.")
@click.option("--keep", type=click.IntRange(min=1), default=3, show_default=True, help="Newest runs that lose nothing.")
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@json_option
def command(
    inventory_path: Path | None, out: Path | None, budget_gb: float | None, keep: int, dry_run: bool, as_json: bool
) -> None:
    """Remove kept tensors that are needed least."""
    from farm.collect import make_room, plan_room
    from farm.inventory import load_inventory
    from farm.nightly.kept import last_good, nights

    store = load_inventory(inventory_path).store if inventory_path is not None else None
    root = out or (store.root if store else None) or Path("runs")
    budget = int(budget_gb * 1e9) if budget_gb is not None else (store.budget_bytes if store else None)
    good = last_good(nights(root), root)
    room = plan_room(root, budget_bytes=budget, keep_runs=keep, keep=good.runs if good else ())
    freed = 0 if dry_run else make_room(room)
    over = budget is not None and room.used_bytes - room.freed_bytes > budget
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "dry_run": dry_run,
                "used_bytes": room.used_bytes,
                "objects": room.objects,
                "freed_bytes": room.freed_bytes if dry_run else freed,
                "doomed": [{"sha256": d.sha256, "size_bytes": d.size_bytes, "why": d.why} for d in room.doomed],
                "protected_runs": room.protected,
                "over_budget": over,
            }
        )
        return
    why = Counter(one.why for one in room.doomed)
    names = {
        "orphan": "named by no run",
        "passed": "outputs that passed, of older runs",
        "budget": "oldest, for the budget",
    }
    lines = [f"{room.objects} objects, {room.used_bytes / 1e9:.3f} GB."]
    lines += [f"  {count} {names[word]}" for word, count in why.items()]
    verb = "would be freed" if dry_run else "freed"
    lines.append(f"{room.freed_bytes / 1e9:.3f} GB {verb}; {len(room.protected)} run(s) lose nothing.")
    if over:
        lines.append("Still over the budget: what is left belongs to runs that lose nothing.")
    show("\n".join(lines))
