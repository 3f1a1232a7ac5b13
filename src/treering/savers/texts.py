"""What a key-value saver puts under a key: a text, so that any store can keep it.

A text is eight hex digits, the CRC-32 of the rest, and then ``[key, record]`` as JSON with treering's tags.
**Invariant:** a record is given back only if it is whole and belongs to the key that it was asked under;
anything else is `Corrupt`, with the thread, the key and what to do.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from treering.core.encoding import decode_json, encode_json
from treering.errors import Corrupt

_CRC_DIGITS: Final = 8


def seal(key: str, record: dict[str, Any]) -> str:
    """A record as text. Raises `Unencodable` for what has no safe encoding."""
    body = encode_json([key, record], keep_order=True)
    return f"{crc32(body):08x}{body.decode()}"


def unseal(key: str, text: Any, *, thread_id: str) -> dict[str, Any]:
    """The record of a text that was stored under ``key``."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    if not isinstance(raw, bytes):
        raise _damaged(thread_id, key, f"it holds a {type(text).__name__}, not what a saver wrote")
    crc, body = raw[:_CRC_DIGITS], raw[_CRC_DIGITS:]
    if crc != f"{crc32(body):08x}".encode():
        raise _damaged(thread_id, key, "its checksum does not match")
    try:
        found, record = decode_json(body)
    except (Corrupt, TypeError, ValueError) as error:
        raise _damaged(thread_id, key, str(error)) from error
    if found != key:
        raise _damaged(thread_id, key, f"it belongs to key {found!r}")
    return record


def damaged(thread_id: str, error: Corrupt) -> Corrupt:
    """A store's own complaint about a value, with the thread that it belongs to."""
    return Corrupt(f"thread {thread_id!r} is damaged: {error}")


def missing(thread_id: str, key: str) -> Corrupt:
    """A value that must be there is not."""
    return _damaged(thread_id, key, "it is missing, though a checkpoint needs it")


def _damaged(thread_id: str, key: str, problem: str) -> Corrupt:
    return Corrupt(
        f"thread {thread_id!r} is damaged: the value under {key!r} cannot be used, {problem}; "
        f"restore it from a backup, or delete({thread_id!r}) to begin anew"
    )
