"""Agent profiles: how to run a CLI agent, what of it to save, and how to read its output.

`register` adds a profile, ``~/.treering/agents.toml`` adds more, and `Sandbox(agent=AgentProfile(...))` takes
one directly. ``{prompt}``, ``{model}`` and ``{home}`` are placeholders.
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


COMMON_VARIABLES: Final = (
    *("PATH", "SHELL", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ"),
    *("TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"),
    *("TMPDIR", "TMP", "TEMP", "EDITOR", "VISUAL", "PAGER"),
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
    *("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "UV_PYTHON", "NODE_PATH"),
    *("NODE_OPTIONS", "NVM_DIR", "JAVA_HOME", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "HOMEBREW_PREFIX"),
)
"""Variables that every program in a sandbox gets: where programs, languages and certificates are. No keys."""


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CLI agent.

    Args:
        command: Followed by ``with_model`` if a model is set, ``with_session`` if there is a session to
            resume, and ``prompt``.
        settings: Its folders in the home, which are saved with the workspace.
        sessions: A pattern that matches a file once there is a session.
        by_path: The folder whose subfolders are named after the path of the workspace.
        rebuilt: Patterns of files that contain the path of the home and are recreated when they are missing.
        credentials: Files of the user's home that the agent may read, and that are never saved.
        variables: Names and patterns of environment variables that it gets from the user's, besides
            `COMMON_VARIABLES`: its keys and settings. Everything else stays outside.
        environment: More variables, which are set; ``unset`` ones are taken away.
        format: The format of its stdout, if the command contains ``format_mark``.
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
    variables: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    unset: tuple[str, ...] = ()

    def command_line(
        self, prompt: str, *, model: str | None, resume: bool, arguments: Iterable[str] = ()
    ) -> list[str]:
        """Return the whole command for a prompt; ``arguments`` are the caller's."""
        if not self.command:
            raise InvalidInput(f"agent {self.name!r} has no command; pass one to execute()")
        pieces = [*self.command, *arguments]
        pieces += [each.replace("{model}", model) for each in self.with_model] if model else []
        pieces += self.with_session if resume else ()
        return pieces + [each.replace("{prompt}", prompt) for each in self.prompt]

    def stream_format(self, command: list[str]) -> StreamFormat | None:
        """Return the format of a command's stdout; ``None`` if it is plain text."""
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
        variables=("ANTHROPIC_*", "CLAUDE_CODE_*", "CLAUDE_MODEL", "MAX_THINKING_TOKENS", "MCP_TIMEOUT"),
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
        variables=("OPENAI_*", "CODEX_*", "AZURE_OPENAI_API_KEY"),
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
        variables=(
            "GEMINI_*",
            "GOOGLE_API_KEY",
            "GOOGLE_GENAI_*",
            "GOOGLE_CLOUD_PROJECT",
            "GOOGLE_CLOUD_LOCATION",
        ),
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
        variables=("QWEN_*", "DASHSCOPE_*", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"),
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
        variables=("KIMI_*", "MOONSHOT_*"),
    ),
    AgentProfile(
        name="opencode",
        command=("opencode", "run"),
        with_model=("--model={model}",),
        with_session=("--continue",),
        settings=_OPENCODE,
        sessions=".local/share/opencode/storage/session/**/*.json",
        credentials=(".local/share/opencode/auth.json",),
        variables=(
            *("OPENCODE_*", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
            *("GROQ_API_KEY", "DEEPSEEK_API_KEY", "MISTRAL_API_KEY", "XAI_API_KEY", "TOGETHER_API_KEY"),
        ),
    ),
    AgentProfile(name="program"),
)

_registered: dict[str, AgentProfile] = {each.name: each for each in _BUILT_IN}


def register(profile: AgentProfile) -> AgentProfile:
    """Add or replace a profile, for this process."""
    check_space(profile.name)
    _registered[profile.name] = profile
    return profile


def profiles(*, environment: Mapping[str, str] = os.environ) -> dict[str, AgentProfile]:
    """Return all profiles by name; those of the user's file override the registered ones."""
    return {**_registered, **_from_file(treering_home(environment) / PROFILES_FILE)}


def find_profile(agent: str | AgentProfile) -> AgentProfile:
    """Return a profile by its name; `InvalidInput` lists the known names."""
    if isinstance(agent, AgentProfile):
        check_space(agent.name)
        return agent
    known = profiles()
    if agent not in known:
        raise InvalidInput(
            f"agent {agent!r} is unknown; known are {', '.join(known)}. Describe others in {PROFILES_FILE}, "
            "or pass an AgentProfile"
        )
    return known[agent]


def treering_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for sandboxes, session logs and agent profiles."""
    given = environment.get(HOME_VARIABLE)
    return Path(given).expanduser().absolute() if given else Path.home() / ".treering"


def _from_file(path: Path) -> dict[str, AgentProfile]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); fix or remove it") from error
    try:
        return {
            name: msgspec.convert({"name": name, **table}, AgentProfile) for name, table in tables.items()
        }
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"{path} has an invalid profile: {error}") from error
