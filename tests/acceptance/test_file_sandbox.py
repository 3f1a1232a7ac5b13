"""CianaParrot: sandboxed file operations in a virtual root with read-only and read-write mounts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import treering
from treering.errors import InvalidInput, NotFound, ReadOnly
from treering.workspaces.virtual_fs import VirtualFiles


@pytest.fixture
def files(tmp_path: Path):
    """The document's volumes: ./workspace, ~/Documents read-only, ~/Projects."""
    for name in ("workspace/skills", "Documents", "Projects"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "workspace" / "IDENTITY.md").write_text("You are Ciana.\n")
    (tmp_path / "Documents" / "report.pdf").write_bytes(b"%PDF-1.7")
    (tmp_path / "Projects" / "notes.txt").write_text("idea: parrots\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "checkpoints.db").write_text("not for the agent")
    with (
        treering.open("memory:") as store,
        store.workspace.files(
            tmp_path / "workspace",
            mounts={
                "host/documents": (tmp_path / "Documents", "ro"),
                "host/projects": (tmp_path / "Projects", "rw"),
            },
        ) as opened,
    ):
        yield opened


def test_e8_the_tree_of_the_document(files: VirtualFiles) -> None:
    assert [each.path for each in files.ls()] == ["/IDENTITY.md", "/host", "/skills"]
    assert [each.path for each in files.ls("host")] == ["/host/documents", "/host/projects"]
    assert files.read("IDENTITY.md") == "You are Ciana.\n"
    assert files.read_bytes("host/documents/report.pdf") == b"%PDF-1.7"
    assert [each.path for each in files.grep("parrots")] == ["/host/projects/notes.txt"]


def test_e8_access_follows_the_mount(files: VirtualFiles, tmp_path: Path) -> None:
    files.write("host/projects/new.txt", "rw")
    assert (tmp_path / "Projects" / "new.txt").read_text() == "rw"
    for change in (
        lambda: files.write("host/documents/new.txt", "x"),
        lambda: files.edit("host/documents/report.pdf", "PDF", "x"),
        lambda: files.delete("host/documents/report.pdf"),
    ):
        with pytest.raises(ReadOnly):
            change()
    assert (tmp_path / "Documents" / "report.pdf").read_bytes() == b"%PDF-1.7"


@pytest.mark.parametrize(
    "path",
    [
        "../data/checkpoints.db",
        "/../data/checkpoints.db",
        "host/documents/../../../data/checkpoints.db",
        "host/projects/out/checkpoints.db",
        "out/checkpoints.db",
    ],
)
def test_e8_the_agent_cannot_leave(files: VirtualFiles, tmp_path: Path, path: str) -> None:
    (tmp_path / "workspace" / "out").symlink_to("../data")
    (tmp_path / "Projects" / "out").symlink_to(tmp_path / "data")
    with pytest.raises(InvalidInput):
        files.read(path)
    with pytest.raises(InvalidInput):
        files.write(path, "overwritten")
    assert (tmp_path / "data" / "checkpoints.db").read_text() == "not for the agent"


def test_e8_an_absolute_path_is_one_of_the_virtual_root(files: VirtualFiles, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="'/etc/passwd'"):
        files.read("/etc/passwd")
    files.write("/etc/passwd", "an agent's own")
    assert (tmp_path / "workspace" / "etc" / "passwd").read_text() == "an agent's own"


def test_e8_the_same_words_awaited(tmp_path: Path) -> None:
    async def work() -> str:
        async with treering.open_async("memory:") as store:
            files = store.workspace.files(tmp_path)
            await files.write("a.txt", "one\n")
            await files.edit("a.txt", "one", "two")
            text = await files.read("a.txt")
            await files.close()
            return text

    assert asyncio.run(work()) == "two\n"
