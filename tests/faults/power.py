"""Power loss: record what a process does to its files, and make the states that a crash could leave behind.

`record` runs a program with a small library in front of libc (``recorder.c``) that notes every write, sync,
rename and unlink below a folder. `Disk` replays the notes on a disk that promises no more than POSIX does:

- What was written to a file since its last sync may be there or not, in any combination, by sectors of 512
  bytes.
- What was done to a folder (create, rename, unlink, ...) since its last sync may be there or not, in any
  order, except that of changes of one name. A rename is atomic. Syncing a file does not sync its name.

So a state is what is certain, and some of what is not. ``crash`` chooses it by chance, with the extremes
(nothing, everything) and torn writes among it.

The program says what it was promised by writing lines to the file ``PROMISES`` in the folder, which is not
part of the disk: at each point it is known what was acknowledged before.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.faults.stores import REPOSITORY

PROMISES: Final = "PROMISES"
SECTOR: Final = 512
_SOURCE: Final = Path(__file__).with_name("recorder.c")
_HEADER: Final = struct.Struct("=IIIIQQQq")
_WRITE, _MKDIR = 2, 7
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the recorded process. Inodes and folders are numbers of the real file system."""

    op: int
    name: str
    other: str
    data: bytes
    inode: int
    folder: int
    other_folder: int
    offset: int


def compile_recorder(folder: Path) -> Path:
    """Compile the library; skip the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("recording needs Linux and a C compiler")
    library = folder / "recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def record(library: Path, work: Path, scenario: str, *options: str) -> list[Call]:
    """Run a scenario of `tests.faults.power_victim` in a new folder; return what it did there."""
    root, log = work / "disk", work / "log"
    root.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.power_victim", scenario, str(root), *options],
        cwd=REPOSITORY,
        env={**os.environ, "LD_PRELOAD": str(library), "RECORD_ROOT": str(root), "RECORD_LOG": str(log)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    root_inode = root.stat().st_ino
    shutil.rmtree(root)
    return list(_calls(log.read_bytes(), root_inode))


def _calls(log: bytes, root: int) -> Iterator[Call]:
    at = 0
    while at < len(log):
        op, name_size, other_size, size, inode, folder, other_folder, offset = _HEADER.unpack_from(log, at)
        at += _HEADER.size
        name, other = log[at : at + name_size], log[at + name_size : at + name_size + other_size]
        at += name_size + other_size
        numbers = [_ROOT if number == root else number for number in (inode, folder, other_folder)]
        yield Call(op, os.fsdecode(name), os.fsdecode(other), log[at : at + size], *numbers, offset)
        at += size


@dataclass(slots=True)
class _File:
    """What of a file is certain, and what was done to it since."""

    certain: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Writes (offset, data), and truncations (size, None)."""

    def content(self, chosen: list[tuple[int, bytes | None]]) -> bytes:
        data = bytearray(self.certain)
        for offset, written in chosen:
            if written is None:
                data = data[:offset] + bytes(max(0, offset - len(data)))
            else:
                data += bytes(max(0, offset - len(data)))
                data[offset : offset + len(written)] = written
        return bytes(data)


@dataclass(slots=True)
class _Change:
    """A change of one or two names, which is there whole or not at all."""

    folders: tuple[int, ...]
    sets: dict[tuple[int, str], int | None]
    """What the names refer to afterwards; ``None`` for nothing."""


