"""Copy: transfer a space from any engine to any other, row by row.

Sequence numbers, versions and times are kept, so a copy equals its source and is not a replay of it. Data is
transferred as slices (`core.records`), and loading a slice twice is harmless. After each slice its position
is stored in the *target* as a note, so an interrupted copy resumes where it stopped, even on another machine.
Writers of the source may continue: passes are repeated until one saw no new commit, and rows that already
exist are not written again.

**Invariant:** the note is written before the first slice, and marked ``finished`` only after the last one was
loaded and both sides were compared. Rows without a note, rows of another source, or commits after a finished
note are therefore foreign data, and the copy refuses to touch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeVar

import msgspec

from treering.core import failpoints
from treering.core.batch import Draft
from treering.core.engine import Engine
from treering.core.ids import Scope, new_id
from treering.core.query import MAX_PAGE, Erasure, EventQuery, each_record, each_ref, each_scope, last_seq
from treering.core.records import Slice
from treering.errors import Conflict, InvalidInput, ReadOnly
from treering.maintenance.stats import RESERVED, is_unwritten
from treering.maintenance.verify import verify

MAX_PASSES: Final = 20
"""The copy gives up after this many passes if the source never stops changing."""

_NOTES: Final = RESERVED + "copy"
_IDENTITY: Final = "/identity"  # not a valid name of a space, so it cannot be a note
_SCOPE: Final = str(Scope("", "store", "copy"))
_COUNTED: Final = ("commits", "events", "refs", "lists", "items", "texts")

_LOADED: Final = failpoints.declare("copy.loaded", "a slice was loaded, its position is not stored yet")
_NOTED: Final = failpoints.declare("copy.noted", "the position after a slice was stored in the target")
_COMPARED: Final = failpoints.declare(
    "copy.compared", "both sides are equal, the copy is not marked as finished yet"
)


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a copy. ``of_rows`` is the size of the source at the start; later passes exceed it.

    A backup by the engine copies bytes, of which it knows the number: those of the database, then those of
    the packs. Then its rows are verified. ``phase`` says which of these it is.
    """

    space: str
    passes: int
    rows: int
    of_rows: int
    bytes: int
    of_bytes: int | None = None
    phase: Literal["rows", "database", "packs", "verifying"] = "rows"


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a copy. Rows and bytes count only this call, so they are fewer if it resumed."""

    source: str
    target: str
    space: str
    into: str
    rows: int
    bytes: int
    passes: int
    resumed: bool
    last_seq: int


_T = TypeVar("_T", int, str)

OnCopy = Callable[[CopyProgress], None]


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a copy into one space: after ``position`` of the pass that began at ``seq``."""

    source: str
    space: str
    seq: int
    position: str | None = None
    finished: bool = False


def copy_space(
    source: Engine, target: Engine, *, space: str, into: str, on_progress: OnCopy | None = None
) -> CopyReport:
    """Make ``into`` on the target equal to ``space`` on the source, resuming an earlier copy."""
    return _Copy(source, target, space=space, into=into, on_progress=on_progress).run()


