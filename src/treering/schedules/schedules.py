"""Schedules: tasks that run later, by cron, at an interval or once.

`Schedules` creates, changes and lists tasks; a `Worker` runs them. Each change replaces the version of the
task's record that was read and adds an event to the journal, in one commit.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from treering.core.batch import ABSENT, Draft
from treering.core.clock import to_datetime
from treering.core.forks import refuse_outside
from treering.core.ids import Scope, check_id, namespace_prefix
from treering.core.query import EventQuery, ListQuery, each_listed, each_record, encode_list_cursor, readable
from treering.core.records import list_place
from treering.errors import InvalidInput, NotFound, RefMoved
from treering.schedules import planning
from treering.schedules.planning import Transition
from treering.schedules.tasks import (
    CHANGED,
    REPORT_KINDS,
    TASKS,
    CatchUp,
    OccurrenceReport,
    Overlap,
    Policy,
    Status,
    Task,
    add_event,
    add_skip_events,
    decode_task,
    encode_task,
    put_task,
    read_report,
    task_ref,
)
from treering.schedules.timing import parse_timing, time_zone

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.runs.run import Run
    from treering.schedules.worker import Handler, Worker

MAX_TASK_BYTES: Final = 32 * 1024


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks, oldest first, and the cursor of the next page; ``None`` if there is none."""

    tasks: tuple[Task, ...]
    cursor: str | None