class Disk:
    """A disk that replays calls, and can lose its power after each of them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {_ROOT: _ROOT}
        self._files: dict[int, _File] = {}
        self._folders: set[int] = {_ROOT}
        self._certain: dict[tuple[int, str], int | None] = {}
        self._changes: list[_Change] = []
        self._newest = _ROOT
        self._promises_file: int | None = None
        self.promises: list[str] = []
        self._unfinished = ""

    def apply(self, call: Call) -> None:
        """Replay a call."""
        folder = self._numbers.get(call.folder, -1)
        match call.op:
            case 1 | 7:  # create, mkdir
                number = self._new(call.inode)
                if call.name == PROMISES:
                    self._promises_file = number
                elif call.op == _MKDIR:
                    self._folders.add(number)
                    self._change({(folder, call.name): number})
                else:
                    self._files[number] = _File()
                    self._change({(folder, call.name): number})
            case 2 | 3:  # write, truncate
                number = self._numbers.get(call.inode)
                if number is not None and number == self._promises_file:
                    self._hear(call.data.decode())
                elif number in self._files:
                    self._files[number].since.append((call.offset, call.data if call.op == _WRITE else None))
            case 4:  # sync
                self._sync(self._numbers.get(call.inode, -1))
            case 5:  # rename
                number = self._numbers[call.inode]
                other = self._numbers.get(call.other_folder, -1)
                self._change({(folder, call.name): None, (other, call.other): number})
            case 6:  # unlink
                self._change({(folder, call.name): None})
            case _:  # link
                other = self._numbers.get(call.other_folder, -1)
                self._change({(other, call.other): self._numbers[call.inode]})

    def crash(self, chance: random.Random, target: Path) -> None:
        """Write a state that a power loss now could leave behind into a new folder."""
        share = chance.choice((0.0, 0.0, 0.2, 0.5, 0.8, 1.0, 1.0))
        names = dict(self._certain)
        skipped: set[tuple[int, str]] = set()
        names_share = share if chance.random() < 0.7 else chance.random()
        for change in self._changes:
            # A change of a name whose earlier change is missing would be out of order.
            if chance.random() < names_share and skipped.isdisjoint(change.sets):
                names.update(change.sets)
            else:
                skipped.update(change.sets)
        target.mkdir()
        self._write_folder(_ROOT, target, names, share, chance)

    @property
    def is_uncertain(self) -> bool:
        """Whether a crash now could leave more than one state."""
        return bool(self._changes) or any(file.since for file in self._files.values())

    def _write_folder(
        self,
        folder: int,
        target: Path,
        names: dict[tuple[int, str], int | None],
        share: float,
        chance: random.Random,
    ) -> None:
        for (above, name), number in names.items():
            if above != folder or number is None:
                continue
            if number in self._folders:
                (target / name).mkdir()
                self._write_folder(number, target / name, names, share, chance)
            else:
                file = self._files[number]
                (target / name).write_bytes(file.content(_some_of(file.since, share, chance)))

    def _new(self, inode: int) -> int:
        self._newest += 1
        self._numbers[inode] = self._newest
        return self._newest

    def _change(self, sets: dict[tuple[int, str], int | None]) -> None:
        self._changes.append(_Change(tuple({folder for folder, _ in sets}), sets))

    def _sync(self, number: int) -> None:
        if number in self._files:
            file = self._files[number]
            file.certain, file.since = file.content(file.since), []
        elif number in self._folders:
            self._sync_folder(number)

    def _sync_folder(self, number: int) -> None:
        """Make the changes of a folder certain, with all earlier changes of the same names."""
        kept: list[_Change] = []
        certain: list[_Change] = []
        names: set[tuple[int, str]] = set()
        for change in reversed(self._changes):
            if number in change.folders or not names.isdisjoint(change.sets):
                names.update(change.sets)
                certain.append(change)
            else:
                kept.append(change)
        for change in reversed(certain):
            self._certain.update(change.sets)
        self._changes = kept[::-1]

    def _hear(self, text: str) -> None:
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        self.promises += lines


def _some_of(
    since: list[tuple[int, bytes | None]], share: float, chance: random.Random
) -> list[tuple[int, bytes | None]]:
    if share in (0.0, 1.0):
        return since if share else []
    chosen: list[tuple[int, bytes | None]] = []
    for offset, data in since:
        if data is None or len(data) <= SECTOR or chance.random() < 0.5:
            if chance.random() < share:
                chosen.append((offset, data))
            continue
        sectors = range(0, len(data), SECTOR)  # a torn write
        chosen += [
            (offset + start, data[start : start + SECTOR]) for start in sectors if chance.random() < share
        ]
    return chosen


def crashes(calls: list[Call], states: int, seed: int, work: Path) -> Iterator[tuple[int, list[str], Path]]:
    """Yield states after crashes at chance moments: the number of calls, the promises before, the folder."""
    chance = random.Random(seed)
    interesting = [at for at, call in enumerate(calls, 1) if call.op != _WRITE]
    points = sorted(
        chance.choice(interesting) if chance.random() < 0.5 else chance.randint(1, len(calls))
        for _ in range(states)
    )
    disk = Disk()
    done = 0
    for number, point in enumerate(points):
        for call in calls[done:point]:
            disk.apply(call)
        done = point
        target = work / str(number)
        disk.crash(chance, target)
        yield point, list(disk.promises), target
        shutil.rmtree(target)
