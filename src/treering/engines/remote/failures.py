"""Errors that travelled: a problem document back into the error that it was.

The server sends the class of an error by name (RFC 9457, ``type``), and what belongs to it beside the
message. **Invariant:** a caller catches the same class, with the same attributes, as if the store were
local; what the server sends that is no error of ours becomes `Unreachable` or `TreeringError`, never data.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treering import errors
from treering.engines.remote.protocol import Failure
from treering.errors import (
    BudgetExceeded,
    InvalidInput,
    MissingExtra,
    MissingObjects,
    TooLarge,
    TooMany,
    TreeringError,
    Unauthorized,
    Unreachable,
    Unsupported,
)

TYPE: Final = "urn:treering:error:"
_SHOWN: Final = 200


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    more: dict[str, Any] = {}


def error_of(failure: Failure) -> TreeringError:
    """The error that a failure was before it was sent."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, TreeringError)):
        return TreeringError(f"{failure.kind}: {failure.detail}")
    more = failure.more
    try:
        if kind is MissingObjects:
            return MissingObjects(tuple(map(str, more["hashes"])))
        if kind is BudgetExceeded:
            return BudgetExceeded(
                failure.detail, budget=str(more["budget"]), limit=int(more["limit"]), count=int(more["count"])
            )
        if kind is TooMany:
            return TooMany(failure.detail, retry_after=float(more.get("retry_after", 1.0)))
        if issubclass(kind, MissingExtra):
            return Unsupported(f"on the server: {failure.detail}")
        return kind(failure.detail)
    except (KeyError, TypeError, ValueError):
        return TreeringError(f"{failure.kind}: {failure.detail}")


def error_in(data: bytes) -> TreeringError:
    """The error in a problem document."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.DecodeError:
        return TreeringError(f"the server answered with an error that cannot be read: {data[:_SHOWN]!r}")
    detail = document.detail or document.title
    if document.type.startswith(TYPE):
        return error_of(Failure(kind=document.type.removeprefix(TYPE), detail=detail, more=document.more))
    return TreeringError(f"the server failed: {detail}")


def error_behind(
    status: int, media_type: str, data: bytes, *, where: str, location: str = ""
) -> TreeringError:
    """The error behind an answer that is not 200, from the server or from something in front of it."""
    if media_type == "application/problem+json" and TYPE.encode() in data:
        return error_in(data)
    if 300 <= status < 400:  # noqa: PLR2004 - redirections
        return InvalidInput(
            f"{where} answers with a redirection to {location[:_SHOWN]!r}; open that URL instead"
        )
    said = data[:_SHOWN].decode("utf-8", "replace").strip()
    match status:
        case 401 | 403:
            return Unauthorized(f"{where} refuses this API key (HTTP {status}): {said}")
        case 404 | 405:
            return Unsupported(f"{where} is no treering server, or one without a gateway (HTTP {status})")
        case 413:
            return TooLarge(f"{where} does not take a request of this size (HTTP 413): {said}")
        case 429:
            return TooMany(f"{where} takes no more calls for now (HTTP 429): {said}")
        case 502 | 503 | 504:
            return Unreachable(f"{where} cannot be reached behind its proxy (HTTP {status}); try again later")
        case _:
            return TreeringError(f"{where} answered with HTTP {status}: {said}")
