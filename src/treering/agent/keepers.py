"""Keepers: where an agent's conversations are kept.

An agent can keep them in a store, in a saver (see `treering.savers`) or in anything of yours with ``save``
and ``load``, plain or async; or nowhere. For each run a keeper opens a `Book`. That of a store remembers the
head that the run began at: when someone else saves to the thread meanwhile, this run's save fails instead of
overwriting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from treering.agent.driving import Call
from treering.agent.shapes import Message
from treering.aio import AsyncStore
from treering.api import open as open_store
from treering.core.batch import Event
from treering.core.encoding import encode_json
from treering.core.ids import new_id, time_of
from treering.errors import Conflict, InvalidInput
from treering.store import Store
from treering.views.hooks import Hook, HookName, Hooks
from treering.views.journal import thread_scope

FAILED: Final = "checkpoint.failed"
"""The kind of the journal's event that says that an automatic checkpoint could not be saved."""

_SHOWN_CHARS: Final = 2000

Calls = Generator[Call, Any, Any]


class Saver(Protocol):
    """What an agent needs of a saver. Both methods may be async."""

    def save(
        self,
        *,
        thread_id: str,
        messages: list[Any],
        state: dict[str, Any],
        pending_interrupt: Any,
        metadata: dict[str, Any],
    ) -> Any:
        """Keep a checkpoint of a thread and give it back."""
        ...

    def load(self, thread_id: str, /) -> Any:
        """The newest checkpoint of a thread: an object or a dict with what was saved, or ``None``."""
        ...


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a conversation, on its way in or out."""

    messages: list[Message] = []
    state: dict[str, Any] = {}
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    checkpoint: Any = None


class Book(Protocol):
    """One thread, for one run. Its methods are steps for a driver; each ends with its result."""

    def load(self) -> Calls:
        """The newest `Page`; ``None`` for a thread that was never saved."""
        ...

    def save(self, page: Page) -> Calls:
        """Save and give the checkpoint; ``None`` when a hook vetoed it."""
        ...

    def answer(self, decision: str, interrupt_id: str | None, value: Any) -> Calls:
        """Keep a person's decision about the pending interrupt."""
        ...

    def report(self, error: Exception, run_id: str) -> Calls:
        """Leave a note that a checkpoint could not be saved, if that is possible."""
        ...


class Keeper:
    """Opens books. ``checkpointer`` is a store, a URL or folder of one, a saver, or ``None``."""

    def __init__(self, checkpointer: Any, *, namespace: str = "") -> None:
        self.namespace = namespace
        self._ours: Store | None = None
        self._store: Store | None = None
        self._saver: Any = None
        if isinstance(checkpointer, AsyncStore):
            self._store = checkpointer.sync
        elif isinstance(checkpointer, Store):
            self._store = checkpointer
        elif isinstance(checkpointer, (str, Path)):
            self._store = self._ours = open_store(checkpointer)
        elif callable(getattr(checkpointer, "save", None)) and callable(getattr(checkpointer, "load", None)):
            if namespace:
                raise InvalidInput("namespace= goes with a store; a saver has its own, give it there")
            self._saver = checkpointer
        elif checkpointer is not None:
            raise InvalidInput(
                f"{type(checkpointer).__name__} cannot keep checkpoints; give a Store, a URL, "
                "or an object with save(...) and load(thread_id)"
            )

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._store is not None or self._saver is not None

    def attach(self, hooks: Mapping[HookName, Any]) -> None:
        """Add hooks to the store or saver, where they fire whoever saves."""
        if not hooks:
            return
        home: Any = self._store if self._store is not None else self._saver
        own: Any = getattr(home, "hooks", None)
        if not isinstance(own, Hooks):
            raise InvalidInput(
                f"hooks= needs a checkpointer that has hooks; {type(home).__name__} has none"
                if home is not None
                else "hooks= are around checkpoints; give a checkpointer= too"
            )
        for name, each in hooks.items():
            many = cast("list[Hook]", [each] if callable(each) else list(each))
            own.add(name, *many)

    def book(self, thread_id: str | None) -> Book | None:
        """The book of one thread; ``None`` when nothing is kept."""
        if not self.keeps:
            return None
        if thread_id is None:
            raise InvalidInput("thread_id= is missing: it names the conversation that the checkpointer keeps")
        if self._store is not None:
            return _ThreadBook(self._store, thread_id, self.namespace)
        return _SaverBook(self._saver, thread_id)

    def close(self) -> None:
        """Close the store if it was opened here. May be called twice."""
        if self._ours is not None:
            self._ours.close()


