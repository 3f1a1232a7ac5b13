"""Snapshots of a workspace against restic and git, on the tree that the peers were measured with.

20,011 files and 40 links, about 497 MB: 140 MB of text in 20,000 files, eleven binaries of 20 to 50 MB. An
edit rewrites 200 files, replaces 1 MiB inside the largest binary (every second edit also shifts its tail),
adds 5 files and deletes 5. Everything is in the page cache; restic and ours write durably, restores are
verified. Peers that are not installed are left out.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import timeit
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import treering
from benchmarks.report import Measurement, Section, at_most
from treering.workspaces.safe_open import ConfinedFolder

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = int(os.environ.get("TREERING_BENCH_FILES", "20000"))
BINARIES = int(os.environ.get("TREERING_BENCH_BINARIES", "11"))
EDITS = 10
TURNS = int(os.environ.get("TREERING_BENCH_TURNS", "3"))


def run(scratch: Path) -> Section:
    """Measure everything, ours and the peers' in turns."""
    tree = scratch / "tree"
    make_tree(tree)
    peers: list[Peer] = [Ours(scratch, tree)]
    peers += [kind(scratch, tree) for kind in (Restic, Git) if shutil.which(kind.command)]
    seconds: dict[tuple[str, str], float] = {}

    def time(what: str, jobs: dict[str, Callable[[], object]], turns: int = 1) -> None:
        for _ in range(turns):
            for name, job in jobs.items():
                began = perf_counter()
                job()
                took = perf_counter() - began
                seconds[what, name] = min(seconds.get((what, name), took), took)

    for peer in peers:
        peer.begin()
    time("first", {peer.name: peer.snapshot for peer in peers})
    time("unchanged", {peer.name: peer.snapshot for peer in peers}, TURNS)
    for number in range(1, EDITS + 1):
        edit_tree(tree, number)
        time("edit", {peer.name: peer.snapshot for peer in peers})
        goes_back = [peer for peer in peers if peer.rewinds and number % 4 == peer.rewinds]
        for peer in goes_back:  # each of them from an edit of its own to the one before
            time("rewind", {peer.name: peer.rewind})
            edit_tree(tree, number)
            for each in peers:
                each.snapshot()
    for turn in range(2):  # into new folders: removing the old ones first would slow the file system down
        time("restore", {peer.name: partial(peer.restore, scratch / f"{peer.name}-{turn}") for peer in peers})
    time("check", {peer.name: peer.check for peer in peers if peer.checks}, TURNS)
    sizes = {peer.name: peer.stored() for peer in peers}
    for peer in peers:
        peer.end()
    rows = [
        _row("first snapshot", seconds, "first", "restic", 0.55),
        _row("nothing changed", seconds, "unchanged", "git", 1.4),
        _row("nothing changed", seconds, "unchanged", "restic", 0.15),
        _row("1 % edit", seconds, "edit", "restic", 0.28),
        _row("whole restore, verified", seconds, "restore", "restic", 0.5),
        _row("one step back, in place", seconds, "rewind", "git", 1.4),
        _row("full read check", seconds, "check", "restic", 0.4),
        _bytes(sizes),
        _memory(scratch, tree),
        _sandbox(scratch),
    ]
    return Section(
        title="Workspaces",
        about=(
            f"{FILES + BINARIES:,} files and 40 links; best of {EDITS} edits, of {TURNS} turns where nothing "
            "is written; ours in process, the peers as commands."
        ),
        measurements=[row for row in rows if row is not None],
    )


def make_tree(root: Path) -> None:
    """The tree, the same every time."""
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz_", k=rng.randint(2, 11))) for _ in range(900)]
    lines = [
        " " * rng.choice((0, 4, 4, 8)) + " ".join(rng.choices(words, k=rng.randint(2, 9))) + "\n"
        for _ in range(6000)
    ]
    for number in range(FILES):
        folder = root / f"p{number // 80 % 20:02}" / f"m{number // 1600:03}"
        if number % 80 == 0:
            folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number:05}.py").write_text(_text(rng, lines))
    for number in range(BINARIES):
        size = 50_000_000 if number == 0 else rng.randint(22, 41) * 1_000_000
        (root / f"big{number:02}.bin").write_bytes(rng.randbytes(size))
    for number in range(40):
        (root / f"link{number:02}").symlink_to(f"p00/m000/f{number:05}.py")


