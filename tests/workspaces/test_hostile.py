"""Snapshots that someone made to do harm, and targets that change under a restore.

Each of them is refused with the name of the entry, and nothing is written outside of the target.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import treering
from tests.workspaces.pictures import picture
from treering.core.content import Content, object_name, seal, unseal
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, TreeEntry, encode_tree
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound, TreeringError
from treering.store import Store
from treering.workspaces import restore
from treering.workspaces.scan import Limits
from treering.workspaces.snapshot import Snapshot


def store_tree(store: Store, *entries: TreeEntry) -> str:
    tree = encode_tree(Tree(entries=entries))
    store.engine.stage(store.space, [tree])
    return tree.name


def store_raw(store: Store, *entries: tuple) -> str:
    """A tree that `encode_tree` would never write."""
    content = Content("tree", msgspec.msgpack.encode((1, list(entries))))
    store.engine.stage(store.space, [content])
    return content.name


def store_file(store: Store, name: str, data: bytes = b"planted", mode: int = 0o644) -> FileEntry:
    store.engine.stage(store.space, [Content("bytes", data)])
    return FileEntry(name=name, mode=mode, size=len(data), content=(object_name("bytes", data),))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A folder to restore into; whatever happens, nothing beside it changes."""
    around = tmp_path / "around"
    (around / "target").mkdir(parents=True)
    (around / "neighbour").mkdir()
    (around / "neighbour" / "file").write_text("of the host")
    before = {path: each for path, each in picture(around).items() if not path.startswith("target")}
    yield around / "target"
    after = {path: each for path, each in picture(around).items() if not path.startswith("target")}
    assert after == before


@pytest.mark.parametrize(
    "name",
    [b"..", b".", b"", b"a/b", b"/etc/passwd", b"../neighbour/file", b"a\0b", b"x" * 256],
    ids=["up", "here", "empty", "slash", "absolute", "outside", "nul", "long"],
)
def test_names_that_no_file_can_have(store: Store, target: Path, name: bytes) -> None:
    digest = bytes.fromhex(store_file(store, "x").content[0])
    root = store_raw(store, (0, name, 0o644, 7, digest))
    for attempt in (
        lambda: store.workspace.restore(root, target),
        lambda: store.workspace.download(root, "", target),
        lambda: list(store.workspace.ls(root)),
    ):
        with pytest.raises(Corrupt, match="entry"):
            attempt()
    assert picture(target) == {}


def test_a_tree_that_expands_without_end_is_refused_before_it_does(store: Store, target: Path) -> None:
    tree = encode_tree(Tree(entries=(FileEntry(name="f", mode=0o644, size=0, content=()),)))
    store.engine.stage(store.space, [tree])
    for _ in range(12):  # 10^12 files in 13 objects
        entries = tuple(FolderEntry(name=str(at), mode=0o755, tree=tree.name) for at in range(10))
        tree = encode_tree(Tree(entries=entries))
        store.engine.stage(store.space, [tree])
    read = 0
    snapshot = Snapshot(store.engine, store.space, tree.name)
    get = snapshot._engine.get

    def counted(space: str, addresses: list[str]) -> list[Content]:
        nonlocal read
        read += len(addresses)
        return get(space, addresses)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store.engine, "get", counted)
        for attempt in (
            lambda: store.workspace.ls(tree.name, recursive=True),
            lambda: store.workspace.ls(tree.name, "1/2", recursive=True),
            lambda: store.workspace.diff(None, tree.name),
            lambda: store.workspace.download(tree.name, "*.txt", target),
            lambda: store.workspace.download(tree.name, "1", target),
            lambda: store.workspace.secrets(tree.name),
            lambda: store.workspace.restore(tree.name, target),
            lambda: store.workspace.restore(tree.name, target, dry_run=True),
        ):
            read = 0
            with pytest.raises(Corrupt, match="more than 5,000,000 entries"):
                list(attempt())
            assert read <= 50
        assert not store.workspace.check(tree.name).ok
    assert [each.path for each in store.workspace.ls(tree.name)] == [str(at) for at in range(10)]
    assert picture(target) == {}


