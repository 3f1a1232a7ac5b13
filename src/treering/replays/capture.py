"""Capture what an agent asks its models and tools, and let a replay answer instead.

`instrument` puts a transport around that of every ``httpx`` and ``httpx2`` client, which the SDKs of OpenAI,
Anthropic, Google, Mistral and LiteLLM use, and wraps the tool calls of LangChain, the OpenAI Agents SDK and
pydantic-ai. Our own loop and ``@store.tool`` pass their calls through `treering.runs.exchanges.interception`.
Each call is put first to the session that replays in this process, if there is one
(`treering.replays.replay`); if that has no answer, the call is made, and what was asked and answered becomes
an exchange of the run.

**Invariant:** capturing changes nothing that the agent sees, and its errors never reach it. It adds a queue
entry for each call; reading bodies, putting streams together and encoding is done in the recorder's thread.
The run is that of the current context (`store.run`, an adapter, our loop); a call outside of any run becomes
a run of its own, if `instrument` was given a store.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Protocol, Self, cast

import msgspec
import orjson

from treering.adapters.shared import Opened, StoreOrUrl
from treering.core.encoding import decode
from treering.errors import InvalidInput
from treering.replays import wire
from treering.replays.nature import Nature, current
from treering.replays.nature import begin as begin_nature
from treering.runs.exchanges import (
    CallError,
    Exchange,
    ExchangeKind,
    Piece,
    interception,
    public_headers,
    public_url,
    record_draws,
    record_exchange,
)
from treering.runs.run import Run
from treering.runs.span import OK, RunNode, Span, current_node, encode_any, model_call, usage_of
from treering.store import Store
from treering.threads.thread import Thread

_LIBRARIES: Final = ("httpx", "httpx2")
_STREAMS: Final = ("text/event-stream", "application/x-ndjson", "application/vnd.amazon.eventstream")
_MAX_ENTRIES: Final = 256
_NOT_REPLAYED: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})

in_call: Final[ContextVar[_Nested | None]] = ContextVar("treering_in_call", default=None)
"""The model's function that is being called, which notices whether it makes a recorded request itself."""


class _Nested:
    """Whether a call made a request that was recorded."""

    __slots__ = ("is_recorded",)

    def __init__(self) -> None:
        self.is_recorded = False


recorded_run: Final[ContextVar[RunNode | None]] = ContextVar("treering_recorded_run", default=None)
"""The run of `record`, which the calls of runs inside of it belong to as well."""


class Asked(msgspec.Struct, kw_only=True):
    """A call that is about to be made."""

    kind: ExchangeKind
    name: str
    request: dict[str, Any]
    once: bool = False
    """The call has an effect that must not be repeated."""


class Session(Protocol):
    """Answers calls from a recording."""

    @property
    def node(self) -> RunNode | None:
        """The run that calls belong to which are made outside of any other."""
        ...

    def answer(self, asked: Asked) -> Exchange | None:
        """Return the recorded exchange, or ``None`` if the call is to be made. May change the request."""
        ...

    def model(self, function: Callable[..., Any], messages: Any) -> tuple[Callable[..., Any], Any]:
        """Return the model's function that is asked for a call that is made, and what it is given."""
        ...

    def knows(self, kind: ExchangeKind) -> bool:
        """Whether the recording has exchanges of this kind."""
        ...

    def returned(self, asked: Asked, answer: Any, error: CallError | None) -> None:
        """Take note of what a tool did that was called."""
        ...

    def check_allowed(self, host: str, port: int | None) -> None:
        """Raise an error if nothing may be sent there."""
        ...


