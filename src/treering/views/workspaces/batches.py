"""Batches: the objects of many files in order, in runs that are worth one read and fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from treering.core.tree import FileEntry

BATCH_BYTES: Final = 4 * 1024 * 1024
BATCH_OBJECTS: Final = 500


def batches(files: Iterable[FileEntry]) -> Iterator[list[str]]:
    """The objects of files in order, in runs that are worth one read and fit into memory."""
    names: list[str] = []
    size = 0.0
    for entry in files:
        for name in entry.content:
            if not names or name != names[-1]:  # as the pieces of a hole are: read once
                size += entry.size / len(entry.content)
            names.append(name)
            if size >= BATCH_BYTES or len(names) >= BATCH_OBJECTS:
                yield names
                names, size = [], 0.0
    if names:
        yield names
