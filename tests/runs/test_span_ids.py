"""A span's id is made when someone asks for it; whoever asks, and whenever, it is the same one."""

from __future__ import annotations

import threading

import treering
from treering.core.query import EventQuery


def test_many_who_ask_at_once_get_one_id():
    with treering.open("memory:") as store, store.run(agent="a") as run:
        for _ in range(200):
            span, found = run.span("step"), []
            barrier = threading.Barrier(4)

            def ask(span=span, found=found, barrier=barrier):
                barrier.wait()
                found.append(span.id)

            askers = [threading.Thread(target=ask) for _ in range(4)]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
            assert set(found) == {span.id}


def test_the_id_that_was_written_is_the_one_that_is_told():
    with treering.open("memory:") as store:
        with store.run(agent="a") as run:
            with run.span("long") as long:
                store.flush()  # it is announced by the recorder's thread before anyone asked
                with long.span("inner") as inner:
                    pass
            with run.span("quick") as quick:
                pass
            given = run.span("named", id="mine")
        store.flush()
        events = {
            record.event.id: record.event
            for record in store.engine.scan(store.space, EventQuery(run=run.id)).records
        }
    assert {long.id, f"{long.id}:open", inner.id, quick.id} <= set(events)
    assert events[inner.id].parent == long.id
    assert given.id == "mine"


def test_metadata_of_one_span_is_not_another_s():
    with treering.open("memory:") as store:
        with store.run(agent="a") as run:
            with run.span("one") as one:
                one.note(mine=1)
            with run.span("two", metadata={"given": 2}) as two:
                two.note(more=3)
            with run.span("three"):
                pass
        store.flush()
        data = {
            record.event.name: record.event.data
            for record in store.engine.scan(
                store.space, EventQuery(run=run.id, kinds=("span.agent",))
            ).records
        }
    assert data == {"one": b'{"mine":1}', "two": b'{"given":2,"more":3}', "three": None}
