"""A connection that talks in exchanges: many statements go out, then all their answers come in.

The time of a commit is mostly the way to the server and back, so statements are not sent one by one.
`Pipeline.query` only queues a statement and gives an `Answer`; `Pipeline.collect` sends all that is queued
and takes in all that is due. psycopg's own pipeline offers the same for several times the processor time,

Every statement is prepared under a name when it is first seen. Numbers travel as text and are declared as
``bigint``, the rest is left to the server to infer, so one text is one prepared statement, whatever the
values.

A transaction that writes is held back until an answer is needed (`Pipeline.begin`). If none is needed before
its end, it goes without ``BEGIN`` and ``COMMIT``: to the server, all that comes before one sync is a
transaction. And if the same statements came together often, they go as one.

**Invariant:** after an error nothing that was queued behind it has run, and the connection is used again only
after `roll_back` said that it may be.
"""

from __future__ import annotations

import re
import select
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal

from psycopg import Connection, Error, OperationalError
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8Dumper

from treering.engines.postgres.errors import Lost, of_result, translated
from treering.errors import InvalidInput, TreeringError

if TYPE_CHECKING:
    from collections.abc import Iterator


# -----------------------------------------------------------------------------------------------------------
# Statements in the form that PostgreSQL wants: numbered parameters, and several in one.
#
# The shared statements mark a parameter by ``?``. Each text is translated once and remembered; there are
# only as many texts as the code has statements (value lists come in a few sizes).


_PARAMETER: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\?")
_GUARD: Final = re.compile(
    r"WITH moved AS \(UPDATE (?P<table>\w+) SET (?P<column>\w+) = (?P<value>\$\d+)(?P<others>.*) "
    r"WHERE (?P<key>\w+ = \S+) AND (?P<condition>.*) RETURNING no\) SELECT 1 / count\(\*\) FROM moved"
)
_CHANGE: Final = re.compile(r"(?P<kind>INSERT INTO|UPDATE) (?P<table>\w+) .*", re.DOTALL)
_FIRST_ROW: Final = re.compile(
    r"(?P<head>INSERT INTO \w+ \((?P<columns>[^)]*)\) VALUES \()(?P<values>[^)]*)(?P<tail>.*)", re.DOTALL
)

MAX_PARAMETERS: Final = 4096
"""How many values one statement takes at most; the protocol's own limit is 65,535."""


@lru_cache(maxsize=4096)
def numbered(sql: str) -> bytes:
    """The statement with ``$1``, ``$2`` ... for ``?``, as it goes over the wire."""
    return _numbered(sql, count(1)).encode()


def _numbered(sql: str, numbers: Iterator[int]) -> str:
    return _PARAMETER.sub(lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], sql)


@lru_cache(maxsize=1024)
def bundled(statements: tuple[str, ...]) -> str | None:
    """One statement that does what these do, with the same parameters; ``None`` if none means the same.

    The first is a condition (`Current.advanced`): an update of one row, and a count that fails if it did not
    take place. The second is an insert that names that row, and fails in one statement without it; where
    there is one that is not as expected, the update divides by zero itself. To count takes the
    server longer. The others come behind these two, and do not see each other's rows: what
    is updated has to be a table that no other one changes.
    """
    numbers = count(1)
    guard, *changes = [_numbered(sql, numbers) for sql in statements]
    moved, first = _GUARD.fullmatch(guard), _FIRST_ROW.fullmatch(changes[0]) if changes else None
    found = [_CHANGE.fullmatch(each) for each in changes]
    tables = [(change["kind"], change["table"]) for change in found if change is not None]
    names = [table for _, table in tables]
    is_mixed = any(kind == "UPDATE" and names.count(table) > 1 for kind, table in tables)
    if moved is None or first is None or is_mixed or len(tables) < len(changes):
        return None
    columns, values = first["columns"].split(", "), first["values"].split(", ")
    if moved["table"] not in columns:
        return None
    values[columns.index(moved["table"])] = "(SELECT no FROM moved)"
    divided = f"{moved['value']} / (CASE WHEN {moved['condition']} THEN 1 ELSE 0 END){moved['others']}"
    update = f"UPDATE {moved['table']} SET {moved['column']} = {divided} WHERE {moved['key']} RETURNING no"
    parts = [f"moved AS ({update})"]
    parts += [f"c{place} AS ({sql})" for place, sql in enumerate(changes[1:], 1)]
    return f"WITH {', '.join(parts)} {first['head']}{', '.join(values)}{first['tail']}"


