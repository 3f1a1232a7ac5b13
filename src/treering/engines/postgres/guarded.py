"""A commit that is decided before it holds a lock: one round trip, guarded row by row.

What a batch needs to know was read, or cached, before the transaction began, so other writers may have
changed it since. `GuardedSession` writes the rows of such a commit (`sql.commit.write` does not notice) so
that it goes through only if nothing that the decision relied on has changed:

- The first statement moves the counters of the space, which also locks it, and fails if anything was removed
  from the space. From here on no other commit can come between.
- The numbers of the commit were only predicted: if others have committed meanwhile, its sequence numbers and
  its time are higher. The first statement keeps the difference in two settings of the transaction, and every
  later statement adds it (`shifted`).
- A ref is updated only from the version, scope and value that the decision saw, a list only from the length
  that it saw. Whatever is new is inserted, and fails if it exists.

A condition that does not hold divides by zero, or violates a unique key, which ends the whole transaction.
**Invariant:** if the transaction commits, the decision is the one that would have been made under the lock.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from treering.core.digests import MODULUS, SEQ_WEIGHT, first_of, second_of
from treering.engines.postgres.errors import StaleCache
from treering.engines.sql.commit.write import GROW_LIST, UPSERT_REF
from treering.engines.sql.rows import BODY_PART_BITS, RECEIPT_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.engines.postgres.connection import PostgresSession
    from treering.engines.postgres.pipeline import PendingResult
    from treering.engines.sql.commit.decide import CommitState
    from treering.engines.sql.rows import Dictionary
    from treering.engines.sql.session import Row

_INSERT: Final = re.compile(r"INSERT INTO (\w+) \((.*?)\) VALUES \((.*?)\)(.*)", re.DOTALL)
_SEQ: Final = "current_setting('treering.seq')::bigint"
_US: Final = "current_setting('treering.us')::bigint"
_WEIGHTED: Final = f"{SEQ_WEIGHT} * {_SEQ}"
_SHIFTED: Final = {
    ("commits", "no"): f"? + {_SEQ}",
    ("commits", "first_seq"): f"? + {_SEQ}",
    ("commits", "last_seq"): f"? + {_SEQ}",
    ("commits", "committed_at_us"): f"? + {_US}",
    ("commits", "checksum"): f"((? + {RECEIPT_WEIGHT} * {_WEIGHTED} + {_US}) % {MODULUS}) << 32 | ?",
    ("body", "key"): f"? + ({_SEQ} << {BODY_PART_BITS})",
    ("body", "checksum"): f"(? + {_WEIGHTED}) % {MODULUS}",
    ("event", "seq"): f"? + {_SEQ}",
    ("event", "commit_no"): f"? + {_SEQ}",
    ("event", "checksum"): (
        f"((? + {_WEIGHTED}) % {MODULUS}) << 32 | ((? + {_WEIGHTED} + {_US}) % {MODULUS})"
    ),
    ("ref", "seq"): f"? + {_SEQ}",
    ("ref", "changed_at_us"): f"? + {_US}",
    ("ref", "checksum"): f"(? + {_WEIGHTED} + {_US}) % {MODULUS}",
    ("list", "seq"): f"? + {_SEQ}",
    ("list", "checksum"): f"(? + {_WEIGHTED}) % {MODULUS}",
}
"""The value of a column, from the one that was predicted; its checksum follows (see `digests.numbered`)."""
_JOINED: Final = frozenset({"commits", "event"})
"""Tables whose last column is two checksums in one number. They are passed one by one."""

_ADVANCE: Final = """\
WITH moved AS (
  UPDATE space SET seq = seq + ?, committed_at_us = greatest(?, committed_at_us + ?)
  WHERE no = ? AND scopes_dropped = ? AND seq >= ? RETURNING seq, committed_at_us
), found AS (SELECT count(*) AS matches, max(seq) AS seq, max(committed_at_us) AS us FROM moved)
SELECT seq - ?, us - ?, set_config('treering.seq', (seq - ?)::text, true),
  set_config('treering.us', (us - ?)::text, true), 1 / matches FROM found"""
_ADVANCE_RELAXED: Final = _ADVANCE.replace(
    "1 / matches", "set_config('synchronous_commit', 'off', true), 1 / matches"
)
"""The same in a transaction that another one makes durable (`PostgresSession.is_relaxed`)."""
_GROW: Final = f"""\
WITH grown AS (
  UPDATE list SET length = ?, seq = {_SHIFTED["list", "seq"]}, checksum = {_SHIFTED["list", "checksum"]}
  WHERE space = ? AND no = ? AND length = ? RETURNING no
) SELECT 1 / count(*) FROM grown"""
_KEY: Final = ("space", "name", "scope")


@lru_cache(maxsize=4096)
def shifted(sql: str) -> tuple[str, bool]:
    """Return an INSERT that corrects every predicted number, and whether to `split` its rows."""
    found = _INSERT.fullmatch(sql)
    if found is None:
        return sql, False
    table, columns, _, tail = found.groups()
    values = ", ".join(_values(table, columns))
    return f"INSERT INTO {table} ({columns}) VALUES ({values}){tail}", table in _JOINED


def split(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row with the two checksums of its last column one by one."""
    *values, both = row
    return (*values, first_of(both), second_of(both))


