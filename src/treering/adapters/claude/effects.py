"""Hooks for the Claude Agent SDK that make each tool call of Claude happen once.

    options = ClaudeAgentOptions(hooks=TreeringEffectHooks(store).hooks())

``PreToolUse`` commits the intent and the start of a call before the CLI makes it, ``PostToolUse`` its
outcome. After a crash, Claude asks for the call again under another id: it is recognised by its tool and
input, if the transcript has no result of it. What is known is not called; a hook cannot return a result, so
the call is denied with that result as the reason, which Claude reads. If nobody knows whether it happened,
the session stops until somebody has decided. **Invariant:** no call is made whose intent is not durable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from treering.adapters.shared import StoreOrUrl, json_text
from treering.adapters.tool_effects import Probe, ToolEffects
from treering.effects.effects import Attempt, Effect, Replay
from treering.errors import MissingExtra
from treering.runs.tree import RunCancelled
from treering.sync_async import Closing

try:
    from claude_agent_sdk import HookMatcher, project_key_for_directory

    from treering.adapters.claude.session_store import thread_namespace
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"claude_agent_sdk", "anyio", "mcp"}:
        raise MissingExtra("treering.adapters.claude", "claude-agent-sdk") from error
    raise

READING_TOOLS: Final = (
    *("Agent", "AskUserQuestion", "BashOutput", "ExitPlanMode", "Glob", "Grep", "LS", "ListMcpResources"),
    *("NotebookRead", "Read", "ReadMcpResource", "Skill", "Task", "TaskOutput", "TodoWrite", "ToolSearch"),
    *("WebFetch", "WebSearch"),
)
"""Claude's own tools that change nothing outside of the session: they may be called again."""

_INTERRUPTED: Final = ("[Tool call interrupted", "[Request interrupted")
"""How the results begin that the CLI makes up when a session is resumed."""


class TreeringEffectHooks(Closing):
    """Records the tool calls of Claude as effects of the session's thread (see `TreeringSessionStore`).

    ``replay`` says what to do with calls whose process died: ``{"mcp__shop__search": "safe"}`` for some tools
    (the others are ``"once"``, and Claude's own reading tools ``"safe"``), or one word for all. ``probes``
    find out by tool whether a call happened; other questions are for ``store.effects`` and ``treering
    effects``.
    """

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        replay: Replay | Mapping[str, Replay] | None = None,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        given: Any = replay
        if given is None or isinstance(given, Mapping):
            given = dict.fromkeys(READING_TOOLS, "safe") | dict(cast("Mapping[str, Any]", given or {}))
        self._calls = ToolEffects(store, replay=given, probes=probes, agent="claude")
        self._attempts: dict[str, tuple[str, Attempt]] = {}

    def hooks(self) -> dict[Any, list[HookMatcher]]:
        """Return the hooks for ``ClaudeAgentOptions(hooks=...)``."""
        return {
            "PreToolUse": [HookMatcher(hooks=[self.before_tool])],
            "PostToolUse": [HookMatcher(hooks=[self.after_tool])],
            "PostToolUseFailure": [HookMatcher(hooks=[self.after_tool])],
            "Stop": [HookMatcher(hooks=[self.at_stop])],
        }

    async def before_tool(self, given: Any, tool_use_id: str | None, _: Any) -> Any:
        """Begin a call, or deny it because it is not to be made."""
        tool, call_id = given["tool_name"], str(given.get("tool_use_id") or tool_use_id)
        replay = self._calls.replay_of(tool)
        if replay == "safe":
            return {}
        try:
            begun = await self._calls.arun(self._open, given, tool, call_id, replay)
        except RunCancelled as cancelled:
            return _stopped(str(cancelled), f"Do not make this call: {cancelled}")
        if isinstance(begun, Attempt):
            self._attempts[call_id] = given["session_id"], begun
            return {}
        return _denied(begun)

    async def after_tool(self, given: Any, tool_use_id: str | None, _: Any) -> Any:
        """Store the outcome of a call."""
        begun = self._attempts.pop(str(given.get("tool_use_id") or tool_use_id), None)
        if begun is not None:
            attempt = begun[1]
            if given["hook_event_name"] == "PostToolUse":
                await self._calls.arun(attempt.finish, given.get("tool_response"))
            elif given.get("is_interrupt"):
                await self._calls.arun(lambda: attempt.leave(note=f"interrupted: {given.get('error')}"))
            else:
                await self._calls.arun(lambda: attempt.finish(given.get("error"), is_error=True))
        return {}

    async def at_stop(self, given: Any, tool_use_id: str | None, _: Any) -> Any:  # noqa: ARG002 - the SDK's signature
        """Settle calls that ended without a hook of their own, as those that a person refused."""
        left = [
            (call_id, attempt)
            for call_id, (session, attempt) in self._attempts.items()
            if session == given["session_id"]
        ]
        for call_id, attempt in left:
            del self._attempts[call_id]
            await self._calls.arun(_settle, attempt, given.get("transcript_path"), call_id)
        return {}

    def close(self) -> None:
        """Close the store, if it was opened here. May be called twice."""
        self._calls.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._calls.aclose()

    def _open(self, given: Any, tool: str, call_id: str, replay: Replay) -> Attempt | Effect:
        transcript = given.get("transcript_path")
        name = self._calls.recognised(
            given["session_id"],
            tool,
            given["tool_input"],
            was_delivered=lambda effect: _was_delivered(effect, transcript),
        )
        intent = self._calls.intent(
            name,
            tool,
            given["tool_input"],
            replay=replay,
            takes_key=False,
            call_id=call_id,
            thread_id=given["session_id"],
            namespace=thread_namespace(project_key_for_directory(given["cwd"])),
        )
        return self._calls.open(intent)


