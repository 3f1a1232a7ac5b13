"""A checkpoint: one immutable moment of a thread, as a row of the journal, and with its content.

The row (`CheckpointRecord`) holds no content, only where it lies: for each list channel (the messages are
one) its list and length, for each state value its address and a digest that tells whether it changed. A step
therefore costs the bytes that are new in it, however long the conversation is. What the event says already
(the thread, and how the parent's id begins) is left out. `Checkpoint` adds the content, read when it is first
used. **Invariant:** everything that a checkpoint points at is among the links of its event, so it stays as
long as the event does.

A graph may save a checkpoint again, with other metadata or values. The first row stays where it is, because
children name it and the order of rows is the order of time; a later row of the kind `REVISION` says what the
checkpoint is now (see `Revisions`).

State values (`write_state`, `read_state`) are each stored once, and written again only when their digest
changed. A dict whose encoding is large is stored key by key, so that an agent which changes one virtual file
does not write all of them again.

A framework that numbers, branches and addresses its own steps keeps fields of its own in the metadata of
their checkpoints. It registers a `CheckpointExtension` for them, which the generic thread calls when such a
checkpoint is written, read, forked, rewound to or removed; threads know nothing else of it. `treering.store`
registers the one extension that there is, so every process that opens a store has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeGuard, TypeVar, cast

import msgspec

from treering.core.batch import Event
from treering.core.clock import DAY_US, day_of, to_datetime, to_iso
from treering.core.content import INLINE_LIMIT, Address, Content, list_address
from treering.core.encoding import decode, decode_all, decode_json, encode, encode_json, is_tagged
from treering.core.ids import new_id_with_time, parse_scope, short_id, thread_scope, time_of
from treering.core.query import EventQuery, each_record
from treering.errors import Corrupt, InvalidInput, NotFound, Unsupported
from treering.runs.span import current_node
from treering.threads.compaction import Compaction, CompactView, Tokenizer, compact_view, from_stored
from treering.threads.hooks import COMPACTIONS, check_count
from treering.threads.upcasting import upgrade_of_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treering.core.batch import Draft
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.threads.thread import Thread
    from treering.workspaces.restore import LinkPolicy, RestoreResult

T = TypeVar("T")

KIND: Final = "checkpoint"
REVISION: Final = "checkpoint.revision"
"""The kind of an event that replaces what the checkpoint ``event.parent`` says; the newest one counts."""
PREFIX: Final = "ckpt_"
MESSAGES: Final = "messages"
FORKED_FROM: Final = "forked_from"
"""The metadata key under which a copy names the checkpoint of another thread that it is a copy of."""
MAX_ROW_BYTES: Final = 16 * 1024
"""A longer record goes into the body of its event, so that pages of history stay small."""

_SHARED: Final = len(PREFIX) + 6
"""How much of an id a parent leaves out that begins like its child: both were made in the same 17 minutes."""
_TITLE_CHARS: Final = 200


class ListPrefix(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first ``length`` items of a list: what a list channel held at one checkpoint."""

    list: str
    length: int


class Value(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a state value lies, and the digest of its encoding."""

    address: str
    digest: str


StateValue = Value | dict[str, Value]
"""A state value; a large dict is kept key by key, so that a step writes only the keys that changed."""


class EncodedMetadata(NamedTuple):
    """The metadata of a checkpoint as JSON: without the fields of the extension, and these fields packed."""

    metadata: bytes
    packed: bytes | None


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint, without its content: that is what `Checkpoint` adds."""

    id: str
    thread: str
    namespace: str
    parent: str | None
    step: int
    created_at_us: int
    lists: dict[str, ListPrefix]
    state: dict[str, StateValue]
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    tags: tuple[str, ...] = ()
    snapshot: str | None = None

    @property
    def short_id(self) -> str:
        """The id shortened for people. Wherever an id is accepted, so is this."""
        return short_id(self.id)

    @property
    def created_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.created_at_us)

    @property
    def message_count(self) -> int:
        """The number of messages of the whole conversation up to here."""
        prefix = self.lists.get(MESSAGES)
        return 0 if prefix is None else prefix.length

    def has(self, tags: set[str], metadata: Mapping[str, Any]) -> bool:
        """Whether it has all of these tags, and these values in its metadata."""
        if not tags.issubset(self.tags):
            return False
        known = self.metadata
        return all(name in known and known[name] == value for name, value in metadata.items())


class SavedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The run, span and agent that saved a checkpoint."""

    run: str | None = None
    span: str | None = None
    agent: str | None = None


class Checkpoint:
    """One checkpoint of a thread. Its messages, lists and state are read on first use.

    ``last`` limits `messages` to the end of the conversation. ``through`` is the thread object that it was
    loaded by, which `fork` and `restore` require.
    """

    def __init__(
        self,
        engine: Engine,
        space: str,
        record: CheckpointRecord,
        *,
        through: Thread | None = None,
        last: int | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._through = through
        self._last = last
        self._messages: list[Any] | None = None
        self._state: dict[str, Any] | None = None
        self._view: CompactView | None = None
        self.record = record

    def __repr__(self) -> str:
        return f"Checkpoint({self.record.short_id!r}, thread={self.thread_id!r}, step={self.step})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.record == self.record

    def __hash__(self) -> int:
        return hash(self.record.id)

    @property
    def id(self) -> str:
        """The checkpoint's id: ``ckpt_`` and a time-ordered id."""
        return self.record.id

    @property
    def short_id(self) -> str:
        """The id shortened for people. Wherever an id is accepted, so is this."""
        return self.record.short_id

    @property
    def thread_id(self) -> str:
        """The thread that this checkpoint belongs to."""
        return self.record.thread

    @property
    def namespace(self) -> str:
        """The namespace of that thread; empty for none."""
        return self.record.namespace

    @property
    def parent_id(self) -> str | None:
        """The id of the previous checkpoint."""
        return self.record.parent

    @property
    def step(self) -> int:
        """The number of checkpoints before this one, unless the writer numbers steps itself."""
        return self.record.step

    @property
    def created_at_us(self) -> int:
        """When it was saved, in microseconds since 1970-01-01 UTC."""
        return self.record.created_at_us

    @property
    def created_at(self) -> datetime:
        """When it was saved, in UTC."""
        return self.record.created_at

    @property
    def note(self) -> str | None:
        """The writer's description of it."""
        return self.record.note

    @property
    def tags(self) -> tuple[str, ...]:
        """The writer's tags."""
        return self.record.tags

    @property
    def metadata(self) -> dict[str, Any]:
        """The writer's own data about it."""
        return self.record.metadata

    @property
    def pending_interrupt(self) -> Any:
        """What the agent waits for a person to decide, if anything."""
        return self.record.pending_interrupt

    @property
    def message_count(self) -> int:
        """The number of messages of the whole conversation up to here, without reading them."""
        return self.record.message_count

    @property
    def list_names(self) -> tuple[str, ...]:
        """The names of its list channels; ``messages`` is one of them."""
        return tuple(name for name in self.record.lists if name != COMPACTIONS)

    # Without `cached_property`: until Python 3.11 it has one lock for all checkpoints.
    @property
    def messages(self) -> list[Any]:
        """The conversation up to here: all of it, the end with ``load(last=...)``, or the view loaded."""
        if self._view is not None:
            return self._view.messages
        if self._messages is None:
            self._messages = self.items(MESSAGES, last=self._last)
        return self._messages

    @property
    def state(self) -> dict[str, Any]:
        """All state values, as registered upcasters migrate them (see `treering.threads.upcasting`)."""
        if self._state is None:
            state = self._read(lambda: read_state(self._engine, self._space, self.record.state))
            upgrade = upgrade_of_record(self.record)
            self._state = state if upgrade is None else upgrade.state(state)
        return self._state

    def value(self, name: str) -> Any:
        """Return one state value without reading the others; ``None`` if there is none of that name."""
        if upgrade_of_record(self.record) is not None:
            return self.state.get(name)
        known = self.record.state.get(name)
        if known is None:
            return None
        return self._read(lambda: read_state(self._engine, self._space, {name: known}))[name]

    def last_messages(self, count: int) -> list[Any]:
        """Return the last messages without reading those before them."""
        return self.items(MESSAGES, last=count)

    def items(self, channel: str, *, last: int | None = None) -> list[Any]:
        """Return the items of a list channel, or only the last ones; empty if there is none of that name."""
        check_count("last", last)
        prefix = self.record.lists.get(channel)
        if prefix is None or last == 0:
            return []
        items = self._read(lambda: read_list(self._engine, self._space, prefix, last=last))
        upgrade = upgrade_of_record(self.record)
        return items if upgrade is None else upgrade.items(channel, items)

    @property
    def view(self) -> CompactView | None:
        """What `messages` shows of the conversation, if ``load(view=, budget_tokens=)`` limited it."""
        return self._view

    @property
    def compactions(self) -> list[Compaction]:
        """The compactions of the conversation up to here, oldest first; the last one is in effect."""
        return [from_stored(each) for each in self.items(COMPACTIONS)]

    def compact_view(
        self, *, budget_tokens: int | None = None, tokenizer: Tokenizer = None, full: bool = False
    ) -> CompactView:
        """Return what a model is given: instructions, the summary, and the messages since.

        ``budget_tokens`` leaves out the oldest messages after the summary until the rest fits. Tokens are
        counted with ``tokenizer`` (the name of a model, a function, or an object with ``encode``), else
        estimated. ``full`` disregards compactions.
        """
        newest = [] if full else self.items(COMPACTIONS, last=1)
        messages = self.record.lists.get(MESSAGES)
        upgrade = upgrade_of_record(self.record)

        def read(start: int, stop: int) -> list[Any]:
            if messages is None or start >= stop:
                return []
            part = ListPrefix(messages.list, stop)
            found = self._read(lambda: read_list(self._engine, self._space, part, last=stop - start))
            return found if upgrade is None else upgrade.messages(found)

        return compact_view(
            read,
            self.message_count,
            from_stored(newest[0]) if newest else None,
            budget_tokens=budget_tokens,
            tokenizer=tokenizer,
        )

    def fork(self, new_id: str, *, namespace: str | None = None) -> Thread:
        """Start a new thread here. It shares the past of this one; O(1) in its length."""
        if self._through is None:
            raise InvalidInput(f"{self!r} was not loaded by a thread; use thread.fork(new_id, at=...)")
        return self._through.fork(new_id, at=self, namespace=namespace)

    @property
    def snapshot(self) -> str | None:
        """The newest snapshot of files up to here, if any were saved."""
        kept = self.record.snapshot
        return None if kept is None else kept.removeprefix("o:")

    def restore(
        self,
        folder: str | Path,
        *,
        delete: bool = False,
        keep_before: bool = True,
        links: LinkPolicy = "preserve",
        dry_run: bool = False,
    ) -> RestoreResult:
        """Restore the files of this checkpoint into a folder; see `Workspace.restore`."""
        if self.snapshot is None:
            raise NotFound(f"checkpoint {self.id!r} has no files; save them with workspace=")
        if self._through is None:
            raise InvalidInput(f"{self!r} was not loaded by a thread; use store.workspace.restore()")
        return self._through.workspace.restore(
            self.snapshot, folder, delete=delete, keep_before=keep_before, links=links, dry_run=dry_run
        )

    def to_dict(self, *, content: bool = True) -> dict[str, Any]:
        """Return all fields by name; ``content=False`` leaves out messages, state and lists."""
        fields: dict[str, Any] = {
            "id": self.id,
            "thread": self.thread_id,
            "namespace": self.namespace,
            "parent": self.parent_id,
            "step": self.step,
            "created_at": to_iso(self.created_at_us),
            "note": self.note,
            "tags": list(self.tags),
            "metadata": self.metadata,
            "pending_interrupt": self.pending_interrupt,
            "message_count": self.message_count,
            "snapshot": self.snapshot,
        }
        if content:
            fields["messages"] = self.messages
            fields["state"] = self.state
            fields["lists"] = {name: self.items(name) for name in self.list_names if name != MESSAGES}
        return fields

    def _read(self, content: Callable[[], T]) -> T:
        try:
            return content()
        except Corrupt as error:
            if self._engine.scan(self._space, by_id(self.id), limit=1).records:
                raise Corrupt(f"checkpoint {self.id!r} cannot be read: {error}") from error
            raise NotFound(f"checkpoint {self.id!r} was removed after it was looked up") from error


