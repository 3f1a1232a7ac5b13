"""Import sessions of coding agents from disk: each becomes a thread with runs, and importing again is cheap.

A session is one or more files that only grow. `SessionImporter` takes one session after the other; a subclass
of `SessionReader` for each tool turns the lines into runs; `ImportedSession` writes them. Every line becomes
a row whose id is derived from the line, so reading a file again writes only what is new. A ref stores the
sizes of the files and what they cost; files that have not changed are not even opened. **Invariant:** the ref
is written with the last rows, so a session whose import was interrupted is read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Event
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.ids import MAX_ID_CHARS, Scope, thread_key
from treering.core.query import EventQuery, each_record
from treering.errors import Conflict, InvalidInput, Unreachable
from treering.importers.history_writer import HistoryWriter, ImportedCheckpoint, ImportedHead, ImportedList
from treering.importers.lines import BadLines, RawLine
from treering.importers.recording import BatchRecorder, SessionRecorder, valid_id
from treering.importers.registry import FileReport, ImportReport, Spent, Tally
from treering.runs.run import Run
from treering.threads.checkpoint import MESSAGES, PREFIX
from treering.threads.compaction import Compaction, Summary, compaction_of, stored_form
from treering.threads.hooks import COMPACTIONS

if TYPE_CHECKING:
    from treering.core.batch import Draft, Usage
    from treering.store import Store

QUIET_SECONDS: Final = 600
"""A session that nobody has written to for so long is over."""

_IDS_A_QUERY: Final = 400
_TITLE_CHARS: Final = 120
_IMPORTER: Final = "importer"
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_CHARS: Final = 26
_DIGEST_BYTES: Final = 10


class FilesStamp(msgspec.Struct, frozen=True, kw_only=True):
    """What the ref of a session stores."""

    files: dict[str, tuple[int, int]]
    """Size and modification time of each file, by name."""
    lines: int = 0
    is_over: bool = True
    """Whether nothing was unfinished when they were read."""
    spent: tuple[Spent, ...] = ()


class Turn(msgspec.Struct, kw_only=True):
    """One prompt and its answers, which become one checkpoint of the thread.

    A compaction divides a turn: it and the answers after it become the next checkpoint.
    """

    id: str
    began_us: int
    said: list[dict[str, Any]] = []
    parent: int | None = None
    """The index of the turn that it follows."""
    keep: int = 0
    """How many messages of that turn's conversation it continues from."""
    compactions: tuple[Compaction, ...] = ()
    """Those of the conversation, oldest first."""
    note: str | None = None

    @property
    def length(self) -> int:
        """The number of messages in the conversation after it."""
        return self.keep + len(self.said)


