"""A session store for the Claude Agent SDK: transcripts as threads.

    options = ClaudeAgentOptions(session_store=TreeringSessionStore("./agents"))

A transcript is the thread ``<session id>`` in the namespace ``<project key>``; a subagent's is the thread
``<session id>/<subpath>``. Its entries are the messages, unchanged, and each `append` is one durable
checkpoint. The SDK repeats a batch when it does not know whether it arrived, so entries are identified by
their ``uuid``: a transcript's uuids are read once, and after that only those that others added.

When Claude Code compacts a session, it appends a boundary and a summary, and goes on from these. Such entries
are stored with a compaction of the thread (see `treering.threads.compaction`). A compaction that was made in
another way is loaded as a boundary and a summary before the entries that the model still sees; one that was
undone is left out. **Invariant:** no two entries of a transcript have the same uuid, whoever appends, and its
summary counts every entry once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import Any, Final, NamedTuple, cast
from uuid import NAMESPACE_URL, UUID, uuid5
from weakref import WeakValueDictionary

from treering.adapters.conversation import read_heads, retry_if_removed
from treering.adapters.shared import Opened, SerialExecutor, StoreOrUrl, checked, thread_name
from treering.bridge import Bridge
from treering.core.clock import SystemClock, from_datetime
from treering.errors import InvalidInput, MissingExtra, Vetoed
from treering.runs.span import RunNode, current_node
from treering.sync_async import Closing
from treering.threads.checkpoint import MESSAGES, Checkpoint, ListPrefix, StateValue
from treering.threads.compaction import Compaction, Summary, View, made_compaction
from treering.threads.hooks import check_choice
from treering.threads.thread import Thread, ThreadMoved, save_compactions

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
"""The state value with the key of a thread's transcript."""
SUMMARY: Final = "claude_summary"
"""The state value with the SDK's own, opaque summary of a session."""

SOURCE: Final = "claude-code"
"""Who made a compaction that entries of a session are."""

_COMMON: Final = ("sessionId", "cwd", "version", "gitBranch", "userType", "entrypoint", "timestamp")
_MADE_HERE: Final = 5
_MAIN_CHARS: Final = 200
_SUB_CHARS: Final = 300
_MAX_CACHED: Final = 256
_ATTEMPTS: Final = 100

recorded_sessions: Final[WeakValueDictionary[str, RunNode]] = WeakValueDictionary()
"""What records each session in this process; see `treering.adapters.claude.runs`."""


class Key(NamedTuple):
    """A `SessionKey`, hashable; ``subpath`` is ``None`` for the main transcript."""

    project_key: str
    session_id: str
    subpath: str | None = None


@contextmanager
def _run_of(session_id: str) -> Generator[None]:
    """What is saved inside is of the run that records this session, if there is one."""
    node = current_node.get() or recorded_sessions.get(session_id)
    token = current_node.set(node)
    try:
        yield
    finally:
        current_node.reset(token)


