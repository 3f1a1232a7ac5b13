"""Where an agent's conversations are stored.

In a store, in a saver (see `treering.compat.savers`), in any object with ``save`` and ``load`` (sync or
async), or nowhere. A run opens one `Conversation`, which remembers the head that the run started from: if
someone else saves to the thread meanwhile, the run's save fails instead of overwriting theirs. (An object
of your own has to check that itself.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from treering.agent.messages import Call, Message
from treering.api import open as open_store
from treering.compat.savers.checkpoint import NEW
from treering.compat.savers.saver import Saver as TreeringSaver
from treering.core.batch import Event
from treering.core.encoding import encode_json
from treering.core.ids import new_id, thread_scope, time_of
from treering.errors import InvalidInput
from treering.store import Store
from treering.threads.hooks import Hook, HookName, Hooks
from treering.threads.thread import Decision, answer_interrupt

CHECKPOINT_FAILED: Final = "checkpoint.failed"
"""The kind of the journal event that records an automatic checkpoint that could not be saved."""

_ERROR_CHARS: Final = 2000

Calls = Generator[Call, Any, Any]
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as it is."""
    return function


class Saver(Protocol):
    """What an agent needs from a saver. Both methods may be async."""

    def save(
        self,
        *,
        thread_id: str,
        messages: list[Any],
        state: dict[str, Any],
        pending_interrupt: Any,
        metadata: dict[str, Any],
    ) -> Any:
        """Save a checkpoint of a thread and return it."""
        ...

    def load(self, thread_id: str, /) -> Any:
        """Return the newest checkpoint of a thread: an object or a dict with these fields, or ``None``."""
        ...


class ConversationState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a checkpoint that was loaded, or is to be saved."""

    messages: list[Message] = []
    state: dict[str, Any] = {}
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    checkpoint: Any = None


class Conversation(Protocol):
    """One thread, for one run. Its methods are steps for a driver, and return their result at the end."""

    def load(self) -> Calls:
        """Load the newest checkpoint; ``None`` for a thread that was never saved."""
        ...

    def save(self, new: ConversationState, wrap: Wrapper = unwrapped) -> Calls:
        """Save and return the checkpoint, ``None`` if a hook vetoed it; ``wrap`` wraps the call."""
        ...

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
        """Save a person's decision about the pending interrupt."""
        ...

    def report(self, error: Exception, run_id: str) -> Calls:
        """Record in the journal that a checkpoint could not be saved, if there is one."""
        ...


class Conversations:
    """All conversations of an agent, in a store, the URL or folder of one, a saver, or (``None``) nowhere."""

    def __init__(self, checkpointer: Any, *, namespace: str = "") -> None:
        self.namespace = namespace
        self._ours: Store | None = None
        self._store: Store | None = None
        self._saver: Any = None
        below = getattr(checkpointer, "sync", None)  # of an AsyncStore, without importing that
        if isinstance(checkpointer, Store):
            self._store = checkpointer
        elif isinstance(below, Store):
            self._store = below
        elif isinstance(checkpointer, (str, Path)):
            self._store = self._ours = open_store(checkpointer)
        elif callable(getattr(checkpointer, "save", None)) and callable(getattr(checkpointer, "load", None)):
            if namespace:
                raise InvalidInput("namespace= is for a store; give it to the saver instead")
            self._saver = checkpointer
        elif checkpointer is not None:
            raise InvalidInput(
                f"{type(checkpointer).__name__} cannot keep checkpoints; give a Store, a URL, "
                "or an object with save(...) and load(thread_id)"
            )

    @property
    def store(self) -> Store | None:
        """The store, if conversations are kept in one; it has the timelines of the runs too."""
        return self._store

    def attach(self, hooks: Mapping[HookName, Any]) -> None:
        """Add hooks to the store or saver; they run for every save to it, not only for this agent's."""
        if not hooks:
            return
        owner: Any = self._store if self._store is not None else self._saver
        own: Any = getattr(owner, "hooks", None)
        if not isinstance(own, Hooks):
            raise InvalidInput(
                f"hooks= needs a checkpointer that has hooks; {type(owner).__name__} has none"
                if owner is not None
                else "hooks= need a checkpointer="
            )
        for name, each in hooks.items():
            own.add(name, *cast("list[Hook]", [each] if callable(each) else list(each)))

    def open(self, thread_id: str | None) -> Conversation | None:
        """Return one conversation, or ``None`` if nothing is stored."""
        if self._store is None and self._saver is None:
            return None
        if thread_id is None:
            raise InvalidInput("thread_id= is missing; it names the conversation to continue")
        if self._store is not None:
            return _ThreadConversation(self._store, thread_id, self.namespace)
        return _SaverConversation(self._saver, thread_id)

    def close(self) -> None:
        """Close the store, if it was opened by its URL. May be called twice."""
        if self._ours is not None:
            self._ours.close()


