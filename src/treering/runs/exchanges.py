"""Exchanges: each request of a run and its answer, kept whole, so that the run can be made again.

An exchange is a request over HTTP to a model, a call of a model's function, or a tool call. It is one row of
the journal, ``exchange.<kind>``, whose body is the answer and whose first link is the request. A streamed
answer is kept as one text, with the time and length of each piece beside it.

A request to a model repeats the whole conversation. So each list in a request (messages, tools) is kept as
the prefix of a stored list, and a request that continues an earlier one appends only what is new; a longer
text (a system prompt) is a list of one item. **Invariant:** a run's requests take as much space as what is
new in each, and reading one gives what was sent, except for the order of its keys.

Requests are compared, cut and encoded in the recorder's thread. Credentials never come here: who captures a
request passes on only the headers that `public_headers` and the address that `public_url` return.

`interceptor` is where recording and replaying (`treering.replays`) get hold of the calls of our own loop and
decorators, which know nothing else of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from treering.core.batch import Event
from treering.core.clock import to_datetime
from treering.core.content import Address, Content, list_address
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import new_id
from treering.core.query import EventQuery, each_record, record_pages
from treering.runs.span import SpanWriter, encode_any

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.runs.span import RunContext

F = TypeVar("F", bound=Callable[..., Any])

EXCHANGE: Final = "exchange."
"""Prefix of the kind of an exchange's row."""
ExchangeKind = Literal["http", "model", "tool"]
EXCHANGE_KINDS: Final = tuple(EXCHANGE + kind for kind in ("http", "model", "tool"))
DRAWS: Final = EXCHANGE + "draws"
"""The kind of a row with what the clock, randomness and ids gave after the last call of a run."""

_LONG_TEXT: Final = 512
_LINES: Final = 8
"""How many lists are remembered for each key of a request; parallel agents each have their own."""
_MAX_DEPTH: Final = 16
"""How many lists a list may continue; one that would be deeper holds all its items itself."""
_PAGE: Final = 200
_MAX_ERROR: Final = 2000

_HEADERS: Final = frozenset(
    {
        "accept",
        "anthropic-beta",
        "anthropic-version",
        "content-type",
        "openai-beta",
        "openai-processing-ms",
        "openai-version",
        "request-id",
        "retry-after",
        "x-request-id",
    }
)
_SECRET_PARAMETER: Final = re.compile("key|token|secret|sig|password|credential|auth", re.IGNORECASE)


class Piece(NamedTuple):
    """A piece of a streamed answer: when it came, counted from the request, and how many bytes it has."""

    offset_us: int
    length: int


class CallError(msgspec.Struct, frozen=True):
    """The error of a call that had no answer."""

    type: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> CallError:
        """Describe an exception by its class and message."""
        kind = type(error)
        return cls(f"{kind.__module__}.{kind.__qualname__}", str(error)[:_MAX_ERROR])


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its answer.

    ==========  ==================================================  ======================================
    kind        request                                             answer
    ==========  ==================================================  ======================================
    ``http``    ``method``, ``url``, ``headers``, ``body``          ``str`` or ``bytes``; ``status``, headers
    ``model``   ``messages`` and the described ``tools``            the reply, or the ``pieces`` of a stream
    ``tool``    ``arguments``                                       what the tool returned
    ==========  ==================================================  ======================================
    """

    kind: ExchangeKind
    name: str
    request: dict[str, Any]
    answer: Any = None
    status: int | None = None
    headers: dict[str, str] = {}
    pieces: tuple[Piece, ...] = ()
    error: CallError | None = None
    started_at_us: int = 0
    duration_us: int = 0
    model: str | None = None
    agent: str | None = None
    snapshot: str | None = None
    """The files of the workspace after the call."""
    is_cut: bool = False
    """The answer was not read to its end."""
    is_replayed: bool = False
    """The answer came from a recording."""
    draws: dict[str, list[Any]] = {}
    """What the clock, randomness and ids gave before the call, by source (`treering.replays.nature`)."""
    id: str = msgspec.field(default_factory=new_id)
    span: str | None = None
    step: int = 0
    """Its position among the exchanges of the run, from 1; 0 if it was not read from a store."""

    @property
    def started_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.started_at_us)

    @property
    def body(self) -> Any:
        """The body of a request over HTTP."""
        return self.request.get("body")

    @property
    def text(self) -> str:
        """The answer as text; bytes that are no text are shown by their number."""
        if isinstance(self.answer, bytes):
            return f"({len(self.answer)} bytes)"
        if isinstance(self.answer, str):
            return self.answer
        return encode_any(self.answer).data.decode("utf-8", "replace")

    @property
    def path(self) -> str:
        """The path of a request over HTTP."""
        return urlsplit(str(self.request.get("url", ""))).path


def public_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that say how to read a request or answer, and none that could hold a secret."""
    return {name.lower(): value for name, value in headers.items() if name.lower() in _HEADERS}


