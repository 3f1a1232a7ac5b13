"""Evolve: sandboxes, following the example of its documentation.

The agent is a stand-in for ``claude`` that understands the document's prompts and tells what it does as
Claude Code does (`tests.sandbox.scribbler`); `tests.sandbox.test_agents` has the real ones.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import treering
from tests.sandbox.conftest import config_of, own_places  # noqa: F401 - a fixture
from tests.server.running import running
from treering.errors import InvalidInput, MissingExtra, NotFound
from treering.sandbox import (
    CheckpointWarning,
    Sandbox,
    StorageConfig,
    download_files,
    list_checkpoints,
    register,
)
from treering.sandbox.profiles import find_profile
from treering.server.settings import Settings

SCRIBBLER = Path(__file__).parents[1] / "sandbox" / "scribbler.py"


@pytest.fixture(autouse=True)
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_places: None) -> None:  # noqa: ARG001, F811
    """``claude`` on the PATH."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "claude"
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIBBLER}" "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(params=["s3", "folder", "gateway"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageConfig]:
    """BYOK in a bucket, BYOK in a folder, and treering's own server with a key."""
    if request.param == "s3":
        request.applymarker(pytest.mark.s3)
        yield config_of(request.getfixturevalue("s3"), "project")
    elif request.param == "folder":
        yield StorageConfig(url=str(tmp_path / "project"))
    else:
        store = treering.open(tmp_path / "served")
        with running(store, Settings(api_key="tr-key-0123456789", project="default")) as url:
            monkeypatch.setenv("TREERING_URL", url)
            monkeypatch.setenv("TREERING_API_KEY", "tr-key-0123456789")
            yield StorageConfig()


@pytest.fixture
def folder(tmp_path: Path) -> StorageConfig:
    return StorageConfig(tmp_path / "project")


def test_d2_d4_d5_d8_d9_end_to_end(storage: StorageConfig) -> None:
    # 1. Create and checkpoint
    evolve = Sandbox(agent="claude", storage=storage)
    r1 = evolve.run("Create a file called report.txt with 'Draft v1'", checkpoint_comment="initial draft")
    assert r1.exit_code == 0, r1.output
    assert r1.checkpoint is not None, r1.warning
    assert r1.checkpoint.comment == "initial draft"
    assert r1.checkpoint.parent_id is None
    # 2. Second run: chains the parent by itself
    r2 = evolve.run("Append ' - reviewed' to report.txt", checkpoint_comment="reviewed")
    assert r2.checkpoint.parent_id == r1.checkpoint.id
    evolve.kill()
    evolve.close()
    # 3. Restore into a fresh sandbox
    evolve2 = Sandbox(agent="claude", storage=storage)
    r3 = evolve2.run("Read report.txt — what does it say?", from_=r1.checkpoint.id)
    assert r3.text == "Draft v1"  # not the reviewed version
    assert r3.checkpoint.parent_id == r1.checkpoint.id
    evolve2.kill()
    assert [each.comment for each in evolve2.list_checkpoints(limit=2)] == [None, "reviewed"]
    evolve2.close()
    # 4. List all checkpoints, newest first
    listed = list_checkpoints(storage)
    assert listed == [r3.checkpoint, r2.checkpoint, r1.checkpoint]
    assert list_checkpoints(storage, tag=r1.checkpoint.tag) == [r2.checkpoint, r1.checkpoint]


def test_d5_the_gateway_has_the_timeline_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = treering.open(tmp_path / "served")
    with running(store, Settings(api_key="tr-key-0123456789", project="default")) as url:
        monkeypatch.setenv("TREERING_URL", url)
        monkeypatch.setenv("TREERING_API_KEY", "tr-key-0123456789")
        with Sandbox(agent="claude", storage=StorageConfig()) as sandbox:
            done = sandbox.run("Create a file called report.txt with 'Draft v1'")
        assert done.warning is None
        with treering.open(url, api_key="tr-key-0123456789") as looked:
            (run,) = looked.runs.each()
            assert (run.id, run.agent, run.status) == (done.run_id, "claude", "ok")
            labels = [each.label for each in looked.timeline.each_of_run(run.id)]
            assert labels == ["user message", "assistant message"]


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "qwen", "kimi", "opencode"])
def test_d1_workspace_and_settings_of_each_agent(agent: str, folder: StorageConfig) -> None:
    profile = find_profile(agent)
    with Sandbox(agent, storage=folder) as sandbox:
        sandbox.start()
        for name in profile.settings:
            (sandbox.home / name / "history.jsonl").write_text("{}")
        (sandbox.home / profile.credentials[0]).write_text("canary")
        (sandbox.home / "elsewhere.txt").write_text("not of the agent")
        done = sandbox.execute(["sh", "-c", "echo hi > report.txt"])
        assert done.checkpoint is not None, done.warning
        shown = {each.path for each in sandbox._checkpoints.require().ls(done.checkpoint, recursive=True)}
    assert "workspace/report.txt" in shown
    assert {f"{name}/history.jsonl" for name in profile.settings} <= shown
    assert profile.credentials[0] not in shown
    assert "elsewhere.txt" not in shown


