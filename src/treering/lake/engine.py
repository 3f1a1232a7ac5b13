"""Reading archived events beside live ones: an engine around an engine.

The catalogue is in the store: a ref for each archived file (`LakeFile`), and one ref for the state of the
archive (`LakeState`), which changes with every commit that changes the catalogue. An archived event is in a
file and, until its row is deleted, also in the database. So a read asks the database first and the catalogue
afterwards: a row that is already gone has been in the catalogue since before. What both have is returned
once, by its sequence number. **Invariant:** whatever is archived, forgotten or interrupted meanwhile, a read
returns every event exactly once, in the order, with the cursors, and with the bytes that it had before.

Everything else is forwarded. `erase` also removes archived events (`treering.lake.archive`), `check` reads
the files too, `commit_digests` includes the leaves of archived events, computed from the files, and
`snapshot_to` copies the files. Without archived files, each of these is the call of the engine within, after
one look at the ref of the state; calls that cannot concern archived events do not even look.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from treering.core.clock import DAY_US, to_iso
from treering.core.content import SlotAddress, parse_address
from treering.core.digests import event_form, leaf
from treering.core.failpoints import declare
from treering.core.ids import Scope
from treering.core.query import EventQuery, decode_cursor, each_record, each_ref, encode_cursor
from treering.core.records import Archive, ArchivedFile, EventLeaf, Page, Problem
from treering.errors import Corrupt, NotFound, Unsupported
from treering.runs.run import run_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.batch import Event
    from treering.core.content import Address, Content
    from treering.core.engine import Engine, OnWork
    from treering.core.query import Erasure
    from treering.core.records import Checked, CommitDigest, Erased, Record
    from treering.core.storage import Blobs

T = TypeVar("T")

STATE: Final = "lake"
"""The ref of the archive's state."""
FILES: Final = "lake/file/"
"""Prefix of the refs of archived files."""
SCOPE: Final = str(Scope("", "ledger", "lake"))

WRITTEN: Final = declare("lake.written", "files of archived events are durable, the catalogue lacks them")
CATALOGUED: Final = declare("lake.catalogued", "archived events are in the catalogue, and still in rows")
CLEANED: Final = declare("lake.cleaned", "rows of archived events are deleted, which is not noted yet")
REWRITTEN: Final = declare("lake.rewritten", "a file without erased events is durable, the old one is read")
REPLACED: Final = declare("lake.replaced", "a file without erased events is read, the old one still exists")
DELETED: Final = declare("lake.deleted", "the old file is deleted, its ref is not")

KINDS: Final = frozenset({"run", "message", "log", "metric", "attributes"})
PREFIXES: Final = ("span.", "open.", "exchange.")
"""Kinds of events that are archived. Not imported from their modules, which opening a store need not load."""
_CACHE_BYTES: Final = 256 << 20
_TRIES: Final = 10


class LakeFile(msgspec.Struct, frozen=True, kw_only=True):
    """An archived file: its name in the blob store, and the ranges of what it holds."""

    name: str
    day: int
    rows: int
    size: int
    sha256: str
    first_seq: int
    last_seq: int
    since_us: int
    until_us: int
    """The time of its last event."""
    first_run: str
    last_run: str
    first_batch: str
    last_batch: str

    @property
    def ref(self) -> str:
        """The name of its ref."""
        return f"{FILES}{to_iso(self.day * DAY_US)[:10]}/{Path(self.name).stem}"

    def may_hold(self, query: EventQuery) -> bool:
        """Whether events that match a query may be in this file."""
        return (
            (query.run is None or self.first_run <= query.run <= self.last_run)
            and (query.since_us is None or query.since_us <= self.until_us)
            and (query.until_us is None or query.until_us > self.since_us)
        )


