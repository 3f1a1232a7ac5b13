"""Checking a snapshot: everything that it names is there, hashes to its name, and adds up.

A restore would find the same out, file by file; this says it beforehand, and says all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from treering.core.tree import FileEntry, FolderEntry
from treering.errors import Corrupt, NotFound, TreeringError
from treering.views.workspaces.feeding import BATCH_OBJECTS, Feed
from treering.views.workspaces.progress import FileProgress
from treering.views.workspaces.stored import Snapshot


class SnapshotProblem(msgspec.Struct, frozen=True):
    """A path that could not be restored, and why."""

    path: str
    message: str


class SnapshotCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found. ``size_bytes`` were read and rehashed."""

    id: str
    files: int
    size_bytes: int
    problems: tuple[SnapshotProblem, ...]

    @property
    def ok(self) -> bool:
        """Whether the snapshot can be restored as a whole."""
        return not self.problems


def check(snapshot: Snapshot, *, on_progress: Callable[[FileProgress], None] | None = None) -> SnapshotCheck:
    """Read everything that a snapshot names."""
    problems: list[SnapshotProblem] = []
    files = list(_files(snapshot, problems))
    size = 0
    for at, (path, entry, found) in enumerate(_read(snapshot, files)):
        if isinstance(found, TreeringError):
            problems.append(SnapshotProblem(path, str(found)))
        elif found != entry.size:
            problems.append(SnapshotProblem(path, f"it has {found} bytes, not {entry.size}"))
        else:
            size += found
        if on_progress is not None:
            on_progress(FileProgress(at + 1, size))
    return SnapshotCheck(id=snapshot.root, files=len(files), size_bytes=size, problems=tuple(problems))


def _files(snapshot: Snapshot, problems: list[SnapshotProblem]) -> Iterator[tuple[str, FileEntry]]:
    try:
        rules = snapshot.rules
        for each in snapshot.walk():
            if rules.reason(each.path, is_folder=isinstance(each.entry, FolderEntry)) is not None:
                problems.append(SnapshotProblem(each.path, "the snapshot's own rules leave it out"))
            if isinstance(each.entry, FileEntry):
                yield each.path, each.entry
    except (Corrupt, NotFound) as error:
        problems.append(SnapshotProblem("", f"a folder cannot be read: {error}"))


def _read(
    snapshot: Snapshot, files: list[tuple[str, FileEntry]]
) -> Iterator[tuple[str, FileEntry, int | TreeringError]]:
    """Each file with the bytes that it has or the error that it raises."""
    at = 0
    while at < len(files):
        try:
            with Feed(snapshot, (entry for _, entry in files[at:])) as feed:
                for path, entry in files[at:]:
                    found = sum(map(len, feed.take(entry)))
                    at += 1
                    yield path, entry, found
        except (Corrupt, NotFound):
            # Something in this batch is damaged; find out what, file by file, then go on behind it.
            stop = at + BATCH_OBJECTS
            for path, entry in files[at:stop]:
                at += 1
                yield path, entry, _alone(snapshot, path, entry)


def _alone(snapshot: Snapshot, path: str, entry: FileEntry) -> int | TreeringError:
    try:
        return sum(map(len, snapshot.read(entry, path)))
    except (Corrupt, NotFound) as error:
        return error
