"""Which recorded tests a change may affect."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from treering.errors import InvalidInput, NotFound
from treering.replays.changed import Changes, changed_files, default_base

HEAD = '{"treering":"recorded test","version":1,"name":"x",%s}\n'
FILES = {
    "src/shop/__init__.py": "",
    "src/shop/agent.py": "from . import tools\nfrom shop.models.fake import ask\nPROMPT = 'words.txt'\n",
    "src/shop/tools.py": "import json\n",
    "src/shop/models/__init__.py": "",
    "src/shop/models/fake.py": "import shop.deep\n",
    "src/shop/deep.py": "",
    "src/shop/prompt.md": "",
    "src/shop/unused.py": "",
    "src/named.py": "",
    "src/shop/entry.py": "import shop.below\n",
    "src/shop/below.py": "",
    "scripts/nightly.py": "",
    "src/other.py": "",
    "words.txt": "",
    "README.md": "",
    "pyproject.toml": "",
    "requirements-dev.txt": "",
    "tests/helpers.py": "",
    "tests/data.json": "",
    "tests/unit/conftest.py": "import helpers\n",
    "tests/unit/test_refund.py": "from shop.agent import ask\nRUN = 'refund', 'named:agent', 'night'\n",
    "tests/unit/test_broken.py": "def (\n",
    "tests/recordings/refund.jsonl": HEAD % '"entry":"shop.entry:answer"',
    "tests/recordings/night.jsonl": HEAD
    % '"entry":"command","arguments":{"command":["python","scripts/nightly.py","x\\u0000"]}',
    "tests/recordings/another.jsonl": HEAD % '"entry":"shop.unused:answer"',
}


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("project").resolve()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.mark.parametrize(
    "file, affected",
    [
        ("tests/unit/test_refund.py", True),
        ("src/shop/agent.py", True),
        ("src/shop/tools.py", True),
        ("src/shop/deep.py", True),
        ("src/shop/__init__.py", True),
        ("src/shop/models/fake.py", True),
        ("src/shop/prompt.md", True),
        ("src/shop/templates/mail.txt", True),
        ("src/named.py", True),
        ("src/shop/entry.py", True),
        ("src/shop/below.py", True),
        ("scripts/nightly.py", True),
        ("words.txt", True),
        ("tests/unit/conftest.py", True),
        ("tests/conftest.py", True),
        ("tests/helpers.py", True),
        ("tests/recordings/refund.jsonl", True),
        ("pyproject.toml", True),
        ("requirements-dev.txt", True),
        ("uv.lock", True),
        ("src/shop/unused.py", False),
        ("src/other.py", False),
        ("README.md", False),
        ("tests/unit/test_broken.py", False),
        ("tests/recordings/another.jsonl", False),
    ],
)
def test_a_test_is_affected_by_what_it_imports_reads_and_replays(made, file, affected) -> None:
    if file == "tests/conftest.py":
        (made / file).write_text("")
    why = Changes(made, [made / file], path=[made / "tests"]).affect(made / "tests/unit/test_refund.py")
    assert why == (file if affected else None)


def test_what_differs_is_what_the_branch_changed_and_what_is_not_committed(made, tmp_path) -> None:
    project = tmp_path / "project"
    git(tmp_path, "clone", "-q", str(made), str(project))
    project = project.resolve()
    git(project, "checkout", "-q", "-b", "change")
    (project / "committed ä.txt").write_text("")
    git(project, "add", "-A")
    git(project, "mv", "README.md", "MOVED.md")
    git(project, "commit", "-q", "-m", "two")
    (project / "src/other.py").write_text("X = 1\n")
    (project / "new.txt").write_text("")
    git(project, "checkout", "-q", "-b", "onwards", "main")
    git(project, "commit", "-q", "--allow-empty", "-m", "three")
    git(project, "checkout", "-q", "change")
    found = {each.relative_to(project).as_posix() for each in changed_files(project / "src", "onwards")}
    assert found == {"committed ä.txt", "README.md", "MOVED.md", "src/other.py", "new.txt"}


def test_the_base_is_the_target_of_the_pull_request_or_the_main_branch(made, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    assert default_base(made) == "main"
    git(tmp_path, "clone", "-q", str(made), "cloned")
    assert default_base(tmp_path / "cloned") == "origin/HEAD"
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    assert default_base(tmp_path / "cloned") == "origin/main"


def test_a_missing_commit_and_a_missing_repository_are_named(made, tmp_path) -> None:
    with pytest.raises(NotFound, match=r"no commit 'nothing'.*fetch-depth: 0"):
        changed_files(made, "nothing")
    with pytest.raises(InvalidInput, match="is no git repository"):
        changed_files(tmp_path, "main")
