"""How far a long look at files is."""

from __future__ import annotations

import msgspec


class FileProgress(msgspec.Struct, frozen=True):
    """How many files were read or written so far, and how many bytes of them."""

    files: int
    bytes: int
