"""The virtual file system: what its methods do, and that no path leaves the root."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.tree import FileEntry, Tree, encode_tree
from treering.errors import Conflict, InvalidInput, NotFound, ReadOnly, TreeringError
from treering.workspaces import virtual_fs
from treering.workspaces.browse import select
from treering.workspaces.ignore import glob_pattern, make_rules
from treering.workspaces.safe_open import ConfinedFolder, has_openat2
from treering.workspaces.snapshot import Snapshot
from treering.workspaces.virtual_fs import VirtualFiles

MakeFiles = Callable[..., VirtualFiles]


@pytest.fixture(params=["openat2", "walk"])
def make_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFiles]:
    """Files by the kernel's own confinement, and by the walk for kernels without it."""
    if request.param == "openat2" and not has_openat2():
        pytest.skip("this kernel has no openat2")
    if request.param == "walk":
        monkeypatch.setattr(virtual_fs, "ConfinedFolder", lambda path, **_: ConfinedFolder(path, walks=True))
    made: list[VirtualFiles] = []

    def make(root: Path, **options) -> VirtualFiles:
        made.append(VirtualFiles(root, **options))
        return made[-1]

    yield make
    for files in made:
        files.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    (place / "src").mkdir(parents=True)
    (place / "a.txt").write_text("one\ntwo\nthree\n")
    (place / "src" / "main.py").write_text("import os\nprint('two')\n")
    (tmp_path / "secret").write_text("of the host")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("of the host")
    return place


def test_the_verbs(make_files: MakeFiles, root: Path) -> None:
    files = make_files(root)
    assert [(each.path, each.kind) for each in files.ls()] == [("/a.txt", "file"), ("/src", "folder")]
    assert files.read("a.txt") == "one\ntwo\nthree\n"
    assert files.read("/a.txt", offset=1, limit=1) == "two\n"
    assert files.read("/src/../a.txt", offset=2) == "three\n"
    written = files.write("/new/deep/b.md", "# Titel ä\n")
    assert (written.path, written.size) == ("/new/deep/b.md", 11)
    assert (root / "new" / "deep" / "b.md").read_text() == "# Titel ä\n"
    assert files.edit("/a.txt", "two", "2") == 1
    assert files.read("/a.txt") == "one\n2\nthree\n"
    found = files.grep("two")
    assert [(each.path, each.line, each.text) for each in found] == [("/src/main.py", 2, "print('two')")]
    assert [each.path for each in files.glob("**/*.md")] == ["/new/deep/b.md"]
    assert [each.path for each in files.glob("*.py", "/src")] == ["/src/main.py"]
    files.delete("/a.txt")
    with pytest.raises(NotFound, match=r"'/a\.txt'"):
        files.read("/a.txt")
    with pytest.raises(Conflict, match="recursive"):
        files.delete("/new")
    files.delete("/new", recursive=True)
    assert sorted(path.name for path in root.iterdir()) == ["src"]


def test_ambiguous_edits_are_refused(make_files: MakeFiles, root: Path) -> None:
    files = make_files(root)
    with pytest.raises(NotFound, match="does not contain"):
        files.edit("/a.txt", "four", "4")
    with pytest.raises(Conflict, match="2 times"):
        files.edit("/a.txt", "t", "T")
    assert files.edit("/a.txt", "t", "T", every=True) == 2
    with pytest.raises(Conflict, match="already"):
        files.write("/a.txt", "", overwrite=False)
    with pytest.raises(InvalidInput):
        files.edit("/a.txt", "", "x")
    (root / "run.sh").write_text("x")
    (root / "run.sh").chmod(0o750)
    files.edit("/run.sh", "x", "y")
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o750


def test_mounts(make_files: MakeFiles, root: Path, tmp_path: Path) -> None:
    """CianaParrot's layout: read-only documents and writable projects, both below host/."""
    (tmp_path / "Documents").mkdir()
    (tmp_path / "Documents" / "report.pdf").write_text("pdf two")
    (tmp_path / "Projects").mkdir()
    files = make_files(
        root,
        mounts={
            "host/documents": (tmp_path / "Documents", "ro"),
            "/host/projects/": (str(tmp_path / "Projects"), "rw"),
        },
    )
    assert [each.path for each in files.ls("/")] == ["/a.txt", "/host", "/src"]
    assert [each.path for each in files.ls("/host")] == ["/host/documents", "/host/projects"]
    assert files.read("host/documents/report.pdf") == "pdf two"
    assert files.stat("/host").kind == files.stat("/host/documents").kind == "folder"
    assert {each.path for each in files.grep("two")} == {
        "/a.txt",
        "/src/main.py",
        "/host/documents/report.pdf",
    }
    assert [each.path for each in files.glob("**/*.pdf")] == ["/host/documents/report.pdf"]
    for attempt in (
        lambda: files.write("host/documents/new.txt", "x"),
        lambda: files.write("src/../host/documents/new.txt", "x"),
        lambda: files.edit("/host/documents/report.pdf", "pdf", "x"),
        lambda: files.delete("/host/documents/report.pdf"),
    ):
        with pytest.raises(ReadOnly, match="read-only"):
            attempt()
    files.write("/host/projects/app/main.py", "print()")
    assert (tmp_path / "Projects" / "app" / "main.py").read_text() == "print()"
    with pytest.raises(ReadOnly, match="mount"):
        files.delete("/host", recursive=True)
    with pytest.raises(InvalidInput, match="is the root or a mount"):
        files.delete("/host/projects", recursive=True)
    for wrong in ({"x": (tmp_path, "r")}, {"": (tmp_path, "rw")}):
        with pytest.raises(InvalidInput):
            VirtualFiles(root, mounts=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFound):
        VirtualFiles(root / "missing")


