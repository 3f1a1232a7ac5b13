"""The entities of the Orchestrator, with its names of columns and relationships.

Relationships are loaded on access, through the run of both sides, so each is one range of an index. A payload
is available by its id (``message.content_ref``) and as a `BlobRef` (``message.content``).

A view computes some ids from stored values, and no index has the computed ones. The column types here add to
a comparison the same condition on the indexed value, so that ``Run.id == x`` is a look-up and not a scan.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    Text,
    and_,
    func,
    literal_column,
    type_coerce,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import foreign, registry, relationship, remote
from sqlalchemy.sql import operators
from sqlalchemy.sql.expression import BindParameter, bindparam
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from treering.compat.models.connections import HOMES
from treering.core.clock import from_datetime, to_datetime
from treering.core.encoding import decode_json
from treering.errors import Unsupported
from treering.runs.run import RUNS

# pyright: reportUnknownMemberType=false, reportMissingTypeArgument=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

_RESERVED: Final = ("announced", "input", "input_size", "computed_cost", "priced_by")
"""Keys that treering adds to the metadata of a span."""


class UtcDateTime(TypeDecorator[datetime]):
    """A time, stored as microseconds, read as an aware datetime in UTC."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> int | None:  # noqa: ARG002
        """Convert to microseconds; a naive datetime is in UTC."""
        return None if value is None else from_datetime(value)

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:  # noqa: ARG002
        """Convert to an aware datetime."""
        return None if value is None else to_datetime(value)


class RunMeta(TypeDecorator[dict]):
    """The metadata of a run."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return the metadata, with the error that ended it."""
        return decode_json(bytes(value)).get("meta", {})


class SpanMeta(TypeDecorator[dict]):
    """The metadata of a span, without treering's own keys."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> dict[str, Any]:
        """Return the metadata, with the error that ended it."""
        if value is None:
            return {}
        plain: dict[str, Any] = decode_json(dialect.treering_dictionary.expand(bytes(value)))
        return {name: each for name, each in plain.items() if name not in _RESERVED}


class _Indexed(TypeDecorator.Comparator):
    """Adds a condition on the indexed value to comparisons for equality."""

    def operate(self, op: Any, *other: Any, **options: Any) -> Any:
        plain = super().operate(op, *other, **options)
        value: Any = other[0] if other else None
        if op is not operators.eq or not isinstance(value, str | BindParameter):
            return plain  # also for columns: SQLAlchemy compares them with ==
        if isinstance(value, str):
            value = bindparam(None, value, type_=Text(), unique=True)
        own_type: Any = self.type
        own: Any = self.expr
        return and_(plain, own_type.hint(own.table, value))


class RunId(TypeDecorator[str]):
    """The id of a run, looked up by the name of its ref."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The name of the ref."""
        return view.c.ref_name == type_coerce(literal_column(f"'{RUNS}'"), Text()).concat(value)


class EventId(TypeDecorator[str]):
    """The id of a message, span or call, looked up through its run."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The run."""
        return view.c.run_id == RunOf(value)


class ResultId(TypeDecorator[str]):
    """The id of a tool result: that of its call with a suffix."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The run of the call."""
        return view.c.run_id == RunOf(func.replace(value, ":result", "", type_=Text()))


class RunOf(FunctionElement):
    """The run of an event."""

    type = Text()
    name = "run_of"
    inherit_cache = True


@compiles(RunOf, "sqlite")
def _run_in_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return f"treering_run_of({compiler.process(element.clauses, **options)})"


@compiles(RunOf, "postgresql")
def _run_in_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    value = compiler.process(element.clauses, **options)
    return f"(SELECT run FROM {HOMES} WHERE id IN ({value}, {value} || ':open') LIMIT 1)"


class BlobId(TypeDecorator[str]):
    """The address of a payload, looked up by its object or commit."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The object's name, or the batch."""
        return IsAt(view.c.key, view.c.object_name, view.c.batch, value)


class IsAt(FunctionElement):
    """Whether a payload has an address."""

    type = Integer()  # as a Boolean it would be compared with 1, and no index would see through that
    name = "is_at"
    inherit_cache = True


