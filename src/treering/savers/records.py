"""The record of a checkpoint in a key-value store: all that is said about it, and where its content lies.

A small state value stands in the record; a larger one is a value of its own, written again only when it
changed; a large dict (an agent's virtual files) is kept key by key, so that a step writes the files that
changed. ``earlier`` leads to the checkpoint before it that is still there; ``parent`` is the one that it was
saved upon, kept or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeGuard, cast

import msgspec

from treering.core.body import INLINE_LIMIT
from treering.core.content import Content
from treering.core.encoding import encode
from treering.savers import spine
from treering.savers.checkpoint import Facts
from treering.savers.spine import Spine

_INLINE: Final = 512
_REFERENCE: Final = 64
"""A part of a large dict that is not longer than a reference to it stands in the record too."""
_DIGEST: Final = 24

_USUAL: Final[dict[str, Any]] = {
    "namespace": "",
    "parent": None,
    "interrupt": None,
    "metadata": {},
    "note": None,
    "tags": (),
}

Put = Callable[[Any], str]
Get = Callable[[str], Any]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint."""

    id: str
    thread: str
    namespace: str
    parent: str | None
    earlier: str | None
    step: int
    first_us: int
    ts_us: int
    messages: Spine
    state: dict[str, Any]
    interrupt: Any
    metadata: dict[str, Any]
    note: str | None
    tags: tuple[str, ...]
    size: int
    """Bytes that its save wrote."""

    @property
    def facts(self) -> Facts:
        """As a checkpoint shows it."""
        return Facts(
            id=self.id,
            thread_id=self.thread,
            namespace=self.namespace,
            parent_id=self.parent,
            step=self.step,
            created_at_us=self.first_us,
            updated_at_us=self.ts_us,
            pending_interrupt=self.interrupt,
            metadata=self.metadata,
            note=self.note,
            tags=self.tags,
        )


def to_plain(record: Record) -> dict[str, Any]:
    """For storing: only what is not as it usually is."""
    plain = {
        name: value for name, value in msgspec.structs.asdict(record).items() if value != _USUAL.get(name)
    }
    plain["messages"] = spine.plain(record.messages)
    if record.tags:
        plain["tags"] = list(record.tags)
    if record.earlier == record.parent:
        plain.pop("earlier", None)
    elif record.earlier is None:
        plain["earlier"] = None
    return plain


def from_plain(plain: Mapping[str, Any]) -> Record:
    """What `to_plain` gave."""
    fields: dict[str, Any] = {**_USUAL, **plain}
    fields["earlier"] = plain["earlier"] if "earlier" in plain else fields["parent"]
    fields["messages"] = spine.parse(plain["messages"])
    fields["tags"] = tuple(fields["tags"])
    return Record(**fields)


def write_state(known: Mapping[str, Any], state: Mapping[str, Any], put: Put) -> dict[str, Any]:
    """Where each value lies; those that are not as ``known`` are put."""
    return {name: _placed(known.get(name), value, put) for name, value in state.items()}


def read_state(state: Mapping[str, Any], get: Get) -> dict[str, Any]:
    """All values."""
    return {name: _read(place, get) for name, place in state.items()}


def values_of(state: Mapping[str, Any]) -> Iterator[str]:
    """The ids of all values that a state refers to."""
    for place in state.values():
        if place[0] == "at":
            yield place[1]
        elif place[0] == "keys":
            yield from values_of(place[1])


def _placed(known: Any, value: Any, put: Put) -> list[Any]:
    content = encode(value, keep_order=True)
    if len(content.data) >= INLINE_LIMIT and _is_splittable(value):
        before: dict[str, Any] = known[1] if known is not None and known[0] == "keys" else {}
        parts = {key: (before.get(key), each, encode(each, keep_order=True)) for key, each in value.items()}
        return ["keys", {key: _kept(*part, put, _REFERENCE) for key, part in parts.items()}]
    return _kept(known, value, content, put, _INLINE)


def _kept(known: Any, value: Any, content: Content, put: Put, inline: int) -> list[Any]:
    if len(content.data) < inline:
        return ["is", value]
    digest = content.name[:_DIGEST]
    if known is not None and known[0] == "at" and known[2] == digest:
        return list(known)
    return ["at", put(value), digest]


def _read(place: Any, get: Get) -> Any:
    if place[0] == "is":
        return place[1]
    if place[0] == "at":
        return get(place[1])
    return read_state(place[1], get)


def _is_splittable(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    keys = list(cast("dict[Any, Any]", value))
    return len(keys) > 1 and all(isinstance(key, str) for key in keys)
