"""The gateway: the engine contract over HTTP, for ``treering.open("https://...")``.

One route for each method of `engines.remote.protocol`, behind the same gate as every other one. Quick
methods run in a worker thread and answer at once. Slow ones (a sweep, a check) have workers of their own,
and an answer that begins after a few seconds and ticks until there is news, so that no proxy takes them for
dead.
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
from treering.errors import InvalidInput, TimedOut, TreeringError, Unsupported
from treering.server.endpoints import Call, Endpoint, endpoint
from treering.server.gateway import AT_ONCE, IN_PIECES, Site, Waits
from treering.server.http import problem_of, read_body

SLOW_AT_ONCE: Final = 4
"""Slow methods that run for one caller at a time; further ones wait, and tick."""
LARGE_AT_ONCE: Final = 4
LARGE_BYTES: Final = 1024 * 1024
"""Requests from this size on take turns, a few of each caller's, so that they do not fill the memory."""
BODY_SECONDS: Final = 300.0
"""A request that is not there after this time is given up."""
_STEP_SECONDS: Final = 0.25

_HEADERS: Final = {protocol.HEADER: str(protocol.VERSION), "cache-control": "no-store"}
_UNBUFFERED: Final = {"x-accel-buffering": "no"}  # a proxy that collects ticks would defeat them
_END: Final = protocol.frame(protocol.END)
_encoder: Final = msgspec.msgpack.Encoder()
_contents: Final = msgspec.msgpack.Decoder(Content)


class GatewayQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace inside of the key's project; ``default`` is the project itself."""

    namespace: str = protocol.DEFAULT_NAMESPACE


class _Desk:
    """What all calls of one server share."""

    def __init__(self, engine: Engine) -> None:
        self.waits = Waits(engine)
        self._large: dict[str, asyncio.Semaphore] = {}
        self._slow: dict[str, CapacityLimiter] = {}

    def turn(self, caller: str) -> asyncio.Semaphore:
        """What a caller's large requests wait for; another one's are not held up by them."""
        return self._large.setdefault(caller, asyncio.Semaphore(LARGE_AT_ONCE))

    def workers(self, caller: str) -> CapacityLimiter:
        """What a caller's slow methods wait for; another one's are not held up by them."""
        return self._slow.setdefault(caller, CapacityLimiter(SLOW_AT_ONCE))


def _made(method: Method) -> Endpoint:
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(method.args)

    async def handler(call: Call[GatewayQuery, None]) -> Response:
        _check_protocol(call.request)
        desk = _desk(call)
        site = Site(
            engine=call.store.engine,
            access=call.access,
            namespace=call.query.namespace,
            max_request_bytes=_limit(call.request),
        )
        _ = site.space  # refuses the namespace before the body is read
        told = call.request.headers.get("content-length", "")
        if told.isdigit() and int(told) >= LARGE_BYTES:
            async with desk.turn(call.access.name):
                return await _answer(call, site, desk)
        return await _answer(call, site, desk)

    async def _answer(call: Call[GatewayQuery, None], site: Site, desk: _Desk) -> Response:
        body = await _body(call.request, site.max_request_bytes)
        if method.name == "wait":
            return await _wait(desk, site, _arguments(method, decoder, body, site.max_request_bytes))

        def messages() -> Iterator[bytes]:
            args = _arguments(method, decoder, body, site.max_request_bytes)
            if method.name in IN_PIECES:
                return map(_encoder.encode, IN_PIECES[method.name](site, args))
            return iter((_encoder.encode(AT_ONCE[method.name](site, args)),))

        if method.slow:
            return await _slowly(messages, desk.workers(call.access.name))
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
    told = request.headers.get(protocol.HEADER)
    if told is None:
        raise InvalidInput(
            f"this route is for treering.open('https://...'), which sends the header {protocol.HEADER}"
        )
    if told != str(protocol.VERSION):
        raise Unsupported(
            f"this server speaks version {protocol.VERSION} of the gateway's protocol, the client version "
            f"{told[:20]}; upgrade the older one of them"
        )


async def _body(request: Request, limit: int) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await read_body(request, limit=limit)
    except TimeoutError:
        raise TimedOut(
            f"the request did not arrive within {BODY_SECONDS:.0f} seconds; send it again"
        ) from None


def _limit(request: Request) -> int:
    return min(protocol.MAX_REQUEST_BYTES, request.app.state.treering.settings.max_body)


def _desk(call: Call[GatewayQuery, None]) -> _Desk:
    shared = call.request.app.state
    if not hasattr(shared, "gateway"):
        shared.gateway = _Desk(call.store.engine)
    return shared.gateway


def _arguments(method: Method, decoder: msgspec.msgpack.Decoder[Any], body: bytes, limit: int) -> Any:
    """The arguments in a request; of `stage`, the contents behind them."""
    try:
        found = _within(body, limit)
        args = decoder.decode(found[0]) if found else None
        if args is None or (len(found) > 1) > (method.name == "stage"):
            raise InvalidInput(f"a request of {method.name} has {len(found)} messages; nothing was written")
        return [_contents.decode(data) for data in found[1:]] if method.name == "stage" else args
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"a request of {method.name} cannot be read ({error}); upgrade the older side"
        ) from None


def _within(body: bytes, limit: int) -> list[bytes]:
    """The messages of a request, which together unfold to no more than ``limit`` bytes."""
    found: list[bytes] = []
    left = limit
    source = protocol.reader(body)
    try:
        while frame := next(protocol.frames(source, limit=left), None):
            tag, data = frame
            if tag != protocol.MESSAGE:
                raise InvalidInput(
                    f"a request holds a frame with tag {tag}; only messages are sent to a server"
                )
            found.append(data)
            left -= len(data)
    except protocol.CutOff:
        raise InvalidInput("the request is cut off in the middle of a frame; send it again") from None
    return found


async def _wait(desk: _Desk, site: Site, args: protocol.Wait) -> Response:
    seconds = min(args.seconds, protocol.MAX_WAIT_SECONDS) if args.seconds > 0 else 0.0  # NaN is not above 0
    last_seq = await desk.waits.wait(site.space, args.after_seq, seconds=seconds)
    return _response(_framed(iter((_encoder.encode(last_seq),))))


async def _slowly(messages: Callable[[], Iterator[bytes]], limiter: CapacityLimiter) -> Response:
    """An answer that is plain when it is there within some seconds, and otherwise ticks until it is."""
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
            running.add_done_callback(_forget)

    return StreamingResponse(stream(), media_type=protocol.MEDIA_TYPE, headers=_HEADERS | _UNBUFFERED)


def _forget(task: asyncio.Task[bytes]) -> None:
    """Nobody is left to hear how it ended."""
    if not task.cancelled():
        task.exception()


class _Steps:
    """Messages of a slow method, taken some at a time."""

    def __init__(self, messages: Callable[[], Iterator[bytes]]) -> None:
        self._begin = messages
        self._messages: Iterator[bytes] | None = None
        self.is_finished = False

    def take(self) -> bytes:
        """The frames of what comes within a moment, or of the one message that takes longer."""
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


ENDPOINTS: Final = tuple(map(_made, METHODS.values()))
