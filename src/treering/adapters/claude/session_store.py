"""A session store for the Claude Agent SDK: transcripts as threads.

    options = ClaudeAgentOptions(session_store=TreeringSessionStore("./agents"))

A transcript is the thread ``<session id>`` in the namespace ``<project key>``, a subagent's is the thread
``<session id>/<subpath>``; its entries are the messages, as they came. Each `append` is one durable
checkpoint. The SDK sends a batch again when it is not sure that it arrived, so entries are known by their
``uuid``: those of a transcript are read once, and from then on only what others added. **Invariant:** no two
entries of a transcript have the same uuid, whoever appends, and its summary counts every entry once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Final, NamedTuple, cast

from treering.adapters.conversation import look, read_heads
from treering.adapters.names import checked, thread_name
from treering.adapters.opening import Opened, SerialExecutor, StoreOrUrl
from treering.bridge import Bridge
from treering.errors import InvalidInput, MissingExtra
from treering.sync_async import Closing
from treering.threads.checkpoint import Checkpoint
from treering.threads.checkpoint_record import MESSAGES, ListPrefix, StateValue
from treering.threads.directory import ThreadInfo
from treering.threads.thread import Thread, ThreadMoved

try:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
        fold_session_summary,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"claude_agent_sdk", "anyio", "mcp"}:
        raise MissingExtra("treering.adapters.claude", "claude-agent-sdk") from error
    raise

SESSION: Final = "claude_session"
"""The state value that says which transcript a thread is."""
SUMMARY: Final = "claude_summary"
"""The state value that holds the SDK's own summary of a session; what is in it is the SDK's affair."""

_MAIN_CHARS: Final = 200
_SUB_CHARS: Final = 300
_KEPT: Final = 256
_TRIES: Final = 100


class Key(NamedTuple):
    """A `SessionKey`, hashable; ``subpath`` is ``None`` for the main transcript."""

    project_key: str
    session_id: str
    subpath: str | None = None


class TreeringSessionStore(SessionStore, Closing):
    """Mirrors the sessions of the Claude Agent SDK into a store, and gives them back to resume from.

    ``store_or_url`` is an open store, which stays yours to close, or where one is, which `close` closes.
    """

    def __init__(self, store_or_url: StoreOrUrl | None = None) -> None:
        self._opened = Opened(store_or_url)
        self._store = self._opened.store
        self._transcripts: OrderedDict[Key, _Transcript] = OrderedDict()
        self._lock = Lock()

    def thread_id(self, key: SessionKey) -> tuple[str, str]:
        """The id and the namespace of the thread that holds a transcript."""
        whole = _key(key)
        return _thread_id(whole), _namespace(whole.project_key)

    # What the SDK calls
    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Save those entries that are not there yet, as one checkpoint, in the order of the calls."""
        whole = _key(key)
        if entries:
            transcript = self._transcript(whole)
            await transcript.lane.call(transcript.append, _entries(entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All entries of a transcript; ``None`` when there never was one."""
        transcript = self._transcript(_key(key))
        return await transcript.lane.call(transcript.load)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The main transcripts of a project, newest first."""
        found = await self._bridge.call(self._sessions, project_key)
        return [{"session_id": key.session_id, "mtime": _mtime(info)} for info, key, _ in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The SDK's summaries of a project's sessions, newest first, without reading transcripts."""
        found = await self._bridge.call(self._sessions, project_key)
        return [
            {"session_id": key.session_id, "mtime": _mtime(info), "data": summary}
            for info, key, summary in found
        ]

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript; a main one takes its subagents' along. Nothing happens if there is none.

        Raises `Conflict` where a thread was forked off: delete the fork first.
        """
        whole = _key(key)
        if whole.subpath is None:
            for subpath in await self._bridge.call(self._subpaths, whole):
                await self._delete(whole._replace(subpath=subpath))
        await self._delete(whole)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session, by name."""
        return await self._bridge.call(self._subpaths, _key(key)._replace(subpath=None))

    # Closing
    def close(self) -> None:
        """Close the store if it was opened here. May be called twice."""
        self._opened.close()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        await self._opened.aclose()

    def __repr__(self) -> str:
        return f"TreeringSessionStore({self._store!r})"

    # How it is done
    @property
    def _bridge(self) -> Bridge:
        return self._opened.bridge

    def _transcript(self, key: Key) -> _Transcript:
        """What is known of a transcript; the least recently used ones are forgotten."""
        with self._lock:
            known = self._transcripts.pop(key, None)
            if known is None:
                thread = self._store.thread(_thread_id(key), _namespace(key.project_key))
                known = _Transcript(key, thread, SerialExecutor(self._bridge))
            self._transcripts[key] = known
            if len(self._transcripts) > _KEPT:
                idle = next((each for each, it in self._transcripts.items() if it.lane.is_idle), key)
                if idle != key:
                    del self._transcripts[idle]
            return known

    async def _delete(self, key: Key) -> None:
        transcript = self._transcript(key)
        await transcript.lane.call(transcript.delete)

    def _sessions(self, project_key: str) -> list[tuple[ThreadInfo, Key, dict[str, Any]]]:
        threads = self._store.threads(namespace=_namespace(project_key))
        return [
            (info, key, state.get(SUMMARY, {}))
            for info, _, state in read_heads(
                self._store, (each for each in threads if "/" not in each.id), SESSION, SUMMARY
            )
            if SESSION in state and (key := Key(**state[SESSION])).subpath is None
        ]

    def _subpaths(self, key: Key) -> list[str]:
        threads = self._store.threads(
            namespace=_namespace(key.project_key), prefix=_thread_id(key._replace(subpath=None)) + "/"
        )
        found = (state.get(SESSION, {}) for _, _, state in read_heads(self._store, threads, SESSION))
        return sorted(each["subpath"] for each in found if each.get("subpath") is not None)


class _Transcript:
    """One transcript as this process last saw it; used by one call at a time."""

    def __init__(self, key: Key, thread: Thread, lane: SerialExecutor) -> None:
        self.lane = lane
        self._key = key
        self._thread = thread
        self._forget()

    def append(self, entries: list[SessionStoreEntry]) -> None:
        for attempt in range(_TRIES):
            look(self._see)
            fresh = self._fresh(entries)
            if not fresh:
                return
            try:
                saved = self._thread.append(*fresh, state=self._changed_state(fresh))
            except ThreadMoved:
                if attempt == _TRIES - 1:
                    raise
                continue
            if saved is not None:
                self._note(saved, fresh)
            return

    def load(self) -> list[SessionStoreEntry] | None:
        return look(self._load)

    def _load(self) -> list[SessionStoreEntry] | None:
        checkpoint = self._thread.load()
        if checkpoint is None:
            self._forget()
            return None
        entries = checkpoint.messages
        self._uuids = set()
        self._note(checkpoint, entries)
        return entries

    def delete(self) -> None:
        if self._thread.head is not None:
            self._thread.delete()
        self._forget()

    def _fresh(self, entries: list[SessionStoreEntry]) -> list[SessionStoreEntry]:
        """Those entries that are not there yet, each once."""
        fresh: list[SessionStoreEntry] = []
        seen: set[str] = set()
        for entry in entries:
            uuid = entry.get("uuid")
            if isinstance(uuid, str):  # what has no uuid is never a repetition
                if uuid in self._uuids or uuid in seen:
                    continue
                seen.add(uuid)
            fresh.append(entry)
        return fresh

    def _changed_state(self, fresh: list[SessionStoreEntry]) -> dict[str, Any] | None:
        """The whole state after these entries, or ``None`` when they change nothing in it."""
        key = {name: value for name, value in self._key._asdict().items() if value is not None}
        changed: dict[str, Any] = {SESSION: key}
        if self._key.subpath is None:
            before = self._state.get(SUMMARY)
            previous = None if before is None else _summary(self._key, before)
            changed[SUMMARY] = fold_session_summary(previous, cast("SessionKey", key), fresh)["data"]
        if all(self._state.get(name) == value for name, value in changed.items()):
            return None
        return {**self._state, **changed}

    # What is known
    def _see(self) -> None:
        """Read what others have added, or everything where they did more than that."""
        checkpoint = self._thread.head
        if checkpoint is None:
            self._forget()
        elif checkpoint.id != self._head:
            before, now = self._stretch, checkpoint.record.lists.get(MESSAGES)
            if before is not None and now is not None and _continues(before, now):
                added = checkpoint.last_messages(now.length - before.length)
            else:
                self._uuids = set()
                added = checkpoint.messages
            self._note(checkpoint, added)

    def _note(self, checkpoint: Checkpoint, added: Iterable[SessionStoreEntry]) -> None:
        self._uuids.update(uuid for entry in added if isinstance(uuid := entry.get("uuid"), str))
        self._head = checkpoint.id
        self._stretch = checkpoint.record.lists.get(MESSAGES)
        if checkpoint.record.state != self._places:
            self._places = checkpoint.record.state
            self._state = checkpoint.state

    def _forget(self) -> None:
        self._uuids: set[str] = set()
        self._head: str | None = None
        self._stretch: ListPrefix | None = None
        self._places: dict[str, StateValue] = {}
        self._state: dict[str, Any] = {}


def _key(key: SessionKey | SessionListSubkeysKey) -> Key:
    given: Any = key
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"a session key is of type {type(given).__name__}; pass a dict with project_key and session_id"
        )
    parts = cast("Mapping[str, Any]", given)
    subpath = parts.get("subpath")
    return Key(
        checked(parts.get("project_key"), "Claude project key"),
        checked(parts.get("session_id"), "Claude session id"),
        None if subpath is None else checked(subpath, "Claude subpath") or None,
    )


def _entries(given: Any) -> list[SessionStoreEntry]:
    entries: list[Any] = list(cast("list[Any]", given)) if isinstance(given, (list, tuple)) else [given]
    for each in entries:
        if not isinstance(each, dict):
            raise InvalidInput(
                f"an entry of a Claude session is of type {type(each).__name__}; pass a list of dicts"
            )
    return entries


def _thread_id(key: Key) -> str:
    """``<session id>`` or ``<session id>/<subpath>``, with a hash for what cannot stand there."""
    main = thread_name(key.session_id, "session id", limit=_MAIN_CHARS, slashes=False)
    return main if key.subpath is None else f"{main}/{thread_name(key.subpath, 'subpath', limit=_SUB_CHARS)}"


def _namespace(project_key: str) -> str:
    return thread_name(project_key, "Claude project key")


def _continues(before: ListPrefix, now: ListPrefix) -> bool:
    return now.list == before.list and now.length >= before.length


def _summary(key: Key, data: dict[str, Any]) -> SessionSummaryEntry:
    return {"session_id": key.session_id, "mtime": 0, "data": data}


def _mtime(info: ThreadInfo) -> int:
    return info.updated_at_us // 1000
