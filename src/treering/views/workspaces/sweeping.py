"""Sweeping: what a restore that died left half-written goes away, what a running one is writing stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat as stats
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from treering.views.workspaces.beneath import Beneath
from treering.views.workspaces.scanning import FILE_FLAGS, FOLDER_FLAGS
from treering.views.workspaces.virtual_paths import remove

_LINK_SECONDS: Final = 60


def sweep(root: Path, litter: Iterable[str]) -> None:
    """Remove what restores that died left half-written; those that still run keep theirs."""
    beneath = Beneath(root)
    try:
        for path in litter:
            *above, name = path.split("/")
            with contextlib.suppress(OSError):
                folder = beneath.open(above, FOLDER_FLAGS)
                try:
                    _sweep_one(folder, name)
                finally:
                    os.close(folder)
    finally:
        beneath.close()


def _sweep_one(folder: int, name: str) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stats.S_ISLNK(found.st_mode):  # cannot be locked, but lives for a moment only
        if time.time() - found.st_ctime > _LINK_SECONDS:
            os.unlink(name, dir_fd=folder)
        return
    file = os.open(name, FILE_FLAGS, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stats.S_ISDIR(found.st_mode):
            remove(folder, name)
        else:
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(file)
