"""An agent's own files, as seed 004 has them: who it is, what it can do, what it knows about its user.

``IDENTITY.md``, ``AGENT.md`` and ``MEMORY.md`` are loaded in this order, whole, whenever they are asked for;
a person edits them. The first two are made from a template when they are missing, the third is private (see
`keep_private`). ``skills/<name>/SKILL.md`` are listed by name and description; the text of a
skill is read only when it is wanted.
"""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from treering.compat.memory.stores import MemoryFileWarning
from treering.core.clock import SystemClock
from treering.errors import InvalidInput, NotFound, TreeringError
from treering.files import DRAFTS, Drafts, open_folder, translate_os_errors
from treering.memory.documents import MemoryDocument
from treering.memory.markdown import MarkdownFile, read_file

# -----------------------------------------------------------------------------------------------------------
# Keeping a private file out of git: ``MEMORY.md`` holds what a person told the agent.
#
# A file that git tracks gets the skip-worktree bit, which every clone has to set anew; one that it does not
# track is named in ``.git/info/exclude``. Neither changes a file that others see. **Invariant:** `protect`
# only ever makes git ignore the one file, and `protection_of` changes nothing.


State = Literal["skip-worktree", "ignored", "not in git", "unprotected"]


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """How a private file stands with git."""

    path: str
    state: State
    detail: str

    @property
    def ok(self) -> bool:
        """A commit cannot take its changes along by accident."""
        return self.state != "unprotected"


def protection_of(path: str | Path) -> Protection:
    """How the file stands; for ``treering doctor`` after a clone."""
    file = Path(path).expanduser().absolute()
    if not file.parent.is_dir() or _git(file, "rev-parse", "--is-inside-work-tree") != "true":
        return Protection(path=str(path), state="not in git", detail="no repository is around it")
    listed = _git(file, "ls-files", "-v", "--", _name(file))
    if listed:
        if listed[0] in "Ss":
            return Protection(
                path=str(path), state="skip-worktree", detail="git does not look at its changes"
            )
        return Protection(
            path=str(path),
            state="unprotected",
            detail="git tracks it and would commit its changes; run treering memory protect",
        )
    if _git(file, "check-ignore", "-q", "--no-index", "--", _name(file)) is not None:
        return Protection(path=str(path), state="ignored", detail="git leaves it alone")
    return Protection(
        path=str(path),
        state="unprotected",
        detail="git add . would take it along; run treering memory protect",
    )


def protect(path: str | Path) -> Protection:
    """Keep the file's changes out of commits, and say how. Doing it again changes nothing."""
    file = Path(path).expanduser().absolute()
    now = protection_of(path)
    if now.state != "unprotected":
        return now
    if _git(file, "ls-files", "--", _name(file)):
        if _git(file, "update-index", "--skip-worktree", "--", _name(file)) is None:
            raise TreeringError(f"git did not set skip-worktree on {path}; is its index locked? try again")
    else:
        _exclude(file)
    after = protection_of(path)
    if not after.ok:
        raise TreeringError(f"{path} is still not protected: {after.detail}; a .gitignore may bring it back")
    return after


def _exclude(file: Path) -> None:
    top = _git(file, "rev-parse", "--show-toplevel")
    place = _git(file, "rev-parse", "--git-path", "info/exclude")
    if top is None or place is None:
        raise TreeringError(f"git does not say where the repository of {file} is; run git status there")
    exclude = file.parent / place
    exclude.parent.mkdir(parents=True, exist_ok=True)
    pattern = "/" + (file.parent.resolve() / file.name).relative_to(Path(top).resolve()).as_posix()
    escaped = "".join(f"\\{each}" if each in "*?[\\" else each for each in pattern)
    before = exclude.read_text(encoding="utf-8") if exclude.exists() else ""
    gap = "" if not before or before.endswith("\n") else "\n"
    with exclude.open("a", encoding="utf-8") as out:
        out.write(f"{gap}{escaped}\n")


def _name(file: Path) -> str:
    if "\n" in file.name:
        raise InvalidInput(f"{file.name!r} is not a name for a memory file; rename it")
    return f":(literal){file.name}"


