"""Upcasting: state and messages that older code stored, in the form that newer code expects.

Code that changes the form of what it stores registers a function for each step from one version to the next:

    @upcast("state", from_version=1)
    def split_name(state):
        state["first"], _, state["last"] = state.pop("name").partition(" ")
        return state

What was stored without a version has version 1, and the newest version is the one behind the last upcaster.
A checkpoint of an older version is migrated in memory when it is loaded; the stored one never changes. The
next save puts a checkpoint between, which holds what was migrated and says which upcasters ran (`Head.save`).
The versions are in the metadata of a checkpoint (`VERSIONS`), so forks and rewinds have those of their own
content. A process without upcasters (the command line, a server) hands them on.

An upcaster of messages is called for each message, so positions in the conversation stay what they are.

**Invariant:** content is migrated once: what is stored with a version has that form.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args

import msgspec

from treering.errors import Conflict, InvalidInput
from treering.threads.hooks import COMPACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from treering.threads.checkpoint import CheckpointRecord

What = Literal["state", "messages"]
F = TypeVar("F", bound="Callable[[Any], Any]")

VERSIONS: Final = "treering.versions"
"""The metadata key under which a checkpoint has the versions of its state and messages, if not 1."""
_FIRST: Final = 1


class UpcastFailed(Conflict):
    """An upcaster raised, or returned what cannot be state or a message; nothing was changed."""


class NewerVersion(Conflict):
    """Newer code has stored this thread; deploy that code here too before the thread is continued."""


class Upcaster(msgspec.Struct, frozen=True):
    """A function that migrates state or a message by one version, for threads whose ids match a pattern."""

    what: What
    from_version: int
    threads: str
    function: Any

    @property
    def name(self) -> str:
        """Where the function is defined."""
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', self.function)}"

    def __call__(self, value: Any, thread_id: str) -> Any:
        """Migrate a value; a function that returns nothing has changed it in place."""
        try:
            result = self.function(value)
        except Exception as error:
            raise UpcastFailed(
                f"thread {thread_id!r}: {self.describe()} raised {type(error).__name__}: {error}; "
                "nothing was changed"
            ) from error
        result = value if result is None else result
        if not isinstance(result, dict) and (self.what == "state" or type(result) is not type(value)):
            raise UpcastFailed(
                f"thread {thread_id!r}: {self.describe()} returned a {type(result).__name__}; "
                "it must return what it was given, changed"
            )
        return cast("Any", result)

    def describe(self) -> str:
        """Return it as words for messages."""
        return f"upcaster {self.name} ({self.what} {self.from_version} to {self.from_version + 1})"


_registered: Final[list[Upcaster]] = []


def upcast(what: What, *, from_version: int, threads: str = "*") -> Callable[[F], F]:
    """Register a function that migrates stored ``state`` or one of the ``messages`` to the next version.

    It gets the whole state (a dict), or a message as it was stored, and returns it changed. For a LangGraph
    graph, that is the dict of its channels. ``threads`` is a pattern of thread ids with ``*`` and ``?``, for
    programs with agents whose states have different forms. Registering a function of the same name again
    replaces it, as when a module is reloaded.
    """
    if what not in get_args(What):
        raise InvalidInput(f"upcast({what!r}) is not possible; use state or messages")
    if type(from_version) is not int or from_version < _FIRST:
        raise InvalidInput(f"from_version is {from_version!r}; versions are numbers from 1 on")

    def register(function: F) -> F:
        new = Upcaster(what, from_version, threads, function)
        for at, known in enumerate(_registered):
            if (known.what, known.from_version, known.threads) == (what, from_version, threads):
                if known.name != new.name:
                    raise InvalidInput(f"{new.describe()} has the same place as {known.name}; remove one")
                _registered[at] = new
                return function
        _registered.append(new)
        return function

    return register


class Upgrade:
    """The upcasters that a stored checkpoint still needs, in order."""

    def __init__(self, thread_id: str, chain: Iterable[Upcaster], versions: Mapping[str, int]) -> None:
        self._thread_id = thread_id
        self._chain = tuple(chain)
        self.versions = dict(versions)
        """The versions of state and messages after it."""

    def changes(self, what: What) -> bool:
        """Whether state, or messages, are not in their newest form."""
        return any(each.what == what for each in self._chain)

    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the whole state in its newest form."""
        return self._run("state", state)

    def messages(self, messages: Iterable[Any]) -> list[Any]:
        """Return messages in their newest form."""
        return [self._run("messages", each) for each in messages]

    def items(self, channel: str, items: list[Any]) -> list[Any]:
        """Return the items of a list channel in their newest form: summaries of messages as well."""
        if channel == COMPACTIONS:
            return [{**each, "messages": self.messages(each["messages"])} for each in items]
        return self.messages(items) if channel == "messages" else items

    def describe(self) -> str:
        """Return what it does, for the note of a checkpoint."""
        return "upcast: " + ", ".join(
            f"{each.what} {each.from_version} to {each.from_version + 1} ({each.name})"
            for each in self._chain
        )

    def _run(self, what: What, value: Any) -> Any:
        for each in self._chain:
            if each.what == what:
                value = each(value, self._thread_id)
        return value


