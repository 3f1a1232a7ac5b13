"""The clock, randomness and ids of the agent's own code, as they were."""

from __future__ import annotations

import datetime  # noqa: ICN001 - as agents do
import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from datetime import datetime as Moment  # noqa: N812
from random import choice
from uuid import uuid4

import httpx
import pytest

import treering
from treering.runs.exchanges import read_exchanges


def everything() -> list:
    items = list("abcdefghij")
    random.shuffle(items)
    return [
        time.time(),
        time.time_ns(),
        Moment.now().isoformat(),  # noqa: DTZ005
        Moment.now(UTC).isoformat(),
        datetime.datetime.now().isoformat(),  # noqa: DTZ005
        datetime.datetime.utcnow().isoformat(),  # noqa: DTZ003
        datetime.date.today().isoformat(),  # noqa: DTZ011
        str(uuid.uuid4()),
        str(uuid4()),
        str(uuid.uuid1()),
        random.random(),
        random.randint(1, 10**9),
        random.sample(range(1000), 5),
        random.choices("xyz", k=9),
        choice(range(10**9)),
        items,
    ]


def ask(server, text: str) -> str:
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body).text


def test_a_replay_gives_the_times_numbers_and_ids_of_the_recording(server, store) -> None:
    def work() -> list:
        first = everything()
        return [
            first,
            ask(server, str(first)),
            everything(),
            ask(server, f"it is {time.time()}"),
            everything(),
        ]

    with treering.record(store) as run:
        recorded = work()
    with treering.replay(store, run.id, complete=True):
        again = work()
    assert again == recorded
    assert server.count == 2
    assert everything() != recorded[0]


def test_a_recording_changes_nothing_of_what_a_seed_gives(store) -> None:
    def numbers() -> list:
        random.seed(42)
        items = list(range(20))
        random.shuffle(items)
        return [
            random.random(),
            choice("abcdef"),
            random.sample("abcdef", 3),
            random.choices("ab", k=5),
            items,
        ]

    before = numbers()
    with treering.record(store):
        assert numbers() == before


def test_moments_stay_ordinary_objects(store) -> None:
    with treering.record(store):
        now = Moment.now(UTC)
        assert isinstance(now, Moment)
        assert isinstance(datetime.date.today(), datetime.date)  # noqa: DTZ011
        assert Moment(2026, 1, 2, tzinfo=UTC) < now
    assert type(now) is Moment
    assert Moment.__module__ == "datetime"


def test_libraries_keep_their_own_clock_and_ids(server, store) -> None:
    with treering.record(store) as run, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: ask(server, str(number)), range(8)))
    store.flush()
    drawn = {key for each in read_exchanges(store.engine, store.space, run.id) for key in each.draws}
    assert all("provider.py:" in key for key in drawn), "only the server of the tests, which runs here too"


def test_one_function_that_asks_more_often_does_not_shift_another(server, store) -> None:
    def id_of_order() -> str:
        return str(uuid4())

    def trace(times: int) -> None:
        for _ in range(times):
            uuid4()

    with treering.record(store) as run:
        trace(1)
        first = [id_of_order(), ask(server, "x"), id_of_order()]
    with treering.replay(store, run.id):
        trace(5)
        assert [id_of_order(), ask(server, "x"), id_of_order()] == first


def test_without_draws_everything_is_new(server, store) -> None:
    with treering.record(store, draws=False) as run:
        first = ask(server, "x"), uuid4()
    with treering.replay(store, run.id):
        assert (ask(server, "x"), uuid4()) != first
    with pytest.raises(treering.errors.NotFound):
        treering.replay(store, "nothing")
