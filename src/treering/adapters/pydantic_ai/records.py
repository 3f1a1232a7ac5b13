"""The records behind pydantic-ai's conversations: what is stored of them, and where an entry lies.

A conversation's messages are the messages of its thread, each with the id of its entry beside it. A
checkpoint's metadata names the entries that it brought, so an entry is found by the time that its id
tells, without an index of its own. **Invariant:** where an entry lies is believed only after it was read.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Final
from uuid import UUID

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from treering.adapters.conversation import Transcript, look, read_heads, thread_id_for
from treering.adapters.names import checked, json_for_models
from treering.core.clock import DAY_US, SECOND_US, to_iso
from treering.core.encoding import decode
from treering.core.ids import parse_scope
from treering.core.paging import each_record
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound, RefMoved
from treering.store import Store
from treering.threads.checkpoint import Checkpoint
from treering.threads.checkpoint_record import KIND, MESSAGES, CheckpointRecord, ListPrefix, read_checkpoint
from treering.threads.writer import HeadState

STATE: Final = "pydantic_ai"
"""The state value of a thread that holds what a conversation is besides its messages."""
ENTRY: Final = "entry_id"
"""The key beside a stored message that holds the id of its entry."""

_RECORDS: Final = TypeAdapter(ConversationRecord)
_KEPT_BY_THE_CHECKPOINT: Final = frozenset({"head_id", "revision", "updated_at"})
_PAGE: Final = 200
_KNOWN_TIPS: Final = 4096


class EntryNotFound(NotFound, LookupError):
    """No entry of this id is stored in this namespace; load the conversation again."""


class Records:
    """The conversations of one namespace, for callers that may block."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._tips = _Tips()

    def _transcript(self, conversation_id: str) -> Transcript:
        name = checked(conversation_id, "id of a pydantic-ai conversation")
        return Transcript(self._store, thread_id_for(name), self._namespace)

    def read(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation."""
        place = self._place(conversation_id)
        return place.record if place.is_of(conversation_id) else None

    def loaded(self, conversation_id: str) -> None:
        """Fire the load hooks."""
        if self._store.hooks.has("post_checkpoint_load"):
            transcript = self._transcript(conversation_id)
            head = transcript.head()
            if head is not None:
                transcript.checkpoint(head)

    def read_all(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        """The records of a scope (``None``: of all), the last saved first."""
        records = [self._record(head, head.thread, kept) for head, kept in self._heads()]
        chosen = [each for each in records if scope is None or each.scope == scope]
        return sorted(chosen, key=lambda each: each.updated_at, reverse=True)[:limit]

    def _heads(self) -> Iterator[tuple[CheckpointRecord, Any]]:
        """The newest checkpoint of every conversation, with what it is besides its messages."""
        threads = self._store.threads(namespace=self._namespace)
        for _, head, state in read_heads(self._store, threads, STATE):
            if STATE in state:
                yield head, state[STATE]

    def _record(self, checkpoint: CheckpointRecord, conversation_id: str, kept: Any) -> ConversationRecord:
        """The record of a checkpoint, its state value ``kept`` (``None`` where another writer made it)."""
        told = checkpoint.metadata
        kept = kept or {}
        if thread_id_for(kept.get("conversation_id", "")) == checkpoint.thread:
            conversation_id = kept["conversation_id"]  # else the thread was forked or copied by hand
        record = _RECORDS.validate_python(
            kept
            | {
                "conversation_id": conversation_id,
                # Another writer gave no revision, so its checkpoint is one: it changes with every save too.
                "revision": told.get("revision", checkpoint.id),
                "updated_at": told.get("updated_at", to_iso(checkpoint.created_at_us)),
                "head_id": None,
            }
        )
        stretch = checkpoint.lists.get(MESSAGES)
        if stretch is not None and stretch.length:
            head_id: str = told.get("head") or self._ids(stretch, 1)[-1]
            self._tips.learn(head_id, stretch)
            record.head_id = head_id
        return record

    def write(
        self, record: ConversationRecord, entries: Sequence[ConversationEntry], expected_revision: str | None
    ) -> None:
        """Store a record and its new entries in one commit, if the stored revision is the expected one."""
        if entries and record.head_id != entries[-1].id:
            raise InvalidInput(
                f"conversation {record.conversation_id!r} ends at {record.head_id!r}, its new entries at "
                f"{entries[-1].id!r}; a record ends at its newest entry"
            )
        self._save(self._place_at(record.conversation_id, expected_revision), record, entries)

    def extend(
        self,
        conversation_id: str,
        messages: Sequence[ModelMessage],
        expected_revision: str | None,
        changes: Mapping[str, Any],
    ) -> str:
        """Put messages behind those that are stored, with ``changes`` of the record; gives the revision."""
        place = self._place_at(conversation_id, expected_revision)
        if place.record is not None and changes.get("scope", place.record.scope) != place.record.scope:
            raise ConversationConflict(conversation_id)
        head_id = place.record.head_id if place.record is not None else None
        entries: list[ConversationEntry] = []
        for message in messages:
            entries.append(ConversationEntry(parent_id=head_id, message=message))
            head_id = entries[-1].id
        fresh = ConversationRecord(conversation_id=conversation_id, head_id=head_id)
        known = {"head_id": head_id, "revision": fresh.revision, "updated_at": fresh.updated_at}
        record = dataclasses.replace(place.record or fresh, **known | dict(changes))
        self._save(place, record, entries)
        return record.revision

    def _save(self, place: _Place, record: ConversationRecord, entries: Sequence[ConversationEntry]) -> None:
        parent_id = entries[0].parent_id if entries else record.head_id
        try:
            after = self._place_after(parent_id, place)
        except EntryNotFound:
            raise ConversationConflict(record.conversation_id) from None
        plain = _RECORDS.dump_python(record, mode="json")
        kept = {name: each for name, each in plain.items() if name not in _KEPT_BY_THE_CHECKPOINT}
        deferred = plain["deferred_tool_requests"]
        dumped = dump_messages([entry.message for entry in entries])
        try:
            saved = place.transcript.save(
                place.head,
                [message | {ENTRY: entry.id} for message, entry in zip(dumped, entries, strict=True)],
                after=after,
                state=place.state | {STATE: kept},
                pending_interrupt=deferred and {"id": record.revision, "payload": deferred},
                marks=lambda messages: {
                    "revision": record.revision,
                    "updated_at": plain["updated_at"],
                    "head": messages[-1].get(ENTRY) if messages else parent_id,
                    "entries": [message.get(ENTRY) for message in messages],
                },
            )
        except RefMoved:
            raise ConversationConflict(record.conversation_id) from None
        head_id = saved.checkpoint.metadata["head"]
        if saved.messages is not None and head_id is not None:
            self._tips.learn(head_id, saved.messages)

    def _place(self, conversation_id: str) -> _Place:
        return look(lambda: self._look(conversation_id))

    def _look(self, conversation_id: str) -> _Place:
        transcript = self._transcript(conversation_id)
        head = transcript.head()
        if head is None:
            return _Place(transcript=transcript)
        state = Checkpoint(self._store.engine, self._store.space, head.checkpoint).state
        record = self._record(head.checkpoint, conversation_id, state.get(STATE))
        return _Place(transcript=transcript, head=head, state=state, record=record)

    def _place_at(self, conversation_id: str, expected_revision: str | None) -> _Place:
        place = self._place(conversation_id)
        stored = place.record
        if (stored.revision if stored is not None else None) != expected_revision:
            raise ConversationConflict(conversation_id)
        if stored is not None and not place.is_of(conversation_id):
            raise ConversationConflict(conversation_id)
        return place

    def _place_after(self, entry_id: str | None, place: _Place) -> ListPrefix | None:
        if entry_id is None:
            return None
        if place.head is not None and place.record is not None and place.record.head_id == entry_id:
            return place.head.messages
        return self._locate(entry_id)

    def delete(self, conversation_id: str, expected_revision: str) -> None:
        """Delete a conversation at this revision, and what only it holds."""
        place = self._place_at(conversation_id, expected_revision)
        transcript = place.transcript
        if place.head is None or place.record is None:
            raise ConversationConflict(conversation_id)
        try:
            transcript.unlist(place.head)
        except RefMoved:
            raise ConversationConflict(conversation_id) from None
        # What it was forked from may have been waiting for this one to go.
        origin = place.record.forked_from
        while transcript.erase() and origin is not None:
            transcript = self._transcript(origin)
            last = transcript.newest()
            if last is None or transcript.head() is not None:
                return
            checkpoint = Checkpoint(self._store.engine, self._store.space, last)
            origin = self._record(last, origin, checkpoint.state.get(STATE)).forked_from

    def history(self, head_id: str | None, limit: int | None) -> list[ConversationEntry]:
        """The entries up to ``head_id``, or only the last ``limit`` of them."""
        if head_id is None or limit == 0:
            return []
        stretch = self._locate(checked(head_id, "id of a pydantic-ai conversation's entry"))
        # One more than asked for: the entry before the first one is its parent.
        try:
            items = self._items(stretch, None if limit is None else limit + 1)
        except NotFound:
            raise _not_found(head_id) from None
        ids = _ids(stretch, items)
        entries = [
            ConversationEntry(id=each, parent_id=parent, message=message)
            for each, parent, message in zip(ids, [None, *ids], load_messages(items), strict=False)
        ]
        return entries if limit is None else entries[-limit:]

    # Where an entry lies
    def _locate(self, entry_id: str) -> ListPrefix:
        """The messages up to an entry, which is read to be sure that it is there."""
        known = self._tips.get(entry_id)
        candidates = (known,) if known is not None else self._candidates(entry_id)
        for stretch in candidates:
            try:
                if self._ids(stretch, 1) == [entry_id]:
                    return stretch
            except NotFound:
                continue
        if known is not None:
            self._tips.unlearn(entry_id)
            return self._locate(entry_id)
        raise _not_found(entry_id)

    def _candidates(self, entry_id: str) -> Iterator[ListPrefix]:
        list_id, mark, place = entry_id.rpartition("#")
        if mark and place.isdecimal():
            store = self._store
            info = store.engine.list_info(store.space, list_id)
            if info is not None and parse_scope(info.scope).namespace == self._namespace:
                yield ListPrefix(list_id, int(place) + 1)
        for checkpoint in self._checkpoints_around(entry_id):
            brought: list[str] = checkpoint.metadata.get("entries", [])
            stretch = checkpoint.lists.get(MESSAGES)
            if stretch is not None and entry_id in brought:
                yield ListPrefix(stretch.list, stretch.length - len(brought) + brought.index(entry_id) + 1)
        # Retention may have dropped the checkpoint that brought it, but not the conversation that has it.
        for head, _ in self._heads():
            if MESSAGES in head.lists:
                yield from self._search(head.lists[MESSAGES], entry_id)

    def _search(self, stretch: ListPrefix, entry_id: str) -> Iterator[ListPrefix]:
        for stop in range(stretch.length, 0, -_PAGE):
            part = ListPrefix(stretch.list, stop)
            ids = self._ids(part, _PAGE)
            if entry_id in ids:
                yield ListPrefix(stretch.list, stop - len(ids) + ids.index(entry_id) + 1)

    def _checkpoints_around(self, entry_id: str) -> Iterator[CheckpointRecord]:
        """Checkpoints of this namespace: first those from when the entry was made, then all."""
        made_us = _made_at_us(entry_id)
        if made_us is not None:
            yield from self._scan(
                EventQuery(
                    kinds=(KIND,), since_us=made_us - SECOND_US, until_us=made_us + DAY_US, order="time"
                )
            )
        yield from self._scan(EventQuery(kinds=(KIND,), newest_first=True))

    def _scan(self, query: EventQuery) -> Iterator[CheckpointRecord]:
        store = self._store
        for record in each_record(store.engine, store.space, query, limit=_PAGE):
            checkpoint = read_checkpoint(store.engine, store.space, record)
            if checkpoint.namespace == self._namespace:
                yield checkpoint

    def _items(self, stretch: ListPrefix, last: int | None = None) -> list[dict[str, Any]]:
        store = self._store
        start = 0 if last is None else max(stretch.length - last, 0)
        found = store.engine.read_list(store.space, stretch.list, start, stretch.length)
        return [decode(content) for content in found]

    def _ids(self, stretch: ListPrefix, last: int | None = None) -> list[str]:
        return _ids(stretch, self._items(stretch, last))


def dump_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Messages as the JSON values that pydantic-ai writes."""
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")


def load_messages(stored: Sequence[Any]) -> list[ModelMessage]:
    """Messages out of their JSON values; other keys than pydantic-ai's are left aside."""
    try:
        return ModelMessagesTypeAdapter.validate_json(json_for_models(stored))
    except (ValidationError, TypeError) as error:
        raise InvalidInput(
            f"these are not messages of pydantic-ai ({str(error)[:300]}); was the thread written otherwise?"
        ) from error


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation is; without a head there is none."""

    transcript: Transcript
    head: HeadState | None = None
    state: dict[str, Any] = {}
    record: ConversationRecord | None = None

    def is_of(self, conversation_id: str) -> bool:
        """Whether it is this conversation, and not one with an id that is spelled like its substitute."""
        return self.record is not None and self.record.conversation_id == conversation_id


class _Tips:
    """Where entries lie that were seen lately. Lists only grow, so what is known stays true or is gone."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, ListPrefix] = OrderedDict()
        self._lock = Lock()

    def get(self, entry_id: str) -> ListPrefix | None:
        with self._lock:
            return self._known.get(entry_id)

    def learn(self, entry_id: str, stretch: ListPrefix) -> None:
        with self._lock:
            self._known[entry_id] = stretch
            self._known.move_to_end(entry_id)
            while len(self._known) > _KNOWN_TIPS:
                self._known.popitem(last=False)

    def unlearn(self, entry_id: str) -> None:
        with self._lock:
            self._known.pop(entry_id, None)


def _not_found(entry_id: str) -> EntryNotFound:
    return EntryNotFound(f"there is no entry {entry_id!r} in this namespace; load the conversation again")


def _ids(stretch: ListPrefix, items: Sequence[dict[str, Any]]) -> list[str]:
    """The entry ids of the last messages of a stretch; a message without one is named by its place."""
    start = stretch.length - len(items)
    return [item.get(ENTRY) or f"{stretch.list}#{start + place}" for place, item in enumerate(items)]


def _made_at_us(entry_id: str) -> int | None:
    """When a UUID of version 7 was made; other ids do not say."""
    try:
        made = UUID(entry_id)
    except ValueError:
        return None
    return (made.int >> 80) * 1000 if made.version == 7 else None  # noqa: PLR2004
