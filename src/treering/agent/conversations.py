"""Where an agent's conversations are stored.

In a store, in a saver (see `treering.compat.savers`), in any object with ``save`` and ``load`` (sync or
async), or nowhere. A run opens one `Conversation`, which remembers the head that the run started from: if
someone else saves to the thread meanwhile, the run's save fails instead of overwriting theirs. (An object
of your own has to check that itself.)

The hooks of an agent run around its own loads and saves, on any saver; those of the store or saver run inside
them. Agents that share a saver never run each other's hooks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

import msgspec

from treering.agent.messages import Call, Message
from treering.api import open as open_store
from treering.approvals.policy import Decision
from treering.compat.savers.checkpoint import NEW
from treering.compat.savers.saver import Saver as TreeringSaver
from treering.core.batch import Event
from treering.core.encoding import encode_json
from treering.core.ids import new_id, thread_scope, time_of
from treering.effects.effects import Intent
from treering.errors import InvalidInput, Vetoed
from treering.store import Store
from treering.threads.hooks import CheckpointEvent, HookName, Hooks, HooksLike, SaveRequest, as_hooks
from treering.threads.partial import PartialWriter
from treering.threads.thread import answer_interrupt

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
    """The content of a checkpoint that was loaded."""

    messages: list[Message] = []
    state: dict[str, Any] = {}
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    checkpoint: Any = None


class Conversations:
    """All conversations of an agent, in a store, the URL or folder of one, a saver, or (``None``) nowhere."""

    def __init__(self, checkpointer: Any, *, namespace: str = "", hooks: HooksLike | None = None) -> None:
        self.namespace = namespace
        self._hooks = as_hooks(hooks)
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
        if hooks and checkpointer is None:
            raise InvalidInput("hooks= need a checkpointer=")
        if self._hooks is getattr(self._store or self._saver, "hooks", None):
            self._hooks = Hooks()  # they run there

    @property
    def store(self) -> Store | None:
        """The store, if conversations are kept in one; it has the timelines of the runs too."""
        return self._store

    def open(self, thread_id: str | None) -> Conversation | None:
        """Return one conversation, or ``None`` if nothing is stored."""
        if self._store is None and self._saver is None:
            return None
        if thread_id is None:
            raise InvalidInput("thread_id= is missing; it names the conversation to continue")
        if self._store is not None:
            return _ThreadConversation(self._store, thread_id, self.namespace, self._hooks)
        return _SaverConversation(self._saver, thread_id, self._hooks)

    def close(self) -> None:
        """Close the store, if it was opened by its URL. May be called twice."""
        if self._ours is not None:
            self._ours.close()


class Conversation(ABC):
    """One thread, for one run. Its methods are steps for a driver, and return their result at the end."""

    def __init__(self, thread_id: str, namespace: str, hooks: Hooks) -> None:
        self._id = thread_id
        self._namespace = namespace
        self._hooks = hooks

    def load(self) -> Calls:
        """Load the newest checkpoint; ``None`` for a thread that was never saved."""
        loaded: ConversationState | None = yield from self._load()
        if loaded is not None:
            yield from self._observe(self._hooks.after_load, "post_checkpoint_load", loaded.checkpoint)
        return loaded

    def save(self, wrap: Wrapper = unwrapped, *, effects: Sequence[Intent] = (), **fields: Any) -> Calls:
        """Save and return the checkpoint; ``wrap`` wraps the call. Raises `Vetoed` if a hook vetoed it.

        ``effects`` are planned in the same commit, in a store; ``fields`` are those of `SaveRequest`.
        """
        request = SaveRequest(
            thread_id=self._id, namespace=self._namespace, previous=self._previous, **fields
        )
        if self._hooks.has("pre_checkpoint_save"):
            request = yield Call(self._hooks.before_save, (request,))
        saved = yield from self._save(request, wrap, effects)
        yield from self._observe(self._hooks.after_save, "post_checkpoint_save", saved)
        return saved

    def partial(self) -> Calls:
        """Return the half-streamed reply that the conversation ends with, if it is kept."""
        yield from ()

    def keep_partial(self, run_id: str, messages: Sequence[Any]) -> PartialWriter | None:  # noqa: ARG002
        """Return what keeps the chunks of a reply to ``messages``, if something can."""
        return None

    def changed_files(self) -> list[str]:
        """Return which files of its workspace changed since the last save, or the last call of this.

        Only if the last save had a workspace; none otherwise.
        """
        return []

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
        """Save a person's decision about the pending interrupt."""
        pending = yield from self._pending()
        given = answer_interrupt(self._id, pending, decision, interrupt_id=interrupt_id, value=value)
        return (yield from self.save(metadata={"resumed": given}, note=f"resume: {decision}"))

    @abstractmethod
    def report(self, error: Exception, run_id: str) -> Calls:
        """Record in the journal that a checkpoint could not be saved, if there is one."""

    @abstractmethod
    def _load(self) -> Calls: ...

    @abstractmethod
    def _save(self, request: SaveRequest, wrap: Wrapper, effects: Sequence[Intent]) -> Calls: ...

    @abstractmethod
    def _pending(self) -> Calls:
        """Return the pending interrupt of the newest checkpoint."""

    @abstractmethod
    def _previous(self) -> Any:
        """Return the newest checkpoint as this conversation last saw it."""

    def _observe(
        self, run_hooks: Callable[[CheckpointEvent], None], name: HookName, checkpoint: Any
    ) -> Calls:
        if self._hooks.has(name):
            found = _read_state(checkpoint) if isinstance(checkpoint, Mapping) else checkpoint
            event = CheckpointEvent(thread_id=self._id, namespace=self._namespace, checkpoint=found)
            yield Call(run_hooks, (event,))


