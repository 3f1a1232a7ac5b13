"""Marking: find everything in a space that is reachable from its roots.

Roots are what refs, events and index entries link to. They are read in pages, each in its own transaction,
while writers continue, so a mark never describes a single moment. It becomes exact by catching up:
`Mark.begin` records the position of the space, and `Mark.catch_up` follows what was committed since, the last
part inside the transaction that then deletes (no other commit of the space runs at that time). **Invariant:**
once a mark has caught up inside a write transaction, everything reachable at that moment is marked: its root
either existed at the beginning and was read, or came with a later commit.

`Walk` follows the links. They are collected page by page, sorted by target and resolved together; a target
seen for the first time is followed in turn: a list to its parent and the addresses among its items, a tree to
its entries, a body to the trees among its slots. Visited and pending keys are spilled to disk. Each key has
an owner, the scope that first reached it, so that errors can name who keeps something alive. **Invariant:** a
database transaction covers one page; packs are read between transactions, unless the caller passes an open
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from treering.core.content import KIND_NUMBERS, Content, slot_address, unpack_body, unseal
from treering.core.tree import links_of
from treering.engines.sql.commit.decide import invalidate_caches
from treering.engines.sql.read import body_part
from treering.engines.sql.rows import ITEM_POSITION_BITS, body_key, frame_of, is_short, item_key, split_links
from treering.engines.sql.session import rows_in_chunks
from treering.engines.sql.spill import SpillQueue, SpillSet
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.engines.sql.objects import Objects
    from treering.engines.sql.session import Database, Session
    from treering.engines.sql.spill import SpillDatabase


PAGE: Final = 5000
"""Maximum number of rows read in one short transaction."""

COMMITS: Final = 500
"""Maximum number of commits whose bodies are read in one short transaction: each may have many."""

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of content read in one short transaction (a single larger one excepted)."""

_TREES: Final = 64
_TREE: Final = KIND_NUMBERS["tree"]
_ITEMS: Final = "i.key, i.address, CASE WHEN i.kind = ? THEN i.frame END"
_LINKING: Final = "(i.address IS NOT NULL OR i.kind = ?)"


class LinkOrigin(NamedTuple):
    """The row that contains a link: its kind and key."""

    what: str
    key: Any


class Links:
    """The links of one page by the kind of target, each with its owner and origin."""

    __slots__ = ("garbled", "lists", "objects", "slots", "spelt")

    def __init__(self) -> None:
        self.objects: list[tuple[bytes, int, LinkOrigin]] = []
        self.slots: list[tuple[int, int, int, LinkOrigin]] = []
        """Body key, index in the body, owner, origin."""
        self.spelt: list[tuple[str, int, int, int, LinkOrigin]] = []
        """The same by batch id, part and index, as written in an address."""
        self.lists: list[tuple[str, int, LinkOrigin]] = []
        self.garbled: list[tuple[str, LinkOrigin]] = []
        """Invalid addresses, from a damaged database."""

    def add(self, address: str, owner: int, origin: LinkOrigin) -> None:
        """Add an address."""
        try:
            self._add(address, owner, origin)
        except ValueError:
            self.garbled.append((address, origin))

    def _add(self, address: str, owner: int, origin: LinkOrigin) -> None:
        form, rest = address[:2], address[2:]
        if form == "o:":
            self.objects.append((bytes.fromhex(rest), owner, origin))
        elif form == "l:":
            self.lists.append((rest, owner, origin))
        else:
            batch, _, place = rest.rpartition(":")
            part, _, index = place.partition(".")
            self.spelt.append((batch, int(part), int(index), owner, origin))

    def add_all(self, text: str | None, owner: int, origin: LinkOrigin) -> None:
        """Add the addresses of a ``links`` column."""
        for address in split_links(text):
            self.add(address, owner, origin)

    def add_event(
        self, body: str | None, links: str | None, commit_no: int, owner: int, origin: LinkOrigin
    ) -> None:
        """Add the links of an event; those to its own commit are stored in short form."""
        if body is not None:
            self._add_own(body, commit_no, owner, origin)
        if is_short(links):
            self._add_own(links, commit_no, owner, origin)
        else:
            self.add_all(links, owner, origin)

    def _add_own(self, address: str, commit_no: int, owner: int, origin: LinkOrigin) -> None:
        if not is_short(address):
            self.add(address, owner, origin)
            return
        try:
            part, _, index = address.partition(".")
            self.slots.append((body_key(commit_no, int(part)), int(index), owner, origin))
        except ValueError:
            self.garbled.append((address, origin))

    def add_entries(self, content: Content, owner: int, origin: LinkOrigin) -> None:
        """Add the entries of a tree; other content has no links."""
        if content.kind == "tree":
            self.objects += [(bytes.fromhex(name), owner, origin) for name in links_of(content)]