class _ThreadConversation:
    """A thread of a store. A save appends the messages that are new since the last one."""

    def __init__(self, store: Store, thread_id: str, namespace: str) -> None:
        self._store = store
        self._thread = store.thread(thread_id, namespace=namespace or None)
        self._saved_count = 0

    def load(self) -> Calls:
        return (yield Call(self._load))

    def save(self, new: ConversationState, wrap: Wrapper = unwrapped) -> Calls:
        return (yield Call(wrap(self._save), (new,), shielded=True))

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
        resume = partial(self._thread.resume, interrupt_id=interrupt_id, value=value)
        return (yield Call(resume, (decision,), shielded=True))

    def report(self, error: Exception, run_id: str) -> Calls:
        yield Call(_report, (self._store, self._thread.id, self._thread.namespace, error, run_id))

    def _load(self) -> ConversationState | None:
        checkpoint = self._thread.load()
        if checkpoint is None:
            return None
        self._saved_count = len(checkpoint.messages)
        return ConversationState(
            messages=checkpoint.messages,
            state=checkpoint.state,
            pending_interrupt=checkpoint.pending_interrupt,
            metadata=checkpoint.metadata,
            checkpoint=checkpoint,
        )

    def _save(self, new: ConversationState) -> Any:
        if new.pending_interrupt is not None or self._store.hooks.has("pre_checkpoint_save"):
            saved = self._thread.checkpoint(  # with all messages, which a hook expects to see
                messages=new.messages,
                state=new.state,
                pending_interrupt=new.pending_interrupt,
                metadata=new.metadata,
                note=new.note,
            )
        else:
            added = new.messages[self._saved_count :]
            saved = self._thread.append(*added, state=new.state, metadata=new.metadata, note=new.note)
        if saved is not None:
            self._saved_count = len(new.messages)
        return saved


class _SaverConversation:
    """A thread of a saver."""

    def __init__(self, saver: Any, thread_id: str) -> None:
        self._saver = saver
        self._id = thread_id
        self._is_treering_saver = isinstance(saver, TreeringSaver)
        self._head = NEW

    def load(self) -> Calls:
        found = yield Call(self._saver.load, (self._id,))
        if found is None:
            return None
        self._head = _field(found, "id") or self._head
        return ConversationState(
            messages=list(_field(found, "messages") or ()),
            state=dict(_field(found, "state") or {}),
            pending_interrupt=_field(found, "pending_interrupt"),
            metadata=dict(_field(found, "metadata") or {}),
            checkpoint=found,
        )

    def save(self, new: ConversationState, wrap: Wrapper = unwrapped) -> Calls:
        fields: dict[str, Any] = {
            "thread_id": self._id,
            "messages": new.messages,
            "state": new.state,
            "pending_interrupt": new.pending_interrupt,
            "metadata": new.metadata,
        }
        if self._is_treering_saver:
            fields |= {"note": new.note, "expect": self._head}
        saved = yield Call(wrap(partial(self._saver.save, **fields)), shielded=True)
        self._head = _field(saved, "id") or self._head
        return saved

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
        loaded: ConversationState = (yield from self.load()) or ConversationState()
        given = answer_interrupt(
            self._id, loaded.pending_interrupt, decision, interrupt_id=interrupt_id, value=value
        )
        answered = msgspec.structs.replace(
            loaded, pending_interrupt=None, metadata={"resumed": given}, note=f"resume: {decision}"
        )
        return (yield from self.save(answered))

    def report(self, error: Exception, run_id: str) -> Calls:
        store = getattr(getattr(self._saver, "storage", None), "store", None)
        if isinstance(store, Store):
            yield Call(_report, (store, self._id, self._saver.namespace, error, run_id))


def _report(store: Store, thread_id: str, namespace: str, error: Exception, run_id: str) -> None:
    made = new_id()
    what = {"thread": thread_id, "error": f"{type(error).__name__}: {error}"[:_ERROR_CHARS]}
    draft = store.draft()
    draft.event(
        Event(
            id=made,
            kind=CHECKPOINT_FAILED,
            ts_us=time_of(made),
            scope=thread_scope(thread_id, namespace),
            run=run_id,
            name=type(error).__name__,
            status="error",
            data=encode_json(what),
        )
    )
    with suppress(Exception):  # the store that could not save may not be able to record that either
        store.commit(draft)


def _field(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    return getattr(holder, name, None)
