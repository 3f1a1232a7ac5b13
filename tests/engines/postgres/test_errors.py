"""Errors of PostgreSQL say what failed, where, and what to do, and never show the password."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import treering
from tests.servers import ports
from treering.engines.postgres import open_postgres
from treering.engines.postgres.errors import ConnectionLost
from treering.errors import Busy, InvalidInput, ReadOnly, TreeringError, Unreachable
from treering.testing import batches


def _admin(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def _as_user(url, user, password=""):
    return url.replace("//treering@", f"//{user}:{password}@" if password else f"//{user}@")


def test_a_missing_server_is_unreachable():
    (port,) = ports.free(1)
    with pytest.raises(Unreachable) as caught:
        open_postgres(f"postgresql://someone:geheim@127.0.0.1:{port}/agents")
    assert f"127.0.0.1:{port}, database 'agents'" in str(caught.value)
    assert "check that the server is running" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_missing_database_is_named(postgres_url):
    missing = postgres_url.rpartition("/")[0] + "/not_there"
    with pytest.raises(Unreachable, match='database "not_there" does not exist'):
        open_postgres(missing)


def test_a_wrong_password_is_reported_and_not_shown(empty_postgres_url):
    user = f"u{uuid.uuid4().hex}"
    _admin(empty_postgres_url, f"CREATE ROLE {user} LOGIN PASSWORD 'right'")
    _require_password(empty_postgres_url, user)
    try:
        with pytest.raises(Unreachable) as caught:
            open_postgres(_as_user(empty_postgres_url, user, "wr0ng"))
        assert "password authentication failed" in str(caught.value)
        assert "wr0ng" not in str(caught.value)
        _admin(empty_postgres_url, f"GRANT CREATE ON SCHEMA public TO {user}")
        engine = open_postgres(_as_user(empty_postgres_url, user, "right"))
        assert "right" not in engine.url
        assert engine.url == _as_user(empty_postgres_url, user)
        engine.close()
    finally:
        _admin(empty_postgres_url, f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def _require_password(url, user):
    """Put a line into the server's list of who may come in, ahead of the one that lets everyone in."""
    with psycopg.connect(url, autocommit=True) as connection:
        ((path, rules),) = connection.execute(
            "SELECT s, pg_read_file(s) FROM current_setting('hba_file') AS s"
        )
        lines = [f"host all {user} 127.0.0.1/32 scram-sha-256", *rules.splitlines()]
        connection.execute("CREATE TEMP TABLE rules AS SELECT unnest(%s::text[]) AS line", (lines,))
        connection.execute(f"COPY rules TO '{path}'")
        connection.execute("SELECT pg_reload_conf()")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # the server reads its rules in a moment
        try:
            psycopg.connect(_as_user(url, user)).close()
        except psycopg.OperationalError:
            return
    pytest.fail("the server still lets everyone in")


def test_a_url_that_cannot_be_read_is_invalid():
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        open_postgres("postgresql://u:geheim@host:5432/x?nonsense=1")
    assert "geheim" not in str(caught.value)


def test_a_foreign_database_is_refused(empty_postgres_url):
    _admin(empty_postgres_url, "CREATE TABLE invoices (no int)")
    with pytest.raises(InvalidInput, match="invoices"):
        open_postgres(empty_postgres_url)


def test_a_database_in_another_encoding_is_refused(postgres_url):
    name = f"latin_{uuid.uuid4().hex}"
    _admin(postgres_url, f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(InvalidInput, match="LATIN1"):
        open_postgres(postgres_url.rpartition("/")[0] + f"/{name}")
    _admin(postgres_url, f"DROP DATABASE {name}")


def test_a_store_may_live_in_a_schema_of_its_own(empty_postgres_url):
    _admin(empty_postgres_url, "CREATE TABLE invoices (no int)", "CREATE SCHEMA agents")
    engine = open_postgres(empty_postgres_url + "?options=-csearch_path%3Dagents")
    engine.commit(batches.set_ref("default", "r"))
    assert engine.refs("default", ["r"])
    engine.close()


def test_a_read_only_database_can_be_read(postgres_url):
    open_postgres(postgres_url).close()
    name = conninfo_to_dict(postgres_url)["dbname"]
    writer = open_postgres(postgres_url)
    writer.commit(batches.set_ref("default", "r"))
    writer.close()
    _admin(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    engine = open_postgres(postgres_url)
    assert engine.refs("default", ["r"])
    with pytest.raises(ReadOnly, match="primary"):
        engine.commit(batches.set_ref("default", "r"))
    engine.close()


def test_missing_rights_are_reported(postgres_url):
    open_postgres(postgres_url).close()
    user = f"u{uuid.uuid4().hex}"
    _admin(
        postgres_url, f"CREATE ROLE {user} LOGIN", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"
    )
    engine = open_postgres(_as_user(postgres_url, user))
    try:
        with pytest.raises(ReadOnly, match="grant this role"):
            engine.commit(batches.set_ref("default", "r"))
    finally:
        engine.close()
        _admin(postgres_url, f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_text_that_postgresql_cannot_hold_is_invalid(postgres_url):
    engine = open_postgres(postgres_url)
    with engine._database.reading() as session, pytest.raises(InvalidInput, match="NUL"):
        session.rows("SELECT no FROM space WHERE name = ?", ("a\x00b",))
    with engine._database.reading() as session, pytest.raises(InvalidInput, match="surrogate"):
        session.rows("SELECT no FROM space WHERE name = ?", ("a\ud800b",))
    assert engine.spaces() == []
    engine.close()


@pytest.mark.parametrize(
    "state,kind",
    [
        ("08006", ConnectionLost),
        ("57P01", ConnectionLost),
        ("53100", treering.errors.StoreFull),
        ("25006", ReadOnly),
        ("42501", ReadOnly),
        ("40P01", Busy),
        ("40001", Busy),
        ("55P03", Busy),
        ("57014", Busy),
        ("53300", Busy),
        ("XX001", treering.errors.Corrupt),
        ("22021", InvalidInput),
        ("54000", InvalidInput),
        ("42P01", TreeringError),
    ],
)
def test_the_servers_state_decides_the_class(postgres_url, state, kind):
    engine = open_postgres(postgres_url)
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'the message' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(kind) as caught, engine._database.writing() as session:
        session.run(raising)
    assert type(caught.value) is kind
    assert "the message" in str(caught.value)
    assert postgres_url.rpartition("/")[2] in str(caught.value)
    engine.commit(batches.set_ref("default", "r"))
    engine.close()


def test_without_psycopg_the_command_to_install_it_is_named():
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import treering\n"
        "try:\n    treering.open('postgresql://localhost/x')\n"
        "except treering.errors.MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'treering[postgres]'" in done.stdout
