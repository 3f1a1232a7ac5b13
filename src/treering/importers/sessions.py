"""Sessions of coding agents that lie on disk: how each becomes a thread with runs, and how again is cheap.

A session is one or more files that only grow. Every line of it becomes a row with an id that the line itself
determines, so reading a file again writes what is new and nothing else. A ref remembers how long the files
were and what they took; files that have not changed since are not even opened. **Invariant:** the ref is
written with the last rows, so a session whose import was cut off is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Event
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.pages import each_record
from treering.core.query import EventQuery
from treering.core.scopes import Scope
from treering.errors import Conflict, Unreachable
from treering.importers.derived import derived_checkpoint_id
from treering.importers.histories import HeadMade, Histories, ListMade, Made
from treering.importers.line_json import decode_line
from treering.importers.notebook import Notebook
from treering.importers.tally import Spent, Tally
from treering.views.recording.runs import Run
from treering.views.thread_keys import thread_key

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.core.draft import Draft
    from treering.store import Store

QUIET_SECONDS: Final = 600
"""A session that nobody has written to for so long is over."""

_IDS_A_QUERY: Final = 400
_TITLE_CHARS: Final = 120
_IMPORTER: Final = "importer"


class RawLine(msgspec.Struct, frozen=True):
    """A line as it lies in a file."""

    number: int
    text: bytes


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a session's files."""

    files: dict[str, tuple[int, int]]
    """Size and time of the last change, by name."""
    lines: int = 0
    is_over: bool = True
    """Nothing waited for its end when they were read."""
    spent: tuple[Spent, ...] = ()


class Turn(msgspec.Struct, kw_only=True):
    """One prompt and what came of it, as the thread keeps it."""

    id: str
    began_us: int
    said: list[dict[str, Any]] = []
    parent: int | None = None
    """The turn that it follows, by its place in the session."""
    keep: int = 0
    """How many messages of that turn's conversation it goes on from."""

    @property
    def length(self) -> int:
        """How many messages the conversation has behind it."""
        return self.keep + len(self.said)


