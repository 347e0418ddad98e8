"""Run folders into the history: each run once, again when it was judged again; run folders stay the truth."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import select

from farm import codec
from farm.errors import InvalidInput
from farm.history.database import Database
from farm.history.schema import CELLS, DEVICES, METRICS, RUNS
from farm.report.read import MATRIX, read_matrix, run_folders
from farm.report.value import Matrix, MatrixCell, MatrixDevice

JUDGED = ("pass", "warn", "fail", "error", "unsupported")
BATCH = 5000


def sync(database: Database, root: Path) -> list[str]:
    """Record every run of `root` that the history lacks or has in an older judgement.

    Returns a sentence for each run that cannot be read. Runs whose folders are gone stay in the history.
    """
    with database.reading() as connection:
        have = {row.id: row.stamp for row in connection.execute(select(RUNS.c.id, RUNS.c.stamp))}
    unread = []
    for folder in run_folders(root):
        stamp = _stamp(folder / MATRIX)
        if stamp is None or have.get(folder.name) == stamp:
            continue
        if problem := _record_folder(database, folder, stamp):
            unread.append(problem)
    return unread


def record(database: Database, matrix: Matrix, *, folder: Path, stamp: str, size_bytes: int = 0) -> None:
    """Write one run, in place of what the history may hold of it, whole or not at all."""
    run = matrix.run
    devices = {device.id: device for device in matrix.devices}
    with database.writing() as connection:
        for table in (METRICS, CELLS, DEVICES):
            connection.execute(table.delete().where(table.c.run_id == run.id))
        connection.execute(RUNS.delete().where(RUNS.c.id == run.id))
        connection.execute(
            RUNS.insert().values(
                id=run.id,
                started=run.started,
                finished=run.finished,
                farm_version=run.farm_version,
                inventory_sha256=run.inventory_sha256,
                exit_code=run.exit_code,
                folder=str(folder),
                stamp=stamp,
                cells=len(matrix.cells),
                judged=sum(cell.verdict in JUDGED for cell in matrix.cells if not cell.diagnostic),
                size_bytes=size_bytes,
            )
        )
        rows = (
            (DEVICES, (_device_row(run.id, device) for device in matrix.devices)),
            (CELLS, (_cell_row(run.id, cell, devices.get(cell.device)) for cell in matrix.cells)),
            (METRICS, (row for cell in matrix.cells for row in _metric_rows(run.id, cell))),
        )
        for table, made in rows:
            for batch in _batches(made):
                connection.execute(table.insert(), batch)


def folder_bytes(folder: Path) -> int:
    """What the files of a run folder take, without the objects it shares with other runs."""
    return sum(_size(path) for path in folder.rglob("*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0  # gone meanwhile


def _record_folder(database: Database, folder: Path, stamp: str) -> str | None:
    try:
        matrix = read_matrix(folder)
    except InvalidInput as error:
        return f"left out of the history: {error}"
    record(database, matrix, folder=folder.absolute(), stamp=stamp, size_bytes=folder_bytes(folder))
    return None


def _stamp(file: Path) -> str | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return f"{found.st_size}:{found.st_mtime_ns}"


def _device_row(run: str, device: MatrixDevice) -> dict[str, Any]:
    return {
        "run_id": run,
        "device": device.id,
        "gpu": device.gpu,
        "driver": device.driver,
        "os": device.os,
        "transport": device.transport,
        "profile": device.profile,
        "facts_sha256": device.facts_sha256,
        "facts": codec.to_json(device.facts).decode().replace("\\u0000", "\\ufffd"),
    }


def _cell_row(run: str, cell: MatrixCell, device: MatrixDevice | None) -> dict[str, Any]:
    return {
        "run_id": run,
        "cell_id": cell.id,
        "device": cell.device,
        "gpu": cell.gpu,
        "driver": device.driver if device else "",
        "os": device.os if device else "",
        "model": cell.model,
        "model_sha256": cell.model_sha256,
        "signature": cell.signature,
        "config": cell.config,
        "diagnostic": cell.diagnostic,
        "runtime": cell.runtime,
        "verdict": cell.verdict,
        "reasons": " ".join(cell.reasons),
        "known": cell.known is not None,
        "delegation": cell.delegation,
        "precision_class": cell.precision_class,
        "cause": cell.cause,
        "latency_ms": cell.latency_ms.median if cell.latency_ms else None,
        "latency_p95_ms": cell.latency_ms.p95 if cell.latency_ms else None,
        "compile_ms": cell.compile_ms,
        "peak_rss_bytes": cell.peak_rss_bytes,
        "throttled": bool((cell.thermal or {}).get("throttled")),
        "attempts": cell.attempts,
    }


def _metric_rows(run: str, cell: MatrixCell) -> Iterable[dict[str, Any]]:
    seen = set()
    for output in cell.outputs:
        for name, value in output.metrics.items():
            # A model may give two outputs one name; the first is kept, as reports do.
            if (output.name, name) not in seen:
                seen.add((output.name, name))
                yield {"run_id": run, "cell_id": cell.id, "output": output.name, "name": name, "value": value}


def _text(value: str) -> str:
    """PostgreSQL holds no NUL characters; names from models may."""
    return value.replace("\0", "\ufffd")


def _batches(rows: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append({name: _text(value) if isinstance(value, str) else value for name, value in row.items()})
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
