"""A session: several calls of the services as one transaction.

It collects what the calls write and hands it over as one batch, so nothing is visible or durable before
`commit`, and then all of it is. What a session has written itself can be named in it at once (a span that was
started in it can be ended in it), but `exec` sees what is committed. **Invariant:** a run, a span or a tool
call moves on from the state that this session saw, or the commit is a `Conflict` and leaves no trace.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from treering import api
from treering.core.batch import ABSENT, Delete, Draft, RefChange, Set
from treering.core.content import Address, ObjectAddress, object_address, parse_address
from treering.core.ids import Scope, thread_key
from treering.errors import InvalidInput, NotFound, ReadOnly, TreeringError
from treering.runs.run import run_info, run_ref, write_listing, write_state
from treering.sync_async import Closing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from treering.core.batch import Batch, Event, Expect
    from treering.core.content import Content
    from treering.runs.run import RunInfo
    from treering.store import Store


# -----------------------------------------------------------------------------------------------------------
# The store that the services use when nobody hands one over.


class _Default:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Store | None = None

    def get(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = api.open()
                atexit.register(self._store.close)
            return self._store

    def set(self, store: Store | None) -> None:
        with self._lock:
            self._store = store


_default = _Default()


def use(store: Store | None) -> None:
    """Make this the store of the services in this process.

    Until then (and after ``use(None)``) it is the one that `treering.open()` opens: that of
    ``TREERING_URL``, or the folder ``.treering``. Whoever opened a store closes it; the default one is
    closed at exit.
    """
    _default.set(store)


def current() -> Store:
    """The store in use."""
    return _default.get()


# -----------------------------------------------------------------------------------------------------------

BLOBS = "blob/"
"""Refs that keep a saved payload until something refers to it."""


class Session(Closing):
    """One transaction after the other over a store; leaving it without `commit` rolls back."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sql: Any = None
        self._begin()

    def _begin(self) -> None:
        self._draft = Draft(self.store.space)
        self._objects: dict[str, Content] = {}
        self._used: dict[str, None] = {}
        self._runs: dict[str, tuple[RunInfo, Expect]] = {}
        self._refs: dict[str, RefChange] = {}

    # What its users call
    def exec(self, statement: Any, **options: Any) -> Any:
        """Run a ``select`` of `treering.compat.models` over committed rows; see SQLModel's ``exec``."""
        if self._sql is None:
            from treering.compat.models.connections import open_session

            self._sql = open_session(self.store)
        return self._sql.exec(statement, **options)

    def add(self, *_: Any) -> None:
        """Refused: entities are read here, and written by the services."""
        raise ReadOnly(
            "entities are for reading; write with create_run, start_span, save_message and the others "
            "(session=...)"
        )

    def commit(self) -> None:
        """Make everything since the last commit durable and visible, all or nothing.

        When the store is away for the checkpoint (the error is ``retryable``), `commit` may be called again;
        after any other error everything is rolled back. Changing an entity that was read is `ReadOnly`.
        """
        try:
            if self._sql is not None:
                self._sql.flush()
            batch = self._batch()
            if batch.events or batch.refs or batch.objects:
                self.store.commit(batch)
        except TreeringError as error:
            if not error.retryable:
                self._begin()
            raise
        self._begin()

    def rollback(self) -> None:
        """Forget what was written since the last commit."""
        self._begin()

    def close(self) -> None:
        """Roll back, and let go of the connection."""
        self._begin()
        if self._sql is not None:
            self._sql.close()
            self._sql = None

    async def acommit(self) -> None:
        """`commit`, without blocking the event loop; for `treering.compat.services.aio`."""
        await asyncio.to_thread(self.commit)

    async def aclose(self) -> None:
        """`close`, likewise."""
        await asyncio.to_thread(self.close)

    # What the services call
    def run(self, run_id: str) -> RunInfo:
        """A run as this session sees it."""
        return self.run_with_version(run_id)[0]

    def run_with_version(self, run_id: str) -> tuple[RunInfo, Expect]:
        """The same, and what its ref is expected to be when it moves."""
        if run_id in self._runs:
            return self._runs[run_id]
        name = run_ref(run_id)
        found = self.store.engine.refs(self.store.space, [name])
        if name not in found:
            raise NotFound(f"there is no run {run_id!r}; create_run() makes one")
        return run_info(found[name]), found[name].version

    def set_run(self, info: RunInfo, expect: Expect) -> None:
        """A run's new state; it may change again before the commit."""
        self._runs[info.id] = (info, expect)

    def event(self, event: Event) -> None:
        """A row for the journal."""
        self._draft.event(event)

    def put(self, content: Content, *, scope: str) -> Address:
        """Content of an event of this transaction."""
        return self._draft.put(content, scope=scope)

    def put_object(self, content: Content) -> Address:
        """Content under its own name, whatever its size."""
        self._objects[content.name] = content
        return object_address(content.name)

    def refer(self, address: str, what: str) -> tuple[Address, int]:
        """The address of stored content, and how many bytes there are; it is kept from now on."""
        try:
            place = parse_address(address)
        except InvalidInput:
            raise NotFound(f"{what} {address!r} is nothing that is stored; save_blob() gives an id") from None
        if isinstance(place, ObjectAddress) and place.name in self._objects:
            size = len(self._objects[place.name].data)
        else:
            size = len(self.store.engine.get(self.store.space, [Address(address)])[0].data)
        if isinstance(place, ObjectAddress):
            self._used[place.name] = None
            if place.name not in self._objects:
                self._draft.require(place.name)
        return Address(address), size

    def ref(self, name: str) -> tuple[bytes, Expect] | None:
        """A ref's value as this session sees it, and what to expect when it moves."""
        if name in self._refs:
            change = self._refs[name]
            return (change.change.value, change.expect) if isinstance(change.change, Set) else None
        found = self.store.engine.refs(self.store.space, [name])
        return (found[name].value, found[name].version) if name in found else None

    def set_ref(self, name: str, value: bytes, expect: Expect, *, scope: str) -> None:
        """A ref's new value; it may change again before the commit."""
        self._refs[name] = RefChange(name=name, scope=scope, change=Set(value=value), expect=expect)

    def _batch(self) -> Batch:
        draft = self._draft.batch()
        runs = Draft(self.store.space)
        for info, expect in self._runs.values():
            if expect == ABSENT:
                write_listing(runs, info)
            write_state(runs, info, thread_key=thread_key(info.thread, info.namespace), expect=expect)
        states = runs.batch()
        return structs.replace(
            draft,
            objects=draft.objects | self._objects,
            events=(*draft.events, *states.events),
            refs=(*states.refs, *self._refs.values(), *self._anchors()),
        )

    def _anchors(self) -> Iterator[RefChange]:
        """Payloads that nothing refers to are kept by a ref of their own, until something does."""
        names = {name: BLOBS + name for name in (*self._objects, *self._used)}
        there = self.store.engine.refs(self.store.space, list(names.values())) if names else {}
        for name, ref in names.items():
            scope = str(Scope("", "blob", name))
            if name in self._used:
                if ref in there:
                    yield RefChange(name=ref, scope=scope, change=Delete())
            elif ref not in there:
                anchor = Set(value=b"{}", links=(object_address(name),))
                yield RefChange(name=ref, scope=scope, change=anchor)


def get_session() -> Session:
    """A session over the store in use, for a ``with`` statement; call its `commit` before leaving."""
    return Session(current())


@contextmanager
def within(session: Session | None) -> Generator[Session]:
    """The session that was handed over, or one of its own that is committed at the end."""
    if session is not None:
        yield session
        return
    with get_session() as own:
        yield own
        own.commit()
