"""A folder of Markdown files and a namespace of memory, brought together.

Both sides are compared with what they were when they last met, which is noted in the folder itself
(``.treering-memory.json``: version and hash for each document). What changed on one side is taken over by the
other; what changed on both is a conflict, reported and left alone. **Invariant:** no edit of either side is
overwritten, and a file that needs no change is not written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from treering.core.clock import SystemClock
from treering.errors import Conflict, InvalidInput
from treering.files import DRAFTS, Drafts, open_folder, translate_os_errors
from treering.memory.documents import MemoryDocument
from treering.memory.markdown import MarkdownFile, path_of, read_file, text_for, walk

NOTES: Final = ".treering-memory.json"


class Documents(Protocol):
    """The side of the store."""

    @property
    def namespace(self) -> str:
        """Whose documents."""
        ...

    def query(self, *, include_expired: bool = False) -> list[MemoryDocument]:
        """All of them."""
        ...

    def save(self, document: MemoryDocument, *, if_version: int | None = None) -> MemoryDocument:
        """Keep one."""
        ...

    def delete(self, id: str, *, if_version: int | None = None) -> bool:
        """Take one away."""
        ...


class SyncConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A document that both sides changed; nothing was done about it."""

    id: str
    path: str
    reason: str


class SyncProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A file that could not be read as a document; nothing was done about it."""

    path: str
    message: str


class FolderSync(msgspec.Struct, frozen=True, kw_only=True):
    """What a sync did (or would do, in a dry run), by document id."""

    taken: tuple[str, ...] = ()
    """From files into the store."""
    written: tuple[str, ...] = ()
    """From the store into files."""
    deleted: tuple[str, ...] = ()
    """Documents whose files were removed."""
    removed: tuple[str, ...] = ()
    """Files whose documents were deleted."""
    conflicts: tuple[SyncConflict, ...] = ()
    problems: tuple[SyncProblem, ...] = ()
    unchanged: int = 0
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Nothing is left to be decided by a person."""
        return not self.conflicts and not self.problems


class _Met(msgspec.Struct, frozen=True):
    """A document when both sides were last the same."""

    version: int
    digest: str
    path: str


class _Notes(msgspec.Struct, frozen=True):
    namespace: str
    documents: dict[str, _Met]


def sync_folder(memory: Documents, root: Path, *, dry_run: bool = False) -> FolderSync:
    """Bring both sides together (see `Memory.sync_folder`)."""
    root = root.expanduser().absolute()
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{root} is no folder; memory files are kept in one")
    if dry_run:
        return _Meeting(memory, root, dry_run=True).run()
    with translate_os_errors(str(root), writing=True), Drafts(root, clock=SystemClock()).lock():
        try:
            return _Meeting(memory, root, dry_run=False).run()
        finally:
            with suppress(OSError):
                (root / DRAFTS).rmdir()


