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
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, TypeVar, get_args, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treering.server.auth import Access, Scope
from treering.server.http import MEDIA_TYPE, Problem
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


# -----------------------------------------------------------------------------------------------------------
# The OpenAPI document, from the endpoints' own types and words.


_REF: Final = "#/components/schemas/{name}"
_PART: Final = re.compile(r"\{(\w+)\}")


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """OpenAPI 3.1 for these endpoints."""
    kinds = list(dict.fromkeys(_kinds(endpoints)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "treering",
            "version": version,
            "description": "The persistence layer for AI agents. The project comes from the API key.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _kinds(endpoints: Iterable[Endpoint]) -> Iterable[Any]:
    yield Problem
    for each in endpoints:
        yield from (kind for kind in (each.query, each.body, each.reply) if kind is not None)


def _operation(each: Endpoint, schema_of: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = each.words.partition("\n")
    found: dict[str, Any] = {
        "operationId": each.name,
        "tags": [each.tag],
        "summary": summary,
        "description": f"{rest.strip()}\n\nNeeds scope `{each.scope}`.".strip(),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
              for name in _PART.findall(each.path)),
            *_parameters(each.query, schema_of, components),
        ],
        "responses": {
            str(each.status): _success(each, schema_of),
            "default": {
                "description": "What went wrong",
                "content": {MEDIA_TYPE: {"schema": schema_of[Problem]}},
            },
        },
    }  # fmt: skip
    if each.method == "GET" and each.reply is not None:
        found["responses"]["304"] = {"description": "Unchanged since the ETag in If-None-Match"}
    if each.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[each.body]}},
        }
    return found


def _success(each: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if each.reply is None:
        return {"description": "Done"}
    return {"description": "OK", "content": {"application/json": {"schema": schema_of[each.reply]}}}


def _parameters(
    query: Any, schema_of: dict[Any, Any], components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    if query is None:
        return
    schema: dict[str, Any] = schema_of[query]
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    for name, shape in schema.get("properties", {}).items():
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _given(shape),
        }


def _given(shape: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null; what may be null is simply left out."""
    if "anyOf" not in shape:
        return shape
    kinds = [each for each in shape["anyOf"] if each != {"type": "null"}]
    rest = {name: value for name, value in shape.items() if name != "anyOf" and value is not None}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}
