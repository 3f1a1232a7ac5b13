"""PostgreSQL, for stores that several machines share."""

from treering.errors import MissingExtra

try:
    from treering.engines.postgres.engine import PostgresEngine, open_postgres
except ImportError as error:
    # psycopg is not installed, or finds no libpq.
    if (error.name or "psycopg").partition(".")[0] != "psycopg":
        raise
    raise MissingExtra("PostgreSQL", "postgres") from error

__all__ = ["PostgresEngine", "open_postgres"]
