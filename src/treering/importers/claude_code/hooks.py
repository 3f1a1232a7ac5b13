"""Claude Code's hooks: record a session while it runs, without getting in its way.

Claude Code calls a hook with a JSON object on stdin that names the transcript of the session. Recording means
importing what is new in that file since the last call. The hook only starts a process for this and exits; of
any number of calls at once, one imports and one waits behind it. **Invariant:** errors go to a log, and the
hook succeeds and prints nothing, since Claude Code acts on the output of hooks.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from treering.errors import InvalidInput
from treering.files import make_folder, open_private
from treering.importers.claude_code.sessions import import_claude_code

EVENTS: Final = (
    "SessionStart",
    "UserPromptSubmit",
    "PostToolUse",
    "PostToolUseFailure",
    "SubagentStop",
    "PreCompact",
    "Stop",
    "SessionEnd",
)
"""The events that Claude Code calls the hook for."""

SETTINGS: Final = "~/.claude/settings.json"
LOG: Final = "TREERING_HOOK_LOG"
"""The environment variable with the path of the log, by default ``~/.treering/hooks.log``."""

_WITH_MATCHER: Final = frozenset({"PostToolUse", "PostToolUseFailure"})
_FREQUENT: Final = frozenset({"PostToolUse", "PostToolUseFailure", "SessionStart"})
_PAUSE_SECONDS: Final = 5.0
"""A session that calls tools all the time is not imported more often than this."""
_OURS: Final = "hook claude-code"
_TIMEOUT_SECONDS: Final = 30


class HookCall(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a hook: the fields that are used."""

    event: str = msgspec.field(name="hook_event_name")
    transcript: str = msgspec.field(name="transcript_path")
    session: str = msgspec.field(name="session_id")


def take_call(given: bytes, store: str | None, *, namespace: str | None, waits: bool) -> None:
    """Handle a call of the hook; never raises."""
    with _log_errors():
        call = msgspec.json.decode(given, type=HookCall)
        if call.event in _FREQUENT and _is_too_soon(call, store):
            return  # the next call, or the one at the end of the turn, imports this as well
        if waits:
            record(call, store, namespace=namespace)
        else:
            _start_process(given, store, namespace)


def record(call: HookCall, store: str | None, *, namespace: str | None) -> None:
    """Import what is new in the transcript, unless another process is waiting to do so."""
    from treering.api import open as open_store

    path = Path(call.transcript)
    if not path.is_file():  # a new session has none yet
        return
    with _import_lock(call.session, store) as is_ours:
        if is_ours:
            with open_store(store, namespace=namespace) as opened:
                import_claude_code(path, opened, is_over=call.event == "SessionEnd")


def _is_too_soon(call: HookCall, store: str | None) -> bool:
    try:
        last = lock_files(call.session, store)[1].stat().st_mtime
    except (OSError, AttributeError):  # not imported yet; or Windows, without such files
        return False
    return 0 <= time.time() - last < _PAUSE_SECONDS


def hook_command(store: str | None, *, namespace: str | None = None, waits: bool = False) -> str:
    """Return the command that Claude Code runs."""
    return shlex.join(_command_words(store, namespace, waits=waits))


def installed(settings: Mapping[str, Any], command: str | None) -> dict[str, Any]:
    """Return the settings with our hooks (``None``: without them), otherwise unchanged."""
    changed = dict(settings)
    hooks = _mapping(changed.get("hooks", {}), "hooks")
    for event in dict.fromkeys([*EVENTS, *hooks]):
        entries = [entry for entry in _list(hooks.get(event, []), event) if not _is_ours(entry)]
        if command is not None and event in EVENTS:
            run = {"type": "command", "command": command, "timeout": _TIMEOUT_SECONDS}
            entries.append({"matcher": "*", "hooks": [run]} if event in _WITH_MATCHER else {"hooks": [run]})
        if entries or event in hooks:
            hooks[event] = entries
    changed["hooks"] = {event: entries for event, entries in hooks.items() if entries}
    if not changed["hooks"] and "hooks" not in settings:
        del changed["hooks"]
    return changed


def install(path: Path, command: str | None) -> bool:
    """Write our hooks to a settings file (``None``: remove them); return whether that changed anything."""
    before = _read(path)
    after = installed(before, command)
    if after == before:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as draft:
        json.dump(after, draft, indent=2, ensure_ascii=False)
        draft.write("\n")
        draft.flush()
        os.fsync(draft.fileno())
    Path(draft.name).chmod(mode)
    Path(draft.name).replace(path.resolve())
    return True


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return _mapping(json.loads(path.read_text("utf-8")), "the file")
    except ValueError as error:
        raise InvalidInput(f"{path} is not valid JSON ({error}); fix it. Nothing was changed") from None


def _is_ours(entry: Any) -> bool:
    hooks: Any = cast("dict[str, Any]", entry).get("hooks") if isinstance(entry, dict) else None
    if not isinstance(hooks, list) or len(cast("list[Any]", hooks)) != 1:
        return False
    only = cast("list[Any]", hooks)[0]
    command = cast("dict[str, Any]", only).get("command") if isinstance(only, dict) else None
    return isinstance(command, str) and "treering" in command and f"{_OURS} " in f"{command} "


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} of the settings is not an object; fix it. Nothing was changed")
    return dict(cast("dict[str, Any]", value))


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"hooks.{what} of the settings is not a list; fix it. Nothing was changed")
    return list(cast("list[Any]", value))


def _command_words(store: str | None, namespace: str | None, *, waits: bool) -> list[str]:
    words = [sys.executable, "-m", "treering", *_OURS.split()]
    words += ["--store", store] if store is not None else []
    words += ["--namespace", namespace] if namespace is not None else []
    return [*words, "--wait"] if waits else words


def _start_process(given: bytes, store: str | None, namespace: str | None) -> None:
    child = subprocess.Popen(  # noqa: S603 - ourselves
        _command_words(store, namespace, waits=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if child.stdin is not None:
        child.stdin.write(given)
        child.stdin.close()


@contextmanager
def _import_lock(session: str, store: str | None) -> Generator[bool]:
    """Let one process import a session and one wait behind it; a third gets ``False``."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ModuleNotFoundError:  # importing twice at once is only wasteful
        yield True
        return
    next_, now = lock_files(session, store)
    with open_private(next_, "w") as following, open_private(now, "w") as working:
        try:
            flock(following, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            yield False
            return
        flock(working, LOCK_EX)
        following.close()
        yield True


def lock_files(session: str, store: str | None) -> tuple[Path, Path]:
    """Return the lock files of the process that waits, and of the one that imports."""
    name = sha256(f"{os.getuid()}\0{store}\0{session}".encode()).hexdigest()[:32]
    base = Path(tempfile.gettempdir()) / f"treering-hook-{name}"
    return base.with_suffix(".next"), base.with_suffix(".now")


@contextmanager
def _log_errors() -> Generator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - the agent must not notice
        given = os.environ.get(LOG)
        path = Path(given) if given else Path.home() / ".treering" / "hooks.log"
        try:
            make_folder(path.parent)
            with open_private(path, "a") as log:
                log.write(f"{datetime.now(UTC).isoformat()} {traceback.format_exc()}\n")
        except OSError:
            return
