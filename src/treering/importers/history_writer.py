"""Write checkpoints that were made elsewhere, with their own ids and times.

A history arrives in order, each checkpoint after its parent. Many checkpoints go into one commit; what a
checkpoint shares with its parent is written once, as when the thread itself saves. **Invariant:** the head of
a thread is set only when all of its checkpoints are stored, so an interrupted import leaves no partial thread
visible, and the next run skips what is stored already and writes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from treering.core import failpoints
from treering.core.batch import ABSENT, Draft, Event
from treering.core.clock import DAY_US, day_of
from treering.core.content import Content, ObjectAddress, list_address, parse_address
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import thread_scope
from treering.core.query import EventQuery, each_record
from treering.errors import Conflict, NotFound, RefMoved
from treering.runs.run import RunInfo, run_from_ref, run_ref, write_listing, write_ref
from treering.threads.checkpoint import (
    CheckpointRecord,
    ListPrefix,
    Revisions,
    SavedIn,
    by_id,
    read_checkpoint,
    read_state,
)
from treering.threads.history import REWIND, Journal
from treering.threads.writer import (
    CheckpointWriter,
    ListChange,
    NewCheckpoint,
    encode_items,
    head_ref,
    read_head,
)

if TYPE_CHECKING:
    from treering.core.records import Ref
    from treering.store import Store
    from treering.threads.checkpoint import StateValue

_CHECKPOINTS_A_COMMIT: Final = 200
_BYTES_A_COMMIT: Final = 4_000_000
_RECENT: Final = 1_000
_STORED: Final = failpoints.declare("history.stored", "a part of an imported history was committed")
COLUMNS: Final = (
    "run",
    "span",
    "parent",
    "thread",
    "agent",
    "name",
    "model",
    "role",
    "status",
    "cost_nanos",
    "currency",
    "duration_us",
)
"""The columns of an event that hold a text or a number."""


class ImportedList(msgspec.Struct, frozen=True, kw_only=True):
    """The first ``keep`` items of the parent's list, then ``add``."""

    keep: int = 0
    add: Sequence[Any] = ()


class ImportedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to be stored.

    ``state`` holds the values that differ from the parent's, ``changed`` the dicts in which only some keys do
    (set and dropped), ``dropped`` the names that are gone. With ``whole``, nothing of the parent's state
    stays. A ``snapshot`` is kept only if its files are in the store already. A ``revision`` (its id) replaces
    a checkpoint that is stored.
    """

    id: str
    thread: str
    namespace: str
    parent: str | None
    step: int
    created_at_us: int
    lists: Mapping[str, ImportedList]
    state: Mapping[str, Any]
    whole: bool = True
    dropped: Sequence[str] = ()
    changed: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]] = {}
    pending_interrupt: Any = None
    metadata: Mapping[str, Any] = {}
    note: str | None = None
    tags: Sequence[str] = ()
    snapshot: str | None = None
    saved_in: SavedIn = SavedIn()
    revision: str | None = None


class ImportedHead(msgspec.Struct, frozen=True, kw_only=True):
    """Where the head of a thread goes.

    ``checkpoints`` and ``rewinds`` are the ids of what the source has of the thread, as far as it matters.
    """

    thread: str
    namespace: str
    checkpoint: str
    first_us: int
    checkpoints: AbstractSet[str]
    rewinds: AbstractSet[str] = frozenset()


class HistoryWriter:
    """Writes histories into one store, in batches; `finish` writes what is still buffered."""

    def __init__(self, store: Store) -> None:
        self._engine = store.engine
        self._space = store.space
        self._writer = CheckpointWriter(store.engine, store.space)
        self._draft = Draft(self._space)
        self._waiting = 0
        self._bytes = 0
        self._known: dict[str, CheckpointRecord] = {}
        self._tails: dict[str, tuple[int, str]] = {}
        self._shared_lists: dict[str, int] = {}
        """Lengths of the lists of recorded requests."""
        self._unwritten: set[str] = set()

    def owners(self, checkpoint_ids: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return which of these checkpoints are stored already, with the thread and namespace of each."""
        by_day: dict[tuple[int | None, int | None], list[str]] = {}
        for each in checkpoint_ids:
            query = by_id(each)
            by_day.setdefault((query.since_us, query.until_us), []).append(each)
        found: dict[str, tuple[str, str]] = {}
        for ids in by_day.values():
            for start in range(0, len(ids), _CHECKPOINTS_A_COMMIT):
                query = by_id(*ids[start : start + _CHECKPOINTS_A_COMMIT])
                for record in self._engine.scan(self._space, query, limit=_CHECKPOINTS_A_COMMIT).records:
                    checkpoint = read_checkpoint(self._engine, self._space, record)
                    found[checkpoint.id] = checkpoint.thread, checkpoint.namespace
        return found

    def dicts_in_state(self, checkpoint_id: str, names: Iterable[str]) -> set[str]:
        """Return which of these state values of a stored checkpoint are dicts."""
        stored = self._checkpoint(checkpoint_id).state
        wanted = {name: stored[name] for name in names if name in stored}
        values = read_state(self._engine, self._space, wanted)
        return {name for name, value in values.items() if isinstance(value, dict)}

    def rewinds(self, thread: str, namespace: str) -> set[str]:
        """Return the ids of a thread's rewinds that are stored already."""
        return self._events(EventQuery(kinds=(REWIND,), scope=thread_scope(thread, namespace)))

    def stored_events(self, times: Mapping[str, int]) -> set[str]:
        """Return which of these events (their times by id) are stored already."""
        by_day: dict[int, list[str]] = {}
        for each, ts_us in times.items():
            by_day.setdefault(day_of(ts_us), []).append(each)
        found: set[str] = set()
        for day, ids in by_day.items():
            for start in range(0, len(ids), _CHECKPOINTS_A_COMMIT):
                some = tuple(ids[start : start + _CHECKPOINTS_A_COMMIT])
                since, until = day * DAY_US, (day + 1) * DAY_US
                found |= self._events(EventQuery(ids=some, since_us=since, until_us=until, brief=True))
        return found

    def _events(self, query: EventQuery) -> set[str]:
        return {record.event.id for record in each_record(self._engine, self._space, query)}

    def add(self, made: ImportedCheckpoint, *, size: int = 0) -> None:
        """Add a checkpoint whose parent was added before or is stored; ``size`` is its approximate size in
        bytes.
        """
        if made.revision is not None:
            self.finish()
            self._draft = Draft(self._space, id=made.revision)
        parent = None if made.parent is None else self._checkpoint(made.parent)
        scope = thread_scope(made.thread, made.namespace)
        before = parent.lists if parent is not None else {}
        if made.changed or any(
            self._needs(before.get(name), change, scope) for name, change in made.lists.items()
        ):
            self.finish()  # what it continues must be stored before it can be read
        stored = {} if parent is None or made.whole else parent.state
        lists = {
            name: self._list_change(before.get(name), change, scope) for name, change in made.lists.items()
        }
        record = CheckpointRecord(
            id=made.id,
            thread=made.thread,
            namespace=made.namespace,
            parent=made.parent,
            step=made.step,
            created_at_us=made.created_at_us,
            lists={},
            state={name: value for name, value in stored.items() if name not in made.dropped},
            pending_interrupt=made.pending_interrupt,
            metadata=dict(made.metadata),
            note=made.note,
            tags=tuple(made.tags),
            snapshot=made.snapshot if self._is_stored(made.snapshot) else None,
        )
        checkpoint = self._writer.put(
            self._draft,
            NewCheckpoint(
                record=record,
                lists=lists,
                state=self._new_state(stored, made),
                previous_state=stored,
                origin=parent,
                is_revision=made.revision is not None,
                saved_in=made.saved_in,
            ),
        )
        for name, prefix in checkpoint.lists.items():
            if lists[name].contents or lists[name].base is None:
                self._tails[prefix.list] = prefix.length, scope
                self._unwritten.add(prefix.list)
        self._remember(checkpoint)
        self._count(size)
        if made.revision is not None:
            self.finish()

    def add_event(
        self,
        event: Event,
        *,
        slots: Mapping[str, Content] | None = None,
        objects: Sequence[Content] = (),
        lists: Mapping[str, tuple[str, str]] | None = None,
        by_index: bool = False,
    ) -> None:
        """Add an event of a thread that is not a checkpoint; one that is stored already stays as it is.

        ``slots`` are its small contents by their former addresses, ``lists`` the checkpoint and the channel
        of each list that it names; the addresses in the event are rewritten. An event that refers to its
        contents ``by_index`` gets a commit of its own, in which they keep their indexes.
        """
        contents = dict(slots or {})
        named = {
            each: self._checkpoint(checkpoint).lists[name].list
            for each, (checkpoint, name) in (lists or {}).items()
        }
        if named and event.body in contents:
            body = contents[event.body]
            contents[event.body] = Content(body.kind, _renamed(body.data, named))
        if by_index:
            self.finish()
            contents = _in_place(contents)
        moved = {each: self._draft.put(content, scope=event.scope) for each, content in contents.items()}
        for each in objects:
            self._draft.put(each, scope=event.scope)
        data = event.data and _renamed(event.data, {**named, **moved})
        moved |= {list_address(before): list_address(after) for before, after in named.items()}
        self._draft.event(
            structs.replace(
                event,
                data=data,
                body=None if event.body is None else moved.get(event.body, event.body),
                links=tuple(moved.get(each, each) for each in event.links),
            )
        )
        self._count(sum(len(content.data) for content in (*contents.values(), *objects)))
        if by_index:
            self.finish()

    def add_items(
        self, list_id: str, items: Sequence[Content], *, at: int, parent: str | None, scope: str
    ) -> None:
        """Add the items of a list that recorded requests share; those that are stored already stay."""
        length = self._shared_lists.get(list_id)
        if length is None:
            length = self.list_length(list_id)
        first = length or at
        new = items[max(first - at, 0) :]
        if new or not length:
            self._draft.append(list_id, *new, scope=scope, at=first, parent=None if length else parent)
            self._count(sum(len(each.data) for each in new))
        self._shared_lists[list_id] = max(length, at + len(items))

    def list_length(self, list_id: str) -> int:
        """Return how many items a list has; 0 if there is none."""
        info = self._engine.list_info(self._space, list_id)
        return 0 if info is None else info.length

    def run_changes(self, info: RunInfo) -> bool:
        """Return whether a run is not stored as it is given; one that was recorded here, or that ended here
        later, stays as it is.
        """
        name = run_ref(info.id)
        ref = self._engine.refs(self._space, [name]).get(name)
        if ref is None:
            return True
        known = run_from_ref(ref)
        if (known.recorders or known.ended_at_us is not None) and info.ended_at_us is None:
            return False
        if known.ended_at_us is not None and (info.ended_at_us or 0) < known.ended_at_us:
            return False
        return info != structs.replace(known, recorders=())

    def add_run(self, info: RunInfo) -> None:
        """Add the state of a run."""
        write_listing(self._draft, info)
        write_ref(self._draft, info)
        self._count(0)

    def set_further_head(self, name: str, thread: str, namespace: str, checkpoint: str) -> None:
        """Set the head of a subgraph, unless it is there or further already."""
        self.finish()
        ref = self._engine.refs(self._space, [name]).get(name)
        if ref is not None and decode_json(ref.value)["checkpoint"] >= checkpoint:
            return
        draft = Draft(self._space)
        value = encode_json({"checkpoint": checkpoint})
        expect = ABSENT if ref is None else ref.version
        draft.set_ref(name, value, scope=thread_scope(thread, namespace), expect=expect)
        with suppress(RefMoved):
            self._engine.commit(draft.batch())

    def finish(self) -> None:
        """Write what is buffered."""
        if self._waiting:
            self._engine.commit(self._draft.batch())
            failpoints.hit(_STORED)
        self._draft = Draft(self._space)
        self._waiting = self._bytes = 0
        self._unwritten.clear()

    def head_moves(self, head: ImportedHead) -> bool:
        """Return whether an import moves this head: not if the thread is at it, or past it, already.

        Raises `Conflict` if the thread was saved to in this store and does not have the imported head in its
        past. A thread that was rewound in this store stays where it was rewound to.
        """
        ref = self._ref(head)
        if ref is None:
            return True
        now = read_head(ref).checkpoint
        if now == head.checkpoint:
            return False
        if now in head.checkpoints:
            return self.rewinds(head.thread, head.namespace) <= head.rewinds
        journal = Journal(self._engine, self._space, head.namespace)
        if any(each.id == head.checkpoint for each in journal.line(journal.by_id(now))):
            return False
        raise Conflict(
            f"thread {head.thread!r} has checkpoints in the target that the source does not know; "
            "fork it in the source and take the fork, or choose another namespace (--namespace NAME)"
        )

    def set_head(self, head: ImportedHead) -> None:
        """Move the head of a thread to its newest checkpoint, after writing what is buffered.

        The thread is listed by the time of that checkpoint, not of the import.
        """
        self.finish()
        if not self.head_moves(head):
            return
        ref = self._ref(head)
        first_us = head.first_us if ref is None else min(head.first_us, read_head(ref).first_us)
        draft = Draft(self._space)
        checkpoint = self._checkpoint(head.checkpoint)
        self._writer.put_head(
            draft,
            checkpoint,
            expect=ABSENT if ref is None else ref.version,
            first_us=first_us,
            updated_us=checkpoint.created_at_us,
        )
        self._engine.commit(draft.batch())

    def _ref(self, head: ImportedHead) -> Ref | None:
        name = head_ref(head.thread, head.namespace)
        return self._engine.refs(self._space, [name]).get(name)

    def _list_change(self, before: ListPrefix | None, change: ImportedList, scope: str) -> ListChange:
        contents = encode_items(list(change.add))
        if before is None or change.keep == 0:
            return ListChange(contents=contents)
        is_tail = not contents or (change.keep == before.length and self._is_tail(before, scope))
        return ListChange(before, change.keep, contents, branch=not is_tail)

    def _needs(self, before: ListPrefix | None, change: ImportedList, scope: str) -> bool:
        """Return whether a list would branch off from one that is not stored yet."""
        if before is None or before.list not in self._unwritten or not (change.keep and change.add):
            return False
        return change.keep != before.length or not self._is_tail(before, scope)

    def _is_tail(self, prefix: ListPrefix, scope: str) -> bool:
        """Return whether a list ends with this prefix and belongs to the same thread."""
        tail = self._tails.get(prefix.list)
        if tail is None:
            info = self._engine.list_info(self._space, prefix.list)
            if info is None:
                return False
            tail = self._tails[prefix.list] = info.length, info.scope
        return tail == (prefix.length, scope)

    def _new_state(self, stored: Mapping[str, StateValue], made: ImportedCheckpoint) -> dict[str, Any]:
        """Return the state values that differ from the parent's."""
        values = dict(made.state)
        for name, (new, gone) in made.changed.items():
            (old,) = read_state(self._engine, self._space, {name: stored[name]}).values()
            values[name] = {key: each for key, each in {**old, **new}.items() if key not in gone}
        return values

    def _is_stored(self, snapshot: str | None) -> bool:
        """Return whether the files of a snapshot are stored; they are not part of an exported history."""
        place = None if snapshot is None else parse_address(snapshot)
        return isinstance(place, ObjectAddress) and not self._engine.missing(self._space, [place.name])

    def _checkpoint(self, checkpoint_id: str) -> CheckpointRecord:
        known = self._known.get(checkpoint_id)
        if known is not None:
            return known
        self.finish()
        page = self._engine.scan(self._space, by_id(checkpoint_id), limit=1)
        for record in page.records:
            checkpoint = Revisions(self._engine, self._space).read(record)
            self._remember(checkpoint)
            return checkpoint
        raise NotFound(f"checkpoint {checkpoint_id!r} is neither in this store nor in the import")

    def _remember(self, checkpoint: CheckpointRecord) -> None:
        self._known[checkpoint.id] = checkpoint
        if len(self._known) > _RECENT:
            self._known.pop(next(iter(self._known)))

    def _count(self, size: int) -> None:
        self._waiting += 1
        self._bytes += size
        if self._waiting >= _CHECKPOINTS_A_COMMIT or self._bytes >= _BYTES_A_COMMIT:
            self.finish()


def _renamed(data: bytes, names: Mapping[str, str]) -> bytes:
    """Return JSON with the names of lists and addresses replaced."""
    for before, after in names.items():
        data = data.replace(b'"%s"' % before.encode(), b'"%s"' % after.encode())
    return data


def _in_place(slots: Mapping[str, Content]) -> dict[str, Content]:
    """Return contents in the order of their indexes, with empty contents for the gaps."""
    by_index = {int(address.rpartition(".")[2]): address for address in slots}
    return {
        by_index.get(index, f"gap {index}"): slots.get(by_index.get(index, ""), Content("text", b""))
        for index in range(max(by_index, default=-1) + 1)
    }
