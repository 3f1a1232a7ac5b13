"""The sessions behind Google ADK's session service: what is stored of them, for callers that may block.

A session is a thread named ``<app>/<user>/<session>``: its events are the thread's messages, its own state
the thread's state. State of an app and of a user is shared by many sessions, so it lies beside them, in
refs of its own. **Invariant:** an event and every state that it changes are stored in one commit, or none of
them is; a session object that is not at the newest event is told so (`StaleSessionError`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic_core import to_jsonable_python

from treering.adapters.conversation import Transcript, look, quoted, read_heads
from treering.adapters.names import json_for_models
from treering.core.batch import ABSENT, Draft, Expect
from treering.core.clock import SECOND_US
from treering.core.content import Address
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import Scope, namespace_prefix
from treering.errors import Busy, NotFound, RefMoved
from treering.store import Store
from treering.threads.checkpoint import Checkpoint
from treering.threads.checkpoint_record import CheckpointRecord, ListPrefix
from treering.threads.writer import HeadState

_TRIES: Final = 50
_PAGE: Final = 100


class Names(msgspec.Struct, frozen=True):
    """What names a session: app, user and session id, each any string."""

    app: str
    user: str
    session: str

    @property
    def thread_id(self) -> str:
        """The id of the session's thread; no two sessions share one."""
        return "/".join(map(quoted, (self.app, self.user, self.session)))


class Seat(msgspec.Struct, kw_only=True):
    """What is known of one session between its calls; true as long as the head is that one."""

    transcript: Transcript
    head: HeadState | None = None
    state: dict[str, Any] | None = None


