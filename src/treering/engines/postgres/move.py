"""Copy the rows of spaces to another database while they are written to, and hand the writers over.

Every table leads its key with the space, and the number of a space follows from its name, so rows move as
they are, in PostgreSQL's binary format; nothing is decoded. While rows are copied, a trigger of each table
logs the keys that change in ``move_log``. A round takes the keys that are logged, copies what these rows are
now, and removes them from the target where they are gone. Rounds repeat until one is small; the last one runs
under the locks of the spaces, for which writers wait.

Packs stay where they are: all cells use one blob store, and a row names its pack by its whole path.

**Invariant:** when the locks are released, either the source is as it was, or the target has every row and
takes commits, and the source takes none: its row of the space has a negative ``scopes_dropped``. The target
is made durable first. Whatever dies on the way, the server ends the locks with the session of the mover.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple, cast

from psycopg import Error, sql
from psycopg.errors import LockNotAvailable

from treering.core.failpoints import declare, hit
from treering.engines.postgres.errors import translate
from treering.engines.postgres.roles import SHARED
from treering.engines.sql.rows import space_number
from treering.errors import Busy, Conflict, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Generator

    from psycopg import Connection

SMALL_ROUND: Final = 200
"""How many changed rows may be left for the round that writers wait for."""
MAX_ROUNDS: Final = 50
_LOCK_WAIT_MS: Final = 2000
"""How long the move waits for locks that others would queue behind; then it tries again."""
_ATTEMPTS: Final = 15
_KEY: Final = 0x7472_6565_6D6F_7665  # "treemove"
_SLICE: Final = 5000

COPIED: Final = declare(
    "move.copied", "all rows of a project were copied; its writers still use the old place"
)
SWITCHED: Final = declare("move.switched", "the new place takes commits, the directory does not name it yet")

_TABLES: Final = """\
SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_index AS x
JOIN pg_class AS c ON c.oid = x.indrelid
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY(x.indkey)
WHERE x.indisprimary AND c.relkind IN ('r', 'p') AND NOT c.relispartition
AND c.relnamespace = current_schema()::regnamespace ORDER BY c.relname, a.attnum"""
_COLUMNS: Final = """\
SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
ORDER BY attnum"""
_IDENTITIES: Final = """\
SELECT table_name FROM information_schema.columns
WHERE table_schema = current_schema() AND is_identity = 'YES' AND column_name = 'no'"""
_RESERVE: Final = """\
INSERT INTO space (no, name, seq, committed_at_us, created_at_us, scopes_dropped)
VALUES (%s, %s, 0, 0, 0, -1) ON CONFLICT (no) DO NOTHING"""
_TAKE: Final = """\
WITH gone AS (DELETE FROM move_log RETURNING name, key)
INSERT INTO moving SELECT DISTINCT name, key FROM gone"""


_LOGGING: Final = """\
CREATE FUNCTION {function} () RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE changed record;
BEGIN
  IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
  IF changed.space = ANY({spaces}) THEN
    INSERT INTO move_log VALUES ({name}, jsonb_build_array({key}));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER treering_move AFTER INSERT OR UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION {function} ()"""
_NOT_LOGGING: Final = """\
DROP TRIGGER IF EXISTS treering_move ON {table}; DROP FUNCTION IF EXISTS {function} ()"""


class _Table(NamedTuple):
    name: str
    names: tuple[str, ...]
    """All columns."""
    keys: tuple[tuple[str, LiteralString], ...]
    """The columns of the primary key and their types."""

    @property
    def id(self) -> sql.Identifier:
        return sql.Identifier(self.name)

    @property
    def columns(self) -> sql.Composable:
        return sql.SQL(", ").join(map(sql.Identifier, self.names))

    def select(self, rest: LiteralString, *names: sql.Composable) -> sql.Composable:
        """Return a query for rows ``t`` of the table."""
        own = (sql.SQL("t.{}").format(sql.Identifier(name)) for name in self.names)
        head = sql.SQL("SELECT {} FROM {} AS t ").format(sql.SQL(", ").join(own), self.id)
        return head + sql.SQL(rest).format(*names)

    def matches_key(self) -> sql.Composable:
        """Return the condition that row ``t`` has the key in ``m.key``."""
        parts = [
            sql.SQL("t.{} = (m.key ->> {})::{}").format(
                sql.Identifier(name), sql.Literal(number), sql.SQL(kind)
            )
            for number, (name, kind) in enumerate(self.keys)
        ]
        return sql.SQL("m.name = {} AND ").format(sql.Literal(self.name)) + sql.SQL(" AND ").join(parts)


_MOVING: Final = _Table("moving", ("name", "key"), ())


class PostgresMove:
    """One move of some spaces. Use `moving`."""

    def __init__(
        self, source: Connection[Any], target: Connection[Any], spaces: list[str], *, resumes: bool
    ) -> None:
        self._resumes = resumes
        self._source = source
        self._target = target
        self._spaces = {space_number(name): name for name in spaces}
        self._tables = _tables(source)
        self.rows = 0
        self.bytes = 0

    def check(self) -> None:
        """Raise `InvalidInput` or `Conflict` if the rows cannot be in the target."""
        meta = "SELECT key, value FROM meta WHERE key IN ('format', 'dictionary') ORDER BY key"
        if self._source.execute(meta).fetchall() != self._target.execute(meta).fetchall():
            raise InvalidInput(
                "the two databases have different formats or dictionaries, as different versions of treering "
                "create; move into an empty database, or copy the project (treering copy)"
            )
        live = "SELECT name FROM space WHERE no = ANY(%s) AND scopes_dropped >= 0"
        for (name,) in () if self._resumes else self._target.execute(live, ([*self._spaces],)):
            raise Conflict(
                f"the other database has a namespace {name!r} of its own; move to another database"
            )

    def copy(self) -> None:
        """Copy all rows, then what changed meanwhile, until little is left."""
        self._reserve()
        self._log_changes()
        with self._source.transaction(), self._target.transaction():
            self._source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for table in self._tables:
                self._delete(self._target, table)
                self._pipe(table.select("WHERE t.space = ANY({})", sql.Literal([*self._spaces])), table)
        for _ in range(MAX_ROUNDS):
            with self._source.transaction():
                if self._copy_changes() <= SMALL_ROUND:
                    break
        hit(COPIED)

    def switch(self) -> float:
        """Copy the rest under the locks of the spaces, and hand their writers over; return the seconds."""
        numbers = [*self._spaces]
        with self._source.transaction():
            self._source.execute(
                "INSERT INTO space (no, name, seq, committed_at_us, created_at_us) "
                "SELECT no, name, 0, 0, 0 FROM unnest(%s::bigint[], %s::text[]) AS u (no, name) "
                "ON CONFLICT (no) DO NOTHING",
                (numbers, [*self._spaces.values()]),
            )
            begun = time.monotonic()
            counters = self._source.execute(
                "SELECT no, seq, committed_at_us, created_at_us, scopes_dropped FROM space "
                "WHERE no = ANY(%s) ORDER BY no FOR UPDATE",
                (numbers,),
            ).fetchall()
            self._copy_changes()
            with self._target.transaction():
                for no, seq, committed_at_us, created_at_us, dropped in counters:
                    # Larger than it ever was in either place, so that no cache of it is taken for current.
                    self._target.execute(
                        "UPDATE space SET seq = %s, committed_at_us = %s, created_at_us = %s, "
                        "scopes_dropped = greatest(%s, -scopes_dropped) + 1 WHERE no = %s",
                        (seq, committed_at_us, created_at_us, dropped, no),
                    )
            self._source.execute(
                "UPDATE space SET seq = 0, scopes_dropped = -scopes_dropped - 1 WHERE no = ANY(%s)",
                (numbers,),
            )
        pause = time.monotonic() - begun
        hit(SWITCHED)
        return pause

    def clean_up(self) -> None:
        """Delete the rows at the old place, in slices; what says that the spaces have left stays."""
        self._change_tables()
        for table in self._tables:
            self._delete(self._source, table)

    def _reserve(self) -> None:
        """Create the spaces in the target, as ones that take no commits."""
        for number, name in self._spaces.items():
            self._target.execute(_RESERVE, (number, name))
        self._target.execute(
            "UPDATE space SET seq = 0, scopes_dropped = -scopes_dropped - 1 "
            "WHERE no = ANY(%s) AND scopes_dropped >= 0",
            ([*self._spaces],),
        )

    def _log_changes(self) -> None:
        numbers = sql.Literal([*self._spaces])
        self._change_tables()
        self._change_tables(
            sql.SQL("CREATE TABLE move_log (name text NOT NULL, key jsonb NOT NULL)").format(),
            *(
                sql.SQL(_LOGGING).format(
                    function=_function(table),
                    spaces=numbers,
                    name=sql.Literal(table.name),
                    table=table.id,
                    key=sql.SQL(", ").join(
                        sql.SQL("changed.{}").format(sql.Identifier(name)) for name, _ in table.keys
                    ),
                )
                for table in self._tables
            ),
        )

    def _change_tables(self, *statements: sql.Composed) -> None:
        """Remove triggers and log of this move or an earlier one, or with statements, create them.

        Every writer locks the row of its space first, so once the table of spaces is locked no writer holds
        anything that this would have to wait for. Others pass if that takes long.
        """
        drops = [sql.SQL("DROP TABLE IF EXISTS move_log").format()]
        drops += (
            sql.SQL(_NOT_LOGGING).format(table=each.id, function=_function(each)) for each in self._tables
        )
        for attempt in range(_ATTEMPTS):
            try:
                with self._source.transaction():
                    self._run("SET LOCAL lock_timeout = {}", sql.Literal(_LOCK_WAIT_MS))
                    self._run("SET LOCAL client_min_messages = warning")
                    self._run("LOCK TABLE space IN EXCLUSIVE MODE")
                    for statement in statements or drops:
                        self._source.execute(statement)
                return
            except LockNotAvailable:
                if attempt + 1 == _ATTEMPTS:
                    raise

    def _copy_changes(self) -> int:
        """Copy the rows that were logged, within a transaction of the source; return how many."""
        self._run("CREATE TEMP TABLE moving (name text, key jsonb) ON COMMIT DROP")
        count = self._source.execute(_TAKE).rowcount
        self._run("ANALYZE moving")
        for setting in ("hashjoin", "mergejoin", "seqscan"):
            self._run("SET LOCAL enable_{} = off", sql.SQL(setting))  # keys of a few rows: use their index
        names = {name for (name,) in self._source.execute("SELECT DISTINCT name FROM moving")}
        with self._target.transaction():
            self._target.execute("CREATE TEMP TABLE moving (name text, key jsonb) ON COMMIT DROP")
            self._pipe(sql.SQL("SELECT name, key FROM moving"), _MOVING)
            for setting in ("hashjoin", "mergejoin", "seqscan"):
                self._target.execute(sql.SQL("SET LOCAL enable_{} = off").format(sql.SQL(setting)))
            for table in self._tables:
                if table.name in names:
                    self._target.execute(
                        sql.SQL("DELETE FROM {} AS t USING moving AS m WHERE {}").format(
                            table.id, table.matches_key()
                        )
                    )
                    self._pipe(table.select("JOIN moving AS m ON {}", table.matches_key()), table)
            for (name,) in self._target.execute(_IDENTITIES).fetchall():
                self._target.execute(
                    sql.SQL(
                        "SELECT setval(pg_get_serial_sequence({0}, 'no'), greatest((SELECT max(no) FROM {1} "
                        "WHERE space = ANY({2})), nextval(pg_get_serial_sequence({0}, 'no'))))"
                    ).format(sql.Literal(name), sql.Identifier(name), sql.Literal([*self._spaces]))
                )
        return count

    def _pipe(self, rows: sql.Composable, table: _Table) -> None:
        """Copy the rows of a query into a table of the target."""
        into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(table.id, table.columns)
        with self._source.cursor() as reading, self._target.cursor() as writing:
            with (
                reading.copy(sql.SQL("COPY ({}) TO STDOUT (FORMAT BINARY)").format(rows)) as source,
                writing.copy(into) as target,
            ):
                for data in source:
                    target.write(data)
                    self.bytes += len(data)
            if table is not _MOVING:
                self.rows += max(writing.rowcount, 0)

    def _delete(self, connection: Connection[Any], table: _Table) -> None:
        slices = sql.SQL(
            "DELETE FROM {0} WHERE ctid IN (SELECT ctid FROM {0} WHERE space = ANY({1}) LIMIT {2})"
        ).format(table.id, sql.Literal([*self._spaces]), sql.Literal(_SLICE))
        while connection.execute(slices).rowcount:
            pass

    def _run(self, statement: LiteralString, *names: sql.Composable) -> None:
        self._source.execute(sql.SQL(statement).format(*names))


@contextmanager
def moving(source: Any, target: Any, spaces: list[str], *, resumes: bool) -> Generator[PostgresMove]:
    """Prepare to move spaces from one engine's database to another's; one move from a database at a time.

    With ``resumes``, an earlier move was interrupted, and what it left in the target may be replaced.
    """
    try:
        with ExitStack() as stack:
            here, there = (stack.enter_context(each.sql_connection()) for each in (source, target))
            if here.execute("SELECT pg_try_advisory_lock(%s)", (_KEY,)).fetchone() != (True,):
                raise Busy("another project is being moved out of this database; wait until that is over")
            move = PostgresMove(here, there, spaces, resumes=resumes)
            move.check()
            yield move
    except Error as error:
        raise translate(error, f"moving {', '.join(spaces)} from {source.url} to {target.url}") from error


def _tables(connection: Connection[Any]) -> list[_Table]:
    keys: dict[str, list[tuple[str, LiteralString]]] = {}
    for table, column, kind in connection.execute(_TABLES):
        keys.setdefault(table, []).append((column, cast("LiteralString", kind)))
    return [
        _Table(name, tuple(each for (each,) in connection.execute(_COLUMNS, (f'"{name}"',))), tuple(key))
        for name, key in keys.items()
        if name not in SHARED | {"space"}
    ]


def _function(table: _Table) -> sql.Identifier:
    return sql.Identifier(f"treering_move_{table.name}")