def edit_tree(root: Path, number: int) -> None:
    """The edit of that number; doing it twice is doing it once."""
    rng = random.Random(1000 + number)
    paths = sorted(root.glob("p*/m*/f*.py"))
    for path in rng.sample(paths, max(1, FILES // 100)):
        path.write_text(f"edit {number}\n" + "".join(f"line {rng.random()}\n" for _ in range(150)))
    with (root / "big00.bin").open("r+b") as file:
        file.seek(rng.randrange(40_000_000))
        data = rng.randbytes(1 << 20)
        file.write(data + (b"" if number % 2 == 0 else bytes([number])))
    for index in range(5):
        (root / "p00" / "m000" / f"new{number:02}{index}.py").write_text(f"new {number} {index}\n" * 40)
        (root / "p00" / "m000" / f"new{number - 1:02}{index}.py").unlink(missing_ok=True)


class Peer:
    """Something that keeps folders."""

    name = ""
    command = ""
    rewinds = 0
    """At which edits of four it is timed going back; 0 if it cannot."""
    checks = True

    def __init__(self, scratch: Path, tree: Path) -> None:
        self.place = scratch / f"store-{self.name}"
        self.tree = tree

    def begin(self) -> None: ...
    def end(self) -> None: ...
    def snapshot(self) -> None: ...
    def restore(self, target: Path) -> None: ...
    def rewind(self) -> None: ...
    def check(self) -> None: ...

    def stored(self) -> int:
        return sum(path.lstat().st_size for path in self.place.rglob("*") if path.is_file())


class Ours(Peer):
    name = "treering"
    rewinds = 1

    def begin(self) -> None:
        self.store = treering.open(self.place)
        self.taken: list[str] = []

    def end(self) -> None:
        self.store.close()

    def snapshot(self) -> None:
        self.taken.append(self.store.workspace.snapshot(self.tree))

    def restore(self, target: Path) -> None:
        self.store.workspace.restore(self.taken[-1], target)

    def rewind(self) -> None:
        self.store.workspace.restore(self.taken[-2], self.tree, delete=True)

    def check(self) -> None:
        assert self.store.workspace.check(self.taken[-1]).ok


class Restic(Peer):
    name = command = "restic"

    def _run(self, *arguments: str) -> None:
        environment = {**os.environ, "RESTIC_PASSWORD": "benchmark", "RESTIC_REPOSITORY": str(self.place)}
        environment["RESTIC_CACHE_DIR"] = str(self.place) + "-cache"
        subprocess.run(["restic", "-q", *arguments], env=environment, check=True, cwd=self.tree)

    def begin(self) -> None:
        self._run("init", "--repository-version", "2")

    def snapshot(self) -> None:
        self._run("backup", ".")

    def restore(self, target: Path) -> None:
        self._run("restore", "latest", "--target", str(target))

    def check(self) -> None:
        self._run("check", "--read-data")


class Git(Peer):
    name = command = "git"
    rewinds = 3
    checks = False

    def _run(self, *arguments: str, tree: Path | None = None) -> None:
        prefix = ["git", f"--git-dir={self.place}", f"--work-tree={tree or self.tree}"]
        quiet = ["-c", "gc.auto=0", "-c", "user.name=b", "-c", "user.email=b@example.org"]
        subprocess.run(
            [*prefix, *quiet, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=tree or self.tree
        )

    def begin(self) -> None:
        self._run("init", "-q")

    def snapshot(self) -> None:
        self._run("add", "-A")
        self._run("commit", "-q", "--allow-empty", "-m", "x")

    def restore(self, target: Path) -> None:
        target.mkdir()
        shutil.copy(self.place / "index", self.place / "index-kept")
        (self.place / "index").unlink()
        self._run("reset", "-q", "--hard", tree=target)
        (self.place / "index-kept").replace(self.place / "index")

    def rewind(self) -> None:
        self._run("reset", "-q", "--hard", "HEAD~1")


def _text(rng: random.Random, lines: list[str]) -> str:
    left = min(200_000, int(rng.lognormvariate(8.5, 0.85)))
    result: list[str] = []
    while left > 0:
        result.append(rng.choice(lines))
        left -= len(result[-1])
    return "".join(result)


def _row(
    claim: str, seconds: dict[tuple[str, str], float], what: str, peer: str, limit: float
) -> Measurement | None:
    if (what, peer) not in seconds:
        return None
    ours, theirs = seconds[what, "treering"], seconds[what, peer]
    target, met = at_most(ours / theirs, limit)
    return Measurement(
        claim=claim,
        ours=f"{ours:.2f} s",
        peer=f"{peer} {theirs:.2f} s",
        ratio=ours / theirs,
        target=target,
        met=met,
    )


def _bytes(sizes: dict[str, int]) -> Measurement | None:
    if "restic" not in sizes:
        return None
    ratio = sizes["treering"] / sizes["restic"]
    target, met = at_most(ratio, 0.95)
    return Measurement(
        claim=f"bytes after {EDITS} edits",
        ours=f"{sizes['treering'] / 1e6:.0f} MB",
        peer=f"restic {sizes['restic'] / 1e6:.0f} MB",
        ratio=ratio,
        target=target,
        met=met,
    )


# Not ru_maxrss: that of a child begins with what its parent had when it was started.
_FIRST = """
import sys, treering
with treering.open(sys.argv[1]) as store:
    store.workspace.snapshot(sys.argv[2])
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


def _memory(scratch: Path, tree: Path) -> Measurement:
    """The peak of a process that takes the first snapshot."""
    command = [sys.executable, "-c", _FIRST, str(scratch / "memory"), str(tree)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak = int(done.stdout) * 1024 / 1e6
    target, met = at_most(peak / 180, 1)
    return Measurement(
        claim="peak memory of a first snapshot",
        ours=f"{peak:.0f} MB",
        peer="180 MB allowed",
        ratio=peak / 180,
        target=target,
        met=met,
    )


def _sandbox(scratch: Path) -> Measurement:
    """Opening a file four folders deep, confined and not."""
    names = ["a", "b", "c", "file"]
    path = scratch / "open" / "/".join(names)
    path.parent.mkdir(parents=True)
    path.touch()
    beneath = ConfinedFolder(scratch / "open")

    def plain() -> None:
        os.close(os.open(path, os.O_RDONLY))

    def confined() -> None:
        os.close(beneath.open(names, os.O_RDONLY))

    text = str(path)
    path = text  # pyright: ignore[reportAssignmentType] - as a caller of os.open has it
    theirs, ours = (min(timeit.repeat(job, number=5000, repeat=9)) / 5000 * 1e6 for job in (plain, confined))
    beneath.close()
    target, met = at_most(ours / theirs, 2)
    return Measurement(
        claim="sandbox: open a file four deep",
        ours=f"{ours:.1f} us",
        peer=f"os.open {theirs:.1f} us",
        ratio=ours / theirs,
        target=target,
        met=met,
    )
