"""The physical tables, defined once for SQLite and PostgreSQL.

Alembic's migrations and the SQL of a new store (`engines/sql/*.sql`) are generated from here; nothing imports
this module to read or write data. Three rules: every row names its ``space``, which leads every unique key
and every index, so that the rows of one tenant are one range; spaces, scopes and runs are numbers, so that
they cost a few bytes per row; and two keys are composed (`BODY_PART_BITS`, `ITEM_POSITION_BITS`), so that the
bodies of a commit and the items of a list are each one range of a key.

On PostgreSQL ``space`` leads the primary keys as well: tables can be distributed by it, and row-level
security can compare it. In SQLite a number is the rowid, unique in the whole store: a second index for the
same key, or a clustered key that moves every body to overflow pages, would cost more than it is worth there.

A number that other rows hold is never reused. PostgreSQL's identity columns guarantee that. In SQLite the
rarely written tables are ``AUTOINCREMENT``; of ``commits``, where that would cost a page write per commit,
the row with the highest number is never deleted. See docs/decisions/0002-schema.md.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import TSVECTOR

from treering.engines.sql.rows import BODY_PART_BITS, ITEM_POSITION_BITS

__all__ = ["BODY_PART_BITS", "ITEM_POSITION_BITS", "SQLITE_STATISTICS", "metadata", "metadata_for"]

SQLITE_STATISTICS: Final = (
    ("event", "event", "1000000 200000 1"),
    ("event", "sqlite_autoindex_event_2", "1000000 200000 5000 1"),
    ("event", "event_run", "1000000 200000 100 2 1"),
    ("event", "event_scope", "1000000 200000 200 100 1"),
    ("event", "event_thread", "1000000 200000 200 100 1"),
    ("scope", "sqlite_autoindex_scope_1", "1000000 200000 1"),
    ("commits", "sqlite_autoindex_commits_1", "1000000 200000 1"),
    ("commits", "commits_seq", "1000000 200000 1"),
    ("body", "body_scope", "1000000 200000 10"),
)
"""Statistics for SQLite's planner: table, index, rows in all and for each prefix of the key.

