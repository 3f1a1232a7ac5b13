"""pydantic-ai-harness: a `StepStore` on a treering store, for its `StepPersistence` capability.

A run of the harness is the thread with its id (in the namespace ``steps``, unless another one is given). A
snapshot is a checkpoint of that thread, so a history that grows is stored once; the harness's record of the
run is the thread's state; its events are rows of the journal. A tool call is an effect (`treering.effects`),
held for as long as it is in flight: if its process dies, it is unknown, and a person decides about it in the
dashboard or with ``treering effects``. **Invariant:** what the harness stored comes back equal, and a
snapshot or event that is sent again is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from threading import Lock
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from treering.adapters.conversation import read_heads
from treering.adapters.shared import Opened, StoreOrUrl, checked_namespace, json_for_models, thread_name
from treering.core.batch import Draft, Event
from treering.core.clock import from_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import new_id, thread_key, thread_scope
from treering.core.query import EventQuery, each_record
from treering.effects.effects import Attempt, Effect, Intent
from treering.errors import MissingExtra
from treering.threads.checkpoint import Checkpoint
from treering.threads.thread import Thread, ThreadMoved

try:
    from pydantic import TypeAdapter
    from pydantic_ai.messages import ModelMessagesTypeAdapter
    from pydantic_ai_harness.step_persistence import (
        ContinuableSnapshot,
        RunRecord,
        StepEvent,
        ToolEffectRecord,
    )
except ModuleNotFoundError as error:
    raise MissingExtra("treering.adapters.pydantic_ai_harness", "pydantic-ai-harness") from error

P = ParamSpec("P")
T = TypeVar("T")

NAMESPACE: Final = "steps"
"""The namespace of the threads, unless another one is given."""
_RUN: Final = "pydantic_ai_run"
"""The state value with the harness's record of a run."""
_SNAPSHOT: Final = "snapshot"
"""In a checkpoint's metadata: what the harness says of a snapshot."""
_HIGHEST: Final = "highest_keys"
"""In a checkpoint's metadata: the largest number of a snapshot's key so far, and the keys that have it."""
_STEP: Final = "step"
_EFFECT: Final = "step.effect"
"""The kinds of rows with an event, and with what the harness says of a tool call."""
_ATTEMPTS: Final = 100
_runs: Final = TypeAdapter(RunRecord)
_events: Final = TypeAdapter(StepEvent)
_tool_effects: Final = TypeAdapter(ToolEffectRecord)