class _Meeting:
    """One sync."""

    def __init__(self, memory: Documents, root: Path, *, dry_run: bool) -> None:
        self._memory = memory
        self._root = root
        self._dry_run = dry_run
        self._taken: list[str] = []
        self._written: list[str] = []
        self._deleted: list[str] = []
        self._removed: list[str] = []
        self._conflicts: list[SyncConflict] = []
        self._problems: list[SyncProblem] = []
        self._unchanged = 0
        self._met: dict[str, _Met] = {}

    def run(self) -> FolderSync:
        known = self._notes()
        files, unreadable = self._files()
        documents = {document.id: document for document in self._memory.query(include_expired=True)}
        for name in sorted({*files, *documents, *known}):
            met = known.get(name)
            if name in unreadable or (met is not None and met.path in unreadable.values()):
                if met is not None:
                    self._met[name] = met
                continue
            try:
                now = self._one(name, files.get(name), documents.get(name), met)
            except (Conflict, InvalidInput) as error:
                self._conflicts.append(
                    SyncConflict(id=name, path=_shown(files.get(name), met), reason=str(error))
                )
                now = met
            if now is not None:
                self._met[name] = now
        if not self._dry_run and self._met != known:
            self._note()
        return FolderSync(
            taken=tuple(self._taken),
            written=tuple(self._written),
            deleted=tuple(self._deleted),
            removed=tuple(self._removed),
            conflicts=tuple(self._conflicts),
            problems=tuple(self._problems),
            unchanged=self._unchanged,
            dry_run=self._dry_run,
        )

    def _one(
        self, id: str, file: MarkdownFile | None, document: MemoryDocument | None, met: _Met | None
    ) -> _Met | None:
        """Decide about one document; gives what to remember of it."""
        version = 0 if document is None else document.version
        is_new_here = file is not None and (met is None or file.digest != met.digest)
        is_new_there = document is not None and (met is None or document.version != met.version)
        if file is not None and document is not None:
            if file.says(document):
                self._unchanged += 1
                return _Met(version, file.digest, file.path)
            if not is_new_there:
                return self._take(file, version)
            if not is_new_here:
                return self._write(document, file)
            return self._both(id, file.path, met, "the file and the document were both changed")
        if file is not None:
            if met is None:
                return self._take(file, 0)
            if is_new_here:
                return self._both(id, file.path, met, "the document was deleted, the file was changed")
            self._removed.append(id)
            self._do(lambda: self._remove(file))
            return None
        if document is not None:
            if met is None:
                return self._write(document, None)
            if is_new_there:
                return self._both(id, met.path, met, "the file was removed, the document was changed")
            self._deleted.append(id)
            self._do(lambda: self._memory.delete(id, if_version=document.version))
        return None

    def _take(self, file: MarkdownFile, version: int) -> _Met:
        saved = version
        if not self._dry_run:
            saved = self._memory.save(file.document, if_version=version).version
        self._taken.append(file.id)
        return _Met(saved, file.digest, file.path)

    def _write(self, document: MemoryDocument, file: MarkdownFile | None) -> _Met:
        path = path_of(document.id) if file is None else file.path
        data = text_for(document, file).encode()
        if file is None and (self._root / path).exists():
            raise Conflict(f"{path} is in the way of memory {document.id!r}; move it and sync again")
        self._do(lambda: self._put(path, data, None if file is None else file.digest))
        self._written.append(document.id)
        return _Met(document.version, sha256(data).hexdigest(), path)

    def _both(self, id: str, path: str, met: _Met | None, reason: str) -> _Met | None:
        self._conflicts.append(
            SyncConflict(id=id, path=path, reason=f"{reason} since they last met; make them the same")
        )
        return met

    def _do(self, action: Callable[[], Any]) -> None:
        if not self._dry_run:
            action()

    def _put(self, path: str, data: bytes, digest: str | None) -> None:
        """Write a file whole, unless someone edited it since it was read."""
        *parts, name = path.split("/")
        with (
            translate_os_errors(path, writing=True),
            open_folder(self._root, parts, make=True) as folder,
            Drafts(self._root, clock=SystemClock()).write([data]) as draft,
        ):
            mode = 0o644
            if digest is not None:
                self._check_unchanged(path, digest)
                mode = os.stat(name, dir_fd=folder).st_mode & 0o777
            draft.publish(folder, name)
            os.chmod(name, mode, dir_fd=folder)

    def _remove(self, file: MarkdownFile) -> None:
        self._check_unchanged(file.path, file.digest)
        place = self._root / file.path
        place.unlink()
        for parent in place.parents:
            if parent == self._root:
                break
            with suppress(OSError):  # others' files are in it
                parent.rmdir()

    def _check_unchanged(self, path: str, digest: str) -> None:
        if sha256((self._root / path).read_bytes()).hexdigest() != digest:
            raise Conflict(f"{path} was edited just now; sync again")

    def _files(self) -> tuple[dict[str, MarkdownFile], dict[str, str]]:
        """The files by document id, and those that are no documents: id they would have, and path."""
        files: dict[str, MarkdownFile] = {}
        unreadable: dict[str, str] = {}
        for path in walk(self._root):
            try:
                file = read_file(self._root, path)
                if file.id in files:
                    raise InvalidInput(f"{path}: {files[file.id].path} has the id {file.id!r} as well")
            except InvalidInput as error:
                self._problems.append(SyncProblem(path=path, message=str(error)))
                unreadable[path.removesuffix(".md")] = path
            else:
                files[file.id] = file
        return files, unreadable

    def _notes(self) -> dict[str, _Met]:
        try:
            notes = msgspec.json.decode((self._root / NOTES).read_bytes(), type=_Notes)
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            raise InvalidInput(
                f"{self._root / NOTES} is damaged ({error}); remove it, and files that differ are conflicts"
            ) from None
        if notes.namespace != self._memory.namespace:
            raise InvalidInput(
                f"{self._root} belongs to namespace {notes.namespace!r}, not {self._memory.namespace!r}; "
                "use one folder for each namespace"
            )
        return notes.documents

    def _note(self) -> None:
        notes = _Notes(self._memory.namespace, dict(sorted(self._met.items())))
        data = msgspec.json.format(msgspec.json.encode(notes), indent=1) + b"\n"
        with (
            open_folder(self._root, make=True) as folder,
            Drafts(self._root, clock=SystemClock()).write([data]) as draft,
        ):
            draft.publish(folder, NOTES)


def _shown(file: MarkdownFile | None, met: _Met | None) -> str:
    if file is not None:
        return file.path
    return "" if met is None else met.path
