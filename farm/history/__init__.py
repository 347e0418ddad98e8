"""Runs over time in a database: an index of run folders that can always be made again from them.

    RUNS/*/matrix.json  ──sync──▶  SQLite (or a PostgreSQL that a lab shares)  ──▶  trails, trends, ages

SQLAlchemy is slow to import, so nothing here is imported before somebody asks for history.
"""

from farm.history.database import Database, open_database
from farm.history.trails import Point, Trail, model_names, trails

__all__ = ["Database", "Point", "Trail", "model_names", "open_database", "trails"]
