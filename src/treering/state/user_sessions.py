"""User sessions: what an agent remembers about each user between two messages, typed, by user id.

A session has a mode. In the default mode there is nothing to remember, so nothing is stored, and returning
to it deletes the entry. **Invariant:** what this module stores is valid and not in the default mode. An
entry that something else broke is reported by `restore` and does not prevent restoring the others.
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
    """A user of a chat agent: in the default mode, or working on a project with a coding agent."""

    mode: Literal["ciana", "claude_code"] = "ciana"
    active_project: str = ""
    active_project_path: str = ""
    active_session_id: str | None = None
    """The session of the coding agent; ``None`` starts a new conversation."""
    active_model: str | None = None
    active_effort: Literal["low", "medium", "high"] | None = None


class SessionProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A stored entry that is not a valid session, and why."""

    user_id: str
    problem: str


class RestoredSessions(msgspec.Struct, frozen=True, kw_only=True):
    """All sessions by user id, and the entries that are not valid."""

    sessions: dict[str, Any]
    problems: tuple[SessionProblem, ...] = ()


class UserSessions:
    """Sessions of one type by user id. ``kind`` is a msgspec struct or a dataclass with a field ``mode``."""

    def __init__(self, state: State, kind: type[Any], *, name: str, default_mode: str | None) -> None:
        self._state = state
        self._kind = kind
        self._prefix = namespace_prefix(check_id(name, "name of sessions"))
        self._default = default_mode if default_mode is not None else _default_mode(kind)

    def __repr__(self) -> str:
        return f"<UserSessions of {self._kind.__name__}>"

    def get(self, user_id: str | int) -> Any:
        """Return the session of a user; a new one in the default mode if nothing is stored."""
        entry = self._state.entry(self._key(user_id))
        return self._kind() if entry is None else self._decode(user_id, entry.value)

    def save(self, user_id: str | int, session: Any) -> None:
        """Store a session; in the default mode, delete it."""
        plain = self._encode(user_id, session)
        if plain["mode"] == self._default:
            self.leave(user_id)
        else:
            self._state.set(self._key(user_id), plain)

    def update(self, user_id: str | int, function: Callable[[Any], Any]) -> Any:
        """Store ``function(session)`` and return it; concurrent updates are not lost.

        The function may also change the session in place and return ``None``.
        """
        key = self._key(user_id)
        while True:
            entry = self._state.entry(key)
            session = self._kind() if entry is None else self._decode(user_id, entry.value)
            updated = function(session)
            plain = self._encode(user_id, session if updated is None else updated)
            version = 0 if entry is None else entry.version
            try:
                if plain["mode"] != self._default:
                    self._state.set(key, plain, if_version=version)
                elif entry is not None:
                    self._state.delete(key, if_version=version)
            except RefMoved:
                continue
            return self._decode(user_id, plain)

    def leave(self, user_id: str | int) -> bool:
        """Return a user to the default mode: delete the entry. Return whether there was one."""
        return self._state.delete(self._key(user_id))

    def users(self) -> Iterator[str]:
        """List the ids of users with a stored session, in order."""
        for key in self._state.keys(self._prefix):
            yield key[len(self._prefix) :]

    def restore(self) -> RestoredSessions:
        """Return all sessions, for an agent that starts up.

        An invalid entry is reported and left as it is; the others are restored.
        """
        sessions: dict[str, Any] = {}
        problems: list[SessionProblem] = []
        for user_id in self.users():
            try:
                entry = self._state.entry(self._prefix + user_id)
                if entry is not None:
                    sessions[user_id] = self._decode(user_id, entry.value)
            except TreeringError as error:
                problems.append(SessionProblem(user_id=user_id, problem=str(error)))
        return RestoredSessions(sessions=sessions, problems=tuple(problems))

    def _key(self, user_id: str | int) -> str:
        return self._prefix + check_id(str(user_id), "user id")

    def _decode(self, user_id: str | int, plain: Any) -> Any:
        try:
            return msgspec.convert(plain, self._kind)
        except msgspec.ValidationError as error:
            raise InvalidInput(
                f"the session of user {str(user_id)!r} is not a valid {self._kind.__name__}: {error}; "
                "repair the entry, or delete it with leave()"
            ) from None

    def _encode(self, user_id: str | int, session: Any) -> dict[str, Any]:
        if not isinstance(session, self._kind):
            raise InvalidInput(
                f"the session of user {str(user_id)!r} is of type {type(session).__name__}; "
                f"pass a {self._kind.__name__}"
            )
        plain: dict[str, Any] = msgspec.to_builtins(session)
        self._decode(user_id, plain)
        return plain


def _default_mode(kind: type[Any]) -> str:
    try:
        mode: Any = kind().mode
    except (TypeError, AttributeError):
        raise InvalidInput(
            f"{kind.__name__} has no default mode; give all its fields a default, 'mode' included, "
            "or pass default_mode="
        ) from None
    return mode
