"""Export the histories of threads as JSON Lines (see `jsonl_format`), which `import_jsonl` reads back.

Everything is streamed; of a long history one page is in memory at a time. A checkpoint whose parent was
dropped by retention gets the next ancestor that is left as its parent.

What a task of a graph wrote may be an item of a list in which the next checkpoint has it as well. In another
store that list is a different one, so such content is taken out of the list and exported with the event. The
exception is a task that was sent a whole conversation: it refers to a prefix of a list of an earlier
checkpoint, and if that checkpoint is exported, the event names the checkpoint and the list. So an export
grows with the conversation, not with its square.

An export for a store that has a part already (see `treering.importers.transfer`) leaves that part out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import orjson
from msgspec import structs

from treering.core.batch import Event
from treering.core.clock import to_iso
from treering.core.content import (
    INLINE_LIMIT,
    Address,
    Content,
    ListAddress,
    SlotAddress,
    list_address,
    object_address,
    parse_address,
    slot_address,
)
from treering.core.encoding import decode_json
from treering.core.ids import RUN_MOVED, Scope, thread_scope
from treering.core.query import EventQuery, ListQuery, each_listed, each_record, each_ref, record_pages
from treering.graphs.graph import EMBEDDED_FORM, PREFIX_FORMS, WRITES
from treering.graphs.step import subgraph_refs
from treering.importers.history_writer import COLUMNS
from treering.importers.jsonl_format import (
    NOTHING,
    CheckpointLine,
    End,
    EventLine,
    ItemsLine,
    ListDelta,
    ListLine,
    RefLine,
    RewindLine,
    RunLine,
    Start,
    StateDelta,
    ThreadLine,
    ValueDelta,
    content_line,
    raw_content,
    raw_value,
    write_line,
)
from treering.runs.exchanges import EXCHANGE
from treering.runs.run import RUN_LIST, run_from_ref
from treering.secret_scan import FoundSecret, scan_secrets
from treering.threads.checkpoint import (
    KIND,
    REVISION,
    CheckpointRecord,
    ListPrefix,
    Revisions,
    SavedIn,
    Value,
    read_checkpoint,
)
from treering.threads.history import REWIND, Journal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from treering.core.engine import Engine
    from treering.core.records import ListInfo, Record
    from treering.importers.registry import Progress
    from treering.store import Store
    from treering.threads.checkpoint import StateValue
    from treering.threads.directory import ThreadInfo


class ExportedList(msgspec.Struct, frozen=True):
    """Where the items of a list are in an export: a checkpoint, the channel, and how many items that has."""

    checkpoint: str
    name: str
    length: int


class ExportedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event, its contents by address, and the lists of exported checkpoints that it names."""

    event: Event
    contents: dict[Address, Content]
    lists: dict[str, ExportedList] = {}


def collect_event(
    engine: Engine, space: str, record: Record, exported: Mapping[str, ExportedList]
) -> ExportedEvent | None:
    """Return an event with its contents; ``None`` if it refers to content that cannot be taken along.

    ``exported`` are the lists of the checkpoints that were exported before it.
    """
    event = record.event
    addresses = list(dict.fromkeys([*event.links] if event.body is None else [*event.links, event.body]))
    places = {address: parse_address(address) for address in addresses}
    if event.kind == WRITES and any(
        isinstance(place, SlotAddress) and place.batch != record.batch for place in places.values()
    ):
        return None
    own = [address for address in addresses if not isinstance(places[address], ListAddress)]
    has_lists = len(own) < len(addresses)
    if has_lists and event.kind != WRITES and not event.kind.startswith(EXCHANGE):
        return None
    contents = dict(zip(own, engine.get(space, own) if own else (), strict=True))
    if has_lists and event.kind == WRITES:
        return _taken_out(engine, space, record, contents, exported)
    return ExportedEvent(event=event, contents=contents)


