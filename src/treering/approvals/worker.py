"""A worker that continues threads whose question was answered after their process had ended.

A question that was answered, and whose thread has not gone on since, is listed as ``answered``. The worker
takes a lease on it, continues the thread, and closes it. It leaves alone what a living program waits for
itself (`PendingApproval`), and threads that have gone on. A worker that dies leaves the question listed, and
the next one continues the thread: with the effects of its tools recorded (`treering.effects`), a call that
was made is not made again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from treering.core.ids import new_id
from treering.errors import InvalidInput, TreeringError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from treering.approvals.approvals import Approval
    from treering.store import Store

WORKING: Final = "resuming/"
"""The leases of workers."""
LEASE_SECONDS: Final = 30.0
MAX_ATTEMPTS: Final = 5
"""How often a worker tries to continue a thread."""
_BEATS: Final = 3

log: Final = logging.getLogger("treering.approvals")


class ApprovalWorker:
    """Continues the threads of answered questions with ``continue_thread``, which gets each `Approval`."""

    def __init__(
        self,
        store: Store,
        continue_thread: Callable[[Approval], Any],
        *,
        seconds: float = 1.0,
        link: str | None = None,
        tool: str | None = None,
    ) -> None:
        self._store = store
        self._continue = continue_thread
        self._seconds = seconds
        self._link = link
        self._tool = tool
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> int:
        """Apply deadlines, continue what was answered, and return how many threads were continued."""
        approvals = self._store.approvals
        approvals.examine(link=self._link)
        count = 0
        for each in list(approvals.list(status="answered", tool=self._tool)):
            if self._end.is_set():
                break
            count += self._work_on(each)
        return count

    def run(self) -> None:
        """Work until `stop` is called."""
        while not self._end.is_set():
            try:
                seq = self._store.engine.wait(self._store.space, 0, seconds=0)
                if not self.run_once():
                    self._store.engine.wait(self._store.space, seq, seconds=self._seconds)
            except TreeringError as error:
                log.warning("the worker pauses: %s", error)
                self._end.wait(self._seconds)

    def stop(self) -> None:
        """Let `run` return after the thread that is being continued."""
        self._end.set()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, name="treering-approvals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _work_on(self, approval: Approval) -> bool:
        approvals, engine, space = self._store.approvals, self._store.engine, self._store.space
        if approvals.is_parked(approval.id):
            return False
        lease = engine.claim(space, WORKING + approval.id, holder=new_id(), seconds=LEASE_SECONDS)
        if lease is None:
            return False
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(LEASE_SECONDS / _BEATS):
                with suppress(TreeringError):
                    engine.heartbeat(lease, seconds=LEASE_SECONDS)

        renewer = threading.Thread(target=renew, name="treering-approval-lease", daemon=True)
        try:
            attempts = approvals.begin(approval.id)
            if not 1 <= attempts <= MAX_ATTEMPTS:
                return False
            renewer.start()
            try:
                self._continue(approval)
            except InvalidInput:
                head = self._store.thread(approval.waits_in, approval.namespace).head
                if attempts == 1 or head is None or head.id == approval.answer_checkpoint_id:
                    raise
                log.info("thread %r has nothing left to do", approval.waits_in)  # an earlier attempt did it
            approvals.done(approval.id)
        except Exception:  # one thread must not end the work for the others
            log.exception(
                "thread %r could not be continued after approval %s", approval.waits_in, approval.id
            )
            return False
        else:
            return True
        finally:
            ended.set()
            if renewer.is_alive():
                renewer.join()
            engine.release(lease)


def continuation(target: Any) -> Callable[[Approval], Any]:
    """Return a function that continues the thread of an approval with a target.

    That is an agent of `treering.agent`, a compiled LangGraph graph, or a function of the `Approval`.
    """
    if hasattr(target, "generate") and hasattr(target, "resume"):

        def generate(approval: Approval) -> Any:
            return target.generate(thread_id=approval.waits_in)

        return generate
    if hasattr(target, "ainvoke") and hasattr(target, "get_state"):

        def invoke(approval: Approval) -> Any:
            config = {"configurable": {"thread_id": approval.waits_in}}
            return asyncio.run(target.ainvoke(None, config))

        return invoke
    if callable(target):
        from treering.sync_async import call

        return lambda approval: call(target, approval)
    raise InvalidInput(f"{target!r} cannot continue a thread; give an agent, a compiled graph or a function")