class _State:
    """What is captured in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.instrumentations: list[Instrumentation] = []
        self.session: Session | None = None
        self.node: RunNode | None = None
        """The run of `record`, for threads that do not know the context."""
        self.folders: dict[str, tuple[Store, Path]] = {}
        """The folders that runs work in, by run."""
        self.entries: dict[str, Any] = {}
        """What runs of this process began with, which need not have a name."""
        self.undo: list[Callable[[], None]] = []


state: Final = _State()


# Turning it on and off


class Instrumentation:
    """Calls are captured until `close`, or the end of a ``with`` statement."""

    def __init__(
        self, opened: Opened | None, *, spans: bool, tools: bool, also: Sequence[str], owns_runs: bool = True
    ) -> None:
        self.opened = opened
        self.spans = spans
        self.tools = tools
        self.also = tuple(also)
        self.owns_runs = owns_runs and opened is not None
        self._is_open = True
        with state.lock:
            state.instrumentations.append(self)
            install()

    def close(self) -> None:
        """Stop capturing; close the store if it was opened here. May be called twice."""
        with state.lock:
            if not self._is_open:
                return
            self._is_open = False
            state.instrumentations.remove(self)
            uninstall()
        if self.opened is not None:
            self.opened.store.flush()
            self.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def instrument(
    store_or_url: StoreOrUrl | None = None,
    *,
    spans: bool = True,
    tools: bool = True,
    also: Sequence[str] = (),
) -> Instrumentation:
    """Record every model and tool call of this process: ``treering.instrument("./agents")``.

    Model calls are recorded whole (messages, tools, parameters, the answer with the times of its pieces),
    without credentials, and shown in the timeline with tokens and cost. A call belongs to the run of its
    context; outside of any, it becomes a run of its own.

    Args:
        store_or_url: the store for calls outside of any run; the default store without it.
        spans: also record a span for each model call, unless an adapter or our loop does so.
        tools: also record the tool calls of LangChain, the OpenAI Agents SDK and pydantic-ai.
        also: the beginnings of further addresses whose requests are recorded: ``https://api.github.com/``.
    """
    if isinstance(also, str):
        raise InvalidInput(f"also is the string {also!r}; pass a list of addresses")
    return Instrumentation(Opened(store_or_url), spans=spans, tools=tools, also=also)


def install() -> None:
    """Patch what is not patched yet. Called with the lock held."""
    interception.current = _interceptor
    if state.undo:
        return
    for name in _LIBRARIES:
        if find_spec(name) is not None:
            _patch_clients(importlib.import_module(name))
    from treering.replays.frameworks import patch_tools

    state.undo.append(patch_tools(replace))


def uninstall() -> None:
    """Undo the patches once nobody needs them. Called with the lock held."""
    if state.instrumentations or state.session is not None:
        return
    interception.current = None
    while state.undo:
        state.undo.pop()()


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute by what ``make`` returns for it, until `uninstall`."""
    original = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, make(original))
    state.undo.append(functools.partial(setattr, owner, name, original))


def current_run_node() -> RunNode | None:
    """Return the run or span that a call belongs to; of an adapter's model call, that call."""
    call = model_call.get()
    if call is not None and not call.has_ended:
        return call
    node = current_node.get()
    if node is not None:
        return node
    return state.node if state.session is None or state.session.node is None else state.session.node


# One call