ESCAPES = [
    "../secret",
    "/../secret",
    "src/../../secret",
    "link",
    "/link",
    "up/secret",
    "src/up2/secret",
    "absolute",
    "proc/self/root/etc/passwd",
    "chain",
    "a\0b",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leaves(make_files: MakeFiles, root: Path, tmp_path: Path, path: str) -> None:
    (root / "link").symlink_to("../secret")
    (root / "up").symlink_to("..")
    (root / "src" / "up2").symlink_to("../..")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "proc").symlink_to("/proc")
    (root / "inner").symlink_to("up")
    (root / "chain").symlink_to("inner/secret")
    files = make_files(root)
    for attempt in (
        lambda: files.read(path),
        lambda: files.read_bytes(path),
        lambda: files.stat(path),
        lambda: files.edit(path, "host", "agent"),
        lambda: files.grep("host", path),
    ):
        with pytest.raises((InvalidInput, NotFound)) as refused:
            attempt()
        assert str(tmp_path) not in str(refused.value)
    for attempt in (lambda: files.write(path, "stolen"), lambda: files.delete(path)):
        with contextlib.suppress(InvalidInput, NotFound):  # a link itself may be removed: it lies inside
            attempt()
    assert (tmp_path / "secret").read_text() == "of the host"
    assert "of the host" not in {each.text for each in files.grep("host")}


def test_links_that_stay_inside(root: Path) -> None:
    if not has_openat2():
        pytest.skip("without openat2 no link is followed")
    (root / "short").symlink_to("src/main.py")
    with VirtualFiles(root) as files:
        assert files.read("/short").startswith("import os")
        with pytest.raises(InvalidInput, match="not a regular file"):
            files.write("/short", "x")
    assert (root / "short").is_symlink()


def test_a_hard_link_is_never_written_through(make_files: MakeFiles, root: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "secret", root / "hard")
    files = make_files(root)
    files.write("/hard", "mine")
    assert (tmp_path / "secret").read_text() == "of the host"
    os.link(tmp_path / "secret", root / "hard2")
    files.edit("/hard2", "host", "agent")
    assert (tmp_path / "secret").read_text() == "of the host"


def test_what_is_no_file_is_not_read(make_files: MakeFiles, root: Path) -> None:
    os.mkfifo(root / "pipe")
    files = make_files(root)
    for path in ("/pipe", "/src", "/"):
        with pytest.raises(InvalidInput):
            files.read(path)
    assert files.stat("/pipe").kind == "other"
    assert not files.grep("x", "/pipe")


def test_what_may_not_be_read_ends_no_search(
    make_files: MakeFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "closed").mkdir()
    (root / "locked.txt").write_text("needle")
    (root / "open.txt").write_text("needle")
    files = make_files(root)
    real = ConfinedFolder.open

    def refusing(self: ConfinedFolder, names: Sequence[str], flags: int, mode: int = 0) -> int:
        if names and names[-1] in {"closed", "locked.txt"}:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self, names, flags, mode)

    monkeypatch.setattr(ConfinedFolder, "open", refusing)
    assert [each.path for each in files.grep("needle")] == ["/open.txt"]
    assert "/closed" in {each.path for each in files.glob("**")}
    with pytest.raises(ReadOnly):
        files.read("/locked.txt")
    with pytest.raises(ReadOnly):
        files.glob("**", "/closed")


def test_a_sparse_file_does_not_fill_the_memory(make_files: MakeFiles, root: Path) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 40)
    files = make_files(root)
    with pytest.raises(InvalidInput, match="by lines"):
        files.read("/huge")
    assert not files.grep("x")  # a binary file is skipped after its first chunk


def test_long_files_are_read_by_lines(make_files: MakeFiles, root: Path) -> None:
    (root / "log").write_text("".join(f"line {number}\n" for number in range(200_000)))
    files = make_files(root)
    assert files.read("/log", offset=150_000, limit=2) == "line 150000\nline 150001\n"
    assert files.read("/log", offset=200_000) == ""
    with pytest.raises(InvalidInput):
        files.read("/log", offset=-1)


