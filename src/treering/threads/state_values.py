"""State values: each stored once, and written again only when it changed.

A value is compared by the digest of its encoding. A dict whose encoding is large is stored key by key, so
that an agent which changes one virtual file does not write all of them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from treering.core.content import Address
from treering.core.encoding import decode, encode
from treering.core.frame import INLINE_LIMIT
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.threads.checkpoint_record import StateValue, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treering.core.batch import Draft
    from treering.core.content import Content
    from treering.core.engine import Engine

_DIGEST_CHARS: Final = 24


def write_state(
    draft: Draft, previous: Mapping[str, StateValue], state: Mapping[str, Any], *, scope: str
) -> dict[str, StateValue]:
    """Return where each value is stored; values that differ from ``previous`` are added to the batch."""
    if odd := [name for name in state if not isinstance(cast("object", name), str)]:  # a hook's, perhaps
        raise InvalidInput(f"state has the name {odd[0]!r}, a {type(odd[0]).__name__}; give it a str")
    return {name: _write_value(draft, previous.get(name), value, scope) for name, value in state.items()}


def read_state(engine: Engine, space: str, state: Mapping[str, StateValue]) -> dict[str, Any]:
    """Fetch all values in one read. Raise `Corrupt` if one is missing; checkpoints keep theirs alive."""
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


def _write_value(draft: Draft, previous: StateValue | None, value: Any, scope: str) -> StateValue:
    content = encode(value, keep_order=True)
    if len(content.data) >= INLINE_LIMIT and _is_splittable(value):
        keys = previous if isinstance(previous, dict) else {}
        return {
            key: _put(draft, keys.get(key), encode(each, keep_order=True), scope)
            for key, each in value.items()
        }
    return _put(draft, previous if isinstance(previous, Value) else None, content, scope)


def _is_splittable(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    keys: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType] - whatever a user's dict holds
    return len(keys) > 1 and all(isinstance(key, str) for key in keys)


def _put(draft: Draft, previous: Value | None, content: Content, scope: str) -> Value:
    digest = content.name[:_DIGEST_CHARS]
    if previous is not None and previous.digest == digest:
        return previous
    return Value(draft.put(content, scope=scope), digest)
