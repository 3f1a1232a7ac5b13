"""The saver: what an agent calls to keep its checkpoints, the same over every storage.

Each method is there twice, plain (`save`) and awaited (`asave`); one object serves both. The awaited form
runs the plain code in a thread of the saver's own, and what is ``async`` below it (a user's key-value store)
is awaited in the caller's loop. Cancelling an await cancels the waiting, never the save. Hooks run around the
storage, never under its locks: a hook may itself save and load.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast

from treering.compat.savers.checkpoint import (
    Checkpoint,
    Fields,
    Shelf,
    Writing,
    checked,
    checked_namespace,
    writing_of,
)
from treering.errors import InvalidInput, NotFound, TreeringError
from treering.sync_async import Closing
from treering.threads import checkpoint_record
from treering.threads.checkpoint_record import Decision
from treering.threads.hooks import Hook, HookName, Hooks, Saved, SaveRequest

if TYPE_CHECKING:
    import asyncio

    from treering.bridge import Bridge


# -----------------------------------------------------------------------------------------------------------
# The threads in which the awaited calls of a saver do their work.
#
# What is ``async`` below that work (a user's key-value store, a hook of the store) is awaited in the loop of
# whoever waits for it. **Invariant:** cancelling an await leaves the work to finish: no save is torn.


P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """The threads of one saver and of its other namespaces; none before the first awaited call."""

    def __init__(self) -> None:
        self._bridge: Bridge | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run plain code in a thread, with what is async below it awaited in this loop."""
        import asyncio

        if self._bridge is None:
            from treering.bridge import Bridge

            self._bridge = Bridge()
        return await self._bridge.call(_with_loop, asyncio.get_running_loop(), function, *args, **kwargs)

    def close(self) -> None:
        """Let the threads end when they have finished."""
        if self._bridge is not None:
            self._bridge.shut_down()
            self._bridge = None


def _with_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    from treering.sync_async import lent

    with lent(loop):
        return function(*args, **kwargs)


# -----------------------------------------------------------------------------------------------------------


HooksLike = Hooks | Mapping[HookName, Hook | Sequence[Hook]]
"""A `treering.threads.hooks.Hooks`, or hooks by name: ``{"post_checkpoint_save": [tell]}``."""


