"""Erasure scopes: what can be forgotten together.

A scope is the unit of `forget`: one thread, one run, one memory. Its text is
``<namespace>/<kind>/<id>`` with ``/`` and ``%`` percent-escaped inside each part, so that it parses back to
exactly one triple, and everything of one namespace (a user, a project) is one prefix.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from treering.errors import InvalidInput

MOVED: Final = "run.moved"
"""The kind of an event in a thread's scope which says that a run of the thread began in a scope of its own,
because its thread was not known yet. Forgetting the thread takes that scope along."""
_THREAD: Final = "thread"


class Scope(msgspec.Struct, frozen=True):
    """A namespace (``""`` for none), a kind of thing (``thread``, ``run``, ...) and its id."""

    namespace: str
    kind: str
    id: str

    def __str__(self) -> str:
        return f"{_quote(self.namespace)}/{_quote(self.kind)}/{_quote(self.id)}"


def parse_scope(text: str) -> Scope:
    """Read a scope's text."""
    parts = text.split("/")
    if len(parts) != 3:  # noqa: PLR2004 - namespace, kind, id
        raise InvalidInput(f"not a scope: {text[:80]!r}; expected <namespace>/<kind>/<id>")
    return Scope(*map(_unquote, parts))


@lru_cache(maxsize=4096)
def thread_scope_of(thread: str) -> str | None:
    """The scope of a thread that events name so (``<namespace>/<id>``, the namespace escaped)."""
    namespace, separator, name = thread.partition("/")
    return f"{namespace}/{_THREAD}/{_quote(name)}" if separator else None


def thread_of_scope(scope: str) -> str | None:
    """What the events of a thread's scope name the thread; ``None`` for a scope of another kind.

    The inverse of `thread_scope_of`.
    """
    namespace, _, rest = scope.partition("/")
    kind, _, name = rest.partition("/")
    return f"{namespace}/{_unquote(name)}" if kind == _THREAD else None


def namespace_prefix(namespace: str) -> str:
    """What the text of every scope in a namespace starts with."""
    return _quote(namespace) + "/"


def _quote(part: str) -> str:
    if "%" in part or "/" in part:
        return part.replace("%", "%25").replace("/", "%2F")
    return part


def _unquote(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")