def limited_to(checkpoint: Checkpoint, view: CompactView) -> Checkpoint:
    """Let the messages of a checkpoint be those of a view of it."""
    checkpoint._view = view  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - of this file
    return checkpoint


def belongs_to(checkpoint: Checkpoint, engine: Engine, space: str) -> bool:
    """Return whether a checkpoint was read through this engine, in this space."""
    own = checkpoint._engine, checkpoint._space  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - of this file
    return own[0] is engine and own[1] == space


def new_checkpoint_id(clock: Clock) -> tuple[str, int]:
    """A fresh id and its time in microseconds; ids sort by time, and both fall on the same UTC day."""
    made, first_us = new_id_with_time()
    now_us = clock.now_us()
    if not first_us <= now_us < first_us + 1000:
        now_us = min(max(now_us, first_us), first_us + 999)
    return PREFIX + made, now_us


def created_at_us(checkpoint_id: str) -> int:
    """When a checkpoint was made, to the millisecond, by its id alone."""
    if not checkpoint_id.startswith(PREFIX):
        raise InvalidInput(f"not a checkpoint id: {checkpoint_id[:60]!r}; they start with {PREFIX!r}")
    return time_of(checkpoint_id[len(PREFIX) :])


def by_id(*checkpoint_ids: str) -> EventQuery:
    """The query for checkpoints of one UTC day (their ids say which), answered by the journal's own key."""
    days = {day_of(created_at_us(each)) for each in checkpoint_ids}
    return EventQuery(
        kinds=(KIND,), ids=checkpoint_ids, since_us=min(days) * DAY_US, until_us=(max(days) + 1) * DAY_US
    )


