"""How the sessions of Google ADK are stored, as blocking code.

A session is a thread named ``<app>/<user>/<session>``: its events are the thread's messages, and its own
state is the thread's state. The state of an app or a user is shared by many sessions, so it is stored
separately, in refs. **Invariant:** an event and every state that it changes are stored in one commit or not
at all; appending to a session object that does not have the newest event raises `StaleSessionError`.

ADK asks for a confirmation of a tool by an event that calls ``adk_request_confirmation``, and goes on when a
message has the response to that call. Until then the checkpoints of the session have a pending interrupt,
which lists the calls that wait. The answer may come from anywhere: the dashboard, the command line,
`Thread.resume`. **Invariant:** a session waits exactly from the event that asks until the next message of its
user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from google.genai import types
from pydantic_core import to_jsonable_python

from treering.adapters.conversation import ConversationThread, escape_part, read_heads, retry_if_removed
from treering.adapters.shared import json_for_models
from treering.core.batch import ABSENT, Draft, Expect
from treering.core.clock import SECOND_US
from treering.core.content import Address
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import Scope, namespace_prefix
from treering.errors import Busy, InvalidInput, NotFound, RefMoved
from treering.store import Store
from treering.threads.checkpoint import Checkpoint, CheckpointRecord, ListPrefix
from treering.threads.compaction import Compaction, Summary, View, compaction_of
from treering.threads.writer import HeadState

if TYPE_CHECKING:
    from treering.threads.thread import Thread

SOURCE: Final = "adk"
"""Who made a compaction that an event of ADK's is."""

_ATTEMPTS: Final = 50
_PAGE: Final = 100


class SessionName(msgspec.Struct, frozen=True):
    """The app, user and session id of a session, each any string."""

    app: str
    user: str
    session: str

    @property
    def thread_id(self) -> str:
        """The id of the session's thread, unique to it."""
        return "/".join(map(escape_part, (self.app, self.user, self.session)))


class CachedSession(msgspec.Struct, kw_only=True):
    """What is cached of a session between calls, valid as long as the head is the same."""

    thread: ConversationThread
    head: HeadState | None = None
    state: dict[str, Any] | None = None


