"""A key-value store in memory, for tests and for data that need not outlive the process.

Values are stored encoded, as in the other stores. **Invariant:** `get` returns an equal but separate value,
so modifying a value after `set` or `get` does not change the store.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

from treering.core.content import Content
from treering.core.encoding import decode, encode
from treering.core.ids import check_id


class InMemoryStore:
    """Keys and values in memory. Thread-safe."""

    def __init__(self) -> None:
        self._contents: dict[str, Content] = {}
        self._lock = Lock()

    def get(self, key: str) -> Any | None:
        """Return the value of a key, or None."""
        content = self._contents.get(check_id(key, "key"))
        return None if content is None else decode(content)

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key."""
        content = encode(value)
        with self._lock:
            self._contents[check_id(key, "key")] = content

    def delete(self, key: str) -> None:
        """Delete a key."""
        with self._lock:
            self._contents.pop(check_id(key, "key"), None)

    def compare_and_swap(self, key: str, old: Any, new: Any) -> bool:
        """Replace ``old`` by ``new`` atomically, or return False; ``None`` means no value."""
        check_id(key, "key")
        expected, content = (None if value is None else encode(value) for value in (old, new))
        with self._lock:
            if self._contents.get(key) != expected:
                return False
            if content is None:
                self._contents.pop(key, None)
            else:
                self._contents[key] = content
        return True

    def list(self, prefix: str = "") -> list[str]:
        """List all keys with a prefix, sorted."""
        return sorted(key for key in tuple(self._contents) if key.startswith(prefix))