def anchor(scope: str) -> str:
    """The list by which forks hold on to the rows of a thread (see `write_checkpoint`)."""
    return "past/" + blake2b(scope.encode(), digest_size=16).hexdigest()


def write_checkpoint(
    draft: Draft,
    checkpoint: CheckpointRecord,
    *,
    metadata: EncodedMetadata | None = None,
    depends_on: str | None = None,
    is_revision: bool = False,
    saved_in: SavedIn | None = None,
) -> None:
    """Add the row of a checkpoint to a batch; only `CheckpointWriter` calls this.

    A checkpoint is linked to the run and span that it is saved in (``saved_in``, if that was elsewhere).
    ``metadata`` is its metadata, if
    the caller has encoded it already. ``depends_on`` is the scope of another thread whose rows are needed to
    read this one: an empty list of that scope is linked, so that erasing it finds out about this fork.
    ``is_revision`` says that the checkpoint is stored already, and is to be replaced.
    """
    scope = thread_scope(checkpoint.thread, checkpoint.namespace)
    data: bytes | None = _encode(checkpoint, metadata)
    body = None
    if len(data) > MAX_ROW_BYTES:
        body = draft.put(Content("json", data), scope=scope)
        data = None
    links = _links(checkpoint)
    if depends_on is not None:
        draft.append(anchor(depends_on), scope=depends_on, at=0)
        links = (*links, list_address(anchor(depends_on)))
    node = None if is_revision else current_node.get()
    if saved_in is None and node is not None:
        saved_in = SavedIn(run=node.run_id, span=node.span_id, agent=node.agent)
    draft.event(
        Event(
            id=draft.id if is_revision else checkpoint.id,
            kind=REVISION if is_revision else KIND,
            parent=checkpoint.id if is_revision else None,
            ts_us=checkpoint.created_at_us,
            scope=scope,
            run=None if saved_in is None else saved_in.run,
            span=None if saved_in is None else saved_in.span,
            agent=None if saved_in is None else saved_in.agent,
            name=_title(checkpoint.note),
            data=data,
            body=body,
            links=links,
        )
    )


def read_checkpoint(engine: Engine, space: str, record: Record) -> CheckpointRecord:
    """Decode a checkpoint from its row in the journal. Raise `Corrupt` if that is not possible."""
    event = record.event
    if event.data is not None:
        data = event.data
    elif event.body is not None:
        data = engine.get(space, [event.body])[0].data
    else:
        raise Corrupt(f"checkpoint {event.id!r} has no record; restore it from a backup")
    extension = registered()
    own_id = event.parent or event.id if event.kind == REVISION else event.id
    try:
        row = msgspec.convert(decode_json(data), _Row) if is_tagged(data) else _decode_row(data)
        thread, metadata = _parse_scope(event.scope), row.metadata
        if row.packed is not None and extension is not None:
            metadata[extension.key] = extension.unpack(row.packed)
        step = metadata["step"] if row.step is None else row.step
    except (msgspec.DecodeError, InvalidInput, LookupError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the record of checkpoint {event.id!r} cannot be read ({error}); restore it from a backup"
        ) from error
    if row.packed is not None and extension is None:
        raise Unsupported(
            f"checkpoint {event.id!r} was saved by a graph, which this process cannot read; "
            "import treering.store first"
        )
    parent = row.parent
    return CheckpointRecord(
        id=own_id,
        thread=thread.id,
        namespace=thread.namespace,
        parent=parent if parent is None or parent.startswith(PREFIX) else own_id[:_SHARED] + parent,
        step=step,
        created_at_us=event.ts_us,
        lists=row.lists,
        state=row.state,
        pending_interrupt=row.interrupt,
        metadata=metadata,
        note=row.note,
        tags=row.tags,
        snapshot=row.snapshot,
    )