class BrokenLink(NamedTuple):
    """A link to something that is not stored, or cannot be read."""

    origin: LinkOrigin
    target: str
    """The address that is not stored; empty if the content of the origin is damaged."""
    damage: str = ""


class Walk:
    """Follows links and records everything reached.

    ``notice`` receives broken links; without it they are ignored, except that unreadable content raises
    `Corrupt`, because what it links to is unknown and nothing may be considered unreachable. ``watch``
    receives every link to a list, including repeated ones: the list's number and the owner.
    """

    def __init__(
        self,
        database: Database,
        objects: Objects,
        space: int,
        spill: SpillDatabase,
        *,
        with_slots: bool = False,
        notice: Callable[[BrokenLink], None] | None = None,
        watch: Callable[[list[tuple[int, int]]], None] | None = None,
    ) -> None:
        self.objects = SpillSet(spill, "object", "bytes")
        self.bodies = SpillSet(spill, "body", "number")
        self.lists = SpillSet(spill, "list", "number")
        self.slots = SpillSet(spill, "slot", "bytes") if with_slots else None
        self._todo = SpillQueue(spill, "todo")
        self._database = database
        self._store = objects
        self._space = space
        self._notice = notice
        self._watch = watch

    def visit(self, session: Session, links: Links) -> None:
        """Mark the targets of these links, and queue them to be followed."""
        if links.spelt:
            self._resolve(session, links)
        if links.slots:
            self._visit_slots(session, links)
        if links.objects:
            self._visit_objects(session, links)
        if links.lists:
            self._visit_lists(session, links)
        while links.garbled:
            address, origin = links.garbled.pop()
            self._unreadable(origin, Corrupt(f"a link of this {origin.what} is malformed: {address[:80]!r}"))

    def enter_lists(self, owners: dict[int, int]) -> None:
        """Mark lists by number."""
        self._todo.push("list", self.lists.add(owners), owners)

    def follow_again(self, owners: dict[int, int]) -> None:
        """Follow lists again that have grown since they were visited."""
        self._todo.push("list", self.lists.among(owners), owners)

    def enter_bodies(self, session: Session, owners: dict[int, int]) -> None:
        """Mark whole bodies by key."""
        links = Links()
        self._peek(session, self.bodies.add(owners), owners, links)
        self.visit(session, links)

    def enter_objects(self, session: Session, owners: dict[bytes, int]) -> None:
        """Mark objects by name."""
        links = Links()
        links.objects = [(name, owner, LinkOrigin("tree", name.hex())) for name, owner in owners.items()]
        self.visit(session, links)

    def drain(self, session: Session | None = None) -> None:
        """Follow until nothing is left, in the given transaction or in short ones."""
        while found := self._todo.pop(_TREES):
            if lists := found.get("list"):
                self._follow_lists(lists, session)
            if trees := found.get("tree"):
                self._follow_trees(trees, session)

    def _resolve(self, session: Session, links: Links) -> None:
        batches = {batch for batch, *_ in links.spelt}
        sql = "SELECT batch, no FROM commits WHERE space = ? AND batch IN (@)"
        numbers = dict(rows_in_chunks(session, sql, (self._space,), list(batches)))
        for batch, part, index, owner, origin in links.spelt:
            no = numbers.get(batch)
            if no is not None:
                links.slots.append((body_key(no, part), index, owner, origin))
            elif self._notice is not None:
                self._notice(BrokenLink(origin, f"s:{batch}:{part}.{index}"))
        links.spelt.clear()

    def _visit_slots(self, session: Session, links: Links) -> None:
        owners: dict[int, int] = {}
        for key, _, owner, _ in links.slots:
            owners.setdefault(key, owner)
        new = self.bodies.add(owners)
        lacking = self._peek(session, new, owners, links)
        if lacking and self._notice is not None:
            for key, index, _, origin in links.slots:
                if key in lacking:
                    lacking.discard(key)
                    self._notice(BrokenLink(origin, _address_of_slot(session, self._space, key, index)))
        if self.slots is not None:
            self.slots.add({slot_key(key, index): owner for key, index, owner, _ in reversed(links.slots)})
        links.slots.clear()

    def _peek(self, session: Session, keys: list[int], owners: dict[int, int], links: Links) -> set[int]:
        """Read new bodies and add the entries of their trees as links; return missing bodies."""
        lacking = set(keys)
        sql = "SELECT key, length(frame) FROM body WHERE space = ? AND key IN (@)"
        sizes = rows_in_chunks(session, sql, (self._space,), keys)
        for group in by_weight(sizes):
            sql = "SELECT key, frame FROM body WHERE space = ? AND key IN (@)"
            for key, frame in rows_in_chunks(session, sql, (self._space,), group):
                lacking.discard(key)
                origin = LinkOrigin("body", key)
                try:
                    where = f"body {key}"
                    contents = unpack_body(unseal(frame_of(frame, where), where), where)
                    for content in contents:
                        links.add_entries(content, owners[key], origin)
                except Corrupt as error:
                    self._unreadable(origin, error)
        return lacking

    def _visit_objects(self, session: Session, links: Links) -> None:
        owners: dict[bytes, int] = {}
        for name, owner, _ in links.objects:
            owners.setdefault(name, owner)
        new = self.objects.add(owners)
        sql = "SELECT name, kind FROM object WHERE space = ? AND name IN (@)"
        kinds = {bytes(name): kind for name, kind in rows_in_chunks(session, sql, (self._space,), new)}
        self._todo.push("tree", (name for name, kind in kinds.items() if kind == _TREE), owners)
        if self._notice is not None and len(kinds) < len(new):
            lacking = set(new) - kinds.keys()
            for name, _, origin in links.objects:
                if name in lacking:
                    lacking.discard(name)
                    self._notice(BrokenLink(origin, f"o:{name.hex()}"))
        links.objects.clear()

    def _visit_lists(self, session: Session, links: Links) -> None:
        sql = "SELECT id, no FROM list WHERE space = ? AND id IN (@)"
        names = list({list_id for list_id, _, _ in links.lists})
        numbers = dict(rows_in_chunks(session, sql, (self._space,), names))
        owners: dict[int, int] = {}
        for list_id, owner, origin in links.lists:
            if list_id in numbers:
                owners.setdefault(numbers[list_id], owner)
            elif self._notice is not None:
                self._notice(BrokenLink(origin, f"l:{list_id}"))
        self.enter_lists(owners)
        if self._watch is not None:
            self._watch([(numbers[name], owner) for name, owner, _ in links.lists if name in numbers])
        links.lists.clear()

    def _follow_lists(self, lists: dict[int, int], session: Session | None) -> None:
        scopes: dict[int, int] = {}
        small: list[int] = []
        room = PAGE
        with self._opened(session) as reading:
            sql = "SELECT no, parent, scope, start, length FROM list WHERE space = ? AND no IN (@)"
            rows = dict.fromkeys(rows_in_chunks(reading, sql, (self._space,), list(lists)))
        self.enter_lists({parent: scope for _, parent, scope, _, _ in rows if parent is not None})
        for no, _, scope, start, length in rows:
            scopes[no] = scope
            if length - start > PAGE:
                self._follow_long(no, scope, session)
                continue
            if length - start > room:
                self._follow_short(small, scopes, session)
                small, room = [], PAGE
            small.append(no)
            room -= length - start
        self._follow_short(small, scopes, session)

    def _follow_short(self, numbers: list[int], scopes: dict[int, int], session: Session | None) -> None:
        if not numbers:
            return
        with self._opened(session) as reading:
            marks = ",".join("?" * len(numbers))
            rows = reading.rows(
                f"SELECT {_ITEMS} FROM list l JOIN item i "
                f"ON i.space = l.space AND i.key >= l.no * {1 << ITEM_POSITION_BITS} "
                f"AND i.key < (l.no + 1) * {1 << ITEM_POSITION_BITS} "
                f"WHERE l.space = ? AND l.no IN ({marks}) AND {_LINKING}",
                (_TREE, self._space, *numbers, _TREE),
            )
            self.visit(reading, self._item_links(rows, scopes))

    def _follow_long(self, no: int, scope: int, session: Session | None) -> None:
        after, end = item_key(no, 0) - 1, item_key(no + 1, 0)
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    f"SELECT {_ITEMS} FROM item i "
                    "WHERE i.space = ? AND i.key > ? AND i.key < ? ORDER BY i.key LIMIT ?",
                    (_TREE, self._space, after, end, PAGE),
                )
                self.visit(reading, self._item_links(rows, {no: scope}))
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _item_links(self, rows: Iterable[tuple[Any, ...]], scopes: dict[int, int]) -> Links:
        links = Links()
        for key, address, tree in rows:
            owner, origin = scopes[key >> ITEM_POSITION_BITS], LinkOrigin("item", key)
            if address is not None:
                links.add(address, owner, origin)
            elif tree is not None:
                try:
                    where = f"item {key}"
                    content = Content("tree", unseal(frame_of(tree, where), where))
                    links.add_entries(content, owner, origin)
                except Corrupt as error:
                    self._unreadable(origin, error)
        return links

    def _follow_trees(self, trees: dict[bytes, int], session: Session | None) -> None:
        links = Links()
        for name, content in self._read_trees([name.hex() for name in trees], session):
            owner, origin = trees[bytes.fromhex(name)], LinkOrigin("tree", name)
            try:
                links.add_entries(content, owner, origin)
            except Corrupt as error:
                self._unreadable(origin, error)
            if len(links.objects) >= PAGE:
                with self._opened(session) as reading:
                    self.visit(reading, links)
        with self._opened(session) as reading:
            self.visit(reading, links)

    def _read_trees(self, names: list[str], session: Session | None) -> Iterator[tuple[str, Content]]:
        try:
            yield from self._load(names, session).items()
        except Corrupt as error:
            if len(names) == 1:
                self._unreadable(LinkOrigin("tree", names[0]), error)
                return
            for name in names:
                yield from self._read_trees([name], session)

    def _load(self, names: list[str], session: Session | None) -> dict[str, Content]:
        if session is None:
            return self._store.load(self._database, self._space, names)
        return self._store.fetch(session, self._space, names)

    def _unreadable(self, origin: LinkOrigin, error: Corrupt) -> None:
        if self._notice is None:
            raise error
        self._notice(BrokenLink(origin, "", damage=str(error)))

    def _opened(self, session: Session | None) -> AbstractContextManager[Session]:
        return self._database.reading() if session is None else nullcontext(session)


