"""An open transaction of PostgreSQL, as the shared statements use it: questions travel together.

What is asked or told is queued; it goes out with the next exchange, when someone needs an answer. A
connection that died while it was idle is noticed then, and as long as no answer was seen the same goes out
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from treering.engines.postgres.failures import Lost
from treering.engines.postgres.pipeline import Answer, Pipeline
from treering.engines.postgres.pool import Pool
from treering.engines.postgres.statements import MAX_PARAMETERS
from treering.engines.relational.session import RECEIPTS, Row, ask_in_chunks, for_rows

_LOCK: Final = "SELECT seq, committed_at_us, scopes_dropped FROM space WHERE no = ? FOR UPDATE"
_AT_ONCE: Final = 2000
"""How many statements may be under way before their answers are taken in."""


class PostgresSession:
    """An open transaction on a connection."""

    __slots__ = ("_answered", "_pool", "pipeline")

    def __init__(self, pool: Pool, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._pool = pool
        self._answered = False

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query; also of a statement with RETURNING."""
        answer = self.pipeline.ask(sql, parameters)
        self.exchange()
        return self.pipeline.rows(answer)

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """The rows of a query, which goes out with the next exchange."""
        return _Later(self, self.pipeline.ask(sql, parameters))

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        answer = self.pipeline.ask(sql, parameters)
        self.exchange()
        return answer.count

    def tell(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement with the next exchange."""
        self.pipeline.ask(sql, parameters)

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; how many rows were changed in all."""
        count = 0
        for start in range(0, len(rows), _AT_ONCE):
            answers = self._ask_many(sql, rows[start : start + _AT_ONCE], distinct=False)
            self.exchange()
            count += sum(answer.count for answer in answers)
        return count

    def tell_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row, with the next exchange."""
        if len(rows) == 1:
            self.pipeline.ask(sql, rows[0])
        elif len(rows) > _AT_ONCE:
            self.many(sql, rows)
        else:
            self._ask_many(sql, rows, distinct=True)

    def numbers(self, table: str, count: int) -> list[int]:
        """Fresh numbers from the table's sequence: never given twice, in no order that means anything."""
        if not count:
            return []
        sql = f"SELECT nextval('{table}_no_seq') FROM generate_series(1, ?)"
        return [number for (number,) in self.rows(sql, (count,))]

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Lock the row of a space; its counters, and the batches that are there already."""
        counters = _Later(self, self.pipeline.ask(_LOCK, (space,)))
        return counters, ask_in_chunks(self, RECEIPTS, (space,), batches) if batches else ()

    def exchange(self) -> None:
        """Send what is queued and wait for the answers."""
        try:
            self.pipeline.collect()
        except Lost:
            if self._answered:
                raise
            # The connection died while it was idle. Nobody has seen an answer yet, so it does not matter.
            dead = self.pipeline
            self.pipeline = self._pool.exchange(dead)
            self.pipeline.ask_again(dead)
            self.pipeline.collect()
        self._answered = True

    def _ask_many(self, sql: str, rows: Sequence[Sequence[Any]], *, distinct: bool) -> list[Answer]:
        ask = self.pipeline.ask
        start = 0
        answers: list[Answer] = []
        for size in sizes_of(len(rows), len(rows[0]) if rows else 1):
            together = for_rows(sql, size, distinct=distinct) if size > 1 else sql
            if together is None:
                answers += [ask(sql, row) for row in rows[start:]]
                break
            chunk = rows[start : start + size]
            answers.append(ask(together, [value for row in chunk for value in row] if size > 1 else chunk[0]))
            start += size
        return answers


class _Later:
    """Rows that are awaited when someone looks at them."""

    __slots__ = ("_answer", "_session")

    def __init__(self, session: PostgresSession, answer: Answer) -> None:
        self._session = session
        self._answer = answer

    def __iter__(self) -> Iterator[Row]:
        if self._answer.result is None:
            self._session.exchange()
        return iter(self._session.pipeline.rows(self._answer))


def sizes_of(rows: int, columns: int) -> Iterable[int]:
    """How many rows go into each statement: few distinct sizes, so few statements to prepare."""
    size = 64
    while size * columns > MAX_PARAMETERS:
        size //= 2
    while rows:
        while size > rows:
            size //= 4
        size = max(size, 1)
        yield size
        rows -= size
