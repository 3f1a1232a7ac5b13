"""Stores and folders for the tests of workspaces."""

from __future__ import annotations

from pathlib import Path

import pytest

import treering


@pytest.fixture
def store(tmp_path: Path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small workspace with one of everything that a snapshot keeps."""
    root = tmp_path / "work"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o700)
    (root / "README.md").write_text("# Report\n")
    (root / "src" / "main.py").write_text("print('hello')\n")
    (root / "src" / "deep" / "data.bin").write_bytes(bytes(range(256)) * 40)
    (root / "src" / "nothing").touch()
    script = root / "run.sh"
    script.write_text("#!/bin/sh\necho hi\n")
    script.chmod(0o755)
    (root / "latest").symlink_to("src/main.py")
    return root


@pytest.fixture
def other_store(tmp_path: Path):
    with treering.open(tmp_path / "other", durability="fast") as opened:
        yield opened
