"""Payloads by reference: JSON and text under an id that follows from the content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from treering.core.content import Content
from treering.core.encoding import encode_json
from treering.errors import InvalidInput
from treering.services.sessions import within

if TYPE_CHECKING:
    from treering.services.sessions import Session


def save_blob(kind: Literal["json", "text"], data: Any, session: Session | None = None) -> str:
    """Store a payload and give back its id; equal content of one kind has one id and is stored once.

    It is kept by whatever refers to it, and until then by itself. Forgetting the last run that refers to it
    removes it.
    """
    with within(session) as transaction:
        return transaction.put_object(_content(kind, data))


def _content(kind: str, data: Any) -> Content:
    if kind == "json":
        return Content("json", encode_json(data))
    if kind != "text":
        raise InvalidInput(f"a payload of the kind {kind!r} is not known; use 'json' or 'text'")
    if not isinstance(data, str):
        raise InvalidInput(f"a payload of the kind 'text' is a str, not {type(data).__name__}; use 'json'")
    return Content("text", data.encode())
