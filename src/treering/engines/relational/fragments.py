"""The data of a row with its usual words left out: what spans say again and again, in one byte each.

Data is JSON, and JSON never holds a control character other than tab and line breaks. So each of the others
can stand for a piece of text that many rows have. **Invariant:** `filled` gives back exactly what `thinned`
was given; data with nothing left out, as older rows have it, reads as it is. The list is part of the format:
a piece may be added at its end, none may ever be changed or taken away.
"""

from __future__ import annotations

import re
from typing import Final

_PIECES: Final = (
    b'{"attributes":{"gen_ai.response.id":"',
    b'{"attributes":{"gen_ai.tool.call.id":"',
    b'{"attributes":{"gen_ai.',
    b'{"attributes":{"',
    b'"gen_ai.response.finish_reasons":["',
    b'"gen_ai.response.id":"',
    b'"gen_ai.request.',
    b'"gen_ai.',
    b'"},"input":0,"input_size":',
    b'{"input":0,"input_size":',
    b'},"input":0,"input_size":',
    b',"priced_by":"openai/',
    b',"priced_by":"anthropic/',
    b',"priced_by":"google/',
    b',"priced_by":"',
    b'","provider":"openai"}',
    b'","provider":"anthropic"}',
    b'","provider":"google"}',
    b',"provider":"',
    b'"error":{"message":"',
    b'"openinference.',
    b'"first_token_us":',
)
_CODES: Final = bytes(code for code in range(1, 32) if code not in b"\t\n\r")
_THIN: Final = re.compile(b"|".join(map(re.escape, _PIECES)))
_LEFT_OUT: Final = re.compile(b"[" + re.escape(_CODES[: len(_PIECES)]) + b"]")
_CODE_OF: Final = {piece: _CODES[at : at + 1] for at, piece in enumerate(_PIECES)}
_PIECE_OF: Final = {code: piece for piece, code in _CODE_OF.items()}
_RAW: Final = b"\x00"
"""In front of data that is left as it is."""
_CODES_AND_RAW: Final = _RAW + _CODES


def thinned(data: bytes) -> bytes:
    """Data as it is stored."""
    if len(data.translate(None, _CODES_AND_RAW)) != len(data):
        return _RAW + data  # it is no JSON
    return _THIN.sub(_code, data)


def filled(data: bytes) -> bytes:
    """Data as it was given."""
    if data[:1] == _RAW:
        return data[1:]
    return _LEFT_OUT.sub(_piece, data)


def _code(found: re.Match[bytes]) -> bytes:
    return _CODE_OF[found[0]]


def _piece(found: re.Match[bytes]) -> bytes:
    return _PIECE_OF[found[0]]
