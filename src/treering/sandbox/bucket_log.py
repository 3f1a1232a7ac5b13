"""The checkpoints of a bucket, in the order they were made: one small JSON file each, and no other state.

Checkpoint number *n* is the file ``checkpoints/<9999999999 - n>.json``, so the newest is listed first. It is
written only if no such file is there: of several writers who want the same number one gets it, and the others
take the next. Nothing is overwritten, no clock decides what is newest, and nothing has to be locked.

``tags/<tag>/<same number>`` is an empty file that is written before, so that the checkpoints of one session
are found without reading all others. A writer who died or lost the race leaves one that points at nothing or
at another's checkpoint; readers compare the tag and pass over it.

A checkpoint is forgotten by making its file empty, if it is still as it was read; so its number is not given
again, and nobody removes what another one wrote there. Empty files go later (`litter`), never that of the
highest number. **Invariant:** a checkpoint that can be read has its tag's file, and everything that it names
is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import msgspec

from treering.core.ids import file_name, new_id
from treering.core.storage import BlobInfo, Blobs, Stamp
from treering.errors import Conflict, Corrupt, InvalidInput, NewerStore, NotFound
from treering.sandbox.bucket_index import listed
from treering.sandbox.records import CheckpointInfo

FORMAT: Final = "format.json"
VERSION: Final = 2
"""Since 2 there may be empty entries and condemned packs, which writers of version 1 would not heed."""
CHECKPOINTS: Final = "checkpoints"
TAGS: Final = "tags"

_LAST: Final = 9_999_999_999
_DIGITS: Final = len(str(_LAST))
_PREFIX: Final = "ckpt_"
_AT_ONCE: Final = 8
_PAGE: Final = 1000
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    treering: str
    version: int


class BucketLog:
    """Every checkpoint of one bucket or folder."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._ready = False

    def prepare(self) -> None:
        """See that this bucket can be written by several writers, before anything is sent to it."""
        if self._ready:
            return
        if not self._blobs.conditional:
            self._blobs.put_if(FORMAT, b"", expect=None)  # raises, and says what is wrong with the server
        version, stamp = self._format()
        if version < VERSION:
            written = msgspec.json.encode(_Format(treering="bucket", version=VERSION))
            try:
                self._blobs.put_if(FORMAT, written, expect=stamp)
            except Conflict:  # another writer came first
                self._format()
        self._ready = True

    def expect(self) -> None:
        """`NotFound` where no checkpoint was ever written: a misspelt place is not made."""
        if not self._format()[0]:
            raise NotFound(f"{self._blobs.url} is no storage of checkpoints; check the URL")

    def append(self, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Write the next checkpoint; ``make`` is given its id, and called again when a number was taken."""
        self.prepare()
        number = self._newest() + 1
        while True:
            info = make(f"{_PREFIX}{new_id()}_{_spelled(number)}")
            mark = _mark(info.tag, number)
            self._blobs.put(mark, b"")
            try:
                self._blobs.put(_entry(number), msgspec.json.encode(info), if_absent=True)
            except Conflict:
                winner = self._read(number)
                if winner is None or winner.tag != info.tag:
                    self._blobs.delete([mark])
                number += 1
            else:
                return info

    def newest_first(self, *, tag: str | None = None, limit: int) -> list[CheckpointInfo]:
        """The last checkpoints, of one session if a tag is given, in about ``limit`` requests."""
        return list(islice(self.each(tag=tag, at_once=limit), limit))

    def each(self, *, tag: str | None = None, at_once: int = _PAGE) -> Iterator[CheckpointInfo]:
        """All checkpoints, newest first; ``at_once`` are read ahead."""
        self._format()
        return (each for each in self._each(tag, at_once) if tag is None or each.tag == tag)

    def forget(self, info: CheckpointInfo) -> None:
        """Let there be no such checkpoint; one that is not there is no error."""
        self.prepare()
        number = _number(info.id) or 0
        held = self._blobs.read(_entry(number))
        if held is None or (found := self._decoded(number, held.data)) is None or found.id != info.id:
            return
        try:
            self._blobs.put_if(_entry(number), b"", expect=held.stamp)
        except Conflict:  # someone else forgot it
            return
        self._blobs.delete([_mark(info.tag, number)])

    def litter(self, *, before_us: int) -> list[str]:
        """Files that forgotten checkpoints and writers that died before a time have left."""
        entries = listed(self._blobs, CHECKPOINTS)
        numbers = {_place(each.name) for each in entries if each.size}
        marks = [each for each in listed(self._blobs, TAGS) if _place(each.name) not in numbers]
        empty = [each for each in entries[1:] if not each.size]
        return [each.name for each in (*empty, *marks) if each.modified_us < before_us]

    def get(self, id: str) -> CheckpointInfo:
        """A checkpoint by its id; one request."""
        number = _number(id)
        found = None if number is None else self._read(number)
        if found is None or found.id != id:
            raise NotFound(
                f"{self._blobs.url} holds no checkpoint {id!r}; list_checkpoints() shows what it has"
            )
        return found

    def _newest(self) -> int:
        page = self._blobs.list(CHECKPOINTS, limit=1)
        return _LAST - _place(page[0].name) if page else 0

    def _each(self, tag: str | None, at_once: int) -> Iterator[CheckpointInfo]:
        folder = CHECKPOINTS if tag is None else f"{TAGS}/{file_name(tag)}"
        page: list[BlobInfo] = []
        with ThreadPoolExecutor(_AT_ONCE, "treering-list") as pool:
            while True:
                page = self._blobs.list(folder, after=page[-1].name if page else None, limit=_PAGE)
                numbers = [_LAST - _place(each.name) for each in page if each.size or tag is not None]
                for start in range(0, len(numbers), at_once):
                    for found in pool.map(self._read, numbers[start : start + at_once]):
                        if found is not None:
                            yield found
                if len(page) < _PAGE:
                    return

    def _read(self, number: int) -> CheckpointInfo | None:
        try:
            data = self._blobs.get(_entry(number))
        except NotFound:
            return None
        return self._decoded(number, data)

    def _decoded(self, number: int, data: bytes) -> CheckpointInfo | None:
        if not data:  # forgotten
            return None
        try:
            return msgspec.json.decode(data, type=CheckpointInfo)
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"{self._blobs.url}/{_entry(number)} is no checkpoint ({error}); restore it from a copy"
            ) from error

    def _format(self) -> tuple[int, Stamp | None]:
        """The version of the layout and the stamp of its file; 0 when there is none."""
        held = self._blobs.read(FORMAT)
        if held is None:
            return 0, None
        try:
            found = msgspec.json.decode(held.data, type=_Format)
        except msgspec.MsgspecError as error:
            raise InvalidInput(
                f"{self._blobs.url} has a {FORMAT} that is not treering's; choose another prefix"
            ) from error
        if found.version > VERSION:
            raise NewerStore(f"{self._blobs.url} has format {found.version}; upgrade treering to use it")
        return found.version, held.stamp


def _mark(tag: str, number: int) -> str:
    return f"{TAGS}/{file_name(tag)}/{_key(number)}"


def _key(number: int) -> str:
    return f"{_LAST - number:0{_DIGITS}}"


def _entry(number: int) -> str:
    return f"{CHECKPOINTS}/{_key(number)}.json"


def _place(name: str) -> int:
    key = name.rpartition("/")[2].removesuffix(".json")
    if len(key) != _DIGITS or not key.isascii() or not key.isdigit():
        raise Corrupt(f"{name} is not the name of a checkpoint; remove it from the bucket")
    return int(key)


def _spelled(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _number(id: str) -> int | None:
    """The number in an id: what stands behind its last underscore."""
    if not id.startswith(_PREFIX):
        raise InvalidInput(f"{id[:80]!r} is not a checkpoint's id: those begin with {_PREFIX!r}")
    last = id.removeprefix(_PREFIX).rpartition("_")[2]
    if not last or set(last) - set(_ALPHABET) or len(last) > _DIGITS:
        return None
    number = int(last, len(_ALPHABET))
    return number if 0 < number <= _LAST else None