@pytest.mark.parametrize(
    "pattern, path, matches",
    [
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "x/y/a.py", True),
        ("src/**", "src/x/y", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("[!ab].txt", "/.txt", False),
        ("[a-c]x", "bx", True),
        ("a.c", "abc", False),
        ("[", "[", True),
        ("/x/", "x", True),
    ],
)
def test_globs(pattern: str, path: str, *, matches: bool) -> None:
    assert bool(glob_pattern(pattern).fullmatch(path)) is matches


@pytest.mark.parametrize(
    "pattern", ["**/" * 30 + "b", "*" * 100 + "b", "**/*a" * 15 + "b", "a**" * 30 + "b", "*a" * 40 + "b"]
)
@pytest.mark.parametrize("path", ["a" * 200, "/".join("a" * 100)])
def test_no_pattern_with_many_stars_takes_for_ever(pattern: str, path: str, store: treering.Store) -> None:
    assert not glob_pattern(pattern).fullmatch(path)
    assert not make_rules(exclude=[pattern]).reason(path, is_folder=False)
    entry = FileEntry(name="a" * 200, mode=0o644, size=0, content=())
    tree = encode_tree(Tree(entries=(entry,)))
    store.engine.stage(store.space, [tree])
    with pytest.raises(NotFound):
        select(Snapshot(store.engine, store.space, tree.name), [pattern])


PIECES = ["a", "b", "/", "?", "*", "**", "**/", "[ab]", "[!b]", "."]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=9), st.text("ab/.", max_size=9))
def test_a_pattern_with_many_stars_means_what_its_expression_does(pieces: list[str], text: str) -> None:
    pattern, path = "".join(pieces), "/".join(filter(None, text.split("/")))
    if not pattern.strip("/"):
        return
    quick = glob_pattern.__wrapped__(pattern)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("treering.workspaces.ignore._FEW_STARS", -1)
        stepwise = glob_pattern.__wrapped__(pattern)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("treering.workspaces.ignore._FEW_STARS", 99)
        regex = glob_pattern.__wrapped__(pattern)
    assert quick.fullmatch(path) == stepwise.fullmatch(path) == regex.fullmatch(path)


@pytest.mark.parametrize("part", ["*a", "**a", "*?a", "*[ab]"])
def test_no_pattern_takes_for_ever(part: str) -> None:
    """Backtracking over so many stars would take practically for ever."""
    pattern = part * 20 + "*b"
    assert not glob_pattern(pattern).fullmatch("a" * 200)
    assert glob_pattern(pattern).fullmatch("a" * 200 + "b")
    rules = make_rules(ignore_lines=[pattern])
    assert rules.reason("x/" + "a" * 200, is_folder=False) is None
    assert rules.reason("x/" + "a" * 200 + "b", is_folder=False) == "ignored"


def race(files: VirtualFiles, root: Path, outside: Path, tries: int) -> dict[str, int]:
    """Read, write and delete below a folder while another thread swaps it for a link that leads out.

    Whatever the interleaving, nothing may escape.
    """
    (root / "d").mkdir()
    (root / "d" / "file").write_text("inside")
    (root / "spare").symlink_to(outside)
    stop = threading.Event()

    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    here, folder, link = -100, os.fsencode(root / "d"), os.fsencode(root / "spare")

    def swap() -> None:
        while not stop.is_set():
            assert renameat2(here, folder, here, link, 2) == 0  # exchanges the two atomically

    outcomes = {"inside": 0, "refused": 0, "escaped": 0}
    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for number in range(tries):
            try:
                if number % 8 == 0:
                    files.write("/d/new", "inside")
                elif number % 8 == 1:
                    files.delete("/d/new")
                else:
                    outcomes["escaped" if files.read("/d/file") != "inside" else "inside"] += 1
            except TreeringError:
                outcomes["refused"] += 1
    finally:
        stop.set()
        swapper.join()
    return outcomes


def test_no_race_leads_out(make_files: MakeFiles, root: Path, tmp_path: Path) -> None:
    outcomes = race(make_files(root), root, tmp_path / "outside", 4_000)
    assert not outcomes["escaped"]
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]
    assert (tmp_path / "outside" / "file").read_text() == "of the host"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_no_race_leads_out_in_400_000_tries(make_files: MakeFiles, root: Path, tmp_path: Path) -> None:
    outcomes = race(make_files(root), root, tmp_path / "outside", 400_000)
    assert not outcomes["escaped"]
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]
    assert (tmp_path / "outside" / "file").read_text() == "of the host"


def test_arguments_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    with VirtualFiles(tmp_path) as files:
        for call in (lambda: files.read(5), lambda: files.write("/a", 5), lambda: files.ls(None)):
            with pytest.raises(InvalidInput, match="str"):
                call()
    with pytest.raises(InvalidInput, match="lacks its access"):
        VirtualFiles(tmp_path, mounts={"documents": str(tmp_path)})
