"""Half-streamed replies: what a model had said when its process died, chunk by chunk.

While an agent reads a stream, its chunks are appended to a list in the background, which a ref of the thread
keeps alive. The list begins with what the thread does not have yet (a prompt is saved with its reply), so the
reply can be continued even if nothing of its run was saved. The ref goes when the whole reply is saved; a new
stream of the thread replaces it.

Each chunk is submitted when it arrives; engines commit what is submitted in order, and as many at once as
have gathered. **Invariant:** a stream never waits for its chunks to be kept, and a store that cannot keep
them does not stop it.
"""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Draft
from treering.core.clock import to_datetime
from treering.core.content import list_address
from treering.core.encoding import decode, encode
from treering.core.ids import namespace_prefix, new_id, thread_scope

if TYPE_CHECKING:
    from concurrent.futures import Future

    from treering.core.batch import Receipt
    from treering.core.clock import Clock
    from treering.core.engine import Engine

PARTIAL: Final = "partial/"
"""Prefix of the refs of half-streamed replies."""


class PartialReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model had said when its stream broke off."""

    run_id: str
    started_at_us: int
    after: int
    """How many messages the thread had."""
    unsaved: list[Any]
    """Messages between those and the reply: the prompt, or results of tools."""
    chunks: list[str]

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self.chunks)

    @property
    def started_at(self) -> datetime:
        """When the stream began, in UTC."""
        return to_datetime(self.started_at_us)


class PartialWriter:
    """Keeps the chunks of one stream."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        thread_id: str,
        namespace: str,
        *,
        run_id: str,
        after: int,
        unsaved: list[Any],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._space = space
        self._ref = partial_ref(thread_id, namespace)
        self._scope = thread_scope(thread_id, namespace)
        self._list = new_id()
        self._head = {"run": run_id, "at": clock.now_us(), "after": after, "unsaved": unsaved}
        self._count = 0
        self._last: Future[Receipt] | None = None
        self._has_failed = False

    def add(self, text: str) -> None:
        """Keep a chunk; returns at once."""
        if self._is_broken():
            return
        draft = Draft(self._space)
        items: list[Any] = [text]
        if not self._count:
            items.insert(0, self._head)
            draft.set_ref(
                self._ref, self._list.encode(), scope=self._scope, links=(list_address(self._list),)
            )
        contents = [encode(each, keep_order=True) for each in items]
        draft.append(self._list, *contents, scope=self._scope, at=self._count)
        self._count += len(items)
        self._last = self._engine.submit(draft.batch())

    def flush(self) -> None:
        """Wait until all chunks are kept: the stream has broken off."""
        if self._last is not None:
            self._last.exception()
            self._is_broken()

    def end(self) -> None:
        """Forget the chunks: the whole reply is saved."""
        if self._count and not self._is_broken():
            draft = Draft(self._space)
            draft.delete_ref(self._ref, scope=self._scope)
            self._last = self._engine.submit(draft.batch())

    def _is_broken(self) -> bool:
        """Whether a chunk could not be kept, after which none can: they are in order."""
        if not self._has_failed and self._last is not None and self._last.done():
            error = self._last.exception()
            if error is not None:
                self._has_failed = True
                warnings.warn(f"a half-streamed reply cannot be kept: {error}", RuntimeWarning, stacklevel=3)
        return self._has_failed


def partial_ref(thread_id: str, namespace: str) -> str:
    """Return the name of the ref of a thread's half-streamed reply."""
    return f"{PARTIAL}{namespace_prefix(namespace)}{thread_id}"


def read_partial(
    engine: Engine, space: str, thread_id: str, namespace: str, count: int
) -> PartialReply | None:
    """Return the half-streamed reply of a thread that has ``count`` messages; ``None`` if there is none."""
    name = partial_ref(thread_id, namespace)
    ref = engine.refs(space, [name]).get(name)
    if ref is None:
        return None
    info = engine.list_info(space, ref.value.decode())
    if info is None:
        return None
    head, *chunks = map(decode, engine.read_list(space, info.list, 0, info.length))
    if head["after"] != count:
        return None  # the thread has gone on since
    return PartialReply(
        run_id=head["run"],
        started_at_us=head["at"],
        after=head["after"],
        unsaved=head["unsaved"],
        chunks=chunks,
    )


def discard_partial(engine: Engine, space: str, thread_id: str, namespace: str) -> bool:
    """Forget the half-streamed reply of a thread; return whether there was one."""
    name = partial_ref(thread_id, namespace)
    if name not in engine.refs(space, [name]):
        return False
    draft = Draft(space)
    draft.delete_ref(name, scope=thread_scope(thread_id, namespace))
    engine.commit(draft.batch())
    return True
