"""The sandbox: runs and their checkpoints, with a small scripted agent."""

from __future__ import annotations

import asyncio
import gzip
import sys
from pathlib import Path

import msgspec
import pytest

import treering
from tests.sandbox.conftest import SCRIBBLER
from treering.errors import InvalidInput, NotFound
from treering.sandbox import (
    AgentProfile,
    AsyncSandbox,
    CheckpointWarning,
    Sandbox,
    StorageConfig,
    list_checkpoints,
    open_storage,
    register,
)
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.bucket import STATE
from treering.sandbox.local import LocalProvider, environment_of
from treering.sandbox.profiles import find_profile
from treering.sandbox.storage import CheckpointMetadata


def test_a_run_leaves_a_checkpoint_and_the_next_one_is_its_child(storage: StorageConfig) -> None:
    with Sandbox(SCRIBBLER, model="m-2", storage=storage) as sandbox:
        first = sandbox.run("write report.txt Draft v1", checkpoint_comment="initial draft")
        assert first.exit_code == 0
        info = first.checkpoint
        assert info is not None
        assert (info.comment, info.parent_id, info.model) == ("initial draft", None, "m-2")
        assert (info.agent_type, info.workspace_mode) == ("scribbler", "knowledge")
        assert info.tag == sandbox.get_session_tag()
        second = sandbox.run("append report.txt  - reviewed")
        assert second.checkpoint.parent_id == info.id
        assert second.sandbox_id == first.sandbox_id
        assert sandbox.run("read report.txt").checkpoint.parent_id == second.checkpoint.id
        assert sandbox.run("asked").text.startswith("write report.txt Draft v1 | ")  # it remembers


def test_modes_make_their_folders() -> None:
    with Sandbox(SCRIBBLER) as sandbox:
        assert sorted(each.name for each in sandbox.workspace.iterdir()) == [
            "context", "output", "scripts", "temp",
        ]  # fmt: skip
    with Sandbox(SCRIBBLER, workspace_mode="swe") as sandbox:
        assert (sandbox.workspace / "repo").is_dir()
    with pytest.raises(InvalidInput, match="'knowledge' or 'swe'"):
        Sandbox(SCRIBBLER, workspace_mode="other")


def test_failed_and_background_runs_leave_none(storage: StorageConfig) -> None:
    with Sandbox(SCRIBBLER, storage=storage) as sandbox:
        failed = sandbox.run("fail")
        assert (failed.exit_code, failed.checkpoint) == (3, None)
        begun = sandbox.run("write a.txt 1", background=True)
        assert (begun.output, begun.exit_code) == ("", None)
        done = sandbox.wait()
        assert (done.exit_code, done.checkpoint) == (0, None)
        assert "done" in done.output
        assert sandbox.list_checkpoints() == []
        with pytest.raises(InvalidInput, match="background"):
            sandbox.wait()


def test_a_checkpoint_that_fails_does_not_break_the_run(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / STATE).write_bytes(gzip.compress(b'{"version": 99}'))
    with (
        treering.open(tmp_path / "store") as store,
        Sandbox(SCRIBBLER, storage=StorageConfig(tmp_path / "bucket"), store=store) as sandbox,
    ):
        with pytest.warns(CheckpointWarning, match="upgrade treering"):
            result = sandbox.run("write a.txt 1")
        assert (result.exit_code, result.checkpoint) == (0, None)
        assert "upgrade treering" in result.warning
        labels = [each.label for each in store.timeline.each_of_run(result.run_id)]
        warned = [each for each in labels if each.startswith("warning")]
        assert len(warned) == 1
        with pytest.raises(treering.errors.NewerStore):
            sandbox.checkpoint()


def test_an_explicit_checkpoint_needs_an_active_sandbox(storage: StorageConfig) -> None:
    sandbox = Sandbox(SCRIBBLER, storage=storage)
    with pytest.raises(InvalidInput, match=r"call run\(\) first"):
        sandbox.checkpoint()
    run = sandbox.run("write a.txt 1")
    (sandbox.workspace / "by-hand.txt").write_text("mine")
    info = sandbox.checkpoint(comment="before refactor")
    assert (info.comment, info.parent_id) == ("before refactor", run.checkpoint.id)
    assert info.hash != run.checkpoint.hash
    sandbox.kill()
    with pytest.raises(InvalidInput, match=r"call run\(\) first"):
        sandbox.checkpoint()
    with Sandbox(SCRIBBLER) as bare:
        bare.run("write a.txt 1")
        with pytest.raises(InvalidInput, match="no storage"):
            bare.checkpoint()
        with pytest.raises(InvalidInput, match="no storage"):
            bare.list_checkpoints()
        assert bare.run("write a.txt 1").warning is None


