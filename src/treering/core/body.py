"""The body of a commit: many small contents in one frame.

Content below `INLINE_LIMIT` is not worth a row and a hash of its own; it lives in the body of the
commit that brought it and is addressed by its place there (see `core.address`). One body holds the
content of one erasure scope only, so that forgetting a thread deletes whole frames and never has to
cut one open.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from treering.core.content import KIND_NUMBERS, KINDS, Content
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

INLINE_LIMIT: Final = 4096
"""Content of this many bytes or more becomes an object, named by its hash and deduplicated."""

_COUNT: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">BI")


def pack_body(contents: Sequence[Content]) -> bytes:
    """Lay contents one behind the other, after a directory of their kinds and lengths."""
    parts = [_COUNT.pack(len(contents))]
    parts += [_ENTRY.pack(KIND_NUMBERS[content.kind], len(content.data)) for content in contents]
    parts += [content.data for content in contents]
    return b"".join(parts)


def unpack_body(raw: bytes, where: str) -> list[Content]:
    """Take all contents out of a body, in order."""
    try:
        (count,) = _COUNT.unpack_from(raw)
        start = _COUNT.size + count * _ENTRY.size
        contents: list[Content] = []
        for number, length in _ENTRY.iter_unpack(raw[_COUNT.size : start]):
            contents.append(Content(KINDS[int(number)], raw[start : start + length]))
            start += length
    except (struct.error, IndexError) as error:
        raise Corrupt(f"{where}: body directory is damaged; restore it from a backup") from error
    if start != len(raw) or len(contents) != count:
        raise Corrupt(f"{where}: body is {len(raw)} bytes where its directory says {start}")
    return contents
