"""Messages that were spread over many attributes, put together again.

Attribute values are flat, so OpenInference writes ``llm.input_messages.0.message.role`` and OpenLLMetry
``gen_ai.prompt.0.role``. What lies below a prefix becomes lists and dicts again; a wrapper that only says
what its content is (``message``, ``tool_call``) is left out.
"""

from __future__ import annotations

from typing import Any, Final, cast

_WRAPPERS: Final = frozenset({"message", "tool_call", "message_content", "document", "embedding", "tool"})
_MOST: Final = 10_000
"""No list is longer; a hostile index must not make one."""


def take_below(attributes: dict[str, Any], prefix: str) -> list[Any] | None:
    """Take everything below a prefix out of the attributes, as a list; ``None`` when there is nothing."""
    start = len(prefix)
    keys = [key for key in attributes if key.startswith(prefix) and key[start : start + 1].isdecimal()]
    if not keys:
        return None
    root: dict[str, Any] = {}
    for key in keys:
        _place(root, key[len(prefix) :].split("."), attributes.pop(key))
    whole = _listed(root)
    return cast("list[Any]", whole) if isinstance(whole, list) else [whole]


def _place(root: dict[str, Any], path: list[str], value: Any) -> None:
    place = root
    for step in path[:-1]:
        below = place.get(step)
        if not isinstance(below, dict):
            below = place[step] = {} if below is None else {"": below}
        place = cast("dict[str, Any]", below)
    last = path[-1]
    if isinstance(place.get(last), dict):
        place[last][""] = value
    else:
        place[last] = value


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if fields and all(key.isdecimal() and int(key) < _MOST for key in fields):
        return [_listed(fields[key]) for key in sorted(fields, key=int)]
    if len(fields) == 1:
        ((name, inner),) = fields.items()
        if name in _WRAPPERS:
            return _listed(inner)
    return {name: _listed(inner) for name, inner in fields.items()}