class Schedules:
    """The scheduled tasks of one namespace."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        namespace: str = "",
        *,
        clock: Clock,
        new_run: Callable[..., Run] | None = None,
        new_task_id: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._engine = engine
        self._space = space
        self._namespace = check_id(namespace, "namespace") if namespace else ""
        self._clock = clock
        self._new_run = new_run
        self._new_task_id = new_task_id

    def __repr__(self) -> str:
        return f"<Schedules namespace={self._namespace!r}>"

    def in_namespace(self, namespace: str) -> Schedules:
        """Return the tasks of a user or project; forgetting that namespace erases them."""
        return Schedules(
            self._engine,
            self._space,
            namespace,
            clock=self._clock,
            new_run=self._new_run,
            new_task_id=self._new_task_id,
        )

    def cron(
        self,
        expression: str,
        *,
        prompt: str,
        tz: str = "UTC",
        channel: str = "",
        chat_id: str | int = "",
        policy: Policy | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Task:
        """Schedule a task by a cron expression, read against the wall clock of a time zone."""
        return self._schedule(prompt, "cron", expression, tz, channel, chat_id, policy, metadata)

    def interval(
        self,
        seconds: float,
        *,
        prompt: str,
        channel: str = "",
        chat_id: str | int = "",
        policy: Policy | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Task:
        """Schedule a task every ``seconds``, counted from now."""
        return self._schedule(prompt, "interval", seconds, "UTC", channel, chat_id, policy, metadata)

    def once(
        self,
        when: datetime | str,
        *,
        prompt: str,
        tz: str = "UTC",
        channel: str = "",
        chat_id: str | int = "",
        policy: Policy | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Task:
        """Schedule a task for one future time; a time without an offset is in the time zone ``tz``."""
        return self._schedule(prompt, "once", when, tz, channel, chat_id, policy, metadata)

    def schedule_task(
        self,
        prompt: str,
        type: str,
        value: str | float | datetime,
        *,
        channel: str = "",
        chat_id: str | int = "",
        tz: str = "UTC",
        catch_up: CatchUp = "once",
        overlap: Overlap = "skip",
        policy: Policy | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Task:
        """Schedule a task of type ``cron``, ``interval`` or ``once``. Its id is eight hex digits.

        ``policy`` takes precedence over ``catch_up`` and ``overlap``.
        """
        policy = policy or Policy(catch_up=catch_up, overlap=overlap)
        return self._schedule(prompt, type, value, tz, channel, chat_id, policy, metadata)

    def load(self, task_id: str) -> Task:
        """Return a task; raise `NotFound` if there is none with this id."""
        return decode_task(self._ref(task_id))

    def get(self, task_id: str) -> Task | None:
        """Return what `load` returns, or ``None`` if there is no such task."""
        try:
            return self.load(task_id)
        except NotFound:
            return None

    def list_tasks(self, *, all: bool = False) -> Sequence[Task]:
        """List active and paused tasks, oldest first; with ``all`` also done and cancelled ones."""
        return list(readable(self._listed(None, 1000, all=all), decode_task))

    def task_page(self, *, all: bool = False, first: int = 100, cursor: str | None = None) -> TaskPage:
        """Return one page of `list_tasks`, in the same time however many there are."""
        refs = list(islice(self._listed(cursor, first, all=all), first))
        return TaskPage(
            tasks=tuple(readable(refs, decode_task)),
            cursor=encode_list_cursor(*list_place(refs[-1])) if len(refs) == first else None,
        )

    def _listed(self, cursor: str | None, limit: int, *, all: bool) -> Iterator[Ref]:
        query = ListQuery(list=TASKS, namespace=self._namespace, oldest_first=True)
        statuses: tuple[Status | None, ...] = (None,) if all else ("active", "paused")
        lists = [
            each_listed(
                self._engine, self._space, structs.replace(query, status=status), after=cursor, limit=limit
            )
            for status in statuses
        ]
        return heapq.merge(*lists, key=list_place)

    def preview(self, task_id: str, count: int = 5) -> Sequence[datetime]:
        """Return the next due times of a task, in its time zone."""
        task = self.load(task_id)
        if not task.active:
            return []
        times = islice(task.timing.after(self._clock.now_us()), count)
        return [to_datetime(at_us).astimezone(time_zone(task.tz)) for at_us in times]

    def preview_cron(self, expression: str, count: int = 5, *, tz: str = "UTC") -> Sequence[datetime]:
        """Return the next due times of a cron expression, without scheduling anything."""
        now_us = self._clock.now_us()
        times = islice(parse_timing("cron", expression, tz, now_us=now_us).after(now_us), count)
        return [to_datetime(at_us).astimezone(time_zone(tz)) for at_us in times]

    def occurrences(self, task_id: str | None = None) -> Iterator[OccurrenceReport]:
        """List finished and skipped occurrences of one task, or of all, newest first."""
        scope = None if task_id is None else str(Scope(self._namespace, "schedule", task_id))
        query = EventQuery(kinds=REPORT_KINDS, scope=scope, newest_first=True)
        prefix = namespace_prefix(self._namespace)
        for record in each_record(self._engine, self._space, query):
            if record.event.scope.startswith(prefix):
                yield read_report(self._engine, self._space, record)

    def cancel_task(self, task_id: str) -> Task:
        """Cancel a task for good; a running occurrence is allowed to finish."""
        return self._change(task_id, "cancelled", planning.cancel, already="cancelled")

    def pause(self, task_id: str) -> Task:
        """Pause a task until `resume`; waiting occurrences are skipped."""
        return self._change(
            task_id, "paused", planning.pause, already="paused", forbidden=("cancelled", "done")
        )

    def resume(self, task_id: str) -> Task:
        """Resume a task at its next occurrence; those due during the pause are recorded as skipped."""
        return self._change(
            task_id, "resumed", planning.resume, already="active", forbidden=("cancelled", "done")
        )

    def run_now(self, task_id: str) -> Task:
        """Have a worker run the task once as soon as possible, in addition to its schedule."""

        def open_manual(task: Task, now_us: int) -> Transition:
            return Transition(task=planning.run_now(task, now_us))

        return self._change(task_id, "run now", open_manual)

    def put(self, task: Task) -> bool:
        """Add a task as it is, as an import does. Return false, and change nothing, if its id exists."""
        return self._create(task, "imported")

    def worker(
        self,
        handler: Handler,
        *,
        deliver: Callable[..., Any] | None = None,
        concurrency: int = 8,
        lease_seconds: float = 30.0,
        poll_seconds: float = 0.5,
        record_runs: bool = True,
        name: str = "worker",
    ) -> Worker:
        """Return a worker that calls ``handler(occurrence)`` for each due occurrence, in all namespaces.

        Use it in ``with`` or ``async with``; leaving waits for running occurrences. Any number of workers
        may run at once. ``deliver(occurrence, result)`` receives what the handler returned, before the
        occurrence counts as done. Both may be ``async``.
        """
        from treering.schedules.worker import Worker  # imports asyncio, which most stores never need

        return Worker(
            self._engine,
            self._space,
            handler,
            deliver=deliver,
            clock=self._clock,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            poll_seconds=poll_seconds,
            new_run=self._new_run if record_runs else None,
            name=name,
        )

    def _schedule(
        self,
        prompt: str,
        type: str,
        value: Any,
        tz: str,
        channel: str,
        chat_id: str | int,
        policy: Policy | None,
        metadata: dict[str, Any] | None,
    ) -> Task:
        now_us = self._clock.now_us()
        timing = parse_timing(type, value, tz, now_us=now_us)
        task = Task(
            id="00000000",
            prompt=_validate_prompt(prompt),
            type=timing.type,
            value=timing.value,
            tz=tz,
            channel=check_id(channel, "channel") if channel else "",
            chat_id=check_id(str(chat_id), "chat id") if chat_id != "" else "",
            namespace=self._namespace,
            created_at_us=now_us,
            next_run_us=timing.next_after(now_us),
            policy=_validate_policy(policy or Policy()),
            metadata=dict(metadata or {}),
        )
        size = len(encode_task(task))
        if size > MAX_TASK_BYTES:
            raise InvalidInput(
                f"the task takes {size} bytes, the limit is {MAX_TASK_BYTES}; "
                "store the text elsewhere (memory, a file) and refer to it in the prompt"
            )
        while True:
            task = msgspec.structs.replace(task, id=self._new_task_id())
            if self._create(task, "created"):
                return task

    def _create(self, task: Task, change: str) -> bool:
        refuse_outside(self._engine, self._space, f"the task {task.id!r}")
        draft = Draft(self._space)
        check_id(task.id, "task id")
        put_task(draft, task, expect=ABSENT)
        add_event(draft, task, CHANGED, self._clock.now_us(), {"change": change})
        try:
            self._engine.commit(draft.batch())
        except RefMoved:
            return False
        return True

    def _change(
        self,
        task_id: str,
        change: str,
        decide: Callable[[Task, int], Transition],
        *,
        already: Status | None = None,
        forbidden: tuple[Status, ...] = (),
    ) -> Task:
        """Apply a transition, unless the task is in the status ``already``; raise if it is ``forbidden``."""
        while True:
            ref = self._ref(task_id)
            task = decode_task(ref)
            if task.status == already:
                return task
            if task.status in forbidden:
                raise InvalidInput(
                    f"task {task_id!r} is {task.status} and cannot be {change}; schedule a new one"
                )
            now_us = self._clock.now_us()
            step = decide(task, now_us)
            draft = Draft(self._space)
            put_task(draft, step.task, expect=ref.version)
            add_skip_events(draft, task, step.skips, now_us)
            add_event(draft, task, CHANGED, now_us, {"change": change})
            try:
                self._engine.commit(draft.batch())
            except RefMoved:
                continue
            return step.task

    def _ref(self, task_id: str) -> Ref:
        name = task_ref(check_id(task_id, "task id"), self._namespace)
        ref = self._engine.refs(self._space, [name]).get(name)
        if ref is None:
            raise NotFound(f"task {task_id!r} not found. List tasks with: treering schedules list --all")
        return ref


def _validate_prompt(prompt: str) -> str:
    if not isinstance(prompt, str) or not prompt.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise InvalidInput(f"prompt {prompt!r} is empty; give the text that the handler should act on")
    return prompt


def _validate_policy(policy: Policy) -> Policy:
    try:
        msgspec.convert(msgspec.to_builtins(policy), Policy)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"invalid policy: {error}") from None
    for name, least in (
        ("catch_up_max", 1),
        ("max_attempts", 1),
        ("window_seconds", 0),
        ("grace_seconds", 0),
    ):
        value = getattr(policy, name)
        if value is not None and not value >= least:
            raise InvalidInput(f"invalid policy: {name}={value!r}; use {least} or more")
    return policy