class TreeringStepStore:
    """Stores the steps of agents: ``StepPersistence(store=TreeringStepStore("./agents"))``.

    ``store`` is an open store, which you close, or where to open one, which `close` closes.
    """

    def __init__(self, store: StoreOrUrl | None = None, *, namespace: str = NAMESPACE) -> None:
        self._opened = Opened(store)
        self._namespace = checked_namespace(namespace)
        self._lock = Lock()
        self._attempts: dict[str, Attempt] = {}
        """The tool calls of this process that are in flight."""

    async def register_run(self, record: RunRecord) -> None:
        """Store the record of a run, or replace it."""
        await self._call(self._register, record)

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """Return the record of a run, or ``None``."""
        return await self._call(self._run, run_id)

    async def list_runs(
        self, *, parent_run_id: str | None = None, conversation_id: str | None = None
    ) -> list[RunRecord]:
        """List runs by their start; both filters are optional, and both must match."""
        return await self._call(self._list_runs, parent_run_id, conversation_id)

    async def append_event(self, event: StepEvent) -> None:
        """Store an event, once for each idempotency key."""
        await self._call(self._append_event, event)

    async def list_events(self, *, run_id: str) -> list[StepEvent]:
        """List the events of a run in the order in which they were stored."""
        return await self._call(lambda: [_events.validate_python(each) for each in self._rows(run_id, _STEP)])

    async def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """Store a snapshot as a checkpoint, once for each idempotency key."""
        await self._call(self._save, snapshot)

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """Return the newest snapshot that is complete (or the newest of all), or ``None``."""
        return await self._call(lambda: next(self._snapshots(run_id, include_interrupted), None))

    async def list_snapshots(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> list[ContinuableSnapshot]:
        """List snapshots, oldest first; the harness's search of conversations reads them."""
        return await self._call(lambda: list(self._snapshots(run_id, include_interrupted))[::-1])

    async def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """Store how far a tool call got, here and as an effect of the store."""
        await self._call(self._record_effect, record)

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """Return what was recorded last of a tool call, or ``None``."""
        return (await self._call(self._latest_effects, run_id)).get(tool_call_id)

    async def list_unresolved_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """List the tool calls of a run that were started and whose end nobody recorded."""
        found = await self._call(self._latest_effects, run_id)
        return [each for each in found.values() if each.status == "started"]

    async def close(self) -> None:
        """Close the store, if it was opened here; calls that are in flight are left as unknown."""
        with self._lock:
            attempts, self._attempts = list(self._attempts.values()), {}
        for attempt in attempts:
            await self._call(attempt.leave)
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def thread(self, run_id: str) -> Thread:
        """Return the thread of a run."""
        return self._opened.store.thread(thread_name(run_id, "run id"), self._namespace)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._opened.bridge.call(function, *args, **kwargs)

    # Runs
    def _register(self, record: RunRecord) -> None:
        state = {_RUN: _runs.dump_python(record, mode="json")}
        _retry(lambda: self.thread(record.run_id).checkpoint(state=state, note="registered"))

    def _run(self, run_id: str) -> RunRecord | None:
        head = self.thread(run_id).head
        stored = None if head is None else head.state.get(_RUN)
        return None if stored is None else _runs.validate_python(stored)

    def _list_runs(self, parent: str | None, conversation: str | None) -> list[RunRecord]:
        threads = self._opened.store.threads(namespace=self._namespace)
        states = (state for _, _, state in read_heads(self._opened.store, threads, _RUN))
        records = [_runs.validate_python(state[_RUN]) for state in states if _RUN in state]
        return sorted(
            (
                each
                for each in records
                if (parent is None or each.parent_run_id == parent)
                and (conversation is None or each.conversation_id == conversation)
            ),
            key=lambda each: each.started_at,
        )

    # Snapshots
    def _save(self, snapshot: ContinuableSnapshot) -> None:
        _retry(lambda: self._save_once(snapshot))

    def _save_once(self, snapshot: ContinuableSnapshot) -> None:
        thread, key = self.thread(snapshot.run_id), snapshot.idempotency_key
        head = thread.head
        highest: Any = None if head is None else head.metadata.get(_HIGHEST)
        number, keys = cast("tuple[int, list[str]]", highest or (-1, []))
        if key is not None:
            own = _number(key)
            if own is not None and (own < number or (own == number and key in keys)):
                return
            if own is None and any(
                each.idempotency_key == key for each in self._snapshots(snapshot.run_id, True)
            ):
                return
            if own is not None:
                keys = [*keys, key] if own == number else [key]
                number = own
        fields = {
            name: getattr(snapshot, name)
            for name in ("run_id", "step_index", "conversation_id", "parent_run_id", "agent_name", "state")
        }
        fields |= {"timestamp": snapshot.timestamp.isoformat(), "idempotency_key": key}
        thread.checkpoint(
            ModelMessagesTypeAdapter.dump_python(list(snapshot.messages), mode="json"),
            metadata={_SNAPSHOT: fields, _HIGHEST: [number, keys]},
            note=f"step {snapshot.step_index}",
            tags=(snapshot.state,),
        )

    def _snapshots(self, run_id: str, include_interrupted: bool) -> Iterator[ContinuableSnapshot]:  # noqa: FBT001
        for checkpoint in self.thread(run_id).history():
            fields = checkpoint.metadata.get(_SNAPSHOT)
            if fields is not None and (include_interrupted or fields["state"] == "complete"):
                yield _snapshot(checkpoint, fields)

    # Rows of the journal
    def _append_event(self, event: StepEvent) -> None:
        data = _events.dump_python(event, mode="json")
        # The journal tells events apart by id and day, so all with a key have the time of the same day.
        key, at_us = event.idempotency_key, from_datetime(event.timestamp)
        if key is not None:
            head = self._run(event.run_id)
            at_us = at_us if head is None else from_datetime(head.started_at)
        self._write(event.run_id, _STEP, event.kind, data, key=key, at_us=at_us)

    def _rows(self, run_id: str, kind: str) -> Iterator[dict[str, Any]]:
        store, thread = self._opened.store, self.thread(run_id)
        query = EventQuery(kinds=(kind,), scope=thread_scope(thread.id, self._namespace))
        for record in each_record(store.engine, store.space, query):
            yield decode_json(record.event.data or b"{}")

    def _write(
        self, run_id: str, kind: str, name: str, data: dict[str, Any], *, key: str | None, at_us: int
    ) -> None:
        store, thread = self._opened.store, self.thread(run_id)
        draft = Draft(store.space)
        scope = thread_scope(thread.id, self._namespace)
        draft.event(
            Event(
                id=new_id()
                if key is None
                else thread_name(f"{thread.id}/{key}", "idempotency key", limit=200),
                kind=kind,
                ts_us=at_us,
                scope=scope,
                thread=thread_key(thread.id, self._namespace),
                name=name,
                data=encode_json(data),
            )
        )
        store.engine.commit(draft.batch())

    # Tool calls
    def _record_effect(self, record: ToolEffectRecord) -> None:
        data = _tool_effects.dump_python(record, mode="json")
        at_us = self._opened.store.clock.now_us()
        self._write(record.run_id, _EFFECT, record.tool_name, data, key=None, at_us=at_us)
        name = thread_name(f"{record.run_id}/{record.tool_call_id}", "tool call id", limit=200)
        with self._lock:
            attempt = self._attempts.pop(name, None)
        if attempt is None:
            intent = Intent(
                id=name,
                tool=record.tool_name,
                arguments={"idempotency_key": record.idempotency_key, "run_id": record.run_id},
                call_id=record.tool_call_id,
                thread_id=self.thread(record.run_id).id,
                namespace=self._namespace,
            )
            begun = self._opened.store.effects.open(intent)
            attempt = begun if isinstance(begun, Attempt) else None
            if attempt is None:
                self._resolve(cast("Effect", begun), record)
                return
        if record.status == "started":
            with self._lock:
                self._attempts[name] = attempt
        else:
            attempt.finish(record.effect_summary, is_error=record.status == "failed")

    def _resolve(self, effect: Effect, record: ToolEffectRecord) -> None:
        """Decide about a call whose process died, once the harness says how it ended."""
        if record.status == "completed" and not effect.is_finished:
            self._opened.store.effects.resolve(
                effect.id, happened=True, result=record.effect_summary, by="pydantic-ai-harness"
            )

    def _latest_effects(self, run_id: str) -> dict[str, ToolEffectRecord]:
        found = (_tool_effects.validate_python(each) for each in self._rows(run_id, _EFFECT))
        return {each.tool_call_id: each for each in found}


def _snapshot(checkpoint: Checkpoint, fields: dict[str, Any]) -> ContinuableSnapshot:
    messages = ModelMessagesTypeAdapter.validate_json(json_for_models(checkpoint.messages))
    given: dict[str, Any] = {**fields, "timestamp": datetime.fromisoformat(fields["timestamp"])}
    return ContinuableSnapshot(messages=messages, **given)


def _number(key: str) -> int | None:
    """Return the number that the harness's own keys begin with, which grows with the snapshots of a run."""
    prefix, separator, _ = key.partition(":")
    return int(prefix) if separator and prefix.isdecimal() else None


def _retry(save: Callable[[], object]) -> None:
    """Save, again if another process has saved in between."""
    for attempt in range(_ATTEMPTS):
        try:
            save()
        except ThreadMoved:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return
