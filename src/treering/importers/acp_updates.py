"""Agents that speak ACP: the updates of a session become messages, thoughts and tool calls.

The Agent Client Protocol sends text in chunks. Chunks of one kind that follow each other are one message,
which keeps how long after its beginning each chunk came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from treering.core.batch import Usage
from treering.importers.scribe import shown

if TYPE_CHECKING:
    from treering.importers.scribe import Scribe

_ROLES: Final = {
    "agent_message_chunk": "assistant",
    "agent_thought_chunk": "reasoning",
    "user_message_chunk": "user",
}
_QUIET: Final = frozenset(
    {
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
        "usage_update",
    }
)


class AcpUpdates:
    """Takes the updates of a run and lets a scribe write them down."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self._role = ""
        self._name = ""
        self._parts: list[Any] = []
        self._times: list[int] = []
        self.said: str | None = None
        """The last message of the agent."""

    def take(self, update: Mapping[str, Any], *, name: str, ts_us: int) -> bool:
        """One update; says whether its type is known."""
        kind = str(update.get("sessionUpdate"))
        if kind in _ROLES:
            self._chunk(_ROLES[kind], update.get("content"), name=name, ts_us=ts_us)
            return True
        if kind in _QUIET:
            return True
        self.settle()
        if kind in {"tool_call", "tool_call_update"}:
            self._tool(update, ts_us=ts_us)
        elif kind == "plan":
            self._scribe.message("plan", update.get("entries"), name=name, ts_us=ts_us)
        else:
            return False
        return True

    def settle(self) -> None:
        """Write the message that was growing."""
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        whole = "".join(parts) if all(isinstance(each, str) for each in parts) else parts
        if self._role == "assistant" and isinstance(whole, str):
            self.said = whole
        first = self._times[0]
        chunks = [each - first for each in self._times]
        self._scribe.message(
            self._role,
            whole,
            name=self._name,
            ts_us=first,
            metadata={"chunks_us": chunks} if len(chunks) > 1 and any(chunks) else None,
        )
        self._times = []

    def _chunk(self, role: str, content: Any, *, name: str, ts_us: int) -> None:
        if role != self._role:
            self.settle()
        if not self._parts:
            self._role, self._name = role, name
        block: Any = cast("dict[str, Any]", content) if isinstance(content, dict) else {"text": content}
        text = block.get("text")
        self._parts.append(text if isinstance(text, str) else content)
        self._times.append(ts_us)

    def _tool(self, update: Mapping[str, Any], *, ts_us: int) -> None:
        name = str(update.get("toolCallId") or "tool")
        label = shown(update.get("title") or update.get("kind") or "tool")
        given: Any = update.get("rawInput")
        self._scribe.open(name, label, input=given, ts_us=ts_us)
        status = update.get("status")
        if status in {"completed", "failed"}:
            output = update.get("rawOutput")
            self._scribe.close(
                name,
                ts_us=ts_us,
                status="ok" if status == "completed" else "error",
                output=update.get("content") if output is None else output,
            )


def acp_usage(given: Any) -> Usage | None:
    """Tokens of an answer to ``session/prompt``, where the agent tells them."""
    if not isinstance(given, dict):
        return None
    counts = cast("dict[str, Any]", given)

    def count(key: str) -> int:
        value = counts.get(key)
        return value if isinstance(value, int) and value > 0 else 0

    return Usage(
        input=count("inputTokens"),
        cache_read=count("cachedReadTokens"),
        cache_write=count("cachedWriteTokens"),
        output=count("outputTokens"),
        reasoning=count("thoughtTokens"),
    )
