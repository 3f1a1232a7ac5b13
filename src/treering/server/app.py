"""The ASGI application: the REST routes, streams and dashboard of one store."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec
from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import treering
from treering.errors import TreeringError
from treering.server import dashboard
from treering.server.endpoints import JSON, Endpoint, ServerState, dispatcher, document, not_found
from treering.server.http import problem_response, respond
from treering.server.settings import Settings
from treering.store import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ROUTES: Final = (
    "runs",
    "steps",
    "threads",
    "memory",
    "workspaces",
    "sandboxes",
    "schedules",
    "state",
    "project",
    "gateway",
    "otlp",
    "live",
    "limits",
    "effects",
    "approvals",
)
"""The modules of `treering.server.routes`. Each defines ``ENDPOINTS``, ``routes(state)`` for streams, or
both.
"""


def create_app(store: Store, settings: Settings | None = None) -> Application:
    """Create the application of an open store. The caller closes the store after the last request."""
    state = ServerState(store, settings or Settings())
    modules = [import_module(f"treering.server.routes.{name}") for name in ROUTES]
    endpoints: list[Endpoint] = [each for module in modules for each in getattr(module, "ENDPOINTS", ())]
    streams: list[BaseRoute] = [
        each for module in modules if hasattr(module, "routes") for each in module.routes(state)
    ]

    app = Starlette(
        routes=[
            *_process_routes(state, endpoints),
            *_routes(endpoints, state),
            *streams,
            *(dashboard.routes() if state.settings.dashboard else ()),
        ],
        exception_handlers={404: _not_found, 405: _method_not_allowed},
    )
    app.state.treering = state
    return Application(app, state)


class Application:
    """Match routes against the path as it was sent, so that an id may contain an encoded slash."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self.treering = state

    async def end_streams(self) -> None:
        """End all live streams, and the reruns: the server is about to stop."""
        await to_thread.run_sync(self.treering.reruns.stop)
        await self.treering.streams.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] in {"http", "websocket"} and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].partition(b"?")[0].decode("latin-1")}
        await self._app(scope, receive, send)


def _routes(endpoints: Sequence[Endpoint], state: ServerState) -> list[Route]:
    """Return the routes, paths without parameters first: ``/memory/search`` is not a document id."""
    ordered = sorted(endpoints, key=lambda each: (each.path.count("{"), each.path))
    return [
        Route(each.path, dispatcher(each, state), methods=[each.method], name=f"{each.tag}.{each.name}")
        for each in ordered
    ]


def _process_routes(state: ServerState, endpoints: Sequence[Endpoint]) -> list[Route]:
    """Return the routes for whoever operates the server: OpenAPI, health, readiness, metrics."""
    openapi_document = msgspec.json.encode(document(endpoints, version=treering.__version__))

    async def openapi(_: Request) -> Response:
        return Response(openapi_document, media_type=JSON)

    async def healthz(_: Request) -> Response:
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
        return Response(state.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    handlers = {"/openapi.json": openapi, "/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
    return [Route(path, each, methods=["GET"], name=path.strip("/")) for path, each in handlers.items()]


async def _not_found(request: Request, _: Exception) -> Response:
    return not_found(request)


async def _method_not_allowed(request: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None)
    detail = f"{request.url.path[:200]} does not support {request.method}"
    return problem_response(405, "Method not allowed", detail, headers=headers)