class SessionImporter:
    """Imports sessions one by one, and reports on all.

    ``is_over`` means that nothing is added to them any more.
    """

    def __init__(self, tool: str, store: Store, *, dry_run: bool, is_over: bool = False) -> None:
        self._tool = tool
        self._store = store
        self._dry_run = dry_run
        self._is_over = is_over
        self._tally = Tally()
        self._counts: dict[str, dict[str, Counter[str]]] = {}
        self._unknown: Counter[str] = Counter()
        self._bad: list[tuple[str, BadLines]] = []
        self._continued: Counter[str] = Counter()
        self._foreign: Counter[str] = Counter()
        self._lines = 0

    def take(self, group: str, id: str, files: Sequence[Path], reader: ReaderFactory) -> None:
        """Import one session, if its files have changed; the report counts it under ``group``.

        Unknown lines are stored as well, but a file of nothing else is not one of this tool.
        """
        session = ImportedSession(self._store, self._tool, id)
        paths = stat_files(files)
        quiet = self._is_over or is_quiet(paths, self._store.clock.now_us())
        before = session.stamp()
        if before is not None and before.files == paths and (before.is_over or not quiet):
            self._skip(group, before)
            return
        sizes = {path: paths[path.name][0] for path in files}
        reading = reader(session, sizes, is_quiet=quiet)
        reading.read()
        self._bad.append((group, reading.bad))
        if (
            before is None
            and (reading.lines or reading.bad.count)
            and reading.unknown.total() == reading.lines
        ):
            self._foreign[group] += 1
            self._count(group, "sessions", found=1, left=1)
            return
        new = reading.lines - reading.known - reading.left
        if not self._dry_run:
            stamp = FilesStamp(
                files=paths, lines=reading.lines, is_over=reading.is_over, spent=session.tally.spent
            )
            if not session.write_thread(reading.turns, reading.state):
                self._continued[group] += 1
            session.write(stamp)  # last, so that an interrupted import is repeated
        self._add(group, session.tally, sessions=(before is None, before is not None))
        self._count(group, "lines", found=reading.lines, new=new, known=reading.known, left=reading.left)
        self._lines += reading.lines
        self._unknown.update(reading.unknown)

    def _skip(self, group: str, before: FilesStamp) -> None:
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
        """Return the report; raise `InvalidInput` if no file was one of this tool."""
        sessions = sum(kinds["sessions"]["found"] for kinds in self._counts.values())
        if sessions and self._foreign.total() == sessions:
            raise InvalidInput(
                f"{source} has no line of {self._tool}; nothing was imported. "
                "`treering import --help` lists what can be imported"
            )
        bad: Counter[str] = Counter()
        for project, found in self._bad:
            bad[project] += found.count
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
                    note="unfinished: import again later" if counts["left"] else "",
                )
                if holds == "sessions":
                    notes = {
                        "threads were continued here and are left alone": self._continued[project],
                        f"have no line of {self._tool}": self._foreign[project],
                    }
                    text = "; ".join(f"{count} {note}" for note, count in notes.items() if count)
                    report = msgspec.structs.replace(report, note=text)
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
            bad=tuple(f"{group}/{each}" for group, found in self._bad for each in found.named),
            spent=self._tally.spent,
        )


class SessionReader:
    """Reads the files of one session, and adds what is in them to an `ImportedSession`.

    Each tool has a subclass.
    """

    agent = ""
    """The name of the agent in runs."""

    def __init__(self, session: ImportedSession, sizes: Mapping[Path, int], *, is_quiet: bool) -> None:
        self.session = session
        self.lines = 0
        self.known = 0
        self.left = 0
        """The number of lines that wait for something that is not written yet."""
        self.bad = BadLines()
        self.unknown: Counter[str] = Counter()
        self.turns: list[Turn] = []
        self.project = ""
        self.is_over = True
        self._sizes = sizes
        self._is_quiet = is_quiet
        self._waiting: set[str] = set()

    def read(self) -> None:
        """Read the files."""
        raise NotImplementedError

    @property
    def state(self) -> dict[str, Any]:
        """The state of the thread's checkpoints, beside their messages."""
        raise NotImplementedError

    def start_run(self, id: str, ts_us: int, meta: Mapping[str, Any]) -> tuple[Run, SessionRecorder]:
        """Start a run, unless it is stored already; return it and its recorder."""
        session, run_id = self.session, valid_id(id)
        run = session.run(run_id, agent=self.agent, meta={name: each for name, each in meta.items() if each})
        if run_id not in session.known:
            session.notes.at_us = ts_us
            run.start()
        if not session.is_foreign(run_id):
            session.tally.run(self.project, ts_us)
        usage = session.count_usage(self.project)
        return run, SessionRecorder(run, is_live=False, known=session.known.keys(), on_usage=usage)

    def end_run(self, run: Run, ts_us: int, status: str) -> None:
        """End a run, unless it is stored already."""
        if run.id not in self.session.known:
            self.session.notes.at_us = ts_us
            run.end(status=status)

    def follow(self, parent: int | None, keep: int, *, id: str, ts_us: int) -> Turn:
        """Begin a turn that continues from the first ``keep`` messages of another one, and return it."""
        compactions = () if parent is None else self.turns[parent].compactions
        self.turns.append(
            Turn(id=id, began_us=ts_us, parent=parent, keep=keep, said=[], compactions=compactions)
        )
        return self.turns[-1]

    def compact(
        self, parent: int, keep: int, made: Summary, *, id: str, ts_us: int, upto: int | None = None
    ) -> bool:
        """Begin a turn with a compaction of the conversation; return whether there is anything to compact.

        It stands for the first ``upto`` messages, or for all.
        """
        compaction = compaction_of(
            made,
            self._conversation(parent, keep),
            self.turns[parent].compactions,
            upto=upto,
            id=id,
            source=self.session.tool,
            now_us=ts_us,
        )
        if compaction is None:
            return False
        turn = self.follow(parent, keep, id=id, ts_us=ts_us)
        turn.compactions += (compaction,)
        turn.note = f"compact: {compaction.upto - compaction.keeps} of {keep} messages"
        return True

    def _conversation(self, turn: int, length: int) -> list[dict[str, Any]]:
        """Return the first messages of the conversation after a turn."""
        parts: list[list[dict[str, Any]]] = []
        at: int | None = turn
        while at is not None:
            each = self.turns[at]
            parts.append(each.said[: max(length - each.keep, 0)])
            length = min(length, each.keep)
            at = each.parent
        return [message for part in reversed(parts) for message in part]

    def count_lines(self, rows: Sequence[str]) -> None:
        """Count the lines, given the id of each line's row."""
        new = [id_ for id_ in rows if id_ not in self.session.known]
        self.lines = len(rows)
        self.known = self.lines - len(new)
        self.left = sum(each in self._waiting for each in new)


