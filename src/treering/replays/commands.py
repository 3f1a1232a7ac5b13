"""Commands that are recorded, and run again: CLI agents in a sandbox, whose models are behind our proxy.

    treering run --record --workspace ./shop -- claude -p "Fix the tests"
    treering rerun last --from 4 --model claude-haiku-4-5

The program runs as with ``treering run``, in a home of its own. Its calls of models pass through a
`ModelProxy` and are recorded; its tools are the program's own, so a replay makes them again, in the fork's
folder. That folder has another name than the original one: recorded answers name the new folder, and
requests are compared as if they named the old one.
"""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.adapters.shared import Opened
from treering.errors import InvalidInput
from treering.replays.capture import COMMAND, START, Instrumentation, RecordedRun
from treering.replays.proxy import ModelProxy
from treering.sandbox.profiles import AgentProfile, find_profile
from treering.sandbox.sandbox import RunResult, Sandbox
from treering.secret_scan import SecretScrubber, scan_secrets

_LAST_LINES: Final = 20
_MAX_SAID: Final = 2000
_SECRET_NAME: Final = re.compile(
    r"(?i)(^|_)(api_?key|key|token|secret|passw(or)?d|pass|credentials?|auth)(_|$)"
)

if TYPE_CHECKING:
    from treering.runs.run import Run
    from treering.sandbox.run import Output
    from treering.store import Store


def record_command(
    store: Store,
    *,
    command: Sequence[str] = (),
    prompt: str | None = None,
    agent: str = "program",
    model: str | None = None,
    workspace: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_env: Sequence[str] = (),
    upstreams: Mapping[str, str] | None = None,
    on_output: Output | None = None,
) -> tuple[Run, RunResult]:
    """Run a command, or give an agent a prompt, and record all calls of its models.

    Returns the run, and the result of the program; ``upstreams`` are those of `ModelProxy`. A rerun gives the
    program the same variables: those of ``env`` are recorded, except secrets; these, and those of
    ``pass_env``, come from the environment of the rerun.
    """
    if bool(command) == (prompt is not None):
        raise InvalidInput("pass either a command or a prompt")
    folder = Path(workspace) if workspace is not None else Path(tempfile.mkdtemp(prefix="treering-run-"))
    variables = env or {}
    kept = {name: value for name, value in variables.items() if not _is_secret(name, value)}
    given = {
        "command": list(command),
        "prompt": prompt,
        "agent": agent,
        "model": model,
        "env": kept,
        "pass_env": [*pass_env, *(name for name in variables if name not in kept)],
    }
    recorded = RecordedRun(
        Opened(store),
        workspace=folder.absolute(),
        entry=COMMAND,
        arguments=given,
        thread=None,
        make=lambda start: store.run(agent, meta=start),
        instrumentation=lambda: Instrumentation(None, spans=True, tools=False, also=()),
        nature=None,
    )
    with recorded as run:
        result = run_command(
            run,
            given,
            folder=folder.absolute(),
            env=variables,
            upstreams=upstreams,
            on_output=on_output,
        )
        if result.exit_code:
            recorded.status = "error"
    return run, result


def run_command(
    run: Run,
    given: Mapping[str, Any],
    *,
    folder: Path,
    upstreams: Mapping[str, str] | None,
    env: Mapping[str, str] | None = None,
    on_output: Output | None = None,
    on_home: Callable[[str], None] | None = None,
) -> RunResult:
    """Run a recorded command in a folder, with its models behind a proxy. ``env`` adds to its variables."""
    last: deque[bytes] = deque(maxlen=_LAST_LINES)

    def listen(source: str, line: bytes) -> None:
        last.append(line)
        if on_output is not None:
            on_output(source, line)

    with (
        ModelProxy(node=lambda: run, upstreams=upstreams) as proxy,
        Sandbox(
            _profile(given["agent"], proxy),
            model=given.get("model"),
            workspace=folder,
            env={**given.get("env", {}), **(env or {}), **proxy.environment()},
            pass_env=given.get("pass_env", ()),
            on_output=listen,
        ) as sandbox,
    ):
        home = str(sandbox.start().home)
        if on_home is not None:
            on_home(home)
        run.note(
            **{START: {**run.info.meta.get(START, {}), "home": home, "upstreams": dict(proxy.upstreams)}}
        )
        if given.get("prompt") is not None:
            result = sandbox.run(given["prompt"])
        else:
            result = sandbox.execute(_with_address(given["command"], given["agent"], proxy))
    if result.exit_code:
        said = SecretScrubber().scrub(b"".join(last)).decode("utf-8", "replace").strip()
        run.note(error={"type": f"exit code {result.exit_code}", "message": said[-_MAX_SAID:]})
    return result


def _profile(name: str, proxy: ModelProxy) -> AgentProfile:
    profile = find_profile(name)
    return msgspec.structs.replace(profile, command=tuple(_with_address(profile.command, name, proxy)))


def _with_address(command: Sequence[str], agent: str, proxy: ModelProxy) -> Sequence[str]:
    """Return a command that uses the proxy; Codex does not look for its address in the environment."""
    if agent != "codex":
        return command
    address = proxy.environment()["OPENAI_BASE_URL"]
    return [command[0], "-c", f'openai_base_url="{address}"', *command[1:]]


def _is_secret(name: str, value: str) -> bool:
    return _SECRET_NAME.search(name) is not None or bool(scan_secrets(f'{name}="{value}"'))