def test_a_name_that_is_there_twice(store: Store, target: Path) -> None:
    """A link and then a folder of the same name: the classic way out of an archive."""
    inner = bytes.fromhex(store_tree(store, store_file(store, "file")))
    root = store_raw(store, (2, b"x", b"../neighbour"), (1, b"x", 0o755, inner))
    with pytest.raises(Corrupt, match="'x' occurs twice"):
        store.workspace.restore(root, target)


def test_modes_with_setuid_are_refused(store: Store, target: Path) -> None:
    digest = bytes.fromhex(store_file(store, "x").content[0])
    root = store_raw(store, (0, b"sudo", 0o4755, 7, digest))
    with pytest.raises(Corrupt, match="'sudo' has mode"):
        store.workspace.restore(root, target)


def test_a_link_that_leaves_is_only_a_link(store: Store, target: Path) -> None:
    root = store_tree(store, LinkEntry(name="x", target="../neighbour"))
    store.workspace.restore(root, target)
    assert (target / "x").is_symlink()
    assert store.workspace.restore(root, target, links="inside", delete=True).left_links == ("x",)


def test_a_link_in_the_target_where_a_folder_should_be(store: Store, target: Path) -> None:
    root = store_tree(
        store, FolderEntry(name="x", mode=0o755, tree=store_tree(store, store_file(store, "file")))
    )
    (target / "x").symlink_to("../neighbour")
    store.workspace.restore(root, target)
    assert not (target / "x").is_symlink()
    assert (target / "x" / "file").read_text() == "planted"


@pytest.mark.parametrize("name", [".git", ".ssh", ".treering"])
def test_entries_that_the_rules_exclude_are_not_restored(store: Store, target: Path, name: str) -> None:
    hooks = store_tree(store, store_file(store, "pre-commit", mode=0o755))
    inner = store_tree(store, FolderEntry(name=name, mode=0o755, tree=hooks))
    root = store_tree(store, FolderEntry(name="sub", mode=0o755, tree=inner))
    with pytest.raises(Corrupt, match=f"'sub/{name}'.*exclude it"):
        store.workspace.restore(root, target)
    assert not store.workspace.check(root).ok


def test_rules_that_are_no_rules(store: Store, target: Path) -> None:
    for data in (b"not json", b'{"patterns":["x"],"version":99}', b'{"patterns":["!"],"version":1}'):
        root = store_tree(store, store_file(store, ".treering", data))
        with pytest.raises(TreeringError, match="rules"):
            store.workspace.restore(root, target)
    root = store_tree(store, LinkEntry(name=".treering", target="x"))
    with pytest.raises(Corrupt, match="rules"):
        store.workspace.restore(root, target)


def test_a_tree_that_unfolds_without_end(store: Store, target: Path) -> None:
    tree = store_tree(store)
    for _ in range(60):  # 2^60 folders in 60 objects
        tree = store_tree(
            store,
            FolderEntry(name="a", mode=0o755, tree=tree),
            FolderEntry(name="b", mode=0o755, tree=tree),
        )
    few = Limits(entries=10_000)
    with pytest.raises(Corrupt, match="more than 10,000 entries"):
        store.workspace.restore(tree, target, limits=few)
    assert picture(target) == {}


def test_folders_ten_thousand_deep(store: Store, target: Path) -> None:
    trees = []
    tree = encode_tree(Tree())
    for _ in range(10_000):
        trees.append(tree)
        tree = encode_tree(Tree(entries=(FolderEntry(name="d", mode=0o755, tree=tree.name),)))
    store.engine.stage(store.space, [*trees, tree])
    for attempt in (
        lambda: store.workspace.restore(tree.name, target),
        lambda: list(store.workspace.ls(tree.name, recursive=True)),
        lambda: store.workspace.diff(tree.name, trees[0].name),
    ):
        with pytest.raises(Corrupt, match="deeper than 256"):
            attempt()
    assert not store.workspace.check(tree.name).ok
    assert picture(target) == {}


