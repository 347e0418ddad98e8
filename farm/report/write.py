"""From the matrix to files in the run folder, and to the format a user asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from farm import codec
from farm.errors import InvalidInput, Problem
from farm.report import csv_, html, json_, junit, markdown, terminal
from farm.report.value import Matrix

Format = Literal["terminal", "markdown", "html", "json", "junit", "csv"]
FORMATS: tuple[Format, ...] = ("terminal", "markdown", "html", "json", "junit", "csv")
FILES: dict[str, Callable[[Matrix], str]] = {
    "matrix.json": json_.render,
    "report.html": html.render,
    "report.md": markdown.render,
    "junit.xml": junit.render,
}


def write_reports(matrix: Matrix, folder: Path) -> tuple[Path, ...]:
    """Write matrix.json, report.html, report.md and junit.xml, each whole or not at all; matrix.json first.

    Raises OSError if the folder cannot be written.
    """
    paths = []
    for name, make in FILES.items():
        # `farm judge` makes them again from the journal, which is what must survive a power cut.
        codec.write_whole(folder / name, make(matrix).encode("utf-8"), durable=False)
        paths.append(folder / name)
    return tuple(paths)


def render(matrix: Matrix, fmt: str, *, width: int = 80, colour: bool = False) -> str:
    """Return the report in one format; `width` and `colour` are for the terminal only.

    Raises InvalidInput for an unknown format.
    """
    if fmt == "terminal":
        return terminal.render(matrix, width=width, colour=colour)
    makers: dict[str, Callable[[Matrix], str]] = {
        "markdown": markdown.render,
        "html": html.render,
        "json": json_.render,
        "junit": junit.render,
        "csv": csv_.render,
    }
    if fmt not in makers:
        raise InvalidInput(Problem(message=f"unknown report format '{fmt}'", cure=f"choose from {', '.join(FORMATS)}"))
    return makers[fmt](matrix)
