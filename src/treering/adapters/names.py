"""Thread ids for the names that frameworks use, and text that pydantic accepts.

A framework's session id may be any string; a thread id must not be empty, longer than 512 characters or
contain control characters. **Invariant:** two names never share a thread: a name that is a valid id is used
as it is, any other becomes ``~`` and its SHA-256, and so does a name that looks like one of those.

A string that was cut in the middle of a character, or the name of a file that is not UTF-8, contains lone
surrogates. A store keeps them, but neither pydantic's JSON parser nor a search index accepts them.
**Invariant:** whatever a framework was able to save, it is able to read again.
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
    """Return a name from a framework, which does not check types; ``what`` names it in the error."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is of type {type(value).__name__}; {hint}")
    return value


def checked_namespace(value: Any) -> str:
    """Return the namespace that an adapter was given; empty for none."""
    return checked(value, "namespace", "pass a str, or leave it out")


def thread_name(name: str, what: str, *, limit: int = MAX_ID_CHARS, slashes: bool = True) -> str:
    """Return the thread id for a name; ``what`` names it in the error."""
    if is_plain(checked(name, what), limit=limit, slashes=slashes):
        return name
    return "~" + sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def is_plain(name: str, *, limit: int = MAX_ID_CHARS, slashes: bool = True) -> bool:
    """Whether a name is used as it is: a valid id, not too long and (unless allowed) without a slash."""
    if len(name) > limit or ("/" in name and not slashes) or _HASHED.fullmatch(name) is not None:
        return False
    try:
        check_id(name, "name")
    except InvalidInput:
        return False
    return True


def json_for_models(stored: Any) -> bytes | str:
    """Encode stored plain data as JSON that pydantic models can be validated from."""
    try:
        return orjson.dumps(stored)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return json_text(stored)


def json_text(plain: Any) -> str:
    """Encode plain data as JSON without lone surrogates."""
    return replace_surrogates(json.dumps(plain, ensure_ascii=False))


def replace_surrogates(text: str) -> str:
    """Join surrogate pairs to the character that they stand for, and replace lone ones by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
