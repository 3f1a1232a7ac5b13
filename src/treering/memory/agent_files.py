"""An agent's own files, as seed 004 has them: who it is, what it can do, what it knows about its user.

``IDENTITY.md``, ``AGENT.md`` and ``MEMORY.md`` are loaded in this order, whole, whenever they are asked for;
a person edits them. The first two are made from a template when they are missing, the third is private (see
`treering.memory.protection`). ``skills/<name>/SKILL.md`` are listed by name and description; the text of a
skill is read only when it is wanted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from treering.core.clock import SystemClock
from treering.errors import InvalidInput, NotFound
from treering.files import DRAFTS, Drafts, opened_folder, translated
from treering.memory.protection import Protection, protect, protection_of
from treering.memory.stores import MemoryFileWarning
from treering.views.memory.documents import MemoryDocument
from treering.views.memory.markdown_files import MarkdownFile, read_file

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
        with translated(str(self._root), writing=True):
            for name, text in _TEMPLATES.items():
                file = f"{name}.md"
                if (self._root / file).exists():
                    continue
                with (
                    opened_folder(self._root, make=True) as folder,
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
