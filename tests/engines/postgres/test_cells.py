"""Cells: projects in different databases, and a project that moves while it is used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psycopg
import pytest

import treering
from tests.server.running import running
from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft
from treering.core.content import Content, object_address
from treering.core.failpoints import Injected, armed
from treering.core.query import EventQuery, each_record
from treering.engines import cells
from treering.engines.postgres.move import COPIED, SWITCHED
from treering.engines.sql.rows import space_number
from treering.errors import Conflict, InvalidInput, NotFound, TreeringError, Unsupported
from treering.server.settings import Settings
from treering.testing import batches
from treering.testing.portrait import portrait

WRITERS = 4


@pytest.fixture
def urls(postgres_server, monkeypatch):
    """The home and two cells. A store without cells soon notices the first one."""
    monkeypatch.setattr(cells, "UNUSED_SECONDS", 0.3)
    made = [postgres_server.create_store() for _ in range(3)]
    yield made
    for url in made:
        postgres_server.drop_database(url)


def fill(store):
    with store.run(agent="planner", thread=store.thread("t")) as run:
        run.message("user", "Where is my refund?")
        with run.tool("search", input={"q": "refunds"}) as call:
            call.output = "none"
    store.memory.save("a/tone", "Prefers concise replies.")
    store.thread("t").checkpoint(state={"large": "x" * 10_000})
    store.schedules.cron("0 8 * * *", prompt="Forecast?")


def rows_at(url, *spaces) -> int:
    """How many rows of spaces a database has, in all tables."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT table_name FROM information_schema.columns WHERE column_name = 'space' "
            "AND table_schema = current_schema()"
        ).fetchall()
        numbers = [space_number(each) for each in spaces]
        return sum(
            connection.execute(
                f'SELECT count(*) FROM "{table}" WHERE space = ANY(%s)', (numbers,)
            ).fetchone()[0]
            for (table,) in found
        )


def test_a_moved_project_is_the_same_and_the_others_stay(urls):
    home, cell, _ = urls
    with treering.open(home, namespace="acme") as acme, treering.open(home, namespace="globex") as globex:
        fill(acme)
        fill(globex)
        acme.flush()
        globex.flush()
        before, other = portrait(acme.engine, "acme"), portrait(globex.engine, "globex")
        held = rows_at(home, "acme")
        lease = acme.engine.claim("acme", "job", holder="me", seconds=600)
        report = acme.move_project(cell)
        assert (report.project, report.spaces) == ("acme", ("acme",))
        assert report.rows > held
        assert portrait(acme.engine, "acme") == before
        assert portrait(globex.engine, "globex") == other
        assert (rows_at(home, "acme"), rows_at(cell, "globex")) == (0, 0)
        assert acme.engine.heartbeat(lease, seconds=600).token == lease.token, "its leases move too"
        fill(acme)
        assert acme.verify().ok
        assert globex.verify().ok
        assert acme.engine.spaces() == ["acme", "globex", "treering.cells"]
        assert len(acme.memory.search("concise replies")) == 1
    with treering.open(home, namespace="acme") as again:
        assert again.thread("t").load().state["large"] == "x" * 10_000
        assert [(name, where.url) for name, where in again.cells().items()] == [("acme", cell)]
        with pytest.raises(InvalidInput, match="lives there already"):
            again.move_project(cell)
        again.move_project(None)
        assert again.verify().ok
        fill(again)
        assert (rows_at(cell, "acme"), again.cells()["acme"].url) == (0, "")


def test_packs_of_a_moved_project_outlive_every_gc_of_the_place_it_left(urls, tmp_path):
    """They stay where they are, and the rows that name them are in another database."""
    home, cell, _ = urls
    blobs = FolderBlobs(tmp_path)
    with (
        treering.open(home, namespace="acme", blobs=blobs) as acme,
        treering.open(home, namespace="globex", blobs=blobs) as globex,
    ):
        for store in (acme, globex):
            draft = Draft(store.space)
            names = store.engine.stage(store.space, [batches.noise(700_000, n) for n in range(2)])
            draft.require(*names)
            draft.set_ref("large", b"", scope="s", links=tuple(map(object_address, names)))
            store.engine.commit(draft.batch())
        packs = sorted(tmp_path.rglob("*.pack"))
        assert len(packs) == 2
        for url in (cell, None):
            acme.move_project(url)
            for pack in packs:
                os.utime(pack, (1, 1))
            globex.gc()
            acme.gc()
            sweep = acme.engine.home.sweep if url else acme.engine.engine_at(cell).sweep
            with suppress(TreeringError):  # by a process that does not know of the move yet
                sweep("acme", grace_seconds=0)
            assert sorted(tmp_path.rglob("*.pack")) == packs
            assert acme.verify().ok
            assert globex.verify().ok


