"""A key-value store as a folder: one file for each key, written whole.

The name of a file follows from its key (`treering.core.ids.file_name`): ordinary keys stand for themselves,
every other key gets a readable form and a hash. The first line of a file is the key as JSON, so that a key
is listed back exactly; the rest is a frame with a checksum, compressed if the store was opened so (either
kind reads both). Files are published as `treering.files` describes. **Invariant:** a file under its own
name holds one complete value of the key in its first line, or reading it raises `Corrupt` and names it.

Any number of processes may use one folder; of two that set the same key, the later rename stays.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from treering.core import frame
from treering.core.clock import Clock, SystemClock
from treering.core.content import KIND_NUMBERS, KINDS, Content
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import check_id, file_name
from treering.errors import Corrupt
from treering.files import Drafts, opened_folder, read_range, translated

_SUFFIX: Final = ".value"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FIRST_LINE: Final = 4096  # longer than any key as JSON
_NEVER: Final = 1 << 62


class FolderStore:
    """Keys and values as the files of one folder, which is made at the first `set`."""

    def __init__(self, directory: str | Path, compress: bool = False, *, clock: Clock | None = None) -> None:  # noqa: FBT001, FBT002 - seed 002 passes it by position
        self._root = Path(directory).absolute()
        self._drafts = Drafts(self._root, clock=clock or SystemClock())
        self._compress_from = frame.COMPRESS_FROM if compress else _NEVER
        self._keys: dict[str, str] = {}

    def get(self, key: str) -> Any | None:
        """The value under a key, None without one."""
        name = _file_of(key)
        with translated(str(self._root / name), writing=False):
            try:
                raw = self._read(name)
            except FileNotFoundError:
                return None
        where = str(self._root / name)
        stored, data = _parse(raw, where)
        if stored != key:
            raise Corrupt(f"{where}: this file holds {stored!r}, not {key!r}; it was renamed, put it back")
        payload = frame.unseal(data, where)
        if not payload or payload[0] >= len(KINDS):
            raise Corrupt(f"{where}: the kind of its value is unknown; restore the file from a backup")
        return decode(Content(KINDS[payload[0]], payload[1:]))

    def set(self, key: str, value: Any) -> None:
        """Keep a value under a key; it survives a loss of power once this returned."""
        name, content = _file_of(key), encode(value)
        payload = bytes((KIND_NUMBERS[content.kind],)) + content.data
        raw = (encode_json(key), b"\n", frame.seal(payload, compress_from=self._compress_from))
        with (
            translated(str(self._root / name), writing=True),
            self._drafts.write(raw) as draft,
            opened_folder(self._root) as folder,
        ):
            draft.publish(folder, name)
        self._keys[name] = key

    def delete(self, key: str) -> None:
        """Forget a key."""
        name = _file_of(key)
        with translated(str(self._root / name), writing=True):
            try:
                with opened_folder(self._root) as folder:
                    os.unlink(name, dir_fd=folder)
                    os.fsync(folder)
            except FileNotFoundError:
                return

    def list(self, prefix: str = "") -> list[str]:
        """All keys that begin with ``prefix``, in order. Files of other kinds are left alone."""
        with translated(str(self._root), writing=False):
            try:
                with opened_folder(self._root) as folder, os.scandir(folder) as entries:
                    names = [entry.name for entry in entries]
            except FileNotFoundError:
                return []
        keys = (self._key_of(name) for name in names if name.endswith(_SUFFIX) and not name.startswith("."))
        return sorted(key for key in keys if key is not None and key.startswith(prefix))

    def _key_of(self, name: str) -> str | None:
        # A name belongs to one key for ever, so its file is opened once; an ordinary key is the name.
        key = name.removesuffix(_SUFFIX)
        if file_name(key) == key:
            return key
        if name not in self._keys:
            with translated(str(self._root / name), writing=False):
                try:
                    start = self._read(name, stop=_FIRST_LINE)
                except FileNotFoundError:  # deleted since the folder was read
                    return None
            where = str(self._root / name)
            found, _ = _parse(start, where)
            if _file_of(found) != name:
                raise Corrupt(f"{where}: this file holds the key {found!r}; it was renamed, put it back")
            self._keys[name] = found
        return self._keys[name]

    def _read(self, name: str, *, stop: int | None = None) -> bytes:
        with opened_folder(self._root) as folder:
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
        raise Corrupt(f"{where}: not a value that treering wrote, or cut short; restore it or move it away")
    return key, rest
