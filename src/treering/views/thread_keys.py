"""How the events of a run name the thread that they belong to."""

from __future__ import annotations

from typing import overload

from treering.core.scopes import namespace_prefix, parse_scope, thread_scope_of


@overload
def thread_key(thread_id: str, namespace: str) -> str: ...
@overload
def thread_key(thread_id: str | None, namespace: str) -> str | None: ...
def thread_key(thread_id: str | None, namespace: str) -> str | None:
    """The thread's id behind its namespace; two threads never share one."""
    return None if thread_id is None else namespace_prefix(namespace) + thread_id


def thread_of_key(key: str | None) -> tuple[str | None, str]:
    """The thread's id and its namespace: the inverse of `thread_key`."""
    scope = None if key is None else thread_scope_of(key)
    if scope is None:
        return key, ""
    parsed = parse_scope(scope)
    return parsed.id, parsed.namespace
