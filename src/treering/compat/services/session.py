"""Sessions: several calls of the services as one transaction.

A session collects what the calls write and commits it as one batch, so nothing is visible or durable before
`commit`, and then all of it is. The session sees its own writes (a span started in it can be ended in it),
but `exec` sees committed data only. **Invariant:** a run, a span or a tool call changes from the state that
this session read, or the commit raises `Conflict` and changes nothing.
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
from treering.core.ids import Scope
from treering.errors import InvalidInput, NotFound, ReadOnly, TreeringError
from treering.runs.run import run_from_ref, run_not_found, run_ref, write_listing, write_state
from treering.runs.span import StoredContent
from treering.sync_async import Closing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from treering.core.batch import Batch, Expect
    from treering.core.content import Content
    from treering.runs.recorder import RowWriter
    from treering.runs.run import RunInfo
    from treering.store import Store


BLOBS = "blob/"
"""Prefix of the refs that keep a payload until something refers to it."""


class _DefaultStore:
    """The store of the services when none is passed."""

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


_default = _DefaultStore()


def use(store: Store | None) -> None:
    """Set the store of the services in this process.

    By default, and after ``use(None)``, it is the one that `treering.open()` opens: that of ``TREERING_URL``,
    or the folder ``.treering``. The default store is closed at exit; the caller closes any other.
    """
    _default.set(store)


def current() -> Store:
    """Return the store in use."""
    return _default.get()


class Session(Closing):
    """Consecutive transactions over a store. Leaving it without `commit` rolls back."""

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

    def exec(self, statement: Any, **options: Any) -> Any:
        """Run a ``select`` of `treering.compat.models` on committed rows, like SQLModel's ``exec``."""
        if self._sql is None:
            from treering.compat.models.connections import open_session

            self._sql = open_session(self.store)
        return self._sql.exec(statement, **options)

    def add(self, *_: Any) -> None:
        """Raise `ReadOnly`: entities are written by the services."""
        raise ReadOnly("entities are read-only; write with create_run, start_span, save_message, ...")

    def commit(self) -> None:
        """Make everything since the last commit durable and visible, all or nothing.

        After a ``retryable`` error, `commit` may be called again; after any other error everything is rolled
        back. A changed entity raises `ReadOnly`.
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
        """Discard everything since the last commit."""
        self._begin()

    def close(self) -> None:
        """Roll back, and close the connection."""
        self._begin()
        if self._sql is not None:
            self._sql.close()
            self._sql = None

    async def acommit(self) -> None:
        """`commit` without blocking the event loop, for `treering.compat.services.aio`."""
        await asyncio.to_thread(self.commit)

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    # For the services.
    def run(self, run_id: str) -> RunInfo:
        """Return a run as this session sees it."""
        return self.run_with_version(run_id)[0]

    def run_with_version(self, run_id: str) -> tuple[RunInfo, Expect]:
        """Return a run and the version that its ref must have when it changes."""
        if run_id in self._runs:
            return self._runs[run_id]
        name = run_ref(run_id)
        found = self.store.engine.refs(self.store.space, [name])
        if name not in found:
            raise run_not_found(run_id)
        return run_from_ref(found[name]), found[name].version

    def set_run(self, info: RunInfo, expect: Expect) -> None:
        """Set the new state of a run; it may change again before the commit."""
        self._runs[info.id] = (info, expect)

    def write(self, write: RowWriter) -> None:
        """Add rows to the journal."""
        write(self._draft)

    def put_object(self, content: Content) -> Address:
        """Store content as an object, whatever its size."""
        self._objects[content.name] = content
        return object_address(content.name)

    def refer(self, address: str, what: str) -> StoredContent:
        """Return stored content by its address, and keep it from now on."""
        try:
            parsed = parse_address(address)
        except InvalidInput:
            raise NotFound(f"{what} {address!r} not found; use an id returned by save_blob()") from None
        if isinstance(parsed, ObjectAddress) and parsed.name in self._objects:
            size = len(self._objects[parsed.name].data)
        else:
            size = len(self.store.engine.get(self.store.space, [Address(address)])[0].data)
        if isinstance(parsed, ObjectAddress):
            self._used[parsed.name] = None
            if parsed.name not in self._objects:
                self._draft.require(parsed.name)
        return StoredContent(Address(address), size)

    def ref(self, name: str) -> tuple[bytes, Expect] | None:
        """Return a ref's value as this session sees it, and the version it must have when it changes."""
        if name in self._refs:
            change = self._refs[name]
            return (change.change.value, change.expect) if isinstance(change.change, Set) else None
        found = self.store.engine.refs(self.store.space, [name])
        return (found[name].value, found[name].version) if name in found else None

    def set_ref(self, name: str, value: bytes, expect: Expect, *, scope: str) -> None:
        """Set a ref; it may change again before the commit."""
        self._refs[name] = RefChange(name=name, scope=scope, change=Set(value=value), expect=expect)

    def _batch(self) -> Batch:
        draft = self._draft.batch()
        runs = Draft(self.store.space)
        for info, expect in self._runs.values():
            if expect == ABSENT:
                write_listing(runs, info)
            write_state(runs, info, expect=expect)
        states = runs.batch()
        return structs.replace(
            draft,
            objects=draft.objects | self._objects,
            events=(*draft.events, *states.events),
            refs=(*states.refs, *self._refs.values(), *self._anchors()),
        )

    def _anchors(self) -> Iterator[RefChange]:
        """Refs that keep new payloads until something refers to them."""
        names = {name: BLOBS + name for name in (*self._objects, *self._used)}
        existing = self.store.engine.refs(self.store.space, list(names.values())) if names else {}
        for name, ref in names.items():
            scope = str(Scope("", "blob", name))
            if name in self._used:
                if ref in existing:
                    yield RefChange(name=ref, scope=scope, change=Delete())
            elif ref not in existing:
                anchor = Set(value=b"{}", links=(object_address(name),))
                yield RefChange(name=ref, scope=scope, change=anchor)


def get_session() -> Session:
    """Return a session over the store in use, for a ``with`` statement; `commit` before leaving it."""
    return Session(current())


@contextmanager
def transaction(session: Session | None) -> Generator[Session]:
    """The given session, or a new one that is committed at the end."""
    if session is not None:
        yield session
        return
    with get_session() as own:
        yield own
        own.commit()
