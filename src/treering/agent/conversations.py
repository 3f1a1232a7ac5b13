"""Keepers: where an agent's conversations are kept.

An agent can keep them in a store, in a saver (see `treering.compat.savers`) or in anything of yours with
``save`` and ``load``, plain or async; or nowhere. For each run a keeper opens a `Book`, which remembers the
head that the run began at: when someone else saves to the thread meanwhile, this run's save fails instead of
overwriting. (A saver of yours sees to that itself, or does not.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from treering.agent.driver import Call
from treering.agent.messages import Message
from treering.api import open as open_store
from treering.compat.savers.checkpoint import NEW
from treering.compat.savers.saver import Saver as TreeringSaver
from treering.core.batch import Event
from treering.core.encoding import encode_json
from treering.core.ids import new_id, thread_scope, time_of
from treering.errors import InvalidInput
from treering.store import Store
from treering.threads.hooks import Hook, HookName, Hooks
from treering.threads.interrupts import Decision, answer_interrupt

FAILED: Final = "checkpoint.failed"
"""The kind of the journal's event that says that an automatic checkpoint could not be saved."""

_SHOWN_CHARS: Final = 2000

Calls = Generator[Call, Any, Any]
Around = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing goes around it."""
    return function


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
    """A checkpoint of a conversation, on its way in or out."""

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

    def save(self, page: Page, within: Around = as_it_is) -> Calls:
        """Save and give the checkpoint; ``None`` when a hook vetoed it. ``within`` goes around the saving."""
        ...

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
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
        below = getattr(checkpointer, "sync", None)  # of an AsyncStore, which not every agent has to import
        if isinstance(checkpointer, Store):
            self._store = checkpointer
        elif isinstance(below, Store):
            self._store = below
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
    def store(self) -> Store | None:
        """The store, if conversations are kept in one: the timeline of its runs is there as well."""
        return self._store

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
    """A thread of a store. What is at its head already is not looked at again when it is saved."""

    def __init__(self, store: Store, thread_id: str, namespace: str) -> None:
        self._store = store
        self._thread = store.thread(thread_id, namespace=namespace or None)
        self._kept = 0

    def load(self) -> Calls:
        return (yield Call(self._load))

    def save(self, page: Page, within: Around = as_it_is) -> Calls:
        return (yield Call(within(self._save), (page,), settles=True))

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
        resume = partial(self._thread.resume, interrupt_id=interrupt_id, value=value)
        return (yield Call(resume, (decision,), settles=True))

    def report(self, error: Exception, run_id: str) -> Calls:
        yield Call(_report, (self._store, self._thread.id, self._thread.namespace, error, run_id))

    def _load(self) -> Page | None:
        checkpoint = self._thread.load()
        if checkpoint is None:
            return None
        self._kept = len(checkpoint.messages)
        return Page(
            messages=checkpoint.messages,
            state=checkpoint.state,
            pending_interrupt=checkpoint.pending_interrupt,
            metadata=checkpoint.metadata,
            checkpoint=checkpoint,
        )

    def _save(self, page: Page) -> Any:
        if page.pending_interrupt is not None or self._store.hooks.has("pre_checkpoint_save"):
            saved = self._thread.checkpoint(  # the whole, which is what a hook expects to see
                messages=page.messages,
                state=page.state,
                pending_interrupt=page.pending_interrupt,
                metadata=page.metadata,
                note=page.note,
            )
        else:
            new = page.messages[self._kept :]
            saved = self._thread.append(*new, state=page.state, metadata=page.metadata, note=page.note)
        if saved is not None:
            self._kept = len(page.messages)
        return saved


class _SaverBook:
    """A thread of a saver."""

    def __init__(self, saver: Any, thread_id: str) -> None:
        self._saver = saver
        self._id = thread_id
        self._is_ours = isinstance(saver, TreeringSaver)
        self._head = NEW

    def load(self) -> Calls:
        found = yield Call(self._saver.load, (self._id,))
        if found is None:
            return None
        self._head = _field(found, "id") or self._head
        return Page(
            messages=list(_field(found, "messages") or ()),
            state=dict(_field(found, "state") or {}),
            pending_interrupt=_field(found, "pending_interrupt"),
            metadata=dict(_field(found, "metadata") or {}),
            checkpoint=found,
        )

    def save(self, page: Page, within: Around = as_it_is) -> Calls:
        fields: dict[str, Any] = {
            "thread_id": self._id,
            "messages": page.messages,
            "state": page.state,
            "pending_interrupt": page.pending_interrupt,
            "metadata": page.metadata,
        }
        if self._is_ours:
            fields |= {"note": page.note, "expect": self._head}
        saved = yield Call(within(partial(self._saver.save, **fields)), settles=True)
        self._head = _field(saved, "id") or self._head
        return saved

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
        page: Page = (yield from self.load()) or Page()
        given = answer_interrupt(
            self._id, page.pending_interrupt, decision, interrupt_id=interrupt_id, value=value
        )
        answered = msgspec.structs.replace(
            page, pending_interrupt=None, metadata={"resumed": given}, note=f"resume: {decision}"
        )
        return (yield from self.save(answered))

    def report(self, error: Exception, run_id: str) -> Calls:
        store = getattr(getattr(self._saver, "storage", None), "store", None)
        if isinstance(store, Store):
            yield Call(_report, (store, self._id, self._saver.namespace, error, run_id))


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
