"""Codex while it works: the JSON lines of ``codex exec --json`` become messages and tool calls.

An item is told of when it starts, when it changes and when it is done. Tokens are told once a turn, and for
the whole session so far; the name of the model is not told at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from treering.core.batch import Usage

if TYPE_CHECKING:
    from treering.importers.scribe import Scribe

_ENVELOPE: Final = frozenset({"id", "type", "status"})
_FAILED: Final = frozenset({"failed", "error", "declined"})
_TOOLS: Final = {"command_execution": "shell", "file_change": "apply_patch", "web_search": "web_search"}
_OUTPUTS: Final = frozenset({"aggregated_output", "exit_code", "result", "error", "agents_states"})


def codex_usage(given: Mapping[str, Any] | None) -> Usage | None:
    """Tokens by disjoint class; Codex counts what came out of the cache as input, too."""
    if not given:
        return None
    whole, cached = _count(given, "input_tokens"), _count(given, "cached_input_tokens")
    written = _count(given, "cache_write_input_tokens")
    return Usage(
        input=max(whole - cached - written, 0),
        cache_read=min(cached, whole),
        cache_write=written,
        output=_count(given, "output_tokens"),
        reasoning=_count(given, "reasoning_output_tokens"),
    )


class CodexItems:
    """Takes the items of a run and lets a scribe write them down."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self.said: str | None = None
        """The last message of the agent."""

    def take(self, phase: str, item: Mapping[str, Any], *, name: str, ts_us: int) -> bool:
        """An item that started, changed or was completed; says whether its type is known."""
        kind = item.get("type")
        is_done = phase == "completed"
        if kind == "agent_message":
            if is_done:
                self.said = str(item.get("text") or "")
                self._scribe.message("assistant", self.said, name=name, ts_us=ts_us)
        elif kind == "reasoning":
            if is_done:
                self._scribe.message("reasoning", item.get("text"), name=name, ts_us=ts_us)
        elif kind == "error":
            if is_done:
                self._scribe.message("error", item.get("message"), name=name, ts_us=ts_us)
        elif kind == "todo_list":
            if is_done:
                self._scribe.message("plan", item.get("items"), name=name, ts_us=ts_us)
        elif isinstance(kind, str) and (kind in _TOOLS or kind.endswith("tool_call")):
            self._tool(item, name=name, ts_us=ts_us, is_done=is_done)
        else:
            return False
        return True

    def _tool(self, item: Mapping[str, Any], *, name: str, ts_us: int, is_done: bool) -> None:
        label = _TOOLS.get(str(item["type"])) or "/".join(
            str(item[part]) for part in ("server", "tool") if item.get(part)
        )
        given = {key: value for key, value in item.items() if key not in _ENVELOPE | _OUTPUTS}
        self._scribe.open(name, label or str(item["type"]), input=given, ts_us=ts_us)
        if is_done:
            failed = item.get("status") in _FAILED or item.get("error")
            output = {key: item[key] for key in _OUTPUTS if item.get(key) is not None}
            self._scribe.close(
                name,
                ts_us=ts_us,
                status="error" if failed else "ok",
                output=output.get("aggregated_output") if set(output) <= {"aggregated_output"} else output,
            )


def _count(given: Mapping[str, Any], key: str) -> int:
    value = given.get(key)
    return value if isinstance(value, int) and value > 0 else 0
