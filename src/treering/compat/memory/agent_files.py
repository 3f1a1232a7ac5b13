"""The agent files of CianaParrot: who the agent is, what it can do, and what it knows about its user.

``IDENTITY.md``, ``AGENT.md`` and ``MEMORY.md`` are edited by a person and loaded whole, in this order,
whenever a context is built. The first two are created from templates if they are missing.
``skills/<name>/SKILL.md`` are listed by name and description; the text of a skill is read on demand.

``MEMORY.md`` is private, so `protect` keeps it out of git. If git tracks the file, it gets the skip-worktree
bit, which every clone has to set again; if not, it is added to ``.git/info/exclude``. Neither changes a file
that others see. **Invariant:** `protect` makes git ignore this one file only, and `check_protection` changes
nothing.
"""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from treering.errors import InvalidInput, NotFound, TreeringError
from treering.memory.documents import MemoryDocument
from treering.memory.markdown import MarkdownFile, MarkdownFolder, MemoryFileWarning, read_markdown

ProtectionState = Literal["skip-worktree", "ignored", "not in git", "unprotected"]


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """Whether git would commit a private file."""

    path: str
    state: ProtectionState
    detail: str

    @property
    def ok(self) -> bool:
        """Whether its changes cannot be committed by accident."""
        return self.state != "unprotected"


def check_protection(path: str | Path) -> Protection:
    """Return whether git would commit the file."""
    file = Path(path).expanduser().absolute()
    if not file.parent.is_dir() or _git(file, "rev-parse", "--is-inside-work-tree") != "true":
        return Protection(
            path=str(path), state="not in git", detail="the file is not inside a git repository"
        )
    listed = _git(file, "ls-files", "-v", "--", _name(file))
    if listed:
        if listed[0] in "Ss":
            return Protection(path=str(path), state="skip-worktree", detail="git ignores changes of the file")
        return Protection(
            path=str(path),
            state="unprotected",
            detail="git tracks the file and would commit changes; run: treering memory protect",
        )
    if _git(file, "check-ignore", "-q", "--no-index", "--", _name(file)) is not None:
        return Protection(path=str(path), state="ignored", detail="git ignores the file")
    return Protection(
        path=str(path),
        state="unprotected",
        detail="git add . would add the file; run: treering memory protect",
    )


def protect(path: str | Path) -> Protection:
    """Keep the file out of commits, and return how. Idempotent."""
    file = Path(path).expanduser().absolute()
    now = check_protection(path)
    if now.state != "unprotected":
        return now
    if _git(file, "ls-files", "--", _name(file)):
        if _git(file, "update-index", "--skip-worktree", "--", _name(file)) is None:
            raise TreeringError(
                f"git could not set skip-worktree on {path}; check for a locked index and try again"
            )
    else:
        _exclude(file)
    after = check_protection(path)
    if not after.ok:
        raise TreeringError(
            f"{path} is still not protected: {after.detail}; check for a .gitignore that includes it again"
        )
    return after


def _exclude(file: Path) -> None:
    top = _git(file, "rev-parse", "--show-toplevel")
    exclude_path = _git(file, "rev-parse", "--git-path", "info/exclude")
    if top is None or exclude_path is None:
        raise TreeringError(f"git does not find the repository of {file}; run git status there")
    exclude = file.parent / exclude_path
    exclude.parent.mkdir(parents=True, exist_ok=True)
    pattern = "/" + (file.parent.resolve() / file.name).relative_to(Path(top).resolve()).as_posix()
    escaped = "".join(f"\\{each}" if each in "*?[\\" else each for each in pattern)
    before = exclude.read_text(encoding="utf-8") if exclude.exists() else ""
    newline = "" if not before or before.endswith("\n") else "\n"
    with exclude.open("a", encoding="utf-8") as out:
        out.write(f"{newline}{escaped}\n")


def _name(file: Path) -> str:
    if "\n" in file.name:
        raise InvalidInput(f"{file.name!r} is not a usable name for a memory file; rename it")
    return f":(literal){file.name}"