def _taken_out(
    engine: Engine,
    space: str,
    record: Record,
    contents: dict[Address, Content],
    exported: Mapping[str, ExportedList],
) -> ExportedEvent:
    """Return what a task wrote, with the items of lists that are not exported added to its contents."""
    event = record.event
    given = event.data if event.body is None else contents[event.body].data
    fields: dict[str, Any] = orjson.loads(given or b"{}")
    slots = [place.index for place in map(parse_address, contents) if isinstance(place, SlotAddress)]
    free = max(slots, default=-1) + 1
    added: dict[Address, None] = {}
    lists: dict[str, ExportedList] = {}

    def add(content: Content) -> int | Address:
        """Add an item; return how the writes refer to it: by its index, or (large ones) by its name."""
        if len(content.data) >= INLINE_LIMIT:
            address = object_address(content.name)
            contents[address] = content
            added[address] = None
            return address
        index = free + sum(each.startswith("s:") for each in added)
        contents[slot_address(record.batch, 0, index)] = content
        added[slot_address(record.batch, 0, index)] = None
        return index

    def own(place: Any) -> Any:
        if not isinstance(place, list):
            return place
        list_id, position = cast("list[Any]", place)
        return add(engine.read_list(space, list_id, position, position + 1)[0])

    def own_begun(place: Any) -> Any:
        list_id, count, rest = place
        there = exported.get(list_id)
        if there is not None and count <= there.length:
            known = lists.get(list_id)
            most = count if known is None else max(count, known.length)
            lists[list_id] = structs.replace(there, length=most)
            return [list_id, count, [*map(own, rest)]]
        first = engine.read_list(space, list_id, 0, count) if count else []
        return ["", 0, [*map(add, first), *map(own, rest)]]

    for entry in fields["writes"]:
        if entry[2] == "l":
            entry[3] = [own(each) for each in entry[3]]
        elif entry[2] in PREFIX_FORMS:
            entry[3] = own_begun(entry[3])
        elif entry[2] == EMBEDDED_FORM:
            entry[3] = [own(entry[3][0]), [own_begun(each) for each in entry[3][1]]]
        elif entry[2] != "v":
            entry[3] = own(entry[3])
    data = orjson.dumps(fields)
    if event.body is not None:
        contents[event.body] = Content("json", data)
    links = [each for each in event.links if not each.startswith("l:")]
    event = structs.replace(
        event,
        data=data if event.body is None else None,
        links=(*links, *added, *map(list_address, lists)),
    )
    return ExportedEvent(event=event, contents=contents, lists=lists)


_PAGE: Final = 500
_SECRETS: Final = 100


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported; ``left_out`` counts, by kind, events whose content is not the thread's own."""

    threads: int
    checkpoints: int
    rewinds: int
    events: int
    runs: int = 0
    snapshots: tuple[str, ...] = ()
    """The snapshots of the checkpoints, each once. Their files are not among the lines."""
    left_out: dict[str, int]
    secrets: tuple[FoundSecret, ...] = ()
    """What looks like keys and passwords in it, by thread and line of the export; the first 100."""


class Existing:
    """What the store that an export is for has already: nothing, unless a subclass knows better."""

    def after(self, thread: ThreadInfo) -> str | None:
        """Return the cursor in the thread's events up to which it has all of them."""
        del thread
        return None

    def head(self, thread: ThreadInfo) -> str | None:
        """Return the checkpoint that the thread is at there, if it is one that the source has as well."""
        del thread
        return None

    def checkpoints(self, ids: Iterable[str]) -> set[str]:
        """Return which of these checkpoints it has."""
        del ids
        return set()

    def list_length(self, list_id: str) -> int:
        """Return how many items it has of a list that recorded requests share."""
        del list_id
        return 0


def export_jsonl(
    store: Store,
    threads: Iterable[ThreadInfo],
    write: Callable[[bytes], Any],
    *,
    on_progress: Progress | None = None,
    existing: Existing | None = None,
) -> ExportReport:
    """Export the histories of these threads, including the past that they share with other threads.

    What is ``existing`` in the store that the lines are for is left out.
    """
    return _Export(store, write, on_progress, existing or Existing()).run(threads)


