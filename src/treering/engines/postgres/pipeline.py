"""A connection in libpq's pipeline mode: many statements go out, then all of their results come in.

Most of the time of a commit is the round trip to the server, so statements are not sent one by one.
`Pipeline.query` only queues a statement and returns a `PendingResult`; `Pipeline.collect` sends what is
queued and receives every result that is due. psycopg's own pipeline does the same at several times the CPU
cost, so this one talks to libpq through `psycopg.pq`, and leaves the conversion of values to psycopg.

Every statement is prepared under a name when it is first used. Integers are declared as ``bigint`` and other
types are left to the server to infer, so one statement text is one prepared statement, whatever the values.
Behind a connection pooler, which may give each transaction another connection of the server, nothing is
prepared: the server parses every statement, and no name can mean another client's statement.

A write transaction is held back until a result is needed (`Pipeline.begin`). If none is needed before its
end, it is sent without ``BEGIN`` and ``COMMIT``: the server runs everything up to a sync as one transaction.

**Invariant:** after an error, nothing that was queued behind it has run, and the connection is used again
only after `roll_back` has succeeded.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final, Literal

from psycopg import Connection, Error, OperationalError
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8Dumper

from treering.engines.postgres.errors import ConnectionLost, error_of_result, translate
from treering.errors import InvalidInput, TreeringError

Row = tuple[Any, ...]

MAX_PARAMETERS: Final = 4096
"""How many values one statement takes at most; the limit of the protocol is 65,535."""

_MAX_STATEMENTS: Final = 2000
"""How many prepared statements a connection keeps before it drops them all."""

_GOOD: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
FLUSH: Final = "SELECT pg_logical_emit_message(true, 'treering', '')"
"""A transaction that changes nothing, but ends only when it is durable, and so is everything before it."""
_INT8: Final = 20
_PARAMETER: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\?")


@lru_cache(maxsize=4096)
def numbered(sql: str) -> bytes:
    """Return the statement with ``$1``, ``$2`` ... for ``?``, as it goes over the wire."""
    numbers = count(1)
    return _PARAMETER.sub(lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], sql).encode()


def _types(parameters: Sequence[Any]) -> list[int]:
    return [_INT8 if type(value) is int else 0 for value in parameters]


class PendingResult:
    """The result of a queued statement; ``result`` is set by the next `Pipeline.collect`."""

    __slots__ = ("parameters", "result", "sql")

    def __init__(self, sql: str, parameters: Sequence[Any]) -> None:
        self.sql = sql
        self.parameters = parameters
        self.result: PGresult | None = None

    @property
    def count(self) -> int:
        """How many rows were changed (or selected)."""
        return (self.result.command_tuples or 0) if self.result is not None else 0

    def integer(self, column: int) -> int:
        """Return a ``bigint`` of the first row. Needs no connection, unlike `Pipeline.rows`."""
        value = None if self.result is None else self.result.get_value(0, column)
        assert value is not None  # noqa: S101 - asked only of results that have it
        return int.from_bytes(value, "big", signed=True)


class Pipeline:
    """One connection, used by one thread at a time. ``where`` names the database in errors."""

    def __init__(self, connection: Connection[Any], where: str, *, is_pooled: bool = False) -> None:
        connection.adapters.register_dumper(int, Int8Dumper)
        self.where = where
        self.is_pooled = is_pooled
        """Whether a pooler is in between: what is set for the session is lost, or set for somebody else."""
        self.dead = False
        self.failed = False
        """Whether the open transaction can only be rolled back."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._converter = Transformer(connection)
        self._names: dict[str, bytes] = {}
        self._unproven: list[str] = []
        """Statements whose preparation has not been confirmed."""
        self._prefix = b"t" + os.urandom(6).hex().encode()
        """Names of this connection only, should a pooler that was not noticed mix up connections."""
        self._last_name = 0
        self._due: list[PendingResult | Literal["prepare", "sync"]] = []
        self._held: list[PendingResult] | None = None
        """The statements of a write transaction that has not been sent."""
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._pgconn.enter_pipeline_mode()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> PendingResult:
        """Queue a statement."""
        pending = PendingResult(sql, parameters)
        if self._held is None:
            self._queue(pending, *self._dump(parameters))
        else:
            self._held.append(pending)
        return pending

    def begin(self) -> None:
        """Begin a write transaction: statements are held back until a result is needed."""
        self._held = []

    def commit(self, *, flush: bool = False) -> None:
        """Commit a write transaction; it is durable when this returns.

        With ``flush``, the transaction was told not to wait until it is durable (`PostgresSession.relax`), so
        another one behind it does.
        """
        if flush and self._held is not None:
            self._begin_held()
        if self._held is None:
            self.query("COMMIT")
        else:
            held, self._held = self._held, None
            ready = [(pending, *self._dump(pending.parameters)) for pending in held]
            self.dead = True  # until all are queued: a sync would commit a part of them
            for pending, values, formats in ready:
                self._queue(pending, values, formats)
            self.dead = False
        if flush:
            self.query(FLUSH)  # before the sync, so that all results arrive together
        self.collect()

    def collect(self) -> None:
        """Send what is queued and receive every result. Raises the first error among them."""
        if self._held is not None:
            self._begin_held()
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
                        failure = failure or result  # the commit was refused
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
            raise self._connection_failed(error) from None
        if failure is None:
            self._due.clear()
            self._unproven.clear()
            return
        refusal = self._statement_failed(failure)
        if not self.dead:
            self._due.clear()
            self._forget_unproven()
        raise refusal

    def _begin_held(self) -> None:
        held, self._held = self._held or [], None
        ready = [(pending, *self._dump(pending.parameters)) for pending in held]
        self.query(_BEGIN)
        for pending, values, formats in ready:
            self._queue(pending, values, formats)

    def send(self) -> None:
        """Send what is queued without waiting; the next `collect` receives the results."""
        try:
            # A sync, not just a flush: after a sync the server recovers from an error, and its timeout for
            # idle transactions starts to count.
            self._pgconn.pipeline_sync()
            self._due.append("sync")
            while self._pgconn.flush():
                # The server stops reading while its own results wait to be read.
                self._poll.modify(self._pgconn.socket, select.POLLIN | select.POLLOUT)
                self._poll.poll()
                self._pgconn.consume_input()
                self._poll.modify(self._pgconn.socket, select.POLLIN)
        except Error as error:
            raise self._connection_failed(error) from None

    def resend(self, lost: Pipeline) -> None:
        """Queue the statements for which another connection died without returning a result."""
        for due in lost._due:
            if isinstance(due, PendingResult):
                self.query(due.sql, due.parameters)
                self._due[-1] = due
                due.result = None

    def roll_back(self) -> None:
        """Roll back the open transaction, whatever its state. Afterwards the connection is clean, or dead."""
        try:
            self._held = None
            self._discard_due()
            if self._pgconn.transaction_status != TransactionStatus.IDLE:
                self.query("ROLLBACK")
                self.collect()
            self.failed = False
        except TreeringError:
            self.dead = True

    def rows(self, pending: PendingResult) -> list[Row]:
        """Return the rows of a result that was collected."""
        count = pending.result.ntuples if pending.result is not None else 0
        if not count:
            return []
        self._converter.set_pgresult(pending.result)
        return self._converter.load_rows(0, count, tuple)

    def reset(self) -> None:
        """Between two transactions: receive what is due, and drop statements when there are too many."""
        self.collect()
        if len(self._names) > _MAX_STATEMENTS:
            self._names.clear()
            self.query("DEALLOCATE ALL")
            self.collect()
            self._names.clear()

    def close(self) -> None:
        """Close the connection."""
        self.dead = True
        self._connection.close()

    def _queue(self, pending: PendingResult, values: Any, formats: Any) -> None:
        try:
            if self.is_pooled:
                types = _types(pending.parameters)
                self._pgconn.send_query_params(numbered(pending.sql), values, types, formats, Format.BINARY)
            else:
                name = self._names.get(pending.sql) or self._prepare(pending.sql, pending.parameters)
                self._pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        except Error as error:
            raise self._connection_failed(error) from None
        self._due.append(pending)

    def _dump(self, parameters: Sequence[Any]) -> tuple[Any, Any]:
        if not parameters:
            return (), ()
        try:
            values = self._converter.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        except Error as error:
            raise self._connection_failed(error) from None
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{self.where} cannot store this text: {error}; nothing was written") from None
        return values, self._converter.formats

    def _prepare(self, sql: str, parameters: Sequence[Any]) -> bytes:
        self._last_name += 1
        name = self._prefix + b"%d" % self._last_name
        self._pgconn.send_prepare(name, numbered(sql), _types(parameters))
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

    def _discard_due(self) -> None:
        """Receive what was queued when something else failed; its own errors do not matter any more."""
        try:
            self.collect()
        except TreeringError:
            if self.dead:
                raise

    def _forget_unproven(self) -> None:
        # Some of these were prepared and some were not. Their names are never used again, so none can clash.
        for sql in self._unproven:
            self._names.pop(sql, None)
        self._unproven.clear()

    def _statement_failed(self, result: PGresult) -> TreeringError:
        self.failed = True
        return self._note_if_dead(error_of_result(result, self.where))

    def _connection_failed(self, error: Error) -> TreeringError:
        return self._note_if_dead(translate(error, self.where))

    def _note_if_dead(self, error: TreeringError) -> TreeringError:
        if isinstance(error, ConnectionLost) or self._pgconn.status == ConnStatus.BAD:
            self.dead = True
        return error
