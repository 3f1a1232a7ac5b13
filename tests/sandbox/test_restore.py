"""Restoring a sandbox from a checkpoint: beside what exists, verified, then switched; or nothing changes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import SCRIBBLER
from tests.workspaces.pictures import picture
from treering.core import failpoints
from treering.errors import Corrupt, NotFound, TreeringError
from treering.sandbox import Sandbox, StorageConfig, list_checkpoints


def damage(storage: StorageConfig, how: str) -> None:
    for pack in Path(str(storage.url)).rglob("*.pack"):
        if how == "gone":
            pack.unlink()
        elif how == "truncated":
            os.truncate(pack, pack.stat().st_size // 2)
        else:
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 1
            pack.write_bytes(data)


@pytest.mark.parametrize("how", ["gone", "truncated", "flipped"])
@pytest.mark.parametrize("whose", ["sandbox", "user"])
def test_a_failed_restore_changes_nothing(
    tmp_path: Path, storage: StorageConfig, how: str, whose: str
) -> None:
    mine = tmp_path / "mine" if whose == "user" else None
    with Sandbox(SCRIBBLER, storage=storage, workspace=mine) as sandbox:
        sandbox.start()
        (sandbox.workspace / "large.bin").write_bytes(random.Random(7).randbytes(600_000))
        one = sandbox.run("write report.txt Draft v1").checkpoint
        (sandbox.workspace / "large.bin").write_bytes(b"small now")
        two = sandbox.run("append report.txt  - reviewed").checkpoint
        damage(storage, how)
        (sandbox.workspace / "unsaved.txt").write_text("mine")
        files, homes = picture(sandbox.workspace), picture(tmp_path / "treering-home")
        session = (sandbox.get_session(), sandbox.get_session_tag(), sandbox.get_session_timestamp())
        for _ in range(2):
            with pytest.raises(Corrupt):
                sandbox.run("read report.txt", from_=one.id)
        assert picture(sandbox.workspace) == files
        assert picture(tmp_path / "treering-home") == homes  # its sandboxes, settings and logs
        assert session == (sandbox.get_session(), sandbox.get_session_tag(), sandbox.get_session_timestamp())
        assert [each.id for each in list_checkpoints(storage)] == [two.id, one.id]
        if how != "flipped":  # nobody could take a checkpoint either, without the packs' indexes
            return
        after = sandbox.run("asked")
        assert after.text == "write report.txt Draft v1 | append report.txt  - reviewed"
        assert after.checkpoint.parent_id == two.id
        assert after.sandbox_id == session[0]


def test_a_first_restore_that_fails_leaves_no_sandbox(tmp_path: Path, storage: StorageConfig) -> None:
    with Sandbox(SCRIBBLER, storage=storage) as sandbox:
        one = sandbox.run("write report.txt Draft v1").checkpoint
    damage(storage, "gone")
    before = picture(tmp_path / "treering-home")
    with Sandbox(SCRIBBLER, storage=storage) as sandbox:
        with pytest.raises(Corrupt):
            sandbox.run("read report.txt", from_=one.id)
        assert sandbox.get_session() is None
        assert sandbox.get_session_tag() is None
        assert picture(tmp_path / "treering-home") == before


RESTORER = """
import sys
from tests.sandbox.conftest import SCRIBBLER
from treering.sandbox import Sandbox, StorageConfig
sandbox = Sandbox(SCRIBBLER, storage=StorageConfig(sys.argv[1]), workspace=sys.argv[3] or None)
sandbox.run("read report.txt", from_=sys.argv[2])
"""


@pytest.mark.faults
@pytest.mark.parametrize("point", ["file_written=kill:2", "staged=kill:2", "file_placed=kill:2"])
@pytest.mark.parametrize("whose", ["sandbox", "user"])
def test_a_killed_restore_leaves_no_half_sandbox(
    tmp_path: Path, storage: StorageConfig, point: str, whose: str
) -> None:
    mine = tmp_path / "mine" if whose == "user" else None
    with Sandbox(SCRIBBLER, storage=storage, workspace=mine) as sandbox:
        for name in "abc":
            one = sandbox.run(f"write {name}.txt Draft v1").checkpoint
        two = sandbox.run("append a.txt  - reviewed").checkpoint
        before = picture(sandbox.workspace)
        homes = tmp_path / "treering-home" / "sandboxes"
        killed = subprocess.run(
            [sys.executable, "-c", RESTORER, str(storage.url), one.id, str(mine or "")],
            env={**os.environ, failpoints.ENVIRONMENT: f"restore.{point}"},
            check=False,
            timeout=60,
        )
        assert killed.returncode == -signal.SIGKILL
        (half,) = {each.name for each in homes.iterdir()} - {sandbox.get_session()}
        with pytest.raises(NotFound, match="not found on this machine"):
            sandbox.set_session(half)
        left = {
            path: each for path, each in picture(sandbox.workspace).items() if ".treering-tmp-" not in path
        }
        if whose == "sandbox" or "placed" not in point:
            assert left == before
        assert left.keys() == before.keys()
        newest = list_checkpoints(storage)[0]
        assert newest.id == two.id or newest.comment == f"before the restore of {one.id}"
        assert sandbox.run("read a.txt", from_=one.id).text == "Draft v1"  # and it can be repeated
        os.utime(homes / half, (0, 0))
        with Sandbox(SCRIBBLER) as another:
            another.start()
        assert not (homes / half).exists()


def test_a_workspace_in_use_is_saved_before_it_is_switched(tmp_path: Path, storage: StorageConfig) -> None:
    mine = tmp_path / "mine"
    with Sandbox(SCRIBBLER, storage=storage, workspace=mine) as sandbox:
        one = sandbox.run("write a.txt 1").checkpoint
        (mine / "a.txt").write_text("unsaved")
        failpoints.arm("restore.file_placed", "raise:EIO:2")  # the first is of the agent's settings
        try:
            with pytest.raises(TreeringError):
                sandbox.run("read a.txt", from_=one.id)
        finally:
            failpoints.disarm("restore.file_placed")
        assert (mine / "a.txt").read_text() == "unsaved"
        assert sandbox.run("read a.txt", from_=one.id).text == "1"
        saved = next(each for each in sandbox.list_checkpoints() if (each.comment or "").startswith("before"))
        sandbox.download(saved.id, "workspace/a.txt", tmp_path / "out")
        assert (tmp_path / "out" / "workspace" / "a.txt").read_text() == "unsaved"