def _values(table: str, columns: str) -> list[str]:
    return [_SHIFTED.get((table, column.strip()), "?") for column in columns.split(",")]


def _columns_of(sql: str) -> list[str]:
    found = _INSERT.fullmatch(sql)
    assert found is not None  # noqa: S101 - our own statements
    return [column.strip() for column in found[2].split(",")]


_REF_COLUMNS: Final = _columns_of(UPSERT_REF)
_INSERT_REF, _ = shifted(UPSERT_REF.partition(" ON CONFLICT")[0])
_CHANGED: Final = [column for column in _REF_COLUMNS if column not in _KEY]
_MOVE_REF: Final = (
    "WITH moved AS (UPDATE ref SET "
    + ", ".join(
        f"{name} = {value}" for name, value in zip(_CHANGED, _values("ref", ",".join(_CHANGED)), strict=True)
    )
    + " WHERE space = ? AND name = ? AND scope = ? AND version = ? AND value IS NOT DISTINCT FROM ? "
    "RETURNING 1) SELECT 1 / count(*) FROM moved"
)


class GuardedSession:
    """The session of one guarded commit. See the module."""

    def __init__(self, session: PostgresSession, state: CommitState) -> None:
        self._session = session
        self._state = state
        self._shift: PendingResult | None = None

    @property
    def dictionary(self) -> Dictionary:
        """The phrases of the store."""
        return self._session.dictionary

    @property
    def shift(self) -> tuple[int, int]:
        """How far the numbers were from those predicted: sequence numbers, microseconds. After the commit."""
        assert self._shift is not None  # noqa: S101 - `advance` was called
        return self._shift.integer(0), self._shift.integer(1)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement. The first one of a commit moves the counters of its space."""
        if self._shift is None:
            self._advance()
        else:
            self.execute_many(sql, [parameters])

    def _advance(self) -> None:
        state = self._state
        assert state.expected_counters is not None  # noqa: S101 - decided before the lock
        seq, _, removals = state.expected_counters
        self._shift = self._session.pipeline.query(
            _ADVANCE_RELAXED if self._session.is_relaxed else _ADVANCE,
            (
                state.seq - seq, state.committed_at_us, state.written, state.space, removals, seq,
                state.seq, state.committed_at_us, state.seq, state.committed_at_us,
            ),
        )  # fmt: skip

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        if sql is UPSERT_REF:
            self._write_refs(rows)
        elif sql is GROW_LIST:
            for *values, no in rows:
                self._session.execute(_GROW, (*values, no, self._state.relied_lists[no].length))
        else:
            statement, are_joined = shifted(sql)
            self._session.execute_many(statement, [split(row) for row in rows] if are_joined else rows)

    def _write_refs(self, rows: Sequence[Sequence[Any]]) -> None:
        new: list[Sequence[Any]] = []
        for row in rows:
            values = dict(zip(_REF_COLUMNS, row, strict=True))
            before = self._state.relied_refs.get(values["name"])
            if before is None:
                new.append(row)
            else:
                changed = [values[column] for column in _CHANGED]
                guard = (values["space"], values["name"], before.scope, before.version, before.value)
                self._session.execute(_MOVE_REF, (*changed, *guard))
        if new:
            self._session.execute_many(_INSERT_REF, new)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of a query."""
        return self._session.rows(sql, parameters)

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; return how many rows it changed."""
        return self._session.run(sql, parameters)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Refuse: only a group with repeated events asks how many rows were new, and that needs the lock."""
        raise StaleCache(f"cannot count {len(rows)} rows of {sql!r} before the commit has its numbers")

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """Return the rows of a query, which goes out with the next round trip."""
        return self._session.query(sql, parameters)

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Lock a space."""
        return self._session.lock(space, batches)

    def numbers(self, table: str, count: int) -> list[int]:
        """Return numbers for new rows."""
        return self._session.numbers(table, count)