def public_url(url: str) -> str:
    """Return an address without user, password, and parameters whose name sounds like a secret."""
    parts = urlsplit(url)
    query = [
        pair
        for pair in parse_qsl(parts.query, keep_blank_values=True)
        if not _SECRET_PARAMETER.search(pair[0])
    ]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, urlencode(query), ""))


# Writing


class _Line(NamedTuple):
    """A stored list, the digests of its items, and how many lists it continues."""

    list: str
    digests: list[bytes]
    depth: int


class _Part(NamedTuple):
    """A value of a request that is a stored list: which prefix, and what has to be appended for it."""

    key: str
    list: str
    length: int
    is_text: bool
    at: int
    items: tuple[Content, ...]
    parent: str | None


class _Plan:
    """How one exchange is written, kept for a second attempt at the same batch."""

    __slots__ = ("batch", "parts")

    def __init__(self) -> None:
        self.batch: str | None = None
        self.parts: list[_Part] = []


class ExchangeWriter:
    """Writes the exchanges of one run. Called from the recorder's thread only.

    A batch that was refused is written again in parts, each a batch of its own (see `Recorder`). Then what
    was appended before may not be there, so the exchange starts new lists.
    """

    def __init__(self, writer: SpanWriter) -> None:
        self._writer = writer
        self._lines: dict[str, list[_Line]] = {}

    def write(self, draft: Draft, exchange: Exchange, made: _Plan | None = None) -> None:
        """Write the row of an exchange. ``made`` is needed where it may be written a second time."""
        scope = self._writer.scope
        made = made or _Plan()
        if made.batch != draft.id:
            if made.batch is not None:
                self._lines.clear()
            made.batch, made.parts = draft.id, self._plan(exchange)
        plan = made.parts
        for part in plan:
            if part.items:
                draft.append(part.list, *part.items, scope=scope, at=part.at, parent=part.parent)
        request = draft.put(encode_any(self._rest(exchange, plan)), scope=scope)
        links: list[Address] = [request, *dict.fromkeys(list_address(part.list) for part in plan)]
        data: dict[str, Any] = {
            "lists": {part.key: [part.list, part.length, part.is_text] for part in plan},
            "code": exchange.status,
            "headers": exchange.headers,
            "error": None if exchange.error is None else msgspec.to_builtins(exchange.error),
            "snapshot": exchange.snapshot,
            "cut": exchange.is_cut,
            "replayed": exchange.is_replayed,
            "draws": exchange.draws,
        }
        if exchange.pieces:
            data["pieces"] = draft.put(_encode_pieces(exchange.pieces), scope=scope)
            links.append(data["pieces"])
        draft.event(
            Event(
                id=exchange.id,
                kind=EXCHANGE + exchange.kind,
                ts_us=exchange.started_at_us,
                scope=scope,
                run=self._writer.run,
                span=exchange.span,
                thread=self._writer.thread,
                agent=exchange.agent,
                name=exchange.name,
                model=exchange.model,
                status="error" if exchange.error is not None else "ok",
                duration_us=exchange.duration_us,
                data=encode_json({key: value for key, value in data.items() if value}),
                body=None if exchange.answer is None else draft.put(encode_any(exchange.answer), scope=scope),
                links=tuple(links),
            )
        )

    def _plan(self, exchange: Exchange) -> list[_Part]:
        """Say for each list in the request where its items are, and remember what will be stored."""
        parts: list[_Part] = []
        for key, value in _parts_of(exchange.request):
            values = cast("list[Any]", value) if isinstance(value, list) else [value]
            items = [encode_any(each) for each in values]
            digests = [blake2b(each.data, key=each.kind.encode(), digest_size=16).digest() for each in items]
            lines = self._lines.setdefault(key, [])
            line, common = _longest(lines, digests)
            parent: str | None = None
            if line is None or common < min(len(line.digests), len(digests)):
                depth = 0 if line is None else line.depth + 1
                parent = line.list if line is not None and common and depth < _MAX_DEPTH else None
                line = _Line(new_id(), digests[:common] if parent else [], depth if parent else 0)
                lines.insert(0, line)
                del lines[_LINES:]
            at = min(len(digests), len(line.digests))
            line.digests.extend(digests[at:])
            parts.append(
                _Part(
                    key,
                    line.list,
                    len(digests),
                    not isinstance(value, list),
                    at,
                    tuple(items[at:]),
                    parent,
                )
            )
        return parts

    def _rest(self, exchange: Exchange, plan: list[_Part]) -> dict[str, Any]:
        keys = {part.key for part in plan}
        holder = _holder(exchange.request)
        rest = {key: value for key, value in holder.items() if key not in keys}
        return rest if holder is exchange.request else {**exchange.request, "body": rest}