Without them SQLite assumes that a space has a handful of rows, and scans the whole journal of a space instead
of using the index of runs or threads, and all bodies of a space instead of the range of a commit.
"""

metadata: Final = MetaData(naming_convention={"uq": "%(table_name)s_%(column_0_N_name)s_key"})
"""The tables of both databases."""

own_metadata: Final = {"postgresql": MetaData(), "sqlite": MetaData()}
"""The tables that only one of them has."""

_Number = BigInteger().with_variant(Integer(), "sqlite")
_Name = Text(collation="C").with_variant(Text(), "sqlite")
"""Names sort by code point on both databases."""


_ROWID: Final = "rowid"
"""In ``Table.info``: the column that alone is the primary key in SQLite, without the space."""


def metadata_for(dialect: str) -> MetaData:
    """All tables of a database: ``sqlite`` or ``postgresql``."""
    merged = MetaData(naming_convention=metadata.naming_convention)
    for each in (metadata, own_metadata[dialect]):
        for table in each.tables.values():
            copy = table.to_metadata(merged)
            if dialect == "sqlite" and _ROWID in table.info:
                copy.c["space"].primary_key = False
                copy.append_constraint(PrimaryKeyConstraint(str(table.info[_ROWID])))
    return merged


def _space() -> Column[int]:
    return Column("space", _Number, primary_key=True, autoincrement=False)


def _key() -> Column[int]:
    return Column("no", _Number, Identity(), primary_key=True)


def _number(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, _Number, nullable=null)


def _name(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, _Name, nullable=null)


def _bytes(name: str, *, null: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary(), nullable=null)


def _checksum() -> Column[int]:
    """See `core.digests`."""
    return _number("checksum")


meta = Table("meta", metadata, Column("key", _Name, primary_key=True), _name("value"))

scope = Table(
    "scope",
    metadata,
    _space(),
    _key(),
    _name("name"),
    UniqueConstraint("space", "name"),
    sqlite_autoincrement=True,
    info={_ROWID: "no"},
)

run = Table(
    "run",
    metadata,
    _space(),
    Column("no", _Number, primary_key=True, autoincrement=False),
    _name("name"),
    Index("run_name", "space", "name"),
    sqlite_with_rowid=False,
)

commits = Table(
    "commits",
    metadata,
    _space(),
    _key(),
    _name("batch"),
    _number("first_seq"),
    _number("last_seq"),
    _number("committed_at_us"),
    _bytes("receipt", null=True),
    _name("links", null=True),
    _bytes("leaves"),
    _bytes("digest"),
    _checksum(),
    UniqueConstraint("space", "batch"),
    Index("commits_seq", "space", "last_seq"),
    info={_ROWID: "no"},
)

body = Table(
    "body",
    metadata,
    _space(),
    Column("key", _Number, primary_key=True, autoincrement=False),
    _number("scope"),
    _bytes("frame"),
    _bytes("salt"),
    _checksum(),
    Index("body_scope", "space", "scope"),
    info={_ROWID: "key"},
)

event = Table(
    "event",
    metadata,
    _space(),
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("day", Integer(), primary_key=True, autoincrement=False),
    _name("id"),
    _number("commit_no"),
    _name("kind"),
    _number("ts_us"),
    _number("scope"),
    _number("run", null=True),
    _name("span", null=True),
    _name("parent", null=True),
    _name("thread", null=True),
    _name("agent", null=True),
    _name("name", null=True),
    _name("model", null=True),
    _name("role", null=True),
    _name("status", null=True),
    _number("input_tokens", null=True),
    _number("cache_read_tokens", null=True),
    _number("cache_write_tokens", null=True),
    _number("cache_write_1h_tokens", null=True),
    _number("output_tokens", null=True),
    _number("reasoning_tokens", null=True),
    _number("other_tokens", null=True),
    _number("cost_nanos", null=True),
    _name("currency", null=True),
    _number("duration_us", null=True),
    _bytes("data", null=True),
    _name("body", null=True),
    _name("links", null=True),
    _bytes("salt"),
    _checksum(),
    UniqueConstraint("space", "day", "id"),
    sqlite_with_rowid=False,
)
Index("event_scope", event.c.space, event.c.scope, event.c.kind, event.c.seq)
Index(
    "event_run",
    event.c.space,
    event.c.run,
    event.c.ts_us,
    event.c.seq,
    sqlite_where=event.c.run.isnot(None),
    postgresql_where=event.c.run.isnot(None),
)
Index(
    "event_thread",
    event.c.space,
    event.c.thread,
    event.c.kind,
    event.c.seq,
    sqlite_where=sql("thread > ''"),  # other rows are found by their scope
    postgresql_where=sql("thread > ''"),
)

object_ = Table(
    "object",
    metadata,
    _space(),
    Column("name", LargeBinary(), primary_key=True),
    Column("kind", SmallInteger(), nullable=False),
    _number("size"),
    _number("stored_at_us"),
    _number("staged_until_us"),
    _bytes("frame", null=True),
    _number("pack", null=True),
    _number("offset", null=True),
    _number("length", null=True),
    _number("inner_offset", null=True),
)
Index(
    "object_pack",
    object_.c.space,
    object_.c.pack,
    sqlite_where=object_.c.pack.isnot(None),
    postgresql_where=object_.c.pack.isnot(None),
)

pack = Table(
    "pack",
    metadata,
    _space(),
    _key(),
    _name("name"),
    _number("size"),
    _number("created_at_us"),
    UniqueConstraint("space", "name"),
    sqlite_autoincrement=True,
    info={_ROWID: "no"},
)

list_ = Table(
    "list",
    metadata,
    _space(),
    _key(),
    _name("id"),
    _number("scope"),
    _number("parent", null=True),
    _number("start"),
    _number("length"),
    Column("depth", Integer(), nullable=False),
    _number("seq"),
    _bytes("salt"),
    _checksum(),
    UniqueConstraint("space", "id"),
    Index("list_scope", "space", "scope"),
    sqlite_autoincrement=True,
    info={_ROWID: "no"},
)
Index(
    "list_parent",
    list_.c.space,
    list_.c.parent,
    sqlite_where=list_.c.parent.isnot(None),
    postgresql_where=list_.c.parent.isnot(None),
)

item = Table(
    "item",
    metadata,
    _space(),
    Column("key", _Number, primary_key=True, autoincrement=False),
    Column("kind", SmallInteger(), nullable=True),
    _bytes("frame", null=True),
    _name("address", null=True),
    _checksum(),
    info={_ROWID: "key"},
)

ref = Table(
    "ref",
    metadata,
    _space(),
    Column("name", _Name, primary_key=True),
    _number("scope"),
    _number("version"),
    _bytes("value", null=True),
    _name("links", null=True),
    _number("seq"),
    _number("changed_at_us"),
    _name("listed_in", null=True),
    _number("listed_us", null=True),
    _name("namespace", null=True),
    _name("agent", null=True),
    _name("status", null=True),
    _name("thread", null=True),
    _bytes("salt"),
    _checksum(),
    Index("ref_scope", "space", "scope"),
    sqlite_with_rowid=False,
)
for _filters in (
    ("namespace",),
    ("namespace", "agent"),
    ("namespace", "status"),
    ("namespace", "agent", "status"),
    ("namespace", "thread"),
    ("status",),
    (),
):
    # Each is the order of a list under one combination of filters, so a page is one range of an index.
    _set = " AND ".join(
        f"{name} IS NOT NULL" for name in ("listed_in", *(each for each in _filters if each != "namespace"))
    )
    Index(
        "_".join(("ref_listed", *_filters)),
        ref.c.space,
        ref.c.listed_in,
        *(ref.c[name] for name in _filters),
        ref.c.listed_us,
        ref.c.name,
        sqlite_where=sql(_set),
        postgresql_where=sql(_set),
    )
Index(
    "ref_seq",
    ref.c.space,
    ref.c.seq,
    sqlite_where=ref.c.links.isnot(None),
    postgresql_where=ref.c.links.isnot(None),
)

lease = Table(
    "lease",
    metadata,
    _space(),
    Column("name", _Name, primary_key=True),
    _name("holder", null=True),
    _number("token"),
    _number("expires_at_us"),
)

rollup = Table(
    "rollup",
    metadata,
    _space(),
    Column("grain", _Name, primary_key=True),
    Column("key", _Name, primary_key=True),
    Column("day", Integer(), primary_key=True, autoincrement=False),
    Column("agent", _Name, primary_key=True),
    Column("model", _Name, primary_key=True),
    Column("kind", _Name, primary_key=True),
    Column("currency", _Name, primary_key=True),
    Column("bucket", SmallInteger(), primary_key=True, autoincrement=False),
    _number("events"),
    _number("errors"),
    _number("input_tokens"),
    _number("cache_read_tokens"),
    _number("cache_write_tokens"),
    _number("cache_write_1h_tokens"),
    _number("output_tokens"),
    _number("reasoning_tokens"),
    _number("other_tokens"),
    _number("cost_nanos"),
    _number("duration_us"),
    _number("unpriced_events"),
    _number("unpriced_tokens"),
    sqlite_with_rowid=False,
)

collection = Table(
    "collection",
    metadata,
    _space(),
    _key(),
    _name("name"),
    _name("tokens"),
    UniqueConstraint("space", "name"),
    sqlite_autoincrement=True,
    info={_ROWID: "no"},
)

text = Table(
    "text",
    metadata,
    _space(),
    _key(),
    _number("collection"),
    _name("name"),
    _name("namespace"),
    _number("scope"),
    _name("source"),
    _bytes("salt"),
    _checksum(),
    UniqueConstraint("space", "collection", "name"),
    Index("text_scope", "space", "scope"),
    info={_ROWID: "no"},
)


def _spaces(owner: MetaData, key: Column[int], *rest: Any, **options: Any) -> None:
    Table(
        "space",
        owner,
        key,
        _name("name"),
        _number("seq"),
        _number("committed_at_us"),
        _number("created_at_us"),
        Column("scopes_dropped", _Number, nullable=False, server_default=sql("0")),
        *rest,
        **options,
    )


# On PostgreSQL the number follows from the name (`rows.space_number`), so that it is the same in every
# database, and no constraint but the primary key is needed. In SQLite small numbers make small rows.
_spaces(own_metadata["sqlite"], _key(), UniqueConstraint("name"), sqlite_autoincrement=True)
_spaces(
    own_metadata["postgresql"],
    Column("no", _Number, primary_key=True, autoincrement=False),
    Index("space_name", "name"),
)

# Derived from `text`. SQLite has an FTS5 table ``fts_<collection>`` per collection instead, created with the
# collection. The lexemes (stems or trigrams) come from our own code, so no extension is needed.
fts = Table(
    "fts",
    own_metadata["postgresql"],
    _space(),
    Column("no", BigInteger(), primary_key=True, autoincrement=False),
    _number("collection"),
    _name("namespace"),
    Column("terms", TSVECTOR(), nullable=False),
    Index("fts_terms", "terms", postgresql_using="gin"),
    Index("fts_namespace", "space", "collection", "namespace"),
)

# The commit log: pending commits, which are not in the tables above yet (see `sqlite.commit_log`).
fresh = Table(
    "fresh",
    own_metadata["sqlite"],
    Column("slot", Integer(), primary_key=True, autoincrement=False),
    _number("no"),
    _number("space"),
    _bytes("rows"),
)
