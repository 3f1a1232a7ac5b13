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
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from treering.core.readable import readable
from treering.errors import InvalidInput, MissingObjects, NotFound
from treering.files import translated
from treering.views.workspaces.known import Known, KnownFolder, Shelf
from treering.views.workspaces.progress import FileProgress
from treering.views.workspaces.rules import IGNORE_FILE, LISTS, Rules, make_rules
from treering.views.workspaces.scanning import FILE_FLAGS, LeftOut, Limits, Scan

if TYPE_CHECKING:
    from treering.views.workspaces.contents import Contents

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
        """What the moment that keeps these files should say of them: nothing, if all is in them and whole."""
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
