"""State values: each kept once, and written again only when it changed.

A value is compared by the digest of its encoding. A dict whose encoding is large is kept key by key, so
that an agent which changes one virtual file does not write all of them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, cast

from treering.core.address import Address
from treering.core.body import INLINE_LIMIT
from treering.core.encoding import decode, encode
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.views.checkpoints import StateValue, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treering.core.content import Content
    from treering.core.draft import Draft
    from treering.core.engine import Engine

_DIGEST = 24


def write_state(
    draft: Draft, known: Mapping[str, StateValue], state: Mapping[str, Any], *, scope: str
) -> dict[str, StateValue]:
    """Where each value lies; those that are not as ``known`` go into the batch."""
    if odd := [name for name in state if not isinstance(cast("object", name), str)]:  # a hook's, perhaps
        raise InvalidInput(f"state has the name {odd[0]!r}, a {type(odd[0]).__name__}; give it a str")
    return {name: _written(draft, known.get(name), value, scope) for name, value in state.items()}


def read_state(engine: Engine, space: str, state: Mapping[str, StateValue]) -> dict[str, Any]:
    """All values, fetched together. One that is missing is `Corrupt`: checkpoints keep their values alive."""
    addresses = [
        Address(each.address)
        for value in state.values()
        for each in ((value,) if isinstance(value, Value) else value.values())
    ]
    try:
        contents = iter(engine.get(space, addresses) if addresses else [])
    except NotFound as error:
        raise Corrupt(
            f"a state value is not stored: {error}; run verify, then restore it from a backup"
        ) from error
    return {
        name: decode(next(contents))
        if isinstance(value, Value)
        else {key: decode(next(contents)) for key in value}
        for name, value in state.items()
    }


def _written(draft: Draft, known: StateValue | None, value: Any, scope: str) -> StateValue:
    content = encode(value, keep_order=True)
    if len(content.data) >= INLINE_LIMIT and _is_splittable(value):
        before = known if isinstance(known, dict) else {}
        return {
            key: _kept(draft, before.get(key), encode(each, keep_order=True), scope)
            for key, each in value.items()
        }
    return _kept(draft, known if isinstance(known, Value) else None, content, scope)


def _is_splittable(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    keys: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType] - whatever a user's dict holds
    return len(keys) > 1 and all(isinstance(key, str) for key in keys)


def _kept(draft: Draft, known: Value | None, content: Content, scope: str) -> Value:
    digest = content.name[:_DIGEST]
    if known is not None and known.digest == digest:
        return known
    return Value(draft.put(content, scope=scope), digest)