def test_a_run_from_a_checkpoint_is_in_a_fresh_sandbox(storage: StorageConfig) -> None:
    with Sandbox(SCRIBBLER, storage=storage) as sandbox:
        one = sandbox.run("write report.txt Draft v1")
        two = sandbox.run("append report.txt  - reviewed")
        back = sandbox.run("read report.txt", from_=one.checkpoint.id)
        assert back.text == "Draft v1"
        assert back.sandbox_id != one.sandbox_id
        assert back.checkpoint.parent_id == one.checkpoint.id
        assert back.checkpoint.tag != two.checkpoint.tag
    with Sandbox(SCRIBBLER, model="another", storage=storage) as other:
        latest = other.run("asked", from_="latest")
        assert latest.text == "write report.txt Draft v1 | read report.txt"  # its sessions came along


def test_what_does_not_fit_is_refused_before_any_download(storage: StorageConfig) -> None:
    with Sandbox(SCRIBBLER, storage=storage) as sandbox:
        made = sandbox.run("write a.txt 1").checkpoint
        session = sandbox.get_session()
        with (
            Sandbox("program", storage=storage) as other,
            pytest.raises(InvalidInput, match="agent='scribbler'"),
        ):
            other.execute(["true"], from_=made.id)
        with (
            Sandbox(SCRIBBLER, workspace_mode="swe", storage=storage) as other,
            pytest.raises(InvalidInput, match="workspace_mode='knowledge'"),
        ):
            other.run("read a.txt", from_=made.id)
        unreachable = StorageConfig("s3://bucket/p", endpoint="http://127.0.0.1:1")
        attached = Sandbox(SCRIBBLER, session=session, storage=unreachable)
        with pytest.raises(InvalidInput, match="cannot be combined with session"):
            attached.run("read a.txt", from_=made.id)
        attached.close()
    with Sandbox(SCRIBBLER, storage=StorageConfig(storage.url / "empty")) as other:
        with pytest.raises(NotFound, match="no checkpoint yet"):
            other.run("read a.txt", from_="latest")
        assert other.get_session() is None


def test_a_workspace_of_the_users_stays(tmp_path: Path, storage: StorageConfig) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "own.txt").write_text("mine")
    with Sandbox(SCRIBBLER, storage=storage, workspace=mine) as sandbox:
        one = sandbox.run("write report.txt Draft v1")
        assert sorted(each.name for each in mine.iterdir()) == ["own.txt", "report.txt"]
    assert (mine / "report.txt").read_text() == "Draft v1"
    (mine / "own.txt").write_text("changed since")
    with Sandbox(SCRIBBLER, storage=storage, workspace=mine) as sandbox:
        sandbox.run("asked", from_=one.checkpoint.id)
        assert (mine / "own.txt").read_text() == "mine"
        before = sandbox.list_checkpoints()[1]
        assert before.comment == f"before the restore of {one.checkpoint.id}"
        sandbox.download(before.id, "workspace/own.txt", tmp_path / "out")
    assert (tmp_path / "out" / "workspace" / "own.txt").read_text() == "changed since"


def test_exclusions_and_patterns_of_the_users(storage: StorageConfig) -> None:
    with Sandbox(SCRIBBLER, storage=storage, exclude=["*.log"]) as sandbox:
        work = sandbox.workspace
        for name in (
            "node_modules/x.js",
            "__pycache__/a.pyc",
            ".venv/b",
            "temp/c",
            "keep/d.txt",
            "e.log",
            "f.big",
        ):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text("x")
        (work / ".treeringignore").write_text("*.big\n")
        settings = sandbox.home / ".scribbler"
        for name in (
            "node_modules/x.js",
            "plugins/p/__pycache__/a.pyc",
            ".cache/b",
            "temp/kept",
            "venv/c",
            "d.pyc",
        ):
            (settings / name).parent.mkdir(parents=True, exist_ok=True)
            (settings / name).write_text("x")
        info = sandbox.run("write report.txt x").checkpoint
        kept = [
            each.path
            for each in sandbox._checkpoints.require().ls(info, recursive=True)
            if each.kind == "file"
        ]
    assert kept == [
        ".scribbler/sessions/one.jsonl",
        ".scribbler/temp/kept",
        "workspace/.treeringignore",
        "workspace/keep/d.txt",
        "workspace/report.txt",
    ]


