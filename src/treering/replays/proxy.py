"""A proxy in front of model providers, for programs that are not Python: CLI agents and other languages.

    treering proxy models                          # prints the addresses to set as base URLs

A program that takes the base URL of its provider (``OPENAI_BASE_URL``, ``ANTHROPIC_BASE_URL``) sends its
requests here; they are passed on unchanged, and answers come back piece by piece as they arrive. Each call
becomes an exchange of a run, as with `treering.instrument`, and a replay or rerun answers here as well. The
formats of OpenAI and Anthropic tell which provider a request is for; Gemini's is understood too.

A call belongs to the run of the recording that the proxy was started for; else to the run that its address
names (``http://127.0.0.1:8788/run/nightly/v1``), or to the one of this proxy. Keys are passed on and never
stored. **Invariant:** what the program gets is what the provider sent; recording fails alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from treering.errors import MissingExtra, Unreachable
from treering.replays import wire
from treering.replays.capture import (
    Answer,
    Instrumentation,
    PendingCall,
    begin_http,
    current_run_node,
    pieces_of,
    state,
)
from treering.replays.replay import StopReplay
from treering.runs.exchanges import Exchange
from treering.runs.span import RunNode, current_node

if TYPE_CHECKING:
    from treering.runs.run import Run
    from treering.store import Store

try:
    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError as missing:
    raise MissingExtra("the proxy for models", "proxy") from missing

PORT: Final = 8788
_UPSTREAMS: Final = {
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "google": ("GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com"),
}
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_NOT_PASSED_ON: Final = frozenset(
    {"host", "content-length", "connection", "keep-alive", "transfer-encoding", "upgrade", "proxy-connection"}
)
_TIMEOUT: Final = 600.0


class ModelProxy:
    """The proxy while it runs, in a thread of this process; for a ``with`` statement.

    Args:
        store: where calls are recorded that belong to no other run.
        node: returns the run that all calls belong to. Without it and ``store``, that is the run of
            `treering.record` or of a replay.
        upstreams: the address of each provider: ``{"openai": ..., "anthropic": ..., "google": ...}``. Those
            that are missing come from the environment (``OPENAI_BASE_URL``, ...), else they are the
            provider's own.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        node: Callable[[], RunNode | None] | None = None,
        upstreams: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._store = store
        self._node = node
        self.upstreams = {
            name: (upstreams or {}).get(name) or os.environ.get(variable) or default
            for name, (variable, default) in _UPSTREAMS.items()
        }
        self._host = host
        self._port = port
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._client: _Client | None = None
        self._instrumentation: Instrumentation | None = None

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"http://{self._host}:{self._port}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make programs use the proxy."""
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_BASE": f"{self.url}/v1",
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), self._host))),
        }

    def start(self) -> Self:
        """Serve until `stop`; ``with`` does this."""
        self._instrumentation = Instrumentation(None, spans=True, tools=False, also=())
        app = Starlette(
            routes=[
                Route("/run/{run}/{path:path}", self._handle, methods=_METHODS),
                Route("/{path:path}", self._handle, methods=_METHODS),
            ]
        )
        config = uvicorn.Config(app, host=self._host, port=self._port, log_level="error", access_log=False)
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._serve, args=(server,), name="treering-proxy", daemon=True
        )
        self._thread.start()
        while not server.started:
            if not self._thread.is_alive():
                self.stop()
                raise Unreachable(
                    f"the proxy cannot listen on {self._host}:{self._port}; is the port in use?"
                )
            self._thread.join(0.01)
        self._port = server.servers[0].sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        """Stop serving, and end the runs; ``with`` does this. May be called twice."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None
        if self._instrumentation is not None:
            self._instrumentation.close()
            self._instrumentation = None
        with self._lock:
            for run in self._runs.values():
                run.end()
            self._runs.clear()
        if self._store is not None:
            self._store.flush()

    def wait(self) -> None:
        """Wait until the server stops."""
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self, server: uvicorn.Server) -> None:
        async def main() -> None:
            async with _Client(timeout=_TIMEOUT, follow_redirects=False) as self._client:
                await server.serve()

        with contextlib.suppress(SystemExit):  # uvicorn's answer to a port in use
            asyncio.run(main())

    # One request
    async def _handle(self, request: Request) -> Response:
        path = f"/{request.path_params['path']}"
        try:
            content = await request.body()
        except ClientDisconnect:
            return Response(status_code=499)
        is_model = wire.is_model_call(request.method, path)
        url = self._url(path, request)
        if not is_model:
            return await self._pass_on(request, url, content)
        token = current_node.set(await asyncio.to_thread(self._node_of, request))
        try:
            pending = await asyncio.to_thread(
                begin_http, request.method, url, dict(request.headers), content, is_model=True
            )
        except StopReplay:
            return _diverged()
        finally:
            current_node.reset(token)
        if pending.found is not None:
            return _replayed(pending, pending.found)
        asked = pending.asked.request
        if state.session is not None:
            url, content = str(asked["url"]), _encoded(asked.get("body"), content)
        return await self._ask(request, url, content, pending)

    def _url(self, path: str, request: Request) -> str:
        """Return where a request is passed on to."""
        provider = wire.provider_of(path)
        if provider not in self.upstreams:
            provider = "anthropic" if "anthropic-version" in request.headers else "openai"
        base = self.upstreams[provider].rstrip("/")
        if base.endswith("/v1") and path.startswith("/v1/"):
            path = path.removeprefix("/v1")
        query = request.url.query
        return f"{base}{path}" + (f"?{query}" if query else "")

    def _node_of(self, request: Request) -> RunNode | None:
        """Return the run that a request belongs to."""
        if self._node is not None:
            return self._node()
        if self._store is None:
            return current_run_node()
        name = request.path_params.get("run") or ""
        with self._lock:
            if name not in self._runs:
                self._runs[name] = self._store.run(
                    request.headers.get("x-treering-agent") or "proxy", id=name or None
                )
                self._runs[name].start()
            return self._runs[name]

    async def _ask(self, request: Request, url: str, content: bytes, pending: PendingCall) -> Response:
        answer: Answer | None = None
        try:
            response = await self._send(request, url, content)
        except httpx.HTTPError as error:
            await asyncio.to_thread(pending.fail, error)
            return _failed(url, error)
        answer = Answer(httpx, pending, response)

        async def pieces() -> AsyncIterator[bytes]:
            is_whole = False
            try:
                async for piece in response.aiter_raw():
                    answer.add(piece)
                    yield piece
                is_whole = True
            finally:
                await response.aclose()
                answer.end(is_cut=not is_whole)

        return StreamingResponse(
            pieces(), status_code=response.status_code, headers=_passed_on(response.headers)
        )

    async def _pass_on(self, request: Request, url: str, content: bytes) -> Response:
        """Pass on a request that is no call of a model, unless a replay forbids it."""
        if state.session is not None:
            return JSONResponse({"error": {"message": "not recorded; a replay sends nothing"}}, 404)
        try:
            response = await self._send(request, url, content)
            data = b"".join([piece async for piece in response.aiter_raw()])
        except httpx.HTTPError as error:
            return _failed(url, error)
        return Response(data, status_code=response.status_code, headers=_passed_on(response.headers))

    async def _send(self, request: Request, url: str, content: bytes) -> httpx.Response:
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name not in _NOT_PASSED_ON and not name.startswith("x-treering-")
        ]
        assert self._client is not None  # noqa: S101 - for the type checker
        made = self._client.build_request(request.method, url, headers=headers, content=content)
        return await self._client.send(made, stream=True)


class _Client(httpx.AsyncClient):
    """A client whose requests are recorded by the proxy, and not a second time by `treering.instrument`."""

    def _transport_for_url(self, url: httpx.URL) -> Any:
        for pattern, transport in self._mounts.items():
            if pattern.matches(url):
                return self._transport if transport is None else transport
        return self._transport


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON}


def _encoded(body: Any, content: bytes) -> bytes:
    """Return the body to send: the given bytes, unless a rerun has changed it."""
    try:
        if msgspec.json.decode(content) == body:
            return content
    except (msgspec.DecodeError, UnicodeDecodeError):
        return content
    return msgspec.json.encode(body)


def _replayed(pending: PendingCall, exchange: Exchange) -> Response:
    if exchange.error is not None:
        pending.fail(RuntimeError(exchange.error.message))
        return JSONResponse({"error": {"message": exchange.error.message}}, 502)
    pending.finish(
        exchange.answer,
        status=exchange.status,
        headers=exchange.headers,
        pieces=exchange.pieces,
        is_cut=exchange.is_cut,
    )
    headers = {
        name: value
        for name, value in exchange.headers.items()
        if name not in _NOT_PASSED_ON and name != "content-encoding"
    }

    async def pieces() -> AsyncIterator[bytes]:
        for piece in pieces_of(exchange):
            yield piece

    return StreamingResponse(pieces(), status_code=exchange.status or 200, headers=headers)


def _diverged() -> Response:
    message = "the recording does not have this request; the replay was stopped"
    error = {"type": "invalid_request_error", "message": message}
    return JSONResponse({"type": "error", "error": error}, 400, headers={"x-should-retry": "false"})


def _failed(url: str, error: Exception) -> Response:
    message = f"treering proxy: {url.partition('?')[0]} cannot be reached: {type(error).__name__}: {error}"
    return JSONResponse({"type": "error", "error": {"type": "api_error", "message": message}}, 502)