def _denied(effect: Effect) -> dict[str, Any]:
    """Return the answer to ``PreToolUse`` for a call that is not to be made."""
    if not effect.is_finished:
        return _stopped(effect.question, f"Do not repeat this call: {effect.question}")
    result = effect.result if isinstance(effect.result, str) else json_text(effect.result)
    outcome = "was given up or failed" if effect.is_error else "was made before, and succeeded"
    reason = f"This call {outcome}; do not repeat it. Its result: {result} {_mark(effect)}"
    return {"hookSpecificOutput": _decision(reason)}


def _stopped(why: str, reason: str) -> dict[str, Any]:
    """Return the answer to ``PreToolUse`` that denies a call and stops the session."""
    return {"continue_": False, "stopReason": why, "hookSpecificOutput": _decision(reason)}


def _mark(effect: Effect) -> str:
    return f"(effect {effect.id})"


def _decision(reason: str) -> dict[str, Any]:
    return {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": reason,
    }


def _settle(attempt: Attempt, transcript: str | None, call_id: str) -> None:
    for content, is_error in _results(transcript, call_id, by_id=True):
        attempt.finish(content, is_error=is_error)
        return
    attempt.leave(note="the session stopped, and its transcript has no result of the call")


def _was_delivered(effect: Effect, transcript: str | None) -> bool:
    """Whether the outcome of an effect is in a transcript: as the result of its call, or of a denied one."""
    if any(_mark(effect) in json_text(content) for content, _ in _results(transcript, _mark(effect))):
        return True
    return any(_results(transcript, effect.call_id, by_id=True))


def _results(transcript: str | None, text: str | None, *, by_id: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield the tool results in a transcript in which a text occurs, and whether each is an error.

    With ``by_id`` only those of the call with this id. What the CLI writes itself for a call that was
    interrupted is none.
    """
    path = Path(transcript or "")
    if not transcript or not text or not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            if text.encode() not in line or b"tool_result" not in line:
                continue
            try:
                content: Any = json.loads(line)["message"]["content"]
            except (ValueError, KeyError, TypeError):  # the last line may be cut off
                continue
            blocks = cast("list[dict[str, Any]]", content if isinstance(content, list) else [])
            for block in blocks:
                found, is_error = block.get("content"), bool(block.get("is_error"))
                is_notice = is_error and json_text(found).lstrip('"').startswith(_INTERRUPTED)
                is_other = by_id and block.get("tool_use_id") != text
                if block.get("type") == "tool_result" and not is_notice and not is_other:
                    yield found, is_error
