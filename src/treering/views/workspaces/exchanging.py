"""Replacing a file by another one: they change places in one step, then the old one is removed.

A plain rename over a file is as atomic, but ext4 then begins to write the new file out at once, which makes
bringing back a thousand files slow. ``renameat2`` with RENAME_EXCHANGE (Linux; called through ctypes) does
not.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

_EXCHANGE: Final = 2
_library: Final = ctypes.CDLL(None, use_errno=True)
_renameat2: Final[Any] = getattr(_library, "renameat2", None)


def swap(draft: str, name: str, folder: int) -> bool:
    """Put a draft in the place of a file and remove what was there; whether that could be done so.

    If it could not, both are as they were. Something that is no file any more is put back.
    """
    if not _exchange(draft, name, folder):
        return False
    try:
        os.unlink(draft, dir_fd=folder)
    except OSError:
        _exchange(draft, name, folder)
        raise
    return True


def _exchange(one: str, other: str, folder: int) -> bool:
    if _renameat2 is None:
        return False
    return _renameat2(folder, os.fsencode(one), folder, os.fsencode(other), _EXCHANGE) == 0
