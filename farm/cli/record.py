"""farm record: a qualification record per cell of a run, and whether one still says what it said."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli._common import json_option, print_json, show
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm record runs/20250101T000000-ab12cd
  farm record runs/20250101T000000-ab12cd this-machine--encoder--gpu-fp32 --out qualified
  farm record verify qualified/*.json

farm record RUN is short for farm record make RUN. docs/records.md explains every field."""

MAKE_EPILOG = """\b
Examples:
  farm record make runs/20250101T000000-ab12cd
  farm record make runs/20250101T000000-ab12cd this-machine--encoder--gpu-fp32 --out qualified

Without cells: one record for every cell of the run, in RUN/records. The exit code is 0 whatever the verdicts."""

VERIFY_EPILOG = """\b
Examples:
  farm record verify qualified/this-machine--encoder--gpu-fp32.json
  farm record verify --against-now qualified/*.json

\b
Says "intact", or names each field that changed; then what is otherwise today: Python, system, packages, bands.
Exit codes: 0 intact, 1 a record was changed, 2 a file is no record,
3 intact, but with --against-now something drifted."""


class _MakeByDefault(click.Group):
    """`farm record RUN` without a subcommand's name makes records."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["make", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_MakeByDefault, epilog=EPILOG)
def command() -> None:
    """Write qualification records of a run's cells, or verify them."""


@command.command("make", epilog=MAKE_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("cells", nargs=-1, metavar="[CELL]...")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the records (default: RUN/records)."
)
@json_option
def make(run: Path, cells: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Write one qualification record per cell of RUN."""
    from farm.codec import write_whole
    from farm.records import make_records, record_bytes
    from farm.store import RunStore

    folder = out if out is not None else run / "records"
    made = make_records(RunStore.open(run), cells)
    written = []
    for record in made:
        path = folder / f"{record.about.cell}.json"
        try:
            write_whole(path, record_bytes(record))
        except OSError as e:
            raise InvalidInput(
                Problem(message=f"cannot write: {e.strerror or e}", file=str(path), cure="choose another --out")
            ) from e
        written.append({"file": str(path), "verdict": record.verdict.verdict, "plan_digest": record.plan_digest})
    if as_json:
        print_json(written)
        return
    for one in written:
        show(f"{one['plan_digest'][:16]}  {one['verdict']:<12}  {one['file']}")


@command.command("verify", epilog=VERIFY_EPILOG)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--against-now", is_flag=True, help="Look at this machine's model file, runtime and agent too; drift then counts."
)
@json_option
def verify_(files: tuple[Path, ...], against_now: bool, as_json: bool) -> int:
    """Say whether records are intact or what was changed, and what is otherwise today."""
    from farm.record_check import verify
    from farm.report.words import visible

    seen = [verify(file, against_now=against_now) for file in files]
    if as_json:
        print_json([{"intact": v.intact, "file": v.file, "changed": v.changed, "drift": v.drift, "verdict": v.verdict,
                     "plan_digest": v.plan_digest} for v in seen])  # fmt: skip
    for v in () if as_json else seen:
        show(f"{v.file}: " + (f"intact; verdict {v.verdict}; {v.plan_digest}" if v.intact else "CHANGED"))
        for sentence in v.changed:
            show(f"  {visible(sentence)}")
        for item in v.drift:
            show(f"  drift  {visible(str(item))}")
    if not all(v.intact for v in seen):
        return 1
    return 3 if against_now and any(v.drift for v in seen) else 0
