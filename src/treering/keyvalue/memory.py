"""A key-value store in a dict: for tests, and for what need not outlive the process.

Values are kept encoded, as the other stores keep them. **Invariant:** what comes out is equal to what went
in and shared with nobody, so changing a value after `set` or after `get` changes nothing here.
"""

from __future__ import annotations

from typing import Any

from treering.core.content import Content
from treering.core.encoding import decode, encode
from treering.core.ids import check_id


class InMemoryStore:
    """Keys and values in memory; any number of threads may use it."""

    def __init__(self) -> None:
        self._contents: dict[str, Content] = {}

    def get(self, key: str) -> Any | None:
        """The value under a key, None without one."""
        content = self._contents.get(check_id(key, "key"))
        return None if content is None else decode(content)

    def set(self, key: str, value: Any) -> None:
        """Keep a value under a key."""
        self._contents[check_id(key, "key")] = encode(value)

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._contents.pop(check_id(key, "key"), None)

    def list(self, prefix: str = "") -> list[str]:
        """All keys that begin with ``prefix``, in order."""
        return sorted(key for key in tuple(self._contents) if key.startswith(prefix))