class Saver(Closing):
    """Checkpoints of one namespace. Use it as a context manager, or `close` it."""

    def __init__(self, shelf: Shelf, *, hooks: HooksLike | None = None) -> None:
        self._shelf = shelf
        self._hooks = as_hooks(hooks)
        self._threads = Workers()

    @property
    def namespace(self) -> str:
        """The tenant whose checkpoints these are; empty for none."""
        return self._shelf.namespace

    @property
    def shelf(self) -> Shelf:
        """What keeps the checkpoints."""
        return self._shelf

    @property
    def hooks(self) -> Hooks:
        """Code of your own around saving and loading, for this saver."""
        return self._hooks

    def in_namespace(self, namespace: str) -> Self:
        """The same saver for another tenant. They share one storage: closing one closes both."""
        other = copy.copy(self)
        other._shelf = self._shelf.elsewhere(checked_namespace(namespace))  # noqa: SLF001 - of the same class
        return other

    # Saving
    def save(
        self, checkpoint: Checkpoint | Mapping[str, Any] | None = None, /, **fields: Unpack[Fields]
    ) -> Checkpoint | None:
        """Append a checkpoint to its thread; durable when this returns.

        Give fields by name, as a dict, or a checkpoint that was loaded (fields by name win). ``expect`` is
        the id that the thread's newest checkpoint must still have, else `Conflict`. Gives back what was
        saved, or ``None`` when a hook vetoed it.
        """
        writing = writing_of(checkpoint, fields, self.namespace)
        self._shelf.refuse_to_block()
        saving = self._hooks.before_save(self._saving(writing))
        if saving is None:
            return None
        saved = self._shelf.write(_changed(writing, saving))
        if saved is not None:
            self._hooks.after_save(self._told(saved))
        return saved

    async def asave(
        self, checkpoint: Checkpoint | Mapping[str, Any] | None = None, /, **fields: Unpack[Fields]
    ) -> Checkpoint | None:
        """As `save`."""
        writing = writing_of(checkpoint, fields, self.namespace)
        saving = await self._hooks.abefore_save(self._saving(writing))
        if saving is None:
            return None
        saved = await self._threads.run(self._written, _changed(writing, saving))
        if saved is not None:
            await self._hooks.aafter_save(self._told(saved))
        return saved

    # Loading
    def load(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """A thread's newest checkpoint, ``None`` without one; or the one with this id, else `NotFound`."""
        self._shelf.refuse_to_block()
        loaded = self._load(checked(thread_id), checkpoint_id)
        if loaded is not None:
            self._hooks.after_load(self._told(loaded))
        return loaded

    async def aload(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """As `load`."""
        loaded = await self._threads.run(self._load, checked(thread_id), checkpoint_id)
        if loaded is not None:
            await self._hooks.aafter_load(self._told(loaded))
        return loaded

    def exists(self, thread_id: str) -> bool:
        """Whether a thread has been saved."""
        self._shelf.refuse_to_block()
        return self._shelf.exists(checked(thread_id))

    async def aexists(self, thread_id: str) -> bool:
        """As `exists`."""
        return await self._threads.run(self._shelf.exists, checked(thread_id))

    def list(self, thread_id: str | None = None) -> Iterator[Checkpoint]:
        """The newest checkpoint of every thread, or a thread's whole history, newest first.

        Lazy and without a limit; a checkpoint's content is read when it is asked for. The history is the
        line that leads to the newest checkpoint, within this thread.
        """
        self._shelf.refuse_to_block()
        return self._newest_of_each() if thread_id is None else self._shelf.history(checked(thread_id))

    async def alist(self, thread_id: str | None = None) -> AsyncIterator[Checkpoint]:
        """As `list`, each checkpoint with its content."""
        found = self._newest_of_each() if thread_id is None else self._shelf.history(checked(thread_id))
        while (each := await self._threads.run(_next, found)) is not None:
            yield each

    # Removing
    def delete(self, thread_id: str, *, cascade: bool = False) -> bool:
        """Remove a thread with all its checkpoints; whether there was one.

        On a treering store, forks share the past of the thread that they came from: they make this a
        `Conflict`, unless ``cascade`` takes them along.
        """
        self._shelf.refuse_to_block()
        return self._shelf.remove(checked(thread_id), cascade=cascade)

    async def adelete(self, thread_id: str, *, cascade: bool = False) -> bool:
        """As `delete`."""
        return await self._threads.run(self._shelf.remove, checked(thread_id), cascade=cascade)

    # Going elsewhere
    def fork(self, thread_id: str, new_id: str, *, checkpoint_id: str | None = None) -> Checkpoint:
        """A new thread that begins where this one is (or was, at ``checkpoint_id``).

        It has the messages, state, pending interrupt, step, note, tags and metadata of that checkpoint, and
        its id as ``metadata["forked_from"]`` and as parent. A ``new_id`` that exists already is a `Conflict`.
        """
        self._shelf.refuse_to_block()
        return self._shelf.fork(checked(thread_id), checked(new_id), checkpoint_id)

    async def afork(self, thread_id: str, new_id: str, *, checkpoint_id: str | None = None) -> Checkpoint:
        """As `fork`."""
        return await self._threads.run(self._shelf.fork, checked(thread_id), checked(new_id), checkpoint_id)

    # Waiting for a person
    def interrupt(
        self, thread_id: str, payload: Any, *, interrupt_id: str | None = None, note: str | None = None
    ) -> Checkpoint | None:
        """Save that the agent waits for a decision about ``payload`` (see `resume`)."""
        pending = checkpoint_record.pending(payload, interrupt_id)
        return self.save(thread_id=thread_id, pending_interrupt=pending, note=note or "interrupt")

    async def ainterrupt(
        self, thread_id: str, payload: Any, *, interrupt_id: str | None = None, note: str | None = None
    ) -> Checkpoint | None:
        """As `interrupt`."""
        pending = checkpoint_record.pending(payload, interrupt_id)
        return await self.asave(thread_id=thread_id, pending_interrupt=pending, note=note or "interrupt")

    def resume(
        self, thread_id: str, decision: Decision, *, interrupt_id: str | None = None, value: Any = None
    ) -> Checkpoint | None:
        """Answer the pending interrupt and save the answer (``metadata["resumed"]``).

        Raises `Conflict` when nothing is pending, another interrupt is, or someone else answered first.
        ``edit`` needs the new value.
        """
        self._shelf.refuse_to_block()
        newest = self._peek(checked(thread_id))
        return self.save(**_answer(thread_id, newest, decision, interrupt_id, value))

    async def aresume(
        self, thread_id: str, decision: Decision, *, interrupt_id: str | None = None, value: Any = None
    ) -> Checkpoint | None:
        """As `resume`."""
        newest = await self._threads.run(self._peek, checked(thread_id))
        return await self.asave(**_answer(thread_id, newest, decision, interrupt_id, value))

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await plain code that uses this saver, in one of its threads."""
        return await self._threads.run(function, *args, **kwargs)

    # Closing
    def close(self) -> None:
        """Let go of what the saver opened; a store that was handed in stays open. May be called twice."""
        self._threads.close()
        self._shelf.close()

    async def aclose(self) -> None:
        """As `close`."""
        await self._threads.run(self._shelf.close)
        self._threads.close()

    def _written(self, writing: Writing) -> Checkpoint | None:
        """Write, and have the content at hand: nobody can read it later without blocking a loop."""
        saved = self._shelf.write(writing)
        return None if saved is None else saved.read()

    def _load(self, thread_id: str, checkpoint_id: str | None) -> Checkpoint | None:
        if checkpoint_id is None:
            return self._shelf.newest(thread_id)
        return self._shelf.find(thread_id, checkpoint_id)

    def _peek(self, thread_id: str) -> Checkpoint | None:
        """The newest checkpoint, without its content and without a hook."""
        return next(self._shelf.history(thread_id), None)

    def _newest_of_each(self) -> Iterator[Checkpoint]:
        for thread_id in self._shelf.threads():
            if isinstance(thread_id, TreeringError):
                raise thread_id
            newest = self._peek(thread_id)
            if newest is not None:  # deleted since it was listed
                yield newest

    def _saving(self, writing: Writing) -> SaveRequest:
        return SaveRequest(
            thread_id=writing.thread_id,
            namespace=self.namespace,
            messages=None if writing.messages is None else builtins.list(writing.messages),
            state=writing.state,
            pending_interrupt=writing.pending_interrupt,
            metadata=writing.metadata,
            note=writing.note,
            tags=writing.tags,
        )

    def _told(self, checkpoint: Checkpoint) -> Saved:
        return Saved(thread_id=checkpoint.thread_id, namespace=self.namespace, checkpoint=checkpoint)


def _next(found: Iterator[Checkpoint]) -> Checkpoint | None:
    for each in found:
        try:
            return each.read()
        except NotFound:  # removed since it was listed
            continue
    return None


def _answer(
    thread_id: str, newest: Checkpoint | None, decision: Decision, interrupt_id: str | None, value: Any
) -> Fields:
    waits_for = None if newest is None else newest.pending_interrupt
    answer = checkpoint_record.answer(thread_id, waits_for, decision, interrupt_id=interrupt_id, value=value)
    return {
        "thread_id": thread_id,
        "metadata": {"resumed": answer},
        "note": f"resume: {decision}",
        "expect": None if newest is None else newest.id,
    }


def _changed(writing: Writing, saving: SaveRequest) -> Writing:
    from msgspec.structs import replace

    return replace(
        writing,
        messages=saving.messages,
        state=saving.state,
        pending_interrupt=saving.pending_interrupt,
        metadata=saving.metadata,
        note=saving.note,
        tags=tuple(saving.tags),
    )


def as_hooks(hooks: HooksLike | None) -> Hooks:
    """Hooks by name as an object that can be added to."""
    if isinstance(hooks, Hooks):
        return hooks
    given: Any = hooks or {}
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"hooks is of type {type(given).__name__}; give a dict of functions, "
            "{'post_checkpoint_save': tell}, or the hooks of a store"
        )
    made = Hooks()
    for name, each in cast("Mapping[Any, Any]", given).items():
        made.add(name, *([each] if callable(each) else each))
    return made
