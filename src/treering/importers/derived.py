"""Ids for what had none: the same source always gives the same id, so importing it again finds it there."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from treering.views.checkpoints import PREFIX

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_CHARS: Final = 26
_DIGEST_BYTES: Final = 10


def derived_checkpoint_id(ts_us: int, *parts: str | bytes) -> str:
    """A checkpoint id of this time, made from what it stands for; it sorts among the others by time."""
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    number = (ts_us // 1000) << (8 * _DIGEST_BYTES) | int.from_bytes(digest.digest()[:_DIGEST_BYTES], "big")
    return PREFIX + "".join(_ALPHABET[number >> (5 * place) & 31] for place in reversed(range(_CHARS)))