def upgrade_of(thread_id: str, metadata: Mapping[str, Any]) -> Upgrade | None:
    """Return what a checkpoint of a thread with this metadata needs; ``None`` if it is in its newest form.

    Raises `NewerVersion` if its form is newer than what is known here.
    """
    if not _registered:
        return None
    stored = versions_of(metadata)
    chain: list[Upcaster] = []
    newest = dict(stored)
    for what, versions in _known(thread_id).items():
        known, version = max(versions) + 1, stored.get(what, _FIRST)
        if version > known:
            raise NewerVersion(
                f"thread {thread_id!r} has {what} of version {version}, and this code knows {known}; "
                "deploy the code that wrote it"
            )
        for each in range(version, known):
            if each not in versions:
                raise InvalidInput(
                    f"thread {thread_id!r} has {what} of version {version}, and no upcaster leads from "
                    f"{each} to {each + 1}; register @upcast({what!r}, from_version={each})"
                )
            chain.append(versions[each])
        newest[what] = known
    return Upgrade(thread_id, chain, newest) if chain else None


def upgrade_of_record(record: CheckpointRecord) -> Upgrade | None:
    """Return what a checkpoint needs, unless a framework's adapter migrates it."""
    from treering.threads.checkpoint import extension_of

    if not _registered or extension_of(record.metadata) is not None:
        return None
    return upgrade_of(record.thread, record.metadata)


def versions_of(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the versions that a checkpoint records."""
    return dict(metadata.get(VERSIONS) or {})


def with_versions(
    metadata: dict[str, Any], thread_id: str, previous: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the metadata of a new checkpoint with its versions: those of ``previous``, or the newest.

    ``previous`` is the metadata of the checkpoint before it, ``None`` for the first of a thread.
    """
    if previous is not None:
        versions = versions_of(previous)
    else:
        versions = {what: max(known) + 1 for what, known in _known(thread_id).items()}
    return {**metadata, VERSIONS: versions} if versions else metadata


def _known(thread_id: str) -> dict[What, dict[int, Upcaster]]:
    """Return the upcasters for a thread, by what they migrate and from which version."""
    found: dict[What, dict[int, Upcaster]] = {}
    for each in _registered:
        if not fnmatchcase(thread_id, each.threads):
            continue
        versions = found.setdefault(each.what, {})
        if each.from_version in versions:
            raise InvalidInput(
                f"thread {thread_id!r} has two upcasters of {each.what} from version {each.from_version}: "
                f"{versions[each.from_version].name} and {each.name}; narrow their threads="
            )
        versions[each.from_version] = each
    return found
