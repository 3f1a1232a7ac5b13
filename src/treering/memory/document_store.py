"""Where the documents of one namespace lie: refs, events and index entries, moved together.

Every change is computed from what is there and committed only if that is still there; whoever lost the race
computes again. **Invariant:** a version number belongs to exactly one event of the journal.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import ABSENT, Draft, Event, Text
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import check_id, new_id
from treering.core.paging import record_pages, ref_pages
from treering.core.query import Erasure, EventQuery, encode_cursor
from treering.errors import MissingObjects, NotFound, RefMoved
from treering.memory.documents import (
    DELETED,
    EMBEDDED,
    MEMORY_KINDS,
    SAVED,
    TRIGRAMS,
    WORDS,
    MemoryDocument,
    MemoryVersion,
    Provenance,
    Stored,
    contents,
    from_facts,
    kept,
    least_trust,
    prefix_of,
    scope_of,
    stored,
)
from treering.memory.vectors import Embedder, Vector, embedded, embedders_in, stored_vector, vector_ref
from treering.runs.span import current_node

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref

_PAGE: Final = 500
_EMBEDDED_AT_ONCE: Final = 100
_LONGEST_PAUSE: Final = 0.05


class Shelf:
    """The documents of one namespace, as they are stored."""

    def __init__(
        self, engine: Engine, space: str, namespace: str, *, clock: Clock, embedder: Embedder | None = None
    ) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace
        self._clock = clock
        self._embedder = embedder
        self._prefix = prefix_of(namespace)

    def delete(self, id: str, if_version: int | None) -> bool:
        """Take a document away, if it is there (and at that version)."""
        for attempt in itertools.count():
            ref = self.ref(id)
            _check_version(id, ref, if_version)
            if ref is None:
                return False
            draft = Draft(self._space)
            self._take_away(draft, id, ref)
            if self._committed(draft) is not None:
                return True
            _pause(attempt)
        raise AssertionError  # attempts never end

    def swap(
        self,
        id: str,
        computed: Callable[[MemoryDocument | None], MemoryDocument],
        if_version: int | None,
        provenance: Provenance | None,
    ) -> MemoryDocument:
        """Save what is computed from the document that is there; the same again is no new version."""
        name = self.name(id)
        for attempt in itertools.count():
            ref = self.ref(id)
            _check_version(id, ref, if_version)
            before = None if ref is None else stored(ref.value)
            document = computed(None if ref is None or before is None else self.document(ref, before))
            draft = Draft(self._space)
            record = self._put(draft, document, ref, before, self._origin(provenance))
            if draft.is_empty and ref is not None and before is not None:
                return self.document(ref, before, document.content)
            self._embed(draft, [(document, record, before)])
            versions = self._committed(draft)
            if versions is not None:
                return record.document(id, versions[name], document.content)
            _pause(attempt)
        raise AssertionError  # attempts never end

    def save_all(
        self, documents: Iterable[MemoryDocument], provenance: Provenance | None
    ) -> list[MemoryDocument]:
        """Save many documents in one commit; of those with the same id the last one."""
        given = {self.name(document.id): document for document in documents}
        for attempt in itertools.count():
            refs = self._engine.refs(self._space, list(given))
            draft = Draft(self._space)
            origin = self._origin(provenance)
            records: dict[str, Stored] = {}
            changes: list[tuple[MemoryDocument, Stored, Stored | None]] = []
            for name, document in given.items():
                ref = refs.get(name)
                before = None if ref is None else stored(ref.value)
                records[name] = self._put(draft, document, ref, before, origin)
                changes.append((document, records[name], before))
            self._embed(draft, changes)
            versions = {} if draft.is_empty else self._committed(draft)
            if versions is not None:
                return [
                    records[name].document(document.id, versions[name], document.content)
                    if name in versions
                    else self.document(refs[name], stored(refs[name].value), document.content)
                    for name, document in given.items()
                ]
            _pause(attempt)
        raise AssertionError  # attempts never end

    def history(self, id: str) -> Iterator[MemoryVersion]:
        """Every version, newest first."""
        name = self.name(id)
        ref = self._engine.refs(self._space, [name]).get(name)
        query = EventQuery(kinds=MEMORY_KINDS, scope=scope_of(self._namespace, id), newest_first=True)
        after = None if ref is None else encode_cursor(query, 0, ref.seq + 1)
        newer = None if ref is None else ref.version + 1
        for records in record_pages(self._engine, self._space, query, after=after, limit=_PAGE):
            for change in self._versions(id, records, newer):
                newer = change.version
                yield change

    def document(self, ref: Ref, record: Stored, content: str | None = None) -> MemoryDocument:
        """A document with its content."""
        if content is None:
            (content,) = contents(self._engine, self._space, [record])
        return record.document(self.id_of(ref), ref.version, content)

    def pages(self, prefix: str) -> Iterator[list[Ref]]:
        """The refs of documents whose ids start so, in order."""
        return ref_pages(self._engine, self._space, self._prefix + prefix, limit=_PAGE)

    def name(self, id: str) -> str:
        """The name of a document's ref."""
        check_id(scope_of(self._namespace, check_id(id, "memory id")), "the scope of a memory (/ as %2F)")
        return check_id(self._prefix + id, "the ref of a memory")

    def id_of(self, ref: Ref) -> str:
        """The document's id."""
        return ref.name[len(self._prefix) :]

    def ref(self, id: str) -> Ref | None:
        """Where a document is now."""
        name = self.name(id)
        return self._engine.refs(self._space, [name]).get(name)

    def _put(
        self,
        draft: Draft,
        document: MemoryDocument,
        ref: Ref | None,
        before: Stored | None,
        origin: Provenance | None,
    ) -> Stored:
        """Put a document into a draft; one that says the same as before puts nothing in."""
        scope = scope_of(self._namespace, document.id)
        record = kept(
            draft, document, scope=scope, before=before, now_us=self._clock.now_us(), provenance=origin
        )
        if before is not None and record.says_the_same(before):
            return record
        expect = ABSENT if ref is None else ref.version
        draft.set_ref(
            self.name(document.id), record.encoded(), scope=scope, expect=expect, links=(record.address,)
        )
        facts = record.facts() | ({} if ref is None else {"version": ref.version + 1})
        self._tell(draft, SAVED, document.id, facts, record)
        self._index(draft, document.id, record, before)
        return record

    def _embed(self, draft: Draft, changes: Iterable[tuple[MemoryDocument, Stored, Stored | None]]) -> None:
        """Vectors for the texts that are new, in the same commit."""
        if self._embedder is None:
            return
        new = [
            (document, record)
            for document, record, before in changes
            if before is None or before.digest != record.digest
        ]
        vectors = embedded(self._embedder, [document.content for document, _ in new])
        for (document, record), halves in zip(new, vectors, strict=True):
            draft.set_ref(
                vector_ref(self._embedder.name, self.name(document.id)),
                Vector(record.digest, halves).encoded(),
                scope=scope_of(self._namespace, document.id),
            )

    def embed_missing(self) -> int:
        """Give vectors to the texts that have none; says how many did."""
        embedder = self._embedder
        if embedder is None:
            return 0
        count = 0
        for page in self.pages(""):
            names = {ref.name: vector_ref(embedder.name, ref.name) for ref in page}
            known = self._engine.refs(self._space, list(names.values()))
            lacking = [
                (ref, record)
                for ref in page
                for record in [stored(ref.value)]
                if (there := known.get(names[ref.name])) is None
                or stored_vector(there.value).digest != record.digest
            ]
            for start in range(0, len(lacking), _EMBEDDED_AT_ONCE):
                count += self._embed_stored(embedder, lacking[start : start + _EMBEDDED_AT_ONCE])
        return count

    def _embed_stored(self, embedder: Embedder, lacking: list[tuple[Ref, Stored]]) -> int:
        """Vectors for texts that are there; says how many. A text that goes meanwhile gets none."""
        draft = Draft(self._space)
        try:
            texts = contents(self._engine, self._space, [record for _, record in lacking])
            for (ref, record), halves in zip(lacking, embedded(embedder, texts), strict=True):
                # The link makes the commit fail where the text was forgotten: no vector comes after it.
                draft.set_ref(
                    vector_ref(embedder.name, ref.name),
                    Vector(record.digest, halves).encoded(),
                    scope=ref.scope,
                    links=(record.address,),
                )
                self._tell(draft, EMBEDDED, self.id_of(ref), {"embedder": embedder.name}, None)
            receipt = self._engine.commit(draft.batch())
        except (MissingObjects, NotFound):
            if len(lacking) == 1:
                return 0
            return sum(self._embed_stored(embedder, [each]) for each in lacking)
        # Content that others share is there still, also when its document went: look once more.
        there = self._engine.refs(self._space, [ref.name for ref, _ in lacking])
        for number, (ref, _) in enumerate(lacking):
            if ref.name not in there:
                gone = (vector_ref(embedder.name, ref.name),)
                late = Erasure(refs=gone, event_seqs=(receipt.first_seq + number,), secure=True)
                self._engine.erase(self._space, late)
        return len(there)

    def _take_away(self, draft: Draft, id: str, ref: Ref) -> None:
        before = stored(ref.value)
        vectors = [prefix + ref.name.partition("/")[2] for prefix in embedders_in(self._engine, self._space)]
        for name in self._engine.refs(self._space, vectors) if vectors else ():
            draft.delete_ref(name, scope=ref.scope)
        draft.delete_ref(ref.name, scope=ref.scope, expect=ref.version)
        self._tell(draft, DELETED, id, {"version": ref.version + 1}, None)
        self._index(draft, id, None, before)

    def _tell(
        self, draft: Draft, kind: str, id: str, facts: Mapping[str, Any], record: Stored | None
    ) -> None:
        place = current_node.get()
        draft.event(
            Event(
                id=new_id(),
                kind=kind,
                ts_us=self._clock.now_us(),
                scope=scope_of(self._namespace, id),
                name=id,
                run=None if place is None else place.run_id,
                span=None if place is None else place.span_id,
                agent=None if place is None else place.agent,
                data=encode_json(facts, keep_order=True),
                body=None if record is None else record.address,
            )
        )

    def _index(self, draft: Draft, id: str, record: Stored | None, before: Stored | None) -> None:
        if record is not None and before is not None and record.address == before.address:
            return
        collections = [WORDS]
        if (record is not None and record.wide) or (before is not None and before.wide):
            collections.append(TRIGRAMS)
        for collection in collections:
            is_in = record is not None and (collection == WORDS or record.wide)
            draft.text(
                Text(
                    collection=collection,
                    name=self.name(id),
                    scope=scope_of(self._namespace, id),
                    source=record.address if is_in and record is not None else None,
                    namespace=self._namespace,
                    tokens="words" if collection == WORDS else "trigrams",
                )
            )

    def _committed(self, draft: Draft) -> dict[str, int] | None:
        """The versions that the refs have now; nothing when someone else was first."""
        try:
            return self._engine.commit(draft.batch()).versions
        except RefMoved:
            return None

    def _origin(self, given: Provenance | None) -> Provenance | None:
        place = current_node.get()
        if given is None:
            return None if place is None else Provenance(run=place.run_id)
        sources = [self.ref(each) for each in given.derived_from]
        origins = [stored(ref.value).provenance for ref in sources if ref is not None]
        trust = least_trust([given.trust, *(each.trust for each in origins if each is not None)])
        run = given.run or (None if place is None else place.run_id)
        return msgspec.structs.replace(given, trust=trust, run=run)

    def _versions(self, id: str, records: Iterable[Record], newer: int | None) -> Iterator[MemoryVersion]:
        told = [(record, decode_json(record.event.data or b"{}")) for record in records]
        saved = {record.seq: from_facts(facts) for record, facts in told if record.event.kind == SAVED}
        texts = dict(zip(saved, contents(self._engine, self._space, saved.values()), strict=True))
        for record, facts in told:
            # A document that came back after a deletion goes on counting: its successor knows its number.
            version: int = facts.get("version") or (1 if newer is None else newer - 1)
            newer = version
            state = saved.get(record.seq)
            yield MemoryVersion(
                id=id,
                version=version,
                operation="deleted" if state is None else "saved",
                document=None if state is None else state.document(id, version, texts[record.seq]),
                provenance=None if state is None else state.provenance,
                changed_at_us=record.event.ts_us,
                seq=record.seq,
            )


def _check_version(id: str, ref: Ref | None, wanted: int | None) -> None:
    if wanted is None or wanted == (0 if ref is None else ref.version):
        return
    there = "does not exist" if ref is None else f"is at version {ref.version}"
    raise RefMoved(f"memory {id!r} {there}, expected version {wanted}; read it again and retry")


def _pause(attempt: int) -> None:
    """Let the others finish: those who lost a race do not meet again at once."""
    time.sleep(random.uniform(0, min(0.001 * 2 ** min(attempt, 10), _LONGEST_PAUSE)))