class Sessions:
    """The sessions of one namespace."""

    def __init__(self, store: Store, namespace: str, view: View = "compact") -> None:
        self._store = store
        self._namespace = namespace
        self._view = view

    def cached(self, name: SessionName) -> CachedSession:
        """Return an empty cache for one session, to be used by one call at a time."""
        return CachedSession(thread=ConversationThread(self._store, name.thread_id, self._namespace))

    def create(self, name: SessionName, state: Mapping[str, Any], now: float) -> Session:
        """Create a session; raise `AlreadyExistsError` if it exists."""
        parts = _StateByScope.of(state)
        thread = self.cached(name).thread
        for _ in range(_ATTEMPTS):
            if thread.head() is not None:
                raise AlreadyExistsError(f"Session with id {name.session} already exists.")
            shared = self._shared(name)
            try:
                head = thread.save(
                    None,
                    (),
                    after=None,
                    state=parts.session,
                    metadata_for=lambda _: _metadata(name, now),
                    add_to_batch=lambda draft, shared=shared: shared.change(draft, parts),
                )
            except RefMoved:
                continue
            return _session(name, shared.merged(parts, parts.session), head.checkpoint, [])
        raise _contended(name)

    def get(self, name: SessionName, config: GetSessionConfig | None) -> Session | None:
        """Return a session with its events, or those that ``config`` selects, and run the load hooks."""
        return retry_if_removed(lambda: self._get(name, config))

    def _get(self, name: SessionName, config: GetSessionConfig | None) -> Session | None:
        thread = self.cached(name).thread
        head = thread.head()
        if head is None:
            return None
        checkpoint = thread.checkpoint(head)
        stored = self._read_events(thread, head, config)
        if self._view == "compact":
            stored = _compacted(checkpoint, thread, head, stored)
        events = [_event(each) for each in stored]
        return _session(name, self._shared(name).merged(None, checkpoint.state), head.checkpoint, events)

    def list_sessions(self, app: str, user: str | None) -> list[Session]:
        """Return the sessions of an app (and user) without events, the most recently changed one last."""
        prefix = escape_part(app) + "/" + ("" if user is None else escape_part(user) + "/")
        threads = self._store.threads(namespace=self._namespace, prefix=prefix)
        heads = [
            (name, head, state)
            for _, head, state in read_heads(self._store, threads)
            if (name := _session_name(head)) is not None and name.app == app and user in (None, name.user)
        ]
        shared = self._shared_by_user(app, {name.user for name, _, _ in heads})
        found = [
            _session(name, shared[name.user].merged(None, state), head, []) for name, head, state in heads
        ]
        return sorted(found, key=lambda each: (each.last_update_time, each.user_id, each.id))

    def delete(self, name: SessionName) -> None:
        """Erase a session, if it exists. The state of its user and its app stays."""
        thread = self.cached(name).thread
        for _ in range(_ATTEMPTS):
            head = thread.head()
            if head is None:
                if thread.newest() is not None:  # unlisted by a call that was interrupted
                    thread.erase()
                return
            try:
                thread.unlist(head)
            except RefMoved:
                continue
            thread.erase()
            return
        raise _contended(name)

    def user_state(self, name: SessionName) -> dict[str, Any]:
        """Return the state that all sessions of a user share, under keys without their prefix."""
        return self._shared(name).user.values

    def append(
        self, cached: CachedSession, session: Session, event: Event, commit: Callable[[], Any]
    ) -> None:
        """Store an event of a session, then ``commit`` it to the session object.

        If the newest event is equal to this one, it is not stored again: a call may be repeated.
        """
        name = SessionName(session.app_name, session.user_id, session.id)
        plain = event.model_dump(mode="json", exclude_none=True)
        parts = _StateByScope.of(event.actions.state_delta if event.actions else {})
        for _ in range(_ATTEMPTS):
            head = retry_if_removed(lambda: cached.thread.head(cached.head))
            if head is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            if head is not cached.head:
                cached.head, cached.state = head, None
            if self._is_stored(cached.thread, head, session, plain):
                if session._storage_update_marker != head.checkpoint.id:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                    self._commit_to_session(session, head, commit)
                return
            self._check_not_stale(cached.thread, head, session)
            try:
                cached.head = self._append(cached, head, name, event, plain, parts)
            except (RefMoved, NotFound):
                continue  # the head (so the session is stale or removed) or shared state changed
            self._commit_to_session(session, cached.head, commit)
            return
        raise _contended(name)

    def _append(
        self,
        cached: CachedSession,
        head: HeadState,
        name: SessionName,
        event: Event,
        plain: dict[str, Any],
        parts: _StateByScope,
    ) -> HeadState:
        state = None
        if parts.session:
            if cached.state is None:
                cached.state = Checkpoint(self._store.engine, self._store.space, head.checkpoint).state
            state = cached.state | parts.session
        shared = self._shared(name) if parts.app or parts.user else None
        saved = cached.thread.save(
            head,
            [plain],
            after=head.messages,
            state=state,
            pending_interrupt=pending_after(event, head.checkpoint),
            compaction=self._compaction(cached.thread, head, plain),
            metadata_for=lambda _: _metadata(name, event.timestamp) | {"event": event.id},
            add_to_batch=None if shared is None else lambda draft: shared.change(draft, parts),
        )
        if state is not None:
            # A hook may have changed the state.
            cached.state = None if self._store.hooks.has("pre_checkpoint_save") else state
        return saved

    def _compaction(
        self, thread: ConversationThread, head: HeadState, plain: dict[str, Any]
    ) -> Compaction | None:
        """Return the compaction that an event of ADK is, if it is one and stands for anything."""
        given = _range(plain)
        if given is None:
            return None
        events = thread.read(head.messages)
        earlier = Checkpoint(self._store.engine, self._store.space, head.checkpoint).compactions
        covered = [at for at, each in enumerate(events) if each["timestamp"] <= given["end_timestamp"]]
        summary = {"author": "model", "content": given["compacted_content"]}
        kept: list[Any] = []
        if earlier and events[0]["timestamp"] < given["start_timestamp"]:
            kept = earlier[-1].messages  # the window of this one begins later
        return compaction_of(
            Summary(messages=[*kept, summary]),
            events,
            earlier,
            upto=covered[-1] + 1 if covered else 0,
            id=plain["id"],
            source=SOURCE,
            now_us=self._store.clock.now_us(),
        )

    @staticmethod
    def _commit_to_session(session: Session, head: HeadState, commit: Callable[[], Any]) -> None:
        session.last_update_time = _updated(head.checkpoint)
        session._storage_update_marker = head.checkpoint.id  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the SDK's own field for it
        commit()

    @staticmethod
    def _is_stored(
        thread: ConversationThread, head: HeadState, session: Session, plain: dict[str, Any]
    ) -> bool:
        marker = session._storage_update_marker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if head.checkpoint.metadata.get("event") != plain.get("id"):
            return False
        if marker not in (head.checkpoint.id, head.checkpoint.parent):
            return False
        return thread.read(head.messages, last=1) == [plain]

    @staticmethod
    def _check_not_stale(thread: ConversationThread, head: HeadState, session: Session) -> None:
        """Compare the checkpoint that the session was loaded at; if there is none, judge as the SDK does."""
        marker = session._storage_update_marker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if marker == head.checkpoint.id:
            return
        if marker is None:
            if _updated(head.checkpoint) <= session.last_update_time:
                return
            last = thread.read(head.messages, last=1)
            if [each.get("id") for each in last] == [each.id for each in session.events[-1:]]:
                return
        raise StaleSessionError(
            f"session {session.id!r} has newer events in the store than this object; call get_session() again"
        )

    def _read_events(
        self, thread: ConversationThread, head: HeadState, config: GetSessionConfig | None
    ) -> list[dict[str, Any]]:
        last = None if config is None else config.num_recent_events
        after = None if config is None else config.after_timestamp
        if after is None or head.messages is None:
            return thread.read(head.messages, last=last)
        kept: list[dict[str, Any]] = []
        start = max(head.messages.length - last, 0) if last is not None else 0
        stop = head.messages.length
        while stop > start:
            count = min(_PAGE, stop - start)
            page = thread.read(ListPrefix(head.messages.list, stop), last=count)
            fresh = [each for each in page if each["timestamp"] >= after]
            kept = fresh + kept
            if not fresh:
                break
            stop -= count
        return kept

    def _shared(self, name: SessionName) -> _SharedStates:
        return self._shared_by_user(name.app, [name.user])[name.user]

    def _shared_by_user(self, app: str, users: Iterable[str]) -> dict[str, _SharedStates]:
        """Return what an app and each of these users share, in two reads."""
        by_user = {user: f"{escape_part(app)}/{escape_part(user)}" for user in users}
        of_app, *of_users = self._read_shared(
            [("app", escape_part(app)), *(("user", each) for each in by_user.values())]
        )
        return {user: _SharedStates(of_app, held) for user, held in zip(by_user, of_users, strict=True)}

    def _read_shared(self, owners: Iterable[tuple[str, str]]) -> list[_SharedState]:
        base = "adk/" + namespace_prefix(self._namespace)
        places = [
            (f"{base}{kind}/{name}", str(Scope(self._namespace, f"adk-{kind}", name)))
            for kind, name in owners
        ]
        engine, space = self._store.engine, self._store.space
        refs = engine.refs(space, [name for name, _ in places])
        addresses = [Address(decode_json(refs[name].value)) for name, _ in places if name in refs]
        contents = iter(engine.get(space, addresses) if addresses else [])
        return [
            _SharedState(
                ref=name,
                scope=scope,
                expect=refs[name].version if name in refs else ABSENT,
                values=decode(next(contents)) if name in refs else {},
            )
            for name, scope in places
        ]


