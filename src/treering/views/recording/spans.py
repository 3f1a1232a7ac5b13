"""Spans: a stretch of a run's time, with what went in, what came out, and what it cost.

A span is one row of the journal, written when it ends: its time is when it began, its duration says how
long it took. One that is still open when the recorder writes also gets a small row that says so, for those
who look on while it runs; the row at its end then says that it was announced.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self

from treering.core.address import Address
from treering.core.batch import Event
from treering.core.content import Content
from treering.core.encoding import encode, encode_json
from treering.core.ids import check_id, new_id
from treering.core.money import check_currency, to_cost
from treering.errors import InvalidInput, Unencodable
from treering.views.prices import fill_in
from treering.views.recording.chunks import CHUNKS, FIRST_TOKEN, Chunks
from treering.views.recording.context import here
from treering.views.recording.failure import told_error
from treering.views.recording.given import INPUT_SIZE, told_input
from treering.views.recording.usage import usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token
    from decimal import Decimal
    from types import TracebackType

    from treering.core.batch import Usage
    from treering.core.draft import Draft
    from treering.views.recording.origin import Origin

SPAN: Final = "span."
OPEN: Final = "open."
MESSAGE: Final = "message"
OK: Final = "ok"
ERROR: Final = "error"

_NOTHING: Final[Any] = object()
_CALLS: Final = frozenset({"llm", "tool"})
_KINDS: Final = frozenset({"agent", "llm", "tool", "retrieval", "file", "reasoning"})


class Place:
    """Somewhere in a run: the run itself, or a span in it. Messages, tools and further spans hang below."""

    agent: str | None

    def __init__(self, origin: Origin, id: str | None, agent: str | None) -> None:
        self._origin = origin
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
        return self._origin.run

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
            self._origin,
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
        origin = self._origin
        note = _Message(
            origin,
            id=check_id(id, "message id") if id is not None else new_id(),
            ts_us=origin.clock.now_us() if ts_us is None else ts_us,
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
        origin.recorder.take(note.write_to)
        return note.id


class Span(Place):
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
    _token: Token[Place | None] | None = None
    _chunks: Chunks | None = None

    def __init__(
        self,
        origin: Origin,
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
        # Not by way of `Place`: this stands in the way of every step of an agent.
        self._origin = origin
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
        now_us = self._origin.clock.now_us() if ts_us is None else ts_us
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
        origin = self._origin
        if origin.gate is not None and ts_us is None and self.kind in _CALLS:
            origin.gate.admit(origin, self.agent)
        self._began_us = origin.clock.now_us() if ts_us is None else ts_us
        origin.recorder.take(self.announce)
        return self

    def end(self, *, status: str | None = None, ts_us: int | None = None) -> None:
        """Finish; ``with`` does this. Ending twice changes nothing."""
        if self._began_us is None:
            raise InvalidInput(f"span {self.name!r} ends without having been started")
        if self._duration_us is not None:
            return
        if status is not None:
            self.status = status
        origin = self._origin
        duration_us = (origin.clock.now_us() if ts_us is None else ts_us) - self._began_us
        self._duration_us = max(0, duration_us)
        origin.recorder.take(self.write_to)

    def fail(self, error: BaseException) -> None:
        """Record an exception, with its traceback."""
        self._status = ERROR
        self.note(error=told_error(error))

    def __enter__(self) -> Self:
        self.start()
        self._token = here.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            here.reset(self._token)
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
            body = draft.put(given, scope=self._origin.scope)
            data[INPUT_SIZE] = len(given.data)
        draft.event(self._event(f"{self.id}:open", OPEN, body=body, data=data, links=()))

    def write_to(self, draft: Draft) -> None:
        """The row of a finished span."""
        scope = self._origin.scope
        data: dict[str, Any] = dict(self._metadata)
        links: tuple[Address, ...] = ()
        if self._is_announced:
            data["announced"] = True
        elif self._input is not None:
            given = _content(self._input)
            data |= told_input(len(given.data))
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
        origin = self._origin
        is_done = form == SPAN
        return Event(
            id=id,
            kind=form + self.kind,
            ts_us=self._began_us or 0,
            scope=origin.scope,
            run=origin.run,
            span=self.id,
            parent=self.parent,
            thread=origin.thread,
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
    __slots__ = ("_fields", "_metadata", "_origin", "content", "id")

    def __init__(
        self, origin: Origin, *, id: str, content: Content, metadata: Mapping[str, Any] | None, **fields: Any
    ) -> None:
        self.id = id
        self.content = content
        self._origin = origin
        self._metadata = dict(metadata) if metadata else None
        self._fields = fields

    def write_to(self, draft: Draft) -> None:
        """The row of a message."""
        origin = self._origin
        event = Event(
            id=self.id,
            kind=MESSAGE,
            scope=origin.scope,
            run=origin.run,
            thread=origin.thread,
            body=draft.put(self.content, scope=origin.scope),
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
