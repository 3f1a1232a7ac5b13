"""Types of columns: how stored values become Python's, and which index finds them.

A view computes some ids from what is stored, and no index knows the computed ones. The types here add to a
comparison the same condition on what is indexed, so that ``Run.id == x`` is a look-up and not a scan.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Integer, LargeBinary, Text, and_, func, literal_column, type_coerce
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.expression import BindParameter, bindparam
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from treering.core.clock import from_datetime, to_datetime
from treering.core.encoding import decode_json
from treering.engines.relational.fragments import filled
from treering.errors import Unsupported
from treering.models.view_sql import HOMES
from treering.views.recording.runs import RUNS

# pyright: reportUnknownMemberType=false, reportMissingTypeArgument=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

_RESERVED: Final = ("announced", "input", "input_size", "computed_cost", "priced_by")
"""What the recorder adds to the metadata of a span."""


class Moment(TypeDecorator[datetime]):
    """A time, stored as microseconds, read as an aware datetime in UTC."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> int | None:  # noqa: ARG002
        """A naive datetime is taken as UTC."""
        return None if value is None else from_datetime(value)

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:  # noqa: ARG002
        """Exact to the microsecond."""
        return None if value is None else to_datetime(value)


class RunMeta(TypeDecorator[dict]):
    """The metadata in a run's state."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> dict[str, Any]:  # noqa: ARG002
        """What was given, and the error that ended it."""
        return decode_json(bytes(value)).get("meta", {})


class SpanMeta(TypeDecorator[dict]):
    """The metadata of a span, without what the recorder notes for itself."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> dict[str, Any]:  # noqa: ARG002
        """What was given, and the error that ended it."""
        if value is None:
            return {}
        plain: dict[str, Any] = decode_json(filled(bytes(value)))
        return {name: each for name, each in plain.items() if name not in _RESERVED}


class _Indexed(TypeDecorator.Comparator):
    """Comparisons for equality that also say what the index knows."""

    def operate(self, op: Any, *other: Any, **options: Any) -> Any:
        plain = super().operate(op, *other, **options)
        value: Any = other[0] if other else None
        if op is not operators.eq or not isinstance(value, str | BindParameter):
            return plain  # also for columns: whether two are the same one is asked in this way
        if isinstance(value, str):
            value = bindparam(None, value, type_=Text(), unique=True)
        own_type: Any = self.type
        own: Any = self.expr
        return and_(plain, own_type.hint(own.table, value))


class RunId(TypeDecorator[str]):
    """The id of a run, found by the name of its ref."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The name of the ref."""
        return view.c.ref_name == type_coerce(literal_column(f"'{RUNS}'"), Text()).concat(value)


class EventId(TypeDecorator[str]):
    """The id of a message, a span or a call, found through the run that it is of."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The run."""
        return view.c.run_id == RunOf(value)


class ResultId(TypeDecorator[str]):
    """The id of a tool's result, which is that of its call and a word."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The run of the call."""
        return view.c.run_id == RunOf(func.replace(value, ":result", "", type_=Text()))


class RunOf(FunctionElement):
    """The run that an event is of."""

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
    """The address of a payload, found by its object or its commit."""

    impl = Text
    cache_ok = True
    comparator_factory: Any = _Indexed

    @staticmethod
    def hint(view: Any, value: Any) -> Any:
        """The object's name, or the batch that brought it."""
        return IsAt(view.c.key, view.c.object_name, view.c.batch, value)


class IsAt(FunctionElement):
    """Whether a payload is where an address says."""

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
    """A part of a payload: read through the store, which checks it, when the row is."""

    impl = Text
    cache_ok = True

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def process_bind_param(self, value: Any, dialect: Any) -> Any:  # noqa: ARG002
        """Payloads are not searched by what is in them."""
        raise Unsupported(
            f"{self.part} of a BlobRef is read with the row and not compared with {value!r}; select it by id"
        )

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        """The part of the payload at this address."""
        return dialect.treering_payloads.part(self.part, value)
