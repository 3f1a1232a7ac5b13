"""Sessions of coding agents that lie on disk: how each becomes a thread with runs, and how again is cheap.

A session is one or more files that only grow. Every line of it becomes a row with an id that the line itself
determines, so reading a file again writes what is new and nothing else. A ref remembers how long the files
were and what they took; files that have not changed since are not even opened. **Invariant:** the ref is
written with the last rows, so a session whose import was cut off is read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from treering.core.batch import Event
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.ids import Scope, thread_key
from treering.core.paging import each_record
from treering.core.query import EventQuery
from treering.errors import Conflict, InvalidInput, Unreachable
from treering.importers.histories import HeadMade, Histories, ListMade, Made
from treering.importers.json_lines import decode_line
from treering.importers.recording import BatchRecorder
from treering.importers.report import FileReport, ImportReport, Spent, Tally
from treering.runs.run import Run
from treering.threads.checkpoint_record import PREFIX

if TYPE_CHECKING:
    from treering.core.batch import Draft, Usage
    from treering.store import Store


# -----------------------------------------------------------------------------------------------------------
# Ids for what had none: the same source always gives the same id, so importing it again finds it there.


_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_CHARS: Final = 26
_DIGEST_BYTES: Final = 10


def derived_checkpoint_id(ts_us: int, *parts: str | bytes) -> str:
    """A checkpoint id of this time, made from what it stands for; it sorts among the others by time."""
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    number = (ts_us // 1000) << (8 * _DIGEST_BYTES) | int.from_bytes(digest.digest()[:_DIGEST_BYTES], "big")
    return PREFIX + "".join(_ALPHABET[number >> (5 * place) & 31] for place in reversed(range(_CHARS)))


# -----------------------------------------------------------------------------------------------------------

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
        self.notes = BatchRecorder()
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

        self.notes.put(note)

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
        """The conversation, a checkpoint a turn; says whether the thread could be brought up to date.

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
            self._add_checkpoints(histories, turns, ids, state)
            histories.set_head(
                HeadMade(
                    thread=self.thread,
                    namespace="",
                    checkpoint=ids[-1],
                    first_us=turns[0].began_us,
                    checkpoints={*ids, *self._own_head()},
                    rewinds=histories.rewinds(self.thread, ""),
                )
            )
        except Conflict:
            return False
        return True

    def _add_checkpoints(
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
        """The checkpoint that the thread is at, if an import made it: a turn may have grown since."""
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


# -----------------------------------------------------------------------------------------------------------
# Importing many sessions: those that have changed since are read, all are counted and summed up.


class Reading(Protocol):
    """The files of one session, when they were read."""

    lines: int
    known: int
    left: int
    bad: list[str]
    unknown: Counter[str]
    turns: list[Turn]
    is_over: bool

    def read(self) -> None:
        """Read them."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint of the thread says beside its messages."""
        ...


Reader = Callable[[Session, dict[Path, int], bool], Reading]
"""Makes the reading of a session out of the sizes of its files, and whether nobody writes to them."""


class SessionImport:
    """Takes one session after the other, and sums up. ``is_over`` says that nobody adds to them any more."""

    def __init__(self, tool: str, store: Store, *, dry_run: bool, is_over: bool = False) -> None:
        self._tool = tool
        self._store = store
        self._dry_run = dry_run
        self._is_over = is_over
        self._tally = Tally()
        self._counts: dict[str, dict[str, Counter[str]]] = {}
        self._unknown: Counter[str] = Counter()
        self._bad: list[str] = []
        self._moved: Counter[str] = Counter()
        self._foreign: Counter[str] = Counter()
        self._lines = 0

    def take(self, group: str, id: str, files: Sequence[Path], reader: Reader) -> None:
        """Import one session, if its files have changed; ``group`` is what it is counted under.

        Lines of unknown types are kept beside others; a file of nothing else is not of this tool.
        """
        session = Session(self._store, self._tool, id)
        paths = stamp_of(files)
        quiet = self._is_over or is_quiet(paths, self._store.clock.now_us())
        before = session.stamp()
        if before is not None and before.files == paths and (before.is_over or not quiet):
            self._skip(group, before)
            return
        sizes = {path: paths[path.name][0] for path in files}
        reading = reader(session, sizes, quiet)
        reading.read()
        self._bad += [f"{group}/{each}" for each in reading.bad]
        if before is None and (reading.lines or reading.bad) and reading.unknown.total() == reading.lines:
            self._foreign[group] += 1
            self._count(group, "sessions", found=1, left=1)
            return
        new = reading.lines - reading.known - reading.left
        if not self._dry_run:
            stamp = Stamp(
                files=paths, lines=reading.lines, is_over=reading.is_over, spent=session.tally.spent
            )
            if not session.write_thread(reading.turns, reading.state):
                self._moved[group] += 1
            session.write(stamp)  # last, so that an import that was cut off is known to be so
        self._add(group, session.tally, sessions=(before is None, before is not None))
        self._count(group, "lines", found=reading.lines, new=new, known=reading.known, left=reading.left)
        self._lines += reading.lines
        self._unknown.update(reading.unknown)

    def _skip(self, group: str, before: Stamp) -> None:
        self._add(group, Tally(before.spent), sessions=(False, True))
        self._count(group, "lines", found=before.lines, known=before.lines)

    def _add(self, group: str, tally: Tally, *, sessions: tuple[bool, bool]) -> None:
        for each in tally.spent:
            self._tally.add(each)
        new, known = sessions
        self._count(group, "sessions", found=1, new=int(new), known=int(known))

    def _count(self, group: str, holds: str, **counts: int) -> None:
        self._counts.setdefault(group, {}).setdefault(holds, Counter()).update(counts)

    def report(self, source: str, *, seconds: float) -> ImportReport:
        """What was found, what is new, and what it took; `InvalidInput` when nothing was of this tool."""
        sessions = sum(kinds["sessions"]["found"] for kinds in self._counts.values())
        if sessions and self._foreign.total() == sessions:
            raise InvalidInput(
                f"{source} has no line that {self._tool} writes; nothing was imported. "
                "`treering import --help` lists whose files can be"
            )
        bad = Counter(each.partition("/")[0] for each in self._bad)
        reports: list[FileReport] = []
        for project, kinds in sorted(self._counts.items()):
            for holds, counts in sorted(kinds.items(), reverse=True):
                report = FileReport(
                    path=project,
                    holds=holds,
                    found=counts["found"],
                    new=counts["new"],
                    known=counts["known"],
                    left_out=counts["left"],
                    note="not finished yet: import again later" if counts["left"] else "",
                )
                if holds == "sessions":
                    notes = {
                        "threads went on here and stay as they are": self._moved[project],
                        f"have no line that {self._tool} writes": self._foreign[project],
                    }
                    told = "; ".join(f"{count} {note}" for note, count in notes.items() if count)
                    report = msgspec.structs.replace(report, note=told)
                if holds == "lines" and bad[project]:
                    report = msgspec.structs.replace(
                        report,
                        found=report.found + bad[project],
                        left_out=report.left_out + bad[project],
                        note=f"{bad[project]} cannot be read",
                    )
                reports.append(report)
        return ImportReport(
            importer=self._tool,
            source=source,
            dry_run=self._dry_run,
            files=tuple(reports),
            lines=self._lines,
            seconds=seconds,
            unknown=dict(self._unknown),
            bad=tuple(self._bad),
            spent=self._tally.spent,
        )
