"""Take a snapshot of a folder, and read a stored one.

**Taking.** Files that the stat cache does not know are read once, straight into staging, each folder's tree
after what is in it, up to one root tree. A snapshot therefore writes only what changed. Its id is the name of
the root tree: equal folders have equal ids on any machine, and touching a file changes nothing. Author and
time are not part of it; they are in the journal, in an event of their own or in the checkpoint that the
snapshot belongs to. **Invariant:** the commit that names a root requires the root, everything that was staged
for it, and the roots that the stat cache relied on. If a garbage collection removed one of them in between,
the commit is refused and the folder is read again from scratch.

**Reading.** Folders are read on demand and every hash is verified. Trees may come from a store that someone
else wrote, so nothing in them is trusted: the tree format checks names, `Limits` bounds depth and the number
of entries. A tree that names the same subtree ten times on every level costs a few bytes and would expand
without end, so entries are counted, by reading each tree once, before any list of them is made.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from treering.core.content import Address, Content, is_object_name, object_address
from treering.core.text import readable
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, TreeEntry, decode_tree
from treering.errors import Corrupt, InvalidInput, MissingObjects, NotFound
from treering.files import translate_os_errors
from treering.secret_scan import FoundSecret
from treering.workspaces.ignore import IGNORE_FILE, LISTS_DIGEST, RESERVED, Rules, make_rules, read_rules
from treering.workspaces.scan import (
    FILE_FLAGS,
    CachedFolder,
    CachedWorkspace,
    FileProgress,
    LeftOut,
    Limits,
    Scan,
    StatCache,
    found_secrets,
)

T = TypeVar("T")

LISTED: Final = 100
"""How many left-out or changed paths a record lists; the record also has the full count."""
BATCH_BYTES: Final = 4 * 1024 * 1024
BATCH_OBJECTS: Final = 500

_TRIES: Final = 3
_TREES_AT_ONCE: Final = 256
_KEPT_ENTRIES: Final = 50_000
"""Trees with so many entries are kept from counting them, so that they are not read twice."""
_IGNORE_BYTES: Final = 1024 * 1024
_RULES_BYTES: Final = 1024 * 1024


class ObjectStore(Protocol):
    """What snapshots need of a store. Every engine has these three, see `treering.core.engine.Engine`."""

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that requires them; return their names, in order."""
        ...

    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Return which of these objects are not stored."""
        ...

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Return verified content, in the order of the addresses."""
        ...


@runtime_checkable
class Prefetching(Protocol):
    """An object store with high latency, which can fetch objects in the background."""

    def expect(self, names: Sequence[str]) -> None:
        """Start fetching these objects. A hint: nothing is guaranteed."""
        ...


class StagedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is staged, and what the commit that names it must require.

    ``read_files`` counts the files that had to be read. ``changed`` lists files that changed while they were
    read and may be torn; ``left_out`` lists what is missing from the snapshot although no pattern says so;
    ``secrets`` lists what looks like keys or passwords in the files.
    """

    root: str
    requires: tuple[str, ...]
    files: int
    size_bytes: int
    read_files: int
    left_out: tuple[LeftOut, ...]
    changed: tuple[str, ...]
    secrets: tuple[FoundSecret, ...]
    stale_temporaries: tuple[str, ...]
    cached: CachedWorkspace
    top: Tree | None
    """The root; ``None`` if it was stored before."""

    def warnings(self) -> dict[str, Any]:
        """Return metadata for the checkpoint that has these files; empty if all are in it and whole."""
        fields: dict[str, Any] = {}
        if self.left_out:
            fields["left_out"] = [[readable(each.path), each.reason] for each in self.left_out[:LISTED]]
        if self.changed:
            fields["changed"] = [readable(each) for each in self.changed[:LISTED]]
        if self.secrets:
            fields |= secrets_to_json(self.secrets)
        return {"workspace": fields} if fields else {}


def secrets_to_json(secrets: Sequence[FoundSecret]) -> dict[str, Any]:
    """Return the fields of a record that say which secrets are in its files."""
    return {
        "secrets": [[readable(each.path), each.rule, each.line, each.hint] for each in secrets[:LISTED]],
        "secrets_count": len(secrets),
    }


class SnapshotWriter:
    """Takes snapshots of folders into one space, using and updating their stat caches.

    ``has_all_of`` is for object stores in which a root may outlive the objects below it: it tells whether all
    objects of a cached workspace are stored.
    """

    def __init__(
        self,
        engine: ObjectStore,
        space: str,
        cache: StatCache,
        *,
        avoid: frozenset[tuple[int, int]] = frozenset(),
        has_all_of: Callable[[CachedWorkspace], bool] | None = None,
    ) -> None:
        self._engine = engine
        self._has_all_of = has_all_of
        self._space = space
        self._avoid = avoid
        self.cache = cache

    def stage_and_commit(
        self,
        folder: Path,
        commit: Callable[[StagedSnapshot], T],
        *,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        limits: Limits | None = None,
        seconds: float | None = None,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> T:
        """Stage a folder and let ``commit`` write what names it; return what ``commit`` returns.

        If ``commit`` raises `MissingObjects`, the folder is read again without the stat cache.
        """
        exclude, include = _as_tuple(exclude), _as_tuple(include)
        for tries_left in reversed(range(_TRIES)):
            rules = load_rules(folder, exclude=exclude, include=include)
            staged = self.stage(folder, rules, limits=limits, seconds=seconds, on_progress=on_progress)
            try:
                result = commit(staged)
            except MissingObjects:  # garbage was collected in between
                self.cache.drop(str(folder))
                if not tries_left:
                    raise
            else:
                self.cache.save(str(folder), staged.cached)
                return result
        raise AssertionError("the last try returned or raised")

    def stage(
        self,
        folder: Path,
        rules: Rules,
        *,
        limits: Limits | None = None,
        seconds: float | None = None,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> StagedSnapshot:
        """Stage everything in a folder that is new. Nothing refers to it before a commit does."""
        deadline = None if seconds is None else time.monotonic() + seconds
        cached = self._load_cache(folder, rules)
        scan = Scan(
            rules,
            cached=None if cached is None else cached.folder,
            avoid=self._avoid,
            limits=limits,
            deadline=deadline,
            on_progress=on_progress,
        )
        with open_folder(folder) as descriptor:
            names = self._engine.stage(self._space, scan.contents(descriptor))
        if trees := scan.trees():
            names += self._engine.stage(self._space, trees)
        walked = scan.folder
        if cached is not None and walked is cached.folder:
            now = cached
        else:
            now = CachedWorkspace(
                roots=(walked.tree,), patterns=rules.patterns, lists=LISTS_DIGEST, folder=walked
            )
        return StagedSnapshot(
            root=walked.tree,
            requires=tuple(
                dict.fromkeys((walked.tree, *(cached.roots if cached is not None else ()), *names))
            ),
            files=walked.count,
            size_bytes=walked.size,
            read_files=scan.read_files,
            left_out=tuple(sorted(scan.left_out, key=lambda each: each.path)),
            changed=tuple(sorted(scan.changed)),
            secrets=tuple(found_secrets(walked)),
            stale_temporaries=tuple(scan.stale_temporaries),
            cached=now,
            top=scan.top,
        )

    def inspect(
        self, folder: Path, rules: Rules, *, limits: Limits | None = None
    ) -> tuple[CachedFolder, tuple[LeftOut, ...], tuple[str, ...]]:
        """Scan a folder without storing anything; return it, what was left out, and stale temporaries."""
        cached = self._load_cache(folder, rules)
        scan = Scan(rules, cached=None if cached is None else cached.folder, avoid=self._avoid, limits=limits)
        with open_folder(folder) as descriptor:
            for _ in scan.contents(descriptor):
                pass
        return scan.folder, tuple(scan.left_out), tuple(scan.stale_temporaries)

    def _load_cache(self, folder: Path, rules: Rules) -> CachedWorkspace | None:
        cached = self.cache.load(str(folder))
        if cached is None or (cached.patterns, cached.lists) != (rules.patterns, LISTS_DIGEST):
            return None
        if self._engine.missing(self._space, cached.roots) or not (
            self._has_all_of is None or self._has_all_of(cached)
        ):
            self.cache.drop(str(folder))
            return None
        return cached


def load_rules(folder: Path, *, exclude: Iterable[str], include: Iterable[str]) -> Rules:
    """Return the current rules of a folder: its ignore file and the caller's patterns."""
    lines: list[str] = []
    with open_folder(folder) as descriptor:
        try:
            file = os.open(IGNORE_FILE, FILE_FLAGS, dir_fd=descriptor)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InvalidInput(
                f"{IGNORE_FILE} cannot be read ({error.strerror}); fix its permissions or remove it"
            ) from error
        else:
            try:
                text = os.read(file, _IGNORE_BYTES + 1)
            finally:
                os.close(file)
            if len(text) > _IGNORE_BYTES:
                raise InvalidInput(
                    f"{IGNORE_FILE} is larger than {_IGNORE_BYTES:,} bytes, which is no list of patterns"
                )
            lines = text.decode("utf-8", "surrogateescape").splitlines()
    return make_rules(ignore_lines=lines, exclude=exclude, include=include)


