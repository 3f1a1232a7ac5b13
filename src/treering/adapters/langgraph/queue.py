"""The queue: how what tasks wrote waits for the checkpoint that is made of it.

Writes wait for their checkpoint and go into its commit, so a checkpoint is never durable before what it is
made of, and a step costs one commit. What no checkpoint comes for (a task that is done while its neighbours
still work) is committed by itself after `PATIENCE`; an interrupt or an error, with everything that waits,
before the call returns. Where every write is to be durable when its call returns, the call waits too, if that
has paid lately: LangGraph saves writes and checkpoints from threads of its own, a checkpoint apart. If nobody
comes, messages are written ahead to the end of the list that will most likely hold them next, so that they
too are stored once. **Invariant:** writes are committed in the order in which they came, and before anything
that was put after them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Final

from treering.adapters.langgraph.pending import settle, write_event
from treering.core.batch import Draft
from treering.errors import ListMoved

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.adapters.langgraph.pending import Spot, TaskWrites
    from treering.core.batch import Batch
    from treering.core.content import Address, Content
    from treering.core.engine import Engine

PATIENCE: Final = 0.01
"""Seconds that writes wait for their checkpoint before they are committed by themselves."""

CALLERS_PATIENCE: Final = 0.003
"""The same for writes whose caller waits with them."""

_IDLE: Final = 1.0
_MOST_FAILURES: Final = 5
"""How often in a row waiting in vain makes the next callers wait more seldom: each time a fourth as often."""


class Queue:
    """Writes that wait for their checkpoint, by scope."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._gates: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._last_gate: tuple[str, Any] = ("", None)
        self._engine = engine
        self._space = space
        self._waiting: OrderedDict[str, list[TaskWrites]] = OrderedDict()
        self._since = 0.0
        self._failed: Exception | None = None
        self._lock = Lock()
        self._thread: threading.Thread | None = None
        self._caller: int | None = None
        self._are_many = False
        self._rest = 0
        self._failures = 0
        self._alone: str | None = None

    def gate(self, scope: str) -> Any:
        """A lock to hold while something of a scope is taken and committed; other scopes need not wait."""
        last = self._last_gate  # as long as it is held here, it is the one that `_gates` knows
        if last[0] == scope:
            return last[1]
        with self._lock:
            found = self._gates.get(scope)
            if found is None:
                found = self._gates[scope] = RLock()
            self._last_gate = scope, found
            return found

    def add(self, writes: TaskWrites) -> None:
        """Let writes wait. Raises what an earlier flush in the background has failed with."""
        with self._lock:
            failed, self._failed = self._failed, None
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.setdefault(writes.place.scope, []).append(writes)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_flush_on, args=(weakref.ref(self),), name="treering-writes", daemon=True
                )
                self._thread.start()
        if failed is not None:
            raise failed

    def line_up(self, writes: TaskWrites) -> bool:
        """Let writes wait whose caller will wait as well (see `is_landed`), unless it did not pay lately."""
        with self._lock:
            self._notice_caller()
            if not self._are_many:
                return False  # whoever would put the checkpoint is this thread itself
            if self._rest:
                self._rest -= 1
                self._alone = writes.place.scope
                return False
            self._waiting.setdefault(writes.place.scope, []).append(writes)
            return True

    def announce(self, scope: str) -> None:
        """A checkpoint comes. If writes of its scope are just being committed without it, waiting pays again.

        A disk that stood still for a moment makes a few of them wait in vain, and thousands would go alone.
        """
        if self._alone == scope:
            self._rest = self._failures = 0

    def is_landed(self, writes: TaskWrites) -> bool:
        """Wait until writes are committed, but not for long once nobody commits; whether they are."""
        gate = self.gate(writes.place.scope)
        while not writes.landed.acquire(timeout=CALLERS_PATIENCE):
            if gate.acquire(blocking=False):
                gate.release()
                self._failures = min(self._failures + 1, _MOST_FAILURES)
                self._rest = 4**self._failures - 1
                return False
        self._failures = 0
        return True

    def withdraw(self, writes: TaskWrites) -> bool:
        """Let writes wait no longer, while `gate` is held; whether they are still to be committed."""
        with self._lock:
            scope = writes.place.scope
            left = [each for each in self._waiting.pop(scope, []) if each is not writes]
            if left:
                self._waiting[scope] = left
        return not writes.landed.acquire(blocking=False)

    def take(self, scope: str) -> list[TaskWrites]:
        """What waits for a scope, to be committed while `gate` is held."""
        with self._lock:
            self._notice_caller()
            return self._waiting.pop(scope, [])

    def _notice_caller(self) -> None:
        caller = threading.get_ident()
        self._are_many = self._are_many or self._caller not in (None, caller)
        self._caller = caller

    def put_back(self, writes: list[TaskWrites]) -> None:
        """Its commit was refused: let it wait again, in front."""
        if writes:
            _unsettle(writes)
            with self._lock:
                scope = writes[0].place.scope
                self._waiting[scope] = [*writes, *self._waiting.get(scope, [])]

    def flush(self, scope: str | None = None) -> None:
        """Commit what waits (of one scope)."""
        if self._waiting:
            for each in list(self._waiting) if scope is None else [scope]:
                with self.gate(each):
                    self._commit(self.take(each), None)

    def commit(self, writes: TaskWrites, spot: Spot | None) -> None:
        """Commit what waits of a scope, and this behind it, while `gate` is held.

        ``spot`` is the end of the list that will hold its messages next: they are written there ahead, so
        that the checkpoint need only say that its list is longer.
        """
        try:
            self._commit([*self.take(writes.place.scope), writes], spot)
        finally:
            self._alone = None

    def _commit(self, writes: list[TaskWrites], spot: Spot | None) -> None:
        if not writes:
            return
        try:
            try:
                self._engine.commit(self._drafted(writes, spot))
            except ListMoved:  # it does not end there any more: nothing is written ahead
                if spot is None:
                    raise
                _unsettle(writes)
                self._engine.commit(self._drafted(writes, None))
        except BaseException:
            self.put_back(writes)
            raise
        land(writes)

    def _drafted(self, writes: list[TaskWrites], spot: Spot | None) -> Batch:
        draft = Draft(self._space)
        if spot is not None:
            _write_ahead(draft, writes[-1], *spot)
        for number, each in enumerate(writes):
            write_event(draft, each, number)
        return draft.batch()

    def _look(self) -> bool:
        """Commit what has waited too long; whether the thread is still needed."""
        with self._lock:
            now = time.monotonic()
            if not self._waiting:
                if now - self._since > _IDLE:
                    self._thread = None
                    return False
                return True
            if now - self._since < PATIENCE:
                return True
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - told to whoever writes next
            with self._lock:
                self._failed = error
                self._since = time.monotonic() + _IDLE
        return True


def land(writes: list[TaskWrites]) -> None:
    """They are committed: whoever waits for that may go on."""
    for each in writes:
        each.landed.release()


def _write_ahead(draft: Draft, writes: TaskWrites, list_id: str, start: int) -> None:
    items: list[Content | Address] = []
    for position, message in enumerate(writes.messages, start):
        message.spot = spot = (list_id, position)
        items.append(settle(draft, message, spot))
    draft.append(list_id, *items, scope=writes.place.scope, at=start)


def _unsettle(writes: list[TaskWrites]) -> None:
    for each in writes:
        for message in each.messages:
            message.unsettle()


def _flush_on(queue: Callable[[], Queue | None]) -> None:
    """The thread of a queue; it ends when the queue is idle or gone."""
    while True:
        time.sleep(PATIENCE)
        found = queue()
        if found is None or not found._look():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return
        del found
