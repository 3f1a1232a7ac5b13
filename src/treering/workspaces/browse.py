"""Look into a stored snapshot without restoring it: list, read, select and verify."""

from __future__ import annotations

import os
import stat as stats
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import msgspec

from treering.core.tree import FileEntry, FolderEntry, LinkEntry, TreeEntry
from treering.errors import Corrupt, InvalidInput, NotFound, TreeringError
from treering.secret_scan import FoundSecret, scan_secrets
from treering.workspaces.ignore import gitignore_spec
from treering.workspaces.scan import FileProgress
from treering.workspaces.snapshot import Snapshot, SnapshotPath, batches, split

_WILDCARDS: Final = frozenset("*?[")


class SnapshotEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file, folder or link in a snapshot.

    ``hash`` is the object of a small file, or the tree of a folder.
    """

    path: str
    kind: Literal["file", "folder", "link"]
    mode: int
    size: int = 0
    target: str | None = None
    hash: str | None = None

    @property
    def mode_text(self) -> str:
        """The mode as ``ls -l`` prints it."""
        bits = {"file": stats.S_IFREG, "folder": stats.S_IFDIR, "link": stats.S_IFLNK}[self.kind]
        return stats.filemode(bits | self.mode)


def ls(snapshot: Snapshot, path: str, *, recursive: bool) -> Iterator[SnapshotEntry]:
    """List a folder of the snapshot; a file or a link is listed as itself."""
    found = snapshot.find(path)
    above = "/".join(split(path))
    if found is not None and not isinstance(found, FolderEntry):
        yield to_entry(above, found)
        return
    if recursive:
        yield from (to_entry(each.path, each.entry) for each in snapshot.walk(found, above))
        return
    tree = snapshot.top if found is None else snapshot.folder(found.tree)
    for each in tree.entries:
        yield to_entry(f"{above}/{each.name}" if above else each.name, each)


def stat(snapshot: Snapshot, path: str) -> SnapshotEntry:
    """Return one entry; the root is a folder without a name."""
    found = snapshot.find(path)
    if found is None:
        return SnapshotEntry(path="", kind="folder", mode=0o755, hash=snapshot.root)
    return to_entry("/".join(split(path)), found)


def stream(snapshot: Snapshot, path: str, *, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Iterate over the bytes of one file, or a range of them; only one object is in memory at a time."""
    found = snapshot.find(path)
    if not isinstance(found, FileEntry):
        what = "a link" if isinstance(found, LinkEntry) else "a folder"
        raise InvalidInput(f"{path!r} is {what} in snapshot {snapshot.root[:12]}; only a file can be read")
    if start < 0 or (stop is not None and stop < start):
        raise InvalidInput(f"the range from {start} to {stop} is not valid; use 0 <= start <= stop")
    return snapshot.read(found, path, start=start, stop=stop)


def to_entry(path: str, entry: TreeEntry) -> SnapshotEntry:
    """Return an entry of a tree in the form that users see."""
    if isinstance(entry, FileEntry):
        hashes = entry.hashes
        only = hashes[0] if len(hashes) == 1 else None
        return SnapshotEntry(path=path, kind="file", mode=entry.mode, size=entry.size, hash=only)
    if isinstance(entry, FolderEntry):
        return SnapshotEntry(path=path, kind="folder", mode=entry.mode, hash=entry.tree)
    size = len(os.fsencode(entry.target))
    return SnapshotEntry(path=path, kind="link", mode=0o777, target=entry.target, size=size)


def select(snapshot: Snapshot, wanted: str | Iterable[str]) -> list[SnapshotPath]:
    """Return the entries that paths and patterns select; a folder selects everything below it.

    A string with ``*``, ``?`` or ``[`` is first tried as a path (``[id].tsx`` is a file name), then as a
    pattern in .gitignore syntax. Each must select something, else `NotFound`.
    """
    found: dict[str, TreeEntry] = {}
    patterns: list[str] = []
    for each in [wanted] if isinstance(wanted, str) else list(wanted):
        try:
            entry = snapshot.find(each)
        except NotFound:
            if not _WILDCARDS & set(each):
                raise
            patterns.append(each)
            continue
        path = "/".join(split(each))
        if entry is not None:
            found[path] = entry
        if entry is None or isinstance(entry, FolderEntry):
            found.update({below.path: below.entry for below in snapshot.walk(entry, path)})
    if patterns:
        found.update(_matching(snapshot, patterns))
    return [SnapshotPath(path, entry) for path, entry in found.items()]


