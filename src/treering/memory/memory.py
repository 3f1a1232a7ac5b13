"""Memory: texts that agents keep across conversations, by id, with every version.

A document is one ref and content of its own; a change is one commit of the ref, one event and the search
index. Nothing is overwritten: an older version is read, compared and restored out of the journal until it is
forgotten. **Invariant:** of any number of writers none takes the place of a version that it was not told of
when it said ``if_version``; those who did not say it follow one another, and each one's version stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from treering.core.clock import to_datetime
from treering.core.ids import check_id
from treering.errors import InvalidInput, NotFound
from treering.memory.context import MemoryContext, memory_context
from treering.memory.document_store import Shelf
from treering.memory.documents import (
    MemoryDiff,
    MemoryDocument,
    MemoryHit,
    MemorySearch,
    MemoryVersion,
    Provenance,
    TagMatch,
    as_document,
    checked_content,
    checked_metadata,
    checked_tags,
    contents,
    has_tags,
    parse_name,
    prefix_of,
    scope_of,
    stored,
)
from treering.memory.folder_sync import FolderSync, sync_folder
from treering.memory.search import Searcher, cannot_rank
from treering.memory.vectors import Embedder, Vectors, checked_embedder

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.maintenance.forget import Forgotten

_LAST: Final = "\U0010ffff"


class Memory:
    """The documents of one namespace: an agent's, a user's, a project's, or (empty) nobody's own."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        namespace: str = "",
        *,
        clock: Clock,
        forgetter: Callable[[str], Forgotten],
        embedder: Embedder | None = None,
        vectors: Vectors | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._namespace = check_id(namespace, "namespace") if namespace else ""
        self._clock = clock
        self._forgetter = forgetter
        self._embedder = embedder
        self._vectors = vectors or Vectors()
        self._shelf = Shelf(engine, space, self._namespace, clock=clock, embedder=embedder)

    def __repr__(self) -> str:
        return f"<Memory namespace={self._namespace!r}>"

    @property
    def namespace(self) -> str:
        """Whose memory this is."""
        return self._namespace

    def in_namespace(self, namespace: str) -> Memory:
        """The memory of an agent, a user or a project; it is forgotten with that namespace."""
        return self._like(namespace, self._embedder)

    def with_embedder(self, embedder: Embedder) -> Memory:
        """The same memory, searched by meaning as well: what is saved through it gets a vector.

        The vectors are kept beside each version under the embedder's name and forgotten with it.
        """
        return self._like(self._namespace, checked_embedder(embedder))

    def namespaces(self) -> Iterator[str]:
        """The namespaces that have documents, by name."""
        after: str | None = None
        while page := self._engine.scan_refs(self._space, "memory/", after=after, limit=1):
            namespace, _ = parse_name(page[0].name)
            yield namespace
            after = prefix_of(namespace) + _LAST

    # Writing
    def save(
        self,
        document: str | MemoryDocument | Mapping[str, Any],
        content: str | None = None,
        *,
        tags: Iterable[str] = (),
        auto_load: bool = False,
        expires_at: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_version: int | None = None,
        provenance: Provenance | None = None,
    ) -> MemoryDocument:
        """Keep a document as given, by its id; durable when this returns.

        What is not given is empty, not as it was. With ``if_version`` only if the document is at that version
        (0: if there is none), else `RefMoved`. A document that is the same already gets no new version.
        """
        if isinstance(document, str):
            if content is None:
                raise InvalidInput(f"memory {document!r} has no content; pass it behind the id")
            own = dict(metadata or {}) | {"tags": checked_tags(tags), "auto_load": auto_load}
            if expires_at is not None:
                own["expires_at"] = expires_at
            whole = MemoryDocument(
                id=check_id(document, "memory id"),
                content=checked_content(document, content),
                metadata=checked_metadata(own),
            )
        else:
            if content is not None or metadata is not None or tags or auto_load or expires_at is not None:
                raise InvalidInput("a whole document has its content and metadata already; pass it alone")
            whole = as_document(document)
            checked_content(whole.id, whole.content)
        return self._shelf.swap(whole.id, lambda _: whole, if_version, provenance)

    def save_many(
        self,
        documents: Iterable[MemoryDocument | Mapping[str, Any]],
        *,
        provenance: Provenance | None = None,
    ) -> list[MemoryDocument]:
        """Keep many documents in one commit, all or none; far quicker than one by one."""
        whole = [as_document(each) for each in documents]
        for each in whole:
            checked_content(each.id, each.content)
        return self._shelf.save_all(whole, provenance)

    def update(
        self,
        id: str,
        function: Callable[[str], str],
        *,
        default: str = "",
        provenance: Provenance | None = None,
    ) -> MemoryDocument:
        """Set the content to ``function(content)``; tags and metadata stay as they are.

        When someone else writes in between, the function is called again with what they wrote.
        """

        def changed(before: MemoryDocument | None) -> MemoryDocument:
            content = checked_content(id, function(default if before is None else before.content))
            return MemoryDocument(
                id=check_id(id, "memory id"),
                content=content,
                metadata={} if before is None else before.metadata,
            )

        return self._shelf.swap(id, changed, None, provenance)

    def restore(self, id: str, version: int) -> MemoryDocument:
        """Make an older version the newest one."""
        old = self.get(id, version=version)
        if old is None:
            raise NotFound(f"memory {id!r} has no version {version}; see history({id!r})")
        source = Provenance(source=f"restored from version {version}")
        return self._shelf.swap(id, lambda _: old, None, source)

    def embed(self) -> int:
        """Give a vector to every document here that has none (or one of an older text); says to how many.

        Only what was saved without the embedder needs it.
        """
        if self._embedder is None:
            raise InvalidInput("this memory has no embedder; use memory.with_embedder(...).embed()")
        return self._shelf.embed_missing()

    def delete(self, id: str, *, if_version: int | None = None) -> bool:
        """Take a document away; says whether it was there. Its versions stay until `forget`."""
        return self._shelf.delete(id, if_version)

    def forget(self, id: str) -> Forgotten:
        """Erase a document for good: every version, its index, its content. Gives a receipt."""
        self._shelf.name(id)
        self._vectors.drop()
        return self._forgetter(scope_of(self._namespace, id))

    # Reading
    def get(
        self, id: str, *, version: int | None = None, include_expired: bool = False
    ) -> MemoryDocument | None:
        """A document as it is, or as it was at a version; ``None`` when there is none or its time is over."""
        if version is not None:
            for change in self.history(id):
                if change.version == version:
                    return change.document
            return None
        ref = self._shelf.ref(id)
        if ref is None:
            return None
        record = stored(ref.value)
        if record.is_expired(self._clock.now_us()) and not include_expired:
            return None
        return self._shelf.document(ref, record)

    def query(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        auto_load: bool | None = None,
        prefix: str = "",
        filter: Callable[[MemoryDocument], bool] | None = None,
        include_expired: bool = False,
        limit: int | None = None,
    ) -> list[MemoryDocument]:
        """Documents in order of their ids: with any (or all) of the tags, whose ids start with ``prefix``."""
        wanted = checked_tags(tags)
        now_us = self._clock.now_us()
        found: list[MemoryDocument] = []
        for page in self._shelf.pages(prefix):
            chosen = [
                (ref, record)
                for ref in page
                for record in [stored(ref.value)]
                if (include_expired or not record.is_expired(now_us))
                and (auto_load is None or record.auto_load == auto_load)
                and has_tags(record.tags, wanted, match)
            ]
            texts = contents(self._engine, self._space, [record for _, record in chosen])
            for (ref, record), text in zip(chosen, texts, strict=True):
                document = record.document(self._shelf.id_of(ref), ref.version, text)
                if filter is None or filter(document):
                    found.append(document)
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def search(
        self,
        text: str,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        limit: int = 10,
        everywhere: bool = False,
        neighbours: float = 0.0,
        embedder: Embedder | None = None,
        meaning: float = 0.5,
    ) -> MemorySearch:
        """Documents that hold words of the question, best first, in this namespace or in all.

        With an ``embedder`` (or `with_embedder`) also those that say it in other words; ``meaning`` is how
        much of the score that is, the rest is words. ``neighbours`` (0.3 is a good value) is for documents
        that are numbered in order, such as the turns of a conversation: each gets that share of its
        neighbours' scores.
        """
        wanted = checked_tags(tags)
        reason = cannot_rank(text)
        if reason:
            return self._literal(text, reason, tags=wanted, match=match, limit=limit, everywhere=everywhere)
        namespace = None if everywhere else self._namespace
        chosen = self._embedder if embedder is None else checked_embedder(embedder)
        searcher = Searcher(
            self._engine,
            self._space,
            namespace,
            now_us=self._clock.now_us(),
            embedder=chosen,
            vectors=self._vectors,
        )
        return searcher.ranked(
            text, tags=wanted, match=match, limit=limit, neighbours=neighbours, meaning=meaning
        )

    def history(self, id: str) -> Iterator[MemoryVersion]:
        """Every version, newest first; also of a document that was deleted."""
        return self._shelf.history(id)

    def diff(self, id: str, old: int, new: int | None = None) -> MemoryDiff:
        """What changed from one version to another (without ``new``: to the newest)."""
        versions = {change.version: change for change in self.history(id)}
        if not versions:
            raise NotFound(f"there is no memory {id!r} in namespace {self._namespace!r}; see query()")
        latest = max(versions) if new is None else new
        for wanted in (old, latest):
            if wanted not in versions:
                known = ", ".join(map(str, sorted(versions)))
                raise NotFound(f"memory {id!r} has no version {wanted}; it has {known}")
        before, after = versions[old].document, versions[latest].document
        return _difference(id, (old, before), (latest, after))

    # For people and contexts
    def context(
        self,
        *,
        auto_load: bool = True,
        max_documents: int | None = None,
        max_tokens: int | None = None,
        filter: Callable[[MemoryDocument], bool] | None = None,
    ) -> MemoryContext:
        """The documents for an agent's context as one text, and what was cut (see `memory_context`)."""
        return memory_context(
            self,
            auto_load=auto_load,
            max_documents=max_documents,
            max_tokens=max_tokens,
            filter=filter,
            now=to_datetime(self._clock.now_us()),
        )

    def sync_folder(self, path: str | Path, *, dry_run: bool = False) -> FolderSync:
        """Bring a folder of Markdown files and this namespace together: edits of either side are taken over.

        A document that was changed on both sides is reported and left alone on both. A file that nobody
        edited is not touched.
        """
        return sync_folder(self, Path(path), dry_run=dry_run)

    def _like(self, namespace: str, embedder: Embedder | None) -> Memory:
        return Memory(
            self._engine,
            self._space,
            namespace,
            clock=self._clock,
            forgetter=self._forgetter,
            embedder=embedder,
            vectors=self._vectors,
        )

    def _literal(
        self, text: str, reason: str, *, tags: list[str], match: TagMatch, limit: int, everywhere: bool
    ) -> MemorySearch:
        wanted = text.strip().casefold()
        hits: list[MemoryHit] = []
        if wanted and any(each.isalnum() for each in wanted):
            for namespace in list(self.namespaces()) if everywhere else [self._namespace]:
                documents = self.in_namespace(namespace).query(
                    tags=tags, match=match, filter=lambda each: wanted in each.content.casefold()
                )
                hits += [MemoryHit(document=each, namespace=namespace, score=0.0) for each in documents]
        hits.sort(key=lambda hit: hit.document.metadata["updated_at"], reverse=True)
        return MemorySearch(hits=tuple(hits[:limit]), ranked=False, note=reason)


def _difference(
    id: str, old: tuple[int, MemoryDocument | None], new: tuple[int, MemoryDocument | None]
) -> MemoryDiff:
    from difflib import unified_diff

    empty = MemoryDocument(id=id, content="")
    before, after = old[1] or empty, new[1] or empty
    lines = unified_diff(
        before.content.splitlines(),
        after.content.splitlines(),
        fromfile=f"{id} version {old[0]}",
        tofile=f"{id} version {new[0]}",
        lineterm="",
    )
    aside = {"tags", "created_at", "updated_at"}
    keys = sorted((set(before.metadata) | set(after.metadata)) - aside)
    return MemoryDiff(
        id=id,
        old=old[0],
        new=new[0],
        text="\n".join(lines),
        added_tags=tuple(tag for tag in after.tags if tag not in before.tags),
        removed_tags=tuple(tag for tag in before.tags if tag not in after.tags),
        changed_metadata=tuple(key for key in keys if before.metadata.get(key) != after.metadata.get(key)),
    )
