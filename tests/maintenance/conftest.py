"""Fixtures: stores of every kind that one process can open, and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import treering
from treering.core import failpoints
from treering.core.batch import Event
from treering.core.content import list_address
from treering.core.encoding import encode, encode_json
from treering.core.ids import Scope
from treering.core.query import EventQuery
from treering.store import Store

KINDS = ("memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres))
ALICE = str(Scope("alice", "thread", "t1"))
BIG = b"tool result " * 1000

OpenStore = Callable[..., Store]


@pytest.fixture
def open_kind(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Store]]:
    """Open a store of a kind; the same name is the same store, except in memory."""
    opened: list[Store] = []
    databases: dict[str, str] = {}

    def open_one(kind: str, name: str = "store", **options: str) -> Store:
        if kind == "postgres" and name not in databases:
            databases[name] = request.getfixturevalue("postgres_server").create_store()
        urls = {"memory": "memory:", "sqlite": str(tmp_path / name), "postgres": databases.get(name, "")}
        opened.append(treering.open(urls[kind], **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
    for url in databases.values():
        request.getfixturevalue("postgres_server").drop_database(url)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store(open_kind: OpenStore, kind: str) -> Store:
    return open_kind(kind)


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


def write_steps(
    store: Store, count: int, *, first: int = 0, thread: str = "t1", namespace: str = "alice"
) -> None:
    """Write what an agent writes: per step a message, an event and a head, sometimes a large result."""
    scope = str(Scope(namespace, "thread", thread))
    for step in range(first, first + count):
        draft = store.draft()
        draft.append(f"{thread}/messages", encode({"role": "user", "n": step}), scope=scope, at=step)
        body = draft.put(encode(BIG + b"%d" % step), scope=scope) if step % 5 == 0 else None
        draft.event(
            Event(
                id=f"{thread}-{step}",
                kind="checkpoint",
                ts_us=step * 1_000_000,
                scope=scope,
                thread=thread,
                body=body,
            )
        )
        draft.set_ref(
            f"{thread}/head",
            encode_json({"checkpoint": f"{thread}-{step}"}),
            scope=scope,
            links=(list_address(f"{thread}/messages"),),
        )
        store.commit(draft)


def write_many(store: Store, count: int) -> None:
    """Write a commit that takes several slices to copy."""
    draft = store.draft()
    for number in range(count):
        draft.event(Event(id=f"many-{number}", kind="note", ts_us=number, scope=ALICE))
    draft.append("many", *(encode(f"item {number}") for number in range(count)), scope=ALICE, at=0)
    draft.set_ref("many", b"1", scope=ALICE, links=(list_address("many"),))
    store.commit(draft)


def kinds_in(store: Store, kind: str) -> list[Event]:
    page = store.engine.scan(store.space, EventQuery(kinds=(kind,)), limit=1000)
    return [record.event for record in page.records]