ReaderFactory = Callable[..., SessionReader]
"""A subclass of `SessionReader`, with the arguments of its own already applied."""


class ImportedSession:
    """One session while it is imported. ``id`` is the tool's name for it."""

    def __init__(self, store: Store, tool: str, id: str) -> None:
        self.store = store
        self.tool = tool
        self.thread = f"{tool}/{id}"
        self.key = thread_key(self.thread, "")
        self.scope = str(Scope("", "thread", self.thread))
        self.notes = BatchRecorder()
        self.tally = Tally()
        self.known: dict[str, str | None] = {}
        """The ids that are stored already, and the thread of each."""
        self.last_us = 0

    @property
    def ref(self) -> str:
        """The name of the ref that describes the imported files."""
        return f"import/{self.thread}"

    def stamp(self) -> FilesStamp | None:
        """Return what the last import stored."""
        found = self.store.engine.refs(self.store.space, [self.ref]).get(self.ref)
        return None if found is None else msgspec.convert(decode_json(found.value), FilesStamp)

    def look_up(self, ids: Iterable[str], *, since_us: int, until_us: int) -> None:
        """Find out which of these ids are stored, by this session or by one that was copied."""
        wanted = list(dict.fromkeys(valid_id(each) for each in ids))
        for start in range(0, len(wanted), _IDS_A_QUERY):
            chosen = tuple(wanted[start : start + _IDS_A_QUERY])
            query = EventQuery(ids=chosen, since_us=since_us, until_us=until_us + 1)
            page = self.store.engine.scan(self.store.space, query, limit=_IDS_A_QUERY * 2)
            self.known.update({record.event.id: record.event.thread for record in page.records})

    def look_up_run(self, run_id: str) -> None:
        """Find out which ids of a run are stored."""
        records = each_record(self.store.engine, self.store.space, EventQuery(run=run_id))
        self.known.update({record.event.id: record.event.thread for record in records})

    def is_foreign(self, id: str) -> bool:
        """Return whether another session has it: tools copy the conversation when a session is resumed."""
        return id in self.known and self.known[id] != self.key

    def run(self, id: str, *, agent: str, meta: Mapping[str, Any]) -> Run:
        """Return a run of this session, which starts at the time of ``notes``."""
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
        """Store a line unchanged, in the journal of the thread."""
        if id in self.known:
            return
        text = encode(line.text.decode("utf-8", "replace"))

        def note(draft: Draft) -> None:
            draft.event(
                Event(
                    id=id,
                    kind=f"{self.tool}.{kind}"[:MAX_ID_CHARS],
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
        """Return a function that counts the tokens of a project, except those of copied messages."""

        def used(id: str, ts_us: int, model: str | None, usage: Usage) -> None:
            if not self.is_foreign(id):
                self.tally.used(project, ts_us, model, usage)

        return used

    def write(self, stamp: FilesStamp) -> None:
        """Write everything, and last the ref that describes the files."""

        def remember(draft: Draft) -> None:
            draft.set_ref(self.ref, encode_json(msgspec.to_builtins(stamp)), scope=self.scope)

        self.notes.write(self.store, remember)

    def write_thread(self, turns: Sequence[Turn], state: Mapping[str, Any]) -> bool:
        """Write the conversation, one checkpoint per turn; return whether the thread is up to date.

        It is not if the thread was continued in the store, or if another process is importing it.
        """
        if not turns:
            return True
        histories = HistoryWriter(self.store)
        ids = [
            derived_checkpoint_id(turn.began_us, self.tool, self.thread, turn.id, str(turn.length))
            for turn in turns
        ]
        try:
            self._add_checkpoints(histories, turns, ids, state)
            histories.set_head(
                ImportedHead(
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
        self, histories: HistoryWriter, turns: Sequence[Turn], ids: Sequence[str], state: Mapping[str, Any]
    ) -> None:
        there = histories.owners(ids)
        steps: list[int] = []
        for turn, id_ in zip(turns, ids, strict=True):
            parent = turn.parent
            steps.append(0 if parent is None else steps[parent] + 1)
            if id_ in there:
                continue
            histories.add(
                ImportedCheckpoint(
                    id=id_,
                    thread=self.thread,
                    namespace="",
                    parent=None if parent is None else ids[parent],
                    step=steps[-1],
                    created_at_us=turn.began_us,
                    lists=_lists(turn, () if parent is None else turns[parent].compactions),
                    state=state,
                    metadata={_IMPORTER: self.tool},
                    note=turn.note or _title(turn.said),
                    tags=(self.tool,),
                )
            )

    def _own_head(self) -> list[str]:
        """Return the head of the thread, if an import made it: its turn may have grown since."""
        head = self.store.thread(self.thread).head
        return [head.id] if head is not None and head.metadata.get(_IMPORTER) == self.tool else []


def _lists(turn: Turn, before: Sequence[Compaction]) -> dict[str, ImportedList]:
    """Return the lists of a turn's checkpoint; ``before`` are the compactions of the turn that it follows."""
    lists = {MESSAGES: ImportedList(keep=turn.keep, add=turn.said)}
    if turn.compactions:
        new = [stored_form(each) for each in turn.compactions[len(before) :]]
        lists[COMPACTIONS] = ImportedList(keep=len(before), add=new)
    return lists


def stat_files(paths: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Return size and modification time of a session's files, by name. They may be growing."""
    found: dict[str, tuple[int, int]] = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error
        found[path.name] = status.st_size, status.st_mtime_ns
    return found


def is_quiet(files: Mapping[str, tuple[int, int]], now_us: int) -> bool:
    """Return whether nothing was written to a session for a while."""
    newest = max((changed_ns for _, changed_ns in files.values()), default=0)
    return now_us - newest // 1000 > QUIET_SECONDS * 1_000_000


def title_of(text: Any) -> str:
    """Return the start of a text, in one line."""
    return " ".join(str(text).split())[:_TITLE_CHARS]


def _title(said: Sequence[Mapping[str, Any]]) -> str | None:
    for message in said:
        content: Any = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            return title_of(content) or None
    return None


def derived_checkpoint_id(ts_us: int, *parts: str | bytes) -> str:
    """Return a checkpoint id that is derived from its source, and sorts by time among other ids."""
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    number = (ts_us // 1000) << (8 * _DIGEST_BYTES) | int.from_bytes(digest.digest()[:_DIGEST_BYTES], "big")
    return PREFIX + "".join(_ALPHABET[number >> (5 * place) & 31] for place in reversed(range(_CHARS)))
