"""The initial tables of a store.

Revision 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    is_sqlite = op.get_context().dialect.name == "sqlite"

    def key(column: str) -> sa.PrimaryKeyConstraint:
        """In SQLite, the rowid alone."""
        return sa.PrimaryKeyConstraint(*([column] if is_sqlite else ["space", column]))

    op.create_table(
        "meta",
        sa.Column("key", NAME, nullable=False),
        sa.Column("value", NAME, nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "space",
        sa.Column("no", NUMBER, sa.Identity(), nullable=False)
        if is_sqlite
        else sa.Column("no", NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("committed_at_us", NUMBER, nullable=False),
        sa.Column("created_at_us", NUMBER, nullable=False),
        sa.Column("scopes_dropped", NUMBER, server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("no"),
        *([sa.UniqueConstraint("name", name="space_name_key")] if is_sqlite else []),
        sqlite_autoincrement=True,
    )
    if not is_sqlite:
        op.create_index("space_name", "space", ["name"])
    op.create_table(
        "scope",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, sa.Identity(), nullable=False),
        sa.Column("name", NAME, nullable=False),
        key("no"),
        sa.UniqueConstraint("space", "name", name="scope_space_name_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "run",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.PrimaryKeyConstraint("space", "no"),
        sqlite_with_rowid=False,
    )
    op.create_index("run_name", "run", ["space", "name"])
    op.create_table(
        "commits",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, sa.Identity(), nullable=False),
        sa.Column("batch", NAME, nullable=False),
        sa.Column("first_seq", NUMBER, nullable=False),
        sa.Column("last_seq", NUMBER, nullable=False),
        sa.Column("committed_at_us", NUMBER, nullable=False),
        sa.Column("receipt", sa.LargeBinary(), nullable=True),
        sa.Column("links", NAME, nullable=True),
        sa.Column("leaves", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", NUMBER, nullable=False),
        key("no"),
        sa.UniqueConstraint("space", "batch", name="commits_space_batch_key"),
    )
    op.create_index("commits_seq", "commits", ["space", "last_seq"])
    op.create_table(
        "body",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("key", NUMBER, autoincrement=False, nullable=False),
        sa.Column("scope", NUMBER, nullable=False),
        sa.Column("frame", sa.LargeBinary(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", NUMBER, nullable=False),
        key("key"),
    )
    op.create_index("body_scope", "body", ["space", "scope"])
    op.create_table(
        "event",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("seq", NUMBER, autoincrement=False, nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", NAME, nullable=False),
        sa.Column("commit_no", NUMBER, nullable=False),
        sa.Column("kind", NAME, nullable=False),
        sa.Column("ts_us", NUMBER, nullable=False),
        sa.Column("scope", NUMBER, nullable=False),
        sa.Column("run", NUMBER, nullable=True),
        sa.Column("span", NAME, nullable=True),
        sa.Column("parent", NAME, nullable=True),
        sa.Column("thread", NAME, nullable=True),
        sa.Column("agent", NAME, nullable=True),
        sa.Column("name", NAME, nullable=True),
        sa.Column("model", NAME, nullable=True),
        sa.Column("role", NAME, nullable=True),
        sa.Column("status", NAME, nullable=True),
        sa.Column("input_tokens", NUMBER, nullable=True),
        sa.Column("cache_read_tokens", NUMBER, nullable=True),
        sa.Column("cache_write_tokens", NUMBER, nullable=True),
        sa.Column("cache_write_1h_tokens", NUMBER, nullable=True),
        sa.Column("output_tokens", NUMBER, nullable=True),
        sa.Column("reasoning_tokens", NUMBER, nullable=True),
        sa.Column("other_tokens", NUMBER, nullable=True),
        sa.Column("cost_nanos", NUMBER, nullable=True),
        sa.Column("currency", NAME, nullable=True),
        sa.Column("duration_us", NUMBER, nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.Column("body", NAME, nullable=True),
        sa.Column("links", NAME, nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("space", "seq", "day"),
        sa.UniqueConstraint("space", "day", "id", name="event_space_day_id_key"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "event_run",
        "event",
        ["space", "run", "ts_us", "seq"],
        sqlite_where=sa.text("run IS NOT NULL"),
        postgresql_where=sa.text("run IS NOT NULL"),
    )
    op.create_index("event_scope", "event", ["space", "scope", "kind", "seq"])
    op.create_index(
        "event_thread",
        "event",
        ["space", "thread", "kind", "seq"],
        sqlite_where=sa.text("thread > ''"),
        postgresql_where=sa.text("thread > ''"),
    )
    op.create_table(
        "object",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("size", NUMBER, nullable=False),
        sa.Column("stored_at_us", NUMBER, nullable=False),
        sa.Column("staged_until_us", NUMBER, nullable=False),
        sa.Column("frame", sa.LargeBinary(), nullable=True),
        sa.Column("pack", NUMBER, nullable=True),
        sa.Column("offset", NUMBER, nullable=True),
        sa.Column("length", NUMBER, nullable=True),
        sa.Column("inner_offset", NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("space", "name"),
    )
    op.create_index(
        "object_pack",
        "object",
        ["space", "pack"],
        sqlite_where=sa.text("pack IS NOT NULL"),
        postgresql_where=sa.text("pack IS NOT NULL"),
    )
    op.create_table(
        "pack",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, sa.Identity(), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("size", NUMBER, nullable=False),
        sa.Column("created_at_us", NUMBER, nullable=False),
        key("no"),
        sa.UniqueConstraint("space", "name", name="pack_space_name_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "list",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, sa.Identity(), nullable=False),
        sa.Column("id", NAME, nullable=False),
        sa.Column("scope", NUMBER, nullable=False),
        sa.Column("parent", NUMBER, nullable=True),
        sa.Column("start", NUMBER, nullable=False),
        sa.Column("length", NUMBER, nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", NUMBER, nullable=False),
        key("no"),
        sa.UniqueConstraint("space", "id", name="list_space_id_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "list_parent",
        "list",
        ["space", "parent"],
        sqlite_where=sa.text("parent IS NOT NULL"),
        postgresql_where=sa.text("parent IS NOT NULL"),
    )
    op.create_index("list_scope", "list", ["space", "scope"])
    op.create_table(
        "item",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("key", NUMBER, autoincrement=False, nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=True),
        sa.Column("frame", sa.LargeBinary(), nullable=True),
        sa.Column("address", NAME, nullable=True),
        sa.Column("checksum", NUMBER, nullable=False),
        key("key"),
    )
    op.create_table(
        "ref",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("scope", NUMBER, nullable=False),
        sa.Column("version", NUMBER, nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=True),
        sa.Column("links", NAME, nullable=True),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("changed_at_us", NUMBER, nullable=False),
        sa.Column("listed_in", NAME, nullable=True),
        sa.Column("listed_us", NUMBER, nullable=True),
        sa.Column("namespace", NAME, nullable=True),
        sa.Column("agent", NAME, nullable=True),
        sa.Column("status", NAME, nullable=True),
        sa.Column("thread", NAME, nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("space", "name"),
        sqlite_with_rowid=False,
    )
    op.create_index("ref_scope", "ref", ["space", "scope"])
    for filters in (
        ("namespace",),
        ("namespace", "agent"),
        ("namespace", "status"),
        ("namespace", "agent", "status"),
        ("namespace", "thread"),
        ("status",),
        (),
    ):
        set_columns = ("listed_in", *(name for name in filters if name != "namespace"))
        is_set = sa.text(" AND ".join(f"{name} IS NOT NULL" for name in set_columns))
        op.create_index(
            "_".join(("ref_listed", *filters)),
            "ref",
            ["space", "listed_in", *filters, "listed_us", "name"],
            sqlite_where=is_set,
            postgresql_where=is_set,
        )
    op.create_index(
        "ref_seq",
        "ref",
        ["space", "seq"],
        sqlite_where=sa.text("links IS NOT NULL"),
        postgresql_where=sa.text("links IS NOT NULL"),
    )
    op.create_table(
        "lease",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("holder", NAME, nullable=True),
        sa.Column("token", NUMBER, nullable=False),
        sa.Column("expires_at_us", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("space", "name"),
    )
    op.create_table(
        "rollup",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("grain", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("agent", NAME, nullable=False),
        sa.Column("model", NAME, nullable=False),
        sa.Column("kind", NAME, nullable=False),
        sa.Column("currency", NAME, nullable=False),
        sa.Column("bucket", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("events", NUMBER, nullable=False),
        sa.Column("errors", NUMBER, nullable=False),
        sa.Column("input_tokens", NUMBER, nullable=False),
        sa.Column("cache_read_tokens", NUMBER, nullable=False),
        sa.Column("cache_write_tokens", NUMBER, nullable=False),
        sa.Column("cache_write_1h_tokens", NUMBER, nullable=False),
        sa.Column("output_tokens", NUMBER, nullable=False),
        sa.Column("reasoning_tokens", NUMBER, nullable=False),
        sa.Column("other_tokens", NUMBER, nullable=False),
        sa.Column("cost_nanos", NUMBER, nullable=False),
        sa.Column("duration_us", NUMBER, nullable=False),
        sa.Column("unpriced_events", NUMBER, nullable=False),
        sa.Column("unpriced_tokens", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint(
            "space", "grain", "key", "day", "agent", "model", "kind", "currency", "bucket"
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "collection",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, sa.Identity(), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("tokens", NAME, nullable=False),
        key("no"),
        sa.UniqueConstraint("space", "name", name="collection_space_name_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "text",
        sa.Column("space", NUMBER, autoincrement=False, nullable=False),
        sa.Column("no", NUMBER, sa.Identity(), nullable=False),
        sa.Column("collection", NUMBER, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("namespace", NAME, nullable=False),
        sa.Column("scope", NUMBER, nullable=False),
        sa.Column("source", NAME, nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", NUMBER, nullable=False),
        key("no"),
        sa.UniqueConstraint("space", "collection", "name", name="text_space_collection_name_key"),
    )
    op.create_index("text_scope", "text", ["space", "scope"])
    if not is_sqlite:
        op.create_table(
            "fts",
            sa.Column("space", NUMBER, autoincrement=False, nullable=False),
            sa.Column("no", sa.BigInteger(), autoincrement=False, nullable=False),
            sa.Column("collection", NUMBER, nullable=False),
            sa.Column("namespace", NAME, nullable=False),
            sa.Column("terms", TSVECTOR(), nullable=False),
            sa.PrimaryKeyConstraint("space", "no"),
        )
        op.create_index("fts_namespace", "fts", ["space", "collection", "namespace"])
        op.create_index("fts_terms", "fts", ["terms"], postgresql_using="gin")
    op.execute("INSERT INTO meta (key, value) VALUES ('format', '1')")
    if is_sqlite:
        op.create_table(
            "fresh",
            sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("no", sa.Integer(), nullable=False),
            sa.Column("space", sa.Integer(), nullable=False),
            sa.Column("rows", sa.LargeBinary(), nullable=False),
            sa.PrimaryKeyConstraint("slot"),
        )
        op.execute("ANALYZE meta")
        for table, index, statistics in (
            ("event", "event", "1000000 200000 1"),
            ("event", "sqlite_autoindex_event_2", "1000000 200000 5000 1"),
            ("event", "event_run", "1000000 200000 100 2 1"),
            ("event", "event_scope", "1000000 200000 200 100 1"),
            ("event", "event_thread", "1000000 200000 200 100 1"),
            ("scope", "sqlite_autoindex_scope_1", "1000000 200000 1"),
            ("commits", "sqlite_autoindex_commits_1", "1000000 200000 1"),
            ("commits", "commits_seq", "1000000 200000 1"),
            ("body", "body_scope", "1000000 200000 10"),
        ):
            op.execute(
                f"INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('{table}', '{index}', '{statistics}')"
            )


def downgrade() -> None:
    raise NotImplementedError("downgrades are not supported; to go back, restore a backup")
