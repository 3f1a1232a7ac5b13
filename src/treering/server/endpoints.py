"""Endpoints: one plain function per route; checks, dispatch and OpenAPI follow from its signature.

    class RunsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        limit: int = 50

    @endpoint("GET", "/runs", tag="runs")
    def list_runs(call: Call[RunsQuery, None]) -> RunList:
        return ...call.store...

The types of query, body and reply validate the request and describe it in the OpenAPI document (`document`);
the docstring is the description. `dispatcher` turns an endpoint into what Starlette calls: authenticate,
check the scope, parse, run the function (in a worker thread, or on the loop if it is ``async``), encode the
result as JSON with an ETag, and turn errors into problem documents. **Invariant:** the store of a call is the
one of the caller's project; no request can name another.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, TypeVar, cast, get_args, get_type_hints
from urllib.parse import unquote

import msgspec
from anyio import to_thread
from msgspec import inspect as shapes
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from treering.core.query import collecting
from treering.core.text import readable_json, structs_in, times_of
from treering.errors import InvalidInput, TreeringError
from treering.server.auth import Access, Gate, Permission, Scope
from treering.server.http import (
    MEDIA_TYPE,
    LargeBodies,
    Problem,
    clear_frames,
    parse_json,
    problem_response,
    read_body,
    respond,
    respond_unexpected,
)
from treering.server.parameters import describe
from treering.server.permissions import scope_of
from treering.server.reruns import RerunJobs
from treering.server.settings import Settings
from treering.server.streams import Streams
from treering.store import Store

Q = TypeVar("Q")
B = TypeVar("B")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


class Call(Generic[Q, B]):
    """A validated request: the caller's store and access, and the path, query and body."""

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
    """A route: method and path, the scope it requires, and its types (``None``: nothing)."""

    method: Method
    path: str
    handler: Callable[[Any], Any]
    scope: Permission
    tag: str
    status: int
    query: Any
    body: Any
    reply: Any
    raw_body: bool
    """The handler reads the body itself, from ``call.request``."""
    events: Any = None
    """What server-sent events hold, if that is what the route returns."""

    @property
    def name(self) -> str:
        """The operation id."""
        return getattr(self.handler, "__name__", self.path)

    @property
    def is_async(self) -> bool:
        """Whether the handler runs on the event loop."""
        return inspect.iscoroutinefunction(self.handler)

    @property
    def description(self) -> str:
        """The handler's docstring."""
        return inspect.getdoc(self.handler) or ""


class Projects:
    """The store of each project, all over one engine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stores: dict[str, Store] = {store.space: store}
        self._lock = threading.Lock()

    def store(self, project: str) -> Store:
        """Return the store of a project. It is always the same object, so that a project has one recorder."""
        with self._lock:
            if project not in self._stores:
                self._stores[project] = self._store.in_namespace(project)
            return self._stores[project]


class ServerState:
    """The server's settings, stores, authentication, metrics, live streams and reruns."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.projects = Projects(store)
        self.gate = Gate(store.engine, settings, clock=store.clock)
        self.metrics = Metrics()
        self.streams = Streams(store.engine)
        self.large_bodies = LargeBodies()
        self.reruns = RerunJobs()


def endpoint(
    method: Method,
    path: str,
    *,
    tag: str,
    domain: str | None = None,
    scope: Scope | None = None,
    status: int = 200,
    raw_body: bool = False,
    events: Any = None,
) -> Callable[[Callable[[Any], Any]], Endpoint]:
    """Declare a function as an endpoint.

    The scope follows from the domain, which is that of the tag unless another one is given. A method of the
    gateway, which is for any domain, declares its scope and checks the domains of its arguments.
    """
    required = scope or scope_of(domain or tag, changes=method != "GET")

    def declare(function: Callable[[Any], Any]) -> Endpoint:
        hints = get_type_hints(function)
        query, body = get_args(hints["call"])
        reply = hints["return"]
        plain = reply is type(None) or (isinstance(reply, type) and issubclass(reply, Response))
        return Endpoint(
            method=method,
            path=path,
            handler=function,
            scope=required,
            tag=tag,
            status=status,
            query=None if query is type(None) else query,
            body=None if body is type(None) else body,
            reply=None if plain else reply,
            raw_body=raw_body,
            events=events,
        )

    return declare


