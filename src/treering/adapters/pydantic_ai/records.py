"""How pydantic-ai's conversations are stored, as blocking code.

A conversation's messages are the messages of its thread, each with the id of its entry. A checkpoint's
metadata names the entries that it added, so an entry is found by the time in its id, without another index.
**Invariant:** the position of an entry is used only after the entry was read there.
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

from treering.adapters.conversation import ConversationThread, read_heads, retry_if_removed, thread_id_for
from treering.adapters.shared import checked, json_for_models
from treering.core.clock import DAY_US, SECOND_US, to_iso
from treering.core.encoding import decode
from treering.core.ids import parse_scope
from treering.core.query import EventQuery, each_record
from treering.errors import InvalidInput, NotFound, RefMoved
from treering.store import Store
from treering.threads.checkpoint import (
    KIND,
    MESSAGES,
    Checkpoint,
    CheckpointRecord,
    ListPrefix,
    read_checkpoint,
)
from treering.threads.writer import HeadState

STATE: Final = "pydantic_ai"
"""The state value of a thread with everything of a conversation but its messages."""
ENTRY: Final = "entry_id"
"""The key in a stored message with the id of its entry."""

_RECORDS: Final = TypeAdapter(ConversationRecord)
_STORED_IN_METADATA: Final = frozenset({"head_id", "revision", "updated_at"})
_PAGE: Final = 200
_CACHED_POSITIONS: Final = 4096


class EntryNotFound(NotFound, LookupError):
    """No entry with this id is stored in this namespace; load the conversation again."""


class Records:
    """The conversations of one namespace, as blocking code."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._positions = _EntryPositions()

    def _thread(self, conversation_id: str) -> ConversationThread:
        name = checked(conversation_id, "id of a pydantic-ai conversation")
        return ConversationThread(self._store, thread_id_for(name), self._namespace)

    def read(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation."""
        current = self._read_conversation(conversation_id)
        return current.record if current.has_id(conversation_id) else None

    def answer(self, conversation_id: str) -> Mapping[str, Any] | None:
        """Return the answer to what the conversation waited for, if its newest checkpoint is one."""
        head = self._thread(conversation_id).head()
        return None if head is None else head.checkpoint.metadata.get("resumed")

    def loaded(self, conversation_id: str) -> None:
        """Run the load hooks."""
        if self._store.hooks.has("post_checkpoint_load"):
            thread = self._thread(conversation_id)
            head = thread.head()
            if head is not None:
                thread.checkpoint(head)

    def read_all(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        """Return the records of a scope (``None``: all), the most recently saved one first."""
        records = [self._record(head, head.thread, fields) for head, fields in self._heads()]
        chosen = [each for each in records if scope is None or each.scope == scope]
        return sorted(chosen, key=lambda each: each.updated_at, reverse=True)[:limit]

    def _heads(self) -> Iterator[tuple[CheckpointRecord, Any]]:
        """Yield the newest checkpoint and the `STATE` value of every conversation."""
        threads = self._store.threads(namespace=self._namespace)
        for _, head, state in read_heads(self._store, threads, STATE):
            if STATE in state:
                yield head, state[STATE]

    def _record(self, checkpoint: CheckpointRecord, conversation_id: str, fields: Any) -> ConversationRecord:
        """Return the record of a checkpoint; ``fields`` is its `STATE` value, if it has one."""
        metadata = checkpoint.metadata
        fields = fields or {}
        if thread_id_for(fields.get("conversation_id", "")) == checkpoint.thread:
            conversation_id = fields["conversation_id"]  # else the thread was forked or copied
        record = _RECORDS.validate_python(
            fields
            | {
                "conversation_id": conversation_id,
                # Another writer stores no revision; the checkpoint id changes with every save too.
                "revision": metadata.get("revision", checkpoint.id),
                "updated_at": metadata.get("updated_at", to_iso(checkpoint.created_at_us)),
                "head_id": None,
            }
        )
        prefix = checkpoint.lists.get(MESSAGES)
        if prefix is not None and prefix.length:
            head_id: str = metadata.get("head") or self._ids(prefix, 1)[-1]
            self._positions.remember(head_id, prefix)
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
        self._save(self._at_revision(record.conversation_id, expected_revision), record, entries)

    def extend(
        self,
        conversation_id: str,
        messages: Sequence[ModelMessage],
        expected_revision: str | None,
        changes: Mapping[str, Any],
    ) -> str:
        """Append messages, with ``changes`` of the record; return the new revision."""
        current = self._at_revision(conversation_id, expected_revision)
        if current.record is not None and changes.get("scope", current.record.scope) != current.record.scope:
            raise ConversationConflict(conversation_id)
        head_id = current.record.head_id if current.record is not None else None
        entries: list[ConversationEntry] = []
        for message in messages:
            entries.append(ConversationEntry(parent_id=head_id, message=message))
            head_id = entries[-1].id
        fresh = ConversationRecord(conversation_id=conversation_id, head_id=head_id)
        known = {"head_id": head_id, "revision": fresh.revision, "updated_at": fresh.updated_at}
        record = dataclasses.replace(current.record or fresh, **known | dict(changes))
        self._save(current, record, entries)
        return record.revision

    def _save(
        self,
        current: _StoredConversation,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
    ) -> None:
        parent_id = entries[0].parent_id if entries else record.head_id
        try:
            after = self._messages_until(parent_id, current)
        except EntryNotFound:
            raise ConversationConflict(record.conversation_id) from None
        plain = _RECORDS.dump_python(record, mode="json")
        fields = {name: each for name, each in plain.items() if name not in _STORED_IN_METADATA}
        deferred = plain["deferred_tool_requests"]
        dumped = dump_messages([entry.message for entry in entries])
        try:
            saved = current.thread.save(
                current.head,
                [message | {ENTRY: entry.id} for message, entry in zip(dumped, entries, strict=True)],
                after=after,
                state=current.state | {STATE: fields},
                pending_interrupt=deferred and {"id": record.revision, "payload": deferred},
                metadata_for=lambda messages: {
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
            self._positions.remember(head_id, saved.messages)

    def _read_conversation(self, conversation_id: str) -> _StoredConversation:
        return retry_if_removed(lambda: self._read_once(conversation_id))

    def _read_once(self, conversation_id: str) -> _StoredConversation:
        thread = self._thread(conversation_id)
        head = thread.head()
        if head is None:
            return _StoredConversation(thread=thread)
        state = Checkpoint(self._store.engine, self._store.space, head.checkpoint).state
        record = self._record(head.checkpoint, conversation_id, state.get(STATE))
        return _StoredConversation(thread=thread, head=head, state=state, record=record)

    def _at_revision(self, conversation_id: str, expected_revision: str | None) -> _StoredConversation:
        current = self._read_conversation(conversation_id)
        stored = current.record
        if (stored.revision if stored is not None else None) != expected_revision:
            raise ConversationConflict(conversation_id)
        if stored is not None and not current.has_id(conversation_id):
            raise ConversationConflict(conversation_id)
        return current

    def _messages_until(self, entry_id: str | None, current: _StoredConversation) -> ListPrefix | None:
        if entry_id is None:
            return None
        if current.head is not None and current.record is not None and current.record.head_id == entry_id:
            return current.head.messages
        return self._locate(entry_id)

    def delete(self, conversation_id: str, expected_revision: str) -> None:
        """Delete a conversation at this revision, with everything that only it has."""
        current = self._at_revision(conversation_id, expected_revision)
        thread = current.thread
        if current.head is None or current.record is None:
            raise ConversationConflict(conversation_id)
        try:
            thread.unlist(current.head)
        except RefMoved:
            raise ConversationConflict(conversation_id) from None
        # A deleted conversation that it was forked from may have been kept for it.
        origin = current.record.forked_from
        while thread.erase() and origin is not None:
            thread = self._thread(origin)
            last = thread.newest()
            if last is None or thread.head() is not None:
                return
            checkpoint = Checkpoint(self._store.engine, self._store.space, last)
            origin = self._record(last, origin, checkpoint.state.get(STATE)).forked_from

    def history(self, head_id: str | None, limit: int | None) -> list[ConversationEntry]:
        """Return the entries up to ``head_id``, or only the last ``limit`` of them."""
        if head_id is None or limit == 0:
            return []
        prefix = self._locate(checked(head_id, "id of a pydantic-ai conversation's entry"))
        # One more than requested: the entry before the first one is its parent.
        try:
            items = self._items(prefix, None if limit is None else limit + 1)
        except NotFound:
            raise _not_found(head_id) from None
        ids = _ids(prefix, items)
        entries = [
            ConversationEntry(id=each, parent_id=parent, message=message)
            for each, parent, message in zip(ids, [None, *ids], load_messages(items), strict=False)
        ]
        return entries if limit is None else entries[-limit:]

    def _locate(self, entry_id: str) -> ListPrefix:
        """Return the messages up to an entry, after reading the entry there."""
        known = self._positions.get(entry_id)
        candidates = (known,) if known is not None else self._candidates(entry_id)
        for prefix in candidates:
            try:
                if self._ids(prefix, 1) == [entry_id]:
                    return prefix
            except NotFound:
                continue
        if known is not None:
            self._positions.forget(entry_id)
            return self._locate(entry_id)
        raise _not_found(entry_id)

    def _candidates(self, entry_id: str) -> Iterator[ListPrefix]:
        list_id, mark, position = entry_id.rpartition("#")
        if mark and position.isdecimal():
            store = self._store
            info = store.engine.list_info(store.space, list_id)
            if info is not None and parse_scope(info.scope).namespace == self._namespace:
                yield ListPrefix(list_id, int(position) + 1)
        for checkpoint in self._checkpoints_around(entry_id):
            added: list[str] = checkpoint.metadata.get("entries", [])
            prefix = checkpoint.lists.get(MESSAGES)
            if prefix is not None and entry_id in added:
                yield ListPrefix(prefix.list, prefix.length - len(added) + added.index(entry_id) + 1)
        # Retention may have dropped the checkpoint that added it, but not the conversation that has it.
        for head, _ in self._heads():
            if MESSAGES in head.lists:
                yield from self._search(head.lists[MESSAGES], entry_id)

    def _search(self, prefix: ListPrefix, entry_id: str) -> Iterator[ListPrefix]:
        for stop in range(prefix.length, 0, -_PAGE):
            part = ListPrefix(prefix.list, stop)
            ids = self._ids(part, _PAGE)
            if entry_id in ids:
                yield ListPrefix(prefix.list, stop - len(ids) + ids.index(entry_id) + 1)

    def _checkpoints_around(self, entry_id: str) -> Iterator[CheckpointRecord]:
        """Yield checkpoints of this namespace: first those from when the entry was created, then all."""
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

    def _items(self, prefix: ListPrefix, last: int | None = None) -> list[dict[str, Any]]:
        store = self._store
        start = 0 if last is None else max(prefix.length - last, 0)
        found = store.engine.read_list(store.space, prefix.list, start, prefix.length)
        return [decode(content) for content in found]

    def _ids(self, prefix: ListPrefix, last: int | None = None) -> list[str]:
        return _ids(prefix, self._items(prefix, last))


def dump_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages as the JSON values that pydantic-ai writes."""
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")


def load_messages(stored: Sequence[Any]) -> list[ModelMessage]:
    """Return messages from their JSON values; keys that pydantic-ai does not know are ignored."""
    try:
        return ModelMessagesTypeAdapter.validate_json(json_for_models(stored))
    except (ValidationError, TypeError) as error:
        raise InvalidInput(
            "these are not messages of pydantic-ai; was the thread written by something else? "
            f"({str(error)[:300]})"
        ) from error


class _StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as it was read; without a head it does not exist."""

    thread: ConversationThread
    head: HeadState | None = None
    state: dict[str, Any] = {}
    record: ConversationRecord | None = None

    def has_id(self, conversation_id: str) -> bool:
        """Whether it is this conversation, and not another one whose id has the same substitute."""
        return self.record is not None and self.record.conversation_id == conversation_id


class _EntryPositions:
    """A cache of entry positions. Lists only grow, so a position stays valid or its list is removed."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, ListPrefix] = OrderedDict()
        self._lock = Lock()

    def get(self, entry_id: str) -> ListPrefix | None:
        with self._lock:
            return self._known.get(entry_id)

    def remember(self, entry_id: str, prefix: ListPrefix) -> None:
        with self._lock:
            self._known[entry_id] = prefix
            self._known.move_to_end(entry_id)
            while len(self._known) > _CACHED_POSITIONS:
                self._known.popitem(last=False)

    def forget(self, entry_id: str) -> None:
        with self._lock:
            self._known.pop(entry_id, None)


def _not_found(entry_id: str) -> EntryNotFound:
    return EntryNotFound(f"entry {entry_id!r} not found in this namespace; load the conversation again")


def _ids(prefix: ListPrefix, items: Sequence[dict[str, Any]]) -> list[str]:
    """Return the entry ids of the last messages of a list prefix; without an id, its position is used."""
    start = prefix.length - len(items)
    return [item.get(ENTRY) or f"{prefix.list}#{start + position}" for position, item in enumerate(items)]


def _made_at_us(entry_id: str) -> int | None:
    """Return when a version 7 UUID was created; ``None`` for other ids."""
    try:
        made = UUID(entry_id)
    except ValueError:
        return None
    return (made.int >> 80) * 1000 if made.version == 7 else None  # noqa: PLR2004
