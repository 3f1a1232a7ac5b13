"""The gateway: the engine contract over HTTP, for ``treering.open("https://...")``.

There is one route for each method of `engines.remote.protocol`, with the same authentication as all others.
Fast methods run in a worker thread. Slow ones (a sweep, a check) have separate workers; after a few seconds
they start a streaming response that ticks until there is a result, so that no proxy drops the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from treering.core.content import Content
from treering.core.engine import Engine
from treering.engines.remote import protocol
from treering.engines.remote.protocol import METHODS, Method
from treering.errors import InvalidInput, TreeringError, Unsupported
from treering.server.endpoints import Call, Endpoint, endpoint
from treering.server.gateway import SINGLE, STREAMED, CommitWaiters, GatewayTarget
from treering.server.http import LARGE_BYTES, problem_of, read_body

SLOW_AT_ONCE: Final = 4
"""Slow methods that run concurrently for one caller; further ones wait, ticking."""
_STEP_SECONDS: Final = 0.25

_HEADERS: Final = {protocol.HEADER: str(protocol.VERSION), "cache-control": "no-store"}
_UNBUFFERED: Final = {"x-accel-buffering": "no"}  # a proxy that buffers ticks would defeat them
_END: Final = protocol.frame(protocol.END)
_encoder: Final = msgspec.msgpack.Encoder()
_contents: Final = msgspec.msgpack.Decoder(Content)


class GatewayQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace in the key's project; ``default`` is the project itself."""

    namespace: str = protocol.DEFAULT_NAMESPACE


class _GatewayState:
    """State shared by all calls of a server."""

    def __init__(self, engine: Engine) -> None:
        self.waits = CommitWaiters(engine)
        self._slow: dict[str, CapacityLimiter] = {}

    def workers(self, caller: str) -> CapacityLimiter:
        """Return the limit of slow methods, separate for each caller."""
        return self._slow.setdefault(caller, CapacityLimiter(SLOW_AT_ONCE))


def _endpoint(method: Method) -> Endpoint:
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(method.args)

    async def handler(call: Call[GatewayQuery, None]) -> Response:
        _check_protocol(call.request)
        state = _state(call)
        target = GatewayTarget(
            engine=call.store.engine,
            access=call.access,
            namespace=call.query.namespace,
            max_request_bytes=_limit(call.request),
        )
        _ = target.space  # rejects the namespace before the body is read
        body = await read_body(call.request, limit=target.max_request_bytes)
        if protocol.inflated_size(body) >= LARGE_BYTES:
            await call.request.state.turn.process()
        if method.name == "wait":
            return await _wait(state, target, _arguments(method, decoder, body, target.max_request_bytes))

        def messages() -> Iterator[bytes]:
            args = _arguments(method, decoder, body, target.max_request_bytes)
            if method.name in STREAMED:
                return map(_encoder.encode, STREAMED[method.name](target, args))
            return iter((_encoder.encode(SINGLE[method.name](target, args)),))

        if method.slow or method.name in STREAMED:
            return await _stream(messages, state.workers(call.access.name) if method.slow else None)
        return _response(await to_thread.run_sync(lambda: _framed(messages())))

    handler.__name__ = f"gateway_{method.name}"
    handler.__doc__ = (
        f"`Engine.{method.name}` for remote stores (treering.open).\n\n"
        "Frames of MessagePack, not for hand-written clients; see docs/decisions/0006-gateway-protocol.md."
    )
    return endpoint("POST", f"/gateway/{method.name}", tag="gateway", scope=method.scope, raw_body=True)(
        handler
    )


def _check_protocol(request: Request) -> None:
    version = request.headers.get(protocol.HEADER)
    if version is None:
        raise InvalidInput(
            f"this route is for treering.open('https://...'), which sends the header {protocol.HEADER}"
        )
    if version != str(protocol.VERSION):
        raise Unsupported(
            f"this server uses version {protocol.VERSION} of the gateway protocol, the client version "
            f"{version[:20]}; upgrade the older one"
        )


def _limit(request: Request) -> int:
    return min(protocol.MAX_REQUEST_BYTES, request.app.state.treering.settings.max_body)


def _state(call: Call[GatewayQuery, None]) -> _GatewayState:
    app_state = call.request.app.state
    if not hasattr(app_state, "gateway"):
        app_state.gateway = _GatewayState(call.store.engine)
    return app_state.gateway


