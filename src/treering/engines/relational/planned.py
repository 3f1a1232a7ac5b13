"""What an erasure names, as rows: its scopes by number, and the lists and bodies that are theirs.

Resolving a plan also finds who depends on it: lists that branch off from one that would go, and records of
other scopes that link to one. Such a scope goes along (``cascade``) or stops the erasure.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from treering.engines.relational.scratch import Seen
from treering.engines.relational.session import in_chunks
from treering.engines.relational.walking import PAGE

if TYPE_CHECKING:
    from treering.core.query import Erasure
    from treering.engines.relational.scratch import Scratch
    from treering.engines.relational.session import Database, Session
    from treering.engines.relational.walking import Walk


class Planned:
    """The rows that a plan takes. Large sets of them lie in a scratch."""

    def __init__(
        self, database: Database, space: int, plan: Erasure, extra_scopes: frozenset[int], scratch: Scratch
    ) -> None:
        self._database = database
        self._space = space
        self._seqs = frozenset(plan.event_seqs)
        self._refs = frozenset(plan.refs)
        self.lists = Seen(scratch, "planned_list", "number")
        self.bodies = Seen(scratch, "planned_body", "number")
        with database.reading() as session:
            sql = "SELECT no FROM scope WHERE space = ? AND name IN (@)"
            named = {no for (no,) in in_chunks(session, sql, (space,), list(plan.scopes))}
            sql = "SELECT no, scope FROM list WHERE space = ? AND id IN (@)"
            self._single_lists = dict(in_chunks(session, sql, (space,), list(plan.lists)))
        self.scopes = named | extra_scopes
        self._last_lists: dict[int, int] = {}
        self._last_bodies: dict[int, int] = {}
        self.lists.add(self._single_lists)

    def takes(self, what: str, scope: int, key: Any) -> bool:
        """Whether a row goes."""
        if scope in self.scopes:
            return True
        if what == "event":
            return key in self._seqs
        if what == "ref":
            return key in self._refs
        return what == "list" and key in self._single_lists

    def branched_off(self, session: Session) -> set[int]:
        """The scopes of lists that stay and whose parents go."""
        found: set[int] = set()
        of_scopes = (
            "SELECT DISTINCT c.no, c.scope FROM list p JOIN list c ON c.parent = p.no "
            "WHERE c.scope <> p.scope AND p.scope IN (@)"
        )
        of_lists = "SELECT no, scope FROM list WHERE parent IN (@)"
        for sql, values in ((of_scopes, self.scopes), (of_lists, self._single_lists)):
            children = in_chunks(session, sql, (), list(values))
            found.update(scope for no, scope in children if not self.takes("list", scope, no))
        return found

    def gather(self, doomed: Walk, session: Session | None = None) -> None:
        """Find the lists and bodies of the scopes, and let a walk begin at them.

        Done a second time, it finds what is new since.
        """
        doomed.enter_lists(self._single_lists)
        for scope in sorted(self.scopes):
            self._gather_lists(doomed, scope, session)
            self._gather_bodies(doomed, scope, session)
        doomed.drain(session)

    def _gather_lists(self, doomed: Walk, scope: int, session: Session | None) -> None:
        after = self._last_lists.get(scope, 0)
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT no FROM list WHERE scope = ? AND no > ? ORDER BY no LIMIT ?", (scope, after, PAGE)
                )
            numbers = dict.fromkeys((no for (no,) in rows), scope)
            self.lists.add(numbers)
            doomed.enter_lists(numbers)
            if rows:
                self._last_lists[scope] = after = rows[-1][0]
            if len(rows) < PAGE:
                return

    def _gather_bodies(self, doomed: Walk, scope: int, session: Session | None) -> None:
        after = self._last_bodies.get(scope, 0)
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT key FROM body WHERE scope = ? AND key > ? ORDER BY key LIMIT ?",
                    (scope, after, PAGE),
                )
                keys = dict.fromkeys((key for (key,) in rows), scope)
                self.bodies.add(keys)
                doomed.enter_bodies(reading, keys)
            if rows:
                self._last_bodies[scope] = after = rows[-1][0]
            if len(rows) < PAGE:
                return

    def row_count(self, session: Session) -> int:
        """About how many rows go."""
        count = len(self._seqs) + len(self._refs)
        for table, size in (
            ("event", "count(*)"),
            ("ref", "count(*)"),
            ("text", "count(*)"),
            ("body", "count(*)"),
            ("list", "coalesce(sum(length - start), 0) + count(*)"),
        ):
            sql = f"SELECT {size} FROM {table} WHERE scope IN (@)"
            count += sum(int(number) for (number,) in in_chunks(session, sql, (), list(self.scopes)))
        sql = "SELECT coalesce(sum(length - start), 0) FROM list WHERE no IN (@)"
        return count + sum(int(number) for (number,) in in_chunks(session, sql, (), list(self._single_lists)))

    def _opened(self, session: Session | None) -> AbstractContextManager[Session]:
        return self._database.reading() if session is None else nullcontext(session)
