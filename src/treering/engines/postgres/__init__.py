"""For teams and several machines: PostgreSQL, reached by a plain ``postgresql://`` URL."""

from treering.errors import MissingExtra

try:
    from treering.engines.postgres.engine import PostgresEngine, open_postgres
except ImportError as error:
    # psycopg is not there, or there without a libpq that it could use.
    if (error.name or "psycopg").partition(".")[0] != "psycopg":
        raise
    raise MissingExtra("PostgreSQL", "postgres") from error

__all__ = ["PostgresEngine", "open_postgres"]