def _arguments(method: Method, decoder: msgspec.msgpack.Decoder[Any], body: bytes, limit: int) -> Any:
    """Return the arguments of a request; for `stage`, the contents after them."""
    try:
        found = _messages(body, limit, most=protocol.MAX_NAMES if method.name == "stage" else 1)
        for message in found:
            protocol.check_values(message)
        args = decoder.decode(found[0]) if found else None
        if args is None:
            raise InvalidInput(f"a {method.name} request has no message; nothing was written")
        return [_contents.decode(data) for data in found[1:]] if method.name == "stage" else args
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"cannot decode a {method.name} request ({error}); upgrade the older side"
        ) from None


def _messages(body: bytes, limit: int, *, most: int) -> list[bytes]:
    """Return the messages of a request: at most so many, of ``limit`` decompressed bytes in total."""
    found: list[bytes] = []
    left = limit
    source = protocol.reader(body)
    try:
        while frame := next(protocol.frames(source, limit=left), None):
            tag, data = frame
            if tag != protocol.MESSAGE:
                raise InvalidInput(f"a request contains a frame with tag {tag}; only messages are allowed")
            if len(found) == most:
                raise InvalidInput(f"the request has more than {most} messages; nothing was written")
            found.append(data)
            left -= len(data)
    except protocol.Truncated:
        raise InvalidInput("the request is truncated; send it again") from None
    return found


async def _wait(state: _GatewayState, target: GatewayTarget, args: protocol.WaitRequest) -> Response:
    seconds = min(args.seconds, protocol.MAX_WAIT_SECONDS) if args.seconds > 0 else 0.0  # NaN counts as 0
    last_seq = await state.waits.wait(target.space, args.after_seq, seconds=seconds)
    return _response(_framed(iter((_encoder.encode(last_seq),))))


async def _stream(messages: Callable[[], Iterator[bytes]], limiter: CapacityLimiter | None) -> Response:
    """Respond normally if the method finishes soon with little to send.

    Otherwise stream a few messages after the other, as the client takes them, and ticks in between.
    """
    steps = _Steps(messages)
    step = asyncio.create_task(to_thread.run_sync(steps.take, limiter=limiter))
    await asyncio.wait({step}, timeout=protocol.TICK_SECONDS)
    if step.done() and steps.is_finished:
        return _response(step.result())

    async def stream() -> AsyncIterator[bytes]:
        running = step
        try:
            while True:
                await asyncio.wait({running}, timeout=protocol.TICK_SECONDS)
                if not running.done():
                    yield protocol.frame(protocol.TICK)
                    continue
                yield running.result()
                if steps.is_finished:
                    return
                running = asyncio.create_task(to_thread.run_sync(steps.take, limiter=limiter))
        except TreeringError as error:
            yield protocol.frame(protocol.PROBLEM, msgspec.json.encode(problem_of(error)))
        finally:
            running.add_done_callback(_ignore_result)

    return StreamingResponse(stream(), media_type=protocol.MEDIA_TYPE, headers=_HEADERS | _UNBUFFERED)


def _ignore_result(task: asyncio.Task[bytes]) -> None:
    """Retrieve the exception, which nobody else will."""
    if not task.cancelled():
        task.exception()


class _Steps:
    """The messages of a streamed method, taken in groups."""

    def __init__(self, messages: Callable[[], Iterator[bytes]]) -> None:
        self._begin = messages
        self._messages: Iterator[bytes] | None = None
        self.is_finished = False

    def take(self) -> bytes:
        """Return the frames of all messages that arrive soon, or of the next one if it takes longer."""
        frames: list[bytes] = []
        size = 0
        until = time.monotonic() + _STEP_SECONDS
        try:
            if self._messages is None:
                self._messages = self._begin()
            for message in self._messages:
                frames.append(protocol.frame(protocol.MESSAGE, message))
                size += len(message)
                if time.monotonic() > until or size >= protocol.PIECE_BYTES:
                    return b"".join(frames)
        except BaseException:
            self.is_finished = True
            raise
        self.is_finished = True
        return b"".join((*frames, _END))


def _framed(messages: Iterator[bytes]) -> bytes:
    return b"".join((*(protocol.frame(protocol.MESSAGE, message) for message in messages), _END))


def _response(body: bytes) -> Response:
    return Response(body, media_type=protocol.MEDIA_TYPE, headers=_HEADERS)


ENDPOINTS: Final = tuple(map(_endpoint, METHODS.values()))
