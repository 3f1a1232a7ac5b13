"""State objects: a program's own object as the state of a thread, attribute by attribute.

Every attribute becomes a state value of its own name, and lists that grow (``history``) become list channels,
so a snapshot costs only what changed. Nothing is pickled: an attribute without a safe encoding (a config
object, validators) is stored as ``{"_opaque": "<type>"}`` and listed in ``metadata["opaque"]``.
**Invariant:** restoring never touches opaque attributes, nor attributes that the checkpoint does not have;
they stay as they are in the live object.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.encoding import encode
from treering.errors import InvalidInput, Unencodable
from treering.threads.checkpoint import MESSAGES

if TYPE_CHECKING:
    from treering.threads.checkpoint import Checkpoint

LISTS: Final = ("history",)
"""Attributes that are stored as list channels unless the caller names others."""

_OPAQUE: Final = "_opaque"
_OPAQUE_NAMES: Final = "opaque"
_LIST_NAMES: Final = "state_lists"
_ABSENT: Final = object()


class CapturedState(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of an object, as a checkpoint stores them."""

    state: dict[str, Any]
    lists: dict[str, list[Any]]
    opaque: tuple[str, ...]

    def metadata(self, own: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the caller's own metadata with the names of opaque attributes and of lists."""
        return {**(own or {}), _OPAQUE_NAMES: list(self.opaque), _LIST_NAMES: list(self.lists)}


def capture(obj: Any, *, lists: Sequence[str] = LISTS, leave_out: Sequence[str] = ()) -> CapturedState:
    """Return the attributes of an object (or the items of a dict) as they are now."""
    state: dict[str, Any] = {}
    channels: dict[str, list[Any]] = {}
    opaque: list[str] = []
    for name, value in _attributes(obj).items():
        if name in leave_out:
            continue
        plain = _plain(value)
        try:
            encode(plain, keep_order=True)
        except Unencodable:
            state[name] = {_OPAQUE: f"{type(value).__module__}.{type(value).__qualname__}"}
            opaque.append(name)
            continue
        if name in lists and isinstance(plain, list):
            channels[name] = cast("list[Any]", plain)
        else:
            state[name] = plain
    return CapturedState(state=state, lists=channels, opaque=tuple(opaque))


def attributes(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the attributes of an object that a checkpoint holds, opaque markers included."""
    names: Any = checkpoint.metadata.get(_LIST_NAMES)
    if names is None:  # the checkpoint was not made from an object
        names = [name for name in checkpoint.list_names if name != MESSAGES]
    return {**checkpoint.state, **{name: checkpoint.items(name) for name in names}}


def set_attributes(obj: Any, checkpoint: Checkpoint) -> None:
    """Set the attributes of an object (or the items of a dict) to those of a checkpoint, except opaque ones.

    A dict or list of a special type (a `Counter`) is refilled in place, so that it keeps its type.
    """
    opaque = set(checkpoint.metadata.get(_OPAQUE_NAMES, ()))
    stored = {name: value for name, value in attributes(checkpoint).items() if name not in opaque}
    has = _attributes(obj)
    for name, value in stored.items():
        own = has.get(name, _ABSENT)
        if isinstance(value, dict) and isinstance(own, dict) and type(cast("object", own)) is not dict:
            _refill(cast("dict[Any, Any]", own), cast("dict[Any, Any]", value))
        elif isinstance(value, list) and isinstance(own, list) and type(cast("object", own)) is not list:
            cast("list[Any]", own)[:] = cast("list[Any]", value)
        elif isinstance(obj, MutableMapping):
            cast("MutableMapping[str, Any]", obj)[name] = value
        else:
            _set(obj, name, value)


def _attributes(obj: Any) -> dict[str, Any]:
    if isinstance(obj, Mapping):
        return dict(cast("Mapping[str, Any]", obj))
    found: dict[str, Any] = {}
    for kind in reversed(type(obj).__mro__):
        slots: Any = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"} and hasattr(obj, name):
                found[name] = getattr(obj, name)
    found.update(getattr(obj, "__dict__", {}))
    if not found and not hasattr(obj, "__dict__"):
        raise InvalidInput(f"a {type(obj).__name__} has no attributes to save; pass an object or a dict")
    return found


def _plain(value: Any) -> Any:
    """Return the contents of a dict or list of a special type; the live object knows its own type."""
    if isinstance(value, dict):
        return dict(cast("dict[Any, Any]", value))
    return list(cast("list[Any]", value)) if isinstance(value, list) else value


def _refill(own: dict[Any, Any], value: dict[Any, Any]) -> None:
    own.clear()
    own.update(value)


def _set(obj: Any, name: str, value: Any) -> None:
    try:
        setattr(obj, name, value)
    except AttributeError as error:
        raise InvalidInput(
            f"{type(obj).__name__}.{name} cannot be set ({error}); restore into an object that can change"
        ) from error
