"""The lines of Claude Code: its session files and its ``--output-format stream-json`` speak alike.

Both are JSON lines with a ``type``; those of a conversation carry a ``message`` of the Messages API. One
answer of the model comes as several lines with the same message id, one a block, each of which repeats the
usage; so usage belongs to the message, never to the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from treering.core.batch import Usage
from treering.core.clock import from_datetime
from treering.importers.line_json import decode_object

CONVERSATION: Final = frozenset({"user", "assistant"})
SYNTHETIC: Final = "<synthetic>"
"""The model of what the CLI itself said in the model's place."""


class ClaudeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the Messages API, as far as it is understood."""

    role: str = ""
    id: str | None = None
    model: str | None = None
    content: Any = None
    usage: dict[str, Any] | None = None
    stop_reason: str | None = None


class ClaudeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line; what other versions may lack has a default."""

    type: str
    subtype: str | None = None
    uuid: str | None = None
    timestamp: str | None = None
    message: ClaudeMessage | None = None
    cwd: str | None = None
    version: str | None = None
    parent_uuid: str | None = msgspec.field(name="parentUuid", default=None)
    session: str | None = msgspec.field(name="sessionId", default=None)
    stream_session: str | None = msgspec.field(name="session_id", default=None)
    branch: str | None = msgspec.field(name="gitBranch", default=None)
    is_sidechain: bool | None = msgspec.field(name="isSidechain", default=None)
    is_meta: bool | None = msgspec.field(name="isMeta", default=None)
    is_summary: bool | None = msgspec.field(name="isCompactSummary", default=None)
    agent_id: str | None = msgspec.field(name="agentId", default=None)
    stream_agent_id: str | None = msgspec.field(name="agent_id", default=None)
    parent_tool: str | None = msgspec.field(name="parent_tool_use_id", default=None)
    subagent_type: str | None = None
    tool_result: Any = msgspec.field(name="toolUseResult", default=None)
    request: str | None = msgspec.field(name="requestId", default=None)

    @property
    def ts_us(self) -> int | None:
        """When it was, if it says so."""
        return time_us(self.timestamp)

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What was said, as content blocks."""
        return [] if self.message is None else blocks_of(self.message.content)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of tools among the blocks."""
        return [each for each in self.blocks if each.get("type") == "tool_result"]

    @property
    def is_prompt(self) -> bool:
        """Something new to do, said by a person or put into their place."""
        return (
            self.type == "user"
            and not self.is_meta
            and not self.is_sidechain
            and self.parent_tool is None
            and bool(self.blocks)
            and not self.results
        )


_DECODER: Final = msgspec.json.Decoder(ClaudeLine)


def read_line(text: bytes) -> ClaudeLine:
    """A line; raises `msgspec.DecodeError` for what is no object.

    One that is unlike all that are known has a type that nobody knows, and nothing else but its time.
    """
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        value = decode_object(text)
    try:
        return msgspec.convert(value, ClaudeLine)
    except msgspec.ValidationError:
        timestamp = value.get("timestamp")
        return ClaudeLine(
            type=f"{value.get('type', 'line')} of another form",
            timestamp=timestamp if isinstance(timestamp, str) else None,
        )


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """Content as blocks: a plain text is one."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list):
        return [cast("dict[str, Any]", each) for each in cast("list[Any]", content) if isinstance(each, dict)]
    return []


def claude_usage(given: Mapping[str, Any] | None) -> Usage | None:
    """Tokens by disjoint class, with what was written to the cache for 5 minutes and for an hour apart."""
    if not given:
        return None
    written = _count(given.get("cache_creation_input_tokens"))
    lives: Any = given.get("cache_creation")
    hour = _count(lives.get("ephemeral_1h_input_tokens")) if isinstance(lives, dict) else 0  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    details: Any = given.get("output_tokens_details")
    thought = _count(details.get("thinking_tokens")) if isinstance(details, dict) else 0  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    hour = min(hour, written) if written else hour
    return Usage(
        input=_count(given.get("input_tokens")),
        cache_read=_count(given.get("cache_read_input_tokens")),
        cache_write=max(written - hour, 0),
        cache_write_1h=hour,
        output=_count(given.get("output_tokens")),
        reasoning=thought,
    )


def model_usage(given: Mapping[str, Any]) -> Usage:
    """Tokens of a session so far, as the last line of a stream sums them up for a model."""
    written = _count(given.get("cacheCreationInputTokens"))
    hour = min(_count(given.get("cacheCreationEphemeral1hInputTokens")), written)
    return Usage(
        input=_count(given.get("inputTokens")),
        cache_read=_count(given.get("cacheReadInputTokens")),
        cache_write=written - hour,
        cache_write_1h=hour,
        output=_count(given.get("outputTokens")),
        reasoning=_count(given.get("thinkingTokens")),
    )


def time_us(text: str | None) -> int | None:
    """Microseconds of an ISO time; ``None`` for what is none."""
    if text is None:
        return None
    try:
        return from_datetime(datetime.fromisoformat(text))
    except ValueError:
        return None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
