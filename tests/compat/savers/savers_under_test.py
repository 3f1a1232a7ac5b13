"""Every kind of storage that a saver has; each can be opened again, and in any namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import treering
from treering.compat.savers import (
    FileSaver,
    KeyValueStoreSaver,
    MemorySaver,
    PostgresSaver,
    Saver,
    SqliteSaver,
)
from treering.keyvalue import FolderStore, InMemoryStore, RedisStore
from treering.sync_async import call


class AsyncStore:
    """A user's own store, with four async methods (the document's RedisStore, on a dict)."""

    def __init__(self):
        self.kept = {}
        self.loops = set()

    async def get(self, key):
        await self._turn()
        return self.kept.get(key)

    async def set(self, key, value):
        await self._turn()
        self.kept[key] = value

    async def delete(self, key):
        await self._turn()
        self.kept.pop(key, None)

    async def list(self, prefix=""):
        await self._turn()
        return [key for key in self.kept if key.startswith(prefix)]

    async def _turn(self):
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)


class PlainStore(dict):
    """As little as a user can write."""

    set = dict.__setitem__

    def delete(self, key):
        self.pop(key, None)

    def list(self, prefix=""):
        return [key for key in self if key.startswith(prefix)]


class Place:
    """Where checkpoints lie; ``open`` gives another saver on the same ones."""

    def __init__(self, make: Callable[..., Saver], store=None) -> None:
        self._make = make
        self._store = store
        self._opened: list[Saver] = []

    def open(self, **options) -> Saver:
        saver = self._make(**options)
        self._opened.append(saver)
        return saver

    def keys(self) -> list[str]:
        """All keys of a key-value store."""
        return sorted(call(self._store.list, ""))

    def delete(self, key: str) -> None:
        """Lose a key of a key-value store."""
        call(self._store.delete, key)

    def close(self) -> None:
        for saver in self._opened:
            saver.close()


STORES = ["memory", "sqlite", "postgres"]
LASTING = ["files", "uncompressed files", "folder", "redis", "sqlite", "postgres"]
KEY_VALUES = ["dict", "folder", "redis", "a user's async store", "a user's plain store"]
ALL = [*STORES, "files", "uncompressed files", *KEY_VALUES]
EACH = ["memory", "sqlite", "files", "dict", "a user's async store"]
"""One of each way to keep checkpoints, for what the servers and the other folders can hardly do otherwise."""

_MARKS = {"redis": pytest.mark.redis, "postgres": pytest.mark.postgres}


def kinds(names: list[str]) -> list:
    return [pytest.param(name, marks=_MARKS.get(name, ())) for name in names]


def place(kind: str, request: pytest.FixtureRequest) -> Place:
    folder = request.getfixturevalue("tmp_path") / kind.replace(" ", "-").replace("'", "")
    match kind:
        case "memory":
            store = treering.open("memory:")
            return Place(lambda **options: MemorySaver(store, **options))
        case "sqlite":
            return Place(lambda **options: SqliteSaver(folder, durability="fast", **options))
        case "postgres":
            url = request.getfixturevalue("postgres_url")
            return Place(lambda **options: PostgresSaver(url, **options))
        case "files":
            return Place(lambda **options: FileSaver(folder, None, **options))
        case "uncompressed files":
            return Place(lambda **options: FileSaver(folder, None, compress=False, **options))
        case "dict":
            kept = InMemoryStore()
        case "folder":
            kept = FolderStore(folder)
        case "redis":
            kept = RedisStore(request.getfixturevalue("redis_url"))
        case "a user's async store":
            kept = AsyncStore()
        case "a user's plain store":
            kept = PlainStore()
        case _:
            raise AssertionError(kind)
    return Place(lambda **options: KeyValueStoreSaver(kept, **options), kept)


def say(text: str) -> dict:
    return {"role": "user", "content": text}


def talk(saver: Saver, thread_id: str = "conversation-1", steps: int = 5) -> list[dict]:
    """A thread with one message, a todo and a note for each step; gives back the messages."""
    messages: list[dict] = []
    for step in range(steps):
        messages.append(say(f"message {step}"))
        saver.save(
            thread_id=thread_id,
            messages=messages,
            state={"todos": [f"todo {step}"], "files": {"plan.md": "x" * 100}},
            metadata={"step": step},
            note=f"step {step}",
        )
    return messages
