"""Filling files: what nobody waits for any more is given up, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from treering.core.content import Content
from treering.core.tree import FileEntry
from treering.workspaces.restore_files import Filler
from treering.workspaces.scan import KnownFile, Stamp

PIECES = [Content("bytes", bytes([number]) * 1_000_000) for number in range(1, 13)]
LARGE = FileEntry(
    name="large", mode=0o644, size=12_000_000, content=tuple(content.name for content in PIECES)
)


class Site:
    """A folder that is there."""

    path = ""
    is_nameless = False

    def __init__(self, folder: int) -> None:
        self.folder = folder
        self.known: dict[str, KnownFile] = {}
        self.stamps: dict[str, Stamp] = {}
        self.cuts: dict[str, tuple[int, ...]] = {}


class Source:
    """Contents at hand, which stops the filler when it is asked for the second time if that is wanted."""

    def __init__(self) -> None:
        self.asked = 0
        self.stops: Filler | None = None

    def contents(self, names: Sequence[str]) -> dict[str, Content]:
        self.asked += 1
        if self.stops is not None and self.asked == 2:
            self.stops.stop()
        return {content.name: content for content in PIECES if content.name in names}

    def expect(self, names: Sequence[str]) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = os.open(tmp_path, os.O_RDONLY)
    yield Site(folder)
    os.close(folder)


def test_a_large_file_is_written_piece_by_piece(site: Site, tmp_path: Path) -> None:
    source = Source()
    with Filler(source) as filler:
        filler.settle(filler.add(site, LARGE))
    assert source.asked == 3
    assert (tmp_path / "large").read_bytes() == b"".join(content.data for content in PIECES)
    assert list(site.stamps) == ["large"]


def test_a_large_file_that_nobody_waits_for_is_given_up(site: Site, tmp_path: Path) -> None:
    source = Source()
    with Filler(source) as filler:
        source.stops = filler
        filler.add(site, LARGE)
        filler.wait()
    assert source.asked == 2
    assert list(tmp_path.iterdir()) == []