class Revisions:
    """Reads rows of checkpoints as they were last revised; make one for each operation.

    Only graphs revise checkpoints, so the revisions of a thread are looked up (once) when a row turns out to
    be a graph's.
    """

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._by_scope: dict[str, dict[str, Record]] = {}

    def read(self, record: Record) -> CheckpointRecord:
        """Return the checkpoint whose first row this is."""
        checkpoint = read_checkpoint(self._engine, self._space, record)
        extension = registered()
        if extension is None or extension.key not in checkpoint.metadata:
            return checkpoint
        revised = self.of(record.event.scope).get(checkpoint.id)
        return checkpoint if revised is None else read_checkpoint(self._engine, self._space, revised)

    def of(self, scope: str) -> dict[str, Record]:
        """Return the newest revision of each checkpoint of a thread that was revised, by its id."""
        known = self._by_scope.get(scope)
        if known is None:
            query = EventQuery(kinds=(REVISION,), scope=scope)
            known = {each.event.parent or "": each for each in each_record(self._engine, self._space, query)}
            self._by_scope[scope] = known
        return known


class _Row(msgspec.Struct, omit_defaults=True, gc=False):
    """A checkpoint as its event holds it; what the event has columns for (thread, namespace) is left out."""

    step: int | None = None
    """Left out if the metadata says the same."""
    parent: str | None = None
    """Without the beginning that it shares with the id of its child, if that is long enough."""
    lists: dict[str, ListPrefix] = {}
    state: dict[str, StateValue] = {}
    metadata: Any = {}
    packed: Any = msgspec.field(default=None, name="graph")
    """What the metadata has under the key of the registered extension, in its compact form."""
    note: str | None = None
    tags: tuple[str, ...] = ()
    snapshot: str | None = None
    interrupt: Any = None


_decode_row: Final = msgspec.json.Decoder(_Row).decode
_encode_row: Final = msgspec.json.Encoder().encode
_parse_scope: Final = lru_cache(maxsize=4096)(parse_scope)


def _encode(checkpoint: CheckpointRecord, encoded: EncodedMetadata | None) -> bytes:
    parent, step = checkpoint.parent, checkpoint.step
    if parent is not None and parent[:_SHARED] == checkpoint.id[:_SHARED]:
        parent = parent[_SHARED:]
    named_step = checkpoint.metadata.get("step")
    metadata, packed = encoded or _encode_metadata(checkpoint.metadata)
    row = _Row(
        step=None if type(named_step) is int and named_step == step else step,
        parent=parent,
        lists=checkpoint.lists,
        state=checkpoint.state,
        metadata=msgspec.Raw(metadata) if metadata else {},
        packed=None if packed is None else msgspec.Raw(packed),
        note=checkpoint.note,
        tags=checkpoint.tags,
        snapshot=checkpoint.snapshot,
        interrupt=None if checkpoint.pending_interrupt is None else _raw(checkpoint.pending_interrupt),
    )
    try:
        data = _encode_row(row)
    except UnicodeEncodeError:  # a lone surrogate has no place in plain JSON
        return encode_json(_plain(checkpoint), keep_order=True)
    # Tags, and names that look like one, take the longer way, which knows them all.
    return encode_json(_plain(checkpoint), keep_order=True) if is_tagged(data) else data


