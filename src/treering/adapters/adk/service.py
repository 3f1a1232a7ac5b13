"""Google ADK: sessions that are threads of a store, and artifacts and memory beside them.

Behaves as the SDK's own services do (`InMemorySessionService`, `SqliteSessionService`): the prefixes
``app:``, ``user:`` and ``temp:`` of state, stale sessions, the order of lists. Calls for one session are
made one after the other, in the order of the caller, whichever tasks they come from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

from treering.adapters.conversation import Vetoed
from treering.adapters.names import checked, checked_namespace
from treering.adapters.opening import Opened, SerialExecutor, StoreOrUrl
from treering.errors import InvalidInput, MissingExtra

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

    from treering.adapters.adk.artifacts import TreeringArtifactService
    from treering.adapters.adk.memory import TreeringMemoryService
    from treering.adapters.adk.sessions import Names, Seat, Sessions
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "treering":
        raise
    raise MissingExtra("treering.adapters.adk", "adk") from error

__all__ = ["TreeringArtifactService", "TreeringMemoryService", "TreeringSessionService", "thread_id_of"]

_SEATS: Final = 1024


def thread_id_of(session: Session) -> str:
    """The id of the thread that a session is: ``store.thread(thread_id_of(session))``."""
    return Names(session.app_name, session.user_id, session.id).thread_id


class TreeringSessionService(BaseSessionService):
    """ADK's session service on a treering store, a URL or a folder.

    Deleting a session erases it; what its user and its app share stays. An event whose save a hook vetoed
    stays in the session object only, and the run goes on.
    """

    def __init__(self, store: StoreOrUrl | None = None, *, namespace: str = "") -> None:
        space = checked_namespace(namespace)
        self._opened = Opened(store)
        self._sessions = Sessions(self._opened.store, space)
        self._seats: OrderedDict[str, tuple[Seat, SerialExecutor]] = OrderedDict()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session; `AlreadyExistsError` when there is one of that id."""
        given = _session_id(session_id).strip() if session_id is not None else ""
        names = _names(app_name, user_id, given or platform_uuid.new_uuid())
        return await self._opened.bridge.call(
            self._sessions.create, names, _state(state), platform_time.get_time()
        )

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """A session with its events, or ``None``; of a few recent events only these are read."""
        names = _names(app_name, user_id, _session_id(session_id).strip())
        return await self._opened.bridge.call(self._sessions.get, names, config)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of an app (of one user, if given) without their events, the last changed one last."""
        names = _names(app_name, "" if user_id is None else user_id, "")
        user = None if user_id is None else names.user
        found = await self._opened.bridge.call(self._sessions.all_of, names.app, user)
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Erase a session, if it is there."""
        names = _names(app_name, user_id, _session_id(session_id).strip())
        await self._opened.bridge.call(self._sessions.delete, names)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """What all sessions of a user share, under keys without ``user:``."""
        return await self._opened.bridge.call(self._sessions.user_state, _names(app_name, user_id, ""))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and the state that it changes, in one commit, then add it to the session object."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        seat, lane = self._seat(Names(session.app_name, session.user_id, session.id))

        def commit() -> None:
            self._commit_event_to_session(session, event)

        try:
            await lane.settle(self._sessions.append, seat, session, event, commit)
        except Vetoed:
            commit()
        return event

    async def close(self) -> None:
        """Close the store if it was opened here; one that was given stays open."""
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _seat(self, names: Names) -> tuple[Seat, SerialExecutor]:
        key = names.thread_id
        found = self._seats.get(key)
        if found is None:
            found = self._seats[key] = (self._sessions.seat(names), SerialExecutor(self._opened.bridge))
            if len(self._seats) > _SEATS:
                self._seats.popitem(last=False)
        self._seats.move_to_end(key)
        return found


def _names(app_name: Any, user_id: Any, session_id: str) -> Names:
    return Names(
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