class _StateByScope(msgspec.Struct, frozen=True, kw_only=True):
    """A state or a change of it, divided by key prefix; ``temp:`` keys are left out."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> _StateByScope:
        # A value without a JSON form is stored as its repr, as in the SDK's own databases.
        plain: dict[str, Any] = to_jsonable_python(dict(state), serialize_unknown=True)
        prefixes = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)
        app, user, _ = (
            {key.removeprefix(prefix): each for key, each in plain.items() if key.startswith(prefix)}
            for prefix in prefixes
        )
        own = {key: each for key, each in plain.items() if not key.startswith(prefixes)}
        return cls(app=app, user=user, session=own)


class _SharedState(msgspec.Struct, frozen=True, kw_only=True):
    """A state that many sessions share, as it was read."""

    ref: str
    scope: str
    expect: Expect
    values: dict[str, Any]

    def change(self, draft: Draft, values: Mapping[str, Any]) -> None:
        if values:
            content = encode(self.values | dict(values), keep_order=True)
            address = draft.put(content, scope=self.scope)
            draft.set_ref(
                self.ref, encode_json(address), scope=self.scope, expect=self.expect, links=(address,)
            )


class _SharedStates(msgspec.Struct, frozen=True):
    """The states of an app and of a user."""

    app: _SharedState
    user: _SharedState

    def change(self, draft: Draft, parts: _StateByScope) -> None:
        self.app.change(draft, parts.app)
        self.user.change(draft, parts.user)

    def merged(self, parts: _StateByScope | None, own: Mapping[str, Any]) -> dict[str, Any]:
        app = self.app.values | (parts.app if parts is not None else {})
        user = self.user.values | (parts.user if parts is not None else {})
        return {
            **own,
            **{State.APP_PREFIX + key: each for key, each in app.items()},
            **{State.USER_PREFIX + key: each for key, each in user.items()},
        }


def _metadata(name: SessionName, updated: float) -> dict[str, Any]:
    return {"app_name": name.app, "user_id": name.user, "session_id": name.session, "updated": updated}


def _session_name(checkpoint: CheckpointRecord) -> SessionName | None:
    """Return whose session a checkpoint belongs to; ``None`` for a thread that is no session."""
    metadata = checkpoint.metadata
    name = SessionName(
        metadata.get("app_name", ""), metadata.get("user_id", ""), metadata.get("session_id", "")
    )
    return name if name.thread_id == checkpoint.thread else None


def _updated(checkpoint: CheckpointRecord) -> float:
    return checkpoint.metadata.get("updated", checkpoint.created_at_us / SECOND_US)


def _session(
    name: SessionName, state: dict[str, Any], checkpoint: CheckpointRecord, events: Iterable[Event]
) -> Session:
    session = Session(
        id=name.session,
        app_name=name.app,
        user_id=name.user,
        state=state,
        events=list(events),
        last_update_time=_updated(checkpoint),
    )
    session._storage_update_marker = checkpoint.id  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the SDK's own field for it
    return session


def _range(plain: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what an event stands for, if it is a compaction: the times of others, and their summary."""
    actions: dict[str, Any] = plain.get("actions") or {}
    return actions.get("compaction")