class _ThreadBook:
    """A thread of a store."""

    def __init__(self, store: Store, thread_id: str, namespace: str) -> None:
        self._store = store
        self._thread = store.thread(thread_id, namespace=namespace or None)

    def load(self) -> Calls:
        return (yield Call(self._load))

    def save(self, page: Page) -> Calls:
        return (yield Call(self._save, (page,)))

    def answer(self, decision: str, interrupt_id: str | None, value: Any) -> Calls:
        def resume() -> Any:
            return self._thread.resume(cast("Any", decision), interrupt_id=interrupt_id, value=value)

        return (yield Call(resume))

    def report(self, error: Exception, run_id: str) -> Calls:
        yield Call(_report, (self._store, self._thread.id, self._thread.namespace, error, run_id))

    def _load(self) -> Page | None:
        moment = self._thread.load()
        if moment is None:
            return None
        return Page(
            messages=moment.messages,
            state=moment.state,
            pending_interrupt=moment.pending_interrupt,
            metadata=moment.metadata,
            checkpoint=moment,
        )

    def _save(self, page: Page) -> Any:
        return self._thread.checkpoint(
            messages=page.messages,
            state=page.state,
            pending_interrupt=page.pending_interrupt,
            metadata=page.metadata,
            note=page.note,
        )


class _SaverBook:
    """A thread of a saver."""

    def __init__(self, saver: Any, thread_id: str) -> None:
        self._saver = saver
        self._id = thread_id

    def load(self) -> Calls:
        found = yield Call(self._saver.load, (self._id,))
        if found is None:
            return None
        return Page(
            messages=list(_field(found, "messages") or ()),
            state=dict(_field(found, "state") or {}),
            pending_interrupt=_field(found, "pending_interrupt"),
            metadata=dict(_field(found, "metadata") or {}),
            checkpoint=found,
        )

    def save(self, page: Page) -> Calls:
        return (
            yield _keyworded(
                self._saver.save,
                thread_id=self._id,
                messages=page.messages,
                state=page.state,
                pending_interrupt=page.pending_interrupt,
                metadata=page.metadata,
            )
        )

    def answer(self, decision: str, interrupt_id: str | None, value: Any) -> Calls:
        page: Page | None = yield from self.load()
        pending = _pending(page, self._id, interrupt_id)
        payload = value if decision == "edit" else _field(pending, "payload")
        answer = {"id": _field(pending, "id"), "decision": decision, "payload": payload}
        kept = cast("Page", page)
        answered = Page(messages=kept.messages, state=kept.state, metadata={"resumed": answer})
        return (yield from self.save(answered))

    def report(self, error: Exception, run_id: str) -> Calls:
        store = getattr(self._saver, "store", None)
        if isinstance(store, Store):
            namespace = getattr(self._saver, "namespace", "") or ""
            yield Call(_report, (store, self._id, namespace, error, run_id))


def _keyworded(function: Callable[..., Any], **arguments: Any) -> Call:
    return Call(partial(function, **arguments))


def _pending(page: Page | None, thread_id: str, interrupt_id: str | None) -> Any:
    pending = page.pending_interrupt if page is not None else None
    if pending is None:
        raise Conflict(f"thread {thread_id!r} waits for no decision; there is nothing to resume")
    if interrupt_id is not None and _field(pending, "id") != interrupt_id:
        raise Conflict(
            f"thread {thread_id!r} waits for interrupt {_field(pending, 'id')!r}, not {interrupt_id!r}"
        )
    return pending


def _report(store: Store, thread_id: str, namespace: str, error: Exception, run_id: str) -> None:
    made = new_id()
    what = {"thread": thread_id, "error": f"{type(error).__name__}: {error}"[:_SHOWN_CHARS]}
    draft = store.draft()
    draft.event(
        Event(
            id=made,
            kind=FAILED,
            ts_us=time_of(made),
            scope=thread_scope(thread_id, namespace),
            run=run_id,
            name=type(error).__name__,
            status="error",
            data=encode_json(what),
        )
    )
    with suppress(Exception):  # the store that could not save may not be able to say so either
        store.commit(draft)


def _field(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    return getattr(holder, name, None)
