"""Spans: a stretch of a run's time, with what went in, what came out, and what it cost.

A span is one row of the journal, written when it ends: its time is when it began, its duration says how
long it took. One that is still open when the recorder writes also gets a small row that says so, for those
who look on while it runs; the row at its end then says that it was announced.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, Self, TypeVar, cast

import msgspec

from treering.core.batch import Event, Usage
from treering.core.content import Address, Content
from treering.core.encoding import encode, encode_json
from treering.core.ids import check_id, new_id
from treering.core.money import check_currency, to_cost
from treering.errors import InvalidInput, Unencodable
from treering.runs.prices import fill_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from decimal import Decimal
    from types import TracebackType

    from treering.core.batch import Draft
    from treering.core.clock import Clock
    from treering.runs.recorder import RecordSink


# -----------------------------------------------------------------------------------------------------------
# Where in a run the code is that is just running: tasks inherit it, threads take it along with `carry`.


P = ParamSpec("P")
R = TypeVar("R")

current_node: Final[ContextVar[RunNode | None]] = ContextVar("treering_current_node", default=None)


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """The function, to be called in another thread as if it were called here.

    ``executor.submit(carry(work), ...)`` records under the run and span of whoever submitted it.
    """
    context = copy_context()

    @functools.wraps(function)
    def carried(*arguments: P.args, **options: P.kwargs) -> R:
        return context.copy().run(function, *arguments, **options)

    return carried


# -----------------------------------------------------------------------------------------------------------
# Chunks of a stream, kept as one: the whole text once, and when each piece of it came.
#
# A model's answer comes in hundreds of pieces. A row for each would cost more than the answer, so a span
# collects them and is still one row: the text is its output, and beside it lie the times and lengths of the
# pieces, from which a replay cuts the text again. The time of the first one is in the row itself.


FIRST_TOKEN: Final = "first_token_us"  # noqa: S105 - a token of output
"""In a span's data: microseconds from its beginning to the first piece of output."""
CHUNKS: Final = "chunks"
"""In a span's data: where the times and lengths of its chunks are."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a stream: when it came, counted from the span's beginning, and what it was."""

    offset_us: int
    text: str


class Chunks:
    """The chunks of one span while it runs."""

    __slots__ = ("_pieces", "_times_us")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._times_us: list[int] = []

    def add(self, text: str, offset_us: int) -> None:
        """One more piece."""
        self._pieces.append(text)
        self._times_us.append(offset_us)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    @property
    def first_us(self) -> int:
        """When the first one came."""
        return self._times_us[0]

    def times(self) -> Content:
        """When each came, as the steps between them, and how long each is."""
        steps = [later - earlier for earlier, later in pairwise((0, *self._times_us))]
        return encode({"steps_us": steps, "lengths": [len(piece) for piece in self._pieces]})


def cut(text: str, times: Mapping[str, Any]) -> list[Chunk]:
    """The pieces of a stream again, out of its text and what `Chunks.times` kept."""
    chunks: list[Chunk] = []
    offset_us = at = 0
    for step_us, length in zip(times["steps_us"], times["lengths"], strict=True):
        offset_us += step_us
        chunks.append(Chunk(offset_us, text[at : at + length]))
        at += length
    return chunks


# -----------------------------------------------------------------------------------------------------------
# An exception as it is recorded: its type, its message, and where it was raised.


_MESSAGE: Final = 2000
_TRACEBACK: Final = 8000
_FRAMES: Final = 20
"""The innermost ones: frameworks call deeply, and what counts is where it was raised."""


