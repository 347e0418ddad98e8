"""farm nightly: the night of an inventory, and having the machine start it every night."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli._common import json_option, print_json, show, verbose_option

if TYPE_CHECKING:
    from farm.nightly import Night
    from farm.nightly.schedule import Schedule

EXPLAINED = 3
EPILOG = """\b
Examples:
  farm nightly --inventory inventory.yaml
  farm nightly run --inventory inventory.yaml --json
  farm nightly install --inventory inventory.yaml --at 02:15
  farm nightly uninstall --inventory inventory.yaml

\b
What runs stands under the inventory's nightly:. Every (model, GPU family) comes once before any comes twice, so a night
that its time budget cuts is still useful. The summary says what changed since the last good night.
Exit codes: 0 good, 1 a model failed, 2 bad input and nothing was run, 3 a required (model, GPU family) was judged on
no device."""
RUN_EPILOG = """\b
Examples:
  farm nightly run --inventory inventory.yaml
  farm nightly run --inventory inventory.yaml --json --out /srv/farm/runs

`farm nightly` alone does the same."""
INSTALL_EPILOG = """\b
Examples:
  farm nightly install --inventory inventory.yaml --at 02:15
  farm nightly install --inventory inventory.yaml --with cron --dry-run"""
UNINSTALL_EPILOG = """\b
Examples:
  farm nightly uninstall --inventory inventory.yaml"""

inventory_option = click.option(
    "--inventory",
    "inventory_path",
    type=click.Path(path_type=Path),
    default=Path("inventory.yaml"),
    show_default=True,
    metavar="FILE",
    help="The inventory with its nightly: section.",
)
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder that holds the runs (default: the inventory's store, else runs).",
)
with_option = click.option(
    "--with",
    "kind",
    type=click.Choice(["systemd", "launchd", "cron"]),
    help="What starts the night (default: what this machine has).",
)


class NightGroup(click.Group):
    """A group whose options without a command mean `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_help = set(args) & {"--help", "-h"}
        if not asks_help and (not args or args[0].startswith("-")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=NightGroup, epilog=EPILOG)
def command() -> None:
    """Run the night of an inventory and say what changed since the last good one; or have it run every night."""


@command.command(epilog=RUN_EPILOG)
@inventory_option
@out_option
@click.option(
    "--explain", is_flag=True, help=f"Look for the first bad op of new failures, {EXPLAINED} at most (farm layers)."
)
@json_option
@verbose_option
def run(inventory_path: Path, out: Path | None, explain: bool, as_json: bool, verbose: bool) -> int:
    """Run the night now."""
    from farm.cli._events import run_events
    from farm.cli._progress import SweepProgress
    from farm.events import Both
    from farm.inventory import load_inventory
    from farm.nightly import run_night
    from farm.nightly.kept import nights
    from farm.nightly.night import Listener
    from farm.nightly.words import short, summary

    inventory = load_inventory(inventory_path)
    root = out or (inventory.store.root if inventory.store else None) or Path("runs")
    with SweepProgress(verbose=verbose) as progress, run_events(inventory) as events:
        night = run_night(
            inventory,
            root=root,
            progress=progress if events is None else Both(progress, events),
            listener=None
            if events is None
            else Listener(
                begin=events.begin, end=lambda r: events.end(r.matrix, r.run_folder, interrupted=r.interrupted)
            ),
        )
        if events is not None:
            events.night(night.id, night.exit_code, short(night), good=night.good)
    if as_json:
        print_json(night)
    else:
        earlier = [n for n in nights(root) if n.id != night.id]
        show(summary(night, earlier))
    if night.diff is not None and (explain or (inventory.nightly and inventory.nightly.explain)):
        _explain(night, root, inventory_path, as_json)
    print(f"Night kept in {root / 'nights' / night.id}.json; runs: {', '.join(night.runs)}.", file=sys.stderr)
    return night.exit_code


def _explain(night: Night, root: Path, inventory_path: Path, as_json: bool) -> None:
    """Run `farm layers` on the first new failures whose numbers are wrong."""
    import contextlib

    from farm.cli._app import run as farm
    from farm.store import RunStore

    assert night.diff is not None
    paths = {case.model: case.model_path for case in RunStore.open(root / night.runs[0]).plan.cases}
    wrong = [change.cell for change in night.diff.of("new_failure") if change.now == "fail"]
    for cell in wrong[:EXPLAINED]:
        argv = ["layers", paths[cell.model], "--inventory", str(inventory_path), "--device", cell.device]
        argv += ["--config", cell.config, "--runtime", cell.runtime, "--out", str(root / "layers" / night.id)]
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            farm([*argv, *(["--signature", cell.signature] if cell.signature else [])])


@command.command(epilog=INSTALL_EPILOG)
@inventory_option
@out_option
@with_option
@click.option("--at", default="02:15", show_default=True, metavar="HH:MM", help="Local time of day.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; change nothing.")
def install(inventory_path: Path, out: Path | None, kind: str | None, at: str, dry_run: bool) -> None:
    """Have this machine run the night every day."""
    from farm.inventory import load_inventory
    from farm.nightly import schedule as schedules

    if load_inventory(inventory_path).nightly is None:
        from farm.errors import InvalidInput, Problem

        raise InvalidInput(Problem(message="has no 'nightly:'", file=str(inventory_path), cure="add one first"))
    made = _schedule(inventory_path, out, at)
    chosen = kind or schedules.usual_kind()
    if dry_run:
        for path, text in schedules.files(made, chosen, Path.home()).items():  # type: ignore[arg-type]
            show(f"# {path}\n{text}")
        if chosen == "cron":
            show(schedules.cron_line(made))
        return
    show("\n".join(schedules.install(made, chosen)))  # type: ignore[arg-type]


@command.command(epilog=UNINSTALL_EPILOG)
@inventory_option
@with_option
def uninstall(inventory_path: Path, kind: str | None) -> None:
    """Remove what install has made for this inventory."""
    from farm.nightly import schedule as schedules

    made = _schedule(inventory_path, None, "00:00")
    done = schedules.uninstall(made, kind or schedules.usual_kind())  # type: ignore[arg-type]
    show("\n".join(done) or "There was nothing to remove.")


def _schedule(inventory_path: Path, out: Path | None, at: str) -> Schedule:
    from farm.nightly.schedule import Schedule, parse_at

    hour, minute = parse_at(at)
    path = inventory_path.resolve()
    argv = (sys.executable, "-m", "farm", "nightly", "run", "--inventory", str(path))
    return Schedule(
        argv=(*argv, "--out", str(out.resolve())) if out else argv, inventory=path, hour=hour, minute=minute
    )
