"""The saver: what an agent calls to keep its checkpoints, the same over every storage.

Each method exists twice on the same object, sync (`save`) and async (`asave`). The async one runs the sync
one in a thread of the saver; coroutines below it (hooks, a user's async key-value store) run in the caller's
loop. Cancelling an await cancels the waiting, never the save. Hooks run around the storage, never under its
locks, so a hook may itself save and load.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final, Self, Unpack

from msgspec import structs

from treering.approvals.policy import Decision
from treering.bridge import Bridge, awaited
from treering.compat.savers.checkpoint import (
    INITIAL_STATE,
    Checkpoint,
    CheckpointFields,
    CheckpointList,
    NewCheckpoint,
    SaverStorage,
    check_namespace,
    check_thread_id,
    parse_checkpoint,
)
from treering.errors import NotFound, TreeringError
from treering.sync_async import Closing, has_borrowed_loop
from treering.threads.hooks import CheckpointEvent, Hooks, HooksLike, SaveRequest, as_hooks
from treering.threads.thread import answer_interrupt, new_interrupt


class Saver(Closing):
    """Checkpoints of one namespace. Use it as a context manager, or `close` it."""

    def __init__(self, storage: SaverStorage, *, hooks: HooksLike | None = None) -> None:
        self._storage = storage
        self._hooks = as_hooks(hooks)
        self._bridge = Bridge()

    @property
    def namespace(self) -> str:
        """The tenant whose checkpoints these are; empty for none."""
        return self._storage.namespace

    @property
    def storage(self) -> SaverStorage:
        """Where the checkpoints are kept."""
        return self._storage

    @property
    def hooks(self) -> Hooks:
        """Your own code around saving and loading with this saver."""
        return self._hooks

    @property
    def bridge(self) -> Bridge:
        """The threads of the async methods."""
        return self._bridge

    def in_namespace(self, namespace: str) -> Self:
        """Return the same saver for another tenant. They share one storage: closing one closes both."""
        other = copy.copy(self)
        other._storage = self._storage.in_namespace(check_namespace(namespace))  # noqa: SLF001 - same class
        return other

    def save(
        self,
        checkpoint: Checkpoint | Mapping[str, Any] | None = None,
        /,
        **fields: Unpack[CheckpointFields],
    ) -> Checkpoint:
        """Append a checkpoint to its thread; durable when this returns.

        Give fields by name, as a dict, or a checkpoint that was loaded (fields by name win). ``expect`` is
        the id that the thread's newest checkpoint must have, else `Conflict`. Return what was saved. Raises
        `Vetoed` if a hook vetoed it.
        """
        new = parse_checkpoint(checkpoint, fields, self.namespace)
        self._storage.refuse_to_block()
        request = self._hooks.before_save(self._request(new))
        saved = self._storage.save(_with_changes(new, request))
        if has_borrowed_loop():
            saved.read()  # async code could not read it later without blocking its loop
        self._hooks.after_save(self._event(saved))
        return saved

    def load(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """Return a thread's newest checkpoint (``None`` if it has none), or the one with this id.

        Raises `NotFound` for an id that the thread does not have.
        """
        check_thread_id(thread_id)
        self._storage.refuse_to_block()
        if checkpoint_id is None:
            loaded = self._storage.newest(thread_id)
        else:
            loaded = self._storage.find(thread_id, checkpoint_id)
        if loaded is not None:
            self._hooks.after_load(self._event(loaded))
        return loaded

    def exists(self, thread_id: str) -> bool:
        """Whether a thread has been saved."""
        self._storage.refuse_to_block()
        return self._storage.exists(check_thread_id(thread_id))

    def list(self, thread_id: str | None = None) -> CheckpointList:
        """List the newest checkpoint of every thread, or a thread's whole history, newest first.

        A list that is read as far as it is used, and unlimited; a checkpoint's content is read when it is
        first used. The history leads from the newest checkpoint back to the first one of this thread.
        """
        self._storage.refuse_to_block()
        return CheckpointList(
            self._newest_of_each() if thread_id is None else self._storage.history(check_thread_id(thread_id))
        )

    def delete(self, thread_id: str, *, cascade: bool = False) -> bool:
        """Delete a thread with all its checkpoints; return whether it existed.

        On a treering store, forks share the past of the thread that they came from. They make this a
        `Conflict`, unless ``cascade`` deletes them too.
        """
        self._storage.refuse_to_block()
        return self._storage.delete(check_thread_id(thread_id), cascade=cascade)

    def fork(self, thread_id: str, new_id: str, *, checkpoint_id: str | None = None) -> Checkpoint:
        """Create a thread that starts where this one is (or was, at ``checkpoint_id``).

        It has the messages, state, pending interrupt, step, note, tags and metadata of that checkpoint, and
        its id as ``metadata["forked_from"]`` and as parent. A ``new_id`` that already exists is a `Conflict`.
        """
        self._storage.refuse_to_block()
        return self._storage.fork(check_thread_id(thread_id), check_thread_id(new_id), checkpoint_id)

    def interrupt(
        self, thread_id: str, payload: Any, *, interrupt_id: str | None = None, note: str | None = None
    ) -> Checkpoint:
        """Save that the agent waits for a decision about ``payload`` (see `resume`)."""
        pending = new_interrupt(payload, interrupt_id)
        return self.save(thread_id=thread_id, pending_interrupt=pending, note=note or "interrupt")

    def resume(
        self, thread_id: str, decision: Decision, *, interrupt_id: str | None = None, value: Any = None
    ) -> Checkpoint:
        """Answer the pending interrupt and save the answer (``metadata["resumed"]``).

        ``edit`` needs the new value. Raises `Conflict` if nothing is pending, another interrupt is, or
        someone else answered first.
        """
        self._storage.refuse_to_block()
        newest = self._newest_header(check_thread_id(thread_id))
        pending = None if newest is None else newest.pending_interrupt
        answer = answer_interrupt(thread_id, pending, decision, interrupt_id=interrupt_id, value=value)
        return self.save(
            thread_id=thread_id,
            metadata={"resumed": answer},
            note=f"resume: {decision}",
            expect=None if newest is None else newest.id,
        )

    def close(self) -> None:
        """Close what the saver opened; a store that was passed in stays open. May be called twice."""
        self._bridge.shut_down()
        self._storage.close()

    def alist(self, thread_id: str | None = None) -> AsyncCheckpointList:
        """Async twin of `list`: iterate over it, or await it. Checkpoints come with their content."""
        return AsyncCheckpointList(lambda: self._bridge.iterate(self._list_with_content, thread_id))

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._bridge.finish(self._storage.close)

    asave = awaited(save)
    aload = awaited(load)
    aexists = awaited(exists)
    adelete = awaited(delete)
    afork = awaited(fork)
    ainterrupt = awaited(interrupt)
    aresume = awaited(resume)

    def _newest_header(self, thread_id: str) -> Checkpoint | None:
        """Return the newest checkpoint, without reading its content and without running hooks."""
        return next(self._storage.history(thread_id), None)

    def _newest_of_each(self) -> Iterator[Checkpoint]:
        for thread_id in self._storage.threads():
            if isinstance(thread_id, TreeringError):
                raise thread_id
            newest = self._newest_header(thread_id)
            if newest is not None:  # else deleted since it was listed
                yield newest

    def _list_with_content(self, thread_id: str | None) -> Iterator[Checkpoint]:
        for each in self.list(thread_id):
            try:
                yield each.read()
            except NotFound:  # removed since it was listed
                continue

    def _request(self, new: NewCheckpoint) -> SaveRequest:
        return SaveRequest(
            thread_id=new.thread_id,
            namespace=self.namespace,
            messages=None if new.messages is None else builtins.list(new.messages),
            state=new.state,
            pending_interrupt=new.pending_interrupt,
            metadata=new.metadata,
            note=new.note,
            tags=new.tags,
            step=new.step,
            previous=self._previous(new) if self._hooks.has("pre_checkpoint_save") else None,
        )

    def _previous(self, new: NewCheckpoint) -> Callable[[], Any]:
        """Read the checkpoint before a new one now: an async hook would block its loop with that."""
        previous = self._newest_header(new.thread_id)
        if previous is None:
            return lambda: _NOTHING
        if new.messages is None or new.state is None:
            previous.read()
        return lambda: previous

    def _event(self, checkpoint: Checkpoint) -> CheckpointEvent:
        return CheckpointEvent(
            thread_id=checkpoint.thread_id, namespace=self.namespace, checkpoint=checkpoint
        )


class AsyncCheckpointList:
    """What `Saver.alist` returns: ``async for checkpoint in ...``, or ``checkpoints = await ...``."""

    def __init__(self, iterate: Callable[[], AsyncIterator[Checkpoint]]) -> None:
        self._iterate = iterate

    def __aiter__(self) -> AsyncIterator[Checkpoint]:
        return self._iterate()

    def __await__(self) -> Generator[Any, None, builtins.list[Checkpoint]]:
        return self._all().__await__()

    async def _all(self) -> builtins.list[Checkpoint]:
        return [each async for each in self]


_NOTHING: Final = SimpleNamespace(messages=[], state=INITIAL_STATE, step=-1)
"""What the first checkpoint of a thread comes after."""


def _with_changes(new: NewCheckpoint, request: SaveRequest) -> NewCheckpoint:
    """Return what is to be saved after the hooks changed the request."""
    return structs.replace(
        new,
        messages=request.messages,
        state=request.state,
        pending_interrupt=request.pending_interrupt,
        metadata=request.metadata,
        note=request.note,
        tags=tuple(request.tags),
    )
