"""Open paths below a folder without ever leaving it.

Checking a path before opening it is a race: someone can swap a folder for a link in between. So the kernel
does both in one step: ``openat2`` with RESOLVE_BENEATH resolves the whole path relative to an open folder and
refuses whatever leaves it, by ``..``, by a link, or by a race (Linux 5.6; called through ctypes, as Python
does not wrap it). Without it, the path is walked one name at a time and no link is followed at all, which is
stricter, not weaker. **Invariant:** a descriptor returned from here was inside the folder when it was opened.

This confines paths, not processes: code that runs as you can open whatever you can.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from typing import Final

_SYS_OPENAT2: Final = 437  # the same number on every architecture
_NO_MAGICLINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_RACE_TRIES: Final = 100
"""How often a lookup is retried that raced with a rename."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_O_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class ConfinedFolder:
    """An open folder below which paths are opened.

    ``walks`` forces the fallback for kernels without ``openat2``.
    """

    def __init__(self, path: str | os.PathLike[str], *, walks: bool = False) -> None:
        self.folder = os.open(path, _FOLDER)
        self._walks = walks or not has_openat2()
        self._hows: dict[tuple[int, int], tuple[object, int]] = {}

    def close(self) -> None:
        """Close the folder."""
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1

    def open(self, names: Sequence[str], flags: int, mode: int = 0) -> int:
        """Open a path, given as its names, and return a descriptor. Raises `OSError`."""
        if self._walks:
            return self._open_by_walking(names, flags, mode)
        how = self._hows.get((flags, mode))
        if how is None:
            made = _OpenHow(flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGICLINKS)
            how = self._hows[flags, mode] = (ctypes.byref(made), ctypes.sizeof(made))
        raw = os.fsencode("/".join(names) or ".")
        if b"\0" in raw:
            raise OSError(errno.EINVAL, "name contains a NUL")
        reason = errno.EAGAIN
        for _ in range(_RACE_TRIES):
            found = _syscall(_SYS_OPENAT2, self.folder, raw, *how)
            if found >= 0:
                return found
            reason = ctypes.get_errno()
            if reason not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(reason, os.strerror(reason))

    def open_folder(self, names: Sequence[str], *, make: bool = False) -> int:
        """Open a folder to create, rename and remove entries in it; with ``make``, create missing folders."""
        try:
            return self.open(names, _FOLDER)
        except FileNotFoundError:
            if not make or not names:
                raise
        above = self.open_folder(names[:-1], make=True)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(names[-1], 0o755, dir_fd=above)
            return os.open(names[-1], _FOLDER | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)

    def _open_by_walking(self, names: Sequence[str], flags: int, mode: int) -> int:
        names = [each for each in names if each not in ("", ".")]
        if ".." in names:
            raise OSError(errno.EXDEV, "path leaves the folder", "/".join(names))
        folder = os.dup(self.folder)
        try:
            for name in names[:-1]:
                below = os.open(name, _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = below
            last = names[-1] if names else "."
            return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        finally:
            os.close(folder)


def has_openat2() -> bool:
    """Return whether this kernel has ``openat2``; tested once per process."""
    global _has_openat2  # noqa: PLW0603 - a property of the machine
    if _has_openat2 is None:
        _has_openat2 = sys.platform == "linux" and _probe()
    return _has_openat2


_has_openat2: bool | None = None
_library: Final = ctypes.CDLL(None, use_errno=True)
_syscall: Final = _library.syscall
_syscall.restype = ctypes.c_long


def _probe() -> bool:
    folder = os.open("/", _FOLDER)
    try:
        how = _OpenHow(_FOLDER, 0, _BENEATH | _NO_SYMLINKS)
        found = _syscall(_SYS_OPENAT2, folder, b".", ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            os.close(found)
        return found >= 0
    finally:
        os.close(folder)
