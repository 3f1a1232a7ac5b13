"""Taking a snapshot: a folder's files, staged, and one tree that names them all.

Files that are not known are read once, straight into staging; then the trees above them are staged. So what a
snapshot writes is what changed. Its id is the name of the root tree: equal folders have equal ids, on any
machine, and a file that was only touched changes nothing. Who and when is not in it; that is in the journal:
an event of its own, or the checkpoint that the snapshot belongs to. **Invariant:** the commit that names a
root requires it, all that was staged for it, and the roots that its unread files were known from; if a
collection took one of them away in between, the commit is refused and the folder is read again, whole.
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
from treering.files import translated
from treering.workspaces.ignore import IGNORE_FILE, LISTS, RESERVED, Rules, make_rules, read_rules
from treering.workspaces.scan import (
    FILE_FLAGS,
    FileProgress,
    Known,
    KnownFolder,
    LeftOut,
    Limits,
    Scan,
    Shelf,
)

T = TypeVar("T")

_TRIES: Final = 3
LISTED: Final = 100
"""How many left-out or changed paths a record names; it always says how many there are."""
_IGNORE_BYTES: Final = 1024 * 1024


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is staged, and what the commit must require.

    ``read_files`` is how many files had to be read, ``changed`` those that changed under the reading and may
    be torn, ``left_out`` what is not in it, patterns aside.
    """

    root: str
    requires: tuple[str, ...]
    files: int
    size_bytes: int
    read_files: int
    left_out: tuple[LeftOut, ...]
    changed: tuple[str, ...]
    litter: tuple[str, ...]
    known: Known

    def warnings(self) -> dict[str, Any]:
        """What the checkpoint that keeps these files should say of them: nothing, if all is in them and
        whole.
        """
        told: dict[str, Any] = {}
        if self.left_out:
            told["left_out"] = [[readable(each.path), each.reason] for each in self.left_out[:LISTED]]
        if self.changed:
            told["changed"] = [readable(each) for each in self.changed[:LISTED]]
        return {"workspace": told} if told else {}


