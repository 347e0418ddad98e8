"""farm report: print a finished run's matrix in any format; reads matrix.json alone."""

from __future__ import annotations

import os
from pathlib import Path

import click

from farm.cli._common import show, show_matrix
from farm.errors import InvalidInput, Problem

FORMATS = ("terminal", "markdown", "html", "json", "junit", "csv")
EPILOG = """\b
Examples:
  farm report runs/20250101T000000-ab12cd
  farm report runs/20250101T000000-ab12cd --format markdown >> "$GITHUB_STEP_SUMMARY"
  farm report runs/20250101T000000-ab12cd --format html --output report.html

RUN is a run folder or a matrix.json. The exit code is 0 whatever the verdicts: this only shows them."""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="terminal", show_default=True, help="What to print."
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write here instead of stdout.")
def command(run: Path, form: str, output: Path | None) -> None:
    """Print the report of RUN."""
    import msgspec

    from farm import codec
    from farm.paths import write_named
    from farm.report import render
    from farm.report.matrix import Matrix

    file = run / "matrix.json" if os.path.isdir(run) else run
    try:
        matrix = codec.from_json(file.read_bytes(), Matrix)
    except FileNotFoundError as error:
        cure = (
            f"farm judge {run} makes it"
            if os.path.isfile(run / "plan.json")
            else "name a run folder, e.g. one under runs/"
        )
        raise InvalidInput(Problem(message="there is no matrix here", file=str(file), cure=cure)) from error
    except OSError as error:
        cure = "check its permissions" if isinstance(error, PermissionError) else "name a run folder or its matrix.json"
        raise InvalidInput(Problem(message=f"cannot be read: {error.strerror}", file=str(file), cure=cure)) from error
    except msgspec.DecodeError as error:
        raise InvalidInput(
            Problem(message=f"is no matrix of farm: {error}", file=str(file), cure="farm judge RUN writes it anew")
        ) from error
    if output is None and form == "terminal":
        show_matrix(matrix)
        return
    text = render(matrix, form)
    if output is None:
        show(text)
        return
    try:
        write_named(output, text.encode())
    except OSError as error:
        raise InvalidInput(
            Problem(
                message=f"cannot be written: {error.strerror}",
                file=str(output),
                cure="choose another place for --output",
            )
        ) from error
