"""One run of Claude Code: from its lines to messages, tool calls and agents below agents.

The lines of one answer are put together before they are written, since each of them holds one block and
they may stand apart: a tool may have answered before the last block is there. A subagent has a span of its
own below the call that began it, and its lines go there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.batch import Usage
from treering.core.clock import from_datetime
from treering.importers.json_lines import decode_object
from treering.importers.report import added

if TYPE_CHECKING:
    from treering.importers.recording import SessionRecorder
    from treering.runs.span import RunNode


# -----------------------------------------------------------------------------------------------------------
# The lines of Claude Code: its session files and its ``--output-format stream-json`` speak alike.
#
# Both are JSON lines with a ``type``; those of a conversation carry a ``message`` of the Messages API. One
# answer of the model comes as several lines with the same message id, one a block, each of which repeats the
# usage; so usage belongs to the message, never to the line.


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


# -----------------------------------------------------------------------------------------------------------

MAIN: Final = ""
"""The chain of the agent itself; subagents' chains have their names."""
FINAL: Final = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})
"""Why an answer ended, where no tool is to be called after it."""


class Answer:
    """An answer of the model while its lines come in."""

    def __init__(self, id: str, ts_us: int) -> None:
        self.id = id
        self.ts_us = ts_us
        self.model: str | None = None
        self.blocks: list[dict[str, Any]] = []
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self.metadata: dict[str, Any] = {}

    @property
    def is_whole(self) -> bool:
        """Whether nothing more can come. After a thought, and before a tool has answered, more may."""
        return self.stop_reason in FINAL and bool(self.blocks) and self.blocks[-1].get("type") == "text"

    def add(self, line: ClaudeLine) -> None:
        """One more line of it; the fullest count of tokens is the last one."""
        message = line.message
        if message is None:
            return
        self.blocks += line.blocks
        self.model = message.model if message.model != SYNTHETIC else None
        self.stop_reason = message.stop_reason or self.stop_reason
        usage = claude_usage(message.usage)
        if usage is not None and (self.usage is None or usage.output >= self.usage.output):
            self.usage = usage
        tier = (message.usage or {}).get("service_tier")
        if isinstance(tier, str) and tier != "standard":
            self.metadata["service_tier"] = tier
        if message.model == SYNTHETIC:
            self.metadata["synthetic"] = True


class _Chain:
    """One agent's lines: where they go, and the answer that is still growing."""

    def __init__(self, node: RunNode | None) -> None:
        self.node = node
        self.answer: Answer | None = None
        self.last_us = 0


class ClaudeTurn:
    """Takes the lines of a run and writes them with a `SessionRecorder`."""

    def __init__(self, recorder: SessionRecorder) -> None:
        self.recorder = recorder
        self.counted: dict[str, Usage] = {}
        """Tokens that were told of by messages, by model."""
        self.last_us = 0
        """When something was last done; what is merely said to the agent behind that is not part of it."""
        self._chains: dict[str, _Chain] = {MAIN: _Chain(None)}
        self._agents: dict[str, str] = {}

    def take(self, line: ClaudeLine, *, ts_us: int, chain: str = MAIN) -> None:
        """A line of a conversation."""
        at = self._chains.get(chain) or self._chains[MAIN]
        at.last_us = max(at.last_us, ts_us)
        if not self.last_us or line.type == "assistant" or line.results:
            self.last_us = max(self.last_us, ts_us)
        if line.type == "assistant":
            self._answer(at, line, ts_us)
        elif line.type == "user":
            self._said(at, line, ts_us)

    def chain(self, name: str, *, agent: str, tool: str | None, ts_us: int) -> str:
        """The chain of a subagent: below the call ``tool`` if that is known, else below the run."""
        if name not in self._chains:
            above = self.recorder.span_of(tool) if tool is not None else None
            node = self.recorder.open(f"agent-{name}", agent, kind="agent", parent=above, ts_us=ts_us)
            self._chains[name] = _Chain(node)
            self._agents[name] = f"agent-{name}"
        return name

    def end_chain(self, name: str) -> None:
        """A subagent is done."""
        if name in self._agents:
            chain = self._chains[name]
            self._settle(chain)
            self.recorder.close(self._agents[name], ts_us=chain.last_us)

    @property
    def agents(self) -> list[str]:
        """The chains of subagents."""
        return list(self._agents)

    def is_done(self, name: str) -> bool:
        """Whether the last answer of a chain says that nothing more is to come."""
        answer = self._chains[name].answer
        return answer is not None and answer.is_whole

    def settle(self, *, unfinished: bool = True) -> list[str]:
        """Write the answers, those too that may go on; gives back which were left."""
        left: list[str] = []
        for chain in self._chains.values():
            if chain.answer is None:
                continue
            if unfinished or chain.answer.is_whole:
                self._settle(chain)
            else:
                left.append(chain.answer.id)
        return left

    def finish(self) -> None:
        """Nothing more will come."""
        self.settle()
        for name in self._agents:
            self.end_chain(name)
        self.recorder.finish(self.last_us)

    def _answer(self, chain: _Chain, line: ClaudeLine, ts_us: int) -> None:
        id_ = (line.message and line.message.id) or line.uuid or f"{ts_us}"
        if chain.answer is None or chain.answer.id != id_:
            self._settle(chain)
            chain.answer = Answer(id_, ts_us)
        chain.answer.add(line)
        for block in line.blocks:
            if block.get("type") in {"tool_use", "server_tool_use"} and isinstance(block.get("id"), str):
                self.recorder.open(
                    block["id"],
                    str(block.get("name") or "tool"),
                    input=block.get("input"),
                    parent=chain.node,
                    ts_us=ts_us,
                )

    def _said(self, chain: _Chain, line: ClaudeLine, ts_us: int) -> None:
        rest: list[dict[str, Any]] = []
        for block in line.blocks:
            tool = block.get("tool_use_id")
            if block.get("type") == "tool_result" and isinstance(tool, str):
                status = "error" if block.get("is_error") else "ok"
                self.recorder.close(tool, ts_us=ts_us, status=status, output=block.get("content"))
            else:
                rest.append(block)
        if rest and line.message is not None:
            self._settle(chain)
            content = line.message.content if len(rest) == len(line.blocks) else rest
            self.recorder.message(
                "user",
                content,
                name=line.uuid or f"user-{ts_us}",
                ts_us=ts_us,
                parent=chain.node,
                metadata=_marks(line),
            )

    def _settle(self, chain: _Chain) -> None:
        answer, chain.answer = chain.answer, None
        if answer is None:
            return
        if answer.usage is not None and answer.model is not None:
            self.counted[answer.model] = added(self.counted.get(answer.model), answer.usage)
        self.recorder.message(
            "assistant",
            answer.blocks,
            name=answer.id,
            ts_us=answer.ts_us,
            parent=chain.node,
            model=answer.model,
            usage=answer.usage,
            metadata=answer.metadata,
        )


def _marks(line: ClaudeLine) -> Mapping[str, Any]:
    marks = {"meta": line.is_meta, "compact_summary": line.is_summary}
    return {name: True for name, is_so in marks.items() if is_so}
