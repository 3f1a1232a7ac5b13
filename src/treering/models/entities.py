"""The entities, with the columns and relationships of the document, under its names.

Relationships are loaded when they are touched, through the run that both sides are of, so each is one range
of an index. A payload is there by its id (``message.content_ref``) and as a `BlobRef` (``message.content``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Column, Float, ForeignKey, Integer, LargeBinary, Text, and_
from sqlalchemy.orm import foreign, registry, relationship, remote
from sqlmodel import Field, SQLModel

from treering.models.columns import BlobId, EventId, Moment, Read, ResultId, RunId, RunMeta, SpanMeta

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleVariableOverride=false


class Entity(SQLModel, registry=registry()):
    """What is read from the store. It has its own metadata: your tables and these never meet."""


def _id(type_: Any) -> Any:
    return Field(sa_column=Column(type_, primary_key=True))


def _text(target: str | None = None, name: str | None = None) -> Any:
    keys = [ForeignKey(target)] if target else []
    return Field(sa_column=Column(name, Text(), *keys) if name else Column(Text(), *keys))


def _column(type_: Any) -> Any:
    return Field(sa_column=Column(type_))


class Run(Entity, table=True):
    """One execution; ``status`` is ``running`` until it ends (`store.runs.mark_crashed` finds the dead)."""

    __tablename__: ClassVar[Any] = "treering_run"

    id: str = _id(RunId())
    project_id: int | None = _column(Integer())
    created_at: datetime = _column(Moment())
    status: str = _text()
    meta: dict[str, Any] = _column(RunMeta())


class AgentSpan(Entity, table=True):
    """A stretch of an agent's work; ``end_ts`` is ``None`` and ``status`` is ``running`` while it is open."""

    __tablename__: ClassVar[Any] = "treering_agent_span"

    id: str = _id(EventId())
    run_id: str = _text("treering_run.id")
    agent_name: str = _text()
    start_ts: datetime = _column(Moment())
    end_ts: datetime | None = _column(Moment())
    status: str = _text()
    input_ref: str | None = _text("treering_blob_ref.id")
    output_ref: str | None = _text("treering_blob_ref.id")
    meta: dict[str, Any] = _column(SpanMeta())


class Message(Entity, table=True):
    """A message; ``cost_eur`` is at the rate of its day, and ``None`` where it has no price."""

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
    ts: datetime = _column(Moment())


class ToolCall(Entity, table=True):
    """A call of a tool, by the span that it is in."""

    __tablename__: ClassVar[Any] = "treering_tool_call"

    id: str = _id(EventId())
    run_id: str = _text("treering_run.id")
    agent_name: str | None = _text()
    tool_name: str = _text()
    input_ref: str | None = _text("treering_blob_ref.id")
    ts: datetime = _column(Moment())
    span_id: str | None = _text("treering_agent_span.id")


class ToolResult(Entity, table=True):
    """What a call gave."""

    __tablename__: ClassVar[Any] = "treering_tool_result"

    id: str = _id(ResultId())
    run_id: str = _text("treering_run.id")
    tool_call_id: str = _text("treering_tool_call.id")
    output_ref: str | None = _text("treering_blob_ref.id")
    status: str = _text()
    ts: datetime = _column(Moment())


class BlobRef(Entity, table=True):
    """A payload, wherever it lies: ``kind`` is ``json`` or ``text``, ``data`` the value itself.

    ``kind``, ``data`` and ``sha256`` (its object name) are read with the row; they cannot be compared in SQL.
    """

    __tablename__: ClassVar[Any] = "treering_blob_ref"

    id: str = _id(BlobId())
    kind: str = _column(Read("kind"))
    data: Any = _column(Read("data"))
    sha256: str = _column(Read("sha256"))
    created_at: datetime = _column(Moment())


def _table(entity: Any) -> Any:
    return entity.__table__


def _columns_for_indexes() -> None:
    """Columns of the views that no entity shows (see `models.columns`)."""
    hidden: dict[Any, dict[str, Any]] = {
        Run: {"ref_name": Text()},
        BlobRef: {"key": LargeBinary(), "object_name": LargeBinary(), "batch": Text()},
    }
    for entity, columns in hidden.items():
        for name, type_ in columns.items():
            _table(entity).append_column(Column(name, type_))


class _Remote:
    """The columns of an entity's view, as the far side of a relationship."""

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