@compiles(IsAt, "sqlite")
def _in_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    key, _, _, value = (compiler.process(each, **options) for each in element.clauses)
    return f"{key} = treering_key({value})"


@compiles(IsAt, "postgresql")
def _in_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    _, object_name, batch, value = (compiler.process(each, **options) for each in element.clauses)
    name = f"CASE WHEN left({value}, 2) = 'o:' THEN decode(substr({value}, 3), 'hex') END"
    head = f"rtrim(rtrim(rtrim({value}, '0123456789'), '.'), '0123456789')"
    return f"({object_name} = {name} OR {batch} = substr({head}, 3, greatest(length({head}) - 3, 0)))"


class Read(TypeDecorator[Any]):
    """A part of a payload, read and verified through the store together with the row."""

    impl = Text
    cache_ok = True

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def process_bind_param(self, value: Any, dialect: Any) -> Any:  # noqa: ARG002
        """Refuse comparisons."""
        raise Unsupported(
            f"{self.part} of a BlobRef cannot be compared with {value!r} in SQL; select it by id"
        )

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        """Return the part of the payload at an address."""
        return dialect.treering_payloads.part(self.part, value)


# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleVariableOverride=false


class Entity(SQLModel, registry=registry()):
    """Base of the entities, with metadata of its own, separate from your tables."""


def _id(type_: Any) -> Any:
    return Field(sa_column=Column(type_, primary_key=True))


def _text(target: str | None = None, name: str | None = None) -> Any:
    keys = [ForeignKey(target)] if target else []
    return Field(sa_column=Column(name, Text(), *keys) if name else Column(Text(), *keys))


def _column(type_: Any) -> Any:
    return Field(sa_column=Column(type_))


class Run(Entity, table=True):
    """One execution; ``status`` is ``running`` until it ends (see `store.runs.mark_crashed`)."""

    __tablename__: ClassVar[Any] = "treering_run"

    id: str = _id(RunId())
    project_id: int | None = _column(Integer())
    created_at: datetime = _column(UtcDateTime())
    status: str = _text()
    meta: dict[str, Any] = _column(RunMeta())


class AgentSpan(Entity, table=True):
    """A span of an agent; ``end_ts`` is ``None`` and ``status`` is ``running`` while it runs."""

    __tablename__: ClassVar[Any] = "treering_agent_span"

    id: str = _id(EventId())
    run_id: str = _text("treering_run.id")
    agent_name: str = _text()
    start_ts: datetime = _column(UtcDateTime())
    end_ts: datetime | None = _column(UtcDateTime())
    status: str = _text()
    input_ref: str | None = _text("treering_blob_ref.id")
    output_ref: str | None = _text("treering_blob_ref.id")
    meta: dict[str, Any] = _column(SpanMeta())


class Message(Entity, table=True):
    """A message; ``cost_eur`` is at the rate of its day, and ``None`` without a price."""

    __tablename__: ClassVar[Any] = "treering_message"

    id: str = _id(EventId())
    run_id: str = _text("treering_run.id")
    agent_name: str | None = _text()
    role: str = _text()
    content_ref: str = _text("treering_blob_ref.id")
    model: str | None = _text()
    prompt_tokens: int | None = _column(Integer())
    completion_tokens: int | None = _column(Integer())
    total_tokens: int | None = _column(Integer())
    cost_eur: float | None = _column(Float())
    ts: datetime = _column(UtcDateTime())


class ToolCall(Entity, table=True):
    """A tool call."""

    __tablename__: ClassVar[Any] = "treering_tool_call"

    id: str = _id(EventId())
    run_id: str = _text("treering_run.id")
    agent_name: str | None = _text()
    tool_name: str = _text()
    input_ref: str | None = _text("treering_blob_ref.id")
    ts: datetime = _column(UtcDateTime())
    span_id: str | None = _text("treering_agent_span.id")


class ToolResult(Entity, table=True):
    """The result of a tool call."""

    __tablename__: ClassVar[Any] = "treering_tool_result"

    id: str = _id(ResultId())
    run_id: str = _text("treering_run.id")
    tool_call_id: str = _text("treering_tool_call.id")
    output_ref: str | None = _text("treering_blob_ref.id")
    status: str = _text()
    ts: datetime = _column(UtcDateTime())