def _encode_metadata(metadata: dict[str, Any]) -> EncodedMetadata:
    extension = extension_of(metadata)
    if extension is not None:
        packed = extension.pack(metadata[extension.key])
        if packed is not None:
            rest = {name: value for name, value in metadata.items() if name != extension.key}
            return EncodedMetadata(encode_json(rest, keep_order=True), packed)
    return EncodedMetadata(encode_json(metadata, keep_order=True) if metadata else b"", None)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode_json(value, keep_order=True))


def _plain(checkpoint: CheckpointRecord) -> dict[str, Any]:
    optional = {
        "parent": checkpoint.parent,
        "lists": {name: [each.list, each.length] for name, each in checkpoint.lists.items()},
        "state": {name: _address_of(each) for name, each in checkpoint.state.items()},
        "metadata": checkpoint.metadata,
        "note": checkpoint.note,
        "tags": list(checkpoint.tags),
        "snapshot": checkpoint.snapshot,
    }
    plain = {"step": checkpoint.step, **{name: value for name, value in optional.items() if value}}
    if checkpoint.pending_interrupt is not None:
        plain["interrupt"] = checkpoint.pending_interrupt
    return plain


def _address_of(value: StateValue) -> Any:
    if isinstance(value, Value):
        return [value.address, value.digest]
    return {key: [each.address, each.digest] for key, each in value.items()}


def _title(note: str | None) -> str | None:
    """The note as the name of an event: one readable line of it, if it has one."""
    if not note:
        return None
    line = note if note.isprintable() else next(filter(str.isprintable, note.splitlines()), "")
    return line.strip()[:_TITLE_CHARS] or None


def _links(checkpoint: CheckpointRecord) -> tuple[Address, ...]:
    links: dict[str, None] = {list_address(each.list): None for each in checkpoint.lists.values()}
    for value in checkpoint.state.values():
        for each in (value,) if isinstance(value, Value) else value.values():
            links[each.address] = None
    if checkpoint.snapshot is not None:
        links[checkpoint.snapshot] = None
    return tuple(map(Address, links))


_DIGEST_CHARS: Final = 24


def write_state(
    draft: Draft, previous: Mapping[str, StateValue], state: Mapping[str, Any], *, scope: str
) -> dict[str, StateValue]:
    """Return where each value is stored; values that differ from ``previous`` are added to the batch."""
    if odd := [name for name in state if not isinstance(cast("object", name), str)]:  # a hook's, perhaps
        raise InvalidInput(f"state has the name {odd[0]!r}, a {type(odd[0]).__name__}; give it a str")
    return {name: _write_value(draft, previous.get(name), value, scope) for name, value in state.items()}


def read_state(engine: Engine, space: str, state: Mapping[str, StateValue]) -> dict[str, Any]:
    """Fetch all values in one read. Raise `Corrupt` if one is missing; checkpoints keep theirs alive."""
    addresses = [
        Address(each.address)
        for value in state.values()
        for each in ((value,) if isinstance(value, Value) else value.values())
    ]
    try:
        contents = iter(engine.get(space, addresses) if addresses else [])
    except NotFound as error:
        raise Corrupt(
            f"a state value is not stored: {error}; run verify, then restore it from a backup"
        ) from error
    return {
        name: decode(next(contents))
        if isinstance(value, Value)
        else {key: decode(next(contents)) for key in value}
        for name, value in state.items()
    }


def _write_value(draft: Draft, previous: StateValue | None, value: Any, scope: str) -> StateValue:
    content = encode(value, keep_order=True)
    if len(content.data) >= INLINE_LIMIT and _is_splittable(value):
        keys = previous if isinstance(previous, dict) else {}
        return {
            key: _put(draft, keys.get(key), encode(each, keep_order=True), scope)
            for key, each in value.items()
        }
    return _put(draft, previous if isinstance(previous, Value) else None, content, scope)


def _is_splittable(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    keys: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType] - whatever a user's dict holds
    return len(keys) > 1 and all(isinstance(key, str) for key in keys)


def _put(draft: Draft, previous: Value | None, content: Content, scope: str) -> Value:
    digest = content.name[:_DIGEST_CHARS]
    if previous is not None and previous.digest == digest:
        return previous
    return Value(draft.put(content, scope=scope), digest)


_LIST_PAGE: Final = 1000
_MAX_GAP: Final = 4


