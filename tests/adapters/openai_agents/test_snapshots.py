"""Snapshots of the OpenAI Agents SDK's sandboxes: as the SDK's own, and by its own local sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox.errors import SnapshotNotRestorableError, SnapshotPersistError, SnapshotRestoreError
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.sandbox.snapshot import LocalSnapshotSpec, SnapshotBase

import treering
from treering.adapters.openai_agents.snapshots import TreeringSnapshot, TreeringSnapshotSpec


@pytest.fixture(params=["theirs", "ours"])
def spec(request, tmp_path) -> Any:
    if request.param == "theirs":
        return LocalSnapshotSpec(base_path=tmp_path / "snapshots")
    return TreeringSnapshotSpec(url=str(tmp_path / "store"))


def archive(folder: Path) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, arcname=".")
    packed.seek(0)
    return packed


def contents(data: Any) -> dict[str, Any]:
    """What an archive holds, by path: a file's content and whether it is executable, or a link's target."""
    found: dict[str, Any] = {}
    with tarfile.open(fileobj=data, mode="r") as tar:
        for each in tar:
            name = each.name.removeprefix("./").rstrip("/")
            if name in ("", "."):
                continue
            if each.isfile() or each.islnk():
                file = tar.extractfile(each)
                assert file is not None
                found[name] = (file.read(), bool(each.mode & 0o100))
            else:
                found[name] = each.linkname if each.issym() else "folder"
    return found


def test_files_come_back_as_they_were_whatever_their_kind(spec, tmp_path):
    folder = tmp_path / "work"
    (folder / "empty").mkdir(parents=True)
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "a.js").write_text("1")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "near").symlink_to("run.sh")
    (folder / "far").symlink_to("/usr/bin/env")
    (folder / "big.bin").write_bytes(bytes(range(256)) * 4000)
    snapshot = spec.build("one")

    async def go() -> None:
        assert not await snapshot.restorable()
        with pytest.raises((SnapshotNotRestorableError, SnapshotRestoreError)):
            await snapshot.restore()
        await snapshot.persist(archive(folder))
        assert await snapshot.restorable()
        (folder / "run.sh").write_text("changed")
        await snapshot.persist(archive(folder))
        again = SnapshotBase.parse(json.loads(snapshot.model_dump_json()))
        assert again == snapshot
        with await again.restore() as data:
            assert contents(data) == contents(archive(folder))

    asyncio.run(go())


def test_each_persist_is_a_checkpoint_and_content_is_stored_once(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "big.bin").write_bytes(bytes(range(256)) * 8000)
    spec = TreeringSnapshotSpec(url=str(tmp_path / "store"))

    async def go() -> None:
        for session in ("one", "two"):
            for text in ("a", "b"):
                (folder / "note.txt").write_text(text)
                await spec.build(session).persist(archive(folder))

    asyncio.run(go())
    with treering.open(tmp_path / "store") as store:
        thread = store.thread("sandbox/one")
        newest, first = thread.history()
        assert [change.path for change in thread.diff(first, newest).files] == ["note.txt"]
        assert sum(store.stats().bytes.values()) < 3_000_000
        assert store.verify().ok


@pytest.mark.parametrize("name", ["../outside", "link/outside", "/outside"])
def test_an_archive_cannot_leave_its_folder(tmp_path, name):
    target = tmp_path / "target"
    target.mkdir()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(target)
        tar.addfile(link)
        file = tarfile.TarInfo(name)
        file.size = 3
        tar.addfile(file, io.BytesIO(b"bad"))
        nested = tarfile.TarInfo("link/nested")
        nested.type, nested.linkname = tarfile.SYMTYPE, "x"
        tar.addfile(nested)
    packed.seek(0)
    snapshot = TreeringSnapshot(id="one", url=str(tmp_path / "store"))
    with contextlib.suppress(SnapshotPersistError):
        asyncio.run(snapshot.persist(packed))
    assert list(target.iterdir()) == []
    assert not (tmp_path / "outside").exists()
    assert not Path("/outside").exists()


def test_the_sdks_own_sandbox_resumes_with_its_files(tmp_path):
    spec = TreeringSnapshotSpec(url=str(tmp_path / "store"))

    async def go() -> None:
        client = UnixLocalSandboxClient()
        session = await client.create(snapshot=spec)
        async with session:
            await session.write(Path("report.md"), io.BytesIO(b"12 refunds"))
        state = session.state
        payload = json.loads(state.model_dump_json())
        shutil.rmtree(state.manifest.root, ignore_errors=True)  # another machine

        other = UnixLocalSandboxClient()
        resumed = await other.resume(other.deserialize_session_state(payload))
        async with resumed:
            with await resumed.read(Path("report.md")) as file:
                assert file.read() == b"12 refunds"
        await other.delete(resumed)

    asyncio.run(go())
    with treering.open(tmp_path / "store") as store:
        (thread,) = store.threads()
        assert thread.id.startswith("sandbox/")