class PendingCall:
    """A call that is being made, or that a recording answered (`found`)."""

    def __init__(self, asked: Asked, *, is_model: bool = False) -> None:
        self.asked = asked
        self.found = None if state.session is None else state.session.answer(asked)
        self._run: Run | None = None
        self._span: Span | None = None
        node = current_run_node()
        given = current.nature
        self._draws = {} if given is None else given.take()
        spans = any(each.spans for each in state.instrumentations)
        owner = next((each for each in state.instrumentations if each.owns_runs), None)
        if (
            node is None
            and is_model
            and owner is not None
            and owner.opened is not None
            and state.session is None
        ):
            self._run = node = owner.opened.store.run(wire.provider_of(_path(asked))).start()
        self._node = node
        self._owner = recorded_run.get() or node
        wants_span = node is not None and is_model and spans
        if wants_span and node is not None and not (isinstance(node, Span) and node.kind == "llm"):
            self._span = node.span("model", kind="llm").start()
        self._clock = None if node is None else node.context.clock
        self._began_us = 0 if self._clock is None else self._clock.now_us()
        self._began = time.perf_counter_ns()
        nested = in_call.get()
        if nested is not None and asked.kind == "http":
            nested.is_recorded = True

    @property
    def is_recorded(self) -> bool:
        """Whether anybody keeps what is answered."""
        return self._node is not None

    @property
    def elapsed_us(self) -> int:
        """Microseconds since the call began."""
        return (time.perf_counter_ns() - self._began) // 1000

    def finish(
        self,
        answer: Any,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        pieces: Sequence[Piece] = (),
        is_cut: bool = False,
        decode: Callable[[], tuple[Any, Sequence[Piece]]] | None = None,
    ) -> None:
        """Record the answer; ``decode`` gives it in the recorder's thread instead."""
        self._returned(answer, None)
        self._end(
            lambda: (
                {
                    "answer": answer,
                    "status": status,
                    "headers": public_headers(headers or {}),
                    "pieces": tuple(pieces),
                    "is_cut": is_cut,
                }
                | ({} if decode is None else dict(zip(("answer", "pieces"), decode(), strict=True)))
            ),
            failed=None if status is None or status < 400 else f"HTTP {status}",  # noqa: PLR2004
        )

    def fail(self, error: BaseException) -> None:
        """Record that the call raised an error."""
        described = CallError.of(error)
        self._returned(None, described)
        self._end(lambda: {"error": described}, failed=described.type)

    def _returned(self, answer: Any, error: CallError | None) -> None:
        if self.asked.kind == "tool" and self.found is None and state.session is not None:
            state.session.returned(self.asked, answer, error)

    def _end(self, rest: Callable[[], dict[str, Any]], *, failed: str | None) -> None:
        node, owner = self._node, self._owner
        if node is None or owner is None:
            return
        asked, found, span, duration_us = self.asked, self.found, self._span, self.elapsed_us
        snapshot = self._snapshot() if asked.kind == "tool" and found is None else None
        made: list[Exchange] = []

        def make() -> Exchange:
            if not made:
                exchange = Exchange(
                    kind=asked.kind,
                    name=asked.name,
                    request=_decoded_request(asked.request),
                    started_at_us=self._began_us,
                    duration_us=duration_us,
                    agent=node.agent,
                    span=node.span_id if span is None else span.id,
                    is_replayed=found is not None,
                    draws=self._draws,
                    snapshot=found.snapshot if found is not None else snapshot,
                    **rest(),
                )
                model = wire.model_of(exchange.path, exchange.body) if asked.kind == "http" else None
                made.append(msgspec.structs.replace(exchange, model=model, pieces=_whole(exchange.pieces)))
            return made[0]

        record_exchange(owner.context, make)
        if span is not None:
            _record_reply(span, make, is_replayed=found is not None)
            span.end(status=None if failed is None else "error")
        if self._run is not None:
            self._run.end(status="ok" if failed is None else "error")

    def _snapshot(self) -> str | None:
        """The files after a tool call, if the run has a folder."""
        known = None if self._owner is None else state.folders.get(self._owner.run_id)
        if known is None:
            return None
        store, folder = known
        try:
            return store.workspace.snapshot(folder, note=f"after {self.asked.name}")
        except Exception as error:  # noqa: BLE001 - the agent must not fail because of it
            warnings.warn(f"the files after {self.asked.name!r} could not be saved: {error}", stacklevel=3)
            return None


