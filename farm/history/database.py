"""Opening the history: WAL, deadlines, migrations; a damaged database is kept aside and begun anew."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy import exc as sa

from farm.errors import FarmError, InvalidInput, NoSpace, Problem
from farm.history.schema import migrate

BUSY_S = 30.0
"""How long to wait for another farm's transaction."""


@dataclass(slots=True, kw_only=True)
class Database:
    """An open history. `notes`: sentences the user must see, e.g. that a damaged database was kept aside."""

    name: str
    """Path or URL, without a password."""
    engine: Engine
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database. Raises FarmError in words."""
        with _mapped(self.name), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is kept whole or not at all. Raises FarmError in words, NoSpace for a full disk."""
        options = {"farm_write": True}
        with (
            _mapped(self.name),
            self.engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            yield connection

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_database(where: str | Path) -> Database:
    """Open, and make or migrate, a history: a path of an SQLite file, or a URL such as postgresql+psycopg://host/db.

    A damaged SQLite file is renamed, with what belongs to it, and a new one begun; `notes` tells it. Raises
    InvalidInput for a URL nobody understands, a driver that is not installed, or a database of a newer farm.
    """
    url = _url(where)
    name = url.render_as_string(hide_password=True)
    notes: list[str] = []
    if url.get_backend_name() == "sqlite":
        if not url.database:
            raise InvalidInput(Problem(message="the history needs a file", cure="name one: history.sqlite"))
        path = Path(url.database)
        name = str(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                Problem(message=f"cannot make the folder: {error.strerror or error}", file=str(path.parent))
            ) from error
        if note := _put_aside_if_damaged(path):
            notes.append(note)
    engine = _engine(url, name)
    database = Database(name=name, engine=engine, notes=notes)
    try:
        with database.writing() as connection:
            migrate(connection, name)
    except BaseException:
        engine.dispose()
        raise
    return database


def _url(where: str | Path) -> URL:
    text = str(where)
    if isinstance(where, Path) or "://" not in text:
        return URL.create("sqlite", database=os.path.abspath(os.path.expanduser(text)))
    try:
        url = make_url(text)
        if url.get_backend_name() not in ("sqlite", "postgresql"):
            raise InvalidInput(
                Problem(
                    message=f"a history cannot be kept in '{url.get_backend_name()}'",
                    cure="name a file, or postgresql+psycopg://HOST/DATABASE",
                )
            )
    except sa.ArgumentError as error:
        raise InvalidInput(
            Problem(message="the history's URL cannot be understood", cure="e.g. postgresql+psycopg://HOST/DATABASE")
        ) from error
    return url


def _engine(url: URL, name: str) -> Engine:
    if url.get_backend_name() != "sqlite":
        try:
            # A server in the C locale names SQL_ASCII as its encoding, and psycopg then gives bytes for texts.
            options = {"connect_timeout": int(BUSY_S), "client_encoding": "utf8"}
            return create_engine(url, pool_pre_ping=True, connect_args=options)
        except (sa.NoSuchModuleError, ImportError) as error:
            raise InvalidInput(
                Problem(
                    message=f"the driver for {name} is not installed: {error}", cure="pip install 'psycopg[binary]'"
                )
            ) from error
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _(connection: Any, record: Any) -> None:
        # The driver's own idea of when a transaction begins is switched off: see `begin` below.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        # A write that begins as a read may find at its first INSERT that another farm was faster, and fail at once.
        writes = connection.get_execution_options().get("farm_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def _mapped(name: str) -> Iterator[None]:
    """Map what the driver says to our words."""
    try:
        yield
    except sa.DBAPIError as error:
        words = str(error.orig).strip().splitlines()[0] if error.orig is not None else str(error)
        if "full" in words and isinstance(error.orig, sqlite3.Error):
            raise NoSpace(
                f"no space left for the history {name}; free some, then run the same command again"
            ) from error
        if _is_damage(error.orig):
            raise FarmError(
                f"the history {name} is damaged ({words}); run the same command again: it is kept aside and made anew "
                "from the run folders"
            ) from error
        raise FarmError(f"the history {name} cannot be used: {words}; the runs themselves are kept") from error


def _is_damage(error: object) -> bool:
    # A damaged file raises the class itself; locked, full and read-only ones raise OperationalError.
    return type(error) is sqlite3.DatabaseError


def _put_aside_if_damaged(path: Path) -> str | None:
    """Rename a damaged file and its companions; return what to tell, None if it is sound or absent."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Two farms that find the damage at once must not both rename: the second would put the new file aside.
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = _damage(path)
        if words is None:
            return None
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        aside = path.with_name(f"{path.name}.damaged-{stamp}")
        for suffix in ("", "-wal", "-shm"):
            companion = path.with_name(path.name + suffix)
            if companion.exists():
                os.rename(companion, aside.with_name(aside.name + suffix))
        return (
            f"the history {path} was damaged ({words}); it is kept as {aside.name} and begun anew from the run folders"
        )
    finally:
        os.close(lock)


def _damage(path: Path) -> str | None:
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S)
    except sqlite3.OperationalError:
        return None  # cannot be opened at all: the engine says why, and nothing is renamed for that
    try:
        first = connection.execute("PRAGMA quick_check(1)").fetchone()
        return None if first == ("ok",) else str(first[0])
    except sqlite3.OperationalError:
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.close()
