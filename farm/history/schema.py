"""The tables and how an older database becomes one of today's. SQLAlchemy Core, for SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    inspect,
    text,
)

from farm.errors import InvalidInput, Problem

VERSION = 2
METADATA = MetaData()

VERSIONS = Table("farm_schema", METADATA, Column("version", Integer, nullable=False))

RUNS = Table(
    "runs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("started", Text, nullable=False),
    Column("finished", Text),
    Column("farm_version", Text, nullable=False),
    Column("inventory_sha256", Text),
    Column("exit_code", Integer, nullable=False),
    Column("folder", Text, nullable=False),
    Column("stamp", Text, nullable=False),  # size and time of matrix.json: tells that a run was judged again
    Column("cells", Integer, nullable=False),
    Column("judged", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),  # of the run folder without shared objects
)

CELLS = Table(
    "cells",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("cell_id", Text, primary_key=True),
    Column("device", Text, nullable=False),
    Column("gpu", Text, nullable=False),
    Column("driver", Text, nullable=False),
    Column("os", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("model_sha256", Text, nullable=False),
    Column("signature", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("diagnostic", Boolean, nullable=False),
    Column("runtime", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("reasons", Text, nullable=False),
    Column("known", Boolean, nullable=False),
    Column("delegation", Text, nullable=False),
    Column("precision_class", Text),
    Column("cause", Text),
    Column("latency_ms", Float),
    Column("latency_p95_ms", Float),
    Column("compile_ms", Float),
    Column("peak_rss_bytes", BigInteger),
    Column("throttled", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False),
    Index("cells_by_model", "model"),
    Index("cells_by_device", "device"),
)

METRICS = Table(
    "metrics",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("cell_id", Text, primary_key=True),
    Column("output", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Float, nullable=False),
    ForeignKeyConstraint(["run_id", "cell_id"], ["cells.run_id", "cells.cell_id"], ondelete="CASCADE"),
)

DEVICES = Table(
    "device_facts",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("device", Text, primary_key=True),
    Column("gpu", Text, nullable=False),
    Column("driver", Text, nullable=False),
    Column("os", Text, nullable=False),
    Column("transport", Text, nullable=False),
    Column("profile", Text),
    Column("facts_sha256", Text),
    Column("facts", Text, nullable=False),
)


def _to_2(connection: Connection) -> None:
    """Sizes of run folders, for the forecast of disk use."""
    connection.execute(text("ALTER TABLE runs ADD COLUMN size_bytes BIGINT NOT NULL DEFAULT 0"))


MIGRATIONS: dict[int, Callable[[Connection], None]] = {2: _to_2}
"""Version → what makes a database of the version before into it. A new database is made as of today at once."""
_LOCK = 0x6661726D
"""Key of PostgreSQL's advisory lock ("farm"): of two farms that start together one migrates, the other waits."""


def migrate(connection: Connection, name: str) -> None:
    """Bring a database to VERSION, all or nothing, in the caller's transaction. Raises InvalidInput if it is newer."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if not inspect(connection).has_table(VERSIONS.name):
        METADATA.create_all(connection)
        connection.execute(VERSIONS.insert().values(version=VERSION))
        return
    have = connection.execute(VERSIONS.select()).scalar_one_or_none()
    if have is None or have > VERSION or have < 1:
        raise InvalidInput(
            Problem(
                message=f"the history has schema version {have}; this farm knows versions up to {VERSION}",
                file=name,
                cure="use the farm that wrote it, or name another database",
            )
        )
    for version in range(have + 1, VERSION + 1):
        MIGRATIONS[version](connection)
        connection.execute(VERSIONS.update().values(version=version))