class Sessions:
    """The sessions of one namespace."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace

    def seat(self, names: Names) -> Seat:
        """A seat for one session; its calls are to be made one after the other."""
        return Seat(transcript=Transcript(self._store, names.thread_id, self._namespace))

    def create(self, names: Names, state: Mapping[str, Any], now: float) -> Session:
        """A new session with this state; `AlreadyExistsError` when there is one."""
        parts = _Parts.of(state)
        transcript = self.seat(names).transcript
        for _ in range(_TRIES):
            if transcript.head() is not None:
                raise AlreadyExistsError(f"Session with id {names.session} already exists.")
            shared = self._shared(names)
            try:
                head = transcript.save(
                    None,
                    (),
                    after=None,
                    state=parts.session,
                    marks=lambda _: _marks(names, now),
                    also=lambda draft, shared=shared: shared.change(draft, parts),
                )
            except RefMoved:
                continue
            return _session(names, shared.merged(parts, parts.session), head.checkpoint, [])
        raise _contended(names)

    def get(self, names: Names, config: GetSessionConfig | None) -> Session | None:
        """A session with its events, or those that ``config`` wants; fires the load hooks."""
        return look(lambda: self._get(names, config))

    def _get(self, names: Names, config: GetSessionConfig | None) -> Session | None:
        transcript = self.seat(names).transcript
        head = transcript.head()
        if head is None:
            return None
        checkpoint = transcript.checkpoint(head)
        events = [_event(each) for each in self._wanted(transcript, head, config)]
        return _session(names, self._shared(names).merged(None, checkpoint.state), head.checkpoint, events)

    def all_of(self, app: str, user: str | None) -> list[Session]:
        """The sessions of an app (of one user, if given) without their events, the last changed one last."""
        prefix = quoted(app) + "/" + ("" if user is None else quoted(user) + "/")
        threads = self._store.threads(namespace=self._namespace, prefix=prefix)
        heads = [
            (names, head, state)
            for _, head, state in read_heads(self._store, threads)
            if (names := _names(head)) is not None and names.app == app and user in (None, names.user)
        ]
        shared = self._shared_of(app, {names.user for names, _, _ in heads})
        found = [
            _session(names, shared[names.user].merged(None, state), head, []) for names, head, state in heads
        ]
        return sorted(found, key=lambda each: (each.last_update_time, each.user_id, each.id))

    def delete(self, names: Names) -> None:
        """Erase a session, if it is there. State of its user and its app stays."""
        transcript = self.seat(names).transcript
        for _ in range(_TRIES):
            head = transcript.head()
            if head is None:
                if transcript.newest() is not None:  # unlisted by a call that did not come further
                    transcript.erase()
                return
            try:
                transcript.unlist(head)
            except RefMoved:
                continue
            transcript.erase()
            return
        raise _contended(names)

    def user_state(self, names: Names) -> dict[str, Any]:
        """The state that all sessions of a user share, under keys without their prefix."""
        return self._shared(names).user.values

    def append(self, seat: Seat, session: Session, event: Event, commit: Callable[[], Any]) -> None:
        """Store an event of a session, then ``commit`` it to the session object.

        An event that is the newest one already, equal to this, is stored no second time: a call may be
        repeated when its answer was lost.
        """
        names = Names(session.app_name, session.user_id, session.id)
        plain = event.model_dump(mode="json", exclude_none=True)
        parts = _Parts.of(event.actions.state_delta if event.actions else {})
        for _ in range(_TRIES):
            head = look(lambda: seat.transcript.head(seat.head))
            if head is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            if head is not seat.head:
                seat.head, seat.state = head, None
            if self._is_stored(seat.transcript, head, session, plain):
                if session._storage_update_marker != head.checkpoint.id:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                    self._settle(session, head, commit)
                return
            self._check_fresh(seat.transcript, head, session)
            try:
                seat.head = self._append(seat, head, names, event, plain, parts)
            except (RefMoved, NotFound):
                continue  # the head (then the session is stale or gone), or state that others share
            self._settle(session, seat.head, commit)
            return
        raise _contended(names)

    def _append(
        self, seat: Seat, head: HeadState, names: Names, event: Event, plain: dict[str, Any], parts: _Parts
    ) -> HeadState:
        state = None
        if parts.session:
            if seat.state is None:
                seat.state = Checkpoint(self._store.engine, self._store.space, head.checkpoint).state
            state = seat.state | parts.session
        shared = self._shared(names) if parts.app or parts.user else None
        saved = seat.transcript.save(
            head,
            [plain],
            after=head.messages,
            state=state,
            marks=lambda _: _marks(names, event.timestamp) | {"event": event.id},
            also=None if shared is None else lambda draft: shared.change(draft, parts),
        )
        if state is not None:
            # A hook may have stored another state than it was given.
            seat.state = None if self._store.hooks.has("pre_checkpoint_save") else state
        return saved

    @staticmethod
    def _settle(session: Session, head: HeadState, commit: Callable[[], Any]) -> None:
        session.last_update_time = _updated(head.checkpoint)
        session._storage_update_marker = head.checkpoint.id  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the SDK's own field for it
        commit()

    @staticmethod
    def _is_stored(transcript: Transcript, head: HeadState, session: Session, plain: dict[str, Any]) -> bool:
        marker = session._storage_update_marker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if head.checkpoint.metadata.get("event") != plain.get("id"):
            return False
        if marker not in (head.checkpoint.id, head.checkpoint.parent):
            return False
        return transcript.read(head.messages, last=1) == [plain]

    @staticmethod
    def _check_fresh(transcript: Transcript, head: HeadState, session: Session) -> None:
        """A session that was loaded says at which checkpoint; one made by hand is judged as the SDK does."""
        marker = session._storage_update_marker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if marker == head.checkpoint.id:
            return
        if marker is None:
            if _updated(head.checkpoint) <= session.last_update_time:
                return
            last = transcript.read(head.messages, last=1)
            if [each.get("id") for each in last] == [each.id for each in session.events[-1:]]:
                return
        raise StaleSessionError(
            f"session {session.id!r} has newer events in the store than this object; get_session() it again"
        )

    def _wanted(
        self, transcript: Transcript, head: HeadState, config: GetSessionConfig | None
    ) -> list[dict[str, Any]]:
        last = None if config is None else config.num_recent_events
        after = None if config is None else config.after_timestamp
        if after is None or head.messages is None:
            return transcript.read(head.messages, last=last)
        kept: list[dict[str, Any]] = []
        start = max(head.messages.length - last, 0) if last is not None else 0
        stop = head.messages.length
        while stop > start:
            count = min(_PAGE, stop - start)
            page = transcript.read(ListPrefix(head.messages.list, stop), last=count)
            fresh = [each for each in page if each["timestamp"] >= after]
            kept = fresh + kept
            if not fresh:
                break
            stop -= count
        return kept

    def _shared(self, names: Names) -> _Shared:
        return self._shared_of(names.app, [names.user])[names.user]

    def _shared_of(self, app: str, users: Iterable[str]) -> dict[str, _Shared]:
        """What an app and each of these users share, in two reads."""
        by_user = {user: f"{quoted(app)}/{quoted(user)}" for user in users}
        of_app, *of_users = self._held([("app", quoted(app)), *(("user", each) for each in by_user.values())])
        return {user: _Shared(of_app, held) for user, held in zip(by_user, of_users, strict=True)}

    def _held(self, owners: Iterable[tuple[str, str]]) -> list[_Held]:
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
            _Held(
                ref=name,
                scope=scope,
                expect=refs[name].version if name in refs else ABSENT,
                values=decode(next(contents)) if name in refs else {},
            )
            for name, scope in places
        ]


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """A state or a change of it, by what its prefixes say; what is ``temp:`` is left out."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> _Parts:
        # A value that has no JSON form is kept as its repr, as the SDK's own databases do it.
        plain: dict[str, Any] = to_jsonable_python(dict(state), serialize_unknown=True)
        prefixes = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)
        app, user, _ = (
            {key.removeprefix(prefix): each for key, each in plain.items() if key.startswith(prefix)}
            for prefix in prefixes
        )
        own = {key: each for key, each in plain.items() if not key.startswith(prefixes)}
        return cls(app=app, user=user, session=own)


