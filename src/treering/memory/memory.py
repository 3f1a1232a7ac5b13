"""Memory: documents that agents keep across conversations, by id, with every version.

A document is one ref; a change is one commit of the ref, an event and the search index. Nothing is
overwritten: older versions are read, compared and restored from the journal until the document is forgotten.
Each change is computed from the stored version and committed only against it; a writer that lost the race
computes it again.

**Invariant:** a writer that passes ``if_version`` never replaces a version that it has not seen; the others
are serialised, and each one's version is kept. A version number belongs to exactly one event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import ABSENT, Backoff, Draft, Event, Text, check_version
from treering.core.clock import to_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.forks import forked_memory
from treering.core.ids import check_id, new_id
from treering.core.query import Erasure, EventQuery, encode_cursor, note_unreadable, record_pages, ref_pages
from treering.errors import Corrupt, InvalidInput, MissingObjects, NotFound, RefMoved
from treering.memory.documents import (
    DELETED,
    EMBEDDED,
    LAST_CHARACTER,
    MEMORY_KINDS,
    READ,
    REF_ROOT,
    SAVED,
    TRIGRAMS,
    WORDS,
    DocumentRecord,
    MemoryContext,
    MemoryDiff,
    MemoryDocument,
    MemoryHit,
    MemoryPage,
    MemorySearch,
    MemoryVersion,
    Provenance,
    TagMatch,
    decode_record,
    document_scope,
    lowest_trust,
    matches_tags,
    memory_context,
    parse_document,
    parse_ref_name,
    put_document,
    read_contents,
    record_from_dict,
    ref_prefix,
    validate_content,
    validate_metadata,
    validate_tags,
)
from treering.memory.folder_sync import FolderSync, sync_folder
from treering.memory.search import Searcher, why_unrankable
from treering.memory.vectors import (
    Embedder,
    Vector,
    VectorIndex,
    decode_vector,
    embed_texts,
    embedder_prefixes,
    validate_embedder,
    vector_ref,
)
from treering.runs.span import current_node

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref
    from treering.maintenance.forget import Forgotten

_PAGE: Final = 500
_MAX_SCANNED: Final = 2_000
"""How many documents one page looks at before it returns what matched."""
_EMBED_BATCH: Final = 100
_MAX_NOTED: Final = 50
_MAX_QUERY: Final = 1000
"""How much the journal of a run notes of a read: how many documents, and of the query."""


class Memory:
    """The documents of one namespace: of an agent, a user or a project, or (empty) shared ones."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        namespace: str = "",
        *,
        clock: Clock,
        forgetter: Callable[[str], Forgotten],
        embedder: Embedder | None = None,
        vectors: VectorIndex | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._name = check_id(namespace, "namespace") if namespace else ""
        self._clock = clock
        self._forgetter = forgetter
        self._embedder = embedder
        self._vectors = vectors or VectorIndex()

    def __repr__(self) -> str:
        return f"<Memory namespace={self._name!r}>"

    @property
    def namespace(self) -> str:
        """The namespace; empty for shared memory."""
        return self._name

    @property
    def _namespace(self) -> str:
        return forked_memory(self._engine, self._space, self._name)

    @property
    def _prefix(self) -> str:
        return ref_prefix(self._namespace)

    def in_namespace(self, namespace: str) -> Memory:
        """Return the memory of an agent, a user or a project; forgetting that namespace erases it."""
        return self._copy(namespace, self._embedder)

    def with_embedder(self, embedder: Embedder) -> Memory:
        """Return the same memory with semantic search: documents saved through it get a vector.

        Vectors are stored per embedder name and version of the text, and are forgotten with the document.
        """
        return self._copy(self._name, validate_embedder(embedder))

    def namespaces(self, *, after: str | None = None) -> Iterator[str]:
        """List the namespaces that have documents, by name; with ``after``, those behind that one."""
        after = None if after is None else ref_prefix(after) + LAST_CHARACTER
        while page := self._engine.scan_refs(self._space, REF_ROOT, after=after, limit=1):
            namespace, _ = parse_ref_name(page[0].name)
            yield namespace
            after = ref_prefix(namespace) + LAST_CHARACTER

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
        """Save a document under its id; durable when this returns.

        Arguments left out are empty; they do not keep their former value. Saving an identical document
        creates no version. With ``if_version``, raise `RefMoved` unless the document is at that version (0:
        it does not exist).
        """
        if isinstance(document, str):
            if content is None:
                raise InvalidInput(f"memory {document!r} has no content; pass it after the id")
            own = dict(metadata or {}) | {"tags": validate_tags(tags), "auto_load": auto_load}
            if expires_at is not None:
                own["expires_at"] = expires_at
            whole = MemoryDocument(
                id=check_id(document, "memory id"),
                content=validate_content(document, content),
                metadata=validate_metadata(own),
            )
        else:
            if content is not None or metadata is not None or tags or auto_load or expires_at is not None:
                raise InvalidInput("a whole document includes its content and metadata; pass it alone")
            whole = parse_document(document)
        return self._swap(whole.id, lambda _: whole, if_version, provenance)

    def save_many(
        self,
        documents: Iterable[MemoryDocument | Mapping[str, Any]],
        *,
        provenance: Provenance | None = None,
    ) -> list[MemoryDocument]:
        """Save many documents in one commit, all or none; much faster than one by one.

        If an id occurs more than once, the last document counts.
        """
        by_name = {self._ref_name(each.id): each for each in map(parse_document, documents)}
        backoff = Backoff()
        while True:
            refs = self._engine.refs(self._space, list(by_name))
            draft = Draft(self._space)
            origin = self._complete_provenance(provenance)
            records: dict[str, DocumentRecord] = {}
            changes: list[tuple[MemoryDocument, DocumentRecord, DocumentRecord | None]] = []
            for name, document in by_name.items():
                ref = refs.get(name)
                before = None if ref is None else decode_record(ref.value)
                records[name] = self._put(draft, document, ref, before, origin)
                changes.append((document, records[name], before))
            self._put_vectors(draft, changes)
            try:
                versions = {} if draft.is_empty else self._engine.commit(draft.batch()).versions
            except RefMoved:
                backoff.wait()
                continue
            return [
                records[name].to_document(document.id, versions[name], document.content)
                if name in versions
                else self._document(refs[name], decode_record(refs[name].value), document.content)
                for name, document in by_name.items()
            ]

    def update(
        self,
        id: str,
        function: Callable[[str], str],
        *,
        default: str = "",
        provenance: Provenance | None = None,
    ) -> MemoryDocument:
        """Set the content to ``function(content)``; tags and metadata are kept.

        The function receives ``default`` if the document does not exist. It is called again when another
        writer was faster.
        """

        def compute(before: MemoryDocument | None) -> MemoryDocument:
            content = validate_content(id, function(default if before is None else before.content))
            return MemoryDocument(
                id=check_id(id, "memory id"),
                content=content,
                metadata={} if before is None else before.metadata,
            )

        return self._swap(id, compute, None, provenance)

    def restore(self, id: str, version: int) -> MemoryDocument:
        """Save an older version again, as the newest one."""
        old = self.get(id, version=version)
        if old is None:
            raise NotFound(
                f"memory {id!r} has no version {version}. List versions with: treering memory history {id}"
            )
        source = Provenance(source=f"restored from version {version}")
        return self._swap(id, lambda _: old, None, source)

    def embed(self) -> int:
        """Give a vector to every document without a current one; return how many got one.

        Needed only for documents that were saved without the embedder.
        """
        embedder = self._embedder
        if embedder is None:
            raise InvalidInput("this memory has no embedder; use memory.with_embedder(...).embed()")
        count = 0
        for page in ref_pages(self._engine, self._space, self._prefix, limit=_PAGE):
            names = {ref.name: vector_ref(embedder.name, ref.name) for ref in page}
            vectors = self._engine.refs(self._space, list(names.values()))
            missing: list[tuple[Ref, DocumentRecord]] = []
            for ref in page:
                record, vector = decode_record(ref.value), vectors.get(names[ref.name])
                if vector is None or decode_vector(vector.value).digest != record.digest:
                    missing.append((ref, record))
            for start in range(0, len(missing), _EMBED_BATCH):
                count += self._embed_stored(embedder, missing[start : start + _EMBED_BATCH])
        return count

    def delete(self, id: str, *, if_version: int | None = None) -> bool:
        """Delete a document; return whether it existed. Its versions are kept until `forget`."""
        backoff = Backoff()
        while True:
            ref = self._ref(id)
            check_version(f"memory {id!r}", ref, if_version)
            if ref is None:
                return False
            draft = Draft(self._space)
            suffix = ref.name.removeprefix(REF_ROOT)
            vectors = [prefix + suffix for prefix in embedder_prefixes(self._engine, self._space)]
            for name in self._engine.refs(self._space, vectors) if vectors else ():
                draft.delete_ref(name, scope=ref.scope)
            draft.delete_ref(ref.name, scope=ref.scope, expect=ref.version)
            self._add_event(draft, DELETED, id, {"version": ref.version + 1}, None)
            self._put_text(draft, id, None, decode_record(ref.value))
            try:
                self._engine.commit(draft.batch())
            except RefMoved:
                backoff.wait()
                continue
            return True

    def forget(self, id: str) -> Forgotten:
        """Erase a document with all its versions and index entries; return the receipt."""
        self._ref_name(id)
        self._vectors.clear()
        return self._forgetter(document_scope(self._namespace, id))

    def load(self, id: str, *, version: int | None = None, include_expired: bool = False) -> MemoryDocument:
        """Return a document, or a version of it; raise `NotFound` if it does not exist or has expired."""
        found = self.get(id, version=version, include_expired=include_expired)
        if found is None:
            which = "" if version is None else f", version {version},"
            raise NotFound(f"memory {id!r}{which} not found. List documents with: treering memory list")
        return found

    def get(
        self, id: str, *, version: int | None = None, include_expired: bool = False
    ) -> MemoryDocument | None:
        """Return what `load` returns, or ``None`` if there is no such document or version."""
        self._note_read("read", id=id, version=version)
        if version is not None:
            for change in self.history(id):
                if change.version == version:
                    return change.document
            return None
        ref = self._ref(id)
        if ref is None:
            return None
        record = decode_record(ref.value)
        if record.is_expired(self._clock.now_us()) and not include_expired:
            return None
        return self._document(ref, record)

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
        """List documents by id: with any (or all) of the tags, and with ids that start with ``prefix``."""
        chosen = self._chosen(
            validate_tags(tags), match, prefix, auto_load=auto_load, include_expired=include_expired
        )
        found: list[MemoryDocument] = []
        for page in chosen:
            found += (each for each in self._documents(page) if filter is None or filter(each))
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def page(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        auto_load: bool | None = None,
        prefix: str = "",
        include_expired: bool = False,
        first: int = 100,
        cursor: str | None = None,
    ) -> MemoryPage:
        """Return one page of `query`; the cursor is the id of the last document that was looked at.

        A page takes the same time however many documents there are. So with filters it may be short or empty
        and still have a cursor.
        """
        chosen = self._chosen(
            validate_tags(tags),
            match,
            prefix,
            auto_load=auto_load,
            include_expired=include_expired,
            after=cursor,
            limit=min(first, _PAGE),
        )
        found: list[tuple[Ref, DocumentRecord]] = []
        scanned = 0
        for page in chosen:
            for ref, record in page:
                scanned += 1
                if record is not None:
                    found.append((ref, record))
                if len(found) == first or scanned == _MAX_SCANNED:
                    last = ref.name.removeprefix(self._prefix)
                    return MemoryPage(documents=tuple(self._documents(found)), cursor=last)
        return MemoryPage(documents=tuple(self._documents(found)), cursor=None)

    def _chosen(
        self,
        tags: Sequence[str],
        match: TagMatch,
        prefix: str,
        *,
        auto_load: bool | None,
        include_expired: bool,
        after: str | None = None,
        limit: int = _PAGE,
    ) -> Iterator[list[tuple[Ref, DocumentRecord | None]]]:
        """Yield pages of documents by id, each with its record if it passes the filters."""
        now_us = self._clock.now_us()
        behind = None if after is None else self._prefix + after
        while True:
            refs = self._engine.scan_refs(self._space, self._prefix + prefix, after=behind, limit=limit)
            page: list[tuple[Ref, DocumentRecord | None]] = []
            for ref in refs:
                try:
                    record = decode_record(ref.value)
                except Corrupt as error:
                    note_unreadable(ref.name, error)
                    page.append((ref, None))
                    continue
                is_match = (
                    (include_expired or not record.is_expired(now_us))
                    and (auto_load is None or record.auto_load == auto_load)
                    and matches_tags(record.tags, tags, match)
                )
                page.append((ref, record if is_match else None))
            if page:
                yield page
            if len(refs) < limit:
                return
            behind = refs[-1].name
            limit = _PAGE

    def _documents(self, chosen: Sequence[tuple[Ref, DocumentRecord | None]]) -> Iterator[MemoryDocument]:
        found = [(ref, record) for ref, record in chosen if record is not None]
        texts = read_contents(self._engine, self._space, [record for _, record in found])
        for (ref, record), text in zip(found, texts, strict=True):
            yield self._document(ref, record, text)

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
        semantic_weight: float = 0.5,
    ) -> MemorySearch:
        """Find documents by the words of a query, best match first.

        Args:
            everywhere: Search all namespaces, not just this one.
            neighbours: For documents numbered in order, such as the turns of a conversation: the share of
                its score that a match adds to the documents before and after it (0.3 is a good value).
            embedder: Search by meaning as well, with this embedder instead of that of `with_embedder`.
            semantic_weight: The share of meaning in the score, 0 to 1; the rest is words.
        """
        wanted = validate_tags(tags)
        reason = why_unrankable(text)
        if reason:
            return self._search_literally(
                text, reason, tags=wanted, match=match, limit=limit, everywhere=everywhere
            )
        searcher = Searcher(
            self._engine,
            self._space,
            None if everywhere else self._namespace,
            now_us=self._clock.now_us(),
            embedder=self._embedder if embedder is None else validate_embedder(embedder),
            vectors=self._vectors,
        )
        found = searcher.search(
            text,
            tags=wanted,
            match=match,
            limit=limit,
            neighbours=neighbours,
            semantic_weight=semantic_weight,
        )
        self._note_read("search", query=text, found=[each.document.id for each in found.hits])
        return found

    def history(self, id: str) -> Iterator[MemoryVersion]:
        """List the versions of a document, newest first; deleted documents have a history too."""
        ref = self._ref(id)
        scope = document_scope(self._namespace, id)
        query = EventQuery(kinds=MEMORY_KINDS, scope=scope, newest_first=True)
        after = None if ref is None else encode_cursor(query, 0, ref.seq + 1)
        newer = None if ref is None else ref.version + 1
        for records in record_pages(self._engine, self._space, query, after=after, limit=_PAGE):
            for change in self._read_versions(id, records, newer):
                newer = change.version
                yield change

    def diff(self, id: str, old: int, new: int | None = None) -> MemoryDiff:
        """Compare two versions; without ``new``, the newest one."""
        from difflib import unified_diff

        versions = {change.version: change for change in self.history(id)}
        if not versions:
            raise NotFound(
                f"memory {id!r} not found in namespace {self._namespace!r}. "
                "List documents with: treering memory list"
            )
        latest = max(versions) if new is None else new
        for wanted in (old, latest):
            if wanted not in versions:
                existing = ", ".join(map(str, sorted(versions)))
                raise NotFound(f"memory {id!r} has no version {wanted}; it has {existing}")
        empty = MemoryDocument(id=id, content="")
        before, after = versions[old].document or empty, versions[latest].document or empty
        lines = unified_diff(
            before.content.splitlines(),
            after.content.splitlines(),
            fromfile=f"{id} version {old}",
            tofile=f"{id} version {latest}",
            lineterm="",
        )
        keys = sorted((set(before.metadata) | set(after.metadata)) - {"tags", "created_at", "updated_at"})
        return MemoryDiff(
            id=id,
            old=old,
            new=latest,
            text="\n".join(lines),
            added_tags=tuple(tag for tag in after.tags if tag not in before.tags),
            removed_tags=tuple(tag for tag in before.tags if tag not in after.tags),
            changed_metadata=tuple(
                key for key in keys if before.metadata.get(key) != after.metadata.get(key)
            ),
        )

    def context(
        self,
        *,
        auto_load: bool = True,
        max_documents: int | None = None,
        max_tokens: int | None = None,
        filter: Callable[[MemoryDocument], bool] | None = None,
    ) -> MemoryContext:
        """Return the text to put into an agent's context; see `memory_context`."""
        found = memory_context(
            self,
            auto_load=auto_load,
            max_documents=max_documents,
            max_tokens=max_tokens,
            filter=filter,
            now=to_datetime(self._clock.now_us()),
        )
        self._note_read("context", found=[each.id for each in found.documents])
        return found

    def sync_folder(self, path: str | Path, *, dry_run: bool = False) -> FolderSync:
        """Synchronise a folder of Markdown files with this namespace, in both directions.

        A document that was changed on both sides is reported as a conflict and left alone on both. Files
        without changes are not written.
        """
        return sync_folder(self, Path(path), dry_run=dry_run)

    def _copy(self, namespace: str, embedder: Embedder | None) -> Memory:
        return Memory(
            self._engine,
            self._space,
            namespace,
            clock=self._clock,
            forgetter=self._forgetter,
            embedder=embedder,
            vectors=self._vectors,
        )

    def _ref_name(self, id: str) -> str:
        scope = document_scope(self._namespace, check_id(id, "memory id"))
        check_id(scope, "the scope of a memory (/ as %2F)")
        return check_id(self._prefix + id, "the ref of a memory")

    def _ref(self, id: str) -> Ref | None:
        name = self._ref_name(id)
        return self._engine.refs(self._space, [name]).get(name)

    def _document(self, ref: Ref, record: DocumentRecord, content: str | None = None) -> MemoryDocument:
        if content is None:
            (content,) = read_contents(self._engine, self._space, [record])
        return record.to_document(ref.name[len(self._prefix) :], ref.version, content)

    def _swap(
        self,
        id: str,
        compute: Callable[[MemoryDocument | None], MemoryDocument],
        if_version: int | None,
        provenance: Provenance | None,
    ) -> MemoryDocument:
        """Save what is computed from the stored document; an identical one creates no version."""
        name = self._ref_name(id)
        backoff = Backoff()
        while True:
            ref = self._ref(id)
            check_version(f"memory {id!r}", ref, if_version)
            before = None if ref is None else decode_record(ref.value)
            document = compute(None if ref is None or before is None else self._document(ref, before))
            draft = Draft(self._space)
            record = self._put(draft, document, ref, before, self._complete_provenance(provenance))
            if draft.is_empty and ref is not None and before is not None:
                return self._document(ref, before, document.content)
            self._put_vectors(draft, [(document, record, before)])
            try:
                versions = self._engine.commit(draft.batch()).versions
            except RefMoved:
                backoff.wait()
                continue
            return record.to_document(id, versions[name], document.content)

    def _put(
        self,
        draft: Draft,
        document: MemoryDocument,
        ref: Ref | None,
        before: DocumentRecord | None,
        provenance: Provenance | None,
    ) -> DocumentRecord:
        """Put a document into a draft; one that is identical to the stored one adds nothing."""
        scope = document_scope(self._namespace, document.id)
        record = put_document(
            draft, document, scope=scope, before=before, now_us=self._clock.now_us(), provenance=provenance
        )
        if before is not None and record.is_same(before):
            return record
        draft.set_ref(
            self._ref_name(document.id),
            record.encode(),
            scope=scope,
            expect=ABSENT if ref is None else ref.version,
            links=(record.address,),
        )
        data = record.to_dict() | ({} if ref is None else {"version": ref.version + 1})
        self._add_event(draft, SAVED, document.id, data, record)
        self._put_text(draft, document.id, record, before)
        return record

    def _put_vectors(
        self,
        draft: Draft,
        changes: Iterable[tuple[MemoryDocument, DocumentRecord, DocumentRecord | None]],
    ) -> None:
        """Put vectors for changed texts into the same commit."""
        if self._embedder is None:
            return
        changed = [
            (document, record)
            for document, record, before in changes
            if before is None or before.digest != record.digest
        ]
        vectors = embed_texts(self._embedder, [document.content for document, _ in changed])
        for (document, record), numbers in zip(changed, vectors, strict=True):
            draft.set_ref(
                vector_ref(self._embedder.name, self._ref_name(document.id)),
                Vector(record.digest, numbers).encode(),
                scope=document_scope(self._namespace, document.id),
            )

    def _embed_stored(self, embedder: Embedder, missing: Sequence[tuple[Ref, DocumentRecord]]) -> int:
        """Commit vectors for stored texts; return how many. A text deleted in the meantime gets none."""
        draft = Draft(self._space)
        try:
            texts = read_contents(self._engine, self._space, [record for _, record in missing])
            for (ref, record), numbers in zip(missing, embed_texts(embedder, texts), strict=True):
                # The link makes the commit fail if the text was forgotten, so that no vector outlives it.
                draft.set_ref(
                    vector_ref(embedder.name, ref.name),
                    Vector(record.digest, numbers).encode(),
                    scope=ref.scope,
                    links=(record.address,),
                )
                name = ref.name[len(self._prefix) :]
                self._add_event(draft, EMBEDDED, name, {"embedder": embedder.name}, None)
            receipt = self._engine.commit(draft.batch())
        except (MissingObjects, NotFound):
            if len(missing) == 1:
                return 0
            return sum(self._embed_stored(embedder, [each]) for each in missing)
        # Content shared with another document survives, so the link alone does not show a deletion.
        existing = self._engine.refs(self._space, [ref.name for ref, _ in missing])
        for number, (ref, _) in enumerate(missing):
            if ref.name not in existing:
                orphan = (vector_ref(embedder.name, ref.name),)
                erasure = Erasure(refs=orphan, event_seqs=(receipt.first_seq + number,), secure=True)
                self._engine.erase(self._space, erasure)
        return len(existing)

    def _note_read(self, what: str, **about: Any) -> None:
        """Note in the journal of the current run what it read. It is written behind."""
        node = current_node.get()
        if node is None:
            return
        context, event_id, at_us, span = node.context, new_id(), self._clock.now_us(), node.span_id
        data = {name: value for name, value in about.items() if value is not None}
        data |= {"what": what, "namespace": self._namespace}
        if "found" in data:
            data["found"] = data["found"][:_MAX_NOTED]
        if "query" in data:
            data["query"] = data["query"][:_MAX_QUERY]

        def write(draft: Draft) -> None:
            writer = context.writer
            draft.event(
                Event(
                    id=event_id,
                    kind=READ,
                    ts_us=at_us,
                    scope=writer.scope,
                    run=writer.run,
                    span=span,
                    thread=writer.thread,
                    agent=node.agent,
                    data=encode_json(data),
                )
            )

        context.sink.put(write)

    def _add_event(
        self, draft: Draft, kind: str, id: str, data: Mapping[str, Any], record: DocumentRecord | None
    ) -> None:
        node = current_node.get()
        draft.event(
            Event(
                id=new_id(),
                kind=kind,
                ts_us=self._clock.now_us(),
                scope=document_scope(self._namespace, id),
                name=id,
                run=None if node is None else node.run_id,
                span=None if node is None else node.span_id,
                agent=None if node is None else node.agent,
                data=encode_json(data, keep_order=True),
                body=None if record is None else record.address,
            )
        )

    def _put_text(
        self, draft: Draft, id: str, record: DocumentRecord | None, before: DocumentRecord | None
    ) -> None:
        """Update the text index: by words, and by trigrams where the old or new text needs them."""
        if record is not None and before is not None and record.address == before.address:
            return
        collections = [WORDS]
        if (record is not None and record.wide) or (before is not None and before.wide):
            collections.append(TRIGRAMS)
        for collection in collections:
            is_indexed = record is not None and (collection == WORDS or record.wide)
            draft.text(
                Text(
                    collection=collection,
                    name=self._ref_name(id),
                    scope=document_scope(self._namespace, id),
                    source=record.address if is_indexed and record is not None else None,
                    namespace=self._namespace,
                    tokens="words" if collection == WORDS else "trigrams",
                )
            )

    def _complete_provenance(self, provenance: Provenance | None) -> Provenance | None:
        """Fill in the current run, and lower the trust to that of the sources."""
        node = current_node.get()
        if provenance is None:
            return None if node is None else Provenance(run=node.run_id)
        refs = [self._ref(each) for each in provenance.derived_from]
        sources = [decode_record(ref.value).provenance for ref in refs if ref is not None]
        trust = lowest_trust([provenance.trust, *(each.trust for each in sources if each is not None)])
        run = provenance.run or (None if node is None else node.run_id)
        return msgspec.structs.replace(provenance, trust=trust, run=run)

    def _read_versions(
        self, id: str, records: Iterable[Record], newer: int | None
    ) -> Iterator[MemoryVersion]:
        """Read the versions of a page of events; ``newer`` is the version after the first of them."""
        events = [(record, decode_json(record.event.data or b"{}")) for record in records]
        saved = {record.seq: record_from_dict(data) for record, data in events if record.event.kind == SAVED}
        texts = dict(zip(saved, read_contents(self._engine, self._space, saved.values()), strict=True))
        for record, data in events:
            # The first version after a deletion does not know its number, but the one after it does.
            version: int = data.get("version") or (1 if newer is None else newer - 1)
            newer = version
            state = saved.get(record.seq)
            yield MemoryVersion(
                id=id,
                version=version,
                operation="deleted" if state is None else "saved",
                document=None if state is None else state.to_document(id, version, texts[record.seq]),
                provenance=None if state is None else state.provenance,
                changed_at_us=record.event.ts_us,
                seq=record.seq,
            )

    def _search_literally(
        self, text: str, reason: str, *, tags: list[str], match: TagMatch, limit: int, everywhere: bool
    ) -> MemorySearch:
        """Find documents that contain a query without rankable terms, newest first."""
        wanted = text.strip().casefold()
        hits: list[MemoryHit] = []
        if any(each.isalnum() for each in wanted):
            for namespace in list(self.namespaces()) if everywhere else [self._namespace]:
                documents = self.in_namespace(namespace).query(
                    tags=tags, match=match, filter=lambda each: wanted in each.content.casefold()
                )
                hits += [MemoryHit(document=each, namespace=namespace, score=0.0) for each in documents]
        hits.sort(key=lambda hit: hit.document.metadata["updated_at"], reverse=True)
        return MemorySearch(hits=tuple(hits[:limit]), ranked=False, note=reason)
