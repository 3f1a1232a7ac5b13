"""Content: immutable bytes together with how to read them, and the name that follows from both.

The name of an object is a SHA-256. For plain bytes (files, chunks) it is the hash that `sha256sum`
prints; JSON, text and tree content is hashed behind its kind, so that equal bytes of different kinds
are different objects and a name alone says how its bytes decode.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Literal

import msgspec

Kind = Literal["bytes", "json", "text", "tree"]
"""How content decodes. ``tree`` is the one kind that points at other objects (see `core.tree`)."""

KINDS: Final[tuple[Kind, ...]] = ("bytes", "json", "text", "tree")
"""The position of a kind in this tuple is its number on disk; only ever append."""

KIND_NUMBERS: Final[dict[str, int]] = {kind: number for number, kind in enumerate(KINDS)}

_HASH_PREFIXES: Final[dict[str, bytes]] = {kind: kind.encode() + b"\0" for kind in KINDS if kind != "bytes"}


class Content(msgspec.Struct, frozen=True, gc=False):
    """Bytes and their kind."""

    kind: Kind
    data: bytes

    @property
    def name(self) -> str:
        """The SHA-256 object name of this content, 64 hex digits."""
        return object_name(self.kind, self.data)


def object_name(kind: Kind, data: bytes | memoryview) -> str:
    """Name ``data`` as content of ``kind``."""
    if kind == "bytes":  # nearly all there is
        return sha256(data).hexdigest()
    digest = sha256(_HASH_PREFIXES[kind])
    digest.update(data)
    return digest.hexdigest()
