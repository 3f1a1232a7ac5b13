"""Key-value stores for the savers of seed 002: a dict, a folder, Redis, or a user's own."""

from treering.core.storage import KeyValueStore
from treering.keyvalue.folder import FolderStore
from treering.keyvalue.memory import InMemoryStore
from treering.keyvalue.redis import RedisStore

__all__ = ["FolderStore", "InMemoryStore", "KeyValueStore", "RedisStore"]