def describe_error(error: BaseException) -> dict[str, str]:
    """What is kept of an exception; the end of a long traceback, where it was raised."""
    return {
        "type": type(error).__qualname__,
        "message": _message(error)[:_MESSAGE],
        "traceback": "".join(traceback.format_exception(error, limit=-_FRAMES))[-_TRACEBACK:],
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the one that is recorded must not be replaced by another one
        return "(it has no text)"


# -----------------------------------------------------------------------------------------------------------
# Where the input of a span is: the data of its row says which of the row's links.
#
# The address itself stands in the row once, among the links. Rows that were written before that spell it
# out in their data as well.


INPUT: Final = "input"
INPUT_SIZE: Final = "input_size"


def input_fields(size: int) -> dict[str, int]:
    """What the data of a row says of an input of so many bytes, to which the row's first link leads."""
    return {INPUT: 0, INPUT_SIZE: size}


def input_of(event: Event, data: Mapping[str, Any]) -> Address | None:
    """The address of a span's input; ``None`` when its row has none."""
    told = data.get(INPUT)
    if type(told) is int and INPUT_SIZE in data and 0 <= told < len(event.links):
        return event.links[told]
    return Address(told) if isinstance(told, str) and told in event.links else None


# -----------------------------------------------------------------------------------------------------------
# Tokens as people hand them over: treering's own words, and those of the providers.


_WORDS: Final = {
    "input": ("input", "uncached_input"),
    "cache_read": ("cache_read", "cache_read_input_tokens"),
    "cache_write": ("cache_write", "cache_creation_input_tokens"),
    "cache_write_1h": ("cache_write_1h",),
    "output": ("output", "output_tokens", "completion_tokens", "completion"),
    "reasoning": ("reasoning", "reasoning_tokens"),
}
_OWN: Final = frozenset(_WORDS)
_INCLUSIVE: Final = ("prompt_tokens", "prompt")
"""OpenAI's count of input tokens, which includes those that came out of the cache."""
_DETAILS: Final = (
    "prompt_tokens_details",
    "input_tokens_details",
    "output_tokens_details",
    "completion_tokens_details",
    "cache_creation",
)
_CACHED: Final = ("cached_tokens",)
_THOUGHT: Final = ("reasoning_tokens", "thinking_tokens")
_WRITTEN_5M: Final = ("ephemeral_5m_input_tokens",)
_WRITTEN_1H: Final = ("ephemeral_1h_input_tokens",)
_NO_TOKENS: Final = frozenset({"server_tool_use"})
"""What else is in Anthropic's usage; what is text there (``service_tier``) is no count either."""
_TOTALS: Final = ("total", "total_tokens")
_MOST: Final = 1 << 50
"""More tokens than anyone used yet, in one event: a mistake."""


def usage_of(given: Usage | Mapping[str, Any] | None) -> Usage | None:
    """Usage by disjoint class.

    Takes a `Usage`, our own names (``input``, ``output``, ``cache_read``, ...), Anthropic's (``input_tokens``
    without what the cache gave) and OpenAI's (``prompt_tokens`` with it). A name that is not known is an
    error: tokens that nobody counts would look free.
    """
    if given is None or isinstance(given, Usage):
        return given
    shape: Any = given
    if not isinstance(shape, Mapping):
        raise InvalidInput(
            f"usage is of type {type(shape).__name__}; pass names and counts "
            "(of a provider's object: usage.model_dump())"
        )
    if _OWN.issuperset(given) and all(type(count) is int and 0 <= count < _MOST for count in given.values()):
        return Usage(**given)  # most often: our own words, with nothing to work out
    rest = {name: value for name, value in given.items() if value is not None and name not in _NO_TOKENS}
    details = _details(rest)
    counts = {field: _taken(rest, names) for field, names in _WORDS.items()}
    cached = _taken(details, _CACHED)  # OpenAI's shape: the cached ones are part of the input
    counts["input"] += max(_taken(rest, (*_INCLUSIVE, "input_tokens")) - cached, 0)
    counts["cache_read"] += cached
    counts["reasoning"] += _taken(details, _THOUGHT)
    written_1h = _taken(details, _WRITTEN_1H)  # Anthropic's sum of what was written is of both kinds
    counts["cache_write"] = max(counts["cache_write"] - written_1h, _taken(details, _WRITTEN_5M))
    counts["cache_write_1h"] += written_1h
    total = _taken(rest, _TOTALS)
    unknown = [name for name, value in rest.items() if not isinstance(value, str)]
    if unknown:
        raise InvalidInput(
            f"usage has {unknown[0]!r}, which is no count of tokens that is known; use {', '.join(_WORDS)}"
        )
    usage = Usage(**counts)
    if not usage.total and total:
        return Usage(input=total)
    return usage


def _taken(rest: dict[str, Any], names: tuple[str, ...]) -> int:
    total = 0
    for name in names:
        if name in rest:
            count = rest.pop(name)
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < _MOST:
                raise InvalidInput(
                    f"usage has {name}={count!r}; a count of tokens is a whole number from 0 to {_MOST:,}"
                )
            total += count
    return total


def _details(rest: dict[str, Any]) -> dict[str, Any]:
    """What the parts of a count say, taken out of the usage; every part is in a whole as well."""
    found: dict[str, Any] = {}
    for name in _DETAILS:
        details: Any = rest.pop(name, None)
        if isinstance(details, Mapping):
            told = cast("Mapping[str, Any]", details)
            found.update({key: value for key, value in told.items() if value is not None})
    return found


# -----------------------------------------------------------------------------------------------------------

SPAN: Final = "span."
OPEN: Final = "open."
MESSAGE: Final = "message"
OK: Final = "ok"
ERROR: Final = "error"

_NOTHING: Final[Any] = object()
_CALLS: Final = frozenset({"llm", "tool"})
_KINDS: Final = frozenset({"agent", "llm", "tool", "retrieval", "file", "reasoning"})


class RunNode:
    """Somewhere in a run: the run itself, or a span in it. Messages, tools and further spans hang below."""

    agent: str | None

    def __init__(self, context: RunContext, id: str | None, agent: str | None) -> None:
        self._context = context
        self.agent = agent
        self._names = [] if id is None else [id]

    @property
    def id(self) -> str:
        """Its id, which is made when someone asks: most spans are only asked by the recorder's thread."""
        if not self._names:
            self._names.append(new_id())
        return self._names[0]  # whoever else was just making one: the first counts

    @property
    def run_id(self) -> str:
        """The run that this is part of."""
        return self._context.run

    @property
    def span_id(self) -> str | None:
        """The span that new things go below; ``None`` directly under the run."""
        return self.id

    def span(
        self,
        name: str,
        *,
        kind: str = "agent",
        agent: str | None = None,
        input: Any = _NOTHING,
        model: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Span:
        """A stretch of time below this one; use it in a ``with`` statement."""
        return Span(
            self._context,
            name=name,
            kind=kind,
            agent=agent or (name if kind == "agent" else self.agent),
            parent=self.span_id,
            input=input,
            model=model,
            id=id,
            metadata=metadata,
        )

    def tool(self, name: str, input: Any = _NOTHING, *, id: str | None = None) -> Span:
        """A call of a tool; set ``output`` inside the ``with`` statement."""
        return self.span(name, kind="tool", input=input, id=id)

    def message(
        self,
        role: str,
        content: Any,
        *,
        model: str | None = None,
        usage: Usage | Mapping[str, Any] | None = None,
        cost: Decimal | float | str | None = None,
        currency: str = "USD",
        agent: str | None = None,
        id: str | None = None,
        ts_us: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Record a message, with the tokens and the money that it took; gives back its id."""
        context = self._context
        note = _Message(
            context,
            id=check_id(id, "message id") if id is not None else new_id(),
            ts_us=context.clock.now_us() if ts_us is None else ts_us,
            span=self.span_id,
            agent=agent or self.agent,
            role=check_id(role, "role"),
            model=model,
            content=_content(content),
            usage=usage_of(usage),
            cost_nanos=None if cost is None else to_cost(cost),
            currency=None if cost is None else check_currency(currency),
            metadata=metadata,
        )
        context.recorder.take(note.write_to)
        return note.id


class Span(RunNode):
    """A stretch of a run's time."""

    # What most spans leave as it is costs nothing when it is not set.
    _output: Content | str | None = None
    _metadata: Mapping[str, Any] = {}
    _began_us: int | None = None
    _duration_us: int | None = None
    _is_announced = False
    _status = OK
    _usage: Usage | None = None
    _cost_nanos: int | None = None
    _currency: str | None = None
    _token: Token[RunNode | None] | None = None
    _chunks: Chunks | None = None

    def __init__(
        self,
        context: RunContext,
        *,
        name: str,
        kind: str,
        agent: str | None,
        parent: str | None,
        input: Any = _NOTHING,
        model: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        # Not by way of `RunNode`: this stands in the way of every step of an agent.
        self._context = context
        self.agent = agent
        self._names = [] if id is None else [check_id(id, "span id")]
        self.name = _span_name(name)
        self.kind = kind if kind in _KINDS else check_id(kind, "span kind")
        self.parent = parent
        self.model = model
        self._input = None if input is _NOTHING else input if type(input) is str else _content(input)
        if metadata:
            self._metadata = dict(metadata)

    @property
    def status(self) -> str:
        """How it went: ``ok``, ``error``, or a word of your own."""
        return self._status

    @status.setter
    def status(self, status: str) -> None:
        self._status = check_id(status, "status")

    def _set_output(self, value: Any) -> None:
        self._output = value if type(value) is str else _content(value)

    output = property(fset=_set_output, doc="What came out.")

    def use(
        self,
        usage: Usage | Mapping[str, Any],
        *,
        cost: Decimal | float | str | None = None,
        currency: str = "USD",
    ) -> None:
        """Say which tokens this span itself took (not those of messages that are recorded below it)."""
        self._usage = usage_of(usage)
        if cost is not None:
            self._cost_nanos = to_cost(cost)
            self._currency = check_currency(currency)

    def chunk(self, text: str, *, ts_us: int | None = None) -> None:
        """A piece of a stream. All pieces are kept as one output, with the time at which each came."""
        if self._began_us is None or self._duration_us is not None:
            raise InvalidInput(f"span {self.name!r} is not running; give it its chunks between start and end")
        if self._chunks is None:
            self._chunks = Chunks()
        now_us = self._context.clock.now_us() if ts_us is None else ts_us
        self._chunks.add(text, max(now_us - self._began_us, 0))

    def note(self, **metadata: Any) -> None:
        """Add to the span's metadata."""
        self._metadata = {**self._metadata, **metadata}

    def start(self, *, ts_us: int | None = None) -> Self:
        """Begin; ``with`` does this. A call of a model or a tool raises `BudgetExceeded` past a budget.

        With ``ts_us`` it tells of what began already, which no budget can stop any more.
        """
        if self._began_us is not None:
            raise InvalidInput(f"span {self.name!r} was started before; make a new one")
        context = self._context
        if context.gate is not None and ts_us is None and self.kind in _CALLS:
            context.gate.admit(context, self.agent)
        self._began_us = context.clock.now_us() if ts_us is None else ts_us
        context.recorder.take(self.announce)
        return self

    def end(self, *, status: str | None = None, ts_us: int | None = None) -> None:
        """Finish; ``with`` does this. Ending twice changes nothing."""
        if self._began_us is None:
            raise InvalidInput(f"span {self.name!r} ends without having been started")
        if self._duration_us is not None:
            return
        if status is not None:
            self.status = status
        context = self._context
        duration_us = (context.clock.now_us() if ts_us is None else ts_us) - self._began_us
        self._duration_us = max(0, duration_us)
        context.recorder.take(self.write_to)

    def fail(self, error: BaseException) -> None:
        """Record an exception, with its traceback."""
        self._status = ERROR
        self.note(error=describe_error(error))

    def __enter__(self) -> Self:
        self.start()
        self._token = current_node.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current_node.reset(self._token)
            self._token = None
        if error is not None:
            self.fail(error)
        self.end()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # How it is written
    def announce(self, draft: Draft) -> None:
        """The row of a span that goes on for longer than the recorder waits."""
        if self._duration_us is not None:
            return
        self._is_announced = True
        body, data = None, dict[str, Any]()
        if self._input is not None:
            given = _content(self._input)
            body = draft.put(given, scope=self._context.scope)
            data[INPUT_SIZE] = len(given.data)
        draft.event(self._event(f"{self.id}:open", OPEN, body=body, data=data, links=()))

    def write_to(self, draft: Draft) -> None:
        """The row of a finished span."""
        scope = self._context.scope
        data: dict[str, Any] = dict(self._metadata)
        links: tuple[Address, ...] = ()
        if self._is_announced:
            data["announced"] = True
        elif self._input is not None:
            given = _content(self._input)
            data |= input_fields(len(given.data))
            links = (draft.put(given, scope=scope),)
        output = self._output
        if self._chunks is not None:
            data[FIRST_TOKEN] = self._chunks.first_us
            if output is None:  # else the chunks are not what came out, and could not be cut from it
                output = self._chunks.text
                times = draft.put(self._chunks.times(), scope=scope)
                data[CHUNKS] = times
                links = (*links, times)
        body = None if output is None else draft.put(_content(output), scope=scope)
        draft.event(fill_in(self._event(self.id, SPAN, body=body, data=data, links=links)))

    def _event(
        self, id: str, form: str, *, body: Address | None, data: dict[str, Any], links: tuple[Address, ...]
    ) -> Event:
        context = self._context
        is_done = form == SPAN
        return Event(
            id=id,
            kind=form + self.kind,
            ts_us=self._began_us or 0,
            scope=context.scope,
            run=context.run,
            span=self.id,
            parent=self.parent,
            thread=context.thread,
            agent=self.agent,
            name=self.name,
            model=self.model,
            status=self._status if is_done else None,
            usage=self._usage if is_done else None,
            cost_nanos=self._cost_nanos if is_done else None,
            currency=self._currency if is_done else None,
            duration_us=self._duration_us if is_done else None,
            data=encode_json(data) if data else None,
            body=body,
            links=links,
        )


class _Message:
    __slots__ = ("_context", "_fields", "_metadata", "content", "id")

    def __init__(
        self,
        context: RunContext,
        *,
        id: str,
        content: Content,
        metadata: Mapping[str, Any] | None,
        **fields: Any,
    ) -> None:
        self.id = id
        self.content = content
        self._context = context
        self._metadata = dict(metadata) if metadata else None
        self._fields = fields

    def write_to(self, draft: Draft) -> None:
        """The row of a message."""
        context = self._context
        event = Event(
            id=self.id,
            kind=MESSAGE,
            scope=context.scope,
            run=context.run,
            thread=context.thread,
            body=draft.put(self.content, scope=context.scope),
            data=encode_json(self._metadata) if self._metadata else None,
            **self._fields,
        )
        draft.event(fill_in(event))


@lru_cache(maxsize=1024)
def _span_name(name: str) -> str:
    return check_id(name, "span name")


def _content(value: Any) -> Content:
    """Content as it is now; what has no encoding is kept as its text, because recording never fails a run.

    A text cannot change, so spans leave it as it is until the recorder's thread asks for its content.
    """
    if isinstance(value, Content):
        return value
    try:
        if type(value) is str and value.isascii():
            return Content("text", value.encode())
        return encode(value, keep_order=True)
    except Unencodable:
        return encode({"_opaque": type(value).__qualname__, "text": _text(value)[:10_000]})


def _text(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a value without even a text: it is the agent's, and the run goes on
        return f"(no text: {type(error).__name__})"


# -----------------------------------------------------------------------------------------------------------
# What everything of one run has in common, and the gate that its calls of models and tools pass.


class Gate(Protocol):
    """What a call of a model or a tool has to pass before it begins."""

    def admit(self, context: RunContext, agent: str | None) -> None:
        """Raise if an agent must not make a call in this run."""
        ...


class RunContext:
    """What everything of one run has in common."""

    __slots__ = ("clock", "gate", "recorder", "run", "scope", "thread")

    def __init__(
        self,
        recorder: RecordSink,
        clock: Clock,
        *,
        run: str,
        scope: str,
        thread: str | None,
        gate: Gate | None = None,
    ) -> None:
        self.recorder = recorder
        self.clock = clock
        self.gate = gate
        self.run = run
        self.scope = scope
        self.thread = thread