class TreeringSessionStore(SessionStore, Closing):
    """Stores the sessions of the Claude Agent SDK, so that they can be resumed.

    ``store_or_url`` is an open store, which you close, or the URL of one, which `close` closes.

    A session whose thread was compacted (`Thread.compact`) is resumed from the summary, and the thread keeps
    every entry; ``view="full"`` resumes it with all of them.
    """

    def __init__(self, store_or_url: StoreOrUrl | None = None, *, view: View = "compact") -> None:
        check_choice(view, ("full", "compact"), "view")
        self._view: View = view
        self._opened = Opened(store_or_url)
        self._store = self._opened.store
        self._transcripts: OrderedDict[Key, _Transcript] = OrderedDict()
        self._lock = Lock()

    def thread_id(self, key: SessionKey) -> tuple[str, str]:
        """Return the id and the namespace of a transcript's thread."""
        session = _key(key)
        return _thread_id(session), thread_namespace(session.project_key)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Save the entries that are not stored yet, as one checkpoint. Concurrent calls keep their order."""
        session = _key(key)
        if entries:
            transcript = self._transcript(session)
            with _run_of(session.session_id):
                await transcript.executor.call(transcript.append, _entries(entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript, or ``None`` if it does not exist.

        They are those that were appended, except where a compaction was made or undone in the store.
        """
        transcript = self._transcript(_key(key))
        return await transcript.executor.call(transcript.load, self._view)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """List the main transcripts of a project, newest first."""
        found = await self._bridge.call(self._sessions, project_key)
        return [{"session_id": key.session_id, "mtime": mtime} for mtime, key, _ in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """List the SDK's summaries of a project's sessions, newest first, without reading transcripts."""
        found = await self._bridge.call(self._sessions, project_key)
        return [
            {"session_id": key.session_id, "mtime": mtime, "data": summary} for mtime, key, summary in found
        ]

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript, if it exists; a main one with those of its subagents.

        Raises `Conflict` if the thread has forks: delete those first.
        """
        session = _key(key)
        if session.subpath is None:
            for subpath in await self._bridge.call(self._subpaths, session):
                await self._delete(session._replace(subpath=subpath))
        await self._delete(session)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """List the subpaths of a session, sorted."""
        return await self._bridge.call(self._subpaths, _key(key)._replace(subpath=None))

    def close(self) -> None:
        """Close the store, if it was opened here. May be called twice."""
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._opened.aclose()

    def __repr__(self) -> str:
        return f"TreeringSessionStore({self._store!r})"

    @property
    def _bridge(self) -> Bridge:
        return self._opened.bridge

    def _transcript(self, key: Key) -> _Transcript:
        """Return the cached state of a transcript; the least recently used ones are dropped."""
        with self._lock:
            cached = self._transcripts.pop(key, None)
            if cached is None:
                thread = self._store.thread(_thread_id(key), thread_namespace(key.project_key))
                cached = _Transcript(key, thread, SerialExecutor(self._bridge))
            self._transcripts[key] = cached
            if len(self._transcripts) > _MAX_CACHED:
                idle = next((each for each, it in self._transcripts.items() if it.executor.is_idle), key)
                if idle != key:
                    del self._transcripts[idle]
            return cached

    async def _delete(self, key: Key) -> None:
        transcript = self._transcript(key)
        await transcript.executor.call(transcript.delete)

    def _sessions(self, project_key: str) -> list[tuple[int, Key, dict[str, Any]]]:
        """Return time, key and summary of a project's sessions, newest first.

        The SDK sorts by a time in milliseconds. Each is later than the one before it, so that sessions of the
        same millisecond keep their order.
        """
        threads = self._store.threads(namespace=thread_namespace(project_key))
        found: list[tuple[int, Key, dict[str, Any]]] = []
        heads = read_heads(self._store, (each for each in threads if "/" not in each.id), SESSION, SUMMARY)
        for info, _, state in reversed(list(heads)):
            if SESSION in state and (key := Key(**state[SESSION])).subpath is None:
                mtime = info.updated_at_us // 1000
                if found:
                    mtime = max(mtime, found[-1][0] + 1)
                found.append((mtime, key, state.get(SUMMARY, {})))
        found.reverse()
        return found

    def _subpaths(self, key: Key) -> list[str]:
        threads = self._store.threads(
            namespace=thread_namespace(key.project_key), prefix=_thread_id(key._replace(subpath=None)) + "/"
        )
        found = (state.get(SESSION, {}) for _, _, state in read_heads(self._store, threads, SESSION))
        return sorted(each["subpath"] for each in found if each.get("subpath") is not None)


class _Transcript:
    """A transcript as this process last saw it; used by one call at a time."""

    def __init__(self, key: Key, thread: Thread, executor: SerialExecutor) -> None:
        self.executor = executor
        self._key = key
        self._thread = thread
        self._forget()

    def append(self, entries: list[SessionStoreEntry]) -> None:
        for attempt in range(_ATTEMPTS):
            retry_if_removed(self._refresh)
            new = self._new_entries(entries)
            if not new:
                return
            try:
                saved = self._save(new)
                if saved is None:
                    continue
            except ThreadMoved:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            except Vetoed:
                return
            self._remember(saved, new)
            return

    def _save(self, new: list[SessionStoreEntry]) -> Checkpoint | None:
        """Append entries, with the compactions that they are; ``None`` if others appended first."""
        state = self._changed_state(new)
        if not any(map(_is_summary, new)):
            return self._thread.append(*new, state=state)
        head = self._thread.head
        if (None if head is None else head.id) != self._head:
            return None
        before: list[Any] = [] if head is None else head.messages
        made = [] if head is None else head.compactions
        entries = [*before, *new]
        for at in range(len(before), len(entries)):
            if _is_summary(entries[at]):
                made.append(_compaction(entries, at, made))
        return save_compactions(self._thread, made, "compact", state=state, metadata={}, messages=new)

    def load(self, view: View) -> list[SessionStoreEntry] | None:
        return retry_if_removed(lambda: self._load(view))

    def _load(self, view: View) -> list[SessionStoreEntry] | None:
        checkpoint = self._thread.get()
        if checkpoint is None:
            self._forget()
            return None
        entries = checkpoint.messages
        self._uuids = set()
        self._remember(checkpoint, entries)
        if view == "full":
            return _without_compactions(entries, set())
        compactions = checkpoint.compactions
        known = {each.id for each in compactions}
        shown = _without_compactions(entries, known)
        if compactions and compactions[-1].source != SOURCE:
            newest = compactions[-1]
            kept = len(_without_compactions(entries[: newest.upto], known))
            shown = _with_boundary(shown, kept, newest)
            self._uuids.update(uuid for each in shown if isinstance(uuid := each.get("uuid"), str))
        return shown

    def delete(self) -> None:
        if self._thread.head is not None:
            self._thread.delete()
        self._forget()

    def _new_entries(self, entries: list[SessionStoreEntry]) -> list[SessionStoreEntry]:
        """Return the entries that are not stored yet, each once."""
        new: list[SessionStoreEntry] = []
        seen: set[str] = set()
        for entry in entries:
            uuid = entry.get("uuid")
            if isinstance(uuid, str):  # an entry without a uuid is never a repetition
                if uuid in self._uuids or uuid in seen:
                    continue
                seen.add(uuid)
            new.append(entry)
        return new

    def _changed_state(self, new: list[SessionStoreEntry]) -> dict[str, Any] | None:
        """Return the whole state after these entries, or ``None`` if they do not change it."""
        key = {name: value for name, value in self._key._asdict().items() if value is not None}
        changed: dict[str, Any] = {SESSION: key}
        if self._key.subpath is None:
            before = self._state.get(SUMMARY)
            previous = None if before is None else _summary(self._key, before)
            changed[SUMMARY] = fold_session_summary(previous, cast("SessionKey", key), new)["data"]
        if all(self._state.get(name) == value for name, value in changed.items()):
            return None
        return {**self._state, **changed}

    def _refresh(self) -> None:
        """Read what others have appended; everything, if they changed more than that."""
        checkpoint = self._thread.head
        if checkpoint is None:
            self._forget()
        elif checkpoint.id != self._head:
            before, now = self._messages, checkpoint.record.lists.get(MESSAGES)
            if before is not None and now is not None and _extends(before, now):
                added = checkpoint.last_messages(now.length - before.length)
            else:
                self._uuids = set()
                added = checkpoint.messages
            self._remember(checkpoint, added)

    def _remember(self, checkpoint: Checkpoint, added: Iterable[SessionStoreEntry]) -> None:
        self._uuids.update(uuid for entry in added if isinstance(uuid := entry.get("uuid"), str))
        self._head = checkpoint.id
        self._messages = checkpoint.record.lists.get(MESSAGES)
        if checkpoint.record.state != self._state_refs:
            self._state_refs = checkpoint.record.state
            self._state = checkpoint.state

    def _forget(self) -> None:
        self._uuids: set[str] = set()
        self._head: str | None = None
        self._messages: ListPrefix | None = None
        self._state_refs: dict[str, StateValue] = {}
        self._state: dict[str, Any] = {}


def _is_summary(entry: Mapping[str, Any]) -> bool:
    return entry.get("isCompactSummary") is True and isinstance(entry.get("uuid"), str)


def _is_boundary(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "system" and entry.get("subtype") == "compact_boundary"


def _boundary_before(entries: Sequence[Any], at: int) -> dict[str, Any]:
    """Return the boundary that the summary at this place belongs to, or an empty one."""
    for entry in reversed(entries[:at]):
        if _is_boundary(entry):
            return entry
        if _is_summary(entry):
            break
    return {}


def _compaction(entries: Sequence[Any], at: int, earlier: Sequence[Compaction]) -> Compaction:
    """Return the compaction whose summary is at this place: what comes after it, Claude Code appends."""
    boundary = _boundary_before(entries, at)
    about: dict[str, Any] = boundary.get("compactMetadata") or {}
    kept: dict[str, Any] = about.get("preservedMessages") or {}
    uuids = set(cast("list[str]", kept.get("uuids") or ()))
    before, after = about.get("preTokens"), about.get("postTokens")
    return made_compaction(
        Summary(
            messages=[entries[at], *(each for each in entries[:at] if each.get("uuid") in uuids)],
            tokens=(before if type(before) is int else None, after if type(after) is int else None),
        ),
        entries[:at],
        keeps=0,
        since=earlier[-1].upto if earlier else 0,
        end=at + 1,
        now_us=_time_us(entries[at].get("timestamp")),
        id=entries[at]["uuid"],
        source=SOURCE,
    )


def _time_us(text: Any) -> int:
    try:
        return from_datetime(datetime.fromisoformat(text))
    except (TypeError, ValueError):
        return SystemClock().now_us()


def _without_compactions(entries: Sequence[Any], known: AbstractSet[str]) -> list[Any]:
    """Return entries without the summaries that are no (longer) compactions, and without their boundaries.

    What follows such a summary follows the entry before its boundary instead.
    """
    gone: dict[str, str | None] = {}
    shown: list[Any] = []
    last: str | None = None
    for at, entry in enumerate(entries):
        if _is_summary(entry) and entry["uuid"] not in known:
            boundary = _boundary_before(entries, at)
            shown = [each for each in shown if each is not boundary]
            followed = boundary.get("logicalParentUuid") or last
            gone |= {entry["uuid"]: followed} | ({boundary["uuid"]: followed} if "uuid" in boundary else {})
            continue
        parent = entry.get("parentUuid")
        is_moved = parent in gone or _is_made_here(parent)
        shown.append({**entry, "parentUuid": gone.get(parent, last)} if is_moved else entry)
        if entry.get("uuid") and entry.get("type") in ("user", "assistant"):
            last = entry["uuid"]
    return shown


def _with_boundary(entries: Sequence[Any], upto: int, compaction: Compaction) -> list[Any]:
    """Return entries with a boundary and a summary after the first ``upto``, as Claude Code writes them."""
    before, after = entries[:upto], entries[upto:]
    seen = {each["uuid"] for each in before if each.get("uuid")}
    none: dict[str, Any] = {}
    last = next((each for each in reversed(before) if each.get("uuid") and each.get("sessionId")), none)
    common: dict[str, Any] = {name: last[name] for name in _COMMON if name in last}
    ids = [str(uuid5(NAMESPACE_URL, f"treering:{compaction.id}/{each}")) for each in ("boundary", "summary")]
    boundary: dict[str, Any] = {
        **common,
        "parentUuid": None,
        "logicalParentUuid": last.get("uuid"),
        "isSidechain": False,
        "type": "system",
        "subtype": "compact_boundary",
        "content": "Conversation compacted",
        "isMeta": False,
        "level": "info",
        "uuid": ids[0],
        "compactMetadata": {"trigger": "manual", "preTokens": compaction.tokens_before or 0},
    }
    summary: dict[str, Any] = {
        **common,
        "parentUuid": ids[0],
        "isSidechain": False,
        "type": "user",
        "message": {"role": "user", "content": compaction.text},
        "isVisibleInTranscriptOnly": True,
        "isCompactSummary": True,
        "uuid": ids[1],
    }
    moved = [{**each, "parentUuid": ids[1]} if each.get("parentUuid") in seen else each for each in after]
    return [*before, boundary, summary, *moved]


def _is_made_here(uuid: Any) -> bool:
    """Whether it is a uuid of `_with_boundary`: those of Claude Code are random."""
    try:
        return isinstance(uuid, str) and UUID(uuid).version == _MADE_HERE
    except ValueError:
        return False


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
    """Return ``<session id>`` or ``<session id>/<subpath>``, with a hash for an invalid part."""
    main = thread_name(key.session_id, "session id", limit=_MAIN_CHARS, slashes=False)
    return main if key.subpath is None else f"{main}/{thread_name(key.subpath, 'subpath', limit=_SUB_CHARS)}"


def thread_namespace(project_key: str) -> str:
    """Return the namespace of the threads of a project."""
    return thread_name(project_key, "Claude project key")


def _extends(before: ListPrefix, now: ListPrefix) -> bool:
    return now.list == before.list and now.length >= before.length


def _summary(key: Key, data: dict[str, Any]) -> SessionSummaryEntry:
    return {"session_id": key.session_id, "mtime": 0, "data": data}
