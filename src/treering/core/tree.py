"""Folders of files as content: names, modes and the objects that hold the bytes.

Each folder is one object of kind ``tree``. A file entry lists the objects of its bytes in order (none if it
is empty, one if it is small, its chunks if it is large; see `core.chunking`), a folder entry names another
tree, and a link entry has a target. A file of at most `INLINE_BYTES` is kept in the tree itself: its name,
its row and its place in a pack would take more than its bytes. The name of the root therefore identifies the
whole folder: equal folders have equal names on any machine, and trees that share a subfolder share its
object.

The stored form is MessagePack, ``[1, [entry, ...]]``, where 1 is the format version and an entry is ``[0,
name, mode, size, objects]`` for a file, ``[1, name, mode, tree]`` for a folder, ``[2, name, target]`` for a
link and ``[3, name, mode, bytes]`` for a file that is kept in the tree. Names and targets are the bytes of
the file system (names need not be UTF-8; Python represents the other bytes by surrogateescape); ``objects``
is the concatenation of 32-byte SHA-256 names. Entries are sorted by the bytes of their names, modes have no
bits outside 0o777, and integers have their shortest encoding.
**Invariant:** a tree has exactly one stored form, and `decode_tree` accepts no other. Its result is safe to
walk, because no name in it can leave its folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from treering.core.content import Content, object_name
from treering.errors import Corrupt, InvalidInput, NewerStore

FORMAT_VERSION: Final = 1
MAX_NAME_BYTES: Final = 255
MODE_BITS: Final = 0o777
INLINE_BYTES: Final = 512
"""A file of up to this many bytes may be kept in the tree; a snapshot does so in all but huge folders."""

_HASH_BYTES: Final = 32
_MAX_SIZE: Final = (1 << 63) - 1
_FORBIDDEN_NAMES: Final = frozenset({b"", b".", b".."})


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file: ``content`` names the objects that make up its ``size`` bytes.

    The bytes of a file that is kept in the tree are ``data``, and it has no objects.
    """

    name: str
    mode: int
    size: int
    content: tuple[str, ...] = ()
    data: bytes | None = None

    @property
    def hashes(self) -> tuple[str, ...]:
        """What its bytes are known by: ``content``, or the name that ``data`` would have as an object."""
        return self.content if self.data is None else (object_name("bytes", self.data),)


class FolderEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A folder: ``tree`` names the object that holds its entries."""

    name: str
    mode: int
    tree: str


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A symbolic link as written: its target may not exist, or may be outside of the tree."""

    name: str
    target: str


TreeEntry = FileEntry | FolderEntry | LinkEntry


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one folder."""

    entries: tuple[TreeEntry, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A name that differs between two folders; ``None`` on the side where it does not exist."""

    name: str
    before: TreeEntry | None
    after: TreeEntry | None


def encode_tree(tree: Tree) -> Content:
    """Encode a folder. The order of entries does not matter; mode bits outside 0o777 are dropped."""
    stored = sorted((_to_stored(entry) for entry in tree.entries), key=_name_of)
    if problem := _first_problem(stored):
        raise InvalidInput(f"this folder cannot be stored: {problem}")
    return Content("tree", _encoder.encode((FORMAT_VERSION, stored)))


def decode_tree(content: Content) -> Tree:
    """Return the encoded folder; raise `Corrupt` for anything that `encode_tree` would not write."""
    return Tree(entries=tuple([_from_stored(entry) for entry in _read(content)]))


def links_of(content: Content) -> tuple[str, ...]:
    """Return the objects that content links to, without duplicates; none unless it is a tree."""
    if content.kind != "tree":
        return ()
    names: list[str] = []
    for entry in _read(content):
        if isinstance(entry, _StoredFile):
            names += _split(entry.objects)
        elif isinstance(entry, _StoredFolder):
            names.append(entry.tree.hex())
    return tuple(dict.fromkeys(names))


def diff(before: Tree, after: Tree) -> tuple[Change, ...]:
    """Return the differences between two folders at this level, sorted by name."""
    old = {entry.name: entry for entry in before.entries}
    new = {entry.name: entry for entry in after.entries}
    return tuple(
        Change(name=name, before=old.get(name), after=new.get(name))
        for name in sorted(old.keys() | new.keys(), key=_to_bytes)
        if old.get(name) != new.get(name)
    )


class _StoredFile(msgspec.Struct, frozen=True, array_like=True, tag=0, forbid_unknown_fields=True):
    name: bytes
    mode: int
    size: int
    objects: bytes


