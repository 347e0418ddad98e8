"""The same history on a real PostgreSQL that a lab shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import FarmError
from farm.history import open_database, trails
from farm.history.record import sync
from farm.report import write_reports
from tests.diff.kit import cell, matrix
from tests.lab.postgres import PASSWORD, Postgres, postgres_programs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    import tempfile

    # Not pytest's own folder: only its owner may enter that, and PostgreSQL runs as another account under root.
    with tempfile.TemporaryDirectory(prefix="farm-pg-") as folder:
        Path(folder).chmod(0o755)
        made = Postgres(folder=Path(folder) / "cluster")
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_runs_are_shared_through_postgresql(server: Postgres, tmp_path: Path) -> None:
    for day, verdict in enumerate(("pass", "fail"), 1):
        made = matrix([cell("a\0b", verdict=verdict)], run=f"2025010{day}T000000Z-aaaaaa")
        (tmp_path / made.run.id).mkdir()
        write_reports(made, tmp_path / made.run.id)
    for _ in range(2):
        with open_database(server.url) as database:
            assert PASSWORD not in database.name
            assert sync(database, tmp_path) == []
            (trail,) = trails(database, "phone")
            assert [p.verdict for p in trail.points] == ["pass", "fail"]
            assert trail.last.snr_db == 90.0


def test_a_server_that_refuses_is_a_sentence_without_the_password(server: Postgres) -> None:
    with pytest.raises(FarmError) as refused:
        open_database(server.url.replace(PASSWORD, "wr0ng-one"))
    assert "wr0ng-one" not in str(refused.value)
    assert "password" in str(refused.value)
