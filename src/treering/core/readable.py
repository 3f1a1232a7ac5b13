"""Text that any record and any reader can hold: a file's name may be bytes that are no UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec


def readable(text: str) -> str:
    r"""The same text, with each byte that is no UTF-8 (a surrogate, as the system gives it) as ``\xff``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def readable_json(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON, whatever the names in it are."""
    try:
        return msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(value, enc_hook=enc_hook)))


def _readable(plain: Any) -> Any:
    if isinstance(plain, str):
        return readable(plain)
    if isinstance(plain, list | tuple):
        return [_readable(each) for each in cast("list[Any]", plain)]
    if isinstance(plain, dict):
        return {_readable(key): _readable(each) for key, each in cast("dict[Any, Any]", plain).items()}
    return plain
