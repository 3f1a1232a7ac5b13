"""CianaParrot: IDENTITY.md, AGENT.md, MEMORY.md and skills, and keeping MEMORY.md out of git."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.agent.scripted import Scripted, asking, said
from treering.agent import create_agent
from treering.compat.memory import AgentFiles, MemoryFileWarning, create_agent_memory_middleware
from treering.errors import NotFound

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def files(workspace):
    return AgentFiles(workspace)


def git(folder, *arguments):
    command = ["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_missing_templates_are_created_and_existing_files_kept(files, workspace):
    assert files.ensure() == ["IDENTITY.md", "AGENT.md"]
    (workspace / "IDENTITY.md").write_text("I am Ciana.")
    assert files.ensure() == []
    assert (workspace / "IDENTITY.md").read_text() == "I am Ciana."
    assert sorted(path.name for path in workspace.iterdir()) == ["AGENT.md", "IDENTITY.md"]


def test_the_files_are_loaded_in_order_and_edits_are_picked_up(files, workspace):
    for name in ("MEMORY", "AGENT", "IDENTITY"):
        (workspace / f"{name}.md").write_text(f"This is {name}.")
    model = Scripted(said("one"), said("two"))
    agent = create_agent(model=model, middleware=[create_agent_memory_middleware(store=files)])
    agent.generate(prompt="Hi")
    shown = model.seen[0][0]["content"]
    assert shown.index("This is IDENTITY") < shown.index("This is AGENT") < shown.index("This is MEMORY")
    (workspace / "MEMORY.md").write_text("The user likes parrots.")
    agent.generate(prompt="Hi again")
    assert "likes parrots" in model.seen[1][0]["content"]


def test_skills_are_listed_and_read_on_demand(files, workspace):
    for name, text in {
        "weather": "---\nname: forecast\ndescription: Tells the weather.\n---\nCall the weather service.",
        "plain": "# How to be plain\n\nUse short words.",
    }.items():
        (workspace / "skills" / name).mkdir(parents=True)
        (workspace / "skills" / name / "SKILL.md").write_text(text)
    (workspace / "skills" / "empty").mkdir()
    assert [(skill.name, skill.description) for skill in files.skills()] == [
        ("forecast", "Tells the weather."),
        ("plain", "How to be plain"),
    ]
    model = Scripted(asking(("1", "load_skill", {"name": "forecast"})), said("Sunny."))
    agent = create_agent(model=model, middleware=[create_agent_memory_middleware(store=files)])
    agent.generate(prompt="Weather?")
    listed = model.seen[0][0]["content"]
    assert "- forecast: Tells the weather." in listed
    assert "Call the weather service" not in listed
    assert any("Call the weather service." in str(message["content"]) for message in model.seen[1])


def test_an_unknown_or_symlinked_skill_is_rejected(files, workspace, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "SKILL.md").write_text("secret")
    (workspace / "skills").mkdir()
    (workspace / "skills" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(MemoryFileWarning, match="symbolic link"):
        assert files.skills() == []
    (workspace / "skills" / "link").unlink()
    for name in ("nothing", "../../elsewhere", ""):
        with pytest.raises(NotFound, match="Skills: none"):
            files.load_skill(name)


@needs_git
def test_a_tracked_file_gets_skip_worktree_and_a_clone_is_reported(files, workspace, tmp_path):
    git(workspace, "init", "-q")
    (workspace / "MEMORY.md").write_text("template")
    (workspace / "AGENT.md").write_text("template")
    git(workspace, "add", ".")
    git(workspace, "commit", "-qm", "template")
    assert not files.protection().ok
    assert files.protect().state == "skip-worktree"
    assert files.protect().state == "skip-worktree"
    (workspace / "MEMORY.md").write_text("my address")
    git(workspace, "add", ".")
    assert git(workspace, "status", "--porcelain") == ""
    git(tmp_path, "clone", "-q", workspace, "clone")
    clone = AgentFiles(tmp_path / "clone")
    assert clone.protection().state == "unprotected"
    assert "treering memory protect" in clone.protection().detail
    assert clone.protect().ok


@needs_git
def test_an_untracked_file_is_excluded_in_this_clone_only(workspace):
    git(workspace, "init", "-q")
    inner = workspace / "agents" / "a [1]"
    inner.mkdir(parents=True)
    own = AgentFiles(inner)
    (inner / "MEMORY.md").write_text("my address")
    (workspace / "other.md").write_text("public")
    assert own.protection().state == "unprotected"
    assert own.protect().state == "ignored"
    assert own.protect().state == "ignored"
    git(workspace, "add", ".")
    assert git(workspace, "status", "--porcelain") == "A  other.md\n"
    assert (workspace / ".git" / "info" / "exclude").read_text().count("MEMORY.md") == 1
    assert not (workspace / ".gitignore").exists()


def test_outside_git_nothing_needs_protection(files):
    assert files.protection().state == "not in git"
    assert files.protect().ok