def test_nothing_is_lost_or_stale_while_a_project_moves_between_three_servers(urls):
    home, first, second = urls
    over = threading.Event()
    pauses: list[float] = []

    def write(name):
        """Append and count, in a process of its own as far as the store knows; read back each time."""
        acknowledged = 0
        longest = 0.0
        with treering.open(home, namespace="acme") as store, treering.open(home, namespace="acme") as reader:
            while not over.is_set():
                begun = time.monotonic()
                store.thread(name).append(acknowledged)
                store.state.update("total", lambda n: n + 1, default=0)
                longest = max(longest, time.monotonic() - begun)
                acknowledged += 1
                assert reader.thread(name).load().messages[-1] == acknowledged - 1, "another process reads it"
        pauses.append(longest)
        return acknowledged

    def follow():
        seen: list[int] = []
        position = 0
        with treering.open(home, namespace="acme") as store:
            while True:
                was_over = over.is_set()
                last = store.engine.wait("acme", position, seconds=0.2)
                if last > position:
                    page = store.engine.scan("acme", EventQuery(), after=str(position), limit=1000)
                    seen += [record.seq for record in page.records]
                    position = seen[-1] if page.cursor is not None else max(last, *seen[-1:], 0)
                elif was_over:
                    return seen

    with treering.open(home, namespace="acme") as mover, ThreadPoolExecutor(WRITERS + 1) as pool:
        fill(mover)
        writing = [pool.submit(write, f"w{number}") for number in range(WRITERS)]
        following = pool.submit(follow)
        try:
            reports = [mover.move_project(url) for url in (first, second, None)]
        finally:
            over.set()
        counts = [each.result() for each in writing]
        seen = following.result()
        journal = each_record(mover.engine, "acme", EventQuery(), limit=1000)
        assert seen == [record.seq for record in journal], "a follower sees every event once, in order"
        assert all(each.pause_seconds < 1 for each in reports), [each.pause_seconds for each in reports]
        assert mover.state.get("total") == sum(counts)
        for number, count in enumerate(counts):
            assert mover.thread(f"w{number}").load().messages == list(range(count))
        assert mover.verify().ok
    assert sum(counts) > 0
    print(f"checked {sum(counts)} acknowledged writes")
    print(f"pauses {[each.pause_seconds for each in reports]} s, longest write {max(pauses):.2f} s")


@pytest.mark.parametrize("failpoint", [COPIED, SWITCHED])
def test_an_interrupted_move_changes_nothing_or_has_happened(urls, failpoint):
    home, cell, _ = urls
    with treering.open(home, namespace="acme") as store:
        fill(store)
        with armed(failpoint, "raise"), pytest.raises(Injected):
            store.move_project(cell)
        store.thread("t").append("while interrupted", on_conflict="retry")
        with treering.open(home, namespace="acme") as other:
            assert other.thread("t").load().messages[-1] == "while interrupted"
        has_moved = failpoint == SWITCHED
        assert store.engine.home.has_left("acme") is has_moved
        store.move_project(cell)
        assert store.thread("t").load().messages[-1] == "while interrupted"
        assert store.verify().ok
        assert rows_at(home, "acme") == 0


KEY = "operator-0123456789abcdef0123456789"
MOVER = """
import sys, treering
with treering.open(sys.argv[1], namespace="acme") as store:
    store.move_project(sys.argv[2])
"""


