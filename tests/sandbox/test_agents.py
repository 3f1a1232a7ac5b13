"""The real CLIs of Claude Code and Codex in sandboxes, against a scripted model on this machine.

A session is made, kept, restored elsewhere and resumed. Claude Code comes with the SDK, Codex from npm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import claude_agent_sdk
import pytest

import treering
from tests.importers.clis import AGAIN, CODEX_MODEL, PROMPT, scripted_api
from tests.servers.npm import NODE
from treering.sandbox import Sandbox, StorageConfig, list_checkpoints, open_storage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
CODEX_VERSION = "0.166.0"
SAYS = "The note is there, and says: ring."


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model for both, and an environment without anybody else's settings for them."""
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC", "CLAUDE", "OPENAI", "CODEX")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with scripted_api(tmp_path / "nothing") as url:
        yield url


def on_path(folder: Path, name: str, cli: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).symlink_to(cli)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.skipif(not CLAUDE.exists(), reason="the SDK came without its CLI")
def test_claude_code_is_saved_restored_and_resumed(api: str, tmp_path: Path) -> None:
    config = StorageConfig(tmp_path / "bucket")
    user = tmp_path / "user" / ".claude"
    user.mkdir(parents=True)
    (user / ".credentials.json").write_text('{"canary": "canary-91c7"}')
    options = {
        "storage": config,
        "model": "claude-sonnet-4-5",
        "arguments": ("--allowedTools=Bash,Read,Task,Agent",),
        "env": {
            "PATH": on_path(tmp_path / "bin", "claude", CLAUDE),
            "ANTHROPIC_BASE_URL": api,
            "ANTHROPIC_API_KEY": "canary-key-0b1e",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    }
    with treering.open(tmp_path / "store") as store:
        with Sandbox("claude", store=store, **options) as sandbox:
            first = sandbox.run(PROMPT, checkpoint_comment="first")
            assert first.exit_code == 0, first.output[-2000:]
            assert first.checkpoint is not None, first.warning
            assert (sandbox.workspace / "note.txt").read_text() == "ring\n"
            session = json.loads(first.output.splitlines()[-1])["session_id"]
            shown = [
                each.path for each in sandbox._checkpoints.require().ls(first.checkpoint, recursive=True)
            ]
            log = sandbox.log_path
        assert "workspace/note.txt" in shown
        assert [each for each in shown if each.endswith(f"{session}.jsonl")]
        assert not [each for each in shown if "credentials" in each or each.endswith(".claude.json")]
        labels = [each.label for each in store.timeline.each_of_run(first.run_id)]
        assert "user message" in labels
        total = store.cost.of_run(first.run_id, by="model").total
        assert total.tokens > 5000  # what the scripted model counts, each token once
        assert total.amount("USD") > 0
        lines = log.read_bytes().splitlines()
        assert all(line in lines for line in first.output.encode().splitlines())

        with Sandbox("claude", store=store, **options) as elsewhere:
            second = elsewhere.run(AGAIN, from_=first.checkpoint.id)
            assert second.exit_code == 0, second.output[-2000:]
            assert second.text == "There is nothing more to do."
            assert json.loads(second.output.splitlines()[-1])["session_id"] == session
            (kept,) = elsewhere.home.glob(f".claude/projects/*/{session}.jsonl")
            said = kept.read_text()
            assert PROMPT in said  # one conversation
            assert AGAIN in said
            assert (elsewhere.workspace / "note.txt").read_text() == "ring\n"
    assert [each.parent_id for each in list_checkpoints(config)] == [first.checkpoint.id, None]
    assert_absent(tmp_path, config, b"canary-91c7", b"canary-key-0b1e")


def test_codex_is_saved_restored_and_resumed(
    api: str, tmp_path: Path, npm: Callable[[str, str], Path]
) -> None:
    cli = npm("@openai/codex", CODEX_VERSION) / ".bin" / "codex"
    config = StorageConfig(tmp_path / "bucket")
    user = tmp_path / "user" / ".codex"
    user.mkdir(parents=True)
    (user / "auth.json").write_text('{"OPENAI_API_KEY": "canary-91c7"}')
    provider = f'{{name="scripted", base_url="{api}/v1", wire_api="responses", env_key="SCRIPTED_KEY"}}'
    options = {
        "storage": config,
        "model": CODEX_MODEL,
        "arguments": (
            "-c", f"model_providers.scripted={provider}", "-c", "model_provider=scripted",
            "--dangerously-bypass-approvals-and-sandbox",
        ),
        "env": {
            "PATH": on_path(tmp_path / "bin", "codex", cli.resolve()) + f"{os.pathsep}{NODE.parent}",
            "SCRIPTED_KEY": "canary-key-0b1e",
        },
    }  # fmt: skip
    with Sandbox("codex", **options) as sandbox:
        first = sandbox.run(PROMPT)
        assert first.exit_code == 0, first.output[-2000:]
        assert first.text == SAYS
        assert first.checkpoint is not None, first.warning
        assert (sandbox.workspace / "note.txt").read_text() == "ring\n"
        session = json.loads(first.output.splitlines()[0])["thread_id"]
    with Sandbox("codex", **options) as elsewhere:
        second = elsewhere.run(AGAIN, from_="latest")
        assert second.exit_code == 0, second.output[-2000:]
        assert second.text == "There is nothing more to do."
        assert json.loads(second.output.splitlines()[0])["thread_id"] == session
        (kept,) = elsewhere.home.glob(f".codex/sessions/**/*{session}.jsonl")
        assert PROMPT in kept.read_text()
        assert AGAIN in kept.read_text()
    assert second.checkpoint.parent_id == first.checkpoint.id
    assert_absent(tmp_path, config, b"canary-91c7", b"canary-key-0b1e")


def assert_absent(tmp_path: Path, config: StorageConfig, *canaries: bytes) -> None:
    """Neither in any file of any checkpoint, nor anywhere in the session logs."""
    checkpoints = open_storage(config)
    count = 0
    for info in checkpoints.list():
        for each in checkpoints.ls(info, recursive=True):
            if each.kind == "file":
                count += 1
                data = checkpoints.cat(info, each.path)
                assert not [canary for canary in canaries if canary in data], each.path
    checkpoints.close()
    assert count > 3
    for log in (tmp_path / "treering-home" / "sessions").iterdir():
        assert not [canary for canary in canaries if canary in log.read_bytes()]
