"""A key-value store in a dict: for tests, and for what need not outlive the process.

Values are kept encoded, as the other stores keep them. **Invariant:** what comes out is equal to what went
in and shared with nobody, so changing a value after `set` or after `get` changes nothing here.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

from treering.core.content import Content
from treering.core.encoding import decode, encode
from treering.core.ids import check_id


class InMemoryStore:
    """Keys and values in memory; any number of threads may use it."""

    def __init__(self) -> None:
        self._contents: dict[str, Content] = {}
        self._lock = Lock()

    def get(self, key: str) -> Any | None:
        """The value under a key, None without one."""
        content = self._contents.get(check_id(key, "key"))
        return None if content is None else decode(content)

    def set(self, key: str, value: Any) -> None:
        """Keep a value under a key."""
        content = encode(value)
        with self._lock:
            self._contents[check_id(key, "key")] = content

    def delete(self, key: str) -> None:
        """Forget a key."""
        with self._lock:
            self._contents.pop(check_id(key, "key"), None)

    def compare_and_swap(self, key: str, old: Any, new: Any) -> bool:
        """Put a value in the place of another one if that is there; ``None`` is no value."""
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
        """All keys that begin with ``prefix``, in order."""
        return sorted(key for key in tuple(self._contents) if key.startswith(prefix))