def _as_tuple(patterns: Iterable[str]) -> Iterable[str]:
    return patterns if isinstance(patterns, str) else tuple(patterns)


def resolve_folder(folder: str | Path, *, allow_home: bool, what: str) -> Path:
    """Return the real path of a folder. Refuse ``/`` and, unless ``allow_home`` is set, a home folder."""
    given = Path(folder).expanduser()
    if not given.is_dir():
        raise NotFound(f"folder {given} not found; create it first, or check the path")
    real = given.resolve()
    if real == Path(real.anchor):
        raise InvalidInput(f"{real} is the whole machine; {what} a folder inside it")
    if not allow_home:
        for home in _homes():
            if real == home or real in home.parents:
                raise InvalidInput(
                    f"{real} contains a user's whole home; {what} a folder inside it, or pass allow_home=True"
                )
    return real


@contextmanager
def target_folder(folder: str | Path) -> Generator[Path]:
    """Yield the folder to write files into. If it had to be created and the block fails, it is removed."""
    given = Path(folder).expanduser()
    if given.exists() and not given.is_dir():
        raise InvalidInput(f"{given} is not a folder; choose another target")
    made = [each for each in (given, *given.parents) if not os.path.lexists(each)]
    with translate_os_errors(str(given), writing=True):
        given.mkdir(parents=True, exist_ok=True)
    try:
        yield given
    except BaseException:
        with suppress(OSError):
            for each in made:
                each.rmdir()
        raise


