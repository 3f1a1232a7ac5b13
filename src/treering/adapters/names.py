"""Names that frameworks give, as ids that a thread can have.

A framework's session id may be any string; a thread id may not be empty, longer than 512 characters or hold
control characters. **Invariant:** two names never share a thread: an ordinary name is its own id, any other
one is ``~`` and its SHA-256, and a name that looks like that is hashed as well.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any, Final

import orjson

from treering.core.ids import MAX_ID_CHARS, check_id
from treering.errors import InvalidInput

_HASHED: Final = re.compile("~[0-9a-f]{64}")


def checked(value: Any, what: str, hint: str = "pass a str") -> str:
    """A name that came from a caller of a framework, which checks nothing; ``what`` names it in the error."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is of type {type(value).__name__}; {hint}")
    return value


def checked_namespace(value: Any) -> str:
    """The namespace that an adapter was given; empty for none."""
    return checked(value, "namespace", "pass a str, or leave it out")


def thread_name(name: str, what: str, *, limit: int = MAX_ID_CHARS, slashes: bool = True) -> str:
    """The id for a name: the name itself where that is acceptable; ``what`` names it in the error."""
    if is_plain(checked(name, what), limit=limit, slashes=slashes):
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


# -----------------------------------------------------------------------------------------------------------
# Halves of characters: what a text that was cut, or a file's name that is no UTF-8, leaves in a string.
#
# A store keeps such a string (a lone surrogate) as it is, but neither the JSON parser of pydantic nor a
# search index takes it. **Invariant:** whatever a framework was able to save, it is able to read again.


def json_for_models(stored: Any) -> bytes | str:
    """Stored plain data as JSON that models of pydantic are read from."""
    try:
        return orjson.dumps(stored)
    except TypeError:  # half a character, or an integer past 64 bits
        return json_text(stored)


def json_text(plain: Any) -> str:
    """Plain data as JSON; what was stored and what is read of it have the same."""
    return without_halves(json.dumps(plain, ensure_ascii=False))


def without_halves(text: str) -> str:
    """The same text, with two halves that stand together as one character, and U+FFFD for any other half."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