class _ThreadConversation(Conversation):
    """A thread of a store. A save appends the messages that are new since the last one."""

    def __init__(self, store: Store, thread_id: str, namespace: str, hooks: Hooks) -> None:
        super().__init__(thread_id, namespace, hooks)
        self._store = store
        self._thread = store.thread(thread_id, namespace=namespace or None)
        self._saved_count: int | None = 0
        """How many messages the thread has; ``None`` if that is unknown because saving failed."""
        self._files: tuple[str, str | None] | None = None
        """The folder whose files were saved last, and their snapshot."""

    def report(self, error: Exception, run_id: str) -> Calls:
        yield Call(_report, (self._store, self._thread.id, self._thread.namespace, error, run_id))

    def partial(self) -> Calls:
        """Return the half-streamed reply that the thread ends with."""
        return (yield Call(self._thread.partial))

    def keep_partial(self, run_id: str, messages: Sequence[Any]) -> PartialWriter | None:
        """Return what keeps the chunks of a reply to ``messages``."""
        if self._saved_count is None:
            return None
        return PartialWriter(
            self._store.engine,
            self._store.space,
            self._thread.id,
            self._thread.namespace,
            run_id=run_id,
            after=self._saved_count,
            unsaved=list(messages[self._saved_count :]),
            clock=self._store.clock,
        )

    def changed_files(self) -> list[str]:
        """Return which files changed since the last save, or the last call of this."""
        if self._files is None:
            return []
        folder, before = self._files
        workspace = self._thread.workspace
        after = workspace.stage_and_commit(folder, lambda staged: staged.root)  # the next save commits it
        self._files = folder, after
        return [each.path for each in workspace.changes(before, after, text=False)]

    def _load(self) -> Calls:
        return (yield Call(self._read))

    def _save(self, request: SaveRequest, wrap: Wrapper, effects: Sequence[Intent]) -> Calls:
        return (yield Call(wrap(self._write), (request, effects), shielded=True))

    def _pending(self) -> Calls:
        head = yield Call(lambda: self._thread.head)
        return None if head is None else head.pending_interrupt

    def _previous(self) -> Any:
        return self._thread.head

    def answer(self, decision: Decision, interrupt_id: str | None, value: Any) -> Calls:
        """Save a person's decision, as `Thread.resume` does; the hooks of the run may veto it."""
        if self._hooks.has("pre_checkpoint_save"):
            note = f"resume: {decision}"
            request = SaveRequest(
                thread_id=self._id, namespace=self._namespace, previous=self._previous, note=note
            )
            yield Call(self._hooks.before_save, (request,))
        resume = partial(self._thread.resume, decision, interrupt_id=interrupt_id, value=value, goes_on=True)
        saved = yield Call(resume, shielded=True)
        yield from self._observe(self._hooks.after_save, "post_checkpoint_save", saved)
        return saved

    def _read(self) -> ConversationState | None:
        checkpoint = self._thread.get()
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

    def _write(self, request: SaveRequest, effects: Sequence[Intent]) -> Any:
        messages, saved_count = request.messages, self._saved_count
        self._saved_count = self._files = None
        given: dict[str, Any] = {
            "state": request.state,
            "metadata": request.metadata,
            "note": request.note,
            "tags": request.tags,
            "effects": effects,
        }
        if (
            messages is None
            or saved_count is None
            or request.pending_interrupt is not None
            or self._hooks.has("pre_checkpoint_save")
            or self._store.hooks.has("pre_checkpoint_save")
        ):  # all messages: a hook expects to see them, or may have changed any
            save = partial(
                self._thread.checkpoint,
                messages,
                lists=request.lists or None,
                pending_interrupt=request.pending_interrupt,
                workspace=request.workspace,
            )
        else:
            save = partial(self._thread.append, *messages[saved_count:])
        try:
            saved = save(**given)
        except Vetoed:
            self._saved_count = saved_count
            raise
        if messages is not None:
            self._saved_count = len(messages)
        if request.workspace is not None:
            self._files = request.workspace, saved.snapshot
        return saved


