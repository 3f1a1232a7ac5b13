"""Runs as numbers, with a table of their names; data without its usual words.

The number of a run follows from its name (`relational.rows.run_number`), so it is the same here and there.
Rows keep their data as it is; both forms are read.

Revision 0003.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

from treering.engines.sql.rows import run_key, run_number

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")
PAGE: Final = 1000

_SQLITE_EVENT: Final = """
CREATE TABLE event (
  space INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  day INTEGER NOT NULL,
  id TEXT NOT NULL,
  commit_no INTEGER NOT NULL,
  kind TEXT NOT NULL,
  ts_us INTEGER NOT NULL,
  scope INTEGER NOT NULL,
  run INTEGER,
  span TEXT,
  parent TEXT,
  thread TEXT,
  agent TEXT,
  name TEXT,
  model TEXT,
  role TEXT,
  status TEXT,
  input_tokens INTEGER,
  cache_read_tokens INTEGER,
  cache_write_tokens INTEGER,
  cache_write_1h_tokens INTEGER,
  output_tokens INTEGER,
  reasoning_tokens INTEGER,
  cost_nanos INTEGER,
  currency TEXT,
  duration_us INTEGER,
  data BLOB,
  body TEXT,
  links TEXT,
  PRIMARY KEY (space, seq, day),
  CONSTRAINT event_space_day_id_key UNIQUE (space, day, id)
) WITHOUT ROWID
"""
_COLUMNS: Final = (
    "space, seq, day, id, commit_no, kind, ts_us, scope, {run}, span, parent, thread, agent, name, model, "
    "role, status, input_tokens, cache_read_tokens, cache_write_tokens, cache_write_1h_tokens, "
    "output_tokens, reasoning_tokens, cost_nanos, currency, duration_us, data, body, links"
)
_NUMBER: Final = "(SELECT no FROM run WHERE run.space = before.space AND run.name = before.run)"
_STATISTICS: Final = (
    ("event", "1000000 200000 1"),
    ("sqlite_autoindex_event_2", "1000000 200000 5000 1"),
    ("event_run", "1000000 200000 100 2 1"),
    ("event_scope", "1000000 200 100 1"),
    ("event_thread", "1000000 200000 200 100 1"),
)


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.PrimaryKeyConstraint("space", "no"),
        sqlite_with_rowid=False,
    )
    op.create_index("run_name", "run", ["space", "name"])
    _name_runs()
    op.drop_index("event_run", table_name="event")
    if op.get_context().dialect.name == "sqlite":
        _rebuild()
    else:
        op.execute(
            "UPDATE event SET run = run.no::text FROM run "
            "WHERE run.space = event.space AND run.name = event.run"
        )
        op.execute("ALTER TABLE event ALTER COLUMN run TYPE bigint USING run::bigint")
    op.create_index(
        "event_run",
        "event",
        ["space", "run", "ts_us", "seq"],
        sqlite_where=sa.text("run IS NOT NULL"),
        postgresql_where=sa.text("run IS NOT NULL"),
    )
    if op.get_context().dialect.name == "sqlite":  # what the planner knew of the table went with it
        op.execute("ANALYZE meta")
        op.execute("DELETE FROM sqlite_stat1 WHERE tbl = 'event'")
        for index, statistics in _STATISTICS:
            op.execute(
                f"INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('event', '{index}', '{statistics}')"
            )


def downgrade() -> None:
    raise NotImplementedError("a store only goes forward; to go back, restore a backup")


def _name_runs() -> None:
    """Give every run its number, in the table of names and in the roll-ups."""
    connection = op.get_bind()
    found = connection.execute(
        sa.text(
            "SELECT space, run FROM event WHERE run IS NOT NULL "
            "UNION SELECT space, key FROM rollup WHERE grain = 'run'"
        )
    ).all()
    for start in range(0, len(found), PAGE):
        runs = [
            {"space": space, "name": name, "no": run_number(name), "key": run_key(name)}
            for space, name in found[start : start + PAGE]
        ]
        connection.execute(sa.text("INSERT INTO run (space, no, name) VALUES (:space, :no, :name)"), runs)
        connection.execute(
            sa.text("UPDATE rollup SET key = :key WHERE space = :space AND grain = 'run' AND key = :name"),
            runs,
        )


def _rebuild() -> None:
    """SQLite changes no column's type: the rows move into a table that has the new one."""
    for index in ("event_scope", "event_thread"):
        op.drop_index(index, table_name="event")
    op.execute("ALTER TABLE event RENAME TO before")
    op.execute(_SQLITE_EVENT)
    op.execute(
        f"INSERT INTO event ({_COLUMNS.format(run='run')}) SELECT {_COLUMNS.format(run=_NUMBER)} FROM before"
    )
    op.execute("DROP TABLE before")
    op.create_index("event_scope", "event", ["scope", "kind", "seq"])
    op.create_index(
        "event_thread", "event", ["space", "thread", "kind", "seq"], sqlite_where=sa.text("thread > ''")
    )