class _Held(msgspec.Struct, frozen=True, kw_only=True):
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


class _Shared(msgspec.Struct, frozen=True):
    """The states of an app and of a user."""

    app: _Held
    user: _Held

    def change(self, draft: Draft, parts: _Parts) -> None:
        self.app.change(draft, parts.app)
        self.user.change(draft, parts.user)

    def merged(self, parts: _Parts | None, own: Mapping[str, Any]) -> dict[str, Any]:
        app = self.app.values | (parts.app if parts is not None else {})
        user = self.user.values | (parts.user if parts is not None else {})
        return {
            **own,
            **{State.APP_PREFIX + key: each for key, each in app.items()},
            **{State.USER_PREFIX + key: each for key, each in user.items()},
        }


def _marks(names: Names, updated: float) -> dict[str, Any]:
    return {"app_name": names.app, "user_id": names.user, "session_id": names.session, "updated": updated}


def _names(checkpoint: CheckpointRecord) -> Names | None:
    """Whose session a checkpoint is of; ``None`` for other threads that only look like it."""
    told = checkpoint.metadata
    names = Names(told.get("app_name", ""), told.get("user_id", ""), told.get("session_id", ""))
    return names if names.thread_id == checkpoint.thread else None


def _updated(checkpoint: CheckpointRecord) -> float:
    return checkpoint.metadata.get("updated", checkpoint.created_at_us / SECOND_US)


def _session(
    names: Names, state: dict[str, Any], checkpoint: CheckpointRecord, events: Iterable[Event]
) -> Session:
    session = Session(
        id=names.session,
        app_name=names.app,
        user_id=names.user,
        state=state,
        events=list(events),
        last_update_time=_updated(checkpoint),
    )
    session._storage_update_marker = checkpoint.id  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the SDK's own field for it
    return session


def _event(plain: dict[str, Any]) -> Event:
    return Event.model_validate_json(json_for_models(plain))


def _contended(names: Names) -> Busy:
    return Busy(f"session {names.thread_id!r} or state that it shares kept changing; try again")
