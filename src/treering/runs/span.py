"""Spans: a piece of a run's time, with its input, its output and what it cost.

A span is one row of the journal, written when it ends: its time is the start, its duration the length. A
span that is still running when the recorder writes also gets a small "open" row, so that live readers see
it; the row written at its end is then marked as announced. A message is a row of its own.

`RunNode` and `Span` are what an agent's code holds while it records. `SpanWriter` turns them into rows, and
`RunRow` reads the rows back. **Invariant:** every span and every message in a store was written by a
`SpanWriter`, whether it came from the recorder, OTLP, the services or an importer.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast

import msgspec
import orjson

from treering.core.batch import Event, Usage
from treering.core.content import Address, Content
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.ids import check_id, new_id
from treering.core.rollups import ERROR, FIRST_TOKEN, IN_CALL, MESSAGE, SAID, SPAN
from treering.errors import InvalidInput, Unencodable
from treering.runs.money import check_currency, to_cost
from treering.runs.prices import price_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from decimal import Decimal
    from types import TracebackType

    from treering.core.batch import Draft
    from treering.core.clock import Clock
    from treering.core.records import Record
    from treering.runs.recorder import RecordSink

P = ParamSpec("P")
R = TypeVar("R")

OPEN: Final = "open."
"""Prefix of the kind of a running span's row."""
OK: Final = "ok"

INPUT: Final = "input"
"""In a span's data: which of the row's links is the input."""
INPUT_SIZE: Final = "input_size"
ANNOUNCED: Final = "announced"
"""In a span's data: whether the span also has an open row."""
COMPACTED: Final = "compacted"
"""In the data of a call: its model was given a summary of the conversation instead of all of it."""
CHUNKS: Final = "chunks"
"""In a span's data: the address of the times and lengths of its chunks."""

PHRASES: Final = (
    '{"attributes":{"gen_ai.response.id":"',
    '{"attributes":{"gen_ai.tool.call.id":"',
    '{"attributes":{"gen_ai.',
    '{"attributes":{"',
    '"gen_ai.response.finish_reasons":["',
    '"gen_ai.response.id":"',
    '"gen_ai.request.',
    '"gen_ai.',
    '"},"input":0,"input_size":',
    '{"input":0,"input_size":',
    '},"input":0,"input_size":',
    ',"priced_by":"openai/',
    ',"priced_by":"anthropic/',
    ',"priced_by":"google/',
    ',"priced_by":"',
    '","provider":"openai"}',
    '","provider":"anthropic"}',
    '","provider":"google"}',
    ',"provider":"',
    '"error":{"message":"',
    '"openinference.',
    '"first_token_us":',
)
"""Phrases that rows of spans share and a new store keeps as one byte each. Longer ones come first."""

_NOT_GIVEN: Final[Any] = object()
_LLM: Final = "llm"
_CALLS: Final = frozenset({_LLM, "tool"})
_KINDS: Final = frozenset({"agent", "llm", "tool", "retrieval", "file", "reasoning"})
_OPEN_SUFFIX: Final = ":open"

current_node: Final[ContextVar[RunNode | None]] = ContextVar("treering_current_node", default=None)
"""The run or span that the running code belongs to. Tasks inherit it; threads need `carry`."""


model_call: Final[ContextVar[Span | None]] = ContextVar("treering_model_call", default=None)
"""The call of a model that an adapter is recording: whoever captures its request adds it to that span."""


class Replaying:
    """Whether models answer from a recording now: their tokens were paid for before, and are not counted."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = False


replaying: Final = Replaying()


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function bound to the current run and span, to be called in another thread.

    ``executor.submit(carry(work), ...)`` records below the span that was active at the call of ``carry``.
    """
    context = copy_context()

    @functools.wraps(function)
    def carried(*arguments: P.args, **options: P.kwargs) -> R:
        return context.copy().run(function, *arguments, **options)

    return carried


class CallGate(Protocol):
    """Decides whether a model or tool call may start."""

    def admit(self, context: RunContext, call: Span) -> None:
        """Raise if this call of a model or tool, a span that is about to start, must not be made."""
        ...


