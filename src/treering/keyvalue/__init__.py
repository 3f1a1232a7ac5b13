"""Key-value stores for savers: in memory, in a folder, on Redis, or brought by the user."""

from treering.core.storage import KeyValueStore
from treering.keyvalue.local import FolderStore, InMemoryStore
from treering.keyvalue.redis import RedisStore

__all__ = ["FolderStore", "InMemoryStore", "KeyValueStore", "RedisStore"]