class _StoredFolder(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    name: bytes
    mode: int
    tree: bytes


class _StoredLink(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    name: bytes
    target: bytes


class _StoredInline(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True):
    name: bytes
    mode: int
    data: bytes


_Stored = _StoredFile | _StoredFolder | _StoredLink | _StoredInline

_encoder: Final = msgspec.msgpack.Encoder()
_outer_decoder: Final = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_entries_decoder: Final = msgspec.msgpack.Decoder(list[_Stored])


def _read(content: Content) -> list[_Stored]:
    if content.kind != "tree":
        raise InvalidInput(f"content of kind {content.kind!r} is not a folder; read it with decode")
    try:
        version, rest = _outer_decoder.decode(content.data)
        if version > FORMAT_VERSION:
            raise NewerStore(f"tree {content.name} has format {version}; upgrade treering to read it")
        entries = _entries_decoder.decode(rest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(f"tree {content.name} does not parse ({error}); run verify") from error
    problem = _first_problem(entries)
    if problem is None and _encoder.encode((FORMAT_VERSION, entries)) != content.data:
        problem = "it is not in canonical form"
    if problem is not None:
        raise Corrupt(f"tree {content.name} is invalid: {problem}; run verify")
    return entries


def _first_problem(entries: Iterable[_Stored]) -> str | None:
    previous = b""
    for entry in entries:
        name = entry.name
        is_plain = (  # a small, valid file, the common case: one test instead of six
            name > previous
            and (
                (isinstance(entry, _StoredInline) and 0 < len(entry.data) <= INLINE_BYTES)
                or (
                    isinstance(entry, _StoredFile)
                    and len(entry.objects) == _HASH_BYTES
                    and 0 < entry.size <= _MAX_SIZE
                )
            )
            and not entry.mode & ~MODE_BITS
            and len(name) <= MAX_NAME_BYTES
            and b"/" not in name
            and b"\0" not in name
            and name not in _FORBIDDEN_NAMES
        )
        if not is_plain:
            problem = _problem(entry)
            if problem is None and name <= previous:
                problem = "occurs twice" if name == previous else f"comes after {_shown(previous)}"
            if problem is not None:
                return f"entry {_shown(name)} {problem}"
        previous = name
    return None


def _problem(entry: _Stored) -> str | None:
    name = entry.name
    if name in _FORBIDDEN_NAMES or b"/" in name or b"\0" in name:
        return "has a name that no file can have"
    if len(name) > MAX_NAME_BYTES:
        return f"has a name of {len(name)} bytes, the limit is {MAX_NAME_BYTES}"
    if isinstance(entry, _StoredFile):  # most entries are files, so test them first
        return _mode_problem(entry.mode) or _content_problem(entry)
    if isinstance(entry, _StoredInline):
        return _mode_problem(entry.mode) or (
            None
            if 0 < len(entry.data) <= INLINE_BYTES
            else f"keeps {len(entry.data)} bytes in the tree, which may be 1 to {INLINE_BYTES}"
        )
    if isinstance(entry, _StoredFolder):
        return _mode_problem(entry.mode) or (
            None if len(entry.tree) == _HASH_BYTES else "has a tree that is not a SHA-256"
        )
    return None if entry.target and b"\0" not in entry.target else "has an empty target or one with NUL"


def _mode_problem(mode: int) -> str | None:
    return f"has mode {mode:#o}, outside {MODE_BITS:#o}" if mode & ~MODE_BITS else None


def _content_problem(entry: _StoredFile) -> str | None:
    count, rest = divmod(len(entry.objects), _HASH_BYTES)
    if rest:
        return "has content that is not a sequence of SHA-256 names"
    if not 0 <= entry.size <= _MAX_SIZE or (entry.size == 0) != (count == 0):
        return f"has a size of {entry.size} bytes in {count} objects"
    return None


def _to_stored(entry: TreeEntry) -> _Stored:
    name = _to_bytes(entry.name)
    if isinstance(entry, FileEntry):
        if entry.data is not None:
            if entry.content or entry.size != len(entry.data):
                raise InvalidInput(f"entry {_shown(name)} has objects, or another size than its data")
            return _StoredInline(name, entry.mode & MODE_BITS, entry.data)
        objects = b"".join([_hash_bytes(part, name) for part in entry.content])
        return _StoredFile(name, entry.mode & MODE_BITS, entry.size, objects)
    if isinstance(entry, FolderEntry):
        return _StoredFolder(name, entry.mode & MODE_BITS, _hash_bytes(entry.tree, name))
    return _StoredLink(name, _to_bytes(entry.target))


def _from_stored(entry: _Stored) -> TreeEntry:
    name = entry.name.decode("utf-8", "surrogateescape")
    if isinstance(entry, _StoredInline):
        return FileEntry(name=name, mode=entry.mode, size=len(entry.data), data=entry.data)
    if isinstance(entry, _StoredFile):
        objects = entry.objects
        content = (objects.hex(),) if len(objects) == _HASH_BYTES else _split(objects)  # usually just one
        return FileEntry(name=name, mode=entry.mode, size=entry.size, content=content)
    if isinstance(entry, _StoredFolder):
        return FolderEntry(name=name, mode=entry.mode, tree=entry.tree.hex())
    return LinkEntry(name=name, target=entry.target.decode("utf-8", "surrogateescape"))


def _name_of(entry: _Stored) -> bytes:
    return entry.name


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"name {text!a} contains a surrogate that stands for no byte; rename the file"
        ) from error


def _hash_bytes(object_name: str, entry_name: bytes) -> bytes:
    try:
        raw = bytes.fromhex(object_name)
    except ValueError:
        raw = b""
    if len(raw) != _HASH_BYTES or raw.hex() != object_name:
        raise InvalidInput(
            f"entry {_shown(entry_name)} names {object_name!a:.80}, which is not an object name"
        )
    return raw


def _split(objects: bytes) -> tuple[str, ...]:
    return tuple([objects[at : at + _HASH_BYTES].hex() for at in range(0, len(objects), _HASH_BYTES)])


def _shown(name: bytes) -> str:
    return f"{name.decode('utf-8', 'surrogateescape')!a:.80}"
