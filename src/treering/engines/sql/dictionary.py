"""The data of a row with its usual words left out: what spans, and steps of graphs, say again and again.

Data is JSON, and JSON never holds a control character other than tab and line breaks. So each of the others
can stand for a piece of text that many rows have. **Invariant:** `expand` gives back exactly what `compress`
was given; data with nothing left out, as older rows have it, reads as it is. The list is part of the format:
a piece may be added at its end, none may ever be changed or taken away. (All codes are taken by now.)
"""

from __future__ import annotations

import re
from typing import Any, Final

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
    b'","lists":{"messages":["',
    b']},"metadata":{"source":"loop","step":',
    b',"parents":{}},"graph":["',
    b'","writes":[["messages",0,"l",[["',
    b'","path":"~__pregel_pull, ',
    b'",""],"task":"',
)
_GRAPHS: Final = 22
"""From here on they are of rows that belong to no run: steps of graphs, and what their tasks wrote."""
_CODES: Final = bytes(code for code in range(1, 32) if code not in b"\t\n\r")
_CODE_OF: Final = {piece: _CODES[at : at + 1] for at, piece in enumerate(_PIECES)}
_OF_RUNS: Final = [*_CODE_OF.items()][:_GRAPHS]
_OF_GRAPHS: Final = [*_CODE_OF.items()][_GRAPHS:]
_PIECE_OF: Final = {code[0]: (code, piece) for piece, code in _CODE_OF.items()}
_BYTES: Final = frozenset({bytes})
_SHORT: Final = 400
_ANY_PIECE: Final = re.compile(b"(" + b"|".join(map(re.escape, _PIECES[:_GRAPHS])) + b")")
_RAW: Final = b"\x00"
"""In front of data that is left as it is."""
_TEXT: Final = bytes(byte for byte in range(256) if byte not in _RAW + _CODES)


def compress(data: bytes, *, is_of_run: bool = True) -> bytes:
    """Data as it is stored: that of a run without the pieces of spans, any other without those of graphs."""
    if data.translate(None, _TEXT):
        return _RAW + data  # it is no JSON
    if not is_of_run:
        for piece, code in _OF_GRAPHS:
            data = data.replace(piece, code)
        return data
    if len(data) <= _SHORT:
        parts = _ANY_PIECE.split(data)
        parts[1::2] = map(_CODE_OF.__getitem__, parts[1::2])
        return b"".join(parts)
    for piece, code in _OF_RUNS:  # on long data many times as fast as one regular expression
        data = data.replace(piece, code)
    return data


def expand(data: bytes) -> bytes:
    """Data as it was given."""
    codes = data.translate(None, _TEXT)
    if not codes:
        return data
    if data[:1] == _RAW:
        return data[1:]
    for code in set(codes):
        if code in _PIECE_OF:
            data = data.replace(*_PIECE_OF[code])
    return data


def expand_all(many: list[Any]) -> list[bytes] | None:
    """The same of many, in one look if nothing is left out of any; ``None`` where one of them is no bytes."""
    if not _BYTES.issuperset(map(type, many)):
        return None
    return list(map(expand, many)) if b"".join(many).translate(None, _TEXT) else many
