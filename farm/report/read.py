"""matrix.json read back: by `farm diff`, history and nightly, which compare runs without judging them again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from farm import codec
from farm.errors import InvalidInput, Problem
from farm.report.value import Matrix

MATRIX = "matrix.json"


def read_matrix(run: Path) -> Matrix:
    """Read the matrix of a run folder, or a matrix.json. Raises InvalidInput with the way to get one."""
    file = run / MATRIX if os.path.isdir(run) else run  # pathlib raises on some names that cannot exist
    try:
        matrix = codec.from_json(file.read_bytes(), Matrix)
    except FileNotFoundError as error:
        known = os.path.isfile(run / "plan.json")
        cure = f"farm judge {run} makes it" if known else "name a run folder, e.g. one under runs/"
        raise InvalidInput(Problem(message="there is no matrix here", file=str(file), cure=cure)) from error
    except OSError as error:
        cure = "check its permissions" if isinstance(error, PermissionError) else "name a run folder or its matrix.json"
        message = f"cannot be read: {error.strerror or error}"
        raise InvalidInput(Problem(message=message, file=str(file), cure=cure)) from error
    except msgspec.DecodeError as error:
        raise InvalidInput(
            Problem(message=f"is no matrix of farm: {error}", file=str(file), cure="farm judge RUN writes it anew")
        ) from error
    if matrix.schema_version != 1:
        raise InvalidInput(
            Problem(
                message=f"has schema version {matrix.schema_version}; this farm reads version 1",
                file=str(file),
                cure="use the farm that wrote it",
            )
        )
    return matrix


def run_folders(root: Path) -> list[Path]:
    """Folders of `root` that hold a matrix, oldest first: their names begin with the time they were made."""
    try:
        return sorted(file.parent for file in root.glob(f"[!.]*/{MATRIX}"))
    except OSError:
        return []


def earlier_folders(run: Path) -> list[Path]:
    """The judged runs beside `run` that are older, oldest first; none for a matrix.json that lies elsewhere."""
    run = run.absolute()
    folder = run if run.is_dir() else run.parent
    return [other for other in run_folders(folder.parent) if other.name < folder.name]


def read_earlier(run: Path, most: int) -> tuple[list[Matrix], list[InvalidInput]]:
    """The last `most` judged runs before `run`, oldest first, and what is wrong with those that cannot be read."""
    found: list[Matrix] = []
    unread: list[InvalidInput] = []
    for folder in earlier_folders(run)[-most:]:
        read = _read_or_complaint(folder)
        if isinstance(read, Matrix):
            found.append(read)
        else:
            unread.append(read)
    return found, unread


def _read_or_complaint(folder: Path) -> Matrix | InvalidInput:
    try:
        return read_matrix(folder)
    except InvalidInput as error:
        return error
