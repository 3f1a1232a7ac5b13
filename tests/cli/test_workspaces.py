"""The commands for files: snapshot, snapshots, restore, ls, cat, download, and rewind and diff with files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import treering
from tests.workspaces.pictures import picture


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "src").mkdir(parents=True)
    (folder / "report.txt").write_text("Draft v1\n")
    (folder / "src" / "main.py").write_text("print(1)\n")
    (folder / "latest.txt").symlink_to("report.txt")
    return folder


def test_snapshot_ls_cat_download_restore(run, work: Path, tmp_path: Path) -> None:
    (work / "auth.json").write_text("secret")
    taken = run("snapshot", work, "--note", "first", "--tag", "keep", "--exclude", "*.log")
    assert taken.code == 0
    snapshot = taken.out.strip()
    assert len(snapshot) == 64
    assert "left out (credential): auth.json" in taken.err
    listed = run("snapshots").out
    assert snapshot[:12] in listed
    assert "first" in listed
    assert run("snapshots", "--json").json[0]["tags"] == ["keep"]
    lines = run("ls", snapshot[:10]).out.splitlines()
    assert lines[0] == "lrwxrwxrwx            10  latest.txt -> report.txt"
    assert lines[1].endswith("9  report.txt")
    assert lines[2].endswith("src/")
    assert [each["path"] for each in run("ls", "latest", "src", "--json").json] == ["src/main.py"]
    assert len(run("ls", "latest", "-r").out.splitlines()) == 4
    taken_out = run("download", "latest", "**/*.py", "--to", tmp_path / "out")
    assert taken_out.out == "src/main.py\n"
    assert run("download", "latest", "src", "--to", tmp_path / "out").code == 4
    (work / "report.txt").write_text("ruined")
    (work / "new.txt").write_text("unsaved")
    dry = run("restore", snapshot, work, "--delete", "--dry-run")
    assert "would write 1 and remove 1" in dry.out
    assert (work / "report.txt").read_text() == "ruined"
    done = run("restore", snapshot, work, "--delete")
    assert "- new.txt" in done.out
    assert (work / "report.txt").read_text() == "Draft v1\n"
    undo = done.out.splitlines()[-1].removeprefix("to undo: treering ").split()
    assert run(*undo).code == 0
    assert ((work / "new.txt").read_text(), (work / "report.txt").read_text()) == ("unsaved", "ruined")


def test_snapshots_are_compared_by_every_name_they_have(run, work: Path) -> None:
    first = run("snapshot", work).out.strip()
    (work / "report.txt").write_text("Draft v2\n")
    run("snapshot", work)
    with treering.open() as store:
        store.thread("t").checkpoint([{"role": "user"}], workspace=work)
    for before, after in ((first[:10], "latest"), (first, "t"), (first[:8], "t@0")):
        assert "~ report.txt" in run("diff", before, after).out, (before, after)
    one, two = (
        run("run", "--json", "--", "sh", "-c", f"echo {n} > n").json["checkpoint"]["id"] for n in "ab"
    )
    assert "~ workspace/n" in run("diff", one, two).out


def test_a_target_that_is_a_file_is_refused(run, work: Path) -> None:
    run("snapshot", work)
    for line in (
        ("restore", "latest", work / "report.txt"),
        ("download", "latest", "src", "--to", work / "report.txt"),
    ):
        refused = run(*line)
        assert refused.code == 2
        assert "is not a folder" in refused.err
    reported = run("restore", "latest", work.parent / "new", "--dry-run")
    assert reported.code == 0
    assert "+ src/main.py" in reported.out
    assert not (work.parent / "new").exists()


def test_cat_is_byte_for_byte(work: Path, tmp_path: Path) -> None:
    (work / "raw.bin").write_bytes(b"\0\xff\r\n")
    environment = {**os.environ, "TREERING_URL": str(tmp_path / "store")}

    def called(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "treering", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout

    snapshot = called("snapshot", str(work)).decode().strip()
    assert called("cat", snapshot, "raw.bin") == b"\0\xff\r\n"


def test_rewind_brings_conversation_and_files_back(run, work: Path) -> None:
    with treering.open() as store:
        thread = store.thread("support/alice")
        thread.checkpoint([{"role": "user", "content": "hi"}], workspace=work)
        before = picture(work)
        (work / "report.txt").write_text("Draft v2\n")
        (work / "extra.txt").write_text("later")
        thread.checkpoint([{"role": "user", "content": "hi"}, {"role": "assistant"}], workspace=work)
    reported = run("diff", "support/alice@0", "support/alice")
    assert "~ report.txt" in reported.out
    assert "    +Draft v2" in reported.out
    assert [
        each["path"] for each in run("diff", "support/alice@0", "support/alice", "--json").json["files"]
    ] == [
        "extra.txt",
        "report.txt",
    ]
    assert run("cat", "support/alice@0", "missing").code == 3
    done = run("rewind", "support/alice", "0", "--files", work, "--delete", "--json").json
    assert done["files"]["written"] == ["report.txt"]
    assert done["files"]["removed"] == ["extra.txt"]
    assert picture(work) == before
    with treering.open() as store:
        head = store.thread("support/alice").head
        assert head is not None
        assert head.message_count == 1


def test_a_rewind_whose_files_cannot_come_back_moves_nothing(run, work: Path) -> None:
    with treering.open() as store:
        thread = store.thread("t")
        thread.append({"content": "no files here"})
        thread.checkpoint(workspace=work)
    refused = run("rewind", "t", "0", "--files", work)
    assert refused.code == 3
    assert "workspace=" in refused.err
    with treering.open() as store:
        head = store.thread("t").head
        assert head is not None
        assert head.step == 1


def test_a_rewind_to_damaged_files_moves_nothing(run, work: Path) -> None:
    (work / "large.bin").write_bytes(random.Random(1).randbytes(3_000_000))
    with treering.open() as store:
        thread = store.thread("t")
        thread.checkpoint([{"content": "one"}], workspace=work)
        (work / "large.bin").write_bytes(b"later")
        (work / "report.txt").write_text("later as well")
        thread.checkpoint([{"content": "one"}, {"content": "two"}], workspace=work)
    for pack in Path(".treering/blobs").rglob("*.pack"):
        os.truncate(pack, 1_000_000)
    before = picture(work)
    refused = run("rewind", "t", "0", "--files", work, "--delete")
    assert refused.code == 5
    assert "pack" in refused.err
    assert picture(work) == before
    with treering.open() as store:
        assert store.thread("t").head.step == 1
        assert list(store.workspace.snapshots()) == []


def test_diff_of_two_snapshots(run, work: Path) -> None:
    one = run("snapshot", work).out.strip()
    (work / "src" / "main.py").unlink()
    two = run("snapshot", work).out.strip()
    assert run("diff", one[:8], two).out.splitlines()[0] == "- src/main.py"
    assert [each["change"] for each in run("diff", one, two, "--json").json] == ["removed"]


def test_latest_is_store_wide_and_may_be_missing(run, work: Path, tmp_path: Path) -> None:
    with treering.open() as store:
        store.thread("t").append({"content": "hi"})
    refused = run("restore", "latest", tmp_path / "new")
    assert refused.code == 3
    assert "no snapshot yet" in refused.err
    run("snapshot", work)
    (work / "report.txt").write_text("with a checkpoint")
    with treering.open() as store:
        store.thread("t").checkpoint(workspace=work)
    assert run("restore", "latest", tmp_path / "new").code == 0
    assert (tmp_path / "new" / "report.txt").read_text() == "with a checkpoint"


def test_errors_are_one_line(run, work: Path) -> None:
    assert run("snapshot", work / "missing").code == 3
    assert run("snapshot", "/").code == 2
    run("snapshot", work)
    assert run("ls", "0" * 64).code == 3
    assert run("snapshot", work, "--seconds", "-1").code == 12


def test_names_that_are_no_utf_8_are_told_to_programs_as_well(run, work: Path, tmp_path: Path) -> None:
    (work / os.fsdecode(b"bad\xff.txt")).write_text("x")
    snapshot = run("snapshot", work).out.strip()
    reported = ["bad\\xff.txt", "latest.txt", "report.txt", "src"]
    assert [each["path"] for each in run("ls", snapshot, "--json").json] == reported
    done = run("restore", snapshot, tmp_path / "new", "--json")
    assert done.code == 0
    assert "bad\\xff.txt" in done.json["written"]
    assert picture(tmp_path / "new") == picture(work)


def test_secrets_in_files_are_warned_of_and_listed(run, work: Path) -> None:
    key = "ghp_" + "q7Zx1Lw9Rt4Vb6Ny8Mk2" + "Jd5Hs3Gf0Pc7Xe1T"
    clean = run("snapshot", work).out.strip()
    assert run("secrets", clean).out.strip() == "no secrets found"
    (work / "src" / "env.txt").write_text(f"HOME=/root\nGITHUB_TOKEN={key}\n")
    taken = run("snapshot", work)
    assert "warning: secret in src/env.txt:2: github-token" in taken.err
    listed = run("secrets", taken.out.strip())
    assert (listed.code, listed.out.splitlines()[1].split()[:3]) == (18, ["src/env.txt", "2", "github-token"])
    assert [each["path"] for each in run("secrets", "latest", "--json").json] == ["src/env.txt"]
    assert key not in taken.err + listed.out


def test_an_export_warns_of_secrets(run, tmp_path: Path) -> None:
    key = "ghp_" + "q7Zx1Lw9Rt4Vb6Ny8Mk2" + "Jd5Hs3Gf0Pc7Xe1T"
    with treering.open() as store:
        store.thread("leaky").checkpoint([{"role": "tool", "content": f"PATH=/bin\nTOKEN={key}"}])
        store.thread("tight").checkpoint([{"role": "user", "content": "hello"}])
    for command in (("jsonl", "--all", "-o", tmp_path / "all.jsonl"), ("agentry", tmp_path / "outputs")):
        done = run("export", *command)
        assert done.code == 0
        assert done.err.count("warning: secret in") == 1
        assert key not in done.out + done.err
