"""How the items of a LangGraph store lie in treering: names, records, filters.

An item is a ref with its times and the address of its value. Its name is ``langgraph/<label>/<label>//<key>``
with ``/``, ``%`` and control characters escaped, so that the items of a namespace are one range, those of its
sub-namespaces follow behind, and no label or key can be taken for another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from langgraph.store.base import Item, SearchItem, get_text_at_path, tokenize_path

from treering.core.clock import to_datetime
from treering.core.ids import check_id
from treering.core.records import Ref
from treering.core.scopes import Scope
from treering.errors import InvalidInput

ROOT: Final = "langgraph/"

_UNSAFE: Final = re.compile(r"[%/\x00-\x1f\x7f-\x9f]")
_ESCAPED: Final = re.compile(r"%([0-9a-f]{2})")

Namespace = tuple[str, ...]


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the ref of an item holds."""

    value: str
    created_at_us: int
    updated_at_us: int
    ttl_minutes: float | None = None
    expires_at_us: int | None = None
    text: str | None = None
    """Where the text is that the item is found by, when that is not the value itself."""
    indexed: bool = True
    wide: bool = False

    def encoded(self) -> bytes:
        """The value of the ref."""
        return msgspec.json.encode(self)

    def is_expired(self, now_us: int) -> bool:
        """Whether its time is over."""
        return self.expires_at_us is not None and self.expires_at_us <= now_us


Found = tuple[Ref, Kept, dict[str, Any], float | None]
"""An item that was found: where, its record, its value, its score."""


def kept(data: bytes) -> Kept:
    """What `Kept.encoded` wrote."""
    return msgspec.json.decode(data, type=Kept)


def range_of(namespace: Namespace) -> str:
    """What the names of the items of exactly this namespace start with."""
    return prefix_of(namespace) + "/"


def prefix_of(namespace: Namespace) -> str:
    """What the names of the items in this namespace and below it start with."""
    return ROOT + "".join(_quote(label) + "/" for label in namespace)


def name_of(namespace: Namespace, key: str) -> str:
    """The name of an item's ref."""
    return check_id(range_of(namespace) + _quote(key), "the name of a store item")


def scope_of(namespace: Namespace, key: str) -> str:
    """What is forgotten together: one item. To `Store.forget`, ("users", "alice") is ``users/alice``."""
    scope = str(Scope("/".join(map(_quote, namespace)), "store", _quote(key)))
    return check_id(scope, "the scope of a store item")


def parse_name(name: str) -> tuple[Namespace, str]:
    """Namespace and key of a name."""
    labels, _, key = name[len(ROOT) :].rpartition("//")
    return tuple(map(_unquote, labels.split("/"))), _unquote(key)


def accepts(value: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    """Whether an item's value meets a filter, as LangGraph's own stores understand it."""
    return not filter or all(_compare(value.get(key), wanted) for key, wanted in filter.items())


def matches(namespace: Namespace, kind: str, path: tuple[str, ...]) -> bool:
    """Whether a namespace begins (``prefix``) or ends (``suffix``) so; ``*`` stands for any label."""
    if len(namespace) < len(path):
        return False
    if kind == "prefix":
        pairs = zip(namespace, path, strict=False)
    elif kind == "suffix":
        pairs = zip(reversed(namespace), reversed(path), strict=False)
    else:
        raise InvalidInput(f"match type {kind!r} is not known; use prefix or suffix")
    return all(wanted in ("*", label) for label, wanted in pairs)


def texts(value: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    """The texts at these paths of a value."""
    found: list[str] = []
    for field in fields:
        path = "$" if field == "$" else tokenize_path(field)
        found += get_text_at_path(value, path)
    return found


def item(namespace: Namespace, key: str, value: dict[str, Any], record: Kept) -> Item:
    """An item as LangGraph has it."""
    return Item(
        value=value,
        key=key,
        namespace=namespace,
        created_at=to_datetime(record.created_at_us),
        updated_at=to_datetime(record.updated_at_us),
    )


def search_item(
    namespace: Namespace, key: str, value: dict[str, Any], record: Kept, score: float | None
) -> SearchItem:
    """An item that was found."""
    return SearchItem(
        namespace=namespace,
        key=key,
        value=value,
        created_at=to_datetime(record.created_at_us),
        updated_at=to_datetime(record.updated_at_us),
        score=score,
    )


def _compare(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        given = cast("Mapping[str, Any]", wanted)
        if any(key.startswith("$") for key in given):
            return all(_operate(value, operator, each) for operator, each in given.items())
        if not isinstance(value, Mapping):
            return False
        inner = cast("Mapping[str, Any]", value)
        return all(_compare(inner.get(key), each) for key, each in given.items())
    if isinstance(wanted, (list, tuple)):
        wants = cast("list[Any]", wanted)
        has = cast("list[Any]", value)
        return (
            isinstance(value, (list, tuple))
            and len(has) == len(wants)
            and all(_compare(one, other) for one, other in zip(has, wants, strict=True))
        )
    return value == wanted


def _operate(value: Any, operator: str, wanted: Any) -> bool:
    if operator == "$eq":
        return value == wanted
    if operator == "$ne":
        return value != wanted
    if operator not in {"$gt", "$gte", "$lt", "$lte"}:
        raise InvalidInput(f"filter operator {operator!r} is not known; use $eq $ne $gt $gte $lt $lte")
    pair = _comparable(value, wanted)
    if pair is None:
        return False
    one, other = pair
    if operator in {"$gt", "$gte"}:
        return one > other or (operator == "$gte" and one == other)
    return one < other or (operator == "$lte" and one == other)


def _comparable(value: Any, wanted: Any) -> tuple[Any, Any] | None:
    """Both as numbers if they are, else both as they are if they are texts, else nothing."""
    try:
        return float(value), float(wanted)
    except (TypeError, ValueError):
        return (value, wanted) if isinstance(value, str) and isinstance(wanted, str) else None


def _quote(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02x}", text)


def _unquote(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