def _required(permission: Permission) -> str:
    return "a key that may approve" if permission == "approve" else f"scope `{permission}`"


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledgement without content."""

    ok: bool = True


OK: Final = Empty()


def dispatcher(endpoint: Endpoint, state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    """Return the request handler of an endpoint, for Starlette."""
    repeatable = _repeatable(endpoint.query)

    async def handle(request: Request) -> Response:
        start = time.perf_counter()
        try:
            response = await _respond(request)
        except TreeringError as error:
            response = respond(error)
            clear_frames(error)
        except Exception as error:  # noqa: BLE001 - the last handler before the client
            response = respond_unexpected(error, f"{endpoint.method} {endpoint.path}")
            clear_frames(error)
        state.metrics.count(endpoint.method, endpoint.path, response.status_code, time.perf_counter() - start)
        return response

    async def _respond(request: Request) -> Response:
        access = state.gate.admit_cached(request) or await to_thread.run_sync(state.gate.admit, request)
        access.check(endpoint.scope)
        request.state.turn = turn = state.large_bodies.turn(access.name)
        try:
            return await _handle(request, access)
        finally:
            turn.end()

    async def _handle(request: Request, access: Access) -> Response:
        call = Call[Any, Any](
            store=state.projects.store(access.project),
            access=access,
            path={name: _path_parameter(value) for name, value in request.path_params.items()},
            query=_parse_query(request, endpoint.query, repeatable),
            body=await _parse_body(request, endpoint, state),
            request=request,
        )
        if endpoint.is_async:
            return _response(request, endpoint, await endpoint.handler(call))
        return await to_thread.run_sync(lambda: _response(request, endpoint, _run(endpoint, call)))

    return handle


def _run(endpoint: Endpoint, call: Call[Any, Any]) -> Any:
    """Run an endpoint's function. A list says which of its entries cannot be read."""
    with collecting() as found:
        reply = endpoint.handler(call)
    if found and "unreadable" in getattr(reply, "__struct_fields__", ()):
        return msgspec.structs.replace(reply, unreadable=tuple(found.values()))
    return reply


def _path_parameter(value: str) -> str:
    try:
        text = unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"the path contains {value[:80]!r}, which is not UTF-8") from None
    if not text or "\0" in text:
        raise InvalidInput("the path contains an empty id or a NUL character; check the address")
    return text


def _parse_query(request: Request, kind: Any, repeatable: frozenset[str]) -> Any:
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in repeatable:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidInput(f"the query parameter {name[:80]!r} is given twice; give it once")
        else:
            given[name] = value
    if kind is None:
        if given:
            raise InvalidInput(f"this route takes no query parameters; got {', '.join(sorted(given))[:200]}")
        return None
    try:
        query = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"invalid query: {error}") from None
    for name in given:
        if getattr(query, name, name) is None:  # msgspec reads the text "null" as a missing number
            raise InvalidInput(f"the query parameter {name[:80]!r} is 'null'; leave it out instead")
    return query


def _repeatable(kind: Any) -> frozenset[str]:
    """Return the query parameters that may be given several times: those whose type is a collection."""
    if kind is None:
        return frozenset()
    info = shapes.type_info(kind)
    if not isinstance(info, shapes.StructType):
        raise TypeError(f"{kind!r} is not a Struct")
    collections = (shapes.ListType, shapes.SetType, shapes.VarTupleType, shapes.FrozenSetType)
    return frozenset(field.encode_name for field in info.fields if isinstance(field.type, collections))


async def _parse_body(request: Request, endpoint: Endpoint, state: ServerState) -> Any:
    if endpoint.body is None or endpoint.raw_body:
        return None
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media != JSON:
        raise InvalidInput(f"the body has content type {media[:80]!r}; send {JSON}")
    data = await read_body(request, limit=state.settings.max_body)
    return await parse_json(data or b"{}", endpoint.body)


