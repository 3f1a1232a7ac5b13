"""Orchestrator: payloads by reference, deduplicated by SHA-256.

The document keeps every payload in one table of blobs and only references in the rows. treering keeps a
payload of 4 KB and more as an object of its own, named by its hash, and packs smaller ones together into
the body of the commit that brought them; both are read back through an address.
"""

from __future__ import annotations

import pytest

import treering
from treering.core.batch import Event
from treering.core.content import ObjectAddress, SlotAddress, parse_address
from treering.core.encoding import decode, encode
from treering.core.query import EventQuery

SCOPE = "/run/1"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
    url = {"memory": lambda: "memory:", "sqlite": lambda: tmp_path / "store"}.get(
        request.param, lambda: request.getfixturevalue("postgres_url")
    )()
    with treering.open(url) as opened:
        yield opened


def save(store, payload):
    """A payload, and an event that refers to it."""
    draft = store.draft()
    address = draft.put(encode(payload), scope=SCOPE)
    draft.event(Event(id=draft.id, kind="message", ts_us=1, scope=SCOPE, run="1", body=address))
    store.commit(draft)
    return address


LARGE_JSON = {"input": "data " * 2000}
LARGE_TEXT = "a long tool result. " * 500


@pytest.mark.parametrize("payload", [LARGE_JSON, LARGE_TEXT], ids=["json", "text"])
def test_equal_large_payloads_of_one_kind_are_one_object(store, payload):
    first, again = save(store, payload), save(store, payload)
    assert first == again
    assert isinstance(parse_address(first), ObjectAddress)
    assert store.engine.stats(store.space).objects == 1
    assert decode(store.engine.get(store.space, [first])[0]) == payload


def test_equal_bytes_of_another_kind_are_another_object(store):
    text = '{"a":"' + "b" * 5000 + '"}'
    assert save(store, text) != save(store, {"a": "b" * 5000})


def test_small_payloads_share_the_body_of_their_commit(store):
    draft = store.draft()
    addresses = [draft.put(encode({"n": number}), scope=SCOPE) for number in range(50)]
    draft.event(Event(id="e", kind="message", ts_us=1, scope=SCOPE, links=tuple(addresses)))
    store.commit(draft)
    places = [parse_address(address) for address in addresses]
    assert {(type(place), place.batch, place.part) for place in places} == {(SlotAddress, draft.id, 0)}
    contents = store.engine.get(store.space, addresses)
    assert [decode(content)["n"] for content in contents] == list(range(50))


def test_rows_hold_references_only(store):
    address = save(store, LARGE_TEXT)
    (record,) = store.engine.scan(store.space, EventQuery(run="1")).records
    assert record.event.body == address
    assert record.event.data is None
    assert store.verify().ok
