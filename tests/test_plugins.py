"""A small package, really installed, adds an engine, an importer, an adapter and a provider of sandboxes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from treering.errors import InvalidInput
from treering.importers.registry import find_importer
from treering.plugins import find_adapter

UV = shutil.which("uv", path=str(Path(sys.executable).parent))

PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "treering-notes"
version = "1.0"

[project.entry-points."treering.engines"]
notes = "treering_notes:open_notes"
broken = "treering_notes:missing"

[project.entry-points."treering.importers"]
notes = "treering_notes:import_notes"

[project.entry-points."treering.adapters"]
notes = "treering_notes:NotesAdapter"

[project.entry-points."treering.sandbox_providers"]
notes = "treering_notes:NotesProvider"
"""

MODULE = """
from pathlib import Path

from treering.engines.memory.engine import MemoryEngine
from treering.importers.registry import FileReport, report_of
from treering.sandbox.local import LocalProvider


def open_notes(url, *, durability, blobs, clock):
    engine = MemoryEngine(clock=clock)
    engine.opened = (url, durability)
    return engine


def import_notes(source, store, *, on_progress=None, dry_run=False, strict=False):
    lines = Path(source).read_text().splitlines()
    if not dry_run:
        store.thread("notes").append(*({"role": "user", "content": line} for line in lines))
    file = FileReport(path="a", holds="notes", found=len(lines), new=len(lines))
    return report_of("notes", str(source), [file], dry_run=dry_run)


class NotesAdapter:
    pass


class NotesProvider(LocalProvider):
    name = "notes"
"""

SCRIPT = """
import json, sys
import treering
from treering.cli.main import main
from treering.errors import InvalidInput
from treering.plugins import find_adapter
from treering.sandbox.providers import find_provider

with treering.open("notes://here/x", durability="fast") as store:
    store.thread("t").append({"role": "user", "content": "hi"})
    print(json.dumps([store.engine.opened, len(store.thread("t").load().messages)]))
print(find_adapter("notes").__name__, find_provider("notes").name)
try:
    treering.open("broken://x")
except InvalidInput as error:
    print(error)
for words in ("import plugin notes notes.txt --json", "threads --json", "doctor"):
    try:
        main([*words.split(), "--store", "s"])
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
"""


@pytest.mark.slow
def test_an_installed_package_adds_each_kind(tmp_path):
    package, site = tmp_path / "package", tmp_path / "site"
    (package / "treering_notes").mkdir(parents=True)
    (package / "pyproject.toml").write_text(PROJECT)
    (package / "treering_notes" / "__init__.py").write_text(MODULE)
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    words = [
        str(UV),
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--target",
        str(site),
        str(package),
    ]
    subprocess.run(words, check=True, timeout=110)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    opened, found, broken, *rest = done.stdout.splitlines()
    assert json.loads(opened) == [["notes://here/x", "fast"], 1]
    assert found == "NotesAdapter notes"
    assert "reinstall or remove treering-notes" in broken
    said = "\n".join(rest)
    assert '"new": 2' in said or '"new":2' in said
    assert '"notes"' in said
    assert "treering.importers: treering_notes:import_notes of treering-notes 1.0" in " ".join(said.split())


def test_what_no_package_adds_is_refused_by_name():
    with pytest.raises(InvalidInput, match="no installed package adds an adapter for 'floppy'"):
        find_adapter("floppy")
    with pytest.raises(InvalidInput, match="importer 'floppy' is unknown; use one of: agentry"):
        find_importer("floppy")
