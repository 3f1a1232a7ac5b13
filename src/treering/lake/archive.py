"""Archiving: finished days leave the database as files, and forgetting reaches them there.

`archive` walks the journal in the order of its commits, from where it stopped last. What belongs to runs, and
was committed before the day of the cut-off, goes a chunk at a time into one file per day:

1. The files are written to the blob store, durable, and unknown to everybody.
2. One commit adds them to the catalogue and moves the position. It goes through only if the state of the
   archive is what it was before the events were read: an erasure in between changes it, and so does another
   archiver. Then the files are deleted again, and the chunk is read anew.
3. The rows of the events are deleted. Totals and leaves stay.

An event that comes later stays in the database until the position passes it. Contents that nothing else
refers to go with the next garbage collection; large ones stay in the object store, kept by a tree that the
file's ref links to. The search index stays as it is.

`erase_archived` is the second half of an erasure, whose first half, in the database, is done. A file with
erased events is written again without them. One commit puts it in the place of the old one, which readers do
not see from then on; then totals are reduced, the old file is deleted, and its ref with what only it kept.

**Invariant:** at any moment, every event is in the database, in a catalogued file, or in both and equal; an
erased one is in neither when the erasure returns. A killed process leaves at most a file that nobody reads,
rows that are also in a file, or a replaced file that is still there. The next call finishes each of these.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import structs

from treering.core.batch import ABSENT, Draft
from treering.core.clock import DAY_US, SECOND_US, day_of, to_iso
from treering.core.encoding import encode_json
from treering.core.failpoints import hit
from treering.core.ids import Scope, new_id, parse_scope
from treering.core.query import Erasure, EventQuery, each_ref, record_pages
from treering.core.records import Archived
from treering.core.tree import FileEntry, Tree, encode_tree
from treering.errors import InvalidInput, NotFound, RefMoved
from treering.lake import files
from treering.lake.engine import (
    CATALOGUED,
    CLEANED,
    DELETED,
    REPLACED,
    REWRITTEN,
    SCOPE,
    STATE,
    WRITTEN,
    Catalogue,
    LakeEngine,
    LakeFile,
    LakeState,
    can_be_archived,
    encode_state,
)
from treering.runs.run import RUN, run_from_ref, run_ref
from treering.runs.search import BLOCKS, EventIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from treering.core.clock import Clock
    from treering.core.content import Address, Content
    from treering.core.engine import Engine
    from treering.core.records import Erased, Record
    from treering.lake.files import ArchivedRow

CHUNK: Final = 50_000
"""Events that one commit archives."""
_PAGE: Final = 1000
_ORPHAN_SECONDS: Final = 3600.0
"""A file that is not in the catalogue and older than this has no writer any more."""


def archive(
    lake: LakeEngine,
    space: str,
    *,
    before_us: int,
    clock: Clock,
    on_progress: Callable[[Archived], None] | None = None,
    chunk: int = CHUNK,
) -> Archived:
    """Move the events of runs that were committed before the day of ``before_us`` into files."""
    if before_us > clock.now_us():
        raise InvalidInput(f"before={to_iso(before_us)} is in the future; only finished days are archived")
    finish(lake, space)
    _delete_orphans(lake, space, clock)
    cut_us = day_of(before_us) * DAY_US
    done = Archived()
    while True:
        catalogue = _begun(lake, space)
        part = _archive_chunk(lake, space, catalogue, cut_us, chunk)
        if part is None:
            return structs.replace(done, through=lake.catalogue(space).state.through)
        done = done.plus(part)
        if on_progress is not None:
            on_progress(done)


def _begun(lake: LakeEngine, space: str) -> Catalogue:
    """Return the catalogue; begin one if there is none. From here on, erasures look for archived events."""
    catalogue = lake.catalogue(space)
    if catalogue.version:
        return catalogue
    draft = Draft(space)
    draft.set_ref(STATE, encode_state(LakeState()), scope=SCOPE, expect=ABSENT)
    with suppress(RefMoved):  # another process begins one, too
        lake.inner.commit(draft.batch())
    return lake.catalogue(space)


def _archive_chunk(
    lake: LakeEngine, space: str, catalogue: Catalogue, cut_us: int, chunk: int
) -> Archived | None:
    """Archive the next events; return None if there are none."""
    records, through = _next_records(lake, space, catalogue.state.through, cut_us, chunk)
    if through == catalogue.state.through:
        return None
    _index(lake, space, through)
    try:
        rows = _rows(lake, space, records, through)
    except NotFound:
        if lake.catalogue(space).version != catalogue.version:
            return Archived()  # an erasure came in between
        raise
    by_day: dict[int, list[ArchivedRow]] = {}
    for row in rows:
        by_day.setdefault(files.day_of_row(row), []).append(row)
    written = [_write(lake, space, day, files.write(some)) for day, some in sorted(by_day.items())]
    hit(WRITTEN)
    state = structs.replace(
        catalogue.state,
        through=through,
        changes=catalogue.state.changes + 1,
        dropping=tuple(each.name for each, _ in written),
    )
    runs = {row.record.event.run or "" for row in rows}
    draft = Draft(space)
    _add_files(draft, written)
    for run in sorted(runs):  # what the index refers to may be swept from now on
        for ref in each_ref(lake.inner, space, f"{BLOCKS}{run}/"):
            if ref.links:
                draft.set_ref(ref.name, ref.value, scope=ref.scope, expect=ref.version, listing=ref.listing)
    if not _commit(lake, draft, state, catalogue):
        lake.blobs.delete([each.name for each, _ in written])
        return Archived()
    hit(CATALOGUED)
    lake.drop_archived(space, [row.record.seq for row in rows])
    hit(CLEANED)
    seen = lake.catalogue(space)
    done = structs.replace(state, changes=state.changes + 1, dropping=())
    if seen.state != state or not _commit(lake, Draft(space), done, seen):
        finish(lake, space)
    return Archived(
        events=len(rows),
        runs=len(runs),
        files=len(written),
        bytes=sum(each.size for each, _ in written),
        days=tuple(_iso(each.day) for each, _ in written),
        through=through,
    )


def _next_records(
    lake: LakeEngine, space: str, after: int, cut_us: int, chunk: int
) -> tuple[list[Record], int]:
    """Return events that can be archived, and the sequence number up to which the journal was read."""
    found: list[Record] = []
    through = after
    for records in record_pages(lake.inner, space, EventQuery(), after=str(after), limit=_PAGE):
        for record in records:
            if record.committed_at_us >= cut_us:
                return found, through
            through = record.seq
            if can_be_archived(record.event):
                found.append(record)
        if len(found) >= chunk:
            break
    return found, through


def _index(lake: LakeEngine, space: str, through: int) -> None:
    """Bring the search index up to an event, which it reads from the database."""
    index = EventIndex(cast("Engine", lake), space)
    if index.through < through:
        index.catch_up()
    if index.through < through:
        index.catch_up(everything=True)


def _rows(lake: LakeEngine, space: str, records: Sequence[Record], through: int) -> list[ArchivedRow]:
    if not records:
        return []
    salts = _salts(lake, space, records[0].seq, through)
    rows: list[ArchivedRow] = []
    for start in range(0, len(records), _PAGE):
        some = records[start : start + _PAGE]
        wanted = list(dict.fromkeys(each for record in some for each in files.slots_of(record.event)))
        contents: dict[Address, Content] = dict(
            zip(wanted, lake.get(space, wanted) if wanted else (), strict=True)
        )
        facts = facts_of(lake.inner, space, some)
        rows += [
            files.ArchivedRow(
                record=record,
                salt=salts[record.seq],
                contents={each: contents[each] for each in files.slots_of(record.event)},
                facts=facts.get(record.event.run or "") if record.event.kind == RUN else None,
            )
            for record in some
        ]
    return rows


def _salts(lake: LakeEngine, space: str, first: int, through: int) -> dict[int, bytes]:
    """Return the salts of the leaves of all events in a range."""
    salts: dict[int, bytes] = {}
    after = first - 1
    while after < through:
        commits = lake.inner.commit_digests(space, after_seq=after, limit=_PAGE)
        if not commits:
            break
        for commit in commits:
            salts.update((commit.first_seq + each.at, each.salt) for each in commit.events)
        after = commits[-1].last_seq
    return salts


def facts_of(engine: Engine, space: str, records: Sequence[Record]) -> dict[str, files.RunFacts]:
    """Return what the states of the runs say whose ends are among these records."""
    runs = dict.fromkeys(each.event.run for each in records if each.event.kind == RUN and each.event.run)
    if not runs:
        return {}
    found: dict[str, files.RunFacts] = {}
    for ref in engine.refs(space, [run_ref(run) for run in runs]).values():
        info = run_from_ref(ref)
        user: Any = info.meta.get("user", info.meta.get("user_id"))
        found[info.id] = files.RunFacts(
            tags=info.tags,
            user=user if isinstance(user, str) else None,
            metadata=encode_json(info.meta).decode() if info.meta else None,
            error=files.error_text(info.meta.get("error")),
        )
    return found


def _write(lake: LakeEngine, space: str, day: int, data: bytes) -> tuple[LakeFile, Content | None]:
    """Write a file; return its entry of the catalogue, and the tree of the objects that it refers to."""
    name = f"{lake.folder(space)}/day={_iso(day)}/part-{new_id()}.parquet"
    lake.blobs.put(name, data)
    table = files.ParquetBlob(lake.blobs, name, len(data)).rows(columns=files.CATALOGUED)
    entry = LakeFile(
        name=name, day=day, size=len(data), sha256=sha256(data).hexdigest(), **files.bounds_of(table)
    )
    objects = files.objects_of(table)
    if not objects:
        return entry, None
    kept = FileEntry(name="objects", mode=0o644, size=len(objects), content=tuple(objects))
    return entry, encode_tree(Tree(entries=(kept,)))


def _add_files(draft: Draft, written: Iterable[tuple[LakeFile, Content | None]]) -> None:
    for file, tree in written:
        links: tuple[Address, ...] = ()
        if tree is not None:
            links = (draft.put(tree, scope=SCOPE),)
        draft.set_ref(file.ref, encode_state(file), scope=SCOPE, expect=ABSENT, links=links)


def _commit(lake: LakeEngine, draft: Draft, state: LakeState, seen: Catalogue) -> bool:
    """Commit a change of the catalogue; return False if it is not any more what it was."""
    draft.set_ref(STATE, encode_state(state), scope=SCOPE, expect=seen.version)
    try:
        lake.inner.commit(draft.batch())
    except RefMoved:
        return False
    return True


def finish(lake: LakeEngine, space: str) -> None:
    """Finish what an interrupted call has left: rows of archived events, and files that were replaced."""
    while True:
        catalogue = lake.catalogue(space)
        state = catalogue.state
        if not (state.dropping or state.replaced):
            return
        for file in catalogue.files:
            if file.name in state.dropping:
                table = files.ParquetBlob(lake.blobs, file.name, file.size).rows(columns=["seq"])
                lake.drop_archived(space, table["seq"].to_pylist())
        known = {file.name: file for file in catalogue.files}
        for old, new in zip(state.replaced, state.by, strict=True):
            _finish_replacement(lake, space, old, None if new is None else known[new])
        done = structs.replace(state, changes=state.changes + 1, dropping=(), replaced=(), by=())
        if _commit(lake, Draft(space), done, catalogue):
            return


def _finish_replacement(lake: LakeEngine, space: str, old: LakeFile, new: LakeFile | None) -> None:
    """Reduce the totals by what was taken out of a file, and delete the file and its ref."""
    if lake.blobs.stat(old.name) is not None:
        table = files.ParquetBlob(lake.blobs, old.name, old.size).rows()
        kept: frozenset[int] = frozenset()
        if new is not None:
            blob = files.ParquetBlob(lake.blobs, new.name, new.size)
            kept = frozenset(blob.rows(columns=["seq"])["seq"].to_pylist())
        gone = (record.event for record in files.records_of(table) if record.seq not in kept)
        lake.forget_archived(space, gone, file=old.name)
        lake.blobs.delete([old.name])
    hit(DELETED)
    # What only the old file kept goes with its ref, and their bytes are wiped.
    lake.inner.erase(space, Erasure(refs=(old.ref,), secure=True))


def erase_archived(lake: LakeEngine, space: str, plan: Erasure, erased: Erased) -> Erased:
    """Take what a plan names out of archived files; return the result of the whole erasure."""
    finish(lake, space)
    if not (plan.scopes or plan.event_seqs):
        return erased
    while True:
        catalogue = lake.catalogue(space)
        parts = _parts_with(lake, catalogue, plan)
        # Also without any file to change: an archiver may have read what was just erased.
        state = structs.replace(catalogue.state, changes=catalogue.state.changes + 1)
        if parts:
            break
        if _commit(lake, Draft(space), state, catalogue):
            return erased
    return _replace_parts(lake, space, plan, erased, catalogue, parts)


def _replace_parts(
    lake: LakeEngine,
    space: str,
    plan: Erasure,
    erased: Erased,
    catalogue: Catalogue,
    parts: list[tuple[LakeFile, Any, Any]],
) -> Erased:
    written = [
        _write(lake, space, old.day, files.write_table(keep)) if keep.num_rows else None
        for old, keep, _ in parts
    ]
    hit(REWRITTEN)
    draft = Draft(space)
    _add_files(draft, [each for each in written if each is not None])
    state = structs.replace(
        catalogue.state,
        changes=catalogue.state.changes + 1,
        replaced=tuple(old for old, _, _ in parts),
        by=tuple(None if each is None else each[0].name for each in written),
    )
    if not _commit(lake, draft, state, catalogue):
        lake.blobs.delete([each[0].name for each in written if each is not None])
        return erase_archived(lake, space, plan, erased)
    hit(REPLACED)
    finish(lake, space)
    names = [name for name in erased.kept if not name.startswith("s:")]
    gone = lake.inner.missing(space, names) if names else set[str]()
    return structs.replace(
        erased,
        events=erased.events + sum(removed.num_rows for _, _, removed in parts),
        bytes=erased.bytes + sum(old.size for old, _, _ in parts) - sum(e[0].size for e in written if e),
        objects=erased.objects + len(gone),
        kept={name: why for name, why in erased.kept.items() if name not in gone},
    )


def _parts_with(lake: LakeEngine, catalogue: Catalogue, plan: Erasure) -> list[tuple[LakeFile, Any, Any]]:
    """Return the files that hold something of a plan: each with what to keep of it, and what not."""
    scopes, seqs = frozenset(plan.scopes), frozenset(plan.event_seqs)
    scopes |= _scopes_before(lake, catalogue, scopes)
    parts: list[tuple[LakeFile, Any, Any]] = []
    for file in catalogue.files:
        has_seqs = any(file.first_seq <= seq <= file.last_seq for seq in seqs)
        if has_seqs or (scopes and not scopes.isdisjoint(lake.scopes_of(file))):
            table = files.ParquetBlob(lake.blobs, file.name, file.size).rows()
            keep, removed = files.take_out(table, scopes=scopes, seqs=seqs)
            if removed.num_rows:
                parts.append((file, keep, removed))
    return parts


def _scopes_before(lake: LakeEngine, catalogue: Catalogue, scopes: frozenset[str]) -> frozenset[str]:
    """Return the scopes of runs of these threads from before their thread was known."""
    if not scopes:
        return frozenset()
    own: set[str] = set()
    for file in catalogue.files:
        if not scopes.isdisjoint(lake.scopes_of(file)):
            table = files.ParquetBlob(lake.blobs, file.name, file.size).rows(columns=["run", "scope", "seq"])
            _, inside = files.take_out(table, scopes=scopes, seqs=frozenset())
            for row in inside.select(["run", "scope"]).to_pylist():
                own.add(str(Scope(parse_scope(row["scope"]).namespace, "run", row["run"])))
    return frozenset(own)


def _delete_orphans(lake: LakeEngine, space: str, clock: Clock) -> None:
    """Delete old files that are not in the catalogue, which a killed process has left."""
    known = {file.name for file in lake.catalogue(space).files}
    old_us = clock.now_us() - round(_ORPHAN_SECONDS * SECOND_US)
    after = None
    while page := lake.blobs.list(lake.folder(space), after=after, limit=_PAGE):
        lake.blobs.delete(
            [each.name for each in page if each.name not in known and each.modified_us < old_us]
        )
        if len(page) < _PAGE:
            return
        after = page[-1].name


def _iso(day: int) -> str:
    return to_iso(day * DAY_US)[:10]