def test_d1_a_missing_settings_folder_is_fine(folder: StorageConfig) -> None:
    with Sandbox("codex", storage=folder) as sandbox:
        (sandbox.home / ".codex").rmdir()
        assert sandbox.execute(["true"]).checkpoint is not None


def test_d2_background_and_failed_runs_skip_it_and_a_failure_is_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with Sandbox("claude", storage=StorageConfig(tmp_path / "project")) as sandbox:
        assert sandbox.run("fail").checkpoint is None
        sandbox.run("write a.txt 1", background=True)
        assert sandbox.wait().checkpoint is None
        assert sandbox.list_checkpoints() == []
        (tmp_path / "project" / "packs").write_text("in the way")
        with pytest.warns(CheckpointWarning):
            done = sandbox.run("write a.txt 2")
        assert (done.exit_code, done.checkpoint) == (0, None)
        (tmp_path / "project" / "packs").unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sandbox.run("write a.txt 3").checkpoint is not None


def test_d3_only_what_is_new_is_uploaded(folder: StorageConfig, tmp_path: Path) -> None:
    def stored() -> int:
        return sum(each.stat().st_size for each in (tmp_path / "project" / "packs").rglob("*.pack"))

    with Sandbox("program", storage=folder) as sandbox:
        big = sandbox.workspace / "big.bin"
        big.write_bytes(os.urandom(8_000_000))
        first = sandbox.execute(["true"]).checkpoint
        before = stored()
        again = sandbox.execute(["true"]).checkpoint
        assert (again.hash, again.id != first.id) == (first.hash, True)  # an entry of its own
        os.utime(big)
        assert sandbox.execute(["true"]).checkpoint.hash == first.hash
        assert stored() == before
        data = bytearray(big.read_bytes())
        data[4_000_000] ^= 1
        big.write_bytes(data)
        assert sandbox.execute(["true"]).checkpoint.hash != first.hash
        assert stored() - before < 1_500_000  # about one chunk, and trees


def test_d4_lineage_chains_and_resets(folder: StorageConfig) -> None:
    sandbox = Sandbox("claude", storage=folder)
    r1, r2, r3 = (sandbox.run(f"write step.txt {number}").checkpoint for number in (1, 2, 3))
    assert [r1.parent_id, r2.parent_id, r3.parent_id] == [None, r1.id, r2.id]
    r4 = sandbox.run("read step.txt", from_=r1.id)
    assert (r4.text, r4.checkpoint.parent_id) == ("1", r1.id)  # not r3
    sandbox.kill()
    assert sandbox.run("write step.txt 5").checkpoint.parent_id is None
    session = sandbox.get_session()
    sandbox.set_session(session)
    assert sandbox.run("write step.txt 6").checkpoint.parent_id is None
    sandbox.kill()
    sandbox.close()