class BlobRef(Entity, table=True):
    """A payload: ``kind`` is ``json`` or ``text``, ``data`` the value.

    ``kind``, ``data`` and ``sha256`` are read with the row; they cannot be compared in SQL. ``sha256`` is of
    the text in UTF-8, or of the JSON in canonical form (sorted keys, no spaces).
    """

    __tablename__: ClassVar[Any] = "treering_blob_ref"

    id: str = _id(BlobId())
    kind: str = _column(Read("kind"))
    data: Any = _column(Read("data"))
    sha256: str = _column(Read("sha256"))
    created_at: datetime = _column(UtcDateTime())


def _table(entity: Any) -> Any:
    return entity.__table__


def _columns_for_indexes() -> None:
    """Add the columns of the views that only serve index look-ups."""
    hidden: dict[Any, dict[str, Any]] = {
        Run: {"ref_name": Text()},
        BlobRef: {"key": LargeBinary(), "object_name": LargeBinary(), "batch": Text()},
    }
    for entity, columns in hidden.items():
        for name, type_ in columns.items():
            _table(entity).append_column(Column(name, type_))


class _Remote:
    """The columns of an entity's view, as the remote side of a relationship."""

    def __init__(self, entity: Any) -> None:
        self.c = self
        self._columns = _table(entity).c

    def __getattr__(self, name: str) -> Any:
        return remote(self._columns[name])


def _relate() -> None:
    def one(entity: Any, name: str, target: Any, condition: Any) -> None:
        setattr(entity, name, relationship(target, primaryjoin=condition, viewonly=True, uselist=False))

    def many(entity: Any, name: str, target: Any, condition: Any, order: Any) -> None:
        setattr(entity, name, relationship(target, primaryjoin=condition, viewonly=True, order_by=order))

    of_run: tuple[tuple[str, Any, Any], ...] = (
        ("spans", AgentSpan, AgentSpan.start_ts),
        ("messages", Message, Message.ts),
        ("tool_calls", ToolCall, ToolCall.ts),
        ("tool_results", ToolResult, ToolResult.ts),
    )
    for name, target, order in of_run:
        column = _table(target).c.run_id
        many(Run, name, target, _table(Run).c.id == foreign(column), order)
        found = and_(remote(_table(Run).c.id) == foreign(column), RunId.hint(_Remote(Run), foreign(column)))
        one(target, "run", Run, found)

    calls, results, spans = _table(ToolCall).c, _table(ToolResult).c, _table(AgentSpan).c
    many(
        AgentSpan,
        "tool_calls",
        ToolCall,
        and_(spans.id == foreign(calls.span_id), spans.run_id == foreign(calls.run_id)),
        ToolCall.ts,
    )
    one(
        ToolCall,
        "span",
        AgentSpan,
        and_(remote(spans.id) == foreign(calls.span_id), remote(spans.run_id) == foreign(calls.run_id)),
    )
    one(
        ToolCall,
        "result",
        ToolResult,
        and_(calls.id == foreign(results.tool_call_id), calls.run_id == foreign(results.run_id)),
    )
    one(
        ToolResult,
        "tool_call",
        ToolCall,
        and_(
            remote(calls.id) == foreign(results.tool_call_id), remote(calls.run_id) == foreign(results.run_id)
        ),
    )
    payloads: tuple[tuple[Any, str, str], ...] = (
        (AgentSpan, "input", "input_ref"),
        (AgentSpan, "output", "output_ref"),
        (Message, "content", "content_ref"),
        (ToolCall, "input", "input_ref"),
        (ToolResult, "output", "output_ref"),
    )
    for entity, name, column_name in payloads:
        column = _table(entity).c[column_name]
        found = and_(
            remote(_table(BlobRef).c.id) == foreign(column), BlobId.hint(_Remote(BlobRef), foreign(column))
        )
        one(entity, name, BlobRef, found)


_columns_for_indexes()
_relate()