class _Copy:
    def __init__(
        self, source: Engine, target: Engine, *, space: str, into: str, on_progress: OnCopy | None
    ) -> None:
        self.source = source
        self.target = target
        self.space = space
        self.into = into
        self.on_progress = on_progress
        self.rows = 0
        self.bytes = 0
        self.passes = 0

    def run(self) -> CopyReport:
        if is_unwritten(self.source, self.space):
            return self._report(resumed=False, seq=0)
        identity = _identity(self.source)
        old = self._earlier_note(identity)
        note = _Note(source=identity, space=self.space, seq=last_seq(self.source, self.space))
        if old is not None and not old.finished and old.seq == note.seq:
            note = old  # if the source has changed, rows before the position may be new, so start over
        self._save(note)
        done = self._until_equal(note)
        failpoints.hit(_COMPARED)
        self.target.reindex(self.into)
        self._save(msgspec.structs.replace(done, position=None, finished=True))
        return self._report(resumed=old is not None, seq=done.seq)

    def _report(self, *, resumed: bool, seq: int) -> CopyReport:
        return CopyReport(
            source=self.source.url,
            target=self.target.url,
            space=self.space,
            into=self.into,
            rows=self.rows,
            bytes=self.bytes,
            passes=self.passes,
            resumed=resumed,
            last_seq=seq,
        )

    def _until_equal(self, note: _Note) -> _Note:
        pruned = False
        while self.passes < MAX_PASSES:
            self._one_pass(note)
            differences: list[str] = []
            if last_seq(self.source, self.space) == note.seq:
                differences = self._differences()
                if not differences and last_seq(self.source, self.space) == note.seq:
                    return note
            if differences and last_seq(self.source, self.space) == note.seq:
                if pruned:
                    raise Conflict(
                        f"the copy in {self.target.url} (space {self.into!r}) differs from its source: "
                        f"{'; '.join(differences)}. Copy into an empty store instead"
                    )
                self._prune()
                pruned = True
            note = _Note(source=note.source, space=note.space, seq=last_seq(self.source, self.space))
        raise Conflict(
            f"{self.source.url} (space {self.space!r}) was written to during each of {MAX_PASSES} passes; "
            "pause its writers and copy again; it resumes from here"
        )

    def _one_pass(self, note: _Note) -> None:
        self.passes += 1
        copy_files: Callable[[Engine, str], None] | None = getattr(self.source, "copy_files", None)
        if copy_files is not None:  # archived days, which the rows refer to
            copy_files(self.target, self.space)
        stats = self.source.stats(self.space)
        of_rows = stats.objects + sum(getattr(stats, name) for name in _COUNTED)
        for part in self.source.export(self.space, after=note.position):
            self.target.load(self.into, part)
            failpoints.hit(_LOADED)
            self._save(msgspec.structs.replace(note, position=part.position))
            failpoints.hit(_NOTED)
            self.rows += _row_count(part)
            self.bytes += _byte_count(part)
            if self.on_progress is not None:
                self.on_progress(
                    CopyProgress(
                        space=self.space,
                        passes=self.passes,
                        rows=self.rows,
                        of_rows=of_rows,
                        bytes=self.bytes,
                    )
                )

    def _earlier_note(self, identity: str) -> _Note | None:
        """Return the note of an earlier copy; raise `Conflict` if nothing may be copied there."""
        if self.space == self.into and _known_identity(self.target) == identity:
            raise InvalidInput(f"{self.target.url} is the source itself, or a backup of it")
        there = f"{self.target.url} (space {self.into!r})"
        note = self._load_note()
        seq = last_seq(self.target, self.into)
        if note is None:
            if seq:
                raise Conflict(
                    f"{there} is not empty and not a copy of this store; choose another target or namespace"
                )
            return None
        if (note.source, note.space) != (identity, self.space):
            raise Conflict(f"{there} is a copy of another store or space; choose another target or namespace")
        if seq > (note.seq if note.finished else last_seq(self.source, self.space)):
            raise Conflict(f"{there} was written to since it was copied; choose another target or namespace")
        return note

    def _load_note(self) -> _Note | None:
        ref = self.target.refs(_NOTES, [self.into]).get(self.into)
        return None if ref is None else msgspec.json.decode(ref.value, type=_Note)

    def _save(self, note: _Note) -> None:
        draft = Draft(_NOTES)
        draft.set_ref(self.into, msgspec.json.encode(note), scope=_SCOPE)
        self.target.commit(draft.batch())

    def _differences(self) -> list[str]:
        ours, theirs = self.source.stats(self.space), self.target.stats(self.into)
        found = [
            f"{getattr(theirs, name)} {name} instead of {getattr(ours, name)}"
            for name in _COUNTED
            if getattr(ours, name) != getattr(theirs, name)
        ]
        seq, copied = last_seq(self.source, self.space), last_seq(self.target, self.into)
        if seq != copied:
            found.append(f"its last sequence number is {copied} instead of {seq}")
        if not _same_refs(self.source, self.space, self.target, self.into):
            found.append("refs have different values")
        return found or self._new_problems()

    def _new_problems(self) -> list[str]:
        """Return problems of the copy that the source does not have. Derived data is rebuilt later."""
        copied = verify(self.target, self.into, read_content=False)
        problems = [problem for problem in copied.problems if problem.kind != "derived"]
        if problems:
            old = verify(self.source, self.space, read_content=False).problems
            problems = [problem for problem in problems if problem not in old]
        return [f"{problem.where}: {problem.detail}" for problem in problems]

    def _prune(self) -> None:
        """Remove from the target what was forgotten or dropped in the source since it was copied."""
        gone = _only_in_second(
            each_scope(self.source, self.space, ""), each_scope(self.target, self.into, "")
        )
        if gone:
            self.target.erase(self.into, Erasure(scopes=tuple(gone), cascade=True, secure=True))
        names = _only_in_second(
            (ref.name for ref in each_ref(self.source, self.space, "")),
            (ref.name for ref in each_ref(self.target, self.into, "")),
        )
        seqs = _only_in_second(_seqs(self.source, self.space), _seqs(self.target, self.into))
        if names:
            self.target.erase(self.into, Erasure(refs=tuple(names)))
        for start in range(0, len(seqs), MAX_PAGE):
            self.target.erase(self.into, Erasure(event_seqs=tuple(seqs[start : start + MAX_PAGE])))


def _identity(engine: Engine) -> str:
    """Return the unique id of a store, creating it on first use."""
    known = _known_identity(engine)
    if known is not None:
        return known
    draft = Draft(_NOTES)
    draft.set_ref(_IDENTITY, new_id().encode(), scope=_SCOPE, expect="absent")
    try:
        engine.commit(draft.batch())
    except Conflict:
        pass  # another process created it
    except ReadOnly:
        return engine.url
    return _known_identity(engine) or engine.url


def _known_identity(engine: Engine) -> str | None:
    ref = engine.refs(_NOTES, [_IDENTITY]).get(_IDENTITY)
    return None if ref is None else ref.value.decode()


def _row_count(part: Slice) -> int:
    rows = (
        part.objects,
        part.commits,
        part.bodies,
        part.events,
        part.lists,
        part.items,
        part.texts,
        part.refs,
    )
    return sum(map(len, rows))


def _byte_count(part: Slice) -> int:
    """Return the size of the content in a slice; its rows are small in comparison."""
    total = sum(len(content.data) for content in part.objects)
    total += sum(len(content.data) for body in part.bodies for content in body.slots)
    total += sum(len(item.item.data) for item in part.items if not isinstance(item.item, str))
    return total + sum(len(row.ref.value) for row in part.refs)


def _same_refs(source: Engine, space: str, target: Engine, into: str) -> bool:
    ours, theirs = each_ref(source, space, ""), each_ref(target, into, "")
    return all(ref == next(theirs, None) for ref in ours) and next(theirs, None) is None


def _seqs(engine: Engine, space: str) -> Iterator[int]:
    return (record.seq for record in each_record(engine, space, EventQuery(), limit=MAX_PAGE))


def _only_in_second(first: Iterator[_T], second: Iterator[_T]) -> list[_T]:
    """Return the items that only the second of two sorted streams has."""
    only: list[_T] = []
    mine = next(first, None)
    for each in second:
        while mine is not None and mine < each:
            mine = next(first, None)
        if mine != each:
            only.append(each)
    return only
