"""The story of a model or a device: per cell a line of points over its runs, oldest first, and its trend."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sqlalchemy import func, or_, select

from farm.errors import InvalidInput, Problem
from farm.history.database import Database
from farm.history.schema import CELLS, METRICS, RUNS

LAST = 30
BARS = "▁▂▃▄▅▆▇█"
GAP = "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a cell. snr_db: of the worst output; None where that metric does not apply or nothing ran."""

    run: str
    started: str
    verdict: str
    reasons: tuple[str, ...]
    known: bool
    runtime: str
    model_sha256: str
    driver: str
    os: str
    latency_ms: float | None
    throttled: bool
    snr_db: float | None
    cosine: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """One (device, model, signature, config, runtime) over its runs, oldest first."""

    device: str
    gpu: str
    model: str
    signature: str
    config: str
    runtime: str
    points: tuple[Point, ...]

    @property
    def last(self) -> Point:
        return self.points[-1]


def trails(database: Database, name: str, *, last: int = LAST, diagnostics: bool = False) -> tuple[Trail, ...]:
    """Return the trails of a model or device (a name, or a glob over either) over the last `last` runs that hold it.

    Raises InvalidInput if no run holds it, naming what there is.
    """
    with database.reading() as connection:
        models = set(connection.execute(select(CELLS.c.model).distinct()).scalars())
        devices = set(connection.execute(select(CELLS.c.device).distinct()).scalars())
        wanted_models = {m for m in models if m == name or fnmatchcase(m, name)}
        wanted_devices = {d for d in devices if d == name or fnmatchcase(d, name)}
        if not wanted_models and not wanted_devices:
            raise InvalidInput(_unknown(name, models, devices))
        mine = or_(CELLS.c.model.in_(wanted_models), CELLS.c.device.in_(wanted_devices))
        runs = (
            select(RUNS.c.id)
            .where(RUNS.c.id.in_(select(CELLS.c.run_id).where(mine)))
            .order_by(RUNS.c.started.desc(), RUNS.c.id.desc())
            .limit(last)
        )
        where = [mine, CELLS.c.run_id.in_(runs)]
        if not diagnostics:
            where.append(CELLS.c.diagnostic.is_(False))
        worst = {
            metric: (
                select(METRICS.c.run_id, METRICS.c.cell_id, func.min(METRICS.c.value).label("value"))
                .where(METRICS.c.name == metric, METRICS.c.run_id.in_(runs))
                .group_by(METRICS.c.run_id, METRICS.c.cell_id)
                .subquery()
            )
            for metric in ("snr_db", "cosine")
        }
        query = select(CELLS, RUNS.c.started, *(table.c.value.label(name) for name, table in worst.items()))
        joined = CELLS.join(RUNS, RUNS.c.id == CELLS.c.run_id)
        for table in worst.values():
            joined = joined.outerjoin(table, (table.c.run_id == CELLS.c.run_id) & (table.c.cell_id == CELLS.c.cell_id))
        rows = connection.execute(
            query.select_from(joined).where(*where).order_by(RUNS.c.started, RUNS.c.id, CELLS.c.cell_id)
        ).all()
    found: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    gpus: dict[tuple[str, ...], str] = {}
    for row in rows:
        place = (row.device, row.model, row.signature, row.config, row.runtime)
        gpus[place] = row.gpu
        found[place].append(
            Point(
                run=row.run_id,
                started=row.started,
                verdict=row.verdict,
                reasons=tuple(row.reasons.split()),
                known=row.known,
                runtime=row.runtime,
                model_sha256=row.model_sha256,
                driver=row.driver,
                os=row.os,
                latency_ms=row.latency_ms,
                throttled=row.throttled,
                snr_db=row.snr_db,
                cosine=row.cosine,
            )
        )
    return tuple(
        Trail(
            device=place[0],
            gpu=gpus[place],
            model=place[1],
            signature=place[2],
            config=place[3],
            runtime=place[4],
            points=tuple(points),
        )
        for place, points in found.items()
    )


def model_names(database: Database) -> tuple[str, ...]:
    """Every model the history holds, in order of name."""
    with database.reading() as connection:
        return tuple(sorted(connection.execute(select(CELLS.c.model).distinct()).scalars()))


def sparkline(values: tuple[float | None, ...]) -> str:
    """Draw values as bars between their smallest and largest; a gap where there is none, middle bars for one height."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    # Equal but for rounding: full-height swings would show a storm where there is none.
    flat = high - low <= 0.02 * max(abs(high), abs(low))
    top = len(BARS) - 1
    return "".join(
        GAP if value is None else BARS[top // 2] if flat else BARS[round((value - low) / (high - low) * top)]
        for value in values
    )


def _unknown(name: str, models: set[str], devices: set[str]) -> Problem:
    if not models:
        return Problem(message="the history holds no run yet", cure="sweep first, or name the runs with --out")
    import difflib

    close = difflib.get_close_matches(name, [*models, *devices], n=1)
    listed = ", ".join(sorted(devices)[:10])
    cure = f"the nearest name is '{close[0]}'" if close else f"devices: {listed}; models: {len(models)} of them"
    return Problem(message=f"no run holds a model or device '{name}'", cure=cure)
