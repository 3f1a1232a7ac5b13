"""The lines of Codex's rollout files: what each is, and what the items of a response say.

The first versions wrote items bare, later ones wrap each in a line with a type and a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from treering.importers.sessions import RawLine

KNOWN: Final = frozenset(
    {
        "compacted", "event_msg", "ghost_snapshot", "response_item", "session_meta", "token_usage_record",
        "turn_context", "world_state",
    }
)  # fmt: skip
"""The types of line that versions of Codex are known to write."""

CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"}
)
OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
HARNESS: Final = ("<environment_context", "<user_instructions", "# AGENTS.md", "<turn_aborted", "<skills")
"""How messages begin that the CLI itself puts into the user's place."""
INTERNAL: Final = "internal_chat_message_metadata_passthrough"
"""What Codex notes down for itself in each item."""
_FAILED: Final = ("Process exited with code ", "Exit code: ")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was read."""

    raw: RawLine
    type: str
    payload: dict[str, Any]
    ts_us: int
    id: str

    @property
    def kind(self) -> str:
        """What the payload says it is."""
        return str(self.payload.get("type") or "")


def unwrapped(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A line's type and payload; the oldest versions have items without a wrapping."""
    payload = value.get("payload")
    if isinstance(payload, dict):
        return str(value.get("type")), cast("dict[str, Any]", payload)
    if "instructions" in value and "type" not in value:
        return "session_meta", value
    if value.get("type") in {"message", "reasoning"} | CALLS | OUTPUTS:
        return "response_item", value
    return str(value.get("type") or value.get("record_type") or "without a type"), value


def turn_of(item: Item) -> str | None:
    """The turn that a line begins or goes on with, if it says so."""
    begins = item.type == "turn_context" or (
        item.type == "event_msg" and item.kind in {"task_started", "turn_started"}
    )
    turn = item.payload.get("turn_id") if begins else None
    return turn if isinstance(turn, str) else None


def tool_name(payload: Mapping[str, Any]) -> str:
    """What a call is of."""
    return str(payload.get("name") or str(payload.get("type")).removesuffix("_call"))


def input_of(payload: Mapping[str, Any]) -> Any:
    """What a call was given."""
    for name in ("arguments", "input", "action"):
        given = payload.get(name)
        if isinstance(given, str):
            try:
                return msgspec.json.decode(given)
            except msgspec.DecodeError:
                return given
        if given is not None:
            return given
    return None


def has_failed(output: Any) -> bool:
    """Codex tells the model in words how a command ended."""
    if isinstance(output, dict):
        return cast("dict[str, Any]", output).get("success") is False
    if not isinstance(output, str):
        return False
    for mark in _FAILED:
        _, found, rest = output.partition(mark)
        if found:
            return not rest.startswith("0")
    try:
        told = mapping(msgspec.json.decode(output))
    except msgspec.DecodeError:
        return False
    return mapping(told.get("metadata")).get("exit_code", 0) != 0


def text_of(payload: Mapping[str, Any]) -> str:
    """What a message says."""
    content: Any = payload.get("content")
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return "\n".join(str(mapping(block).get("text") or "") for block in blocks)


def mapping(value: Any) -> dict[str, Any]:
    """An object as such, anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
