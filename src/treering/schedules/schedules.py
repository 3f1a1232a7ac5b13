"""Schedules: tasks that an agent comes back to later, on its own.

Making, changing and looking at tasks. Each change puts a new record of the task in the place of the one that
was read and says so in the journal, in one commit; `Worker` does the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import ABSENT, Draft
from treering.core.clock import to_datetime
from treering.core.ids import Scope, check_id, namespace_prefix
from treering.core.paging import each_record, each_ref
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound, RefMoved
from treering.schedules import planning
from treering.schedules.fires import CHANGED, FIRE_KINDS, FireReport, report_of, tell, tell_skips
from treering.schedules.planning import Step
from treering.schedules.tasks import (
    SCHEDULES,
    CatchUp,
    Overlap,
    Policy,
    Task,
    checked_timing,
    decoded,
    encoded,
    task_ref,
    zone,
)

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.runs.run import Run
    from treering.schedules.worker import Handler, Worker

MAX_TASK_BYTES: Final = 32 * 1024


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
        """The tasks of a user or project, which are forgotten with that namespace."""
        return Schedules(
            self._engine,
            self._space,
            namespace,
            clock=self._clock,
            new_run=self._new_run,
            new_task_id=self._new_task_id,
        )

    # Making tasks
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
        """A task at the times of a cron expression, on the wall clock of a time zone."""
        return self._make(prompt, "cron", expression, tz, channel, chat_id, policy, metadata)

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
        """A task every so many seconds from now on."""
        return self._make(prompt, "interval", seconds, "UTC", channel, chat_id, policy, metadata)

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
        """A task at one moment to come; a time without an offset is of the time zone."""
        return self._make(prompt, "once", when, tz, channel, chat_id, policy, metadata)

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
        """A task of type ``cron``, ``interval`` or ``once``; gets an id of eight hex digits.

        ``policy`` says all that ``catch_up`` and ``overlap`` leave open, and goes before them.
        """
        policy = policy or Policy(catch_up=catch_up, overlap=overlap)
        return self._make(prompt, type, value, tz, channel, chat_id, policy, metadata)

    # Looking at tasks
    def get(self, task_id: str) -> Task:
        """A task; `NotFound` when there is none of this id."""
        return decoded(self._ref(task_id))

    def list_tasks(self, *, all: bool = False) -> Sequence[Task]:
        """The tasks that are going to run or paused, oldest first; ``all`` also those that are over."""
        found = sorted(map(decoded, self._refs()), key=lambda task: (task.created_at_us, task.id))
        return [task for task in found if all or task.status in ("active", "paused")]

    def preview(self, task_id: str, count: int = 5) -> Sequence[datetime]:
        """When a task will be due next, in its time zone."""
        task = self.get(task_id)
        if not task.active:
            return []
        return [
            to_datetime(at).astimezone(zone(task.tz))
            for _, at in zip(range(count), task.timing.after(self._clock.now_us()), strict=False)
        ]

    def preview_cron(self, expression: str, count: int = 5, *, tz: str = "UTC") -> Sequence[datetime]:
        """When a cron expression would be due next; nothing is scheduled."""
        now_us = self._clock.now_us()
        times = checked_timing("cron", expression, tz, now_us=now_us).after(now_us)
        return [to_datetime(at).astimezone(zone(tz)) for _, at in zip(range(count), times, strict=False)]

    def fires(self, task_id: str | None = None) -> Iterator[FireReport]:
        """What became of each occurrence (of one task, or of all), newest first."""
        scope = None if task_id is None else str(Scope(self._namespace, "schedule", task_id))
        query = EventQuery(kinds=FIRE_KINDS, scope=scope, newest_first=True)
        mine = namespace_prefix(self._namespace)
        for record in each_record(self._engine, self._space, query):
            if record.event.scope.startswith(mine):
                yield report_of(self._engine, self._space, record)

    # Changing tasks
    def cancel_task(self, task_id: str) -> Task:
        """Never run it again; a fire that is running goes on to its end."""
        return self._change(task_id, "cancelled", planning.cancel, done=("cancelled",))

    def pause(self, task_id: str) -> Task:
        """Do not run it until it is resumed."""
        return self._change(
            task_id, "paused", planning.pause, done=("paused",), refused=("cancelled", "done")
        )

    def resume(self, task_id: str) -> Task:
        """Go on with the next occurrence; those that fell into the pause are recorded as skipped."""
        return self._change(
            task_id, "resumed", planning.resume, done=("active",), refused=("cancelled", "done")
        )

    def run_now(self, task_id: str) -> Task:
        """Let a worker run it once at once, beside its schedule."""

        def asked(task: Task, now_us: int) -> Step:
            return Step(task=planning.run_now(task, now_us))

        return self._change(task_id, "asked for", asked)

    def put(self, task: Task) -> bool:
        """Bring in a task as it is (an import does); says whether it is new. One that is there stays."""
        return self._created(task, "imported")

    # Doing them
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
        """Something that calls ``handler(fire)`` for what is due, in all namespaces; any number may run.

        Use it in ``with`` or ``async with``: leaving lets the running fires end. ``deliver(fire, result)`` is
        called with what the handler returned, before the fire counts as done. Both may be ``async``.
        """
        from treering.schedules.worker import Worker  # brings asyncio, which most stores never need

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

    def _make(
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
        timing = checked_timing(type, value, tz, now_us=now_us)
        draw = Task(
            id="00000000",
            prompt=_checked_prompt(prompt),
            type=timing.type,
            value=timing.value,
            tz=tz,
            channel=check_id(channel, "channel") if channel else "",
            chat_id=check_id(str(chat_id), "chat id") if chat_id != "" else "",
            namespace=self._namespace,
            created_at_us=now_us,
            next_run_us=timing.next_after(now_us),
            policy=_checked_policy(policy or Policy()),
            metadata=dict(metadata or {}),
        )
        size = len(encoded(draw))
        if size > MAX_TASK_BYTES:
            raise InvalidInput(
                f"a task of {size} bytes is too large, {MAX_TASK_BYTES} is the limit; "
                "keep the text elsewhere (memory, a file) and let the prompt point at it"
            )
        while True:
            task = msgspec.structs.replace(draw, id=self._new_task_id())
            if self._created(task, "created"):
                return task

    def _created(self, task: Task, word: str) -> bool:
        draft = Draft(self._space)
        name = task_ref(check_id(task.id, "task id"), task.namespace)
        draft.set_ref(name, encoded(task), scope=task.scope, expect=ABSENT)
        tell(draft, task, CHANGED, self._clock.now_us(), {"change": word})
        try:
            self._engine.commit(draft.batch())
        except RefMoved:
            return False
        return True

    def _change(
        self,
        task_id: str,
        word: str,
        decide: Callable[[Task, int], Step],
        *,
        done: tuple[str, ...] = (),
        refused: tuple[str, ...] = (),
    ) -> Task:
        while True:
            ref = self._ref(task_id)
            task = decoded(ref)
            if task.status in done:
                return task
            if task.status in refused:
                raise InvalidInput(
                    f"task {task_id!r} is {task.status} and cannot be {word}; schedule a new one"
                )
            now_us = self._clock.now_us()
            step = decide(task, now_us)
            draft = Draft(self._space)
            draft.set_ref(ref.name, encoded(step.task), scope=task.scope, expect=ref.version)
            tell_skips(draft, task, step.skips, now_us)
            tell(draft, task, CHANGED, now_us, {"change": word})
            try:
                self._engine.commit(draft.batch())
            except RefMoved:
                continue
            return step.task

    def _ref(self, task_id: str) -> Ref:
        name = task_ref(check_id(task_id, "task id"), self._namespace)
        ref = self._engine.refs(self._space, [name]).get(name)
        if ref is None:
            raise NotFound(f"there is no task {task_id!r}; list_tasks() shows those that are there")
        return ref

    def _refs(self) -> Iterator[Ref]:
        return each_ref(self._engine, self._space, SCHEDULES + namespace_prefix(self._namespace))


def _checked_prompt(prompt: str) -> str:
    if not isinstance(prompt, str) or not prompt.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise InvalidInput(f"prompt {prompt!r} is empty; say what is to be done when the task fires")
    return prompt


def _checked_policy(policy: Policy) -> Policy:
    try:
        msgspec.convert(msgspec.to_builtins(policy), Policy)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the policy is not acceptable: {error}") from None
    for name, least in (
        ("catch_up_max", 1),
        ("max_attempts", 1),
        ("window_seconds", 0),
        ("grace_seconds", 0),
    ):
        if not getattr(policy, name) >= least:
            raise InvalidInput(f"{name}={getattr(policy, name)!r} is not possible; give {least} or more")
    return policy
