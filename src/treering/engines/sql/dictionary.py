"""Phrases that many rows share, stored as one byte each.

The data of a journal row is JSON, and JSON contains no control characters other than tab and line breaks. So
each of the others can stand for a phrase that many rows have in common. The phrases belong to the store: they
are written into its ``meta`` table when it is created and never change after that, so every process that
opens the store, whatever it has imported, reads and writes the same codes. What the phrases of a new store
are is up to whoever opens it (`treering.api` collects them from the packages that know the data).

**Invariant:** `expand` returns exactly what `compress` was given.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

CODES: Final = bytes(code for code in range(1, 32) if code not in b"\t\n\r")
"""A store has at most this many phrases."""

_RAW: Final = b"\x00"
"""Precedes data that is stored as it is."""
_TEXT: Final = bytes(byte for byte in range(256) if byte not in _RAW + CODES)
_SHORT: Final = 400
_BYTES: Final = frozenset({bytes})


class Dictionary:
    """The phrases of one store; empty until the store is open."""

    def __init__(self, phrases: Sequence[str] = ()) -> None:
        self.define(phrases)

    def define(self, phrases: Sequence[str]) -> None:
        """Set the phrases. Of two that match at one place the first is used, so list longer ones first."""
        if len(phrases) > len(CODES):
            raise InvalidInput(f"a store has at most {len(CODES)} phrases, not {len(phrases)}")
        encoded = [phrase.encode() for phrase in phrases]
        self._code_of = {phrase: CODES[at : at + 1] for at, phrase in enumerate(encoded)}
        self._phrase_of = {code[0]: (code, phrase) for phrase, code in self._code_of.items()}
        self._any_phrase = re.compile(b"(" + b"|".join(map(re.escape, encoded)) + b")")

    def compress(self, data: bytes) -> bytes:
        """Return data as it is stored."""
        if data.translate(None, _TEXT):
            return _RAW + data  # not JSON
        if not self._code_of:
            return data
        if len(data) <= _SHORT:
            parts = self._any_phrase.split(data)
            parts[1::2] = map(self._code_of.__getitem__, parts[1::2])
            return b"".join(parts)
        for phrase, code in self._code_of.items():  # on long data many times as fast as a regular expression
            data = data.replace(phrase, code)
        return data

    def expand(self, data: bytes) -> bytes:
        """Return data as it was given to `compress`."""
        codes = data.translate(None, _TEXT)
        if not codes:
            return data
        if data[:1] == _RAW:
            return data[1:]
        for code in set(codes):
            if code not in self._phrase_of:
                raise Corrupt(f"the data of a row has the code {code}, which stands for nothing; run verify")
            data = data.replace(*self._phrase_of[code])
        return data

    def expand_all(self, many: list[Any]) -> list[bytes] | None:
        """Expand many at once, faster if none has a code; ``None`` if one of them is not bytes."""
        if not _BYTES.issuperset(map(type, many)):
            return None
        return list(map(self.expand, many)) if b"".join(many).translate(None, _TEXT) else many


def encode_phrases(phrases: Sequence[str]) -> str:
    """Return phrases as they are stored in ``meta``."""
    return msgspec.json.encode(list(phrases)).decode()


def decode_phrases(stored: str) -> list[str]:
    """Return the phrases in ``meta``."""
    try:
        return msgspec.json.decode(stored, type=list[str])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Corrupt(f"the dictionary of the store cannot be read ({error}); restore a backup") from error
