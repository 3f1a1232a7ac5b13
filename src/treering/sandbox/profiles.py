"""Agent profiles: what has to be known of a CLI agent to run it, keep it and read along.

A profile is a row of a table. `register` adds one, a file ``agents.toml`` in treering's own folder
(``~/.treering``) adds more, and `Sandbox(agent=AgentProfile(...))` takes one as it is. ``{prompt}``,
``{model}`` and ``{home}`` stand for what their names say.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from treering.core.ids import check_space
from treering.errors import InvalidInput

StreamFormat = Literal["claude-code", "codex", "acp"]
"""What `treering.importers.streams` reads."""

HOME_VARIABLE: Final = "TREERING_HOME"
PROFILES_FILE: Final = "agents.toml"


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CLI agent.

    ``command`` is followed by ``with_model`` if a model is chosen, by ``with_session`` if there is a session
    to go on with, and by ``prompt``. ``settings`` are its folders in the home, which are kept with the
    workspace; ``sessions`` is a pattern that matches a file once there is a session, ``by_path`` the folder
    in which it files sessions under the workspace's path, and ``rebuilt`` are patterns of files that name the
    home's path and are made again when they are missing. ``credentials`` are files of the user's home that
    it may read and that are never kept. ``format`` is how it tells what it does on stdout, if the command
    holds ``format_mark``.
    """

    name: str
    command: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ("{prompt}",)
    with_model: tuple[str, ...] = ()
    with_session: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    sessions: str | None = None
    by_path: str | None = None
    rebuilt: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    format: StreamFormat | None = None
    format_mark: str | None = None
    environment: dict[str, str] = {}
    unset: tuple[str, ...] = ()

    def line(
        self, prompt: str, *, model: str | None, goes_on: bool, arguments: Iterable[str] = ()
    ) -> list[str]:
        """The whole command for a prompt; ``arguments`` are the caller's own."""
        if not self.command:
            raise InvalidInput(f"agent {self.name!r} has no command of its own; pass one to execute()")
        pieces = [*self.command, *arguments]
        pieces += [each.replace("{model}", model) for each in self.with_model] if model else []
        pieces += self.with_session if goes_on else ()
        return pieces + [each.replace("{prompt}", prompt) for each in self.prompt]

    def speaks(self, command: list[str]) -> StreamFormat | None:
        """The format in which a command will tell what it does; ``None`` if it writes for people."""
        if self.format is None or self.format_mark is None:
            return self.format
        return self.format if any(self.format_mark in each for each in command) else None


_OPENCODE: Final = (".local/share/opencode", ".config/opencode", ".local/state/opencode")

_BUILT_IN: Final = (
    AgentProfile(
        name="claude",
        command=("claude", "-p", "--verbose", "--output-format=stream-json", "--permission-mode=acceptEdits"),
        prompt=("--", "{prompt}"),
        with_model=("--model={model}",),
        with_session=("--continue",),
        settings=(".claude",),
        sessions=".claude/projects/*/*.jsonl",
        by_path=".claude/projects",
        credentials=(".claude/.credentials.json",),
        format="claude-code",
        format_mark="stream-json",
        environment={"CLAUDE_CONFIG_DIR": "{home}/.claude"},
        unset=("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT"),
    ),
    AgentProfile(
        name="codex",
        command=("codex", "exec", "--json", "--skip-git-repo-check", "--sandbox=workspace-write"),
        prompt=("--", "{prompt}"),
        with_model=("--model={model}",),
        with_session=("resume", "--last", "--all"),
        settings=(".codex",),
        sessions=".codex/sessions/**/*.jsonl",
        rebuilt=(".codex/state_*.sqlite*", ".codex/thread_history_*.sqlite*"),
        credentials=(".codex/auth.json",),
        format="codex",
        format_mark="--json",
        environment={"CODEX_HOME": "{home}/.codex"},
    ),
    AgentProfile(
        name="gemini",
        command=("gemini", "--approval-mode=auto_edit"),
        prompt=("--prompt={prompt}",),
        with_model=("--model={model}",),
        with_session=("--resume=latest",),
        settings=(".gemini",),
        sessions=".gemini/tmp/*/chats/*",
        credentials=(".gemini/oauth_creds.json", ".gemini/google_accounts.json"),
    ),
    AgentProfile(
        name="qwen",
        command=("qwen", "--approval-mode=auto-edit"),
        prompt=("--prompt={prompt}",),
        with_model=("--model={model}",),
        with_session=("--continue",),
        settings=(".qwen",),
        sessions=".qwen/projects/*/chats/*",
        credentials=(".qwen/oauth_creds.json",),
    ),
    AgentProfile(
        name="kimi",
        command=("kimi", "--print"),
        prompt=("--prompt={prompt}",),
        with_model=("--model={model}",),
        with_session=("--continue",),
        settings=(".kimi",),
        sessions=".kimi/sessions/*/*",
        credentials=(".kimi/credentials.toml",),
    ),
    AgentProfile(
        name="opencode",
        command=("opencode", "run"),
        with_model=("--model={model}",),
        with_session=("--continue",),
        settings=_OPENCODE,
        sessions=".local/share/opencode/storage/session/**/*.json",
        credentials=(".local/share/opencode/auth.json",),
    ),
    AgentProfile(name="program"),
)

_registered: dict[str, AgentProfile] = {each.name: each for each in _BUILT_IN}


def register(profile: AgentProfile) -> AgentProfile:
    """Add a profile, or replace the one of that name, for this process."""
    check_space(profile.name)
    _registered[profile.name] = profile
    return profile


def profiles(*, environment: Mapping[str, str] = os.environ) -> dict[str, AgentProfile]:
    """All profiles by name: what was registered, and what the user's file says, which goes first."""
    return {**_registered, **_from_file(treering_home(environment) / PROFILES_FILE)}


def find_profile(agent: str | AgentProfile) -> AgentProfile:
    """A profile by its name; `InvalidInput` lists the names that there are."""
    if isinstance(agent, AgentProfile):
        check_space(agent.name)
        return agent
    known = profiles()
    if agent not in known:
        raise InvalidInput(
            f"no agent {agent!r}; there are {', '.join(known)}. Others are described in {PROFILES_FILE}, "
            "or passed as an AgentProfile"
        )
    return known[agent]


def treering_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Treering's own folder of this user: sandboxes, session logs, agent profiles."""
    given = environment.get(HOME_VARIABLE)
    return Path(given).expanduser().absolute() if given else Path.home() / ".treering"


def _from_file(path: Path) -> dict[str, AgentProfile]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); mend it or take it away") from error
    try:
        return {
            name: msgspec.convert({"name": name, **table}, AgentProfile) for name, table in tables.items()
        }
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"{path} does not describe agents: {error}") from error