@pytest.mark.parametrize("failpoint", [COPIED, SWITCHED])
def test_killing_the_mover_loses_no_acknowledged_write(urls, failpoint):
    home, cell, _ = urls
    acknowledged = dict.fromkeys(("w0", "w1"), 0)
    killed, over = threading.Event(), threading.Event()

    def write(name):
        after = 0
        with treering.open(home, namespace="acme") as store:
            while after < 5 or not over.is_set():  # also after the death of the mover
                store.thread(name).append(acknowledged[name])
                acknowledged[name] += 1
                after += killed.is_set()

    with treering.open(home, namespace="acme") as store, ThreadPoolExecutor(2) as pool:
        fill(store)
        writing = [pool.submit(write, name) for name in acknowledged]
        try:
            died = subprocess.run(
                [sys.executable, "-c", MOVER, home, cell],
                env={**os.environ, "TREERING_FAILPOINTS": f"{failpoint}=kill"},
                check=False,
            )
        finally:
            killed.set()
            over.set()
        for each in writing:
            each.result()
        assert died.returncode == -signal.SIGKILL
        assert store.engine.home.has_left("acme") is (failpoint == SWITCHED)
        for finish in (False, True):
            if finish:
                store.move_project(cell)
            for name, count in acknowledged.items():
                assert store.thread(name).load().messages == list(range(count))
            assert store.verify().ok
        assert rows_at(home, "acme") == 0
    print(f"checked {sum(acknowledged.values())} acknowledged writes")


def test_the_operator_moves_a_project_over_http(urls):
    home, cell, _ = urls
    settings = Settings(project="acme", api_key=KEY)
    with running(treering.open(home), settings) as url, treering.open(url, api_key=KEY) as client:
        fill(client)

        def call(method, path, token=KEY, **body):
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.request(method, url + path, headers=headers, json=body or None, timeout=60)

        assert call("GET", "/store/cell").json() == {"url": None, "moving_to": None}
        admin = call("POST", "/keys", scope="admin", name="team").json()["token"]
        assert call("POST", "/store/move", admin, url=cell).status_code == 403
        moved = call("POST", "/store/move", url=cell)
        assert (moved.status_code, moved.json()["project"]) == (200, "acme")
        assert call("GET", "/store/cell", admin).json() == {"url": cell, "moving_to": None}
        assert rows_at(home, "acme") == 0
        client.thread("t").append("after the move", on_conflict="retry")
        assert client.thread("t").load().messages[-1] == "after the move"
        assert call("POST", "/store/move", url=cell).status_code == 422
        assert call("POST", "/store/move", url=None).status_code == 200
        assert call("GET", "/store/cell").json()["url"] is None
        assert client.thread("t").load().messages[-1] == "after the move"


def test_batches_submitted_during_a_move_are_committed_in_order(urls):
    home, cell, _ = urls
    over = threading.Event()
    with treering.open(home, namespace="acme") as store, ThreadPoolExecutor(1) as pool:
        fill(store)

        def submit():
            futures = []
            while not over.is_set() or len(futures) < 50:
                draft = store.draft()
                draft.append("list", Content("text", b"%d" % len(futures)), scope="/a/b", at=len(futures))
                futures.append(store.engine.submit(draft.batch()))
                time.sleep(0.002)
            return [each.result(60).last_seq for each in futures]

        submitting = pool.submit(submit)
        store.move_project(cell)
        over.set()
        seqs = submitting.result()
        assert seqs == sorted(seqs)
        items = store.engine.read_list("acme", "list", 0, len(seqs))
        assert [int(each.data) for each in items] == list(range(len(seqs)))
        assert store.verify().ok


def test_what_cannot_move_is_refused_and_nothing_changes(urls, tmp_path):
    home, cell, _ = urls
    with treering.open(home, namespace="acme") as store:
        with pytest.raises(NotFound, match="nothing was ever written"):
            store.move_project(cell)
        fill(store)
        with pytest.raises(InvalidInput, match="password"):
            store.move_project("postgresql://me:secret@db/agents")
        with treering.open(cell, namespace="acme") as taken:
            taken.thread("t").append("mine")
        with pytest.raises(Conflict, match="of its own"):
            store.move_project(cell)
        assert store.cells() == {}
        store.thread("t").append("still here", on_conflict="retry")
    with treering.open(tmp_path / "store") as local, pytest.raises(Unsupported, match="treering copy"):
        local.move_project(cell)