def read_list(engine: Engine, space: str, prefix: ListPrefix, *, last: int | None = None) -> list[Any]:
    """Return the items of a prefix, or only its last ones. Raise `Corrupt` if some of them are missing."""
    start = 0 if last is None else max(prefix.length - last, 0)
    items: list[Any] = []
    for first in range(start, prefix.length, _LIST_PAGE):  # in pages, to bound memory
        stop = min(first + _LIST_PAGE, prefix.length)
        try:
            contents = engine.read_list(space, prefix.list, first, stop)
        except NotFound as error:
            raise incomplete_list(prefix, str(error)) from error
        if len(contents) != stop - first:
            raise incomplete_list(prefix, f"{stop - first - len(contents)} of its items are not stored")
        items += decode_all(contents)
    return items


def last_messages(engine: Engine, space: str, checkpoints: Iterable[CheckpointRecord]) -> dict[str, Any]:
    """Return the last message of each checkpoint that has one and whose message can be read, by its id.

    Checkpoints of one conversation share a list, of which each range that they cover is read once.
    """
    wanted: dict[str, dict[int, list[str]]] = {}
    for each in checkpoints:
        prefix = each.lists.get(MESSAGES)
        if prefix is not None and prefix.length:
            wanted.setdefault(prefix.list, {}).setdefault(prefix.length - 1, []).append(each.id)
    found: dict[str, Any] = {}
    for list_id, places in wanted.items():
        for start, stop in _ranges(sorted(places)):
            try:
                messages = decode_all(engine.read_list(space, list_id, start, stop))
            except (Corrupt, NotFound):
                continue
            for place, message in zip(range(start, stop), messages, strict=False):
                found.update(dict.fromkeys(places.get(place, ()), message))
    return found


def _ranges(places: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges that cover these sorted places, with small gaps only."""
    start = last = places[0]
    for place in places[1:]:
        if place - last > _MAX_GAP:
            yield start, last + 1
            start = place
        last = place
    yield start, last + 1


def incomplete_list(prefix: ListPrefix, problem: str) -> Corrupt:
    """Return the error for a list that has lost some of its items."""
    return Corrupt(
        f"list {prefix.list!r} should have {prefix.length} items: {problem}; "
        "run verify, then restore it from a backup"
    )


class CheckpointExtension(Protocol):
    """The fields of a framework in the metadata of its checkpoints, and what follows from them."""

    @property
    def key(self) -> str:
        """The key in a checkpoint's metadata under which the fields are."""
        ...

    @property
    def event_kinds(self) -> tuple[str, ...]:
        """The kinds of further events that belong to checkpoints and are removed with them."""
        ...

    def head_of(self, checkpoint: CheckpointRecord) -> str | None:
        """Return the ref of the head that a checkpoint is behind, if that is not the head of its thread."""
        ...

    def pack(self, fields: Any) -> bytes | None:
        """Return the fields as compact JSON for the row; ``None`` if they are not the framework's own."""
        ...

    def unpack(self, packed: Any) -> Any:
        """Return the fields from decoded JSON; `ValueError`, `TypeError` or `LookupError` if malformed."""
        ...

    def required_scope(self, copy: CheckpointRecord, origin: CheckpointRecord | None) -> str | None:
        """Return the scope of another thread whose rows are needed to read a checkpoint copied from it."""
        ...

    def rewind(
        self, draft: Draft, engine: Engine, target: CheckpointRecord, *, thread: str, namespace: str
    ) -> None:
        """Add to a batch what else must move when the head of a thread goes back to ``target``."""
        ...

    def answer(self, draft: Draft, checkpoint: CheckpointRecord, decision: str, value: Any) -> None:
        """Add the answer to a pending interrupt to a batch, where the framework looks for it."""
        ...

    def answered(self, checkpoint: CheckpointRecord, decision: str) -> CheckpointRecord:
        """Return what a checkpoint is once its interrupt is answered, to be written as a revision."""
        ...


_registered: CheckpointExtension | None = None


def register(extension: CheckpointExtension) -> None:
    """Use an extension in this process."""
    global _registered  # noqa: PLW0603 - set once, at import time
    _registered = extension


def registered() -> CheckpointExtension | None:
    """Return the extension in use."""
    return _registered


def extension_of(metadata: Mapping[str, Any]) -> CheckpointExtension | None:
    """Return the extension in use if the metadata of a checkpoint has its fields."""
    return _registered if _registered is not None and _registered.key in metadata else None
