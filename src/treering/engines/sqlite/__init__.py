"""The embedded default: one folder, SQLite in WAL mode, nothing to start."""

from treering.engines.sqlite.engine import SqliteEngine, open_sqlite

__all__ = ["SqliteEngine", "open_sqlite"]