def _compacted(
    checkpoint: Checkpoint, thread: ConversationThread, head: HeadState, events: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return events with an event for the compaction of the thread that ADK did not make itself.

    An event of ADK's whose compaction was undone is left out.
    """
    compactions = checkpoint.compactions
    known = {each.id for each in compactions}
    shown = [each for each in events if _range(each) is None or each["id"] in known]
    others = [each for each in compactions if each.source != SOURCE]
    if not others or head.messages is None:
        return shown
    newest = others[-1]
    (first,) = thread.read(ListPrefix(head.messages.list, newest.keeps + 1), last=1)
    (last,) = thread.read(ListPrefix(head.messages.list, newest.upto), last=1)
    event = Event(
        id=newest.id,
        author="user",
        invocation_id=newest.id,
        timestamp=last["timestamp"],
        actions=EventActions(
            compaction=EventCompaction(
                start_timestamp=first["timestamp"],
                end_timestamp=last["timestamp"],
                compacted_content=types.Content(role="model", parts=[types.Part(text=newest.text)]),
            )
        ),
    )
    at = sum(each["timestamp"] <= last["timestamp"] for each in shown)
    return [*shown[:at], event.model_dump(mode="json", exclude_none=True), *shown[at:]]


def _event(plain: dict[str, Any]) -> Event:
    return Event.model_validate_json(json_for_models(plain))


def _contended(name: SessionName) -> Busy:
    return Busy(f"session {name.thread_id!r} or its shared state has too many concurrent writers; try again")


REQUEST: Final = "adk_request_confirmation"
CALLS: Final = "confirmations"


def pending_after(event: Event, before: CheckpointRecord) -> dict[str, Any] | None:
    """Return the pending interrupt of a session after an event."""
    asked = [_described(each) for each in event.get_function_calls() if each.name == REQUEST]
    if asked:
        return {"id": event.id, "payload": {CALLS: asked}}
    known = before.pending_interrupt
    is_asked = isinstance(known, dict) and CALLS in (cast("dict[str, Any]", known).get("payload") or {})
    return cast("dict[str, Any]", known) if is_asked and event.author != "user" else None


def _described(call: types.FunctionCall) -> dict[str, Any]:
    args = call.args or {}
    original: dict[str, Any] = args.get("originalFunctionCall") or {}
    confirmation: dict[str, Any] = args.get("toolConfirmation") or {}
    return {
        "id": call.id,
        "tool": original.get("name"),
        "arguments": original.get("args") or {},
        "hint": confirmation.get("hint") or "",
        "payload": confirmation.get("payload"),
    }


def answer_of(thread: Thread) -> types.Content | None:
    """Return the message that answers what a session waits for; ``None`` if nothing was answered yet."""
    newest = list(islice(thread.history(), 2))
    answer = newest[0].metadata.get("resumed") if newest else None
    pending = newest[1].pending_interrupt if len(newest) > 1 else None
    payload = cast("dict[str, Any]", pending).get("payload") if isinstance(pending, dict) else None
    if not isinstance(answer, dict) or not isinstance(payload, dict) or CALLS not in payload:
        return None
    asked = cast("dict[str, Any]", payload)[CALLS]
    decided = _decisions(cast("dict[str, Any]", answer), [each["id"] for each in asked])
    return types.Content(
        role="user",
        parts=[
            types.Part(function_response=types.FunctionResponse(id=call_id, name=REQUEST, response=response))
            for call_id, response in decided.items()
        ],
    )


def _decisions(answer: Mapping[str, Any], asked: list[str]) -> dict[str, dict[str, Any]]:
    if answer["decision"] != "edit":
        return {call_id: {"confirmed": answer["decision"] == "approve"} for call_id in asked}
    given: Any = answer["payload"]
    calls: Any = cast("dict[str, Any]", given).get(CALLS) if isinstance(given, dict) else None
    if not isinstance(calls, list):
        raise InvalidInput(
            'an edited answer lists the calls to decide on: {"confirmations": [{"id": "...", "confirmed": '
            'true, "payload": {...}}]}; calls that it leaves out are not confirmed'
        )
    decided: dict[str, dict[str, Any]] = {call_id: {"confirmed": False} for call_id in asked}
    for each in cast("list[dict[str, Any]]", calls):
        response = {"confirmed": bool(each.get("confirmed", True))}
        decided[each["id"]] = response | (
            {"payload": each["payload"]} if each.get("payload") is not None else {}
        )
    return decided
