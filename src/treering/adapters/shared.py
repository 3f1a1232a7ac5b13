"""What the adapters share: the store that an adapter works on, thread ids for names, text for pydantic.

Frameworks pass an adapter whatever their user has: a `Store`, an `AsyncStore`, a URL or a folder. All
adapters of a store share one small thread pool, so an adapter per request costs no thread of its own.
**Invariant:** a store is closed here only if it was opened here.

Frameworks call a session from several tasks at once and expect what they write to be in the order of their
calls, which a thread pool does not keep. A `SerialExecutor` runs its calls one after the other in the store's
pool; while it is idle it holds no thread.

A framework's session id may be any string; a thread id must not be empty, longer than 512 characters or
contain control characters. **Invariant:** two names never share a thread: a name that is a valid id is used
as it is, any other becomes ``~`` and its SHA-256, and so does a name that looks like one of those.

A string that was cut in the middle of a character, or the name of a file that is not UTF-8, contains lone
surrogates. A store keeps them, but neither pydantic's JSON parser nor a search index accepts them.
**Invariant:** whatever a framework was able to save, it is able to read again.
"""

from __future__ import annotations

import contextvars
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import orjson

from treering.aio import AsyncStore
from treering.api import open as open_store
from treering.bridge import Bridge
from treering.core.ids import MAX_ID_CHARS, check_id
from treering.errors import InvalidInput
from treering.store import Store
from treering.sync_async import lend_running_loop
from treering.threads.compaction import Tokenizer, compact_view, leading_instructions
from treering.threads.thread import Thread

StoreOrUrl = Store | AsyncStore | str | Path
"""What an adapter accepts: an open store, or where to open one (see `treering.open`)."""


class Opened:
    """A store, whether to close it, and the threads that asyncio code uses it in.

    ``None`` opens the default store (TREERING_URL, or the nearest ``.treering``).
    """

    def __init__(self, source: StoreOrUrl | None) -> None:
        given: Any = source  # not checked by the caller
        self._is_ours = False
        if isinstance(given, AsyncStore):
            self.store = given.sync
        elif isinstance(given, Store):
            self.store = given
        elif given is None or isinstance(given, (str, Path)):
            self.store = open_store(given)
            self._is_ours = True
        else:
            raise InvalidInput(
                f"{type(given).__name__} is not a store; pass a Store, an AsyncStore, a URL or a folder"
            )

    @property
    def bridge(self) -> Bridge:
        """The thread pool that all adapters of this store share."""
        with _lock:
            bridge = _bridges.get(self.store)
            if bridge is None:
                bridge = _bridges[self.store] = Bridge()
            return bridge

    def close(self) -> None:
        """Close the store if it was opened here. May be called twice."""
        if self._is_ours:
            with _lock:
                bridge = _bridges.get(self.store)
            if bridge is not None:
                bridge.shut_down()
            self.store.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        if self._is_ours:
            await self.bridge.finish(self.store.close)


_lock: Final = Lock()
_bridges: Final[WeakKeyDictionary[Store, Bridge]] = WeakKeyDictionary()


P = ParamSpec("P")
T = TypeVar("T")


class SerialExecutor:
    """Runs calls in the thread pool of a store, one at a time, in the order in which they were made."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._lock = Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_busy = False

    @property
    def is_idle(self) -> bool:
        """Whether no call is running or queued."""
        return not self._is_busy

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Queue a call and await its result. Cancelling cancels the waiting, never the call."""
        return await self._bridge.wait(self._enqueue(function, *args, **kwargs))

    async def settle(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Queue a call and await its result; if cancelled, raise that only when the call has ended.

        Code that catches the cancellation then sees the store in its final state.
        """
        return await self._bridge.settle(self._enqueue(function, *args, **kwargs))

    def _enqueue(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        context = contextvars.copy_context()
        context.run(lend_running_loop)  # for hooks that are coroutines, as `Bridge` does
        with self._lock:
            if not self._is_busy:
                self._bridge.submit(self._work)
                self._is_busy = True
            self._waiting.append((done, lambda: context.run(function, *args, **kwargs)))
        return done

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_busy = False
                    return
                done, call = self._waiting.popleft()
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                done.set_exception(error)
            else:
                done.set_result(result)
            del done, call  # keep nothing alive while idle


_HASHED: Final = re.compile("~[0-9a-f]{64}")


def checked(value: Any, what: str, hint: str = "pass a str") -> str:
    """Return a name from a framework, which does not check types; ``what`` names it in the error."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is of type {type(value).__name__}; {hint}")
    return value


def checked_namespace(value: Any) -> str:
    """Return the namespace that an adapter was given; empty for none."""
    return checked(value, "namespace", "pass a str, or leave it out")


def thread_name(name: str, what: str, *, limit: int = MAX_ID_CHARS, slashes: bool = True) -> str:
    """Return the thread id for a name; ``what`` names it in the error."""
    if is_plain(checked(name, what), limit=limit, slashes=slashes):
        return name
    return "~" + sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def is_plain(name: str, *, limit: int = MAX_ID_CHARS, slashes: bool = True) -> bool:
    """Whether a name is used as it is: a valid id, not too long and (unless allowed) without a slash."""
    if len(name) > limit or ("/" in name and not slashes) or _HASHED.fullmatch(name) is not None:
        return False
    try:
        check_id(name, "name")
    except InvalidInput:
        return False
    return True


def json_for_models(stored: Any) -> bytes | str:
    """Encode stored plain data as JSON that pydantic models can be validated from."""
    try:
        return orjson.dumps(stored)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return json_text(stored)


def json_text(plain: Any) -> str:
    """Encode plain data as JSON without lone surrogates."""
    return replace_surrogates(json.dumps(plain, ensure_ascii=False))


def replace_surrogates(text: str) -> str:
    """Join surrogate pairs to the character that they stand for, and replace lone ones by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def compact_messages(
    thread: Thread,
    items: Sequence[T],
    *,
    plain: Callable[[T], Any],
    load: Callable[[list[Any]], list[T]],
    budget_tokens: int | None = None,
    tokenizer: Tokenizer = None,
) -> list[T]:
    """Return the compact view of a conversation that a framework holds, and that may be ahead of the store.

    ``plain`` returns a message as it is stored, and ``load`` makes messages of stored ones. A conversation
    that is shorter than what the thread's compaction stands for is not compacted.
    """
    head = thread.head
    newest = [] if head is None else head.compactions[-1:]
    compaction = newest[0] if newest and newest[0].upto <= len(items) else None
    if compaction is None and budget_tokens is None:
        return list(items)
    left_out = 0
    if budget_tokens is not None:
        stored = [plain(each) for each in items]
        view = compact_view(
            lambda start, stop: stored[start:stop],
            len(stored),
            compaction,
            budget_tokens=budget_tokens,
            tokenizer=tokenizer,
        )
        left_out = view.left_out
        if compaction is None:
            start = leading_instructions(stored)
            return [*items[:start], *items[start + left_out :]]
    assert compaction is not None  # noqa: S101 - otherwise there is a budget
    made = load(compaction.messages)
    return [*items[: compaction.keeps], *made, *items[compaction.upto + left_out :]]
