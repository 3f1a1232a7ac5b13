"""What is known of a folder since it was last looked at: the stat cache.

Reading every file to see that none changed would cost a second each time; asking for its stamp (inode, size,
the times of its last change, mode) costs a microsecond. So each snapshot leaves behind what it saw: per
file the stamp and the objects of its content, per folder the tree. A file whose stamp is the same is not
read again. A change in the same tick of the clock as the read would leave the stamp as it was, so a file
that was read that soon after its last change is remembered without a stamp, and read again.

All of this is only a shortcut: it may be lost at any time, and a damaged one counts as lost. **Invariant:**
every content that is named here can be reached from one of ``roots``; so while those are stored (and the
commit that builds on them requires them), all of it is.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from treering.core.frame import MAX_PAYLOAD, sealed, unseal
from treering.core.ids import new_id
from treering.errors import Corrupt

Stamp = tuple[int, int, int, int, int]
"""Inode, size, mtime and ctime in nanoseconds, mode."""

_TICK_NS: Final = 50_000_000
_COARSE_NS: Final = 2_100_000_000
_SECOND_NS: Final = 1_000_000_000


class KnownFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it was read: its stamp then, how many bytes it had, and the objects that hold them.

    ``cuts`` are the sizes of the objects, if there are several and their sizes are known.
    """

    stamp: Stamp
    size: int
    content: tuple[str, ...]
    cuts: tuple[int, ...] = ()


class KnownFolder(msgspec.Struct, array_like=True):
    """A folder as it was read. ``tree`` is empty when no stored tree says exactly this."""

    tree: str
    mode: int
    files: dict[str, KnownFile]
    links: dict[str, str]
    folders: dict[str, KnownFolder]
    count: int
    """Files and links in it, at any depth."""
    size: int
    """Bytes of all files in it, at any depth."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A whole workspace as it was read, by which rules, and the stored roots that hold its content.

    ``lists`` are those of `rules` that went without saying.
    """

    roots: tuple[str, ...]
    patterns: tuple[str, ...]
    lists: str
    folder: KnownFolder


class Shelf:
    """Remembers what is known of each folder: in this process, and in ``place`` for the next one."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._known: dict[str, Known] = {}
        self._unwritten: set[str] = set()
        self._lock = Lock()

    def load(self, folder: str) -> Known | None:
        """What is known of a folder, by its real path."""
        with self._lock:
            if folder in self._known or self._place is None:
                return self._known.get(folder)
        try:
            known = _decoder.decode(
                unseal(self._file(folder).read_bytes(), "a stat cache", limit=MAX_PAYLOAD)
            )
        except (OSError, Corrupt, msgspec.MsgspecError, ValueError):
            return None
        with self._lock:
            return self._known.setdefault(folder, known)

    def note(self, folder: str, known: Known) -> None:
        """Remember it in this process; it is soon followed by more."""
        with self._lock:
            self._known[folder] = known
            self._unwritten.add(folder)

    def save(self, folder: str, known: Known) -> None:
        """Remember it. What cannot be written down is remembered in this process only."""
        with self._lock:
            if self._known.get(folder) is known and folder not in self._unwritten:
                return
            self._known[folder] = known
            self._unwritten.discard(folder)
        if self._place is None:
            return
        # No sync: a torn file has the wrong checksum, and then everything is read once more.
        file = self._file(folder)
        draft = file.with_name(f"{new_id()}.tmp")
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with draft.open("wb") as written:
                    written.writelines(sealed(_encode(known), compress_from=MAX_PAYLOAD))
                draft.rename(file)
            finally:
                draft.unlink(missing_ok=True)

    def drop(self, folder: str) -> None:
        """Forget it."""
        with self._lock:
            self._known.pop(folder, None)
        if self._place is not None:
            with contextlib.suppress(OSError):
                self._file(folder).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything: the names of files are here, too."""
        with self._lock:
            self._known.clear()
        if self._place is not None:
            for file in self._place.glob("*.known"):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)

    def _file(self, folder: str) -> Path:
        assert self._place is not None  # noqa: S101 - the callers looked
        return self._place / f"{sha256(os.fsencode(folder)).hexdigest()[:32]}.known"


def stamp_of(stat: os.stat_result) -> Stamp:
    """A file's stamp."""
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_mode)


def trusted(stamp: Stamp, *, read_at_ns: int) -> Stamp:
    """A stamp that will show the next change; one that no file has, if the read came too soon after the last.

    Every change of content moves ctime, and nobody can set it. Whole seconds say that the file system knows
    no finer ones.
    """
    return untrusted(stamp[4]) if is_young(stamp[3], now_ns=read_at_ns) else stamp


def is_young(ctime_ns: int, *, now_ns: int) -> bool:
    """Whether a change now could leave a file's stamp as it is."""
    tick_ns = _TICK_NS if ctime_ns % _SECOND_NS else _COARSE_NS
    return ctime_ns + tick_ns >= now_ns


def untrusted(mode: int) -> Stamp:
    """A stamp that no file has: whoever meets it reads the file."""
    return (0, 0, 0, 0, mode)


_decoder: Final = msgspec.msgpack.Decoder(Known)


def _encode(known: Known) -> bytes:
    try:
        return msgspec.msgpack.encode(known)
    except UnicodeEncodeError:  # a name that is not UTF-8: leave such names out, they are read again
        return msgspec.msgpack.encode(msgspec.structs.replace(known, folder=_readable(known.folder)))


def _readable(folder: KnownFolder) -> KnownFolder:
    return KnownFolder(
        folder.tree,
        folder.mode,
        {name: each for name, each in folder.files.items() if _is_text(name)},
        {name: each for name, each in folder.links.items() if _is_text(name) and _is_text(each)},
        {name: _readable(each) for name, each in folder.folders.items() if _is_text(name)},
        folder.count,
        folder.size,
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