def _git(file: Path, *arguments: str) -> str | None:
    """What git says, run beside the file; ``None`` when it says no."""
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


# -----------------------------------------------------------------------------------------------------------

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

What the agent can do and how it works: its tools, its rules, where it keeps what.

- Ask before anything that cannot be undone.
- Keep lasting facts about the user in MEMORY.md.
""",
}


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent can read up on when it needs to."""

    name: str
    description: str
    path: str


class AgentFiles:
    """The files of one agent. Give it to `create_agent_memory_middleware` like any other store."""

    order = (*ORDER, SKILLS)

    def __init__(self, root_dir: str | Path) -> None:
        self._root = Path(root_dir).expanduser().absolute()

    @property
    def root_dir(self) -> Path:
        """Where the files are."""
        return self._root

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """Tools for an agent: reading a skill."""
        return [self.load_skill]

    def ensure(self) -> list[str]:
        """Make the templates that are missing; gives their names. A file that is there is never touched."""
        made: list[str] = []
        with translate_os_errors(str(self._root), writing=True):
            for name, text in _TEMPLATES.items():
                file = f"{name}.md"
                if (self._root / file).exists():
                    continue
                with (
                    open_folder(self._root, make=True) as folder,
                    Drafts(self._root, clock=SystemClock()).write([text.encode()]) as draft,
                ):
                    draft.publish(folder, file)
                (self._root / file).chmod(0o644)
                made.append(file)
            with suppress(OSError):
                (self._root / DRAFTS).rmdir()
        return made

    def query(self) -> list[MemoryDocument]:
        """The files that are there, as documents to be loaded, and the list of skills behind them."""
        found = [self._document(name) for name in ORDER if (self._root / f"{name}.md").is_file()]
        skills = self.skills()
        if skills:
            lines = [f"- {skill.name}: {skill.description}" for skill in skills]
            text = "Skills; call load_skill(name) before using one:\n" + "\n".join(lines)
            found.append(MemoryDocument(id=SKILLS, content=text, metadata={"auto_load": True}))
        return found

    def skills(self) -> list[Skill]:
        """The skills below ``skills/``, by name. One that cannot be read is left out with a warning."""
        found: dict[str, Skill] = {}
        folder = self._root / SKILLS
        for place in sorted(folder.glob("*/SKILL.md")) if folder.is_dir() else []:
            path = place.relative_to(self._root).as_posix()
            try:
                if place.is_symlink() or place.parent.is_symlink():
                    raise InvalidInput(f"{path} is a symbolic link; put the skill itself there")
                file = read_file(self._root, path)
                name = str(file.document.metadata.get("name") or place.parent.name)
                if name in found:
                    raise InvalidInput(f"{path}: {found[name].path} is called {name!r} as well")
            except InvalidInput as error:
                warnings.warn(f"{self._root}: {error}", MemoryFileWarning, stacklevel=2)
                continue
            description = str(file.document.metadata.get("description") or _first_line(file))
            found[name] = Skill(name=name, description=" ".join(description.split()), path=path)
        return [found[name] for name in sorted(found)]

    def load_skill(self, name: str) -> str:
        """Read a skill: the text that says how it is done."""
        for skill in self.skills():
            if skill.name == name:
                return read_file(self._root, skill.path).document.content
        known = ", ".join(skill.name for skill in self.skills()) or "none"
        raise NotFound(f"there is no skill {name!r}; there are: {known}")

    def protect(self) -> Protection:
        """Keep MEMORY.md out of git's commits."""
        return protect(self._root / "MEMORY.md")

    def protection(self) -> Protection:
        """Whether MEMORY.md is kept out of git's commits; a fresh clone has to do it again."""
        return protection_of(self._root / "MEMORY.md")

    def _document(self, name: str) -> MemoryDocument:
        file = read_file(self._root, f"{name}.md")
        metadata = {"auto_load": True} | file.document.metadata
        return MemoryDocument(id=name, content=file.document.content, metadata=metadata)


def _first_line(file: MarkdownFile) -> str:
    lines = (line.strip("# \t") for line in file.document.content.splitlines())
    return next((line for line in lines if line), "")