class LakeState(msgspec.Struct, frozen=True, kw_only=True):
    """How far the archive is. Every change of the catalogue changes it, by compare-and-swap."""

    through: int = 0
    """All events up to this sequence number that can be archived are."""
    changes: int = 0
    dropping: tuple[str, ...] = ()
    """Files whose events may still have rows in the database."""
    replaced: tuple[LakeFile, ...] = ()
    """Files that others replaced, because something in them was forgotten; not part of the catalogue."""
    by: tuple[str | None, ...] = ()
    """For each of these, the name of the file that took its place; None if nothing was left."""


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The archived files of a space at one moment. ``version`` is that of the state's ref."""

    version: int = 0
    state: LakeState = LakeState()
    files: tuple[LakeFile, ...] = ()


_EMPTY: Final = Catalogue()


def can_be_archived(event: Event) -> bool:
    """Whether an event may leave the database: it belongs to a run, and links to no list."""
    return (
        event.run is not None
        and (event.kind in KINDS or event.kind.startswith(PREFIXES))
        and not any(each.startswith("l:") for each in event.links)
    )


class LakeEngine:
    """The engine of a store whose finished days may be in files of its blob store."""

    def __init__(self, engine: Any, blobs: Blobs) -> None:
        self.inner: Engine = engine
        self.blobs = blobs
        self._catalogues: dict[str, Catalogue] = {}
        self._loaded = _Loaded()
        self._folders: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what the engine within has."""
        found = getattr(self.inner, name)
        if callable(found):
            self.__dict__[name] = found  # found at once from now on
        return found

    @property
    def archive(self) -> LakeEngine:
        """This engine, however it is wrapped."""
        return self

    @property
    def url(self) -> str:
        """Its location, without secrets."""
        return self.inner.url

    # The catalogue
    def catalogue(self, space: str) -> Catalogue:
        """Return the catalogue as it is now."""
        for _ in range(_TRIES):
            ref = self.inner.refs(space, [STATE]).get(STATE)
            if ref is None:
                return _EMPTY
            known = self._catalogues.get(space)
            if known is not None and known.version == ref.version:
                return known
            state = _decode(ref.name, ref.value, LakeState)
            gone = {each.name for each in state.replaced}
            files = [_decode(each.name, each.value, LakeFile) for each in each_ref(self.inner, space, FILES)]
            again = self.inner.refs(space, [STATE]).get(STATE)
            if again is not None and again.version == ref.version:
                found = Catalogue(
                    version=ref.version,
                    state=state,
                    files=tuple(each for each in files if each.name not in gone),
                )
                self._catalogues[space] = found
                return found
        raise Corrupt(f"the catalogue of {space!r} changes faster than it can be read; try again")

    def folder(self, space: str) -> str:
        """Return the folder of a space's files in the blob store, unique for each store and space."""
        found = self._folders.get(space)
        if found is None:
            from urllib.parse import quote

            store: str = cast("Any", self.inner).store_id()
            found = self._folders[space] = f"lake/{store}/space={quote(space, safe='')}"
        return found

    def archive_info(self, space: str) -> Archive:
        """Return the archived files of a space."""
        catalogue = self.catalogue(space)
        files = sorted(catalogue.files, key=lambda file: (file.day, file.name))
        return Archive(
            url=self.blobs.url,
            rows=sum(file.rows for file in files),
            bytes=sum(file.size for file in files),
            through=catalogue.state.through,
            files=tuple(
                ArchivedFile(
                    path=file.name,
                    day=to_iso(file.day * DAY_US)[:10],
                    rows=file.rows,
                    bytes=file.size,
                    sha256=file.sha256,
                )
                for file in files
            ),
        )

    def archived_events(self, space: str) -> Iterator[Event]:
        """Iterate over all archived events, for totals that are counted again."""
        catalogue = self.catalogue(space)
        for file in catalogue.files:
            from treering.lake import files

            records = files.records_of(files.events_only(self._loaded.blob(self.blobs, file)))
            if (
                file.name in catalogue.state.dropping
            ):  # some rows are still in the database, and counted there
                live = EventQuery(since_us=file.since_us, until_us=file.until_us + 1)
                after = str(file.first_seq - 1)
                found = takewhile(
                    lambda each: each.seq <= file.last_seq,  # noqa: B023 - used up in this round
                    each_record(self.inner, space, live, after=after),
                )
                counted = {each.seq for each in found}
                records = [each for each in records if each.seq not in counted]
            yield from (each.event for each in records)

    # Reading
    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Return a page of events in order, live and archived ones."""
        page = self.inner.scan(space, query, after=after, limit=limit)
        if query.kinds and not any(kind in KINDS or kind.startswith(PREFIXES) for kind in query.kinds):
            return page
        archived = self._unchanged(space, lambda seen: self._scan_files(seen, query, after, limit))
        if not archived:
            return page
        found = {record.seq: record for record in (*archived, *page.records)}
        records = sorted(found.values(), key=_BY[query.order], reverse=query.newest_first)[:limit]
        cursor = None
        if len(records) == limit:
            cursor = encode_cursor(query, records[-1].event.ts_us, records[-1].seq)
        return Page(records=tuple(records), cursor=cursor)

    def _scan_files(
        self, catalogue: Catalogue, query: EventQuery, after: str | None, limit: int
    ) -> list[Record]:
        """Return the first archived events that match, behind a cursor."""
        if not any(file.may_hold(query) for file in catalogue.files):
            return []
        from treering.lake.files import first_records

        start = None if after is None else decode_cursor(query, after)

        def load(file: LakeFile, run: str | None) -> Any:
            return self._loaded.table(self.blobs, file, run)

        return first_records(load, catalogue.files, query, start, limit)

    def _unchanged(self, space: str, read: Callable[[Catalogue], T]) -> T:
        """Read archived files; again if one of them was replaced meanwhile."""
        seen = self.catalogue(space)
        while True:
            try:
                return read(seen)
            except Corrupt:
                now = self.catalogue(space)
                if now.version == seen.version:
                    raise
                seen = now

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Return verified content; that of archived events from their files."""
        try:
            return self.inner.get(space, addresses)
        except NotFound:
            if not self.catalogue(space).files:
                raise
            return self._unchanged(space, lambda seen: self._get_archived(space, seen, addresses))

    def _get_archived(self, space: str, catalogue: Catalogue, addresses: Sequence[Address]) -> list[Content]:
        found: dict[Address, Content] = {}
        for address in dict.fromkeys(addresses):
            content = self._loaded.content(address) if address.startswith("s:") else None
            if content is not None:
                found[address] = content
        for address in dict.fromkeys(addresses):
            if address not in found:
                try:
                    (found[address],) = self.inner.get(space, [address])
                except NotFound:
                    content = self._archived_content(catalogue, address)
                    if content is None:
                        raise
                    found[address] = content
        return [found[address] for address in addresses]

    def _archived_content(self, catalogue: Catalogue, address: Address) -> Content | None:
        """Look for a small content in all files, the likely ones first."""
        parsed = parse_address(address)
        if not isinstance(parsed, SlotAddress):
            return None

        def is_unlikely(file: LakeFile) -> bool:
            return not file.first_batch <= parsed.batch <= file.last_batch

        for file in sorted(catalogue.files, key=is_unlikely):
            self._loaded.table(self.blobs, file, None)
            content = self._loaded.content(address)
            if content is not None:
                return content
        return None

    def scan_scopes(
        self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Return erasure scopes with a prefix, also those of which only archived events are left."""
        found = self.inner.scan_scopes(space, prefix, after=after, limit=limit)
        if not prefix:
            return found

        def archived(seen: Catalogue) -> set[str]:
            every = (scope for file in seen.files for scope in self.scopes_of(file))
            return {each for each in every if each.startswith(prefix) and (after is None or each > after)}

        scopes = self._unchanged(space, archived)
        return sorted(scopes.union(found))[:limit] if scopes else found

    def scopes_of(self, file: LakeFile) -> frozenset[str]:
        """Return the erasure scopes that events of a file belong to."""
        return self._loaded.scopes(self.blobs, file)

    def seqs_of(self, file: LakeFile) -> list[int]:
        """Return the sequence numbers of the events in a file."""
        return self._loaded.blob(self.blobs, file).rows(columns=["seq"])["seq"].to_pylist()

    # Maintenance
    def erase(self, space: str, plan: Erasure) -> Erased:
        """Remove what the plan names, in the database and in archived files."""
        erased = self.inner.erase(space, plan)
        if self.inner.refs(space, [STATE]):
            from treering.lake import archive

            try:
                return archive.erase_archived(self, space, plan, erased)
            finally:
                self._loaded.clear()
        return erased

    def check(
        self, space: str, *, read_content: bool = True, since: int = 0, processes: int = 1
    ) -> Iterator[Problem | Checked]:
        """Verify everything, with the archived files."""
        before = self.catalogue(space)
        held: list[Problem] = []
        for found in self.inner.check(space, read_content=read_content, since=since, processes=processes):
            if before.files and isinstance(found, Problem) and found.where.startswith("roll-up "):
                held.append(found)
            else:
                yield found
        for file in before.files:
            if file.last_seq > since and (problem := self._check_file(file, read_content=read_content)):
                yield problem
        # Events that were archived meanwhile were counted twice or not at all.
        if self.catalogue(space).version == before.version:
            yield from held

    def _check_file(self, file: LakeFile, *, read_content: bool) -> Problem | None:
        info = self.blobs.stat(file.name)
        if info is None:
            return Problem(kind="dangling", where=file.name, detail="the archived file is missing")
        if info.size != file.size:
            detail = f"the archived file has {info.size} bytes, not {file.size}"
            return Problem(kind="corrupt", where=file.name, detail=detail)
        if read_content and sha256(self.blobs.get(file.name)).hexdigest() != file.sha256:
            detail = "the archived file has another hash than the catalogue; restore it from a backup"
            return Problem(kind="corrupt", where=file.name, detail=detail)
        return None

    def commit_digests(self, space: str, *, after_seq: int = 0, limit: int = 1000) -> list[CommitDigest]:
        """Return the next commits in order, with leaves computed from live and archived events."""
        found = self.inner.commit_digests(space, after_seq=after_seq, limit=limit)
        if not any(commit.leaves.erased for commit in found):
            return found
        first, last = found[0].first_seq, found[-1].last_seq
        leaves = self._unchanged(space, lambda seen: self._archived_leaves(seen.files, first, last))
        return [_with_leaves(commit, leaves) for commit in found]

    def _archived_leaves(self, files: Iterable[LakeFile], first: int, last: int) -> dict[int, EventLeaf]:
        """Return the leaves of archived events by sequence number; their places are still 0."""
        from treering.lake.files import salted

        found: dict[int, EventLeaf] = {}
        for file in files:
            if file.first_seq <= last and file.last_seq >= first:
                table = self._loaded.table(self.blobs, file, None)
                for record, salt in salted(table, first, last):
                    digest = leaf("event", salt, event_form(record.event))
                    found[record.seq] = EventLeaf(at=0, id=record.event.id, salt=salt, leaf=digest)
        return found

    def snapshot_to(self, folder: Path, *, on_progress: OnWork | None = None) -> None:
        """Write a consistent copy of the whole store to a new folder, with the archived files."""
        self.inner.snapshot_to(folder, on_progress=on_progress)
        from treering.blobs.folder import FolderBlobs

        target = FolderBlobs(folder / "blobs")
        for space in self.inner.spaces():
            for file in self.catalogue(space).files:
                target.put(file.name, self.blobs.get(file.name))

    def copy_files(self, target: object, space: str) -> None:
        """Copy the archived files of a space to another store, before its rows are copied there."""
        files = self.catalogue(space).files
        if not files:
            return
        theirs = lake_of(target, "a copy of archived days")
        for file in files:
            info = theirs.blobs.stat(file.name)
            if info is None or info.size != file.size:
                theirs.blobs.put(file.name, self.blobs.get(file.name))


def archived_runs(engine: Engine, space: str, runs: Sequence[str]) -> frozenset[str]:
    """Return which of these runs are archived: nothing of them came after the position of the archive."""
    found = engine.refs(space, [STATE])
    if not found or not runs:
        return frozenset()
    through = _decode(STATE, found[STATE].value, LakeState).through
    refs = engine.refs(space, [run_ref(run) for run in runs])
    return frozenset(run for run in runs if run_ref(run) in refs and refs[run_ref(run)].seq <= through)


def lake_of(engine: object, what: str = "archiving") -> LakeEngine:
    """Return the engine that reads and writes archived files; raise `Unsupported` if there is none."""
    found = getattr(engine, "archive", None)
    if not isinstance(found, LakeEngine):
        url = getattr(engine, "url", "this store")
        raise Unsupported(
            f"{url} has no blob store here, which {what} needs; use a local store, or a PostgreSQL store "
            "that is opened directly, with blobs="
        )
    return found


def _with_leaves(commit: CommitDigest, archived: dict[int, EventLeaf]) -> CommitDigest:
    present = {each.at for each in commit.events}
    more = [
        msgspec.structs.replace(archived[seq], at=place)
        for place in commit.leaves.erased
        if place not in present and (seq := commit.first_seq + place) in archived
    ]
    if not more:
        return commit
    events = tuple(sorted((*commit.events, *more), key=lambda each: each.at))
    return msgspec.structs.replace(commit, events=events)


def encode_state(value: msgspec.Struct) -> bytes:
    """Return the state, or a file of the catalogue, as its ref holds it."""
    return msgspec.json.encode(value)


def _decode(name: str, value: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(value, type=type_)
    except msgspec.DecodeError as error:
        raise Corrupt(f"ref {name!r} cannot be read ({error}); run verify") from error


def _by_seq(record: Record) -> tuple[int, int]:
    return 0, record.seq


def _by_time(record: Record) -> tuple[int, int]:
    return record.event.ts_us, record.seq


_BY: Final = {"seq": _by_seq, "time": _by_time}


class _Loaded:
    """Tables that were read last, with their contents. Files never change, so neither do these."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything: a file was replaced."""
        with self._lock:
            self._tables: OrderedDict[tuple[str, str | None], Any] = OrderedDict()
            self._contents: dict[tuple[str, str | None], dict[Address, Content]] = {}
            self._blobs: dict[str, Any] = {}
            self._scopes: dict[str, frozenset[str]] = {}

    def blob(self, blobs: Blobs, file: LakeFile) -> Any:
        """Return an open file."""
        from treering.lake.files import ParquetBlob

        found = self._blobs.get(file.name)
        if found is None:
            found = ParquetBlob(blobs, file.name, file.size)
            with self._lock:
                if len(self._blobs) >= 1000:  # noqa: PLR2004 - footers of a few KB
                    self._blobs.clear()
                self._blobs[file.name] = found
        return found

    def table(self, blobs: Blobs, file: LakeFile, run: str | None) -> Any:
        """Return the rows of a file, or those of one run."""
        from treering.lake.files import whole

        key = file.name, run
        with self._lock:
            for known in (key, (file.name, None)):
                if known in self._tables:
                    self._tables.move_to_end(known)
                    return self._tables[known]
        table = whole(self.blob(blobs, file), run=run)
        with self._lock:
            self._tables[key] = table
            while len(self._tables) > 1 and sum(each.nbytes for each in self._tables.values()) > _CACHE_BYTES:
                old, _ = self._tables.popitem(last=False)
                self._contents.pop(old, None)
        return table

    def content(self, address: Address) -> Content | None:
        """Return a small content if it is in a table that is loaded."""
        from treering.lake.files import contents_of

        with self._lock:
            tables = list(self._tables.items())
        for key, table in reversed(tables):
            contents = self._contents.get(key)
            if contents is None:
                contents = contents_of(table)
                with self._lock:
                    self._contents[key] = contents
            if address in contents:
                return contents[address]
        return None

    def scopes(self, blobs: Blobs, file: LakeFile) -> frozenset[str]:
        """Return the scopes in a file."""
        found = self._scopes.get(file.name)
        if found is None:
            column = self.blob(blobs, file).rows(columns=["scope"])["scope"]
            found = self._scopes[file.name] = frozenset(column.unique().to_pylist())
        return found
