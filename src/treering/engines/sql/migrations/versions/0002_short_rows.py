"""Rows of the journal that say nothing twice: an index of the threads that a row names itself.

Rows that are there stay as they are; both forms are read. The version keeps older programs, which know
only the long form, from opening the store.

Revision 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("event_thread", table_name="event")
    op.create_index(
        "event_thread",
        "event",
        ["space", "thread", "kind", "seq"],
        sqlite_where=sa.text("thread > ''"),
        postgresql_where=sa.text("thread > ''"),
    )
    if op.get_context().dialect.name == "sqlite":  # what the planner knew of the index went with it
        op.execute("ANALYZE meta")
        op.execute("DELETE FROM sqlite_stat1 WHERE tbl = 'event'")
        for index, statistics in (
            ("event", "1000000 200000 1"),
            ("sqlite_autoindex_event_2", "1000000 200000 5000 1"),
            ("event_run", "1000000 200000 100 2 1"),
            ("event_scope", "1000000 200 100 1"),
            ("event_thread", "1000000 200000 200 100 1"),
        ):
            op.execute(
                f"INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('event', '{index}', '{statistics}')"
            )


def downgrade() -> None:
    raise NotImplementedError("a store only goes forward; to go back, restore a backup")