class _Export:
    def __init__(
        self,
        store: Store,
        write: Callable[[bytes], Any],
        on_progress: Progress | None,
        existing: Existing,
    ) -> None:
        self._existing = existing
        self._stored: dict[str, bool] = {}
        """Whether checkpoints that were looked up are existing ones."""
        self._saved_in: dict[str, SavedIn] = {}
        self._items: dict[str, int] = {}
        """How many items of each list of recorded requests are written or existing."""
        self._engine = store.engine
        self._space = store.space
        self._write_line = write
        self._on_progress = on_progress
        self._written: set[str] = set()
        self._recent: dict[str, CheckpointRecord] = {}
        self._lineages: dict[str, list[ListInfo]] = {}
        self._exported_lists: dict[str, ExportedList] = {}
        self._rewinds = 0
        self._events = 0
        self._runs = 0
        self._snapshots: dict[str, None] = {}
        self._left_out: dict[str, int] = {}
        self._secrets: list[FoundSecret] = []
        self._line_number = 0
        self._thread_id = ""

    def run(self, threads: Iterable[ThreadInfo]) -> ExportReport:
        count = 0
        self._write(write_line(Start()))
        for thread in threads:
            count += 1
            self._thread(thread)
        self._write(write_line(End(threads=count, checkpoints=len(self._written))))
        return ExportReport(
            threads=count,
            checkpoints=len(self._written),
            rewinds=self._rewinds,
            events=self._events,
            runs=self._runs,
            snapshots=tuple(self._snapshots),
            left_out=self._left_out,
            secrets=tuple(self._secrets),
        )

    def _write(self, line: bytes) -> None:
        self._line_number += 1
        if len(self._secrets) < _SECRETS:
            self._secrets += (
                FoundSecret(path=self._thread_id, rule=each.rule, line=self._line_number, hint=each.hint)
                for each in scan_secrets(line)
            )
        self._write_line(line)

    def _thread(self, thread: ThreadInfo) -> None:
        self._thread_id = thread.id
        scope = thread_scope(thread.id, thread.namespace)
        continues = self._existing.head(thread)
        rewinds = EventQuery(scope=scope, kinds=(REWIND,), brief=True)
        self._write(
            write_line(
                ThreadLine(
                    thread=thread.id,
                    namespace=thread.namespace,
                    head=thread.head,
                    created_at=to_iso(thread.created_at_us),
                    continues=continues,
                    rewinds=[]
                    if continues is None
                    else [each.event.id for each in each_record(self._engine, self._space, rewinds)],
                )
            )
        )
        revisions = Revisions(self._engine, self._space)
        for page in record_pages(
            self._engine, self._space, EventQuery(scope=scope), after=self._existing.after(thread)
        ):
            self._look_up(each.event.id for each in page if each.event.kind == KIND)
            for record in page:
                self._record(record, thread, revisions)
        self._run_states(thread)
        self._subgraph_heads(thread)
        if thread.head not in self._written and not self._is_existing(thread.head):
            # It was rewound to a checkpoint of another thread.
            self._checkpoint(Journal(self._engine, self._space, thread.namespace).by_id(thread.head))

    def _record(self, record: Record, thread: ThreadInfo, revisions: Revisions) -> None:
        event = record.event
        if event.kind == KIND:
            if not self._is_existing(event.id):
                self._saved_in[event.id] = SavedIn(run=event.run, span=event.span, agent=event.agent)
                self._checkpoint(revisions.read(record))
        elif event.kind == REWIND:
            self._rewinds += 1
            fields = decode_json(event.data or b"{}")
            self._write(
                write_line(
                    RewindLine(
                        id=event.id,
                        thread=thread.id,
                        namespace=thread.namespace,
                        at=to_iso(event.ts_us),
                        data=raw_value(fields),
                    )
                )
            )
        elif event.kind == REVISION:
            # A checkpoint is exported as it was last revised; only an existing one needs more.
            newest = revisions.of(event.scope).get(event.parent or "")
            if newest is not None and newest.event.id == event.id and self._is_existing(event.parent or ""):
                revised = read_checkpoint(self._engine, self._space, record)
                self._revision(revised, event.id)
        else:
            self._other(record, thread)
            if event.kind == RUN_MOVED and event.run is not None:
                own = EventQuery(scope=str(Scope(thread.namespace, "run", event.run)))
                for each in each_record(self._engine, self._space, own):
                    self._other(each, thread, own_run=event.run)

    def _look_up(self, ids: Iterable[str]) -> None:
        new = [each for each in ids if each not in self._stored]
        stored = self._existing.checkpoints(new) if new else ()
        self._stored.update((each, each in stored) for each in new)

    def _is_existing(self, checkpoint_id: str) -> bool:
        self._look_up((checkpoint_id,))
        return self._stored[checkpoint_id]

    def _run_states(self, thread: ThreadInfo) -> None:
        query = ListQuery(list=RUN_LIST, namespace=thread.namespace, thread=thread.id, oldest_first=True)
        for ref in each_listed(self._engine, self._space, query):
            # No process keeps it alive there.
            info = structs.replace(run_from_ref(ref), recorders=())
            state = {name: each for name, each in structs.asdict(info).items() if each not in (None, {}, ())}
            self._runs += 1
            self._write(
                write_line(
                    RunLine(run=info.id, thread=thread.id, namespace=thread.namespace, state=raw_value(state))
                )
            )

    def _request_lists(self, record: Record, thread: ThreadInfo) -> None:
        """Write the items of the lists that a recorded request is made of, as far as they are not written."""
        lists: dict[str, list[Any]] = decode_json(record.event.data or b"{}").get("lists", {})
        lengths: dict[str, int] = {}
        for list_id, length, _ in lists.values():
            lengths[list_id] = max(lengths.get(list_id, 0), length)
        for list_id, length in lengths.items():
            self._list_items(self._lineage(list_id), length, thread)

    def _list_items(self, lineage: Sequence[ListInfo], length: int, thread: ThreadInfo) -> None:
        info, rest = lineage[0], lineage[1:]
        if info.list not in self._items:
            self._items[info.list] = self._existing.list_length(info.list)
        there = self._items[info.list]
        if length <= there:
            return
        if not there and info.start and rest:
            self._list_items(rest, info.start, thread)
        at = max(there, info.start)
        items = self._engine.read_list(self._space, info.list, at, length)
        self._write(
            write_line(
                ItemsLine(
                    list_id=info.list,
                    thread=thread.id,
                    namespace=thread.namespace,
                    parent=info.parent if info.start else None,
                    at=at,
                    add=[line for each in items if (line := content_line(each)) is not None],
                )
            )
        )
        self._items[info.list] = length

    def _other(self, record: Record, thread: ThreadInfo, *, own_run: str | None = None) -> None:
        """Write an event that is not a checkpoint, with its content, unless that cannot be taken along."""
        if record.event.kind.startswith(EXCHANGE):
            self._request_lists(record, thread)
        line = self._event_line(record, thread, own_run)
        if line is None:
            kind = record.event.kind
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
        else:
            self._events += 1
            self._write(write_line(line))

    def _event_line(self, record: Record, thread: ThreadInfo, own_run: str | None) -> EventLine | None:
        found = collect_event(self._engine, self._space, record, self._exported_lists)
        if found is None:
            return None
        event, contents = found.event, found.contents
        whole = {
            address: line
            for address, content in contents.items()
            if (line := content_line(content)) is not None
        }
        if len(whole) < len(contents):
            return None
        return EventLine(
            id=event.id,
            thread=thread.id,
            namespace=thread.namespace,
            type=event.kind,
            at=to_iso(event.ts_us),
            columns=_columns(event),
            data=NOTHING if event.data is None else msgspec.Raw(event.data),
            body=event.body,
            links=list(event.links),
            by_index=event.kind == WRITES,
            slots={address: line for address, line in whole.items() if address.startswith("s:")},
            objects=[line for address, line in whole.items() if address.startswith("o:")],
            lists={
                list_id: ListLine(checkpoint=each.checkpoint, name=each.name, length=each.length)
                for list_id, each in found.lists.items()
            },
            own_run=own_run,
        )

    def _subgraph_heads(self, thread: ThreadInfo) -> None:
        prefix = subgraph_refs(thread.id, thread.namespace)
        for ref in each_ref(self._engine, self._space, prefix):
            head: str = decode_json(ref.value)["checkpoint"]
            if head in self._written or self._is_existing(head):
                line = RefLine(name=ref.name, thread=thread.id, namespace=thread.namespace, checkpoint=head)
                self._write(write_line(line))

    def _checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Write a checkpoint, after those of its ancestors that are not written yet."""
        chain = [checkpoint]
        if checkpoint.parent is not None and not self._is_there(checkpoint.parent):
            for ancestor in self._ancestors(checkpoint):
                chain.append(ancestor)
                if self._is_there(ancestor.id):
                    break
        is_found = len(chain) > 1 and self._is_there(chain[-1].id)
        parent = chain.pop() if is_found else self._known(checkpoint.parent)
        for each in reversed(chain):
            self._line(each, parent)
            parent = each

    def _ancestors(self, checkpoint: CheckpointRecord) -> Iterator[CheckpointRecord]:
        line = Journal(self._engine, self._space, checkpoint.namespace).line(checkpoint)
        next(line, None)
        return line

    def _known(self, checkpoint_id: str | None) -> CheckpointRecord | None:
        """Return a checkpoint that was written before, or is existing."""
        if checkpoint_id is None or not self._is_there(checkpoint_id):
            return None
        return self._recent.get(checkpoint_id) or self._fetched(checkpoint_id)

    def _fetched(self, checkpoint_id: str) -> CheckpointRecord:
        from treering.threads.checkpoint import by_id

        (record,) = self._engine.scan(self._space, by_id(checkpoint_id), limit=1).records
        return Revisions(self._engine, self._space).read(record)

    def _is_there(self, checkpoint_id: str) -> bool:
        return checkpoint_id in self._written or self._is_existing(checkpoint_id)

    def _revision(self, checkpoint: CheckpointRecord, revision: str) -> None:
        """Write an existing checkpoint as it is now."""
        self._checkpoint_line(checkpoint, self._known(checkpoint.parent), revision=revision)

    def _line(self, checkpoint: CheckpointRecord, parent: CheckpointRecord | None) -> None:
        if not self._is_there(checkpoint.id):
            self._checkpoint_line(checkpoint, parent)

    def _checkpoint_line(
        self, checkpoint: CheckpointRecord, parent: CheckpointRecord | None, *, revision: str | None = None
    ) -> None:
        known = parent.lists if parent is not None else {}
        saved_in = self._saved_in.pop(checkpoint.id, SavedIn())
        self._write(
            write_line(
                CheckpointLine(
                    id=checkpoint.id,
                    thread=checkpoint.thread,
                    namespace=checkpoint.namespace,
                    parent=None if parent is None else parent.id,
                    step=checkpoint.step,
                    created_at=to_iso(checkpoint.created_at_us),
                    note=checkpoint.note,
                    tags=list(checkpoint.tags),
                    lists={
                        name: self._list(known.get(name), prefix) for name, prefix in checkpoint.lists.items()
                    },
                    state=self._state(None if parent is None else parent.state, checkpoint.state),
                    metadata=raw_value(checkpoint.metadata),
                    pending_interrupt=raw_value(checkpoint.pending_interrupt),
                    snapshot=checkpoint.snapshot,
                    run=saved_in.run,
                    span=saved_in.span,
                    agent=saved_in.agent,
                    revision=revision,
                )
            )
        )
        if revision is None:
            self._written.add(checkpoint.id)
        for name, prefix in checkpoint.lists.items():
            before = self._exported_lists.get(prefix.list)
            if before is None or before.length < prefix.length:
                self._exported_lists[prefix.list] = ExportedList(checkpoint.id, name, prefix.length)
        if checkpoint.snapshot is not None:
            self._snapshots[checkpoint.snapshot] = None
        self._recent[checkpoint.id] = checkpoint
        if len(self._recent) > _PAGE:
            self._recent.pop(next(iter(self._recent)))
        if self._on_progress is not None:
            self._on_progress(len(self._written), None)

    def _list(self, before: ListPrefix | None, now: ListPrefix) -> ListDelta:
        keep = 0 if before is None else self._shared(before, now)
        items = self._engine.read_list(self._space, now.list, keep, now.length)
        return ListDelta(keep=keep, add=[raw_content(each) for each in items])

    def _shared(self, one: ListPrefix, other: ListPrefix) -> int:
        """Return how many items two prefixes share because these are items of the same list."""
        if one.list == other.list:
            return min(one.length, other.length)
        shared = {one.list: one.length}
        length = one.length
        for info in self._lineage(one.list):
            length = min(length, info.start)
            if info.parent is not None:
                shared[info.parent] = length
        length = other.length
        if other.list in shared:
            return min(length, shared[other.list])
        for info in self._lineage(other.list):
            length = min(length, info.start)
            if info.parent in shared:
                return min(length, shared[info.parent])
        return 0

    def _lineage(self, list_id: str) -> list[ListInfo]:
        known = self._lineages.get(list_id)
        if known is None:
            known = self._lineages[list_id] = self._engine.lineage(self._space, list_id)
        return known

    def _state(self, before: dict[str, StateValue] | None, now: dict[str, StateValue]) -> StateDelta:
        known = before or {}
        if before is None or not _keeps_order(known, now):
            return StateDelta(whole=True, set={name: self._value(value) for name, value in now.items()})
        change = {
            name: self._changed(old, value)
            for name, value in now.items()
            if isinstance(value, dict)
            and isinstance(old := known.get(name), dict)
            and not _same(old, value)
            and _keeps_order(old, value)
        }
        return StateDelta(
            set={
                name: self._value(value)
                for name, value in now.items()
                if name not in change and not (name in known and _same(known[name], value))
            },
            drop=[name for name in known if name not in now],
            change=change,
        )

    def _changed(self, before: dict[str, Value], now: dict[str, Value]) -> ValueDelta:
        new = {
            key: each for key, each in now.items() if key not in before or before[key].digest != each.digest
        }
        return ValueDelta(set=self._contents(new), drop=[key for key in before if key not in now])

    def _value(self, value: StateValue) -> msgspec.Raw:
        if isinstance(value, Value):
            (content,) = self._engine.get(self._space, [Address(value.address)])
            return raw_content(content)
        return msgspec.Raw(msgspec.json.encode(self._contents(value)))

    def _contents(self, values: dict[str, Value]) -> dict[str, msgspec.Raw]:
        contents = (
            self._engine.get(self._space, [Address(each.address) for each in values.values()])
            if values
            else []
        )
        return {key: raw_content(content) for key, content in zip(values, contents, strict=True)}


def _columns(event: Event) -> dict[str, str | int | dict[str, int]]:
    columns = {name: value for name in COLUMNS if (value := getattr(event, name)) is not None}
    if event.usage is not None:
        columns["usage"] = msgspec.structs.asdict(event.usage)
    return columns


def _same(one: StateValue, other: StateValue) -> bool:
    if isinstance(one, Value) and isinstance(other, Value):
        return one.digest == other.digest
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(one[key].digest == other[key].digest for key in one)
    return False


def _keeps_order(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether setting and dropping keys leads from one order of keys to the other."""
    stay = [key for key in before if key in now]
    return stay == list(now)[: len(stay)]
