"""Checkpoints as files in a folder: nothing to install, nothing to run, readable by any process.

::

    .agent/checkpoints/
      head/conversation-1                    which checkpoint is the newest
      data/conversation-1/ckpt_...           one file for each checkpoint
      data/conversation-1/m-...              the messages that a save brought, once
      @alice/head/..., @alice/data/...       the same for namespace alice

A save writes its new messages, then its checkpoint, then moves the head, each file whole or not at all: a
process that dies in between leaves the checkpoint before as it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treering.core.clock import Clock, SystemClock
from treering.core.retention import Keep
from treering.errors import InvalidInput
from treering.savers.fields import checked_keep, checked_namespace
from treering.savers.folders import Folders
from treering.savers.keyvalue_shelf import KeyValueShelf
from treering.savers.locks import FolderLocks
from treering.savers.saver import HooksLike, Saver


class FileSaver(Saver):
    """Checkpoints as files, safe for any number of processes of one machine.

    Each thread keeps its newest ``max_checkpoints`` (``None``: all), or what ``keep`` says instead.
    ``compress`` is about what is written from now on; both kinds are read.
    """

    def __init__(
        self,
        directory: str | Path,
        max_checkpoints: int | None = 100,
        compress: bool = True,  # noqa: FBT001, FBT002 - seed 002's own arguments
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
        clock: Clock | None = None,
    ) -> None:
        given: Any = directory
        if not isinstance(given, (str, Path)) or not str(given):
            raise InvalidInput(f"directory is {given!r}; give the folder that checkpoints shall be in")
        root = Path(given).expanduser().absolute()
        clock = clock or SystemClock()
        keep = checked_keep(keep)
        if keep is None and max_checkpoints is not None:
            keep = Keep(last=max_checkpoints)
        shelf = KeyValueShelf(
            Folders(root, compress=compress, clock=clock),
            namespace=checked_namespace(namespace),
            keep=keep,
            locks=FolderLocks(root),
            clock=clock,
        )
        super().__init__(shelf, hooks=hooks)
