"""Folders compared as a whole."""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path


def picture(root: Path) -> dict[str, tuple[str, int, str]]:
    """Every path below a folder with its kind, its mode and what it holds."""
    reported: dict[str, tuple[str, int, str]] = {}
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(place) / name
            found = path.lstat()
            mode = stat.S_IMODE(found.st_mode)
            where = str(path.relative_to(root))
            if stat.S_ISLNK(found.st_mode):
                reported[where] = ("link", 0, str(path.readlink()))
            elif stat.S_ISDIR(found.st_mode):
                reported[where] = ("folder", mode, "")
            elif stat.S_ISREG(found.st_mode):
                reported[where] = ("file", mode, sha256(path.read_bytes()).hexdigest())
            else:
                reported[where] = ("special", mode, "")
    return reported
