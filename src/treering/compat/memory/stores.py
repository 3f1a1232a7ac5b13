"""The stores of seed 002: documents in a folder of Markdown files, or in memory.

Both have `save`, `get`, `query` and `delete`, and each of them once more with an ``a`` in front for asyncio.
``store.memory`` has the same methods and can take their place; it also has versions and search.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from treering import api
from treering.core.clock import Clock, SystemClock, to_datetime
from treering.core.ids import check_id
from treering.errors import Conflict, InvalidInput
from treering.files import DRAFTS, Drafts, open_folder, translate_os_errors
from treering.memory.documents import (
    MemoryDocument,
    TagMatch,
    as_document,
    checked_content,
    checked_tags,
    has_tags,
)
from treering.memory.markdown import MarkdownFile, path_of, read_file, text_for, walk
from treering.memory.memory import Memory

Filter = Callable[[MemoryDocument], bool]


class MemoryFileWarning(UserWarning):
    """A Markdown file could not be read as a document and was left out; the message says why."""


class MemoryStore(ABC):
    """What the stores have in common."""

    @abstractmethod
    def save(self, document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
        """Keep a document, in place of the one with its id; durable when this returns."""

    @abstractmethod
    def get(self, id: str) -> MemoryDocument | None:
        """A document; ``None`` when there is none, or its time is over."""

    @abstractmethod
    def query(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        filter: Filter | None = None,
        include_expired: bool = False,
    ) -> list[MemoryDocument]:
        """Documents with any (or all) of the tags, in order of their ids."""

    @abstractmethod
    def delete(self, id: str) -> bool:
        """Remove a document; says whether it was there."""

    async def asave(self, document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
        """`save`, awaited."""
        return await asyncio.to_thread(self.save, document)

    async def aget(self, id: str) -> MemoryDocument | None:
        """`get`, awaited."""
        return await asyncio.to_thread(self.get, id)

    async def aquery(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        filter: Filter | None = None,
        include_expired: bool = False,
    ) -> list[MemoryDocument]:
        """`query`, awaited."""
        return await asyncio.to_thread(
            self.query, tags=tags, match=match, filter=filter, include_expired=include_expired
        )

    async def adelete(self, id: str) -> bool:
        """`delete`, awaited."""
        return await asyncio.to_thread(self.delete, id)


class InMemoryMemoryStore(MemoryStore):
    """Documents that end with the process. ``memory`` is the view behind it, with versions and search."""

    def __init__(self) -> None:
        self._store = api.open("memory:")
        self.memory = self._store.memory

    def save(self, document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
        """Keep a document, in place of the one with its id."""
        return self.memory.save(document)

    def get(self, id: str) -> MemoryDocument | None:
        """A document; ``None`` when there is none, or its time is over."""
        return self.memory.get(id)

    def query(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        filter: Filter | None = None,
        include_expired: bool = False,
    ) -> list[MemoryDocument]:
        """Documents with any (or all) of the tags, in order of their ids."""
        return self.memory.query(tags=tags, match=match, filter=filter, include_expired=include_expired)

    def delete(self, id: str) -> bool:
        """Remove a document; says whether it was there."""
        return self.memory.delete(id)


class FilesystemMemoryStore(MemoryStore):
    """Documents in a folder, one Markdown file with YAML front matter each.

    The files are all there is: a person may edit, add and remove them while agents run. An edit by an agent
    changes the lines it has to and no others. A file that cannot be read is left out of `query` with a
    `MemoryFileWarning`; `get` raises `InvalidInput`.
    """

    def __init__(self, root_dir: str | Path, *, clock: Clock | None = None) -> None:
        self._root = Path(root_dir).expanduser().absolute()
        self._clock = clock or SystemClock()
        if self._root.exists() and not self._root.is_dir():
            raise InvalidInput(f"{self._root} is no folder; memory files are kept in one")

    @property
    def root_dir(self) -> Path:
        """Where the files are."""
        return self._root

    def save(self, document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
        """Write a document's file, whole or not at all. One that says the same already is not touched."""
        given = as_document(document)
        checked_content(given.id, given.content)
        with self._locked() as drafts:
            file = self._find(given.id)
            if file is not None and file.says(given):
                return file.document
            now = to_datetime(self._clock.now_us())
            created = given.created_at or (None if file is None else file.document.created_at) or now
            metadata = given.metadata | {"created_at": created, "updated_at": now}
            whole = MemoryDocument(id=given.id, content=given.content, metadata=metadata)
            path = path_of(given.id) if file is None else file.path
            if file is None and (self._root / path).exists():
                raise Conflict(f"{path} is in the way of memory {given.id!r}: it has another id; move it")
            data = text_for(whole, file, with_times=True).encode()
            self._write(drafts, path, data, is_new=file is None)
            return read_file(self._root, path).document

    def get(self, id: str) -> MemoryDocument | None:
        """A document; ``None`` when there is none, or its time is over."""
        file = self._find(check_id(id, "memory id"))
        if file is None or file.document.is_expired(to_datetime(self._clock.now_us())):
            return None
        return file.document

    def query(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        filter: Filter | None = None,
        include_expired: bool = False,
    ) -> list[MemoryDocument]:
        """Documents with any (or all) of the tags, in order of their ids."""
        wanted = checked_tags(tags)
        now = to_datetime(self._clock.now_us())
        found = [
            file.document
            for file in self._files()
            if has_tags(file.document.tags, wanted, match)
            and (include_expired or not file.document.is_expired(now))
            and (filter is None or filter(file.document))
        ]
        return sorted(found, key=lambda document: document.id)

    def delete(self, id: str) -> bool:
        """Remove a document's file; says whether it was there."""
        check_id(id, "memory id")
        if not self._root.exists():
            return False
        with self._locked():
            file = self._find(id)
            if file is None:
                return False
            place = self._root / file.path
            place.unlink()
            for parent in place.parents:
                if parent == self._root:
                    break
                with suppress(OSError):  # other files are in it
                    parent.rmdir()
            return True

    def _find(self, id: str) -> MarkdownFile | None:
        """A document's file: where its id says, or wherever its front matter says so."""
        path = path_of(id)
        with suppress(FileNotFoundError, NotADirectoryError):
            if not (self._root / path).is_symlink():
                file = read_file(self._root, path)
                if file.id == id:
                    return file
        return next((file for file in self._files() if file.id == id), None)

    def _files(self) -> Iterator[MarkdownFile]:
        for path in walk(self._root):
            try:
                yield read_file(self._root, path)
            except FileNotFoundError:
                continue  # removed just now
            except InvalidInput as error:
                warnings.warn(f"{self._root}: {error}", MemoryFileWarning, stacklevel=4)

    @contextmanager
    def _locked(self) -> Generator[Drafts]:
        """One writer of the folder at a time; the folder for drafts is gone again afterwards."""
        drafts = Drafts(self._root, clock=self._clock)
        with translate_os_errors(str(self._root), writing=True), drafts.lock():
            try:
                yield drafts
            finally:
                with suppress(OSError):
                    (self._root / DRAFTS).rmdir()

    def _write(self, drafts: Drafts, path: str, data: bytes, *, is_new: bool) -> None:
        *parts, name = path.split("/")
        with open_folder(self._root, parts, make=True) as folder, drafts.write([data]) as draft:
            mode = 0o644 if is_new else os.stat(name, dir_fd=folder).st_mode & 0o777
            draft.publish(folder, name)
            os.chmod(name, mode, dir_fd=folder)


# -----------------------------------------------------------------------------------------------------------
# What one agent remembers, out of a store that many may share.


def load_agent_memory(*, store: MemoryStore | Memory, agent_id: str) -> list[MemoryDocument]:
    """All memory of an agent, in order of the ids: its own documents, and those that are nobody's.

    Its own are those with its ``agent_id`` in their metadata, and without one those in the folder of that
    name (``my-agent/notes``); nobody's are those in no folder. On ``store.memory`` also all of the namespace
    that is called like the agent. What has expired is left out.
    """
    check_id(agent_id, "agent id")
    found = {each.id: each for each in store.query() if _is_for(each, agent_id)}
    if isinstance(store, Memory) and store.namespace != agent_id:
        found |= {each.id: each for each in store.in_namespace(agent_id).query()}
    return [document for _, document in sorted(found.items())]


def _is_for(document: MemoryDocument, agent_id: str) -> bool:
    owner: Any = document.metadata.get("agent_id", document.metadata.get("agentId"))
    if owner is not None:
        return owner == agent_id
    folder, slash, _ = document.id.partition("/")
    return not slash or folder == agent_id
