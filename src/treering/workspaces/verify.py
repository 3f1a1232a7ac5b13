"""Checking a snapshot: everything that it names is there, hashes to its name, and adds up.

A restore would find the same out, file by file; this says it beforehand, and says all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from treering.core.tree import FileEntry, FolderEntry
from treering.errors import Corrupt, NotFound, TreeringError
from treering.workspaces.restore_files import batches
from treering.workspaces.scan import FileProgress
from treering.workspaces.snapshot import Snapshot


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
    """Read everything that a snapshot names; a second thread reads the large files, as in a restore."""
    problems: list[SnapshotProblem] = []
    files = list(_files(snapshot, problems))
    found: dict[str, SnapshotProblem] = {}
    size = 0
    for done, (path, entry, read) in enumerate(_read(snapshot, files), 1):
        if isinstance(read, TreeringError):
            found[path] = SnapshotProblem(path, str(read))
        elif read != entry.size:
            found[path] = SnapshotProblem(path, f"it has {read} bytes, not {entry.size}")
        else:
            size += read
        if on_progress is not None:
            on_progress(FileProgress(done, size))
    problems += [found[path] for path, _ in files if path in found]
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
    """Each file with the bytes that it has or the error that it raises; the large ones come last."""
    large = [each for each in files if len(each[1].content) > 1]
    pool = ThreadPoolExecutor(1, "treering-large")
    try:
        reads = [pool.submit(_size, snapshot, entry) for _, entry in large]
        yield from ((path, entry, 0) for path, entry in files if not entry.content)
        yield from _read_small(snapshot, [each for each in files if len(each[1].content) == 1])
        for (path, entry), read in zip(large, reads, strict=True):
            yield path, entry, read.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_small(
    snapshot: Snapshot, files: list[tuple[str, FileEntry]]
) -> Iterator[tuple[str, FileEntry, int | TreeringError]]:
    """The same for files of one object each."""
    waiting = iter(files)
    for names in batches(entry for _, entry in files):
        try:
            found = snapshot.contents(names)
        except (Corrupt, NotFound):  # something in this batch is damaged: find out what, file by file
            found = None
        for name, (path, entry) in zip(names, waiting, strict=False):  # as many files as there are names
            yield path, entry, _size(snapshot, entry) if found is None else len(found[name].data)


def _size(snapshot: Snapshot, entry: FileEntry) -> int | TreeringError:
    """How many bytes a file has, all read and rehashed, or what is wrong with one of them."""
    size = 0
    try:
        for names in batches([entry]):
            found = snapshot.contents(names)
            size += sum(len(found[name].data) for name in names)
    except (Corrupt, NotFound) as error:
        return error
    return size
