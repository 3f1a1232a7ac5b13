"""A dict that is durable: what a program kept in a JSON file, without the file's lost updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from treering.core.ids import check_id, namespace_prefix

if TYPE_CHECKING:
    from treering.state.state import State


class JsonStore(MutableMapping[str, Any]):
    """The keys of small state below one name, as a mapping.

    What is read is a copy: change a value by assigning it, or by `change`, which loses no other writer's.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = check_id(name, "name of a mapping")
        self._prefix = namespace_prefix(name)

    def __repr__(self) -> str:
        return f"<JsonStore {self._name!r}>"

    @property
    def name(self) -> str:
        """What its keys stand below."""
        return self._name

    def get(self, key: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - plainer
        """The value of a key, or ``default``."""
        return self._state.get(self._prefix + key, default)

    def set(self, key: str, value: Any) -> None:
        """Give a key a value; durable when this returns."""
        self._state.set(self._prefix + key, value)

    def delete(self, key: str) -> bool:
        """Remove a key; says whether it was there."""
        return self._state.delete(self._prefix + key)

    def change(self, key: str, function: Callable[[Any], Any], default: Any = None) -> Any:
        """Set a key to ``function(value)``, whoever else writes meanwhile; gives back the new value."""
        return self._state.update(self._prefix + key, function, default)

    def add(self, key: str, delta: int = 1) -> int:
        """Add to a whole number (absent counts as 0) and return the sum."""
        return self._state.add(self._prefix + key, delta)

    def all(self) -> Mapping[str, Any]:
        """Everything, as a dict of its own."""
        return {entry.key[len(self._prefix) :]: entry.value for entry in self._state.list(self._prefix)}

    def __getitem__(self, key: str) -> Any:
        found = self._state.entry(self._prefix + key)
        if found is None:
            raise KeyError(key)
        return found.value

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        for key in self._state.keys(self._prefix):
            yield key[len(self._prefix) :]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(key) and self._state.entry(self._prefix + key) is not None