class Session:
    """One session while it is written. ``tool`` is whose sessions these are, ``id`` what that calls it."""

    def __init__(self, store: Store, tool: str, id: str) -> None:
        self.store = store
        self.tool = tool
        self.thread = f"{tool}/{id}"
        self.key = thread_key(self.thread, "")
        self.scope = str(Scope("", "thread", self.thread))
        self.notes = Notebook()
        self.tally = Tally()
        self.known: dict[str, str | None] = {}
        """The ids that the store holds already, and the thread of each."""
        self.last_us = 0

    # What is there
    @property
    def ref(self) -> str:
        """The name of the ref that remembers the files."""
        return f"import/{self.thread}"

    def stamp(self) -> Stamp | None:
        """What was remembered by the last import."""
        found = self.store.engine.refs(self.store.space, [self.ref]).get(self.ref)
        return None if found is None else msgspec.convert(decode_json(found.value), Stamp)

    def look_up(self, ids: Iterable[str], *, since_us: int, until_us: int) -> None:
        """Learn which of these ids the store holds, from this session or from one that was copied."""
        wanted = list(dict.fromkeys(ids))
        for start in range(0, len(wanted), _IDS_A_QUERY):
            chosen = tuple(wanted[start : start + _IDS_A_QUERY])
            query = EventQuery(ids=chosen, since_us=since_us, until_us=until_us + 1)
            page = self.store.engine.scan(self.store.space, query, limit=_IDS_A_QUERY * 2)
            self.known.update({record.event.id: record.event.thread for record in page.records})

    def look_up_run(self, run_id: str) -> None:
        """Learn everything that the store holds of a run."""
        records = each_record(self.store.engine, self.store.space, EventQuery(run=run_id))
        self.known.update({record.event.id: record.event.thread for record in records})

    def is_foreign(self, id: str) -> bool:
        """Whether another session holds it: tools copy what was said when a session is resumed."""
        return id in self.known and self.known[id] != self.key

    # What is written
    def run(self, id: str, *, agent: str, meta: Mapping[str, Any]) -> Run:
        """A run of this session, which begins at the notebook's time."""
        return Run(
            self.notes,
            self.notes,
            agent=agent,
            thread=self.thread,
            namespace="",
            thread_key=self.key,
            id=id,
            project_id=None,
            meta=meta,
            tags=(self.tool,),
        )

    def keep(self, line: RawLine, *, id: str, kind: str, ts_us: int, run: str | None) -> None:
        """Keep a line as it is, in the journal of the thread."""
        if id in self.known:
            return
        text = encode(line.text.decode("utf-8", "replace"))

        def note(draft: Draft) -> None:
            draft.event(
                Event(
                    id=id,
                    kind=f"{self.tool}.{kind}",
                    ts_us=ts_us,
                    scope=self.scope,
                    run=run,
                    thread=self.key,
                    agent=self.tool,
                    name=kind,
                    data=encode_json({"line": line.number}),
                    body=draft.put(text, scope=self.scope),
                )
            )

        self.notes.take(note)

    def count_usage(self, project: str) -> Any:
        """Sum up the tokens of a project, those of copied messages left out."""

        def used(id: str, ts_us: int, model: str | None, usage: Usage) -> None:
            if not self.is_foreign(id):
                self.tally.used(project, ts_us, model, usage)

        return used

    def write(self, stamp: Stamp) -> None:
        """Write everything that was noted, and remember the files."""

        def remember(draft: Draft) -> None:
            draft.set_ref(self.ref, encode_json(msgspec.to_builtins(stamp)), scope=self.scope)

        self.notes.write(self.store, remember)

    def write_thread(self, turns: Sequence[Turn], state: Mapping[str, Any]) -> bool:
        """The conversation, a moment a turn; says whether the thread could be brought up to date.

        It could not if the thread went on here, or if someone else is just importing it.
        """
        if not turns:
            return True
        histories = Histories(self.store)
        ids = [
            derived_checkpoint_id(turn.began_us, self.tool, self.thread, turn.id, str(turn.length))
            for turn in turns
        ]
        try:
            self._add_moments(histories, turns, ids, state)
            histories.set_head(
                HeadMade(
                    thread=self.thread,
                    namespace="",
                    checkpoint=ids[-1],
                    first_us=turns[0].began_us,
                    moments={*ids, *self._own_head()},
                    rewinds=histories.rewinds(self.thread, ""),
                )
            )
        except Conflict:
            return False
        return True

    def _add_moments(
        self, histories: Histories, turns: Sequence[Turn], ids: Sequence[str], state: Mapping[str, Any]
    ) -> None:
        there = histories.owners(ids)
        steps: list[int] = []
        for turn, id_ in zip(turns, ids, strict=True):
            parent = turn.parent
            steps.append(0 if parent is None else steps[parent] + 1)
            if id_ in there:
                continue
            histories.add(
                Made(
                    id=id_,
                    thread=self.thread,
                    namespace="",
                    parent=None if parent is None else ids[parent],
                    step=steps[-1],
                    created_at_us=turn.began_us,
                    lists={"messages": ListMade(keep=turn.keep, add=turn.said)},
                    state=state,
                    metadata={_IMPORTER: self.tool},
                    note=_title(turn.said),
                    tags=(self.tool,),
                )
            )

    def _own_head(self) -> list[str]:
        """The moment that the thread is at, if an import made it: a turn may have grown since."""
        head = self.store.thread(self.thread).head
        return [head.id] if head is not None and head.metadata.get(_IMPORTER) == self.tool else []


def stamp_of(paths: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Size and time of the last change of a session's files, by name; they may be growing just now."""
    found: dict[str, tuple[int, int]] = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error
        found[path.name] = status.st_size, status.st_mtime_ns
    return found


def raw_lines(path: Path, size: int) -> Iterator[RawLine]:
    """The lines of a file that are whole, up to the size that was seen first.

    A last line without its end is still being written: it is for the next time.
    """
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error
    for number, text in enumerate(data.splitlines(keepends=True), 1):
        if text.strip() and (text.endswith(b"\n") or _is_whole(text)):
            yield RawLine(number, text.rstrip(b"\r\n"))


def is_quiet(files: Mapping[str, tuple[int, int]], now_us: int) -> bool:
    """Whether nobody has written to a session for a while."""
    newest = max((changed_ns for _, changed_ns in files.values()), default=0)
    return now_us - newest // 1000 > QUIET_SECONDS * 1_000_000


def title_of(said: Any) -> str:
    """The beginning of what was said, in one line."""
    return " ".join(str(said).split())[:_TITLE_CHARS]


def _is_whole(text: bytes) -> bool:
    try:
        decode_line(text)
    except msgspec.DecodeError:
        return False
    return True


def _title(said: Sequence[Mapping[str, Any]]) -> str | None:
    for message in said:
        content: Any = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            return title_of(content) or None
    return None
