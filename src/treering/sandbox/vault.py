"""Credentials for a sandbox: readable there, not writable, and never on its disk.

A file of the user's home is read into memory that is sealed against writing (Linux ``memfd``), and a link in
the sandbox's home leads to it. So the agent can sign in, cannot change what the user signs in with, and
nothing is left when the vault closes. Where there are no sealed files, the link leads to the file itself. The
links' names are on the list of what is never archived.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from treering.errors import InvalidInput

_SEALS: Final = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")
_LIMIT: Final = 4 << 20


class Vault:
    """What one sandbox may read of its user's home, for as long as this is open."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._links: list[Path] = []

    def link(self, files: Iterable[str], *, source: Path, home: Path) -> None:
        """Let the sandbox's home have these files of the user's; one that is missing is fine."""
        for name in files:
            real = source / name
            try:
                data = real.read_bytes()
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            if len(data) > _LIMIT:
                raise InvalidInput(f"{real} has {len(data):,} bytes, which is too much for a credential")
            place = home / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.parent.resolve().is_relative_to(home.resolve()):
                continue  # a link leads out of the sandbox: nothing is touched there
            with contextlib.suppress(FileNotFoundError):
                place.unlink()
            place.symlink_to(self._sealed(data) or real)
            self._links.append(place)

    def close(self) -> None:
        """Take the links away and forget what they led to."""
        for place in self._links:
            with contextlib.suppress(OSError):
                if place.is_symlink():
                    place.unlink()
        for held in self._held:
            os.close(held)
        self._links.clear()
        self._held.clear()

    def _sealed(self, data: bytes) -> str | None:
        create = getattr(os, "memfd_create", None)
        if create is None or not all(hasattr(fcntl, each) for each in (*_SEALS, "F_ADD_SEALS")):
            return None
        held: int = create("treering-credential", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._held.append(held)
        while data:
            data = data[os.write(held, data) :]
        seals = 0
        for each in _SEALS:
            seals |= getattr(fcntl, each)
        fcntl.fcntl(held, fcntl.F_ADD_SEALS, seals)
        return f"/proc/{os.getpid()}/fd/{held}"
