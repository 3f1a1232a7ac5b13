"""Key-value stores without a server: in memory, and in a folder with one file per key.

Both store values encoded. **Invariant:** `get` returns an equal but separate value, so modifying a value
after `set` or `get` does not change the store. The store in memory is for tests and for data that need not
outlive the process.

A file of the folder is written atomically, as described in `treering.files`. Its name is derived from the key
(`treering.core.ids.file_name`): ordinary keys map to themselves, all others to a readable form with a hash.
The first line of a file is the key as JSON, so that keys are listed exactly; the rest is a frame with a
checksum, compressed if the store was opened that way (both can be read). **Invariant:** a file holds one
complete value of the key in its first line, or reading it raises `Corrupt` with its name.

Any number of processes may use one folder. If two set the same key, the later rename wins.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import Any, Final

from treering.core.clock import Clock, SystemClock
from treering.core.content import COMPRESS_FROM, KIND_NUMBERS, KINDS, Content, seal, unseal
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import check_id, file_name
from treering.errors import Corrupt
from treering.files import Drafts, open_folder, read_range, translate_os_errors

_SUFFIX: Final = ".value"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FIRST_LINE: Final = 4096  # longer than any key as JSON
_NEVER: Final = 1 << 62


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


class FolderStore:
    """Keys and values as files of a folder, which is created by the first `set`."""

    def __init__(self, directory: str | Path, compress: bool = False, *, clock: Clock | None = None) -> None:  # noqa: FBT001, FBT002 - agent-sdk passes it by position
        self._root = Path(directory).absolute()
        self._drafts = Drafts(self._root, clock=clock or SystemClock())
        self._compress_from = COMPRESS_FROM if compress else _NEVER
        self._keys: dict[str, str] = {}

    def get(self, key: str) -> Any | None:
        """Return the value of a key, or None."""
        name = _file_of(key)
        with translate_os_errors(str(self._root / name), writing=False):
            try:
                raw = self._read(name)
            except FileNotFoundError:
                return None
        where = str(self._root / name)
        stored, data = _parse(raw, where)
        if stored != key:
            raise Corrupt(f"{where}: this file holds {stored!r}, not {key!r}; it was renamed, rename it back")
        payload = unseal(data, where)
        if not payload or payload[0] >= len(KINDS):
            raise Corrupt(f"{where}: unknown kind of value; restore the file from a backup")
        return decode(Content(KINDS[payload[0]], payload[1:]))

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key. Durable when this returns."""
        name, content = _file_of(key), encode(value)
        payload = bytes((KIND_NUMBERS[content.kind],)) + content.data
        raw = (encode_json(key), b"\n", seal(payload, compress_from=self._compress_from))
        with (
            translate_os_errors(str(self._root / name), writing=True),
            self._drafts.write(raw) as draft,
            open_folder(self._root) as folder,
        ):
            draft.publish(folder, name)
        self._keys[name] = key

    def delete(self, key: str) -> None:
        """Delete a key."""
        name = _file_of(key)
        with translate_os_errors(str(self._root / name), writing=True):
            try:
                with open_folder(self._root) as folder:
                    os.unlink(name, dir_fd=folder)
                    os.fsync(folder)
            except FileNotFoundError:
                return

    def list(self, prefix: str = "") -> list[str]:
        """List all keys with a prefix, sorted. Other files are ignored."""
        with translate_os_errors(str(self._root), writing=False):
            try:
                with open_folder(self._root) as folder, os.scandir(folder) as entries:
                    names = [entry.name for entry in entries]
            except FileNotFoundError:
                return []
        keys = (self._key_of(name) for name in names if name.endswith(_SUFFIX) and not name.startswith("."))
        return sorted(key for key in keys if key is not None and key.startswith(prefix))

    def _key_of(self, name: str) -> str | None:
        # A name always belongs to the same key, so its file is opened once; an ordinary key is its own name.
        key = name.removesuffix(_SUFFIX)
        if file_name(key) == key:
            return key
        if name not in self._keys:
            with translate_os_errors(str(self._root / name), writing=False):
                try:
                    start = self._read(name, stop=_FIRST_LINE)
                except FileNotFoundError:  # deleted since the folder was read
                    return None
            where = str(self._root / name)
            found, _ = _parse(start, where)
            if _file_of(found) != name:
                raise Corrupt(f"{where}: this file holds the key {found!r}; it was renamed, rename it back")
            self._keys[name] = found
        return self._keys[name]

    def _read(self, name: str, *, stop: int | None = None) -> bytes:
        with open_folder(self._root) as folder:
            file = os.open(name, _READ, dir_fd=folder)
        try:
            return read_range(file, 0, os.fstat(file).st_size if stop is None else stop)
        finally:
            os.close(file)


def _file_of(key: str) -> str:
    return file_name(check_id(key, "key")) + _SUFFIX


def _parse(raw: bytes, where: str) -> tuple[str, bytes]:
    line, newline, rest = raw.partition(b"\n")
    try:
        key = decode_json(line)
    except Corrupt:
        key = None
    if not newline or not isinstance(key, str):
        raise Corrupt(f"{where}: not written by treering, or truncated; restore it or move it away")
    return key, rest