def _matching(snapshot: Snapshot, patterns: list[str]) -> dict[str, TreeEntry]:
    specs = [(each, gitignore_spec((each,))) for each in patterns]
    found: dict[str, TreeEntry] = {}
    unmatched = dict.fromkeys(patterns)
    for each in snapshot.walk():
        path = each.path + "/" if isinstance(each.entry, FolderEntry) else each.path
        for pattern, spec in specs:
            if spec.match_file(path):
                found[each.path] = each.entry
                unmatched.pop(pattern, None)
    if unmatched:
        raise NotFound(f"no path in snapshot {snapshot.root[:12]} matches {next(iter(unmatched))!r}")
    return found


class SnapshotProblem(msgspec.Struct, frozen=True):
    """A path that cannot be restored, and why."""

    path: str
    message: str


class SnapshotCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. ``size_bytes`` were read and verified."""

    id: str
    files: int
    size_bytes: int
    problems: tuple[SnapshotProblem, ...]

    @property
    def ok(self) -> bool:
        """Whether the whole snapshot can be restored."""
        return not self.problems


def check_snapshot(
    snapshot: Snapshot,
    *,
    check_rules: bool = True,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> SnapshotCheck:
    """Read and verify every object of a snapshot, and report all problems that a restore would have.

    ``check_rules`` is for roots: a folder that was taken as part of another snapshot has no rules of its own.
    """
    problems: list[SnapshotProblem] = []
    files = list(_list_files(snapshot, problems, check_rules=check_rules))
    found: dict[str, SnapshotProblem] = {}
    size = 0
    for done, (path, entry, read) in enumerate(_read_all(snapshot, files), 1):
        if isinstance(read, TreeringError):
            found[path] = SnapshotProblem(path, str(read))
        elif read != entry.size:
            found[path] = SnapshotProblem(path, f"has {read} bytes, not {entry.size}")
        else:
            size += read
        if on_progress is not None:
            on_progress(FileProgress(done, size, len(files)))
    problems += [found[path] for path, _ in files if path in found]
    return SnapshotCheck(id=snapshot.root, files=len(files), size_bytes=size, problems=tuple(problems))


def snapshot_secrets(
    snapshot: Snapshot, *, on_progress: Callable[[FileProgress], None] | None = None
) -> Iterator[FoundSecret]:
    """Read every file of a snapshot, and yield what looks like keys and passwords in them."""
    size = 0
    for done, each in enumerate(snapshot.walk(), 1):
        if not isinstance(each.entry, FileEntry):
            continue
        for found in scan_secrets(snapshot.read(each.entry, each.path)):
            yield FoundSecret(path=each.path, rule=found.rule, line=found.line, hint=found.hint)
        size += each.entry.size
        if on_progress is not None:
            on_progress(FileProgress(done, size))


def _list_files(
    snapshot: Snapshot, problems: list[SnapshotProblem], *, check_rules: bool
) -> Iterator[tuple[str, FileEntry]]:
    try:
        rules = snapshot.rules if check_rules else None
        for each in snapshot.walk():
            is_folder = isinstance(each.entry, FolderEntry)
            if rules is not None and rules.reason(each.path, is_folder=is_folder) is not None:
                problems.append(SnapshotProblem(each.path, "the snapshot's own rules exclude it"))
            if isinstance(each.entry, FileEntry):
                yield each.path, each.entry
    except (Corrupt, NotFound) as error:
        problems.append(SnapshotProblem("", f"a folder cannot be read: {error}"))


def _read_all(
    snapshot: Snapshot, files: list[tuple[str, FileEntry]]
) -> Iterator[tuple[str, FileEntry, int | TreeringError]]:
    """Yield each file with the number of bytes read, or the error.

    As in a restore, a thread reads large files.
    """
    large = [each for each in files if len(each[1].content) > 1]
    pool = ThreadPoolExecutor(1, "treering-large")
    try:
        reads = [pool.submit(_read_size, snapshot, entry) for _, entry in large]
        yield from ((path, entry, len(entry.data or b"")) for path, entry in files if not entry.content)
        yield from _read_small(snapshot, [each for each in files if len(each[1].content) == 1])
        for (path, entry), read in zip(large, reads, strict=True):
            yield path, entry, read.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_small(
    snapshot: Snapshot, files: list[tuple[str, FileEntry]]
) -> Iterator[tuple[str, FileEntry, int | TreeringError]]:
    waiting = iter(files)
    for names in batches(entry for _, entry in files):
        try:
            found = snapshot.contents(names)
        except (Corrupt, NotFound):  # one of them is damaged: find out which, file by file
            found = None
        for name, (path, entry) in zip(names, waiting, strict=False):  # takes as many files as names
            yield path, entry, _read_size(snapshot, entry) if found is None else len(found[name].data)


def _read_size(snapshot: Snapshot, entry: FileEntry) -> int | TreeringError:
    size = 0
    try:
        for names in batches([entry]):
            found = snapshot.contents(names)
            size += sum(len(found[name].data) for name in names)
    except (Corrupt, NotFound) as error:
        return error
    return size