@contextmanager
def open_folder(folder: Path) -> Generator[int]:
    """Open a folder and yield its descriptor."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"folder {folder} cannot be opened: {error.strerror}; check the path") from error
    except OSError as error:
        with translate_os_errors(f"folder {folder}", writing=False):
            raise error from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _homes() -> set[Path]:
    homes = {Path(os.path.expanduser("~"))}  # noqa: PTH111 - Path.home() raises where there is none
    with suppress(KeyError):
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return {home.resolve() for home in homes if home.is_absolute() and home != Path("/")}


class SnapshotPath(msgspec.Struct, frozen=True):
    """An entry and its path in the snapshot."""

    path: str
    entry: TreeEntry


class Snapshot:
    """A stored snapshot."""

    def __init__(self, engine: ObjectStore, space: str, root: str, *, limits: Limits | None = None) -> None:
        if not is_object_name(root):
            raise InvalidInput(
                f"{root[:80]!r} is not a snapshot id; expected the 64 hex digits of snapshot()"
            )
        self.root = root
        self.limits = limits or Limits()
        self._engine = engine
        self._space = space
        try:
            (tree,) = self._trees([root])
        except NotFound:
            raise NotFound(f"snapshot {root} not found. List snapshots with: treering snapshots") from None
        reserved = [each for each in tree.entries if each.name == RESERVED]
        self.top = Tree(entries=tuple(each for each in tree.entries if each.name != RESERVED))
        self._rules_entry = reserved[0] if reserved else None
        self._rules: Rules | None = None
        self._is_counted = False
        self._known: dict[str, Tree] = {}

    @property
    def rules(self) -> Rules:
        """The rules that the snapshot was taken with."""
        if self._rules is None:
            self._rules = read_rules(self._rules_bytes())
        return self._rules

    def folder(self, tree: str) -> Tree:
        """Return one folder below the root, by the name of its tree."""
        (found,) = self._trees([tree])
        return _without_rules(found)

    def folders(self, trees: Iterable[str]) -> dict[str, Tree]:
        """Return several folders by the names of their trees, in few reads."""
        wanted = list(dict.fromkeys(trees))
        found = {name: self._known[name] for name in wanted if name in self._known}
        names = [name for name in wanted if name not in found] if found else wanted
        for at in range(0, len(names), _TREES_AT_ONCE):
            some = names[at : at + _TREES_AT_ONCE]
            found.update(zip(some, map(_without_rules, self._trees(some)), strict=True))
        return found

    def check_entries(self) -> None:
        """Raise `Corrupt` if the snapshot has more entries than its limits allow.

        Each tree is read once and its entries are counted as often as it occurs, so this takes no more memory
        than the trees do.
        """
        if self._is_counted:
            return
        inner: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        kept = distinct = 0
        level = {self.root: self.top}
        while level:
            for name, tree in level.items():
                inner[name] = [each.tree for each in tree.entries if isinstance(each, FolderEntry)]
                sizes[name] = len(tree.entries)
                distinct += len(tree.entries)
                kept += len(tree.entries)
                if kept <= _KEPT_ENTRIES:
                    self._known[name] = tree
            if distinct > self.limits.entries:
                raise self._too_many()
            level = self.folders(each for name in level for each in inner[name] if each not in sizes)
        pending = [self.root]
        totals: dict[str, int] = {}
        while pending:
            name = pending[-1]
            missing = [each for each in inner[name] if each not in totals]
            if missing:
                pending += dict.fromkeys(missing)
                continue
            totals[name] = sizes[name] + sum(totals[each] for each in inner[name])
            if totals[name] > self.limits.entries:
                raise self._too_many()
            pending.pop()
        self._is_counted = True

    def _too_many(self) -> Corrupt:
        return Corrupt(f"snapshot {self.root} has more than {self.limits.entries:,} entries; refused")

    def find(self, path: str) -> TreeEntry | None:
        """Return the entry at a path, ``None`` for the root itself. Raises `NotFound`."""
        names = split(path)
        tree, entry = self.top, None
        for depth, name in enumerate(names):
            if depth:
                if not isinstance(entry, FolderEntry):
                    break
                tree = self.folder(entry.tree)
            entry = next((each for each in tree.entries if each.name == name), None)
            if entry is None:
                break
        else:
            return entry
        raise NotFound(f"{path!r} not found in snapshot {self.root[:12]}. List them with: treering ls")

    def walk(self, entry: TreeEntry | None = None, path: str = "") -> Iterator[SnapshotPath]:
        """Iterate over everything below a folder (default: the root), each folder before its contents."""
        self.check_entries()
        first = self.top if entry is None else self.folder(_folder(entry).tree)
        above = f"{path}/" if path else ""
        count = 0
        stack = [(iter(first.entries), self._subfolders(first), above)]
        while stack:
            entries, subfolders, above = stack[-1]
            each = next(entries, None)
            if each is None:
                stack.pop()
                continue
            count += 1
            if count > self.limits.entries:
                raise self._too_many()
            yield SnapshotPath(above + each.name, each)
            if isinstance(each, FolderEntry):
                if len(stack) > self.limits.depth:
                    raise Corrupt(
                        f"entry {above[:80]!r}... is nested deeper than {self.limits.depth} folders; refused"
                    )
                below = subfolders[each.tree]
                stack.append((iter(below.entries), self._subfolders(below), f"{above}{each.name}/"))

    def _subfolders(self, tree: Tree) -> dict[str, Tree]:
        return self.folders(each.tree for each in tree.entries if isinstance(each, FolderEntry))

    def read(
        self, entry: FileEntry, path: str, *, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        """Iterate over the bytes of a file from ``start`` up to ``stop``, one object at a time."""
        stop = entry.size if stop is None else min(stop, entry.size)
        if entry.data is not None:
            if start < stop:
                yield entry.data[start:stop]
            return
        size = 0
        previous, data = "", b""
        for name in entry.content:
            if size >= stop and stop < entry.size:
                return
            if name != previous:  # the chunks of a hole repeat
                (content,) = self._engine.get(self._space, [object_address(name)])
                previous, data = name, content.data
            before, size = size, size + len(data)
            if size > entry.size:
                break
            if before >= start and size <= stop:
                yield data
            elif size > start and before < stop:
                yield data[max(start - before, 0) : stop - before]
        if size != entry.size:
            raise Corrupt(f"file {path!r} has {size} bytes, but the snapshot says {entry.size}; run verify")

    def expect(self, names: Sequence[str]) -> None:
        """Tell a store with high latency which objects will be read soon."""
        if isinstance(self._engine, Prefetching):
            self._engine.expect(names)

    def contents(self, names: Sequence[str]) -> dict[str, Content]:
        """Return verified contents by name."""
        unique = list(dict.fromkeys(names))
        found = self._engine.get(self._space, [object_address(each) for each in unique])
        return dict(zip(unique, found, strict=True))

    def _trees(self, names: list[str]) -> list[Tree]:
        contents = self._engine.get(self._space, [object_address(each) for each in names])
        for name, content in zip(names, contents, strict=True):
            if content.kind != "tree":
                raise InvalidInput(f"object {name} is {content.kind}, not a folder of a snapshot")
        return [decode_tree(content) for content in contents]

    def _rules_bytes(self) -> bytes | None:
        if self._rules_entry is None:
            return None
        if not isinstance(self._rules_entry, FileEntry) or self._rules_entry.size > _RULES_BYTES:
            raise Corrupt(f"snapshot {self.root} has an entry {RESERVED!r} without rules in it; refused")
        return b"".join(self.read(self._rules_entry, RESERVED))


def split(path: str) -> list[str]:
    """Return the names in a path within a snapshot; ``""``, ``"."`` and ``"/"`` are the root."""
    names = [each for each in path.split("/") if each not in ("", ".")]
    if ".." in names or "\0" in path:
        raise InvalidInput(f"{path[:80]!r} is not a path in a snapshot: it has '..' or a NUL in it")
    return names


def batches(files: Iterable[FileEntry]) -> Iterator[list[str]]:
    """Group the objects of files, in order, into batches that are worth one read and fit into memory."""
    names: list[str] = []
    size = 0.0
    for entry in files:
        for name in entry.content:
            if not names or name != names[-1]:  # the chunks of a hole repeat, and are read once
                size += entry.size / len(entry.content)
            names.append(name)
            if size >= BATCH_BYTES or len(names) >= BATCH_OBJECTS:
                yield names
                names, size = [], 0.0
    if names:
        yield names


def _without_rules(tree: Tree) -> Tree:
    """Remove a snapshot's rules from a folder: another snapshot's root may be a folder."""
    if not any(map(_is_rules, tree.entries)):
        return tree
    return Tree(entries=tuple(each for each in tree.entries if not _is_rules(each)))


def _is_rules(entry: TreeEntry) -> bool:
    return entry.name == RESERVED and isinstance(entry, FileEntry)


def _folder(entry: TreeEntry) -> FolderEntry:
    if isinstance(entry, FolderEntry):
        return entry
    what = "a link" if isinstance(entry, LinkEntry) else "a file"
    raise InvalidInput(f"{entry.name!r} is {what}, not a folder")