def test_deep_folders_are_restored_if_they_are_taken(store: Store, tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    inner = deep
    for _ in range(200):
        inner /= "d"
    inner.mkdir(parents=True)
    (inner / "file").write_text("down here")
    snapshot = store.workspace.snapshot(deep)
    store.workspace.restore(snapshot, tmp_path / "new")
    assert picture(tmp_path / "new") == picture(deep)
    for _ in range(60):
        inner /= "d"
    inner.mkdir(parents=True)
    with pytest.raises(InvalidInput, match="deeper than 256"):
        store.workspace.snapshot(deep)


def test_sizes_that_lie(store: Store, target: Path) -> None:
    honest = store_file(store, "file", b"x" * 100)
    for size in (99, 101):
        root = store_tree(store, msgspec.structs.replace(honest, size=size))
        with pytest.raises(Corrupt, match="'file' does not have"):
            store.workspace.restore(root, target)
        assert picture(target) == {}
        assert [each.path for each in store.workspace.check(root).problems] == ["file"]


def test_sizes_that_add_up_and_lie_all_the_same(store: Store) -> None:
    one, two = store_file(store, "a", b"x" * 100), store_file(store, "b", b"y" * 101)
    large = FileEntry(name="c", mode=0o644, size=202, content=(*one.content, *two.content))
    root = store_tree(
        store, msgspec.structs.replace(one, size=101), msgspec.structs.replace(two, size=100), large
    )
    assert [each.path for each in store.workspace.check(root).problems] == ["a", "b", "c"]


def test_missing_content(store: Store, target: Path) -> None:
    missing = FileEntry(name="gone", mode=0o644, size=3, content=(object_name("bytes", b"???"),))
    root = store_tree(store, missing)
    with pytest.raises((NotFound, Corrupt), match=missing.content[0][:12]):
        store.workspace.restore(root, target)
    (problem,) = store.workspace.check(root).problems
    assert problem.path == "gone"


def test_an_object_that_is_no_folder(store: Store, target: Path) -> None:
    file = store_file(store, "file")
    root = store_tree(store, FolderEntry(name="x", mode=0o755, tree=file.content[0]))
    for asked in (root, file.content[0]):
        with pytest.raises(InvalidInput, match="not a folder"):
            store.workspace.restore(asked, target)


def test_frames_that_would_unfold_to_more_than_allowed() -> None:
    bomb = seal(bytes(64 * 1024 * 1024))
    assert len(bomb) < 10_000
    with pytest.raises(Corrupt, match="limit is"):
        unseal(bomb, "a frame", limit=1024 * 1024)


def flip(path: Path, content: bytes) -> None:
    """One bit in the middle of a content that lies in the file as it is."""
    data = bytearray(path.read_bytes())
    data[data.index(content) + len(content) // 2] ^= 1
    path.write_bytes(data)


def noise(index: int) -> bytes:
    """What does not get shorter, so that it is in a pack as it is."""
    import random

    return random.Random(index).randbytes(90_000)


@pytest.fixture
def packed(tmp_path: Path, folder: Path) -> tuple[Path, str, Path]:
    """A store whose snapshot lies in a pack: its folder, the snapshot, the pack."""
    for index in range(30):
        (folder / f"f{index:02}").write_bytes(noise(index))
    with treering.open(tmp_path / "packed") as store:
        snapshot = store.workspace.snapshot(folder)
    (pack,) = (tmp_path / "packed" / "blobs").rglob("*.pack")
    return tmp_path / "packed", snapshot, pack


def test_a_flipped_bit_is_found_and_named(packed: tuple[Path, str, Path], target: Path) -> None:
    place, snapshot, pack = packed
    flip(pack, noise(12))
    with treering.open(place) as store:
        with pytest.raises(Corrupt, match="pack"):
            store.workspace.restore(snapshot, target)
        checked = store.workspace.check(snapshot)
    assert not checked.ok
    damaged = [each.path for each in checked.problems]
    assert "f12" in damaged
    assert len(damaged) < 10, "only what lies in the same frame"
    assert checked.files == 35
    written = {path: each for path, each in picture(target).items() if each[0] == "file"}
    assert all(not path.startswith(".treering") for path in written)


def test_a_damaged_snapshot_changes_nothing_in_place(packed: tuple[Path, str, Path], folder: Path) -> None:
    """Neither files, nor what `latest` means, nor a folder that had to be created."""
    place, snapshot, pack = packed
    with treering.open(place) as store:
        (folder / "README.md").write_text("unsaved")
        (folder / "f03").unlink()
        (folder / "extra").write_text("mine")
        for index in range(10, 30):  # the damage is in one of many files that have to be written
            (folder / f"f{index}").write_bytes(b"changed")
        before, listed = picture(folder), list(store.workspace.snapshots())
        flip(pack, noise(12))
        for attempt in (
            lambda: store.workspace.restore(snapshot, folder, delete=True),
            lambda: store.workspace.restore(snapshot, folder, keep_before=False),
            lambda: store.workspace.download(snapshot, "", folder, overwrite=True),
        ):
            with pytest.raises(Corrupt, match="pack"):
                attempt()
            assert picture(folder) == before
        assert list(store.workspace.snapshots()) == listed
        new = folder.parent / "new" / "deeper"
        for attempt in (
            lambda: store.workspace.restore(snapshot, new),
            lambda: store.workspace.download(snapshot, ["f*"], new),
        ):
            with pytest.raises(Corrupt, match="pack"):
                attempt()
            assert not new.parent.exists()


def test_a_truncated_pack_is_found(packed: tuple[Path, str, Path], target: Path) -> None:
    place, snapshot, pack = packed
    os.truncate(pack, 500_000)
    with treering.open(place) as store:
        with pytest.raises(Corrupt, match="pack"):
            store.workspace.restore(snapshot, target)
        assert len(store.workspace.check(snapshot).problems) > 10


def test_a_pack_that_went_is_found(packed: tuple[Path, str, Path], target: Path) -> None:
    place, snapshot, pack = packed
    pack.unlink()
    with treering.open(place) as store, pytest.raises(Corrupt, match="backup"):
        store.workspace.restore(snapshot, target)


def test_names_that_differ_only_by_case(store: Store, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store_tree(store, store_file(store, "Makefile", b"one"), store_file(store, "makefile", b"two"))
    store.workspace.restore(root, target)  # this file system tells them apart
    assert (target / "Makefile").read_text() == "one"
    assert (target / "makefile").read_text() == "two"
    (target / "Makefile").unlink()
    (target / "makefile").unlink()
    real = os.stat

    def ignoring_case(path, **options):
        return real(str(path).lower() if str(path).isupper() else path, **options)

    monkeypatch.setattr(restore.os, "stat", ignoring_case)
    with pytest.raises(Conflict, match="'Makefile' and 'makefile' are one name"):
        store.workspace.restore(root, target)
    monkeypatch.undo()
    assert picture(target) == {}


def test_a_link_swapped_in_between_scan_and_write(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = store_tree(store, store_file(store, "file", b"would overwrite"))
    root = store_tree(store, FolderEntry(name="x", mode=0o755, tree=inner))
    (target / "x").mkdir()
    apply = restore.PlanApplier.apply

    def swapping(self, plan, folder):
        (target / "x").rmdir()
        (target / "x").symlink_to("../neighbour")
        return apply(self, plan, folder)

    monkeypatch.setattr(restore.PlanApplier, "apply", swapping)
    with pytest.raises(InvalidInput, match="x/"):
        store.workspace.restore(root, target)


def test_links_swapped_in_continuously(store: Store, target: Path) -> None:
    """A thread swaps a folder for a link to the neighbour and back while restores run."""
    inner = store_tree(store, store_file(store, "file", b"would overwrite"))
    deeper = store_tree(store, FolderEntry(name="y", mode=0o755, tree=inner))
    root = store_tree(store, FolderEntry(name="x", mode=0o755, tree=deeper))
    stop = threading.Event()

    def swap() -> None:
        (target / "spare").symlink_to("../neighbour")
        while not stop.is_set():
            for name in ("x", "x/y"):
                try:
                    (target / name).rename(target / "was")
                    (target / "spare").rename(target / name)
                    (target / name).rename(target / "spare")
                    (target / "was").rename(target / name)
                except OSError:
                    with contextlib.suppress(OSError):
                        (target / "was").rename(target / f"litter{os.urandom(4).hex()}")

    swapper = threading.Thread(target=swap)
    swapper.start()
    outcomes = set()
    try:
        for _ in range(150):
            try:
                store.workspace.restore(root, target, keep_before=False)
                outcomes.add("done")
            except TreeringError as error:
                outcomes.add(type(error).__name__)
    finally:
        stop.set()
        swapper.join()
    assert outcomes
    assert (target.parent / "neighbour" / "file").read_text() == "of the host"