def record_exchange(context: RunContext, make: Callable[[], Exchange]) -> None:
    """Queue an exchange of a run to be written; ``make`` is called in the recorder's thread."""
    if context.exchanges is None:
        context.exchanges = ExchangeWriter(context.writer)
    writer = cast("ExchangeWriter", context.exchanges)
    plan = _Plan()

    def write(draft: Draft) -> None:
        writer.write(draft, make(), plan)

    context.sink.put(write)


def record_draws(context: RunContext, draws: dict[str, list[Any]]) -> None:
    """Queue what the clock, randomness and ids gave after the last call of a run."""
    event_id, at_us, writer = new_id(), context.clock.now_us(), context.writer

    def write(draft: Draft) -> None:
        draft.event(
            Event(
                id=event_id,
                kind=DRAWS,
                ts_us=at_us,
                scope=writer.scope,
                run=writer.run,
                thread=writer.thread,
                data=encode_json({"draws": draws}),
            )
        )

    context.sink.put(write)


def _holder(request: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a request whose lists are kept by themselves: its body, if that is JSON."""
    body = request.get("body")
    return cast("dict[str, Any]", body) if isinstance(body, dict) else request


def _parts_of(request: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in _holder(request).items():
        if (isinstance(value, list) and value) or (isinstance(value, str) and len(value) >= _LONG_TEXT):
            yield key, value


def _longest(lines: list[_Line], digests: list[bytes]) -> tuple[_Line | None, int]:
    """Return the list that shares the longest beginning, and how long that is."""
    best: _Line | None = None
    longest = 0
    for line in lines:
        common = 0
        for one, other in zip(line.digests, digests, strict=False):
            if one != other:
                break
            common += 1
        if common > longest:
            best, longest = line, common
    return best, longest


def _encode_pieces(pieces: tuple[Piece, ...]) -> Content:
    steps = [later.offset_us - earlier.offset_us for earlier, later in pairwise((Piece(0, 0), *pieces))]
    return encode({"steps_us": steps, "lengths": [piece.length for piece in pieces]})


# Reading


def read_exchanges(engine: Engine, space: str, run_id: str) -> list[Exchange]:
    """Read all exchanges of a run, in the order in which they began."""
    found: list[Exchange] = []
    query = EventQuery(run=run_id, order="time", kinds=EXCHANGE_KINDS)
    for records in record_pages(engine, space, query, limit=_PAGE):
        found += exchanges_of(engine, space, records, first=len(found) + 1)
    return found


def exchanges_of(engine: Engine, space: str, records: Sequence[Record], *, first: int = 0) -> list[Exchange]:
    """Read the exchanges of some rows; ``first`` is the step of the first of them."""
    datas = [cast("dict[str, Any]", decode_json(each.event.data or b"{}")) for each in records]
    wanted = dict.fromkeys(
        address
        for record, data in zip(records, datas, strict=True)
        for address in (record.event.body, record.event.links[0], data.get("pieces"))
        if address is not None
    )
    contents = dict(zip(wanted, engine.get(space, list(wanted)), strict=True))
    lists = _read_lists(engine, space, datas)
    return [
        _exchange(record, data, contents, lists, step=number)
        for number, (record, data) in enumerate(zip(records, datas, strict=True), start=first)
    ]


def read_draws(engine: Engine, space: str, run_id: str) -> list[dict[str, list[Any]]]:
    """Read what the clock, randomness and ids gave after the calls of a run."""
    query = EventQuery(run=run_id, order="time", kinds=(DRAWS,))
    return [decode_json(each.event.data or b"{}")["draws"] for each in each_record(engine, space, query)]


def _read_lists(engine: Engine, space: str, datas: list[dict[str, Any]]) -> dict[str, list[Any]]:
    longest: dict[str, int] = {}
    for data in datas:
        for list_id, length, _ in data.get("lists", {}).values():
            longest[list_id] = max(longest.get(list_id, 0), length)
    return {
        list_id: [decode(each) for each in engine.read_list(space, list_id, 0, length)]
        for list_id, length in longest.items()
    }


def _exchange(
    record: Record,
    data: dict[str, Any],
    contents: dict[Address, Content],
    lists: dict[str, list[Any]],
    *,
    step: int,
) -> Exchange:
    event = record.event
    request: dict[str, Any] = decode(contents[event.links[0]])
    holder = _holder(request)
    for key, (list_id, length, is_text) in data.get("lists", {}).items():
        items = lists[list_id][:length]
        holder[key] = items[0] if is_text else items
    error = data.get("error")
    return Exchange(
        id=event.id,
        kind=cast("ExchangeKind", event.kind.removeprefix(EXCHANGE)),
        name=event.name or "",
        request=request,
        answer=None if event.body is None else decode(contents[event.body]),
        status=data.get("code"),
        headers=data.get("headers", {}),
        pieces=_decode_pieces(contents[data["pieces"]]) if "pieces" in data else (),
        error=None if error is None else CallError(**error),
        started_at_us=event.ts_us,
        duration_us=event.duration_us or 0,
        model=event.model,
        agent=event.agent,
        snapshot=data.get("snapshot"),
        is_cut=bool(data.get("cut")),
        is_replayed=bool(data.get("replayed")),
        draws=data.get("draws", {}),
        span=event.span,
        step=step,
    )


def _decode_pieces(content: Content) -> tuple[Piece, ...]:
    times: dict[str, list[int]] = decode(content)
    pieces: list[Piece] = []
    offset_us = 0
    for step_us, length in zip(times["steps_us"], times["lengths"], strict=True):
        offset_us += step_us
        pieces.append(Piece(offset_us, length))
    return tuple(pieces)


# Where recording and replaying get hold of calls


class Interceptor(Protocol):
    """Stands between an agent and its model and tools."""

    def around_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of ``(messages, tools)`` that calls the model, unless a recording answers."""
        ...

    def around_tool(
        self, name: str, function: Callable[..., Any], arguments: Callable[..., Any], *, once: bool = False
    ) -> Callable[..., Any]:
        """Return a function that calls a tool, unless a recording answers.

        ``arguments`` gives the arguments of a call as one value; ``once``: the tool has effects that must
        not be repeated.
        """
        ...


class _Interception:
    """The interceptor of this process; ``None`` while nothing is recorded or replayed."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current: Interceptor | None = None


interception: Final = _Interception()


def intercept_model(function: F) -> F:
    """Return a model's function, as the interceptor wants it to be called."""
    current = interception.current
    return function if current is None else cast("F", current.around_model(function))


def intercept_tool(name: str, function: F, arguments: Callable[..., Any], *, once: bool = False) -> F:
    """Return a tool's function, as the interceptor wants it to be called."""
    current = interception.current
    return (
        function if current is None else cast("F", current.around_tool(name, function, arguments, once=once))
    )