def test_d6_every_form_of_the_document() -> None:
    for config in (
        StorageConfig(url="s3://my-bucket/agent-snapshots/", region="us-west-2"),
        StorageConfig(url="s3://my-bucket/prefix/", endpoint="https://acct.r2.cloudflarestorage.com"),
        StorageConfig(url="https://endpoint/bucket/prefix"),
        StorageConfig(bucket="b", prefix="p", credentials={"accessKeyId": "a", "secretAccessKey": "s"}),
    ):
        assert not config.is_gateway
    assert StorageConfig().is_gateway


def test_d6_a_missing_extra_and_missing_keys_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="TREERING_URL"):
        list_checkpoints()
    monkeypatch.setenv("TREERING_URL", "https://rings.example")
    with pytest.raises(InvalidInput, match="TREERING_API_KEY"):
        list_checkpoints(StorageConfig(), limit=5)
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "treering.blobs.s3", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'treering\[s3\]'"):
        list_checkpoints(StorageConfig("s3://my-bucket/snapshots/"))


def test_d7_explicit_checkpoint(folder: StorageConfig) -> None:
    with Sandbox("claude", storage=folder) as sandbox:
        with pytest.raises(InvalidInput, match="no active sandbox"):
            sandbox.checkpoint(comment="before refactor")
        sandbox.run("write a.txt 1")
        made = sandbox.checkpoint(comment="before refactor")
        assert re.fullmatch(r"ckpt_[0-9a-z]{26}", made.id)
        assert made.comment == "before refactor"


def test_d8_checks_come_before_any_download(folder: StorageConfig, tmp_path: Path) -> None:
    with Sandbox("claude", storage=folder) as sandbox, Sandbox("claude", model="x", storage=folder) as other:
        made = sandbox.run("write a.txt 1").checkpoint
        for pack in (tmp_path / "project" / "packs").rglob("*.pack"):
            pack.rename(pack.with_suffix(".away"))  # whoever downloads, fails
        with (
            Sandbox("codex", storage=folder) as codex,
            pytest.raises(InvalidInput, match="agent='claude'"),
        ):
            codex.run("read a.txt", from_=made.id)
        with (
            Sandbox("claude", workspace_mode="swe", storage=folder) as swe,
            pytest.raises(InvalidInput, match="workspace_mode='knowledge'"),
        ):
            swe.run("read a.txt", from_="latest")
        for pack in (tmp_path / "project" / "packs").rglob("*.away"):
            pack.rename(pack.with_suffix(".pack"))
        assert other.run("read a.txt", from_="latest").text == "1"  # the model may differ
        attached = Sandbox("claude", session=sandbox.get_session(), storage="s3://bucket/never-asked")
        with pytest.raises(InvalidInput, match="cannot be combined with session"):
            attached.run("read a.txt", from_="latest")
        attached.close()
    with Sandbox("claude", storage=tmp_path / "empty") as empty, pytest.raises(NotFound, match="'latest'"):
        empty.run("read a.txt", from_="latest")


def test_d9_d10_what_a_checkpoint_tells(folder: StorageConfig, tmp_path: Path) -> None:
    with Sandbox("claude", model="sonnet", storage=folder, session_tag_prefix="my-session") as sandbox:
        info = sandbox.run("write a.txt 12345", checkpoint_comment="first").checkpoint
        assert (info.agent_type, info.model, info.workspace_mode) == ("claude", "sonnet", "knowledge")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", info.timestamp)
        assert re.fullmatch("[0-9a-f]{64}", info.hash)
        assert info.tag == sandbox.get_session_tag()
        assert info.size_bytes == 5 + len("write a.txt 12345\n")
        elsewhere = Sandbox("claude", storage=tmp_path / "other-machine")
        elsewhere.run("write a.txt 12345")
        assert elsewhere.list_checkpoints()[0].size_bytes == info.size_bytes
        elsewhere.kill()
        elsewhere.close()
        for _ in range(3):
            sandbox.checkpoint()
        assert len(sandbox.list_checkpoints(limit=2)) == 2
        assert len(sandbox.list_checkpoints(tag=info.tag)) == 4
        assert sandbox.list_checkpoints(tag="nobody") == []
        for limit in (0, 501):
            with pytest.raises(InvalidInput):
                sandbox.list_checkpoints(limit=limit)


