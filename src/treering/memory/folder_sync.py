"""Synchronise a folder of Markdown files with a namespace of memory.

Both sides are compared with their state at the last sync, which is stored in the folder itself
(``.treering-memory.json``: version and digest of each document). A change on one side is applied to the
other; a change on both is a conflict, reported and left alone. **Invariant:** no edit of either side is
overwritten, and a file without changes is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from treering.errors import Conflict, InvalidInput
from treering.memory.documents import MemoryDocument
from treering.memory.markdown import (
    SUFFIX,
    MarkdownFile,
    MarkdownFolder,
    document_path,
    markdown_paths,
    read_markdown,
    render_document,
)

STATE_FILE: Final = ".treering-memory.json"


class DocumentStore(Protocol):
    """The memory to synchronise with."""

    @property
    def namespace(self) -> str:
        """The namespace of the documents."""
        ...

    def query(self, *, include_expired: bool = False) -> list[MemoryDocument]:
        """Return all documents."""
        ...

    def save(self, document: MemoryDocument, *, if_version: int | None = None) -> MemoryDocument:
        """Save a document, if it is at this version."""
        ...

    def delete(self, id: str, *, if_version: int | None = None) -> bool:
        """Delete a document, if it is at this version."""
        ...


class SyncConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was changed on both sides; neither was touched."""

    id: str
    path: str
    reason: str


class SyncProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not a valid document; it was not touched."""

    path: str
    message: str


class FolderSync(msgspec.Struct, frozen=True, kw_only=True):
    """What a sync did (or would do, in a dry run), by document id."""

    imported: tuple[str, ...] = ()
    """Documents saved from files."""
    exported: tuple[str, ...] = ()
    """Files written from documents."""
    deleted: tuple[str, ...] = ()
    """Documents deleted because their files were removed."""
    removed: tuple[str, ...] = ()
    """Files removed because their documents were deleted."""
    conflicts: tuple[SyncConflict, ...] = ()
    problems: tuple[SyncProblem, ...] = ()
    unchanged: int = 0
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether there were neither conflicts nor problems."""
        return not self.conflicts and not self.problems


class _Synced(msgspec.Struct, frozen=True):
    """A document at the last sync, when both sides were equal."""

    version: int
    digest: str
    path: str


class _SyncState(msgspec.Struct, frozen=True):
    """The content of the state file."""

    namespace: str
    documents: dict[str, _Synced]


def sync_folder(memory: DocumentStore, root: Path, *, dry_run: bool = False) -> FolderSync:
    """Synchronise both sides; see `Memory.sync_folder`."""
    folder = MarkdownFolder(root)
    if dry_run:
        return _Sync(memory, folder, dry_run=True).run()
    with folder.locked():
        return _Sync(memory, folder, dry_run=False).run()


