"""Evolve: what snapshots contain, deduplicate, name and leave out, and how they are read."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

import treering
from treering.store import Store
from treering.workspaces.workspace import SnapshotInfo

AGENTS = {
    "claude": (".claude",),
    "codex": (".codex",),
    "gemini": (".gemini",),
    "qwen": (".qwen",),
    "kimi": (".kimi",),
    "opencode": (".local/share/opencode", ".config/opencode", ".local/state/opencode"),
}
CREDENTIALS = {
    "claude": ".claude/.credentials.json",
    "codex": ".codex/auth.json",
    "gemini": ".gemini/oauth_creds.json",
    "qwen": ".qwen/oauth_creds.json",
    "kimi": ".kimi/credentials.toml",
    "opencode": ".local/share/opencode/auth.json",
}
EXCLUDED = (
    "node_modules/left-pad/index.js",
    "pkg/__pycache__/main.cpython-311.pyc",
    "module.pyc",
    ".cache/pip/x",
    ".npm/_logs/x",
    ".pip/x",
    ".venv/bin/python",
    "venv/bin/python",
    "temp/scratch.txt",
)


@pytest.fixture
def store(tmp_path: Path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """``/home/user`` of the document: a workspace, and an agent's settings beside it."""
    place = tmp_path / "home" / "user"
    (place / "workspace").mkdir(parents=True)
    (place / "workspace" / "report.txt").write_text("Draft v1")
    return place


def snapshot(store: Store, folder: Path, **options) -> SnapshotInfo:
    reported: list[SnapshotInfo] = []
    store.workspace.snapshot(folder, on_done=reported.append, **options)
    return reported[0]


@pytest.mark.parametrize("agent", AGENTS)
def test_d1_workspace_and_settings_without_credentials(
    store: Store, home: Path, tmp_path: Path, agent: str
) -> None:
    for folder in AGENTS[agent]:
        (home / folder / "sessions").mkdir(parents=True)
        (home / folder / "settings.json").write_text('{"theme": "dark"}')
        (home / folder / "sessions" / "1.jsonl").write_text('{"role": "user"}\n')
    secret = home / CREDENTIALS[agent]
    secret.write_text("canary-b3f1")
    reported = snapshot(store, home)
    assert [(each.path, each.reason) for each in reported.left_out] == [(CREDENTIALS[agent], "credential")]
    store.workspace.restore(reported.id, tmp_path / "fresh")
    assert (tmp_path / "fresh" / "workspace" / "report.txt").read_text() == "Draft v1"
    for folder in AGENTS[agent]:
        assert (tmp_path / "fresh" / folder / "sessions" / "1.jsonl").exists()
    assert not (tmp_path / "fresh" / CREDENTIALS[agent]).exists()
    for file in (tmp_path / "store").rglob("*"):
        assert not file.is_file() or b"canary-b3f1" not in file.read_bytes()


def test_d1_a_missing_settings_folder_is_fine(store: Store, home: Path) -> None:
    assert snapshot(store, home).files == 1


def test_d3_unchanged_content_uploads_nothing(store: Store, home: Path) -> None:
    (home / "workspace" / "data.bin").write_bytes(random.Random(5).randbytes(3_000_000))
    first = snapshot(store, home)
    objects, stored = store.stats().rows["objects"], store.stats().bytes["objects"]
    os.utime(home / "workspace" / "report.txt")
    os.utime(home / "workspace" / "data.bin")
    second = snapshot(store, home)
    assert second.id == first.id
    assert (store.stats().rows["objects"], store.stats().bytes["objects"]) == (objects, stored)
    assert [each.id for each in store.workspace.snapshots()] == [first.id, first.id]  # an entry of its own


def test_d3_one_changed_byte_uploads_about_one_chunk(store: Store, home: Path) -> None:
    data = bytearray(random.Random(5).randbytes(30_000_000))
    (home / "workspace" / "model.bin").write_bytes(data)
    snapshot(store, home)
    before = store.stats().bytes["objects"]
    data[15_000_000] ^= 1
    (home / "workspace" / "model.bin").write_bytes(data)
    snapshot(store, home)
    assert store.stats().bytes["objects"] - before <= 1_100_000  # a chunk has at most 1 MiB


def test_d10_the_hash_is_of_the_content_alone(store: Store, home: Path, tmp_path: Path) -> None:
    reported = snapshot(store, home)
    with treering.open(tmp_path / "another machine") as other:
        elsewhere = tmp_path / "elsewhere"
        (elsewhere / "workspace").mkdir(parents=True)
        (elsewhere / "workspace" / "report.txt").write_text("Draft v1")
        assert snapshot(other, elsewhere).id == reported.id
    (content,) = store.engine.get(store.space, [f"o:{reported.id}"])
    assert hashlib.sha256(b"tree\0" + content.data).hexdigest() == reported.id
    assert reported.size_bytes == len("Draft v1")


def test_d11_the_documents_own_exclusions(store: Store, home: Path) -> None:
    work = home / "workspace"
    for path in EXCLUDED:
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text("left out")
    (work / ".treeringignore").write_text("*.log\n!important.log\n")
    (work / "a.log").write_text("left out")
    (work / "important.log").write_text("kept")
    (work / "out").mkdir()
    (work / "out" / "big.csv").write_text("left out")
    reported = snapshot(store, work, exclude=["out/*.csv"])
    kept = {each.path for each in store.workspace.ls(reported.id, recursive=True) if each.kind == "file"}
    assert kept == {"report.txt", ".treeringignore", "important.log"}


def test_d14_files_come_out_without_a_restore(store: Store, home: Path, tmp_path: Path) -> None:
    work = home / "workspace"
    (work / "charts").mkdir()
    for name in ("a.svg", "b.svg", "notes.md"):
        (work / "charts" / name).write_text(name)
    reported = snapshot(store, work)
    (work / "report.txt").write_text("Draft v1 - reviewed")
    assert store.workspace.cat(reported.id, "report.txt") == b"Draft v1"
    taken = store.workspace.download(reported.id, ["report.txt", "charts/*.svg"], tmp_path / "out")
    assert sorted(taken) == ["charts/a.svg", "charts/b.svg", "report.txt"]
    assert (tmp_path / "out" / "report.txt").read_text() == "Draft v1"
    assert not (tmp_path / "out" / "charts" / "notes.md").exists()
    assert (work / "report.txt").read_text() == "Draft v1 - reviewed"
