"""Objects: content by its SHA-256 name, in rows or in pack files.

A row of ``object`` says where the bytes are: in the row itself (``frame``), or in a pack (`core.packs`) of
the blob store. Reading is two steps, so that no database transaction waits for a disk or a bucket:
`Objects.locate` asks the rows, `Objects.read` gets the bytes, neighbours in one request and each frame
unfolded once. Between the two, another process may have moved the objects into a new pack and deleted the
old one; that is a `PackGone`, and asking again gives the new place (`Objects.load` does). **Invariant:**
content is given back only when it hashes to its name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.address import is_object_name
from treering.core.content import Content
from treering.core.frame import unseal
from treering.core.packs import SALT_SIZE, PackEntry, frames_of, neighbours_of, read_frame
from treering.engines.relational import repacking, staging
from treering.engines.relational.rows import frame_of, kind_of
from treering.engines.relational.session import IN_LIMIT, ask_in_chunks, in_chunks
from treering.errors import Corrupt, InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from treering.core.storage import Blobs
    from treering.engines.relational.session import Database, Session

_SELECT: Final = (
    'SELECT o.name, o.kind, o.frame, p.name, o.size, o."offset", o.length, o.inner_offset, o.pack '
    "FROM object o LEFT JOIN pack p ON p.no = o.pack WHERE o.space = ? AND o.name IN (@)"
)


class PackGone(Corrupt):
    """A pack that objects lie in is not in the blob store.

    It was rewritten since they were located, so the same read may be tried once more in a new
    transaction. When it is gone then, too, the objects are lost.
    """


class Located(msgspec.Struct, frozen=True):
    """Where some objects are: the bytes themselves, or places in packs by the pack's blob name."""

    inline: tuple[tuple[str, int, bytes], ...]
    """Name, kind number, frame."""
    packed: dict[str, list[PackEntry]]


