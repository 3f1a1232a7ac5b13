"""What an agent knows of each user between two messages: a typed session by user id.

A session has a mode. In the default mode there is nothing to know, so nothing is stored, and going back to it
removes the entry. **Invariant:** what is stored is valid and not in the default mode; an entry that someone
else broke is reported by `restore` and keeps nobody else from being restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from treering.core.ids import check_id, namespace_prefix
from treering.errors import InvalidInput, RefMoved, TreeringError

if TYPE_CHECKING:
    from treering.state.state import State


class UserSession(msgspec.Struct, kw_only=True):
    """A user of a chat agent who works on a project of a coding agent, or (the default) does not."""

    mode: Literal["ciana", "claude_code"] = "ciana"
    active_project: str = ""
    active_project_path: str = ""
    active_session_id: str | None = None
    """The coding agent's session; ``None`` begins a new conversation."""
    active_model: str | None = None
    active_effort: Literal["low", "medium", "high"] | None = None


class BadSession(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session that cannot be restored, and why."""

    user_id: str
    problem: str


class RestoredSessions(msgspec.Struct, frozen=True, kw_only=True):
    """All sessions by user id, and the entries that could not be read."""

    sessions: dict[str, Any]
    problems: tuple[BadSession, ...] = ()


class Sessions:
    """Sessions of one kind by user id. ``kind`` is a msgspec struct or a dataclass with a field ``mode``."""

    def __init__(self, state: State, kind: type[Any], *, name: str, default_mode: str | None) -> None:
        self._state = state
        self._kind = kind
        self._prefix = namespace_prefix(check_id(name, "name of sessions"))
        self._default = default_mode if default_mode is not None else _default_mode(kind)

    def __repr__(self) -> str:
        return f"<Sessions of {self._kind.__name__}>"

    def get(self, user_id: str | int) -> Any:
        """A user's session; a new one in the default mode when nothing is stored."""
        entry = self._state.entry(self._key(user_id))
        return self._kind() if entry is None else self._read(user_id, entry.value)

    def save(self, user_id: str | int, session: Any) -> None:
        """Keep a session; in the default mode, remove it."""
        plain = self._plain(user_id, session)
        if plain["mode"] == self._default:
            self.leave(user_id)
        else:
            self._state.set(self._key(user_id), plain)

    def update(self, user_id: str | int, function: Callable[[Any], Any]) -> Any:
        """Save ``function(session)``, whoever else writes meanwhile; gives back the new session.

        The function may change the session that it gets and return nothing.
        """

        def changed(plain: Any) -> Any:
            session = self._kind() if plain is None else self._read(user_id, plain)
            answer = function(session)
            return self._plain(user_id, session if answer is None else answer)

        key = self._key(user_id)
        while True:
            entry = self._state.entry(key)
            plain = changed(None if entry is None else entry.value)
            version = 0 if entry is None else entry.version
            try:
                if plain["mode"] != self._default:
                    self._state.set(key, plain, if_version=version)
                elif entry is not None:
                    self._state.delete(key, if_version=version)
            except RefMoved:
                continue
            return self._read(user_id, plain)

    def leave(self, user_id: str | int) -> bool:
        """Go back to the default mode: the entry is removed. Says whether there was one."""
        return self._state.delete(self._key(user_id))

    def users(self) -> Iterator[str]:
        """The ids of all users with a session, in order."""
        for key in self._state.keys(self._prefix):
            yield key[len(self._prefix) :]

    def restore(self) -> RestoredSessions:
        """Every session, for an agent that starts.

        An entry that is not a session is reported, stays as it is, and stops no other.
        """
        sessions: dict[str, Any] = {}
        problems: list[BadSession] = []
        for user_id in self.users():
            try:
                entry = self._state.entry(self._prefix + user_id)
                if entry is not None:
                    sessions[user_id] = self._read(user_id, entry.value)
            except TreeringError as error:
                problems.append(BadSession(user_id=user_id, problem=str(error)))
        return RestoredSessions(sessions=sessions, problems=tuple(problems))

    def _key(self, user_id: str | int) -> str:
        return self._prefix + check_id(str(user_id), "user id")

    def _read(self, user_id: str | int, plain: Any) -> Any:
        try:
            return msgspec.convert(plain, self._kind)
        except msgspec.ValidationError as error:
            raise InvalidInput(
                f"the session of user {str(user_id)!r} is no {self._kind.__name__}: {error}; "
                "repair it, or remove it with leave()"
            ) from None

    def _plain(self, user_id: str | int, session: Any) -> dict[str, Any]:
        if not isinstance(session, self._kind):
            raise InvalidInput(
                f"the session of user {str(user_id)!r} is of type {type(session).__name__}; "
                f"save a {self._kind.__name__}"
            )
        plain: dict[str, Any] = msgspec.to_builtins(session)
        self._read(user_id, plain)
        return plain


def _default_mode(kind: type[Any]) -> str:
    try:
        mode: Any = kind().mode
    except (TypeError, AttributeError):
        raise InvalidInput(
            f"{kind.__name__} has no default mode; give its field 'mode' and all others a default, "
            "or pass default_mode="
        ) from None
    return mode