def _response(request: Request, endpoint: Endpoint, reply: Any) -> Response:
    if isinstance(reply, Response):
        return reply
    if reply is None:
        return Response(status_code=204)
    data = readable_json(reply, enc_hook=_as_json)
    headers: dict[str, str] = {"cache-control": "no-cache"}
    if endpoint.method == "GET":
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        headers["etag"] = tag
        given = request.headers.get("if-none-match", "").split(",")
        # A compressing proxy makes the tag weak; If-None-Match compares weakly.
        if {"*", tag} & {each.strip().removeprefix("W/") for each in given}:
            return Response(status_code=304, headers=headers)
    return Response(data, status_code=endpoint.status, media_type=JSON, headers=headers)


def _as_json(value: Any) -> Any:
    """Encode what JSON cannot express (a set, a complex number) as Python prints it."""
    return sorted(cast("Any", value), key=repr) if isinstance(value, (set, frozenset)) else repr(value)


def not_found(request: Request) -> Response:
    """Answer a request that matches no route."""
    return problem_response(404, "Not found", f"no route {request.url.path[:200]}; /openapi.json lists them")


_REF: Final = "#/components/schemas/{name}"
_PART: Final = re.compile(r"\{(\w+)\}")


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these endpoints."""
    kinds = list(dict.fromkeys(_kinds(endpoints)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(kinds, schemas, strict=True))
    _describe_times(kinds, components)
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "treering",
            "version": version,
            "description": "The persistence layer for AI agents. The API key determines the project.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _describe_times(kinds: Iterable[Any], components: dict[str, Any]) -> None:
    """Add the text of each time beside its microseconds, as replies have it."""
    for struct in {each for kind in kinds for each in structs_in(kind) if times_of(each)}:
        schema = components[struct.__name__]
        for field, name in times_of(struct).items():
            described: dict[str, Any] = {"type": "string", "format": "date-time"}
            if "anyOf" in schema["properties"][field]:
                described = {"anyOf": [described, {"type": "null"}], "default": None}
            schema["properties"][name] = described
            if field in schema.get("required", ()):
                schema["required"].append(name)


def _kinds(endpoints: Iterable[Endpoint]) -> Iterable[Any]:
    yield Problem
    for each in endpoints:
        kinds = (each.query, each.body, each.reply, each.events)
        yield from (kind for kind in kinds if kind is not None)


def _operation(each: Endpoint, schema_of: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = each.description.partition("\n")
    found: dict[str, Any] = {
        "operationId": each.name,
        "tags": [each.tag],
        "summary": summary,
        "description": f"{rest.strip()}\n\nRequires {_required(each.scope)}.".strip(),
        "parameters": [
            *_described(each, (
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in _PART.findall(each.path)
            )),
            *_described(each, _parameters(each.query, schema_of, components)),
        ],
        "responses": {
            str(each.status): _success(each, schema_of),
            "default": {
                "description": "Error",
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


def _described(each: Endpoint, parameters: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for parameter in parameters:
        name: str = parameter["name"]
        description = describe(each.name, each.tag, name)
        if description is None:
            raise AssertionError(f"describe parameter {name!r} of {each.name} in treering.server.parameters")
        yield {"name": name, "description": description, **parameter}


def _success(each: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if each.events is not None:
        return {"description": "OK", "content": {EVENTS: {"schema": schema_of[each.events]}}}
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
            "schema": _without_null(shape),
        }


def _without_null(shape: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without null: a query parameter that may be null is simply left out."""
    if "anyOf" not in shape:
        return shape
    kinds = [each for each in shape["anyOf"] if each != {"type": "null"}]
    rest = {name: value for name, value in shape.items() if name != "anyOf" and value is not None}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}


_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """Requests by route and status, and their duration; memory and start time of the process."""

    def __init__(self) -> None:
        # A registry of our own: a process may serve several stores, and Prometheus's default one is global.
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "treering_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "treering_request_seconds",
            "Duration of requests.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