class Objects:
    """All objects of a store. Without a blob store, everything is in rows."""

    def __init__(
        self, blobs: Blobs | None, *, new_salt: Callable[[], bytes] = lambda: os.urandom(SALT_SIZE)
    ) -> None:
        self._blobs = blobs
        self._new_salt = new_salt

    # Reading
    def missing(self, session: Session, space: int, names: Sequence[str]) -> set[str]:
        """Which of these objects have no row."""
        wanted = _as_keys(names)
        rows = in_chunks(session, "SELECT name FROM object WHERE space = ? AND name IN (@)", (space,), wanted)
        return set(names) - {bytes(name).hex() for (name,) in rows}

    def locate(self, session: Session, space: int, names: Sequence[str]) -> Located:
        """Where those of the objects are that exist. Needs the session only until it returns."""
        inline: list[tuple[str, int, bytes]] = []
        packed: dict[str, list[PackEntry]] = {}
        for name, kind, frame, place in _rows(session, space, names):
            if frame is not None:
                inline.append((name, kind, frame))
            else:
                _place_in(packed, name, kind, place)
        return Located(tuple(inline), packed)

    def read(self, located: Located) -> dict[str, Content]:
        """The verified content of located objects, by name; `PackGone` when a pack was rewritten since."""
        return dict(self.stream(located))

    def stream(self, located: Located) -> Iterator[tuple[str, Content]]:
        """The same one by one, for those who do not want all of it in memory."""
        for name, kind, frame in located.inline:
            yield name, _verified(name, kind, frame)
        for pack, entries in located.packed.items():
            for frames in neighbours_of(frames_of(entries)):
                start, last = frames[0].offset, frames[-1]
                data = memoryview(
                    self._range(pack, start, last.offset + last.length, frames[0].entries[0].name)
                )
                for offset, length, inside in frames:
                    frame = data[offset - start : offset - start + length]
                    names = [entry.name for entry in inside]
                    yield from zip(names, read_frame(frame, inside, pack=pack), strict=True)

    def fetch(self, session: Session, space: int, names: Sequence[str]) -> dict[str, Content]:
        """The verified content of those objects that exist, within one transaction.

        Rows are unfolded as they come: the frames of all of them are never there together. A `PackGone`
        cannot be helped here, because the transaction goes on seeing the old rows: the caller begins a new
        one.
        """
        found: dict[str, Content] = {}
        packed: dict[str, list[PackEntry]] = {}
        for name, kind, frame, place in _rows(session, space, names):
            if frame is not None:
                found[name] = _verified(name, kind, frame)
            else:
                _place_in(packed, name, kind, place)
        if packed:
            found.update(self.stream(Located((), packed)))
        return found

    def load(self, database: Database, space: int, names: Sequence[str]) -> dict[str, Content]:
        """The verified content of those objects that exist, without holding a transaction meanwhile."""
        with database.reading() as session:
            located = self.locate(session, space, names)
        try:
            return self.read(located)
        except PackGone:
            with database.reading() as session:
                located = self.locate(session, space, names)
            return self.read(located)

    def _range(self, pack: str, start: int, stop: int, name: str) -> bytes:
        if self._blobs is None:
            raise Corrupt(f"object {name} lies in {pack}, but this store was opened without its blob store")
        try:
            return self._blobs.get(pack, start=start, stop=stop)
        except NotFound:
            raise PackGone(
                f"object {name}: its pack {pack} is not in {self._blobs.url}; restore it from a backup"
            ) from None

    def check_index(self, pack: str, size: int) -> None:
        """See whether the head and the index of a pack are as they were; only `rewrite` needs them."""
        repacking.names_in(self._packs(), pack, size)

    # Writing
    def stage(self, database: Database, space: int, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that will require them; their names, in order.

        Memory stays bounded by a few packs, however much there is. What is stored already is not written
        again, but kept from being swept for as long as what is new.
        """
        return staging.Staging(database, self._blobs, space, self._new_salt).run(contents)

    def rewrite(
        self, database: Database, space: int, pack_no: int, drop: AbstractSet[str] = frozenset()
    ) -> int:
        """Write a pack anew without some objects; how many bytes of files that freed.

        Afterwards no byte of the dropped objects is in the blob store, nor of any other object in that
        pack that no row points at. Rows of dropped objects that are still in this pack are deleted.
        """
        return repacking.rewrite(
            database, self._packs(), space, pack_no=pack_no, drop=drop, new_salt=self._new_salt
        )

    def packs_with_strays(self, database: Database, space: int) -> list[int]:
        """Packs that hold bytes which no row looks for any more; `rewrite` them to be rid of those."""
        return repacking.with_strays(database, self._blobs, space)

    def delete_packs(self, database: Database, space: int) -> int:
        """Delete the packs that no object lies in any more; how many bytes of files that freed."""
        return repacking.delete_empty(database, self._blobs, space)

    def orphans(self, database: Database, *, older_than_seconds: float) -> list[str]:
        """Pack files that no row knows, left behind by a writer that died."""
        return repacking.orphans(database, self._blobs, older_than_seconds=older_than_seconds)

    def delete_orphans(self, names: Iterable[str]) -> None:
        """Delete what `orphans` found."""
        if self._blobs is not None:
            self._blobs.delete(names)

    def _packs(self) -> Blobs:
        if self._blobs is None:
            raise Corrupt("there are packs, but this store was opened without its blob store; pass blobs=")
        return self._blobs


def _rows(
    session: Session, space: int, names: Iterable[str]
) -> Iterator[tuple[str, int, bytes | None, Sequence[Any]]]:
    """Name, kind number and frame of each object that exists; of one in a pack, its place instead.

    Whoever loops over them gives them no name: the traceback of an error would keep the question open.
    """
    keys = _as_keys(dict.fromkeys(names))
    for start in range(0, len(keys), IN_LIMIT):
        some = keys[start : start + IN_LIMIT]
        for key, kind, frame, *place in ask_in_chunks(session, _SELECT, (space,), some):
            name = bytes(key).hex()
            yield name, kind, None if frame is None else frame_of(frame, f"object {name}"), place


def _verified(name: str, kind: int, frame: bytes) -> Content:
    where = f"object {name}"
    content = Content(kind_of(kind, where), unseal(frame, where, has_name=True))
    if content.name != name:
        raise Corrupt(
            f"object {name}: the bytes do not hash to this name; restore it from a backup or a copy"
        )
    return content


def _place_in(packed: dict[str, list[PackEntry]], name: str, kind: int, place: Sequence[Any]) -> None:
    pack, size, offset, length, inner_offset, pack_no = place
    if pack is None:
        raise Corrupt(f"object {name} points at pack {pack_no}, which no row describes; run verify")
    entry = PackEntry(name, kind_of(kind, f"object {name}"), size, offset, length, inner_offset)
    packed.setdefault(pack, []).append(entry)


def _as_keys(names: Iterable[str]) -> list[bytes]:
    keys: list[bytes] = []
    for name in names:
        if not is_object_name(name):
            raise InvalidInput(f"not an object name: {name[:80]!r}; expected 64 lower-case hex digits")
        keys.append(bytes.fromhex(name))
    return keys
