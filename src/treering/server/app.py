"""The server's application: routes over one store, for Starlette."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import treering
from treering.errors import TreeringError
from treering.server import dashboard
from treering.server.dispatch import JSON, dispatcher, not_found
from treering.server.endpoints import Endpoint, document
from treering.server.http import plain, respond
from treering.server.metrics import MEDIA_TYPE
from treering.server.settings import Settings
from treering.server.state import ServerState
from treering.store import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ROUTES: Final = (
    "runs",
    "timeline",
    "threads",
    "memory",
    "workspaces",
    "schedules",
    "state",
    "maintenance",
    "keys",
    "gateway",
    "otlp",
    "live",
    "search",
    "compare",
    "performance",
    "limits",
)
"""Modules of `treering.server.routes`. Each has ``ENDPOINTS``, ``routes(state)`` for streams, or both."""


def create_app(store: Store, settings: Settings | None = None) -> Encoded:
    """The application over an open store; whoever opened the store closes it after the last request."""
    state = ServerState(store, settings or Settings())
    modules = [import_module(f"treering.server.routes.{name}") for name in ROUTES]
    endpoints: list[Endpoint] = [each for module in modules for each in getattr(module, "ENDPOINTS", ())]
    more: list[BaseRoute] = [
        each for module in modules if hasattr(module, "routes") for each in module.routes(state)
    ]

    app = Starlette(
        routes=[
            *_own_routes(state, endpoints),
            *_routes(endpoints, state),
            *more,
            *(dashboard.routes() if state.settings.dashboard else ()),
        ],
        exception_handlers={404: _nothing_here, 405: _wrong_method},
    )
    app.state.treering = state
    return Encoded(app, state)


class Encoded:
    """Matches routes against the path as it was sent, so that an id may hold an encoded slash."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def end_streams(self) -> None:
        """Let those go who follow: the server is about to stop."""
        await self._state.streams.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        if scope["type"] in {"http", "websocket"} and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].partition(b"?")[0].decode("latin-1")}
        await self._app(scope, receive, send)


def _routes(endpoints: Sequence[Endpoint], state: ServerState) -> list[Route]:
    """Paths without parameters first: ``/memory/search`` is no document of that name."""
    ordered = sorted(endpoints, key=lambda each: (each.path.count("{"), each.path))
    return [
        Route(each.path, dispatcher(each, state), methods=[each.method], name=f"{each.tag}.{each.name}")
        for each in ordered
    ]


def _own_routes(state: ServerState, endpoints: Sequence[Endpoint]) -> list[Route]:
    described = msgspec.json.encode(document(endpoints, version=treering.__version__))

    def openapi(_: Request) -> Response:
        return Response(described, media_type=JSON)

    def healthz(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type=JSON)

    def readyz(_: Request) -> Response:
        try:
            state.store.engine.refs(state.store.space, ["ready"])
        except TreeringError as error:
            return respond(error)
        return Response(b'{"status":"ready"}', media_type=JSON)

    def metrics(request: Request) -> Response:
        try:
            state.gate.admit(request)
        except TreeringError as error:
            return respond(error)
        return Response(state.metrics.text(), media_type=MEDIA_TYPE)

    own = {"/openapi.json": openapi, "/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
    return [Route(path, answer, methods=["GET"], name=path.strip("/")) for path, answer in own.items()]


async def _nothing_here(request: Request, _: Exception) -> Response:
    return not_found(request)


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None)
    return plain(
        405, "Wrong method", f"{request.method} does not work on {request.url.path[:200]}", headers=headers
    )
