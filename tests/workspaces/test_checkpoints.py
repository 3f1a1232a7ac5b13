"""Files and conversation in one checkpoint."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import treering
from tests.workspaces.pictures import picture
from treering.core import failpoints
from treering.errors import NotFound, Vetoed
from treering.store import Store


def text(folder: Path) -> str:
    return (folder / "README.md").read_text()


def test_state_and_files_are_one_commit(store: Store, folder: Path, tmp_path: Path) -> None:
    thread = store.thread("t")
    commits = store.stats().rows["commits"]
    first = thread.checkpoint([{"role": "user", "content": "hi"}], {"n": 1}, workspace=folder, note="draft")
    assert first is not None
    assert store.stats().rows["commits"] == commits + 1
    assert first.snapshot == store.workspace.snapshot(folder)
    before = picture(folder)
    (folder / "README.md").write_text("second")
    second = thread.checkpoint(state={"n": 2}, workspace=str(folder))
    assert second is not None
    assert second.snapshot != first.snapshot
    thread.at(first.id).restore(tmp_path / "new")
    assert picture(tmp_path / "new") == before
    assert store.thread("t").at(1).restore(folder).written == ()
    assert thread.at(0).restore(folder).written == ("README.md",)
    assert text(folder) == "# Report\n"


def test_fork_and_rewind_carry_the_files(store: Store, folder: Path, tmp_path: Path) -> None:
    thread = store.thread("t")
    first = thread.checkpoint(state={"n": 1}, workspace=folder)
    assert first is not None
    (folder / "README.md").write_text("second")
    thread.checkpoint(state={"n": 2}, workspace=folder)
    fork = thread.fork("bolder", at=first)
    assert fork.head is not None
    assert fork.head.snapshot == first.snapshot
    fork.head.restore(tmp_path / "fork")
    assert text(tmp_path / "fork") == "# Report\n"
    (tmp_path / "fork" / "README.md").write_text("elsewhere")
    fork.checkpoint(workspace=tmp_path / "fork")
    thread.rewind(first)
    assert thread.head is not None
    thread.head.restore(folder, delete=True)
    assert text(folder) == "# Report\n"
    changes = thread.diff(first, fork.head).files
    assert [(each.path, each.change) for each in changes] == [("README.md", "changed")]
    assert thread.diff(first, first).is_empty
    assert changes[0].text is not None
    assert "+elsewhere" in changes[0].text


def test_what_is_left_out_of_a_save_stays_as_it_was(store: Store, folder: Path) -> None:
    thread = store.thread("t")
    nothing = thread.append({"content": "before"})
    kept = thread.checkpoint(workspace=folder)
    later = thread.append({"content": "after"})
    assert nothing is not None
    assert kept is not None
    assert later is not None
    assert nothing.snapshot is None
    assert later.snapshot == kept.snapshot
    assert later.to_dict(content=False)["snapshot"] == kept.snapshot
    with pytest.raises(NotFound, match="workspace="):
        nothing.restore(folder)
    assert {each.change for each in thread.diff(nothing, later).files} == {"added"}


def test_gc_keeps_what_checkpoints_reach_and_nothing_else(store: Store, folder: Path, tmp_path: Path) -> None:
    thread = store.thread("t")
    (folder / "big").write_bytes(b"0" * 100_000)
    first = thread.checkpoint(workspace=folder)
    (folder / "big").write_bytes(b"1" * 100_000)
    second = thread.checkpoint(workspace=folder)
    assert first is not None
    assert second is not None
    store.gc(grace_seconds=0)
    thread.at(first.id).restore(tmp_path / "one")
    assert (tmp_path / "one" / "big").read_bytes() == b"0" * 100_000
    store.gc(keep=treering.Keep(last=1), grace_seconds=0)
    thread.at(second.id).restore(tmp_path / "two")
    assert (tmp_path / "two" / "big").read_bytes() == b"1" * 100_000
    assert store.verify().ok


def test_forgetting_a_thread_takes_its_files_along(tmp_path: Path, folder: Path) -> None:
    (folder / "README.md").write_text("canary-2c9d of alice")
    (folder / "canary-2c9d.txt").write_text("a name says something, too")
    with treering.open(tmp_path / "store") as store:
        store.thread("t", "alice").checkpoint(workspace=folder)
        store.forget(namespace="alice")
        store.thread("t", "bob").checkpoint(workspace=folder)
        store.thread("t", "bob").delete()
        store.gc(grace_seconds=0)
    for file in (tmp_path / "store").rglob("*"):
        assert not file.is_file() or b"canary-2c9d" not in file.read_bytes(), file


def test_a_commit_that_fails_leaves_neither(store: Store, folder: Path) -> None:
    thread, other = store.thread("t"), store.thread("t")
    assert thread.checkpoint(state={"n": 1}, workspace=folder) is not None
    assert other.get() is not None
    (folder / "README.md").write_text("of thread")
    thread.checkpoint(state={"n": 2}, workspace=folder)
    (folder / "README.md").write_text("of other")
    with pytest.raises(treering.errors.Conflict):
        other.checkpoint(state={"n": 3}, workspace=folder)
    head = store.thread("t").load()
    assert head is not None
    assert head.snapshot is not None
    assert (head.state, store.workspace.cat(head.snapshot, "README.md")) == ({"n": 2}, b"of thread")


def test_a_writer_who_came_second_may_fork_with_files(store: Store, folder: Path) -> None:
    thread, other = store.thread("t"), store.thread("t")
    thread.checkpoint(state={"n": 1}, workspace=folder)
    other.load()
    thread.checkpoint(state={"n": 2})
    (folder / "README.md").write_text("of other")
    forked = other.checkpoint(state={"n": 3}, workspace=folder, on_conflict="fork")
    assert forked is not None
    assert forked.thread_id.startswith("t~")
    assert forked.snapshot is not None
    assert store.workspace.cat(forked.snapshot, "README.md") == b"of other"


def test_hooks_see_the_workspace_and_may_veto(store: Store, folder: Path) -> None:
    seen: list[str | None] = []

    def veto(saving) -> bool | None:
        seen.append(saving.workspace)
        return False

    store.hooks.add("pre_checkpoint_save", veto)
    with pytest.raises(Vetoed):
        store.thread("t").checkpoint(workspace=folder)
    assert seen == [str(folder)]
    assert not store.stats().rows["objects"]


def test_a_checkpoint_says_what_its_files_lack(store: Store, folder: Path) -> None:
    (folder / "auth.json").write_text("secret")
    checkpoint = store.thread("t").checkpoint(workspace=folder, exclude=["src/"], metadata={"mine": 1})
    assert checkpoint is not None
    assert checkpoint.metadata == {"mine": 1, "workspace": {"left_out": [["auth.json", "credential"]]}}
    assert checkpoint.snapshot is not None
    assert "src" not in {each.path for each in store.workspace.ls(checkpoint.snapshot)}


def test_the_async_interface(tmp_path: Path, folder: Path) -> None:
    async def work() -> None:
        async with treering.open_async(tmp_path / "store") as store:
            thread = store.thread("t")
            checkpoint = await thread.checkpoint(state={"n": 1}, workspace=folder)
            assert checkpoint is not None
            await checkpoint.restore(tmp_path / "new")
            assert await store.workspace.submit(folder) == checkpoint.snapshot
            progress = []
            snapshot = await store.workspace.snapshot(folder, on_progress=progress.append)
            assert snapshot == checkpoint.snapshot
            assert "README.md" in [each.path async for each in store.workspace.ls(snapshot)]
            assert await store.workspace.cat(snapshot, "README.md") == b"# Report\n"
            assert (await store.workspace.check(snapshot)).ok

    asyncio.run(work())
    assert picture(tmp_path / "new") == picture(folder)


RESTORER = """
import sys, treering
with treering.open(sys.argv[1]) as store:
    store.workspace.restore(sys.argv[2], sys.argv[3])
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    "point",
    ["file_written=kill:2", "staged=kill", "file_placed=kill:1", "file_placed=kill:3", "switched=kill"],
)
def test_a_killed_restore_leaves_whole_files_and_is_finished_by_the_next(
    tmp_path: Path, folder: Path, point: str
) -> None:
    target = tmp_path / "target"
    with treering.open(tmp_path / "store") as store:
        snapshot = store.workspace.snapshot(folder)
        whole = picture(folder)
        store.workspace.restore(snapshot, target)
        (target / "README.md").write_text("unsaved")
        (target / "src" / "main.py").write_text("unsaved as well")
        (target / "run.sh").unlink()
        (target / "empty").rmdir()
        before = picture(target)
        killed = subprocess.run(
            [sys.executable, "-c", RESTORER, str(tmp_path / "store"), snapshot, str(target)],
            env={**os.environ, failpoints.ENVIRONMENT: f"restore.{point}"},
            check=False,
            timeout=60,
        )
        assert killed.returncode == -signal.SIGKILL
        left = {path: each for path, each in picture(target).items() if ".treering-tmp-" not in path}
        assert left.items() <= before.items() | whole.items()
        if "placed" not in point:
            assert left == (whole if "switched" in point else before)
        store.workspace.restore(snapshot, target)
        assert picture(target) == whole
