"""From a request to a handler and back: gate, checks, worker thread, JSON, ETag, problem."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec
from anyio import to_thread
from msgspec import inspect as shapes
from starlette.requests import Request
from starlette.responses import Response

from treering.core.text import readable_json
from treering.errors import InvalidInput, TreeringError
from treering.server.endpoints import Call, Endpoint
from treering.server.http import plain, read_body, respond, respond_unforeseen
from treering.server.state import ServerState

JSON: Final = "application/json"


def dispatcher(endpoint: Endpoint, state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    """What Starlette calls for a route."""
    repeated = _repeated(endpoint.query)

    async def answer(request: Request) -> Response:
        begun = time.perf_counter()
        try:
            response = await _answer(request)
        except TreeringError as error:
            response = respond(error)
        except Exception as error:  # noqa: BLE001 - the last line before the client
            response = respond_unforeseen(error, f"{endpoint.method} {endpoint.path}")
        state.metrics.count(endpoint.method, endpoint.path, response.status_code, time.perf_counter() - begun)
        return response

    async def _answer(request: Request) -> Response:
        access = state.gate.recall(request) or await to_thread.run_sync(state.gate.admit, request)
        access.check(endpoint.scope)
        call = Call[Any, Any](
            store=state.projects.of(access.project),
            access=access,
            path={name: _part(value) for name, value in request.path_params.items()},
            query=_query(request, endpoint.query, repeated),
            body=await _body(request, endpoint, state),
            request=request,
        )
        if endpoint.is_async:
            reply = await endpoint.handler(call)
        else:
            reply = await to_thread.run_sync(endpoint.handler, call)
        return reply if isinstance(reply, Response) else _json(request, endpoint, reply)

    return answer


def _part(value: str) -> str:
    try:
        part = unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"the path holds {value[:80]!r}, which is not UTF-8 text") from None
    if not part or "\0" in part:
        raise InvalidInput("the path holds an empty id, or one with a NUL; check the address")
    return part


def _query(request: Request, kind: Any, repeated: frozenset[str]) -> Any:
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in repeated:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidInput(f"the query gives {name[:80]!r} twice; give it once")
        else:
            given[name] = value
    if kind is None:
        if given:
            raise InvalidInput(f"this route takes no query, but {', '.join(sorted(given))[:200]} was given")
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the query is not acceptable: {error}") from None


async def _body(request: Request, endpoint: Endpoint, state: ServerState) -> Any:
    if endpoint.body is None or endpoint.raw_body:
        return None
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media != JSON:
        raise InvalidInput(f"the body is {media[:80]!r}; send {JSON}")
    data = await read_body(request, limit=state.settings.max_body)
    try:
        return msgspec.json.decode(data or b"{}", type=endpoint.body)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the body is not acceptable: {error}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None


def _json(request: Request, endpoint: Endpoint, reply: Any) -> Response:
    if reply is None:
        return Response(status_code=204)
    data = readable_json(reply, enc_hook=_shown)
    headers: dict[str, str] = {"cache-control": "no-cache"}
    if endpoint.method == "GET":
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        headers["etag"] = tag
        given = request.headers.get("if-none-match", "").split(",")
        # A proxy that compresses makes a tag weak, and the protocol compares without that.
        if {"*", tag} & {each.strip().removeprefix("W/") for each in given}:
            return Response(status_code=304, headers=headers)
    return Response(data, status_code=endpoint.status, media_type=JSON, headers=headers)


def _shown(value: Any) -> Any:
    """What JSON has no word for (a set, a number with an imaginary part): as Python would print it."""
    return sorted(cast("Any", value), key=repr) if isinstance(value, (set, frozenset)) else repr(value)


def _repeated(kind: Any) -> frozenset[str]:
    """The query's names that may come several times: those whose type holds several values."""
    if kind is None:
        return frozenset()
    known = shapes.type_info(kind)
    if not isinstance(known, shapes.StructType):
        raise TypeError(f"{kind!r} is no Struct")
    several = (shapes.ListType, shapes.SetType, shapes.VarTupleType, shapes.FrozenSetType)
    return frozenset(field.encode_name for field in known.fields if isinstance(field.type, several))


def not_found(request: Request) -> Response:
    """No such route."""
    return plain(
        404, "There is nothing here", f"{request.url.path[:200]} is no route; /openapi.json lists them"
    )
