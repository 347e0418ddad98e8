"""farm report: print a finished run's matrix in any format; reads matrix.json alone."""

from __future__ import annotations

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
    from farm.paths import write_named
    from farm.report import render
    from farm.report.read import read_matrix

    matrix = read_matrix(run)
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
