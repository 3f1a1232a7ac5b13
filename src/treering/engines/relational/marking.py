"""Marking: everything in a space that something alive leads to.

Roots are what refs, events and index entries link to. They are read in pages, each in a transaction of its
own, while writers go on; so a mark is never of one moment. It becomes exact by catching up: `begin` notes how
far the space has come, and `catch_up` follows what was committed since, the last bit of it inside the
transaction that then deletes (no commit of the space runs beside that one). **Invariant:** once a mark
has caught up inside a write transaction, everything that can be reached at that moment is marked: what leads
there was there from the beginning and has been read, or came with a later commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from treering.engines.relational.remembered import count_removal
from treering.engines.relational.walking import PAGE, Links, Origin, Walk

if TYPE_CHECKING:
    from treering.engines.relational.session import Database, Session

Route = Callable[[str, int, Any], Walk]
"""Which walk a root belongs to, by the kind of its row, its scope and its key."""

NOBODY: Final = 0
"""The owner of a link whose scope is not known."""


class Mark:
    """The roots of a space, handed page by page to the walk that they belong to.

    Catching up has to find what was appended to lists and which texts are new; no index leads there. A
    ``precise`` mark looks at all lists and texts again. The other one takes the addresses that each commit
    has noted, which is quick, but does not know to whom they belong.
    """

    def __init__(self, database: Database, space: int, route: Route, *, precise: bool) -> None:
        self._database = database
        self._space = space
        self._route = route
        self._precise = precise
        self.seq = 0
        self.commit_no = 0
        self.list_no = 0
        self.now_us = 0
        self.committed_at_us = 0

    def begin(self) -> None:
        """Note how far the space has come. Under its lock, so that no commit is half-way past."""
        with self._database.writing(self._space) as session:
            count_removal(session, self._space)  # numbers in reserve are smaller than the largest in use
            self.now_us = self._database.now_us()
            ((self.seq, self.committed_at_us),) = session.rows(
                "SELECT seq, committed_at_us FROM space WHERE no = ?", (self._space,)
            )
            ((self.commit_no,),) = session.rows("SELECT coalesce(max(no), 0) FROM commits")
            ((self.list_no,),) = session.rows("SELECT coalesce(max(no), 0) FROM list")

    def everything(self) -> None:
        """Mark what all roots lead to."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """The same page by page, for those who have something to say in between."""
        yield from self._refs()
        yield from self._events(0, None)
        yield from self._texts(None)

    def behind(self, session: Session) -> int:
        """How many sequence numbers were given out since the mark was last exact."""
        ((seq,),) = session.rows("SELECT seq FROM space WHERE no = ?", (self._space,))
        return seq - self.seq

    def catch_up(self, session: Session | None = None) -> None:
        """Mark what the commits since lead to; exact when it happens in a write transaction of the space."""
        with self._opened(session) as reading:
            behind = self.behind(reading)
        if not behind:
            return
        for _ in self._events(self.seq, session):
            pass
        self._refs_since(self.seq, session)
        self._lists_since(session)
        if self._precise:
            self._grown_lists(session)
            for _ in self._texts(session):
                pass
        else:
            self._commits_since(session)
        self.seq += behind

    # Roots
    def _events(self, after: int, session: Session | None) -> Iterator[None]:
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT seq, scope, commit_no, body, links FROM event "
                    "WHERE space = ? AND seq > ? ORDER BY seq LIMIT ?",
                    (self._space, after, PAGE),
                )
                page = _Page(self._route)
                for seq, scope, commit_no, body, links in rows:
                    if body is not None or links is not None:
                        origin = Origin("event", seq)
                        page.of("event", scope, seq).add_event(body, links, commit_no, scope, origin)
                page.visit(reading)
            page.drain(session)
            yield
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _refs(self) -> Iterator[None]:
        after = ""
        while True:
            with self._database.reading() as reading:
                rows = reading.rows(
                    "SELECT name, scope, links FROM ref WHERE space = ? AND name > ? "
                    "AND value IS NOT NULL AND links IS NOT NULL ORDER BY name LIMIT ?",
                    (self._space, after, PAGE),
                )
                page = _Page(self._route)
                page.add("ref", rows)
                page.visit(reading)
            page.drain(None)
            yield
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _refs_since(self, seq: int, session: Session | None) -> None:
        name = ""
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT name, scope, links, seq FROM ref WHERE links IS NOT NULL AND space = ? "
                    "AND seq >= ? AND (seq, name) > (?, ?) ORDER BY seq, name LIMIT ?",
                    (self._space, seq, seq, name, PAGE),
                )
                page = _Page(self._route)
                page.add("ref", [row[:3] for row in rows])
                page.visit(reading)
            page.drain(session)
            if len(rows) < PAGE:
                return
            name, seq = rows[-1][0], rows[-1][3]

    def _commits_since(self, session: Session | None) -> None:
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT no, links FROM commits WHERE no > ? AND space = ? ORDER BY no LIMIT ?",
                    (self.commit_no, self._space, PAGE),
                )
                page = _Page(self._route)
                page.add("commit", [(no, NOBODY, links) for no, links in rows])
                page.visit(reading)
            page.drain(session)
            if rows:
                self.commit_no = rows[-1][0]
            if len(rows) < PAGE:
                return

    def _lists_since(self, session: Session | None) -> None:
        """The parents of new lists: a child that nobody links to yet still needs its past."""
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT no, scope, parent FROM list WHERE no > ? AND space = ? ORDER BY no LIMIT ?",
                    (self.list_no, self._space, PAGE),
                )
            for no, scope, parent in rows:
                if parent is not None:
                    walk = self._route("list", scope, no)
                    walk.enter_lists({parent: scope})
                    walk.drain(session)
            if rows:
                self.list_no = rows[-1][0]
            if len(rows) < PAGE:
                return

    def _grown_lists(self, session: Session | None) -> None:
        after = 0
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT no, scope FROM list WHERE space = ? AND seq > ? AND no > ? ORDER BY no LIMIT ?",
                    (self._space, self.seq, after, PAGE),
                )
            for no, scope in rows:
                walk = self._route("list", scope, no)
                walk.follow_again({no: scope})
                walk.drain(session)
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _texts(self, session: Session | None) -> Iterator[None]:
        with self._opened(session) as reading:
            collections = reading.rows(
                "SELECT no FROM collection WHERE space = ? ORDER BY no", (self._space,)
            )
        for (collection,) in collections:
            after = ""
            while True:
                with self._opened(session) as reading:
                    rows = reading.rows(
                        "SELECT name, scope, source, no FROM text WHERE collection = ? AND name > ? "
                        "ORDER BY name LIMIT ?",
                        (collection, after, PAGE),
                    )
                    page = _Page(self._route)
                    page.add("text", [(no, scope, source) for _, scope, source, no in rows])
                    page.visit(reading)
                page.drain(session)
                yield
                if len(rows) < PAGE:
                    break
                after = rows[-1][0]

    def _opened(self, session: Session | None) -> AbstractContextManager[Session]:
        return self._database.reading() if session is None else nullcontext(session)


class _Page:
    """The links of a page, by the walk that they belong to."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._links: dict[Walk, Links] = {}

    def of(self, what: str, scope: int, key: Any) -> Links:
        """Where the links of a row go."""
        walk = self._route(what, scope, key)
        links = self._links.get(walk)
        if links is None:
            links = self._links[walk] = Links()
        return links

    def add(self, what: str, rows: list[tuple[Any, ...]]) -> None:
        """Take rows in: key, scope, links."""
        for key, scope, links in rows:
            if links is not None:
                self.of(what, scope, key).add_all(links, scope, Origin(what, key))

    def visit(self, session: Session) -> None:
        for walk, links in self._links.items():
            walk.visit(session, links)

    def drain(self, session: Session | None) -> None:
        for walk in self._links:
            walk.drain(session)