def test_the_environment_has_a_home_of_its_own(monkeypatch) -> None:
    monkeypatch.setenv("TREERING_API_KEY", "tr-secret")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    monkeypatch.setenv("SOME_API_KEY", "for the agent")
    with Sandbox(SCRIBBLER, env={"MORE": "more"}, pass_env=["SOME_*", "TREERING_*"]) as sandbox:
        seen = {name: sandbox.run(f"env {name}").output for name in ("HOME", "XDG_CONFIG_HOME", "MORE")}
        home = str(sandbox.home)
        assert home in seen["HOME"]
        assert f"{home}/.config" in seen["XDG_CONFIG_HOME"]
        assert "more" in seen["MORE"]
        assert "(not set)" in sandbox.run("env TREERING_API_KEY").output
        assert "for the agent" in sandbox.run("env SOME_API_KEY").output


def test_keys_of_the_shell_stay_out_of_the_sandbox_and_its_checkpoints(
    monkeypatch, tmp_path: Path, storage: StorageConfig
) -> None:
    for name in (
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "DB_PASSWORD",
    ):
        monkeypatch.setenv(name, f"canary of {name}")
    monkeypatch.setenv("LC_TIME", "de_DE.UTF-8")
    with Sandbox("program", storage=storage) as sandbox:
        result = sandbox.execute(["sh", "-c", "env > env.txt; cat env.txt"])
        assert "canary" not in result.output
        assert {"PATH", "HOME", "LC_TIME"} <= {line.partition("=")[0] for line in result.output.splitlines()}
        assert result.checkpoint is not None
        sandbox.download(result.checkpoint.id, "workspace/env.txt", tmp_path / "kept")
        assert "canary" not in (tmp_path / "kept" / "workspace" / "env.txt").read_text()


