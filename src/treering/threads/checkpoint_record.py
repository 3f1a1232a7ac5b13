"""A checkpoint: one immutable checkpoint of a thread, as a row of the journal.

The row holds no content, only where it lies: for each list channel (the messages are one) its list and
length, for each state value its address and a digest that tells whether it changed. A step therefore costs
the bytes that are new in it, however long the conversation is. What the event says already (the thread, and
how the parent's id begins) is left out. **Invariant:** everything that a checkpoint points at is among the
links of its event, so it stays as long as the event does.

State values (`write_state`, `read_state`) are each stored once, and written again only when their digest
changed. A dict whose encoding is large is stored key by key, so that an agent which changes one virtual file
does not write all of them again.

A framework that numbers, branches and addresses its own steps keeps fields of its own in the metadata of
their checkpoints. It registers a `CheckpointExtension` for them, which the generic thread calls when such a
checkpoint is written, read, forked, rewound to or removed; threads know nothing else of it. `treering.store`
registers the one extension that there is, so every process that opens a store has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeGuard, cast

import msgspec

from treering.core.batch import Event
from treering.core.clock import DAY_US, day_of, to_iso
from treering.core.content import INLINE_LIMIT, Address, Content, list_address
from treering.core.encoding import decode, decode_json, encode, encode_json, is_tagged
from treering.core.ids import new_id_with_time, parse_scope, thread_scope, time_of
from treering.core.query import EventQuery
from treering.errors import Corrupt, InvalidInput, NotFound, Unsupported
from treering.runs.span import current_node

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record

KIND: Final = "checkpoint"
PREFIX: Final = "ckpt_"
MESSAGES: Final = "messages"
FORKED_FROM: Final = "forked_from"
"""The metadata key under which a copy names the checkpoint of another thread that it is a copy of."""
MAX_ROW_BYTES: Final = 16 * 1024
"""A longer record goes into the body of its event, so that pages of history stay small."""

_SHORT: Final = 13
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
        """Enough of the id for a person to recognise it."""
        return self.id[: len(PREFIX) + _SHORT]

    @property
    def created_at(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.created_at_us)

    def has(self, tags: set[str], metadata: Mapping[str, Any]) -> bool:
        """Whether it has all of these tags, and these values in its metadata."""
        if not tags.issubset(self.tags):
            return False
        known = self.metadata
        return all(name in known and known[name] == value for name, value in metadata.items())


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
) -> None:
    """Add the row of a checkpoint to a batch; only `CheckpointWriter` calls this.

    A checkpoint that is saved inside a run is linked to that run and span. ``metadata`` is its metadata, if
    the caller has encoded it already. ``depends_on`` is the scope of another thread whose rows are needed to
    read this one: an empty list of that scope is linked, so that erasing it finds out about this fork.
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
    node = current_node.get()
    draft.event(
        Event(
            id=checkpoint.id,
            kind=KIND,
            ts_us=checkpoint.created_at_us,
            scope=scope,
            run=None if node is None else node.run_id,
            span=None if node is None else node.span_id,
            agent=None if node is None else node.agent,
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
        id=event.id,
        thread=thread.id,
        namespace=thread.namespace,
        parent=parent if parent is None or parent.startswith(PREFIX) else event.id[:_SHARED] + parent,
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
    extension = registered()
    if extension is not None and extension.key in metadata:
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


_registered: CheckpointExtension | None = None


def register(extension: CheckpointExtension) -> None:
    """Use an extension in this process."""
    global _registered  # noqa: PLW0603 - set once, at import time
    _registered = extension


def registered() -> CheckpointExtension | None:
    """Return the extension in use."""
    return _registered
