"""What agents said is private: nothing that treering writes can be read by another user of the machine."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

WRITER = """
import asyncio, os, sys
from pathlib import Path

import treering
from treering.compat.agentry import Lab
from treering.compat.memory import FilesystemMemoryStore, MemoryDocument
from treering.compat.savers import FileSaver
from treering.importers.jsonl_export import export_jsonl
from treering.keyvalue import FolderStore
from treering.cli.main import main
from treering.sandbox import Sandbox, StorageConfig

os.umask(int(sys.argv[1], 8))
files = Path("given")
files.mkdir()
(files / "large.bin").write_bytes(os.urandom(3_000_000))

with treering.open("deep/store") as store:
    store.thread("a").append({"role": "user", "content": "my diagnosis"})
    store.transcript("a", outputs="outputs").append("doctor", "hello", iter=0)
    store.transcript("a").export("exports/transcript.jsonl")
    store.chat("telegram", 1).log("sessions").append("user", "hi")
    store.workspace.snapshot(files)
    store.memory.save(treering.memory.documents.MemoryDocument(id="d", content="text"))
    store.backup("backups/one")
FolderStore("values").set("key", b"value")
FilesystemMemoryStore(root_dir="memories").save(MemoryDocument(id="a", content="text", metadata={}))
FileSaver("saver").save(thread_id="t", messages=[{"role": "user", "content": "hi"}])
Lab("labs", outputs="lab-outputs").save_checkpoint("t", {"iter": 1})
with Sandbox("program", storage=StorageConfig(url="bucket")) as sandbox:
    sandbox.execute(["sh", "-c", "echo hi > file.txt"])
    sandbox.checkpoint()
for line in (
    "export jsonl --all --store deep/store -o all.jsonl",
    "export agentry deep/outputs --store deep/store",
    "export ciana deep/data --store deep/store",
    "memory sync folder --store deep/store",
    "backup backups/two --store deep/store",
):
    try:
        main(line.split())
    except SystemExit as ended:
        assert not ended.code, line
"""


@pytest.mark.parametrize("umask", ["0", "22"])
def test_only_the_owner_reads_what_is_written(tmp_path, umask):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    work = tmp_path / "work"
    work.mkdir(mode=0o700)
    environment = {**os.environ, "HOME": str(home), "TREERING_HOME": str(home / ".treering")}
    command = [sys.executable, "-c", WRITER, umask]
    done = subprocess.run(command, check=False, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    given = work / "given"
    written = [path for path in (*work.rglob("*"), *home.rglob("*")) if given not in (path, *path.parents)]
    inside = [path for path in written if ".treering/sandboxes/" not in path.as_posix()]
    assert {path.suffix for path in inside if path.is_file()} >= {".db", ".pack", ".jsonl", ".md", ".json"}
    readable = {
        str(path.relative_to(tmp_path)): oct(path.stat().st_mode)
        for path in inside
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }
    assert not readable, json.dumps(readable, indent=1)
    assert stat.S_IMODE((home / ".treering" / "sandboxes").stat().st_mode) == 0o700


def test_a_store_that_others_may_read_stays_so(tmp_path):
    """Who opened it up for a group did so on purpose."""
    import treering

    (tmp_path / "shared").mkdir(mode=0o755)
    treering.open(tmp_path / "shared").close()
    (tmp_path / "shared" / "treering.db").chmod(0o640)
    with treering.open(tmp_path / "shared") as store:
        store.thread("a").append({"role": "user", "content": "hi"})
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "shared" / "treering.db").stat().st_mode) == 0o640
