"""A tenant's rows: a role that is bound to it sees no others, and they can be sharded and partitioned."""

from __future__ import annotations

import uuid
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

import treering
from treering.core.query import EventQuery
from treering.engines.postgres.roles import SHARED, bind_role, unbind_role
from treering.engines.sql.rows import space_number
from treering.engines.sql.schema import initial_sql, statements
from treering.errors import InvalidInput, NotFound, ReadOnly
from treering.testing.batches import event, events

SPACES = ("acme", "globex")


@pytest.fixture
def owner(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(owner):
    name = f'o"dd role {uuid.uuid4().hex[:8]}'
    owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    yield name
    owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def url_of(role: str, url: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return f"postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}?user={quote(role)}"


def fill(url: str) -> None:
    """Put rows of two spaces into every table."""
    for space in SPACES:
        with treering.open(url, namespace=space) as store:
            with store.run(agent="planner", thread=store.thread("t")) as run:
                run.message("user", f"hello from {space}")
            store.thread("t").append({"role": "user", "content": "hi"})
            store.memory.save("a/tone", "Prefers concise replies.")
            store.thread("t").checkpoint(state={"large": "x" * 10_000})
            store.schedules.cron("0 8 * * *", prompt="Forecast?")
            assert store.engine.claim(space, "a lease", holder="me", seconds=60)


def tables(connection) -> list[str]:
    found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    return sorted(name for (name,) in found)


def count(connection, table: str, where: str = "true") -> int:
    ((rows,),) = connection.execute(f'SELECT count(*) FROM "{table}" WHERE {where}')
    return rows


def column(table: str) -> str:
    return "no" if table == "space" else "space"


def test_a_role_sees_its_space_only_in_every_table(postgres_url, owner, role):
    fill(postgres_url)
    bind_role(owner, role, "acme")
    mine, other = map(space_number, SPACES)
    filled = 0
    with psycopg.connect(url_of(role, postgres_url), autocommit=True) as bound:
        for table in set(tables(owner)) - SHARED:
            own = count(owner, table, f"{column(table)} = {mine}")
            filled += count(owner, table, f"{column(table)} = {other}") > 0
            assert count(bound, table) == own, table
            assert count(bound, table, f"{column(table)} = {other}") == 0, table
            bound.execute(f'DELETE FROM "{table}" WHERE {column(table)} = {other}')
            if own:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):  # it would hand rows to the other
                    bound.execute(f'UPDATE "{table}" SET {column(table)} = {other}')
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bound.execute("DELETE FROM meta")
        bound.execute("SET row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            count(bound, "event")
    assert filled >= len(tables(owner)) - len(SHARED) - 1, "only packs need a blob store"
    with treering.open(postgres_url, namespace="globex") as store:
        assert store.verify().ok


def test_a_bound_role_uses_its_space_as_usual(postgres_url, owner, role):
    fill(postgres_url)
    bind_role(owner, role, "acme")
    with treering.open(url_of(role, postgres_url), namespace="acme") as store:
        with store.run(agent="planner", thread=store.thread("t")) as run:
            run.message("user", "again")
        store.thread("t").append({"role": "user", "content": "hi"})
        assert len(store.memory.search("concise replies")) == 1
        assert store.engine.spaces() == ["acme"]
        assert store.verify().ok
        with pytest.raises(ReadOnly, match="permission denied for table meta"):
            store.forget(thread="t")  # the owner's, who can tell that it is complete
    with (
        treering.open(url_of(role, postgres_url), namespace="globex") as store,
        pytest.raises(ReadOnly, match="row-level security"),
    ):
        store.thread("t").append("mine?")


def test_a_role_that_only_reads_writes_nothing(postgres_url, owner, role):
    fill(postgres_url)
    bind_role(owner, role, "acme", writes=False)
    with treering.open(url_of(role, postgres_url), namespace="acme") as store:
        assert len(store.thread("t").load().messages) == 1
        with pytest.raises(ReadOnly, match="permission denied"):
            store.thread("t").append("no")


def test_a_role_can_be_bound_again_and_unbound(postgres_url, owner, role):
    fill(postgres_url)
    bind_role(owner, role, "acme")
    bind_role(owner, role, "globex")
    with psycopg.connect(url_of(role, postgres_url), autocommit=True) as bound:
        assert bound.execute("SELECT name FROM space").fetchall() == [("globex",)]
        assert unbind_role(owner, role)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bound.execute("SELECT name FROM space")
    assert not unbind_role(owner, role)


def test_a_role_that_no_policy_holds_is_refused(owner):
    with pytest.raises(InvalidInput, match="bind another role"):
        bind_role(owner, owner.info.user, "acme")
    with pytest.raises(NotFound, match="CREATE ROLE"):
        bind_role(owner, "nobody at all", "acme")


def test_the_space_leads_every_key_and_nothing_points_across_spaces(owner):
    """What Citus needs of a table to distribute it by space."""
    keys = owner.execute(
        "SELECT c.relname, i.relname, a.attname, x.indisunique FROM pg_index AS x "
        "JOIN pg_class AS c ON c.oid = x.indrelid JOIN pg_class AS i ON i.oid = x.indexrelid "
        "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = x.indkey[0] "
        "WHERE c.relnamespace = current_schema()::regnamespace AND NOT c.relname = ANY(%s)",
        (list(SHARED),),
    ).fetchall()
    assert {table for table, *_ in keys} == set(tables(owner)) - SHARED
    for table, name, first, is_unique in keys:
        if is_unique:
            assert first == column(table), name
        else:
            assert first == "space" or name in {"fts_terms", "space_name"}, name
    constraints = owner.execute(
        "SELECT conname FROM pg_constraint WHERE connamespace = current_schema()::regnamespace "
        "AND contype IN ('f', 'x')"
    ).fetchall()
    assert constraints == [], "foreign keys and exclusions would have to be local to a shard"
    numbered = owner.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND is_identity = 'YES'"
    ).fetchall()
    assert {(name, kind) for _, name, kind in numbered} == {("no", "bigint")}, "unique in every shard"
    assert not {table for table, *_ in numbered} & {"space"}
    triggers = owner.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone()
    assert triggers == (0,)


def test_the_journal_can_be_partitioned_by_day(empty_postgres_url):
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        for statement in statements(initial_sql("postgresql")):
            is_journal = statement.startswith("CREATE TABLE event ")
            connection.execute(statement + (" PARTITION BY RANGE (day)" if is_journal else ""))
        for first, last in ((0, 20_000), (20_000, 30_000)):
            connection.execute(
                f"CREATE TABLE event_{first} PARTITION OF event FOR VALUES FROM ({first}) TO ({last})"
            )
    with treering.open(empty_postgres_url) as store:
        for _ in range(3):
            store.thread("t").append({"role": "user", "content": "hi"})
        for _ in range(2):
            store.commit(events("default", event(id="the same", ts_us=1)))
        found = store.engine.scan("default", EventQuery(ids=("the same",))).records
        assert len(found) == 1, "a repeated event is recognised by the key of its partition"
        assert store.verify().ok
        assert len(store.thread("t").load().messages) == 3
    with psycopg.connect(empty_postgres_url) as connection:
        assert count(connection, "event_0") == 1
        assert count(connection, "event_20000") >= 3
