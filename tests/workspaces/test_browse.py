"""List, read, select and verify snapshots without restoring them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.workspaces.pictures import picture
from treering.errors import Conflict, InvalidInput, NotFound
from treering.store import Store
from treering.workspaces.scan import FileProgress


def test_ls_lists_a_folder_a_file_and_everything(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    listed = {each.path: each for each in store.workspace.ls(snapshot)}
    assert list(listed) == ["README.md", "empty", "latest", "run.sh", "src"]
    assert listed["run.sh"].mode_text == "-rwxr-xr-x"
    assert listed["empty"].mode_text == "drwx------"
    assert (listed["latest"].kind, listed["latest"].target) == ("link", "src/main.py")
    assert (listed["README.md"].kind, listed["README.md"].size) == ("file", 9)
    assert [each.path for each in store.workspace.ls(snapshot, "src/deep")] == ["src/deep/data.bin"]
    assert [each.path for each in store.workspace.ls(snapshot, "/src/main.py")] == ["src/main.py"]
    everything = {each.path for each in store.workspace.ls(snapshot, recursive=True)}
    assert everything == set(picture(folder))
    below = [each.path for each in store.workspace.ls(snapshot, "src", recursive=True)]
    assert below == ["src/deep", "src/deep/data.bin", "src/main.py", "src/nothing"]
    with pytest.raises(NotFound, match="ls"):
        list(store.workspace.ls(snapshot, "src/missing"))
    with pytest.raises(InvalidInput):
        list(store.workspace.ls(snapshot, "../etc"))


def test_cat_reads_one_file(store: Store, folder: Path) -> None:
    (folder / "big").write_bytes(b"0123456789" * 300_000)
    snapshot = store.workspace.snapshot(folder)
    assert store.workspace.cat(snapshot, "src/main.py") == b"print('hello')\n"
    assert store.workspace.cat(snapshot, "src/nothing") == b""
    assert store.workspace.cat(snapshot, "big") == b"0123456789" * 300_000
    for path, what in (("src", "folder"), ("latest", "link"), ("", "folder")):
        with pytest.raises(InvalidInput, match=what):
            store.workspace.cat(snapshot, path)


def test_the_rules_of_a_snapshot_are_not_a_file_of_it(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder, exclude=["*.log"])
    assert ".treering" not in {each.path for each in store.workspace.ls(snapshot, recursive=True)}
    with pytest.raises(NotFound):
        store.workspace.cat(snapshot, ".treering")


def test_download_takes_paths_folders_and_patterns(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "src" / "[id].tsx").write_text("a route")
    snapshot = store.workspace.snapshot(folder)
    out = tmp_path / "out"
    assert store.workspace.download(snapshot, "src/main.py", out) == ("src/main.py",)
    assert picture(out)["src"][1] == 0o755
    assert (out / "src" / "main.py").read_bytes() == b"print('hello')\n"
    taken = store.workspace.download(snapshot, ["*.md", "src/[id].tsx", "src/deep"], out)
    assert sorted(taken) == ["README.md", "src/[id].tsx", "src/deep/data.bin"]
    assert sorted(store.workspace.download(snapshot, "**/*.py", tmp_path / "more")) == ["src/main.py"]
    assert store.workspace.download(snapshot, "", tmp_path / "all")
    assert picture(tmp_path / "all") == picture(folder)
    for missing in ("nothing.txt", "*.rs"):
        with pytest.raises(NotFound):
            store.workspace.download(snapshot, missing, tmp_path / "x")


def test_download_only_overwrites_on_request(store: Store, folder: Path, tmp_path: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("mine")
    with pytest.raises(Conflict, match=r"README\.md"):
        store.workspace.download(snapshot, ["README.md", "run.sh"], out)
    assert picture(out).keys() == {"README.md"}
    store.workspace.download(snapshot, ["README.md"], out, overwrite=True)
    assert (out / "README.md").read_text() == "# Report\n"


def test_download_follows_no_link_out(store: Store, folder: Path, tmp_path: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    out = tmp_path / "out"
    out.mkdir()
    (out / "src").symlink_to(outside)
    with pytest.raises(InvalidInput, match="src/"):
        store.workspace.download(snapshot, "src/main.py", out)
    assert not list(outside.iterdir())


def test_diff_names_paths_and_shows_text(store: Store, folder: Path) -> None:
    before = store.workspace.snapshot(folder)
    (folder / "src" / "main.py").write_text("print('bye')\n")
    (folder / "run.sh").chmod(0o644)
    (folder / "latest").unlink()
    (folder / "empty").rmdir()
    (folder / "src" / "deep" / "data.bin").write_bytes(b"\0" * 10)
    (folder / "notes").mkdir()
    (folder / "notes" / "one.txt").write_text("first line")
    after = store.workspace.snapshot(folder)
    changes = {each.path: each for each in store.workspace.diff(before, after)}
    assert {path: each.change for path, each in changes.items()} == {
        "empty": "removed",
        "latest": "removed",
        "notes": "added",
        "notes/one.txt": "added",
        "run.sh": "changed",
        "src/deep/data.bin": "changed",
        "src/main.py": "changed",
    }
    assert changes["src/main.py"].text == (
        "--- a/src/main.py\n+++ b/src/main.py\n@@ -1 +1 @@\n-print('hello')\n+print('bye')\n"
    )
    assert changes["notes/one.txt"].text == (
        "--- /dev/null\n+++ b/notes/one.txt\n@@ -0,0 +1 @@\n+first line\n\\ No newline at end of file\n"
    )
    assert changes["src/deep/data.bin"].text is None
    run = changes["run.sh"]
    assert run.before is not None
    assert run.after is not None
    assert (run.before.mode, run.after.mode, run.text) == (0o755, 0o644, "")
    assert store.workspace.diff(before, before) == []
    assert all(each.text is None for each in store.workspace.diff(before, after, text=False))


def test_check_reads_everything(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    checked = store.workspace.check(snapshot)
    assert checked.ok
    assert (checked.files, checked.size_bytes) == (5, 9 + 15 + 10_240 + 18)


def test_check_reads_large_files_and_tells_how_far_it_is(store: Store, folder: Path) -> None:
    (folder / "a.bin").write_bytes(random.Random(3).randbytes(3_000_000))
    snapshot = store.workspace.snapshot(folder)
    reported: list[FileProgress] = []
    checked = store.workspace.check(snapshot, on_progress=reported.append)
    assert checked.ok
    assert [each.files for each in reported] == list(range(1, 7))
    assert reported[-1].bytes == checked.size_bytes == 9 + 15 + 10_240 + 18 + 3_000_000
