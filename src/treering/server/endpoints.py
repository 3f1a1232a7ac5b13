"""Endpoints: one plain function per route, and everything about it read off its signature.

    class RunsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        limit: int = 50

    @endpoint("GET", "/runs", tag="runs")
    def list_runs(call: Call[RunsQuery, None]) -> RunList:
        return ...call.store...

The types of query, body and reply give the checks and the OpenAPI document (`openapi`); the docstring gives
its words. A plain function runs in a worker thread, an ``async`` one on the loop. What it returns becomes
JSON, unless it is a `Response` already. **Invariant:** the store of a call is the one of the caller's
project; there is no way to name another one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, Generic, Literal, TypeVar, get_args, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treering.server.access import Access, Scope
from treering.store import Store

Q = TypeVar("Q")
B = TypeVar("B")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Call(Generic[Q, B]):
    """One request, checked: whose store, which path, query and body."""

    __slots__ = ("access", "body", "path", "query", "request", "store")

    def __init__(
        self, *, store: Store, access: Access, path: dict[str, str], query: Q, body: B, request: Request
    ) -> None:
        self.store = store
        self.access = access
        self.path = path
        self.query = query
        self.body = body
        self.request = request


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A route: how it is reached, who may, what goes in and what comes out (``None``: nothing)."""

    method: Method
    path: str
    handler: Callable[[Any], Any]
    scope: Scope
    tag: str
    status: int
    query: Any
    body: Any
    reply: Any
    raw_body: bool
    """The handler reads the body by itself, from ``call.request``."""

    @property
    def name(self) -> str:
        """What the operation is called."""
        return getattr(self.handler, "__name__", self.path)

    @property
    def is_async(self) -> bool:
        """Whether the handler runs on the loop."""
        return inspect.iscoroutinefunction(self.handler)

    @property
    def words(self) -> str:
        """What the docstring says."""
        return inspect.getdoc(self.handler) or ""


def endpoint(
    method: Method,
    path: str,
    *,
    tag: str,
    scope: Scope | None = None,
    status: int = 200,
    raw_body: bool = False,
) -> Callable[[Callable[[Any], Any]], Endpoint]:
    """Make an endpoint of a function. Without ``scope``, a GET takes ``read``, the rest ``write``."""

    def made(function: Callable[[Any], Any]) -> Endpoint:
        hints = get_type_hints(function)
        query, body = get_args(hints["call"])
        reply = hints["return"]
        plain = reply is type(None) or (isinstance(reply, type) and issubclass(reply, Response))
        return Endpoint(
            method=method,
            path=path,
            handler=function,
            scope=scope or ("read" if method == "GET" else "write"),
            tag=tag,
            status=status,
            query=None if query is type(None) else query,
            body=None if body is type(None) else body,
            reply=None if plain else reply,
            raw_body=raw_body,
        )

    return made


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that says nothing but that it was done."""

    ok: bool = True


OK: Final = Empty()