@pytest.mark.parametrize(
    "agent, given",
    [
        ("claude", {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"}),
        ("codex", {"OPENAI_API_KEY"}),
        ("gemini", {"GEMINI_API_KEY"}),
        ("qwen", {"OPENAI_API_KEY", "DASHSCOPE_API_KEY"}),
        ("kimi", {"MOONSHOT_API_KEY"}),
        ("opencode", {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"}),
        ("program", set()),
    ],
)
def test_each_agent_gets_its_own_keys_and_no_others(agent: str, given: set[str]) -> None:
    keys = {
        *("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "GEMINI_API_KEY", "DASHSCOPE_API_KEY"),
        *("MOONSHOT_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "TREERING_API_KEY", "CLAUDECODE"),
    }
    outer = {"PATH": "/bin", **dict.fromkeys(keys, "value")}
    profile = find_profile(agent)
    at = LocalProvider().create(profile, "knowledge", None)
    try:
        assert keys & set(environment_of(at, profile, {}, outer)) == given
        more = environment_of(at, profile, {"GITHUB_TOKEN": "mine"}, outer, passed=["AWS_*"])
        assert keys & set(more) == given | {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"}
        assert more["GITHUB_TOKEN"] == "mine"
        everything = environment_of(at, profile, {}, outer, passed=["*"])
        assert keys - set(everything) == {"TREERING_API_KEY", *profile.unset} & keys
    finally:
        at.remove()


def test_a_checkpoint_with_a_secret_is_taken_and_says_so(storage: StorageConfig) -> None:
    key = "ghp_" + "q7Zx1Lw9Rt4Vb6Ny8Mk2" + "Jd5Hs3Gf0Pc7Xe1T"
    with Sandbox("program", storage=storage, env={"GITHUB_TOKEN": key}) as sandbox:
        result = sandbox.execute(["sh", "-c", "env | grep TOKEN > env.txt"])
        assert result.checkpoint is not None
        (found,) = result.checkpoint.secrets
        assert (found.path, found.rule, found.line) == ("workspace/env.txt", "github-token", 1)
        assert "workspace/env.txt:1: github-token" in (result.warning or "")
        assert key not in str(result.checkpoint) + str(result.warning)
        assert sandbox.list_checkpoints()[0].secrets == result.checkpoint.secrets


def test_a_credential_can_be_read_but_not_changed_and_is_not_saved(
    tmp_path: Path, storage: StorageConfig
) -> None:
    secret = tmp_path / "user" / ".scribbler" / "auth.json"
    secret.parent.mkdir(parents=True)
    secret.write_text("canary-5f1d")
    with Sandbox(SCRIBBLER, storage=storage, env={"ALSO": "canary-77aa"}) as sandbox:
        assert sandbox.run("read ../.scribbler/auth.json").text == "canary-5f1d"
        assert sandbox.run("write ../.scribbler/auth.json ruined").exit_code != 0
        (sandbox.home / ".scribbler" / "auth.json").unlink()
        (sandbox.home / ".scribbler" / "auth.json").write_text("canary-copied")  # as an agent may
        (sandbox.workspace / "id_rsa").write_text("canary-key")
        (sandbox.workspace / "a.txt").write_text("mine")
        info = sandbox.checkpoint()
        assert "auth" not in "".join(
            each.path for each in sandbox._checkpoints.require().ls(info, recursive=True)
        )
        contents = [
            sandbox._checkpoints.require().cat(info, each.path)
            for each in sandbox._checkpoints.require().ls(info, recursive=True)
            if each.kind == "file" and "sessions" not in each.path
        ]
        assert contents == [b"mine"]
    assert secret.read_text() == "canary-5f1d"
    stored = [each.read_bytes() for each in (tmp_path / "bucket").rglob("*") if each.is_file()]
    assert not any(b"canary-copied" in each or b"canary-key" in each for each in stored)


def test_runs_are_in_the_timeline_with_their_tokens(tmp_path: Path) -> None:
    with treering.open(tmp_path / "store") as store, Sandbox(SCRIBBLER, store=store) as sandbox:
        result = sandbox.run("write report.txt Draft v1")
        assert result.checkpoint is not None  # in the store itself
        events = list(store.timeline.each_of_run(result.run_id))
        assert [each.label for each in events] == ["user message", "assistant message"]
        assert events[1].meta["tokens"] == 15
        info = store.runs.load(result.run_id)
        assert (info.agent, info.status, info.tags) == ("scribbler", "ok", (sandbox.get_session_tag(),))
        assert info.meta["sandbox_id"] == result.sandbox_id
        bad = sandbox.run("fail")
        assert store.runs.load(bad.run_id).status == "error"
        plain = sandbox.execute(["sh", "-c", "echo hello; exit 0"])
        assert plain.output == "hello\n"
        assert store.verify().ok


def test_a_missing_program_is_named(storage: StorageConfig) -> None:
    with Sandbox("program", storage=storage) as sandbox:
        with pytest.raises(NotFound, match="program 'no-such-agent' not found"):
            sandbox.execute(["no-such-agent"])
        with pytest.raises(InvalidInput, match="has no command"):
            sandbox.run("hello")
        assert sandbox.execute(["sh", "-c", "echo hi > a.txt"]).checkpoint.files == 1


def test_profiles_are_a_table_that_users_extend(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="known are claude, codex, gemini, qwen, kimi, opencode"):
        Sandbox("nobody")
    register(AgentProfile(name="mine", command=("echo",)))
    with Sandbox("mine") as sandbox:
        assert sandbox.run("hello").output == "hello\n"
    home = tmp_path / "treering-home"
    home.mkdir(exist_ok=True)
    (home / "agents.toml").write_text('[theirs]\ncommand = ["echo", "said"]\nsettings = [".theirs"]\n')
    with Sandbox("theirs") as sandbox:
        assert sandbox.run("hello").output == "said hello\n"
        assert (sandbox.home / ".theirs").is_dir()
    (home / "agents.toml").write_text("[theirs]\nno_such_field = 1\n")
    with pytest.raises(InvalidInput, match="no_such_field"):
        Sandbox("theirs")


def test_a_process_left_behind_is_not_waited_for(storage: StorageConfig) -> None:
    with Sandbox("program", storage=storage) as sandbox:
        result = sandbox.execute(["sh", "-c", "sleep 100 & echo through"])
        assert (result.exit_code, result.output) == (0, "through\n")


def test_the_async_interface(storage: StorageConfig) -> None:
    async def main() -> None:
        async with AsyncSandbox(SCRIBBLER, storage=storage) as sandbox:
            one = await sandbox.run("write report.txt Draft v1", checkpoint_comment="one")
            two = await sandbox.run("append report.txt  - reviewed")
            assert two.checkpoint.parent_id == one.checkpoint.id
            assert [each.id for each in await sandbox.list_checkpoints()] == [
                two.checkpoint.id,
                one.checkpoint.id,
            ]
            await sandbox.run("sleep 60", background=True)
            await sandbox.pause()
            await sandbox.resume()
            await sandbox.kill()
            back = await sandbox.run("read report.txt", from_=one.checkpoint.id)
            assert back.text == "Draft v1"
            assert (await sandbox.checkpoint(comment="x")).parent_id == back.checkpoint.id
            assert sandbox.get_session_tag().startswith("treering-")

    asyncio.run(main())
    assert len(list_checkpoints(storage)) == 4


def test_a_hostile_checkpoint_does_not_lead_out_of_the_home(tmp_path: Path, storage: StorageConfig) -> None:
    """Its settings are links to the user's own: neither followed, nor anything removed behind them."""
    real = tmp_path / "user" / ".scribbler"
    real.mkdir(parents=True)
    (real / "auth.json").write_text("the user's")
    (real / "state_1.db").write_text("also the user's")
    (tmp_path / "evil" / ".scribbler" / "deep").mkdir(parents=True)
    evil = tmp_path / "evil"
    (evil / ".scribbler" / "up").symlink_to("../../user")
    (evil / ".scribbler" / "deep" / "whole").symlink_to(real)
    (evil / ".scribbler" / "fine").symlink_to("deep")
    (evil / "workspace").mkdir()
    checkpoints = open_storage(storage)
    folders = SandboxFolders(home=evil, workspace=evil / "workspace", settings=(".scribbler",))
    label = CheckpointMetadata(tag="evil", agent_type="scribbler", workspace_mode="knowledge")
    bad = checkpoints.save(folders, label)
    profile = msgspec.structs.replace(SCRIBBLER, rebuilt=(".scribbler/**/state_*.db",))
    with Sandbox(profile, storage=storage) as sandbox:
        sandbox.execute(["true"], from_=bad.id)
        links = sorted(each.name for each in (sandbox.home / ".scribbler").rglob("*") if each.is_symlink())
        assert links == ["auth.json", "fine"]
        session = sandbox.get_session()
        # And when an agent itself puts such a link there
        sandbox.close()
        home = tmp_path / "treering-home" / "sandboxes" / session / "home"
        (home / ".scribbler").rename(home / "away")
        (home / ".scribbler").symlink_to(real)
        again = Sandbox(profile, storage=storage, session=session)
        again.execute(["true"])
        again.kill()
        again.close()
    checkpoints.close()
    assert (real / "auth.json").read_text() == "the user's"
    assert not (real / "auth.json").is_symlink()
    assert (real / "state_1.db").exists()


def test_a_prompt_is_not_taken_for_an_option() -> None:
    for agent in ("claude", "codex"):
        line = find_profile(agent).command_line("--dangerous", model=None, resume=True, arguments=("-c", "x"))
        assert line[-2:] == ["--", "--dangerous"]


def test_a_string_where_a_list_belongs_is_refused() -> None:
    """It would be taken letter by letter, and ``*`` excludes everything."""
    for wrong, message in (
        ({"exclude": "*.log"}, "single string"),
        ({"include": "x"}, "single string"),
        ({"session_tag_prefix": "a/b"}, "session_tag_prefix"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Sandbox("program", **wrong)
    with Sandbox("program") as sandbox:
        for command in ([], "echo hi"):
            with pytest.raises(InvalidInput, match="not a list"):
                sandbox.execute(command)


def test_a_sandbox_belongs_to_the_run_that_uses_it_and_ends_when_that_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treering.sandbox.run.CANCEL_SECONDS", 0.05)
    inner = "import treering; treering.open().run('inner').start().end()"
    waits = f'"{sys.executable}" -c "{inner}" && echo ready; sleep 600'
    with treering.open(tmp_path / "store") as store, treering.open(tmp_path / "store") as another:

        def cancel(_source: str, line: bytes) -> None:
            assert line == b"ready\n"
            store.flush()
            another.runs.cancel(outer.id, by="ann")

        with (
            store.run("boss") as outer,
            Sandbox(
                SCRIBBLER, store=another, on_output=cancel, env={"TREERING_URL": str(tmp_path / "store")}
            ) as sandbox,
        ):
            result = sandbox.execute(["sh", "-c", waits])
            assert result.exit_code != 0
        store.flush()
        tree = store.runs.tree(outer.id)
        (child,) = tree.children
        assert (child.run.id, child.status, child.is_cancelled) == (result.run_id, "cancelled", True)
        assert child.to_dict()["sandbox"] == result.sandbox_id
        assert [each.run.agent for each in child.children] == ["inner"]