def _whole(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    return tuple(pieces)


def _record_reply(span: Span, make: Callable[[], Exchange], *, is_replayed: bool) -> None:
    """Record a model's reply as a message of its span, put together in the recorder's thread."""
    context, agent, parent = span.context, span.agent, span.id
    at_us = context.clock.now_us()

    def write(draft: Any) -> None:
        exchange = make()
        reply = wire.read_reply(exchange.path, exchange.answer)
        if reply is None:
            return
        usage = None
        if not is_replayed:
            try:
                usage = usage_of(reply.usage)
            except InvalidInput:
                usage = None
        message_id, model = f"{exchange.id}:reply", reply.model or exchange.model
        context.writer.write_message(
            draft,
            id=message_id,
            ts_us=at_us,
            role="assistant",
            content=encode_any(reply.message),
            span=parent,
            agent=agent,
            model=model,
            usage=usage,
            in_call=span.add_reply(message_id, model, usage),
        )

    context.sink.put(write)


def _path(asked: Asked) -> str:
    return str(asked.request.get("url", "")).partition("?")[0]


def _decoded_request(request: dict[str, Any]) -> dict[str, Any]:
    body = request.get("body")
    if not isinstance(body, bytes):
        return request
    return {**request, "body": decode_body(body, request.get("headers", {}).get("content-type", ""))}


def decode_body(body: bytes, content_type: str) -> Any:
    """Return a body as JSON, text, or (if it is neither) bytes."""
    if not body:
        return None
    if "json" in content_type or body[:1] in b"{[":
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    boundary = content_type.partition("boundary=")[2].strip('"')
    if boundary:  # it is chosen at random for each request
        body = body.replace(boundary.encode(), b"boundary")
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


# HTTP: the transports of httpx and httpx2


def _patch_clients(library: ModuleType) -> None:
    wrap_sync, wrap_async = _transports(library)

    def around(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def make(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            @functools.wraps(original)
            def transport_for_url(self: Any, url: Any) -> Any:
                return wrap(original(self, url))

            return transport_for_url

        return make

    replace(library.Client, "_transport_for_url", around(wrap_sync))
    replace(library.AsyncClient, "_transport_for_url", around(wrap_async))


def _is_wanted(request: Any) -> bool:
    url = str(request.url)
    if wire.is_model_call(request.method, request.url.path):
        return True
    return any(url.startswith(prefix) for each in state.instrumentations for prefix in each.also)


def check_allowed(request: Any) -> None:
    """Refuse a request that was not recorded, also over a connection that is open already."""
    if state.session is not None:
        state.session.check_allowed(request.url.host, request.url.port)


def begin_http(
    method: str, url: str, headers: Mapping[str, str], content: bytes, *, is_model: bool
) -> PendingCall:
    """Begin a request; with a session, its body is read at once."""
    kept: dict[str, Any] = {"method": method, "url": public_url(url), "headers": public_headers(headers)}
    path = str(kept["url"]).partition("?")[0]
    content_type = headers.get("content-type", "")
    body: Any = decode_body(content, content_type) if state.session is not None else content
    name = f"{method} /{path.partition('://')[2].partition('/')[2]}"
    return PendingCall(Asked(kind="http", name=name, request={**kept, "body": body}), is_model=is_model)


def _begin(request: Any, content: bytes) -> tuple[PendingCall, Any]:
    """Begin a request; return it as it is to be sent, which a rerun may have changed."""
    is_model = wire.is_model_call(request.method, request.url.path)
    pending = begin_http(request.method, str(request.url), request.headers, content, is_model=is_model)
    if pending.found is None and state.session is not None and is_model:
        request = _as_changed(request, content, pending.asked.request)
    return pending, request


def _as_changed(request: Any, content: bytes, wanted: dict[str, Any]) -> Any:
    """Return the request with the body and path that the session wants."""
    body = wanted["body"]
    before = decode_body(content, request.headers.get("content-type", ""))
    path = public_url(str(wanted["url"])).partition("://")[2].partition("/")[2].partition("?")[0]
    if body == before and request.url.path.lstrip("/") == path:
        return request
    headers = [
        (name, value) for name, value in request.headers.multi_items() if name.lower() != "content-length"
    ]
    return type(request)(
        request.method,
        request.url.copy_with(path=f"/{path}"),
        headers=headers,
        content=orjson.dumps(body),
        extensions=request.extensions,
    )


class Answer:
    """The pieces of an answer as they come; records them at the end."""

    def __init__(self, library: ModuleType, pending: PendingCall, response: Any) -> None:
        self._library = library
        self._pending = pending
        self._status = response.status_code
        self._headers = response.headers
        self._pieces: list[tuple[int, bytes]] = []
        self._is_done = False

    def add(self, piece: bytes) -> None:
        """Take a piece as it came."""
        self._pieces.append((self._pending.elapsed_us, piece))

    def end(self, *, is_cut: bool) -> None:
        """Record what came; ``is_cut``: there would have been more."""
        if self._is_done:
            return
        self._is_done = True
        self._pending.finish(
            None, status=self._status, headers=self._headers, is_cut=is_cut, decode=self._decode
        )

    def fail(self, error: BaseException) -> None:
        """Record that reading failed."""
        if not self._is_done:
            self._is_done = True
            self._pending.fail(error)

    def _decode(self) -> tuple[Any, Sequence[Piece]]:
        """The answer without its content encoding, and (of a stream) the pieces that the client saw."""
        times: list[int] = []

        def raw() -> Iterator[bytes]:
            for offset_us, piece in self._pieces:
                times.append(offset_us)
                yield piece

        response = self._library.Response(self._status, headers=self._headers, content=raw())
        data = bytearray()
        pieces: list[Piece] = []
        try:
            for piece in response.iter_bytes():
                data += piece
                pieces.append(Piece(times[-1], len(piece)))
        except self._library.HTTPError:
            pass  # it was cut in the middle of a compressed block
        is_stream = self._headers.get("content-type", "").startswith(_STREAMS)
        try:
            return data.decode(), pieces if is_stream else ()
        except UnicodeDecodeError:
            return bytes(data), pieces if is_stream else ()


class _RecordedStream:
    """An answer's stream that is recorded while it is read."""

    def __init__(self, inner: Any, answer: Answer) -> None:
        self._inner = inner
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._inner:
                self._answer.add(piece)
                yield piece
        except Exception as error:
            self._answer.fail(error)
            raise
        self._answer.end(is_cut=False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                self._answer.add(piece)
                yield piece
        except Exception as error:
            self._answer.fail(error)
            raise
        self._answer.end(is_cut=False)

    def close(self) -> None:
        self._answer.end(is_cut=True)
        self._inner.close()

    async def aclose(self) -> None:
        self._answer.end(is_cut=True)
        await self._inner.aclose()


class _ReplayedStream:
    """The pieces of a recorded answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._pieces = pieces_of(exchange)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class _Transport:
    """Captures what passes through another transport. ``library`` is httpx or httpx2."""

    library: ModuleType
    recorded_stream: Callable[[Any, Answer], Any]
    replayed_stream: Callable[[Exchange], Any]

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def _replayed(self, pending: PendingCall, exchange: Exchange, request: Any) -> Any:
        if exchange.error is not None:
            kind = getattr(self.library, exchange.error.type.rpartition(".")[2], None)
            raised = (kind if isinstance(kind, type) else self.library.ConnectError)(exchange.error.message)
            raised.request = request
            pending.fail(raised)
            raise raised
        pending.finish(
            exchange.answer,
            status=exchange.status,
            headers=exchange.headers,
            pieces=exchange.pieces,
            is_cut=exchange.is_cut,
        )
        headers = {name: value for name, value in exchange.headers.items() if name not in _NOT_REPLAYED}
        stream = type(self).replayed_stream(exchange)
        return self.library.Response(exchange.status or 200, headers=headers, stream=stream, request=request)

    def _received(self, pending: PendingCall, response: Any) -> Any:
        if pending.is_recorded:
            answer = Answer(self.library, pending, response)
            if (
                response.is_stream_consumed
            ):  # a cache or mock had all of it, and nobody reads the stream again
                answer.add(b"".join(response.stream))
                answer.end(is_cut=False)
                return response
            response.stream = type(self).recorded_stream(response.stream, answer)
        return response


class _SyncTransport(_Transport):
    def handle_request(self, request: Any) -> Any:
        if not _is_wanted(request):
            check_allowed(request)
            return self._inner.handle_request(request)
        pending, request = _begin(request, request.read())
        if pending.found is not None:
            return self._replayed(pending, pending.found, request)
        try:
            response = self._inner.handle_request(request)
        except BaseException as error:
            pending.fail(error)
            raise
        return self._received(pending, response)


class _AsyncTransport(_Transport):
    async def handle_async_request(self, request: Any) -> Any:
        if not _is_wanted(request):
            check_allowed(request)
            return await self._inner.handle_async_request(request)
        pending, request = _begin(request, await request.aread())
        if pending.found is not None:
            return self._replayed(pending, pending.found, request)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as error:
            pending.fail(error)
            raise
        return self._received(pending, response)


@functools.cache
def _transports(library: ModuleType) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the transports for one of the two libraries, which want subclasses of their own classes."""
    streams = (library.SyncByteStream, library.AsyncByteStream)
    own = {
        "library": library,
        "recorded_stream": type("RecordedStream", (_RecordedStream, *streams), {}),
        "replayed_stream": type("ReplayedStream", (_ReplayedStream, *streams), {}),
    }
    return (
        type("SyncTransport", (_SyncTransport, library.BaseTransport), own),
        type("AsyncTransport", (_AsyncTransport, library.AsyncBaseTransport), own),
    )


def pieces_of(exchange: Exchange) -> list[bytes]:
    """Return a recorded answer in the pieces in which it came."""
    answer = exchange.answer
    data = answer.encode() if isinstance(answer, str) else answer or b""
    if not exchange.pieces:
        return [data]
    pieces: list[bytes] = []
    position = 0
    for piece in exchange.pieces:
        pieces.append(data[position : position + piece.length])
        position += piece.length
    return pieces


# Models and tools that are functions


class _Interceptor:
    """What our loop, ``@store.tool`` and the frameworks' tools call; see `treering.runs.exchanges`."""

    def around_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Record what a model's function returns, unless it makes a request that is recorded itself."""
        name = getattr(function, "__name__", type(function).__name__)

        @functools.wraps(function)
        def call(messages: Any, tools: Any) -> Any:
            made = _ModelCall.begin(name, messages, tools)
            if made is None:
                return function(messages, tools)
            if made.pending.found is not None:
                return _replay_model(made.pending)
            chosen, given = made.chosen(function, messages)
            with made:
                reply = chosen(given, tools)
            return made.finish(reply)

        @functools.wraps(function)
        async def call_async(messages: Any, tools: Any) -> Any:
            made = _ModelCall.begin(name, messages, tools)
            if made is None:
                return await function(messages, tools)
            if made.pending.found is not None:
                return _replay_model(made.pending)
            chosen, given = made.chosen(function, messages)
            with made:
                reply = chosen(given, tools)
                if inspect.isawaitable(reply):
                    reply = await reply
            return made.finish(reply)

        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        return call_async if is_async else call

    def around_tool(
        self, name: str, function: Callable[..., Any], arguments: Callable[..., Any], *, once: bool = False
    ) -> Callable[..., Any]:
        """Record what a tool returns or raises."""

        def begin(given: tuple[Any, ...], options: dict[str, Any]) -> PendingCall:
            request = {"arguments": plain(arguments(*given, **options))}
            return PendingCall(Asked(kind="tool", name=name, request=request, once=once))

        @functools.wraps(function)
        def call(*given: Any, **options: Any) -> Any:
            pending = begin(given, options)
            if pending.found is not None:
                return replay_call(pending)
            try:
                value = function(*given, **options)
            except Exception as error:
                pending.fail(error)
                raise
            pending.finish(plain(value))
            return value

        @functools.wraps(function)
        async def call_async(*given: Any, **options: Any) -> Any:
            pending = begin(given, options)
            if pending.found is not None:
                return replay_call(pending)
            try:
                value = await function(*given, **options)
            except Exception as error:
                await asyncio.to_thread(pending.fail, error)
                raise
            await asyncio.to_thread(pending.finish, plain(value))
            return value

        return call_async if inspect.iscoroutinefunction(function) else call


_interceptor: Final = _Interceptor()


class _ModelCall:
    """A call of a model's function, in whose ``with`` statement the function runs."""

    def __init__(self, pending: PendingCall) -> None:
        self.pending = pending
        self._nested = _Nested()
        self._token: Token[_Nested | None] | None = None

    @classmethod
    def begin(cls, name: str, messages: Any, tools: Any) -> _ModelCall | None:
        """Begin a call; ``None`` if a replay answers the requests that the function makes."""
        session = state.session
        if session is not None and not session.knows("model") and session.knows("http"):
            return None
        request = {
            "messages": plain(messages),
            "tools": [_described(each) for each in tools],
        }
        return cls(PendingCall(Asked(kind="model", name=name, request=request)))

    def chosen(self, function: Callable[..., Any], messages: Any) -> tuple[Callable[..., Any], Any]:
        """Return the function to ask, and what to give it, which a rerun may have changed."""
        if state.session is None:
            return function, messages
        chosen, given = state.session.model(function, messages)
        if given is not messages:
            self.pending.asked.request = {**self.pending.asked.request, "messages": plain(given)}
        return chosen, given

    def finish(self, reply: Any) -> Any:
        """Record the reply, which may be a stream, and return it."""
        if hasattr(reply, "__aiter__"):
            return self._pieces_async(reply)
        if isinstance(reply, Iterator):
            return self._pieces(cast("Iterator[Any]", reply))
        self._end(plain(reply))
        return reply

    def _end(self, answer: Any) -> None:
        if not self._nested.is_recorded:
            self.pending.finish(answer)

    def _pieces(self, reply: Iterator[Any]) -> Iterator[Any]:
        pieces: list[Any] = []
        try:
            while True:
                try:
                    with self:
                        piece = next(reply)
                except StopIteration:
                    break
                pieces.append(plain(piece))
                yield piece
        finally:
            close = getattr(reply, "close", None)
            if close is not None:
                close()
            self._end({"pieces": pieces})

    async def _pieces_async(self, reply: Any) -> AsyncIterator[Any]:
        pieces: list[Any] = []
        stream = aiter(reply)
        try:
            while True:
                try:
                    with self:
                        piece = await anext(stream)
                except StopAsyncIteration:
                    break
                pieces.append(plain(piece))
                yield piece
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            self._end({"pieces": pieces})

    def __enter__(self) -> None:
        self._token = in_call.set(self._nested)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            in_call.reset(self._token)
        is_end = isinstance(error, (StopIteration, StopAsyncIteration))
        if isinstance(error, Exception) and not is_end and not self._nested.is_recorded:
            self._nested.is_recorded = True
            self.pending.fail(error)


def _described(tool: Any) -> Any:
    """Return what a model is told about a tool: its name, description and parameters."""
    describe = getattr(tool, "as_openai", None)
    if not callable(describe):
        return getattr(tool, "name", str(tool))
    return plain(cast("dict[str, Any]", describe())["function"])


def _replay_model(pending: PendingCall) -> Any:
    answer: Any = replay_call(pending)
    if not isinstance(answer, dict) or "pieces" not in answer or "role" in answer:
        return cast("Any", answer)
    return iter(cast("list[Any]", answer["pieces"]))


def replay_call(pending: PendingCall) -> Any:
    """Return what a recorded call returned, or raise what it raised."""
    exchange = pending.found
    assert exchange is not None  # noqa: S101 - for the type checker
    if exchange.error is not None:
        error = rebuild_error(exchange.error)
        pending.fail(error)
        raise error
    pending.finish(exchange.answer)
    return exchange.answer


def rebuild_error(error: CallError) -> Exception:
    """Return an exception of the recorded class, if it is loaded and takes a message; else a RuntimeError."""
    module, _, name = error.type.rpartition(".")
    kind = getattr(sys.modules.get(module), name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(error.message)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {error.message}")


def plain(value: Any) -> Any:
    """Return a copy of a value that does not change any more: what a store would give back."""
    if value is None or type(value) in (str, int, bool):
        return value
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        value = dump(mode="json", exclude_none=True)
    return decode(encode_any(value))


# A run from its beginning


class RecordedRun:
    """A run with everything that is needed to make it again; `record` returns it for a ``with`` statement."""

    def __init__(
        self,
        opened: Opened,
        *,
        workspace: Path | None,
        entry: Any,
        arguments: Sequence[Any] | Mapping[str, Any],
        make: Callable[[dict[str, Any]], Run],
        thread: Thread | None,
        instrumentation: Callable[[], Instrumentation],
        nature: Nature | None,
        on_end: Callable[[Run], None] | None = None,
    ) -> None:
        self._opened = opened
        self._nature = nature
        self._on_end = on_end
        self._undo: list[Callable[[], None]] = []
        self._token: Token[RunNode | None] | None = None
        self.status = OK
        """What the run ends with, unless an error ends it."""
        self._workspace = workspace
        self._entry = entry
        self._arguments = arguments
        self._make = make
        self._thread = thread
        self._instrument = instrumentation
        self._instrumentation: Instrumentation | None = None
        self._run: Run | None = None

    def _prepare(self) -> Run:
        store = self._opened.store
        start: dict[str, Any] = {"at_us": store.clock.now_us()}
        if self._workspace is not None:
            self._workspace.mkdir(parents=True, exist_ok=True)
            start["workspace"] = str(self._workspace)
            here = Path.cwd()
            if here.is_relative_to(self._workspace):
                start["cwd"] = str(here.relative_to(self._workspace))
            elif self._workspace.is_relative_to(here) and self._entry != COMMAND:
                start["relative"] = self._workspace.relative_to(here).as_posix()
            start["snapshot"] = store.workspace.snapshot(self._workspace, note="before the run")
        head = None if self._thread is None else self._thread.head
        if head is not None:
            start["checkpoint"] = head.id
        if self._entry is not None:
            name = self._entry if isinstance(self._entry, str) else entry_name(self._entry)
            if name is not None:
                start["entry"] = name
            start["arguments"] = _with_whole_names(
                plain(_with_paths_as_text(self._arguments)), start.get("relative"), self._workspace
            )
        self._run = run = self._make({START: start})
        if self._entry is not None and not isinstance(self._entry, str):
            state.entries[run.id] = self._entry
            if len(state.entries) > _MAX_ENTRIES:
                del state.entries[next(iter(state.entries))]
        if self._workspace is not None:
            state.folders[run.id] = (store, self._workspace)
        self._instrumentation = self._instrument()
        return run

    def _begin(self, run: Run) -> Run:
        state.node = run
        self._token = recorded_run.set(run)
        if self._nature is not None:
            begin_nature(self._nature, self._undo)
        return run.__enter__()

    def _stop_drawing(self) -> None:
        while self._undo:
            self._undo.pop()()
        if self._token is not None:
            recorded_run.reset(self._token)
            self._token = None

    def _end(self) -> None:
        """Record what the run ends with: its files, and the checkpoint of its thread."""
        run, store, end = self._run, self._opened.store, dict[str, Any]()
        if run is None:
            return
        end["at_us"] = store.clock.now_us()
        if self._nature is not None and (rest := self._nature.take()):
            record_draws(run.context, rest)
        try:
            if self._workspace is not None:
                end["snapshot"] = store.workspace.snapshot(self._workspace, note="after the run")
            head = None if self._thread is None else self._thread.head
            if head is not None:
                end["checkpoint"] = head.id
        except Exception as error:  # noqa: BLE001 - the agent must not fail because of it
            warnings.warn(f"what run {run.id!r} ended with could not be saved: {error}", stacklevel=4)
        run.note(**{END: end})
        if self._on_end is not None:
            self._on_end(run)

    def _finish(self) -> None:
        if self._run is not None:
            state.folders.pop(self._run.id, None)
        if self._instrumentation is not None:
            self._instrumentation.close()
        self._opened.store.flush()
        self._opened.close()

    def __enter__(self) -> Run:
        return self._begin(self._prepare())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            self._stop_drawing()
            self._end()
            if error is None:
                self._run.end(status=self.status)
            self._run.__exit__(kind, error, trace)
        state.node = None
        self._finish()

    async def __aenter__(self) -> Run:
        return self._begin(await asyncio.to_thread(self._prepare))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            self._stop_drawing()
            await asyncio.to_thread(self._end)
            if error is None:
                self._run.end(status=self.status)
            self._run.__exit__(kind, error, trace)
        state.node = None
        await asyncio.to_thread(self._finish)


COMMAND: Final = "command"
"""The entry of a run that was a command, which runs in its folder (`treering.replays.commands`)."""
START: Final = "start"
"""In a run's metadata: what it began with (checkpoint, snapshot, entry point)."""
END: Final = "end"
"""In a run's metadata: what it ended with (checkpoint, snapshot)."""


def record(
    store_or_url: StoreOrUrl | None = None,
    *,
    agent: str | None = None,
    thread: Thread | str | None = None,
    namespace: str | None = None,
    workspace: str | Path | None = None,
    entry: Callable[..., Any] | str | Any = None,
    arguments: Sequence[Any] | Mapping[str, Any] = (),
    id: str | None = None,
    meta: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    spans: bool = True,
    also: Sequence[str] = (),
    draws: bool = True,
) -> RecordedRun:
    """Record a run so that it can be made again: ``with treering.record(store, agent="coder") as run: ...``.

    Like `Store.run`, and all calls of models and tools in it are kept whole. Also usable with ``async with``.

    Args:
        workspace: the folder that the agent works in; its files are saved before the run and after each
            tool call.
        entry: what the agent begins with: a function, an agent of ours, a LangGraph graph, or the name of
            one, ``module:name``, with its ``arguments``; `treering.rerun` calls it again.
        spans: record a span for each model call, unless an adapter or our loop does so.
        also: the beginnings of further addresses whose requests are recorded.
        draws: keep what the clock, randomness and ids give to the agent's own code, so that a replay can
            give it again (`treering.replays.nature`).
    """
    opened = Opened(store_or_url)
    store = opened.store
    if isinstance(thread, str):
        thread = store.thread(thread, namespace)
    return RecordedRun(
        opened,
        workspace=None if workspace is None else Path(workspace).expanduser().absolute(),
        entry=entry,
        arguments=arguments,
        thread=thread,
        make=lambda start: store.run(
            agent, thread=thread, namespace=namespace, id=id, meta={**(meta or {}), **start}, tags=tags
        ),
        instrumentation=lambda: Instrumentation(None, spans=spans, tools=True, also=also),
        nature=Nature() if draws else None,
    )


def _with_paths_as_text(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, Mapping):
        return {name: _with_paths_as_text(each) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_with_paths_as_text(each) for each in cast("Sequence[Any]", value)]
    return value


def _with_whole_names(value: Any, relative: str | None, folder: Path | None) -> Any:
    """Return arguments in which relative names of a folder are whole, as a fork and a test replace them."""
    if relative is None or folder is None:
        return value
    replace = wire.replacer({relative: str(folder)})
    return wire.translate(
        value, lambda text: str(folder) if text in (relative, f"./{relative}") else replace(text)
    )


def entry_name(function: Any) -> str | None:
    """Return ``module:function``, by which another process finds a function; ``None`` if it cannot."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or "<" in name:
        return None
    file = getattr(sys.modules.get(module), "__file__", None)
    if module != "__main__":
        return f"{module}:{name}"
    return f"{os.fspath(Path(file).absolute())}:{name}" if file else None