class _Sync:
    """One synchronisation."""

    def __init__(self, memory: DocumentStore, folder: MarkdownFolder, *, dry_run: bool) -> None:
        self._memory = memory
        self._folder = folder
        self._root = folder.root
        self._dry_run = dry_run
        self._imported: list[str] = []
        self._exported: list[str] = []
        self._deleted: list[str] = []
        self._removed: list[str] = []
        self._conflicts: list[SyncConflict] = []
        self._problems: list[SyncProblem] = []
        self._unchanged = 0

    def run(self) -> FolderSync:
        before = self._read_state()
        files, invalid = self._read_files()
        documents = {document.id: document for document in self._memory.query(include_expired=True)}
        after: dict[str, _Synced] = {}
        for name in sorted({*files, *documents, *before}):
            last = before.get(name)
            synced = last
            if name not in invalid and (last is None or last.path not in invalid.values()):
                try:
                    synced = self._sync(name, files.get(name), documents.get(name), last)
                except (Conflict, InvalidInput) as error:
                    file = files.get(name)
                    path = file.path if file is not None else "" if last is None else last.path
                    self._conflicts.append(SyncConflict(id=name, path=path, reason=str(error)))
            if synced is not None:
                after[name] = synced
        if not self._dry_run and after != before:
            self._write_state(after)
        return FolderSync(
            imported=tuple(self._imported),
            exported=tuple(self._exported),
            deleted=tuple(self._deleted),
            removed=tuple(self._removed),
            conflicts=tuple(self._conflicts),
            problems=tuple(self._problems),
            unchanged=self._unchanged,
            dry_run=self._dry_run,
        )

    def _sync(
        self, id: str, file: MarkdownFile | None, document: MemoryDocument | None, last: _Synced | None
    ) -> _Synced | None:
        """Synchronise one document; return its new state."""
        version = 0 if document is None else document.version
        file_changed = file is not None and (last is None or file.digest != last.digest)
        document_changed = document is not None and (last is None or document.version != last.version)
        if file is not None and document is not None:
            if file.matches(document):
                self._unchanged += 1
                return _Synced(version, file.digest, file.path)
            if not document_changed:
                return self._import(file, version)
            if not file_changed:
                return self._export(document, file)
            return self._conflict(id, file.path, last, "the file and the document were both changed")
        if file is not None:
            if last is None:
                return self._import(file, 0)
            if file_changed:
                return self._conflict(id, file.path, last, "the document was deleted, the file was changed")
            self._removed.append(id)
            self._unless_dry_run(lambda: self._folder.remove(file))
            return None
        if document is not None:
            if last is None:
                return self._export(document, None)
            if document_changed:
                return self._conflict(id, last.path, last, "the file was removed, the document was changed")
            self._deleted.append(id)
            self._unless_dry_run(lambda: self._memory.delete(id, if_version=document.version))
        return None

    def _import(self, file: MarkdownFile, version: int) -> _Synced:
        saved = version
        if not self._dry_run:
            saved = self._memory.save(file.document, if_version=version).version
        self._imported.append(file.id)
        return _Synced(saved, file.digest, file.path)

    def _export(self, document: MemoryDocument, file: MarkdownFile | None) -> _Synced:
        path = document_path(document.id) if file is None else file.path
        data = render_document(document, file).encode()
        if self._dry_run:
            self._folder.check_writable(path, replacing=file)
        else:
            self._folder.write(path, data, replacing=file)
        self._exported.append(document.id)
        return _Synced(document.version, sha256(data).hexdigest(), path)

    def _conflict(self, id: str, path: str, last: _Synced | None, reason: str) -> _Synced | None:
        reason = f"{reason} since the last sync; make them equal and sync again"
        self._conflicts.append(SyncConflict(id=id, path=path, reason=reason))
        return last

    def _unless_dry_run(self, action: Callable[[], Any]) -> None:
        if not self._dry_run:
            action()

    def _read_files(self) -> tuple[dict[str, MarkdownFile], dict[str, str]]:
        """Return the files by document id, and the paths of invalid files by the id of their path."""
        files: dict[str, MarkdownFile] = {}
        invalid: dict[str, str] = {}
        for path in markdown_paths(self._root):
            try:
                file = read_markdown(self._root, path)
                if file.id in files:
                    raise InvalidInput(f"{path}: {files[file.id].path} has the same id {file.id!r}")
            except InvalidInput as error:
                self._problems.append(SyncProblem(path=path, message=str(error)))
                invalid[path.removesuffix(SUFFIX)] = path
            else:
                files[file.id] = file
        return files, invalid

    def _read_state(self) -> dict[str, _Synced]:
        path = self._root / STATE_FILE
        try:
            state = msgspec.json.decode(path.read_bytes(), type=_SyncState)
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            raise InvalidInput(
                f"{path} is corrupt ({error}); remove it, and documents that differ are reported as conflicts"
            ) from None
        if state.namespace != self._memory.namespace:
            raise InvalidInput(
                f"{self._root} belongs to namespace {state.namespace!r}, not {self._memory.namespace!r}; "
                "use a separate folder for each namespace"
            )
        return state.documents

    def _write_state(self, documents: dict[str, _Synced]) -> None:
        state = _SyncState(self._memory.namespace, dict(sorted(documents.items())))
        data = msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n"
        self._folder.write(STATE_FILE, data)