class RunContext:
    """What all nodes of one run share: where rows go, the clock, and the gate that calls must pass."""

    __slots__ = ("clock", "exchanges", "gate", "sink", "uses", "writer")

    def __init__(
        self, sink: RecordSink, clock: Clock, writer: SpanWriter, *, gate: CallGate | None = None
    ) -> None:
        self.sink = sink
        self.clock = clock
        self.writer = writer
        self.gate = gate
        self.uses = 0
        """Grows with whatever may cost something: usage that is recorded, and runs that start inside."""
        self.exchanges: object | None = None
        """What writes the run's exchanges (`treering.runs.exchanges`), once there is one."""


class RunNode:
    """A node in the tree of a run: the run itself or one of its spans. It records its children."""

    agent: str | None

    def __init__(self, context: RunContext, id: str | None, agent: str | None) -> None:
        self._context = context
        self.agent = agent
        self._ids = [] if id is None else [id]

    @property
    def id(self) -> str:
        """The node's id, generated on first use: for most spans only the recorder's thread needs it."""
        if not self._ids:
            self._ids.append(new_id())
        return self._ids[0]  # when two threads generate one at once, the first counts

    @property
    def context(self) -> RunContext:
        """What all nodes of the run share."""
        return self._context

    @property
    def run_id(self) -> str:
        """The run that this node belongs to."""
        return self._context.writer.run

    @property
    def span_id(self) -> str | None:
        """The parent of new spans and messages; ``None`` directly under the run."""
        return self.id

    def span(
        self,
        name: str,
        *,
        kind: str = "agent",
        agent: str | None = None,
        input: Any = _NOT_GIVEN,
        model: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Span:
        """Return a child span, to be used in a ``with`` statement."""
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

    def tool(self, name: str, input: Any = _NOT_GIVEN, *, id: str | None = None) -> Span:
        """Return a span for a tool call; set ``output`` inside the ``with`` statement."""
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
        """Record a message with its tokens and cost, and return its id."""
        context = self._context
        message_id = check_id(id, "message id") if id is not None else new_id()
        counted = None if usage is None or replaying.now else usage_of(usage)
        if counted is not None or cost is not None:
            context.uses += 1
        write = partial(
            context.writer.write_message,
            id=message_id,
            ts_us=context.clock.now_us() if ts_us is None else ts_us,
            span=self.span_id,
            agent=agent or self.agent,
            role=check_id(role, "role"),
            model=model,
            content=encode_any(content),
            usage=counted,
            cost_nanos=None if cost is None or replaying.now else to_cost(cost),
            currency=None if cost is None or replaying.now else check_currency(currency),
            data=dict(metadata) if metadata else None,
            in_call=self.add_reply(message_id, model, counted),
        )
        context.sink.put(write)
        return message_id

    def add_reply(self, message_id: str, model: str | None, usage: Usage | None) -> bool:
        """Count the output of a message for a model's call, if this is one; return whether it is."""
        del message_id, model, usage
        return False


class Span(RunNode):
    """A span that is being recorded. Use it in a ``with`` statement, or call `start` and `end`."""

    # Class attributes are the defaults, so that a plain span costs no assignments.
    _output: Content | str | None = None
    _metadata: Mapping[str, Any] = {}
    _started_us: int | None = None
    _duration_us: int | None = None
    _is_announced = False
    _status = OK
    _usage: Usage | None = None
    _cost_nanos: int | None = None
    _currency: str | None = None
    _token: Token[RunNode | None] | None = None
    _chunks: Chunks | None = None
    _replies: Mapping[str, tuple[str | None, int]] = {}
    """Of a model's call: the model and the output tokens of each message below it."""

    def __init__(
        self,
        context: RunContext,
        *,
        name: str,
        kind: str,
        agent: str | None,
        parent: str | None,
        input: Any = _NOT_GIVEN,
        model: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        # Does not call `RunNode.__init__`: this is on the path of every step of an agent.
        self._context = context
        self.agent = agent
        self._ids = [] if id is None else [check_id(id, "span id")]
        self.name = _check_name(name)
        self.kind = kind if kind in _KINDS else check_id(kind, "span kind")
        self.parent = parent
        self.model = model
        # A str cannot change, so encoding it is left to the recorder's thread.
        self._input = None if input is _NOT_GIVEN else input if type(input) is str else encode_any(input)
        if metadata:
            self._metadata = dict(metadata)

    def __repr__(self) -> str:
        state = (
            "not started" if self._started_us is None else "running" if not self.has_ended else self._status
        )
        return f"Span({self.name!r}, kind={self.kind!r}, {state}, run={self.run_id!r})"

    @property
    def status(self) -> str:
        """``ok``, ``error``, or a word of your own."""
        return self._status

    @status.setter
    def status(self, status: str) -> None:
        self._status = check_id(status, "status")

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called."""
        return self._duration_us is not None

    def _set_output(self, value: Any) -> None:
        self._output = value if type(value) is str else encode_any(value)

    output = property(fset=_set_output, doc="The result of the span; write-only.")

    def use(
        self,
        usage: Usage | Mapping[str, Any],
        *,
        cost: Decimal | float | str | None = None,
        currency: str = "USD",
    ) -> None:
        """Set the tokens that this span itself used, without those of messages recorded below it."""
        if replaying.now:
            return
        self._usage = usage_of(usage)
        self._context.uses += 1
        if cost is not None:
            self._cost_nanos = to_cost(cost)
            self._currency = check_currency(currency)

    def chunk(self, text: str, *, ts_us: int | None = None) -> None:
        """Add a piece of a stream. All pieces become one output, with the time of each."""
        if self._started_us is None or self._duration_us is not None:
            raise InvalidInput(f"span {self.name!r} is not running; add chunks between start() and end()")
        if self._chunks is None:
            self._chunks = Chunks()
        now_us = self._context.clock.now_us() if ts_us is None else ts_us
        self._chunks.add(text, max(now_us - self._started_us, 0))

    def add_reply(self, message_id: str, model: str | None, usage: Usage | None) -> bool:
        """Count the output of a message for this span, if it is a call of a model; return whether it is."""
        if self.kind != _LLM:
            return False
        if usage is not None:
            self._replies = {**self._replies, message_id: (model, usage.output)}
        return True

    def note(self, **metadata: Any) -> None:
        """Add to the span's metadata."""
        self._metadata = {**self._metadata, **metadata}

    def start(self, *, ts_us: int | None = None) -> Self:
        """Start the span; ``with`` does this.

        A model or tool call raises `BudgetExceeded` when a budget is used up. With ``ts_us`` the span
        started in the past, and budgets are not checked.
        """
        if self._started_us is not None:
            raise InvalidInput(f"span {self.name!r} was already started; create a new one")
        context = self._context
        if context.gate is not None and ts_us is None and self.kind in _CALLS:
            context.gate.admit(context, self)
        self._started_us = context.clock.now_us() if ts_us is None else ts_us
        context.sink.put(self._write_open)
        return self

    def end(self, *, status: str | None = None, ts_us: int | None = None) -> None:
        """End the span; ``with`` does this. A second call has no effect."""
        if self._started_us is None:
            raise InvalidInput(f"span {self.name!r} was not started; call start() before end()")
        if self._duration_us is not None:
            return
        if status is not None:
            self.status = status
        context = self._context
        ended_us = context.clock.now_us() if ts_us is None else ts_us
        self._duration_us = max(0, ended_us - self._started_us)
        context.sink.put(self._write)

    def fail(self, error: BaseException) -> None:
        """Set the status to ``error`` and record the exception with its traceback."""
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

    def _write_open(self, draft: Draft) -> None:
        """Write the open row, unless the span has ended before the recorder came to it."""
        if self._duration_us is not None:
            return
        self._is_announced = True
        self._context.writer.write_open(
            draft,
            id=self.id,
            kind=self.kind,
            name=self.name,
            ts_us=self._started_us or 0,
            parent=self.parent,
            agent=self.agent,
            model=self.model,
            input=None if self._input is None else encode_any(self._input),
        )

    def _write(self, draft: Draft) -> None:
        """Write the row of the finished span."""
        data: dict[str, Any] = dict(self._metadata)
        chunk_times: Content | None = None
        output = self._output
        if self._chunks is not None:
            data[FIRST_TOKEN] = self._chunks.first_us
            if output is None:  # an explicit output could not be cut into the chunks again
                output = self._chunks.text
                chunk_times = self._chunks.times()
        replies = list(self._replies.values())
        if said := sum(tokens for _, tokens in replies):
            data[SAID] = said
        has_input = self._input is not None and not self._is_announced
        self._context.writer.write_span(
            draft,
            id=self.id,
            kind=self.kind,
            name=self.name,
            ts_us=self._started_us or 0,
            duration_us=self._duration_us or 0,
            status=self._status,
            parent=self.parent,
            agent=self.agent,
            model=self.model or next((model for model, _ in replies if model), None),
            usage=self._usage,
            cost_nanos=self._cost_nanos,
            currency=self._currency,
            input=encode_any(self._input) if has_input else None,
            output=None if output is None else encode_any(output),
            chunk_times=chunk_times,
            data=data,
            is_announced=self._is_announced,
        )


class StoredContent(NamedTuple):
    """Content that is stored already: its address and its size in bytes."""

    address: Address
    size: int


class SpanWriter:
    """Writes the rows of one run's spans and messages into a batch.

    ===============  ===================  =====================================================
    kind             id                   body
    ===============  ===================  =====================================================
    ``open.<kind>``  ``<span id>:open``   the input of a span that is still running
    ``span.<kind>``  the span's id        the output; the input is the row's first link, unless
                                          the open row has it
    ``message``      the message's id     the content
    ===============  ===================  =====================================================

    ``scope`` is what the rows are forgotten with, ``thread`` the key of the run's thread.
    """

    __slots__ = ("run", "scope", "thread")

    def __init__(self, *, run: str, scope: str, thread: str | None) -> None:
        self.run = run
        self.scope = scope
        self.thread = thread

    def write_open(
        self,
        draft: Draft,
        *,
        id: str,
        kind: str,
        name: str,
        ts_us: int,
        parent: str | None,
        agent: str | None,
        model: str | None = None,
        input: Content | StoredContent | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Write the row of a span that is still running."""
        data = dict(data) if data else {}
        body: Address | None = None
        if input is not None:
            body, data[INPUT_SIZE] = self._put(draft, input)
        draft.event(
            Event(
                id=open_id(id),
                kind=OPEN + kind,
                ts_us=ts_us,
                scope=self.scope,
                run=self.run,
                span=id,
                parent=parent,
                thread=self.thread,
                agent=agent,
                name=name,
                model=model,
                data=_encode_data(data),
                body=body,
            )
        )

    def write_span(
        self,
        draft: Draft,
        *,
        id: str,
        kind: str,
        name: str,
        ts_us: int,
        duration_us: int | None,
        status: str,
        parent: str | None,
        agent: str | None,
        model: str | None = None,
        role: str | None = None,
        usage: Usage | None = None,
        cost_nanos: int | None = None,
        currency: str | None = None,
        input: Content | None = None,
        output: Content | StoredContent | None = None,
        chunk_times: Content | None = None,
        data: dict[str, Any] | None = None,
        is_announced: bool = False,
    ) -> None:
        """Write the row of a finished span. A ``role`` says that the output is a message of that role.

        ``input`` is left out when the open row has it, which ``is_announced`` says. Usage without a cost
        is priced here.
        """
        data = dict(data) if data else {}
        links: tuple[Address, ...] = ()
        if is_announced:
            data[ANNOUNCED] = True
        if input is not None:
            address, size = self._put(draft, input)
            data[INPUT], data[INPUT_SIZE] = 0, size
            links = (address,)
        if chunk_times is not None:
            data[CHUNKS] = draft.put(chunk_times, scope=self.scope)
            links = (*links, data[CHUNKS])
        if usage is not None and model is not None:
            cost_nanos, currency = price_call(data, model, usage, ts_us, cost_nanos, currency)
        draft.event(
            Event(
                id=id,
                kind=SPAN + kind,
                ts_us=ts_us,
                scope=self.scope,
                run=self.run,
                span=id,
                parent=parent,
                thread=self.thread,
                agent=agent,
                name=name,
                model=model,
                role=role,
                status=status,
                usage=usage,
                cost_nanos=cost_nanos,
                currency=currency,
                duration_us=duration_us,
                data=_encode_data(data),
                body=None if output is None else self._put(draft, output).address,
                links=links,
            )
        )

    def write_message(
        self,
        draft: Draft,
        *,
        id: str,
        ts_us: int,
        role: str,
        content: Content | None,
        span: str | None = None,
        agent: str | None = None,
        name: str | None = None,
        model: str | None = None,
        usage: Usage | None = None,
        cost_nanos: int | None = None,
        currency: str | None = None,
        data: dict[str, Any] | None = None,
        in_call: bool = False,
    ) -> None:
        """Write the row of a message, which may be part of a model's call. Usage without a cost is priced."""
        data = dict(data) if data else {}
        if in_call and usage is not None:
            data[IN_CALL] = True
        if usage is not None and model is not None:
            cost_nanos, currency = price_call(data, model, usage, ts_us, cost_nanos, currency)
        draft.event(
            Event(
                id=id,
                kind=MESSAGE,
                ts_us=ts_us,
                scope=self.scope,
                run=self.run,
                span=span,
                thread=self.thread,
                agent=agent,
                name=name,
                model=model,
                role=role,
                usage=usage,
                cost_nanos=cost_nanos,
                currency=currency,
                data=_encode_data(data),
                body=None if content is None else draft.put(content, scope=self.scope),
            )
        )

    def _put(self, draft: Draft, content: Content | StoredContent) -> StoredContent:
        if isinstance(content, StoredContent):
            return content
        return StoredContent(draft.put(content, scope=self.scope), len(content.data))


_PLAIN: Final = frozenset({str, int, bool})


def _encode_data(data: dict[str, Any]) -> bytes | None:
    """Encode a row's data. Most of it is plain, which orjson encodes ten times as fast as `encode_json`."""
    if not data:
        return None
    if _is_plain(data):
        try:
            return orjson.dumps(data, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:
            pass  # an integer beyond 64 bits, or text that is not UTF-8
    return encode_json(data)


def _is_plain(data: dict[Any, Any], depth: int = 1) -> bool:
    """Return whether `encode_json` would not tag, escape or refuse anything in the data."""
    for key, value in data.items():
        if type(key) is not str or "$" in key:
            return False
        if type(value) in _PLAIN:
            continue
        if not depth or type(value) is not dict or not _is_plain(cast("dict[Any, Any]", value), depth - 1):
            return False
    return True


class RunRow:
    """A row of a run as it was read, with its JSON data decoded once, on first use."""

    __slots__ = ("_data", "event", "record", "seq")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.event = record.event
        self.seq = record.seq
        self._data: dict[str, Any] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The row's data; empty when it has none."""
        if self._data is None:
            data = self.event.data
            self._data = {} if data is None else cast("dict[str, Any]", decode_json(data))
        return self._data

    @property
    def is_span(self) -> bool:
        """Whether it is the row of a finished span."""
        return self.event.kind.startswith(SPAN)

    @property
    def is_open(self) -> bool:
        """Whether it is the row of a span that was running when it was written."""
        return self.event.kind.startswith(OPEN)

    @property
    def is_announced(self) -> bool:
        """Whether a finished span also has an open row."""
        return self.event.data is not None and bool(self.data.get(ANNOUNCED))

    @property
    def span_id(self) -> str:
        """The span of a span's row; the id of any other row."""
        event = self.event
        return event.span or event.id if self.is_span or self.is_open else event.id

    @property
    def span_kind(self) -> str:
        """``tool``, ``llm``, ``agent``, ... for spans; the kind of any other row."""
        form, dot, kind = self.event.kind.partition(".")
        return kind if dot and form + dot in (SPAN, OPEN) else self.event.kind

    @property
    def end_us(self) -> int:
        """When it ended; the time of the row for what takes no time."""
        return self.event.ts_us + (self.event.duration_us or 0)

    @property
    def input(self) -> Address | None:
        """The address of a span's input, if this row has it."""
        event = self.event
        if self.is_open:
            return event.body
        if not self.is_span or event.data is None or not event.links:
            return None
        index: Any = self.data.get(INPUT)
        if type(index) is not int or INPUT_SIZE not in self.data or not 0 <= index < len(event.links):
            return None  # metadata of the same name
        return event.links[index]

    @property
    def chunk_times(self) -> Address | None:
        """The address of the times of a stream's chunks."""
        if not self.is_span or not self.event.links:
            return None
        address: Any = self.data.get(CHUNKS)
        return Address(address) if isinstance(address, str) and address in self.event.links else None


def open_id(span_id: str) -> str:
    """Return the id of the open row of a span."""
    return span_id + _OPEN_SUFFIX


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a stream, and when it came, counted from the start of the span."""

    offset_us: int
    text: str


class Chunks:
    """The chunks of one span while it runs.

    An answer comes in hundreds of pieces, and a row for each would cost more than the answer. The span stays
    one row: the whole text is its output, and beside it are the times and lengths from which `split_chunks`
    cuts the text again.
    """

    __slots__ = ("_pieces", "_times_us")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._times_us: list[int] = []

    def add(self, text: str, offset_us: int) -> None:
        """Append a piece."""
        self._pieces.append(text)
        self._times_us.append(offset_us)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._pieces)

    @property
    def first_us(self) -> int:
        """When the first piece came."""
        return self._times_us[0]

    def times(self) -> Content:
        """The steps between the pieces, and the length of each."""
        steps = [later - earlier for earlier, later in pairwise((0, *self._times_us))]
        return encode({"steps_us": steps, "lengths": [len(piece) for piece in self._pieces]})


def split_chunks(text: str, times: Mapping[str, Any]) -> list[Chunk]:
    """Return the pieces of a stream, given its text and the content of `Chunks.times`."""
    chunks: list[Chunk] = []
    offset_us = position = 0
    for step_us, length in zip(times["steps_us"], times["lengths"], strict=True):
        offset_us += step_us
        chunks.append(Chunk(offset_us, text[position : position + length]))
        position += length
    return chunks


# Token counts: ours, Anthropic's and OpenAI's names for the same classes.
_ALIASES: Final = {
    "input": ("input", "uncached_input"),
    "cache_read": ("cache_read", "cache_read_input_tokens"),
    "cache_write": ("cache_write", "cache_creation_input_tokens"),
    "cache_write_1h": ("cache_write_1h",),
    "output": ("output", "output_tokens", "completion_tokens", "completion"),
    "reasoning": ("reasoning", "reasoning_tokens"),
    "other": ("other",),
}
_OWN_NAMES: Final = frozenset(_ALIASES)
_INCLUSIVE: Final = ("prompt_tokens", "prompt")
"""OpenAI's count of input tokens, which includes those read from the cache."""
_DETAILS: Final = (
    "prompt_tokens_details",
    "input_tokens_details",
    "output_tokens_details",
    "completion_tokens_details",
    "cache_creation",
)
_CACHED: Final = ("cached_tokens",)
_REASONING: Final = ("reasoning_tokens", "thinking_tokens")
_WRITTEN_5M: Final = ("ephemeral_5m_input_tokens",)
_WRITTEN_1H: Final = ("ephemeral_1h_input_tokens",)
_NOT_TOKENS: Final = frozenset({"server_tool_use"})
"""Fields of Anthropic's usage that are no token counts; texts such as ``service_tier`` are ignored too."""
_TOTALS: Final = ("total", "total_tokens")
_MAX_TOKENS: Final = 1 << 50
"""A larger count in one event is a mistake."""


def usage_of(given: Usage | Mapping[str, Any] | None) -> Usage | None:
    """Return usage by disjoint class of tokens.

    Accepts a `Usage`, our own names (``input``, ``output``, ``cache_read``, ...), Anthropic's
    (``input_tokens``, without cache reads) and OpenAI's (``prompt_tokens``, with them). A given ``total`` is
    kept: what it has beyond the other counts is of no known class (``other``).

    Raises:
        InvalidInput: An unknown name, a bad count, or a total smaller than its parts. Tokens that are not
            counted would look free.
    """
    if given is None or isinstance(given, Usage):
        return given
    untyped: Any = given
    if not isinstance(untyped, Mapping):
        raise InvalidInput(
            f"usage is of type {type(untyped).__name__}; pass a mapping of names to counts "
            "(for a provider's object: usage.model_dump())"
        )
    if _OWN_NAMES.issuperset(given) and all(
        type(count) is int and 0 <= count < _MAX_TOKENS for count in given.values()
    ):
        return Usage(**given)  # the common case
    rest = {name: value for name, value in given.items() if value is not None and name not in _NOT_TOKENS}
    details = _pop_details(rest)
    counts = {field: _pop_count(rest, names) for field, names in _ALIASES.items()}
    cached = _pop_count(details, _CACHED)  # OpenAI includes cached tokens in the input
    counts["input"] += max(_pop_count(rest, (*_INCLUSIVE, "input_tokens")) - cached, 0)
    counts["cache_read"] += cached
    counts["reasoning"] += _pop_count(details, _REASONING)
    written_1h = _pop_count(details, _WRITTEN_1H)  # Anthropic's total of cache writes has both kinds
    counts["cache_write"] = max(counts["cache_write"] - written_1h, _pop_count(details, _WRITTEN_5M))
    counts["cache_write_1h"] += written_1h
    has_total = any(name in rest for name in _TOTALS)
    total = _pop_count(rest, _TOTALS)
    unknown = [name for name, value in rest.items() if not isinstance(value, str)]
    if unknown:
        raise InvalidInput(f"unknown token count {unknown[0]!r} in usage; use {', '.join(_ALIASES)}")
    usage = Usage(**counts)
    if has_total and total < usage.total:
        raise InvalidInput(
            f"total={total} in usage is less than the {usage.total} tokens of its parts; "
            "cached tokens may be counted twice, or the total left out"
        )
    return msgspec.structs.replace(usage, other=usage.other + total - usage.total) if has_total else usage


def _pop_count(rest: dict[str, Any], names: tuple[str, ...]) -> int:
    total = 0
    for name in names:
        if name in rest:
            count = rest.pop(name)
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < _MAX_TOKENS:
                raise InvalidInput(
                    f"{name}={count!r} in usage is no token count; use an integer from 0 to {_MAX_TOKENS:,}"
                )
            total += count
    return total


def _pop_details(rest: dict[str, Any]) -> dict[str, Any]:
    """Remove the breakdowns from a usage and return them merged; their counts are part of the totals."""
    merged: dict[str, Any] = {}
    for name in _DETAILS:
        details: Any = rest.pop(name, None)
        if isinstance(details, Mapping):
            given = cast("Mapping[str, Any]", details)
            merged.update({key: value for key, value in given.items() if value is not None})
    return merged


_MAX_MESSAGE: Final = 2000
_MAX_TRACEBACK: Final = 8000
_MAX_FRAMES: Final = 20
"""The innermost frames: frameworks call deeply, and what matters is where the error was raised."""


def describe_error(error: BaseException) -> dict[str, str]:
    """Return type, message and the end of the traceback of an exception."""
    return {
        "type": type(error).__qualname__,
        "message": _message_of(error)[:_MAX_MESSAGE],
        "traceback": "".join(traceback.format_exception(error, limit=-_MAX_FRAMES))[-_MAX_TRACEBACK:],
    }


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the recorded error must not be replaced by another one
        return "(no message)"


@lru_cache(maxsize=1024)
def _check_name(name: str) -> str:
    return check_id(name, "span name")


def encode_any(value: Any) -> Content:
    """Encode a value for recording. One that has no encoding is kept as its ``repr``, and never raises."""
    if isinstance(value, Content):
        return value
    try:
        if type(value) is str and value.isascii():
            return Content("text", value.encode())
        return encode(value, keep_order=True)
    except Unencodable:
        return encode({"_opaque": type(value).__qualname__, "text": _repr(value)[:10_000]})


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a broken __repr__ of the agent must not fail the run
        return f"(no repr: {type(error).__name__})"
