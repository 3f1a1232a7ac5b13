"""Google ADK: sessions that are threads of a store, and artifacts and memory beside them.

The services behave as the SDK's own do (`InMemorySessionService`, `SqliteSessionService`): state prefixes
``app:``, ``user:`` and ``temp:``, stale sessions, the order of lists. Calls for one session run one after
the other, in the order in which they were made, whichever task makes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

from treering.adapters.shared import Opened, SerialExecutor, StoreOrUrl, checked, checked_namespace
from treering.errors import InvalidInput, MissingExtra, Vetoed
from treering.threads.compaction import View
from treering.threads.hooks import check_choice

try:
    from google.adk.events.event import Event
    from google.adk.platform import time as platform_time
    from google.adk.platform import uuid as platform_uuid
    from google.adk.sessions.base_session_service import (
        BaseSessionService,
        GetSessionConfig,
        ListSessionsResponse,
    )
    from google.adk.sessions.session import Session
    from google.genai import types

    from treering.adapters.adk.artifacts import TreeringArtifactService
    from treering.adapters.adk.memory import TreeringMemoryService
    from treering.adapters.adk.runs import TreeringPlugin, run_of
    from treering.adapters.adk.sessions import CachedSession, SessionName, Sessions, answer_of
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "treering":
        raise
    raise MissingExtra("treering.adapters.adk", "adk") from error

__all__ = [
    "TreeringArtifactService",
    "TreeringMemoryService",
    "TreeringPlugin",
    "TreeringSessionService",
    "thread_id_of",
]

_MAX_CACHED: Final = 1024


def thread_id_of(session: Session) -> str:
    """Return the id of a session's thread: ``store.thread(thread_id_of(session))``."""
    return SessionName(session.app_name, session.user_id, session.id).thread_id


class TreeringSessionService(BaseSessionService):
    """ADK's session service on a treering store, a URL or a folder.

    Deleting a session erases it; what its user and its app share stays. If a hook vetoes the save of an
    event, the event stays in the session object only, and the run continues.

    A thread that was compacted (`Thread.compact`) has an event in `get_session` from which ADK makes the
    compact view for the model; ``view="full"`` leaves it out. Compactions that ADK makes (see
    `EventsCompactionConfig`) are compactions of the thread. All events stay stored.
    """

    def __init__(
        self, store: StoreOrUrl | None = None, *, namespace: str = "", view: View = "compact"
    ) -> None:
        check_choice(view, ("full", "compact"), "view")
        self._space = checked_namespace(namespace)
        self._opened = Opened(store)
        self._sessions = Sessions(self._opened.store, self._space, view)
        self._cached_sessions: OrderedDict[str, tuple[CachedSession, SerialExecutor]] = OrderedDict()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session; raise `AlreadyExistsError` if the id is taken."""
        given = _session_id(session_id).strip() if session_id is not None else ""
        name = _session_name(app_name, user_id, given or platform_uuid.new_uuid())
        return await self._opened.bridge.call(
            self._sessions.create, name, _state(state), platform_time.get_time()
        )

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events (only those that ``config`` selects are read), or ``None``."""
        name = _session_name(app_name, user_id, _session_id(session_id).strip())
        return await self._opened.bridge.call(self._sessions.get, name, config)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """List the sessions of an app (and user) without their events, the most recently changed one last."""
        name = _session_name(app_name, "" if user_id is None else user_id, "")
        user = None if user_id is None else name.user
        found = await self._opened.bridge.call(self._sessions.list_sessions, name.app, user)
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Erase a session, if it exists."""
        name = _session_name(app_name, user_id, _session_id(session_id).strip())
        await self._opened.bridge.call(self._sessions.delete, name)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that all sessions of a user share, under keys without ``user:``."""
        return await self._opened.bridge.call(self._sessions.user_state, _session_name(app_name, user_id, ""))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and the state that it changes in one commit, then add it to the session object."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        cached, executor = self._cached(SessionName(session.app_name, session.user_id, session.id))

        def commit() -> None:
            self._commit_event_to_session(session, event)

        try:
            with run_of(event.invocation_id):
                await executor.settle(self._sessions.append, cached, session, event, commit)
        except Vetoed:
            commit()
        return event

    async def confirmation(self, *, app_name: str, user_id: str, session_id: str) -> types.Content | None:
        """Return the answer to the tool calls that a session waits to have confirmed, as the next message.

        It comes from the dashboard, the command line or `Thread.resume`, in any process; ``None`` if nothing
        was answered yet. ``runner.run_async(..., new_message=answer)`` goes on.
        """
        name = _session_name(app_name, user_id, _session_id(session_id).strip())
        thread = self._opened.store.thread(name.thread_id, self._space)
        return await self._opened.bridge.call(answer_of, thread)

    async def close(self) -> None:
        """Close the store, if it was opened here; a store that was passed in stays open."""
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _cached(self, name: SessionName) -> tuple[CachedSession, SerialExecutor]:
        key = name.thread_id
        found = self._cached_sessions.get(key)
        if found is None:
            found = self._cached_sessions[key] = (
                self._sessions.cached(name),
                SerialExecutor(self._opened.bridge),
            )
            if len(self._cached_sessions) > _MAX_CACHED:
                self._cached_sessions.popitem(last=False)
        self._cached_sessions.move_to_end(key)
        return found


def _session_name(app_name: Any, user_id: Any, session_id: str) -> SessionName:
    return SessionName(
        checked(app_name, "app_name of an ADK session"),
        checked(user_id, "user_id of an ADK session"),
        session_id,
    )


def _session_id(given: Any) -> str:
    return checked(given, "session_id of an ADK session")


def _state(given: Any) -> Mapping[str, Any]:
    if given is None or isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given or {})
    raise InvalidInput(
        f"state of an ADK session is of type {type(given).__name__}; pass a dict, or leave it out"
    )
