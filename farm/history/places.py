"""Where runs and their history lie, from what the command and the inventory say."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("runs")


def places(inventory_path: Path | None, out: Path | None, database: str | None) -> tuple[Path, str | Path]:
    """Return the folder of runs and the history's path or URL: the option first, then the inventory's store.

    Raises InvalidInput if the inventory cannot be used.
    """
    store = None
    if inventory_path is not None:
        from farm.inventory import load_inventory

        store = load_inventory(inventory_path).store
    root = out or (store.root if store else None) or RUNS
    named = database or (store.database if store else None)
    if named is None:
        return root, root / "history.sqlite"
    if inventory_path is not None and database is None and "://" not in named:
        return root, inventory_path.parent / named
    return root, named