class Camera:
    """Takes snapshots of folders into one space, and remembers what it saw of them.

    ``has_all_of`` is for contents where a root may outlive what it names: whether nothing of it is lost.
    """

    def __init__(
        self,
        engine: Contents,
        space: str,
        shelf: Shelf,
        *,
        avoid: frozenset[tuple[int, int]] = frozenset(),
        has_all_of: Callable[[Known], bool] | None = None,
    ) -> None:
        self._engine = engine
        self._has_all_of = has_all_of
        self._space = space
        self._avoid = avoid
        self.shelf = shelf

    def keeping(
        self,
        folder: Path,
        commit: Callable[[Taken], T],
        *,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        limits: Limits | None = None,
        seconds: float | None = None,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> T:
        """Take a snapshot and let ``commit`` write what names it; gives back what that gives back."""
        exclude, include = _listed(exclude), _listed(include)
        for tries_left in reversed(range(_TRIES)):
            rules = rules_of(folder, exclude=exclude, include=include)
            taken = self.take(folder, rules, limits=limits, seconds=seconds, on_progress=on_progress)
            try:
                done = commit(taken)
            except MissingObjects:  # a collection was faster: read everything again
                self.shelf.drop(str(folder))
                if not tries_left:
                    raise
            else:
                self.shelf.save(str(folder), taken.known)
                return done
        raise AssertionError("the last try returned or raised")

    def take(
        self,
        folder: Path,
        rules: Rules,
        *,
        limits: Limits | None = None,
        seconds: float | None = None,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> Taken:
        """Stage everything that is new in a folder. Nothing points at it yet: that is for a commit."""
        deadline = None if seconds is None else time.monotonic() + seconds
        known = self._trusted(folder, rules)
        scan = Scan(
            rules,
            known=None if known is None else known.folder,
            avoid=self._avoid,
            limits=limits,
            deadline=deadline,
            on_progress=on_progress,
        )
        with opened(folder) as descriptor:
            names = self._engine.stage(self._space, scan.contents(descriptor))
        seen, trees = scan.finish(names)
        staged = self._engine.stage(self._space, trees) if trees else []
        now = Known(roots=(seen.tree,), patterns=rules.patterns, lists=LISTS, folder=seen)
        if known is not None and seen is known.folder:
            now = known
        return Taken(
            root=seen.tree,
            requires=tuple(
                dict.fromkeys((seen.tree, *(known.roots if known is not None else ()), *names, *staged))
            ),
            files=seen.count,
            size_bytes=seen.size,
            read_files=scan.read_files,
            left_out=tuple(sorted(scan.left_out, key=lambda each: each.path)),
            changed=tuple(sorted(scan.changed)),
            litter=tuple(scan.litter),
            known=now,
        )

    def look(
        self, folder: Path, rules: Rules, *, limits: Limits | None = None
    ) -> tuple[KnownFolder, tuple[LeftOut, ...], tuple[str, ...]]:
        """A folder as it is, what was left out and what is litter, without storing anything of it."""
        known = self._trusted(folder, rules)
        scan = Scan(rules, known=None if known is None else known.folder, avoid=self._avoid, limits=limits)
        with opened(folder) as descriptor:
            names = [content.name for content in scan.contents(descriptor)]
        return scan.finish(names)[0], tuple(scan.left_out), tuple(scan.litter)

    def _trusted(self, folder: Path, rules: Rules) -> Known | None:
        known = self.shelf.load(str(folder))
        if known is None or (known.patterns, known.lists) != (rules.patterns, LISTS):
            return None
        if self._engine.missing(self._space, known.roots) or not (
            self._has_all_of is None or self._has_all_of(known)
        ):
            self.shelf.drop(str(folder))
            return None
        return known


def rules_of(folder: Path, *, exclude: Iterable[str], include: Iterable[str]) -> Rules:
    """The rules for a folder now: its ignore file and the caller's patterns."""
    lines: list[str] = []
    with opened(folder) as descriptor:
        try:
            file = os.open(IGNORE_FILE, FILE_FLAGS, dir_fd=descriptor)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InvalidInput(
                f"{IGNORE_FILE} cannot be read ({error.strerror}); what it leaves out is not known"
            ) from error
        else:
            try:
                text = os.read(file, _IGNORE_BYTES + 1)
            finally:
                os.close(file)
            if len(text) > _IGNORE_BYTES:
                raise InvalidInput(
                    f"{IGNORE_FILE} has more than {_IGNORE_BYTES:,} bytes; it is no list of patterns"
                )
            lines = text.decode("utf-8", "surrogateescape").splitlines()
    return make_rules(ignore_lines=lines, exclude=exclude, include=include)


def _listed(patterns: Iterable[str]) -> Iterable[str]:
    return patterns if isinstance(patterns, str) else tuple(patterns)


def real_folder(folder: str | Path, *, allow_home: bool, what: str) -> Path:
    """The one real path of a folder; refuses the whole machine and, unless asked for, a person's home."""
    given = Path(folder).expanduser()
    if not given.is_dir():
        raise NotFound(f"there is no folder {given}; make it first, or check the path")
    real = given.resolve()
    if real == Path(real.anchor):
        raise InvalidInput(f"{real} is the whole machine; {what} a folder inside of it")
    if not allow_home:
        for home in _homes():
            if real == home or real in home.parents:
                raise InvalidInput(
                    f"{real} holds a person's whole home; {what} a folder inside of it, "
                    "or say allow_home=True if you mean it"
                )
    return real


def made_folder(folder: str | Path) -> Path:
    """A folder that files are to be written into, which is made if it is not there."""
    given = Path(folder).expanduser()
    if given.exists() and not given.is_dir():
        raise InvalidInput(f"{given} is no folder; choose another place")
    with translated(str(given), writing=True):
        given.mkdir(parents=True, exist_ok=True)
    return given


@contextmanager
def opened(folder: Path) -> Generator[int]:
    """A descriptor of a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotFound(f"folder {folder} cannot be opened: {error.strerror}; check the path") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _homes() -> set[Path]:
    homes = {Path(os.path.expanduser("~"))}  # noqa: PTH111 - Path.home() raises where there is none
    with suppress(KeyError):
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return {home.resolve() for home in homes if home.is_absolute() and home != Path("/")}


# -----------------------------------------------------------------------------------------------------------
# What snapshots need of a store: content in, content out, by name. Every engine has these three.


class Contents(Protocol):
    """The three verbs, as `treering.core.engine.Engine` explains them."""

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that will require them; their names, in order."""
        ...

    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Which of these objects are not stored."""
        ...

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Verified content, in the order asked for."""
        ...


@runtime_checkable
class Far(Protocol):
    """Contents that take a while to come, so it is worth saying early what will be wanted."""

    def expect(self, names: Sequence[str]) -> None:
        """Begin to fetch these objects, if they are there; nothing is promised."""
        ...


# -----------------------------------------------------------------------------------------------------------
# A snapshot as it is stored: its folders are read when someone asks, each hash checked on the way.
#
# Trees may come from a store that someone else wrote, so nothing in them is taken for granted: names are
# checked by the tree format itself, depth and number of entries by `Limits`. Folders that name the same
# folder twice, level below level, cost a few bytes and would unfold without end; the count ends it.


_TREES_AT_ONCE: Final = 256
_RULES_BYTES: Final = 1024 * 1024


class Placed(msgspec.Struct, frozen=True):
    """An entry and its path in the snapshot."""

    path: str
    entry: TreeEntry


class Snapshot:
    """One stored snapshot."""

    def __init__(self, engine: Contents, space: str, root: str, *, limits: Limits | None = None) -> None:
        if not is_object_name(root):
            raise InvalidInput(
                f"not a snapshot: {root[:80]!r}; expected the 64 hex digits that snapshot() gave"
            )
        self.root = root
        self.limits = limits or Limits()
        self._engine = engine
        self._space = space
        try:
            (tree,) = self._trees([root])
        except NotFound:
            raise NotFound(f"there is no snapshot {root}; snapshots() shows what there is") from None
        kept = [each for each in tree.entries if each.name == RESERVED]
        self.top = Tree(entries=tuple(each for each in tree.entries if each.name != RESERVED))
        self._kept = kept[0] if kept else None
        self._rules: Rules | None = None

    @property
    def rules(self) -> Rules:
        """The rules that the snapshot was taken by."""
        if self._rules is None:
            self._rules = read_rules(self._rules_bytes())
        return self._rules

    def folder(self, tree: str) -> Tree:
        """One folder below the root, by the name of its tree."""
        (found,) = self._trees([tree])
        return _without_rules(found)

    def folders(self, trees: Iterable[str]) -> dict[str, Tree]:
        """Several folders, in few reads."""
        names = list(dict.fromkeys(trees))
        found: dict[str, Tree] = {}
        for at in range(0, len(names), _TREES_AT_ONCE):
            some = names[at : at + _TREES_AT_ONCE]
            found.update(zip(some, map(_without_rules, self._trees(some)), strict=True))
        return found

    def find(self, path: str) -> TreeEntry | None:
        """The entry at a path; ``None`` stands for the root itself. Raises `NotFound`."""
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
        raise NotFound(f"snapshot {self.root[:12]} has no {path!r}; ls() shows what it has")

    def walk(self, entry: TreeEntry | None = None, path: str = "") -> Iterator[Placed]:
        """Everything below a folder (without one, the root); each folder is followed by what is in it."""
        first = self.top if entry is None else self.folder(_folder(entry).tree)
        above = f"{path}/" if path else ""
        count = 0
        stack = [(iter(first.entries), self._inner(first), above)]
        while stack:
            entries, inner, above = stack[-1]
            each = next(entries, None)
            if each is None:
                stack.pop()
                continue
            count += 1
            if count > self.limits.entries:
                raise Corrupt(f"snapshot {self.root} has more than {self.limits.entries:,} entries; refused")
            yield Placed(above + each.name, each)
            if isinstance(each, FolderEntry):
                if len(stack) > self.limits.depth:
                    raise Corrupt(f"entry {above[:80]!r}... is deeper than {self.limits.depth}; refused")
                below = inner[each.tree]
                stack.append((iter(below.entries), self._inner(below), f"{above}{each.name}/"))

    def _inner(self, tree: Tree) -> dict[str, Tree]:
        return self.folders(each.tree for each in tree.entries if isinstance(each, FolderEntry))

    def read(self, entry: FileEntry, path: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece."""
        size = 0
        for name in entry.content:
            (content,) = self._engine.get(self._space, [object_address(name)])
            size += len(content.data)
            if size > entry.size:
                break
            yield content.data
        if size != entry.size:
            raise Corrupt(f"file {path!r} has {size} bytes, not the {entry.size} that the snapshot says")

    def expect(self, names: Sequence[str]) -> None:
        """Let a store that is far away begin to fetch what will be asked for soon."""
        if isinstance(self._engine, Far):
            self._engine.expect(names)

    def contents(self, names: Sequence[str]) -> dict[str, Content]:
        """Contents by name, verified."""
        unique = list(dict.fromkeys(names))
        found = self._engine.get(self._space, [object_address(each) for each in unique])
        return dict(zip(unique, found, strict=True))

    def _trees(self, names: list[str]) -> list[Tree]:
        contents = self._engine.get(self._space, [object_address(each) for each in names])
        for name, content in zip(names, contents, strict=True):
            if content.kind != "tree":
                raise InvalidInput(f"object {name} is not a folder of a snapshot, but {content.kind}")
        return [decode_tree(content) for content in contents]

    def _rules_bytes(self) -> bytes | None:
        if self._kept is None:
            return None
        if not isinstance(self._kept, FileEntry) or self._kept.size > _RULES_BYTES:
            raise Corrupt(f"snapshot {self.root} has an entry {RESERVED!r} that holds no rules; refused")
        return b"".join(self.read(self._kept, RESERVED))


def split(path: str) -> list[str]:
    """The names in a path within a snapshot; ``""``, ``"."`` and ``"/"`` are its root."""
    names = [each for each in path.split("/") if each not in ("", ".")]
    if ".." in names or "\0" in path:
        raise InvalidInput(f"{path[:80]!r} is not a path in a snapshot: give names with / between them")
    return names


def _without_rules(tree: Tree) -> Tree:
    """A folder without the rules of a snapshot: a root has them, and one may lie in another."""
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
