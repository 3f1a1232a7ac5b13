"""Names that frameworks give, as ids that a thread can have.

A framework's session id may be any string; a thread id may not be empty, longer than 512 characters or hold
control characters. **Invariant:** two names never share a thread: an ordinary name is its own id, any other
one is ``~`` and its SHA-256, and a name that looks like that is hashed as well.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from treering.core.ids import MAX_ID_CHARS, check_id
from treering.errors import InvalidInput

_HASHED: Final = re.compile("~[0-9a-f]{64}")


def thread_name(name: str, what: str, *, limit: int = MAX_ID_CHARS, slashes: bool = True) -> str:
    """The id for a name: the name itself where that is acceptable; ``what`` names it in the error."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are frameworks
        raise InvalidInput(f"{what} is of type {type(name).__name__}; pass a str")
    if is_plain(name, limit=limit, slashes=slashes):
        return name
    return "~" + sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def is_plain(name: str, *, limit: int = MAX_ID_CHARS, slashes: bool = True) -> bool:
    """Whether a name is its own id: an id, not too long and (unless there may be) without a slash."""
    if len(name) > limit or ("/" in name and not slashes) or _HASHED.fullmatch(name) is not None:
        return False
    try:
        check_id(name, "name")
    except InvalidInput:
        return False
    return True