def _git(file: Path, *arguments: str) -> str | None:
    """Run git in the folder of the file; return its output, or ``None`` if it failed."""
    named = [each.removeprefix(":(literal)") if arguments[0] != "ls-files" else each for each in arguments]
    try:
        done = subprocess.run(  # noqa: S603 - arguments are built here, never a shell line
            ["git", "-C", str(file.parent), *named],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None


ORDER: Final = ("IDENTITY", "AGENT", "MEMORY")
SKILLS: Final = "skills"

_TEMPLATES: Final = {
    "IDENTITY": """\
# Identity

Who the agent is: its name, how it speaks, what it cares about.

- Name: (give it one)
- Tone: friendly, brief, honest about what it does not know
""",
    "AGENT": """\
# Agent

What the agent can do and how it works: its tools, its rules, where it stores things.

- Ask before anything that cannot be undone.
- Keep lasting facts about the user in MEMORY.md.
""",
}


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions that an agent reads when it needs them."""

    name: str
    description: str
    path: str


class AgentFiles:
    """The files of one agent. Pass it to `create_agent_memory_middleware` like any other store."""

    order = (*ORDER, SKILLS)

    def __init__(self, root_dir: str | Path) -> None:
        self._folder = MarkdownFolder(Path(root_dir))
        self._root = self._folder.root

    @property
    def root_dir(self) -> Path:
        """The folder."""
        return self._root

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """Tools for the agent."""
        return [self.load_skill]

    def ensure(self) -> list[str]:
        """Create the missing templates and return their names. Existing files are never touched."""
        created: list[str] = []
        with self._folder.locked():
            for name, text in _TEMPLATES.items():
                path = f"{name}.md"
                if not (self._root / path).exists():
                    self._folder.write(path, text.encode())
                    created.append(path)
        return created

    def query(self) -> list[MemoryDocument]:
        """Return the existing files as documents to load, followed by the list of skills."""
        found = [self._read(name) for name in ORDER if (self._root / f"{name}.md").is_file()]
        skills = self.skills()
        if skills:
            lines = [f"- {skill.name}: {skill.description}" for skill in skills]
            text = "Skills; call load_skill(name) before using one:\n" + "\n".join(lines)
            found.append(MemoryDocument(id=SKILLS, content=text, metadata={"auto_load": True}))
        return found

    def skills(self) -> list[Skill]:
        """List the skills below ``skills/``, by name; one that cannot be read is skipped with a warning."""
        found: dict[str, Skill] = {}
        folder = self._root / SKILLS
        for skill in sorted(folder.glob("*/SKILL.md")) if folder.is_dir() else []:
            path = skill.relative_to(self._root).as_posix()
            try:
                if skill.is_symlink() or skill.parent.is_symlink():
                    raise InvalidInput(f"{path} is a symbolic link; copy the skill instead")
                file = read_markdown(self._root, path)
                name = str(file.document.metadata.get("name") or skill.parent.name)
                if name in found:
                    raise InvalidInput(f"{path}: {found[name].path} has the same name {name!r}")
            except InvalidInput as error:
                warnings.warn(f"{self._root}: {error}", MemoryFileWarning, stacklevel=2)
                continue
            description = str(file.document.metadata.get("description") or _first_line(file))
            found[name] = Skill(name=name, description=" ".join(description.split()), path=path)
        return [found[name] for name in sorted(found)]

    def load_skill(self, name: str) -> str:
        """Read the instructions of a skill."""
        skills = {skill.name: skill for skill in self.skills()}
        if name not in skills:
            raise NotFound(f"skill {name!r} not found. Skills: {', '.join(skills) or 'none'}")
        return read_markdown(self._root, skills[name].path).document.content

    def protect(self) -> Protection:
        """Keep MEMORY.md out of git commits."""
        return protect(self._root / "MEMORY.md")

    def protection(self) -> Protection:
        """Return whether MEMORY.md is kept out of git commits; a fresh clone has to protect it again."""
        return check_protection(self._root / "MEMORY.md")

    def _read(self, name: str) -> MemoryDocument:
        document = read_markdown(self._root, f"{name}.md").document
        metadata = {"auto_load": True} | document.metadata
        return MemoryDocument(id=name, content=document.content, metadata=metadata)


def _first_line(file: MarkdownFile) -> str:
    lines = (line.strip("# \t") for line in file.document.content.splitlines())
    return next((line for line in lines if line), "")