# -----------------------------------------------------------------------------------------------------------

Row = tuple[Any, ...]

_STATEMENTS_LIMIT: Final = 2000
"""How many prepared statements a connection keeps before it starts anew."""

_BUNDLES_LIMIT: Final = 64
_BUNDLED_FROM: Final = 2
"""Statements that came together so many times become one, but no more than so many on a connection.

Such a statement takes the server longer to plan and more room to keep.
"""

_BUNDLED_PARAMETERS: Final = 256
_GOOD: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_INT8: Final = 20


class Answer:
    """A statement under way; ``result`` is there after the next `Pipeline.collect`."""

    __slots__ = ("parameters", "result", "sql")

    def __init__(self, sql: str, parameters: Sequence[Any]) -> None:
        self.sql = sql
        self.parameters = parameters
        self.result: PGresult | None = None

    @property
    def count(self) -> int:
        """How many rows were changed (or selected)."""
        return (self.result.command_tuples or 0) if self.result is not None else 0


class Pipeline:
    """One connection, used by one thread at a time. ``where`` names the database in errors."""

    def __init__(self, connection: Connection[Any], where: str) -> None:
        connection.adapters.register_dumper(int, Int8Dumper)
        self.where = where
        self.dead = False
        self.failed = False
        """Whether the open transaction can only be rolled back."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._converter = Transformer(connection)
        self._names: dict[str, bytes] = {}
        self._unproven: list[str] = []
        self._given_names = 0
        self._due: list[Answer | Literal["prepare", "sync"]] = []
        self._held: list[Answer] | None = None
        self._sightings: dict[tuple[str, ...], int] = {}
        self._bundles: dict[tuple[str, ...], str] = {}
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._pgconn.enter_pipeline_mode()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Answer:
        """Queue a statement."""
        answer = Answer(sql, parameters)
        if self._held is None:
            self._queue(answer, *self._dumped(parameters))
        else:
            self._held.append(answer)
        return answer

    def begin(self) -> None:
        """Begin a transaction that writes: what is asked is held back until an answer is needed."""
        self._held = []

    def commit(self) -> None:
        """End a transaction that writes; it is durable when this returns."""
        if self._held is None:
            self.query("COMMIT")
        else:
            held, self._held = self._held, None
            ready = [(answer, *self._dumped(answer.parameters)) for answer in self._bundled(held)]
            self.dead = True  # until all is queued: a sync would commit a part
            for answer, values, formats in ready:
                self._queue(answer, values, formats)
            self.dead = False
        self.collect()

    def ask_again(self, other: Pipeline) -> None:
        """Queue what another connection was asked and did not live to answer."""
        for due in other._due:
            if isinstance(due, Answer):
                self.query(due.sql, due.parameters)
                self._due[-1] = due
                due.result = None

    def collect(self) -> None:
        """Send what is queued and take in every answer. Raises the first error among them."""
        if self._held is not None:
            held, self._held = self._held, None
            self.query(_BEGIN)
            for answer in held:
                self._queue(answer, *self._dumped(answer.parameters))
        if not self._due:
            return
        if self._due[-1] != "sync":
            self.send()
        failure: PGresult | None = None
        try:
            for due in self._due:
                result = self._receive()
                status = result.status
                if due == "sync":
                    while status != ExecStatus.PIPELINE_SYNC:
                        failure = failure or result  # to commit was refused
                        self._receive_end()
                        result = self._receive()
                        status = result.status
                    continue
                if status in _GOOD:
                    if due != "prepare":
                        due.result = result
                elif status == ExecStatus.FATAL_ERROR and failure is None:
                    failure = result
                self._receive_end()
        except Error as error:
            raise self._failed(error) from None
        if failure is None:
            self._due.clear()
            self._unproven.clear()
            return
        refusal = self._refused(failure)
        if not self.dead:
            self._due.clear()
            self._forget_unproven()
        raise refusal

    def send(self) -> None:
        """Send what is queued without waiting for answers; the next `collect` takes them in."""
        try:
            # A sync and not only a flush: behind it the server listens again after an error, and counts
            # the time that we keep it waiting.
            self._pgconn.pipeline_sync()
            self._due.append("sync")
            while self._pgconn.flush():
                # The server does not read on while its own answers wait to be read.
                self._poll.modify(self._pgconn.socket, select.POLLIN | select.POLLOUT)
                self._poll.poll()
                self._pgconn.consume_input()
                self._poll.modify(self._pgconn.socket, select.POLLIN)
        except Error as error:
            raise self._failed(error) from None

    def roll_back(self) -> None:
        """Undo the open transaction, whatever state it is in. The connection is fresh afterwards, or dead."""
        try:
            self._held = None
            self._take_in_leftovers()
            if self._pgconn.transaction_status != TransactionStatus.IDLE:
                self.query("ROLLBACK")
                self.collect()
            self.failed = False
        except TreeringError:
            self.dead = True

    def rows(self, answer: Answer) -> list[Row]:
        """The rows of an answer that was collected."""
        count = answer.result.ntuples if answer.result is not None else 0
        if not count:
            return []
        self._converter.set_pgresult(answer.result)
        return self._converter.load_rows(0, count, tuple)

    def tidy(self) -> None:
        """Between two transactions: take in what is still due, and drop statements when they are too many."""
        self.collect()
        if len(self._names) > _STATEMENTS_LIMIT:
            self._names.clear()
            self._bundles.clear()
            self.query("DEALLOCATE ALL")
            self.collect()
            self._names.clear()

    def close(self) -> None:
        """End the connection."""
        self.dead = True
        self._connection.close()

    def _bundled(self, answers: list[Answer]) -> list[Answer]:
        """The same as one statement, if these come together often."""
        if len(answers) <= 1:
            return answers
        together = tuple([answer.sql for answer in answers])
        parameters = [value for answer in answers for value in answer.parameters]
        sql = self._bundles.get(together) or self._seen(together, len(parameters))
        return answers if sql is None else [Answer(sql, parameters)]

    def _seen(self, together: tuple[str, ...], parameters: int) -> str | None:
        """Count a sighting of statements; the one that they become, when it is time for that."""
        if len(self._bundles) >= _BUNDLES_LIMIT:
            return None
        seen = self._sightings.pop(together, 0) + 1
        if seen > _BUNDLED_FROM:
            sql = bundled(together)
            if sql is not None and parameters <= _BUNDLED_PARAMETERS:
                self._bundles[together] = sql
                return sql
        if len(self._sightings) >= _BUNDLES_LIMIT:
            self._sightings.pop(next(iter(self._sightings)))  # the one that was not seen for longest
        self._sightings[together] = seen
        return None

    def _queue(self, answer: Answer, values: Any, formats: Any) -> None:
        try:
            name = self._names.get(answer.sql) or self._prepare(answer.sql, answer.parameters)
            self._pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        except Error as error:
            raise self._failed(error) from None
        self._due.append(answer)

    def _dumped(self, parameters: Sequence[Any]) -> tuple[Any, Any]:
        if not parameters:
            return (), ()
        try:
            values = self._converter.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        except Error as error:
            raise self._failed(error) from None
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{self.where} cannot store this text: {error}; nothing was written") from None
        return values, self._converter.formats

    def _prepare(self, sql: str, parameters: Sequence[Any]) -> bytes:
        self._given_names += 1
        name = b"t%d" % self._given_names
        types = [_INT8 if type(value) is int else 0 for value in parameters]
        self._pgconn.send_prepare(name, numbered(sql), types)
        self._due.append("prepare")
        self._names[sql] = name
        self._unproven.append(sql)
        return name

    def _receive(self) -> PGresult:
        result = self._next_result()
        if result is None:
            raise OperationalError("the server closed the connection")
        return result

    def _receive_end(self) -> None:
        while self._next_result() is not None:
            pass

    def _next_result(self) -> PGresult | None:
        pgconn = self._pgconn
        while pgconn.is_busy():
            self._poll.poll()
            pgconn.consume_input()
        return pgconn.get_result()

    def _take_in_leftovers(self) -> None:
        """What was queued when something else went wrong; its own errors do not matter any more."""
        try:
            self.collect()
        except TreeringError:
            if self.dead:
                raise

    def _forget_unproven(self) -> None:
        # Some of these were prepared, some not. Their names are not used again, so none can clash.
        for sql in self._unproven:
            self._names.pop(sql, None)
        self._unproven.clear()

    def _refused(self, result: PGresult) -> TreeringError:
        self.failed = True
        failure = of_result(result, self.where)
        if isinstance(failure, Lost) or self._pgconn.status == ConnStatus.BAD:
            self.dead = True
        return failure

    def _failed(self, error: Error) -> TreeringError:
        failure = translated(error, self.where)
        if isinstance(failure, Lost) or self._pgconn.status == ConnStatus.BAD:
            self.dead = True
        return failure
