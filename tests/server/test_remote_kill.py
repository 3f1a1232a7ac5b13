"""Kill the server under its clients: they continue when it is back, and every commit happens once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import treering
from tests.server.test_serving import Server
from treering.core.batch import Add, Draft
from treering.core.query import EventQuery
from treering.engines.remote.engine import RemoteEngine
from treering.engines.remote.transport import ConnectionPool, parse_server_url
from treering.testing import batches
from treering.testing.portrait import all_records

CLIENTS, COMMITS, KILLS = 4, 60, 2


@pytest.mark.faults
def test_clients_survive_a_killed_server(tmp_path):
    store = tmp_path / "store"

    def work(url, client):
        on = RemoteEngine(ConnectionPool(parse_server_url(url, with_key=False), retry_seconds=100))
        receipts = []
        for number in range(COMMITS):
            draft = Draft("default")
            draft.event(batches.event(id=f"{client}.{number}"))
            draft.append(f"list {client}", batches.words(f"{number}"), scope="s", at=number)
            draft.add_to_ref("total", Add(delta=1), scope="s")
            receipts.append(on.commit(draft.batch()) if number % 2 else on.submit(draft.batch()).result(100))
        on.close()
        return receipts

    server = Server(store)
    port = server.url.rpartition(":")[2]
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            working = [pool.submit(work, server.url, client) for client in range(CLIENTS)]
            for kill in range(KILLS):
                _until(server.url, (kill + 1) * CLIENTS * COMMITS // (KILLS + 2))
                server.__exit__()
                server = Server(store, "--port", port)
            receipts = [receipt for each in working for receipt in each.result(100)]
    finally:
        server.__exit__()
    with treering.open(store) as opened:
        on = opened.engine
        assert int(on.refs("default", ["total"])["total"].value) == CLIENTS * COMMITS
        assert len(all_records(on, "default", EventQuery(), limit=1000)) == CLIENTS * COMMITS
        assert {receipt.new_events for receipt in receipts} == {1}
        for client in range(CLIENTS):
            items = on.read_list("default", f"list {client}", 0, COMMITS)
            assert items == [batches.words(f"{number}") for number in range(COMMITS)]
        assert opened.verify().ok


def _until(url, seq):
    """Wait until a sequence number is committed."""
    on = RemoteEngine(ConnectionPool(parse_server_url(url, with_key=False), retry_seconds=100))
    while on.wait("default", seq, seconds=60) <= seq:
        pass
    on.close()