def _address_of_slot(session: Session, space: int, key: int, index: int) -> str:
    """Return the address of a slot whose body does not exist."""
    commit_no, part = body_part(key)
    rows = session.rows("SELECT batch FROM commits WHERE space = ? AND no = ?", (space, commit_no))
    return slot_address(rows[0][0] if rows else f"commit number {commit_no}", part, index)


def slot_key(key: int, index: int) -> bytes:
    """Return a slot as a single key that sorts by body."""
    return key.to_bytes(8, "big") + index.to_bytes(4, "big")


def by_weight(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[Any]]:
    """Yield groups of keys with a total size of at most `PAGE_BYTES` (a single larger one excepted)."""
    group: list[Any] = []
    room = PAGE_BYTES
    for key, weight in rows:
        if group and weight > room:
            yield group
            group, room = [], PAGE_BYTES
        group.append(key)
        room -= weight
    if group:
        yield group


Route = Callable[[str, int, Any], Walk]
"""Returns the walk for a root, given the kind of its row, its scope and its key."""

NOBODY: Final = 0
"""The owner of a link whose scope is unknown."""


class Mark:
    """Reads the roots of a space page by page and passes them to walks.

    Catching up must find appended list items and new texts, which no index leads to. A ``precise`` mark reads
    all lists and texts again. Otherwise it uses the addresses recorded with each commit, which is fast but
    does not tell their owners.
    """

    def __init__(self, database: Database, space: int, route: Route, *, precise: bool) -> None:
        self._database = database
        self._space = space
        self._route = route
        self._precise = precise
        self.seq = 0
        self.read_seq = 0
        """Up to which sequence number events were followed."""
        self.commit_no = 0
        self.list_no = 0
        self.now_us = 0
        self.committed_at_us = 0

    def begin(self) -> None:
        """Record the current position of the space, under its lock, so that no commit is in progress."""
        with self._database.writing(self._space) as session:
            invalidate_caches(session, self._space)  # reserved numbers are lower than the highest in use
            self.now_us = self._database.now_us()
            ((self.seq, self.committed_at_us),) = session.rows(
                "SELECT seq, committed_at_us FROM space WHERE no = ?", (self._space,)
            )
            self.commit_no = _largest(session, "commits", self._space)
            self.list_no = _largest(session, "list", self._space)

    def mark_all(self) -> None:
        """Mark everything reachable from all roots."""
        for _ in self.steps():
            pass

    def steps(self, since: int = 0) -> Iterator[None]:
        """Do the same page by page, for callers that report progress; from some number on, without texts."""
        if since:
            self._refs_since(since + 1, None)
        else:
            yield from self._refs()
        yield from self._events(since, None)
        if not since:
            yield from self._texts(None)

    def behind(self, session: Session) -> int:
        """Return how many sequence numbers were assigned since the mark was last exact."""
        ((seq,),) = session.rows("SELECT seq FROM space WHERE no = ?", (self._space,))
        return seq - self.seq

    def catch_up(self, session: Session | None = None) -> None:
        """Mark what was committed since; exact if called in a write transaction of the space."""
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
                        origin = LinkOrigin("event", seq)
                        page.of("event", scope, seq).add_event(body, links, commit_no, scope, origin)
                page.visit(reading)
            page.drain(session)
            self.read_seq = rows[-1][0] if rows else self.read_seq
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
                    "SELECT no, links FROM commits WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                    (self._space, self.commit_no, PAGE),
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
        """Mark the parents of new lists: even an unlinked child needs its past."""
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT no, scope, parent FROM list WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                    (self._space, self.list_no, PAGE),
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
                        "SELECT name, scope, source, no FROM text WHERE space = ? AND collection = ? "
                        "AND name > ? "
                        "ORDER BY name LIMIT ?",
                        (self._space, collection, after, PAGE),
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


def _largest(session: Session, table: str, space: int) -> int:
    rows = session.rows(f"SELECT no FROM {table} WHERE space = ? ORDER BY no DESC LIMIT 1", (space,))
    return rows[0][0] if rows else 0


class _Page:
    """The links of a page, by walk."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._links: dict[Walk, Links] = {}

    def of(self, what: str, scope: int, key: Any) -> Links:
        """Return the links of the walk for a row."""
        walk = self._route(what, scope, key)
        links = self._links.get(walk)
        if links is None:
            links = self._links[walk] = Links()
        return links

    def add(self, what: str, rows: list[tuple[Any, ...]]) -> None:
        """Add rows: key, scope, links."""
        for key, scope, links in rows:
            if links is not None:
                self.of(what, scope, key).add_all(links, scope, LinkOrigin(what, key))

    def visit(self, session: Session) -> None:
        for walk, links in self._links.items():
            walk.visit(session, links)

    def drain(self, session: Session | None) -> None:
        for walk in self._links:
            walk.drain(session)