class _SaverConversation(Conversation):
    """A thread of a saver."""

    def __init__(self, saver: Any, thread_id: str, hooks: Hooks) -> None:
        super().__init__(thread_id, getattr(saver, "namespace", ""), hooks)
        self._saver = saver
        self._is_treering_saver = isinstance(saver, TreeringSaver)
        self._head = NEW
        self._loaded = ConversationState()
        self._step = -1

    def report(self, error: Exception, run_id: str) -> Calls:
        store = getattr(getattr(self._saver, "storage", None), "store", None)
        if isinstance(store, Store):
            yield Call(_report, (store, self._id, self._saver.namespace, error, run_id))

    def _load(self) -> Calls:
        found = yield Call(self._saver.load, (self._id,))
        if found is None:
            return None
        self._head = _field(found, "id") or self._head
        self._loaded, self._step = _read_state(found), _field(found, "step") or 0
        return self._loaded

    def _save(self, request: SaveRequest, wrap: Wrapper, effects: Sequence[Intent]) -> Calls:  # noqa: ARG002
        fields: dict[str, Any] = {
            "thread_id": self._id,
            "messages": self._loaded.messages if request.messages is None else request.messages,
            "state": self._loaded.state if request.state is None else request.state,
            "pending_interrupt": request.pending_interrupt,
            "metadata": request.metadata,
        }
        if self._is_treering_saver:
            fields |= {"note": request.note, "tags": request.tags, "expect": self._head}
        try:
            saved = yield Call(wrap(partial(self._saver.save, **fields)), shielded=True)
        except Vetoed:
            raise
        except Exception:
            if self._is_treering_saver:
                yield Call(self._find_saved, (request.metadata.get("run"),))
            raise
        if saved is None:  # a saver of another project need not return anything
            saved = fields
        self._head = _field(saved, "id") or self._head
        self._step = _field(saved, "step") or self._step + 1
        return saved

    def _find_saved(self, run_id: str | None) -> None:
        """Continue behind a checkpoint that was saved, although a hook of the saver failed after that."""
        newest = next(iter(self._saver.list(self._id)), None)
        if newest is not None and (newest.parent_id or NEW, newest.metadata.get("run")) == (
            self._head,
            run_id,
        ):
            self._head, self._step = newest.id, newest.step

    def _pending(self) -> Calls:
        loaded = yield from self.load()
        return None if loaded is None else loaded.pending_interrupt

    def _previous(self) -> Any:
        return SimpleNamespace(messages=self._loaded.messages, state=self._loaded.state, step=self._step)


def _read_state(found: Any) -> ConversationState:
    """Return the content of what a saver returned: its checkpoint, or a dict of fields."""
    return ConversationState(
        messages=list(_field(found, "messages") or ()),
        state=dict(_field(found, "state") or {}),
        pending_interrupt=_field(found, "pending_interrupt"),
        metadata=dict(_field(found, "metadata") or {}),
        checkpoint=found,
    )


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