def test_d11_exclusions(folder: StorageConfig) -> None:
    with Sandbox("program", storage=folder, exclude=["*.secret"]) as sandbox:
        left_out = (
            "node_modules/a", "__pycache__/a", "x.pyc", ".cache/a", ".npm/a", ".pip/a", ".venv/a", "venv/a",
            "temp/a", "y.secret",
        )  # fmt: skip
        for name in (*left_out, "sub/temp/kept"):
            (sandbox.workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (sandbox.workspace / name).write_text("x")
        info = sandbox.execute(["true"]).checkpoint
        files = [
            each.path
            for each in sandbox._checkpoints.require().ls(info, recursive=True)
            if each.kind == "file"
        ]
    assert files == ["workspace/sub/temp/kept"]


def test_d12_the_session_log(folder: StorageConfig, tmp_path: Path) -> None:
    sandbox = Sandbox(
        "claude", storage=folder, session_tag_prefix="my-project", sessions_folder=tmp_path / "logs"
    )
    sandbox.run("write a.txt 1")
    first_tag, first_log = sandbox.get_session_tag(), sandbox.log_path
    began = sandbox.get_session_timestamp()
    assert re.fullmatch("my-project-[0-9a-f]{16}", first_tag)
    stamp = began.replace(":", "-").replace(".", "-")
    assert first_log.name == f"{first_tag}_local_{sandbox.get_session()}_claude_{stamp}.jsonl"
    sandbox.pause()
    sandbox.resume()
    sandbox.run("write a.txt 2", background=True)
    sandbox.wait()
    assert sandbox.log_path == first_log  # a pause does not end a session
    sandbox.kill()  # flushes the log of sandbox A
    lines = [json.loads(line) for line in first_log.read_bytes().splitlines()]
    assert [sum(key in line for line in lines) for key in ("_meta", "_prompt", "_sessionEnd")] == [1, 2, 1]
    assert "_meta" in lines[0]
    assert "_sessionEnd" in lines[-1]
    sandbox.run("write a.txt 3")  # a new sandbox, a new log
    assert sandbox.get_session_tag() != first_tag
    assert sandbox.log_path != first_log
    sandbox.kill()
    sandbox.close()
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_d14_single_files_and_globs_without_restoring(storage: StorageConfig, tmp_path: Path) -> None:
    with Sandbox("claude", storage=storage) as sandbox:
        for name in ("a.txt", "b.txt", "c.md"):
            sandbox.run(f"write {name} {name}")
        last = sandbox.run("write d.txt d").checkpoint
    out = tmp_path / "out"
    assert download_files(storage, last.id, "workspace/a.txt", out) == ("workspace/a.txt",)
    assert sorted(download_files(storage, "latest", ["workspace/*.txt"], out, overwrite=True)) == [
        "workspace/a.txt", "workspace/b.txt", "workspace/d.txt",
    ]  # fmt: skip
    assert (out / "workspace" / "b.txt").read_text() == "b.txt"
    with pytest.raises(NotFound):
        download_files(storage, last.id, "workspace/none", out)


def test_profiles_can_be_added(folder: StorageConfig) -> None:
    register(find_profile("claude").__class__(name="shouter", command=("echo",), settings=(".shouter",)))
    with Sandbox("shouter", storage=folder) as sandbox:
        assert sandbox.run("hello").checkpoint.agent_type == "shouter"
