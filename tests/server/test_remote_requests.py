"""The number of requests per call on a remote store, as documented in docs/remote.md."""

from __future__ import annotations

import httpx
import pytest

import treering
from tests.server.running import running
from treering.server.settings import Settings


@pytest.fixture
def counted():
    """A remote store, and a function that counts the requests of a call."""
    with (
        running(treering.open("memory:"), Settings(calls_per_second=1e6)) as url,
        treering.open(url) as store,
    ):

        def requests() -> int:
            lines = httpx.get(f"{url}/metrics").text.splitlines()
            samples = [each for each in lines if each.startswith("treering_requests_total{")]
            return sum(int(float(each.split()[-1])) for each in samples if 'route="/metrics"' not in each)

        def made(call) -> int:
            before = requests()
            call()
            return requests() - before

        yield store, made


def test_a_thread_takes_the_documented_number_of_requests(counted):
    store, made = counted
    assert made(lambda: store.thread("t").append({"n": 0})) == 2
    thread = store.thread("t")
    assert made(lambda: thread.append({"n": 1})) == 3
    assert made(lambda: thread.append({"n": 2})) == 1
    assert made(lambda: thread.append({"n": 3}, state={"n": 3})) == 1
    assert made(lambda: thread.append({"n": "x" * 50_000})) == 1
    assert made(lambda: store.thread("t").load()) == 2
    assert made(lambda: store.thread("t").load().messages) == 3

    def whole():
        checkpoint = store.thread("t").load()
        return checkpoint.messages, checkpoint.state

    assert made(whole) == 4
    assert made(lambda: store.thread("t").fork("f")) == 3


def test_a_history_is_fetched_in_growing_pages(counted):
    store, made = counted
    thread = store.thread("t")
    for number in range(1000):
        thread.append({"n": number})
    assert made(lambda: list(store.thread("t").history(last=20))) == 3
    assert made(lambda: list(store.thread("t").history())) == 6


def test_state_takes_the_documented_number_of_requests(counted):
    store, made = counted
    assert made(lambda: store.state.set("k", 1)) == 2
    assert made(lambda: store.state.get("k")) == 1
    assert made(lambda: store.state.add("n", 1)) == 1


def test_maintenance_takes_the_documented_number_of_requests(counted):
    store, made = counted
    store.thread("t").append({"n": 0})
    assert made(store.verify) == 5
    assert made(lambda: store.forget(thread="t")) == 7
