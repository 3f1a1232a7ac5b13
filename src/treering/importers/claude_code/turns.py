"""Read the lines of Claude Code, and record one run from them.

The session files and the output of ``--output-format stream-json`` have the same JSON lines: each has a
``type``, and those of a conversation a ``message`` of the Messages API. One answer of the model comes as
several lines with the same message id, one for each content block, and each repeats the usage; so usage
belongs to the message, not to the line.

`ClaudeTurn` combines the lines of an answer before it writes them. They may be far apart: a tool may return
before the last block arrives. A subagent has a span of its own below the call that started it, which contains
its lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.batch import Usage
from treering.core.clock import from_datetime
from treering.importers.lines import decode_object
from treering.importers.registry import added

if TYPE_CHECKING:
    from treering.importers.recording import SessionRecorder
    from treering.runs.span import RunNode

CONVERSATION: Final = frozenset({"user", "assistant"})
SYNTHETIC: Final = "<synthetic>"
"""The model of messages that the CLI writes itself."""

MAX_US: Final = 1 << 53
MAX_TOKENS: Final = 1 << 40
"""Times and counts of a line are smaller, or it has none."""
MAIN: Final = ""
"""The chain of the agent itself; subagents have named chains."""
FINAL: Final = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})
"""Stop reasons after which no tool is called."""


class Answer:
    """An answer of the model whose lines are being read."""

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
        """Whether it is complete. After a thought, and before a tool returns, more may follow."""
        return self.stop_reason in FINAL and bool(self.blocks) and self.blocks[-1].get("type") == "text"

    def add(self, line: ClaudeLine) -> None:
        """Add a line; the highest token count is the final one."""
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
    """The lines of one agent: where they are recorded, and the answer that is being read."""

    def __init__(self, node: RunNode | None) -> None:
        self.node = node
        self.answer: Answer | None = None
        self.last_us = 0


class ClaudeTurn:
    """Combines the lines of one run, and records them."""

    def __init__(self, recorder: SessionRecorder) -> None:
        self.recorder = recorder
        self.counted: dict[str, Usage] = {}
        """Tokens that messages reported, by model."""
        self.last_us = 0
        """The time of the last action. Input that follows it does not prolong the run."""
        self._chains: dict[str, _Chain] = {MAIN: _Chain(None)}
        self._agents: dict[str, str] = {}

    def take(self, line: ClaudeLine, *, ts_us: int, chain: str = MAIN) -> None:
        """Add a line of the conversation."""
        at = self._chains.get(chain) or self._chains[MAIN]
        at.last_us = max(at.last_us, ts_us)
        if not self.last_us or line.type == "assistant" or line.results:
            self.last_us = max(self.last_us, ts_us)
        if line.type == "assistant":
            self._add_answer(at, line, ts_us)
        elif line.type == "user":
            self._add_input(at, line, ts_us)

    def chain(self, name: str, *, agent: str, tool: str | None, ts_us: int) -> str:
        """Open the chain of a subagent: below the call ``tool`` if that is known, else below the run."""
        if name not in self._chains:
            above = self.recorder.span_of(tool) if tool is not None else None
            node = self.recorder.open(f"agent-{name}", agent, kind="agent", parent=above, ts_us=ts_us)
            self._chains[name] = _Chain(node)
            self._agents[name] = f"agent-{name}"
        return name

    def end_chain(self, name: str) -> None:
        """End the chain of a subagent."""
        if name in self._agents:
            chain = self._chains[name]
            self._write_answer(chain)
            self.recorder.close(self._agents[name], ts_us=chain.last_us)

    @property
    def agents(self) -> list[str]:
        """The names of the subagents' chains."""
        return list(self._agents)

    def is_done(self, name: str) -> bool:
        """Return whether the last answer of a chain is final."""
        answer = self._chains[name].answer
        return answer is not None and answer.is_whole

    def flush(self, *, unfinished: bool = True) -> list[str]:
        """Write the answers (with ``unfinished`` also incomplete ones); return the ids of the others."""
        left: list[str] = []
        for chain in self._chains.values():
            if chain.answer is None:
                continue
            if unfinished or chain.answer.is_whole:
                self._write_answer(chain)
            else:
                left.append(chain.answer.id)
        return left

    def finish(self) -> None:
        """Write everything, and end the run's spans."""
        self.flush()
        for name in self._agents:
            self.end_chain(name)
        self.recorder.finish(self.last_us)

    def _add_answer(self, chain: _Chain, line: ClaudeLine, ts_us: int) -> None:
        id_ = (line.message and line.message.id) or line.uuid or f"{ts_us}"
        if chain.answer is None or chain.answer.id != id_:
            self._write_answer(chain)
            chain.answer = Answer(id_, ts_us)
        chain.answer.add(line)
        for block in line.blocks:
            if str(block.get("type")) in {"tool_use", "server_tool_use"} and isinstance(block.get("id"), str):
                self.recorder.open(
                    block["id"],
                    str(block.get("name") or "tool"),
                    input=block.get("input"),
                    parent=chain.node,
                    ts_us=ts_us,
                )

    def _add_input(self, chain: _Chain, line: ClaudeLine, ts_us: int) -> None:
        rest: list[dict[str, Any]] = []
        for block in line.blocks:
            tool = block.get("tool_use_id")
            if block.get("type") == "tool_result" and isinstance(tool, str):
                status = "error" if block.get("is_error") else "ok"
                self.recorder.close(tool, ts_us=ts_us, status=status, output=block.get("content"))
            else:
                rest.append(block)
        if rest and line.message is not None:
            self._write_answer(chain)
            content = line.message.content if len(rest) == len(line.blocks) else rest
            self.recorder.message(
                "user",
                content,
                name=line.uuid or f"user-{ts_us}",
                ts_us=ts_us,
                parent=chain.node,
                metadata=_metadata(line),
            )

    def _write_answer(self, chain: _Chain) -> None:
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


def _metadata(line: ClaudeLine) -> Mapping[str, Any]:
    marks = {"meta": line.is_meta, "compact_summary": line.is_summary}
    return {name: True for name, is_so in marks.items() if is_so}


class ClaudeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the Messages API: the fields that are used."""

    role: str = ""
    id: str | None = None
    model: str | None = None
    content: Any = None
    usage: dict[str, Any] | None = None
    stop_reason: str | None = None


class ClaudeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line; fields that some versions lack have defaults."""

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
    logical_parent: str | None = msgspec.field(name="logicalParentUuid", default=None)
    compaction: Any = msgspec.field(name="compactMetadata", default=None)
    agent_id: str | None = msgspec.field(name="agentId", default=None)
    stream_agent_id: str | None = msgspec.field(name="agent_id", default=None)
    parent_tool: str | None = msgspec.field(name="parent_tool_use_id", default=None)
    subagent_type: str | None = None
    tool_result: Any = msgspec.field(name="toolUseResult", default=None)
    request: str | None = msgspec.field(name="requestId", default=None)

    @property
    def ts_us(self) -> int | None:
        """Its time, if it has one."""
        return time_us(self.timestamp)

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The content blocks of its message."""
        return [] if self.message is None else blocks_of(self.message.content)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The tool results among the blocks."""
        return [each for each in self.blocks if each.get("type") == "tool_result"]

    @property
    def is_prompt(self) -> bool:
        """Whether it is a prompt, by the user or on their behalf."""
        return (
            self.type == "user"
            and not self.is_meta
            and not self.is_sidechain
            and self.parent_tool is None
            and bool(self.blocks)
            and not self.results
        )

    @property
    def is_boundary(self) -> bool:
        """Whether the conversation before it was compacted; the line after it has the summary."""
        return self.type == "system" and self.subtype == "compact_boundary"


_DECODER: Final = msgspec.json.Decoder(ClaudeLine)


def read_line(text: bytes) -> ClaudeLine:
    """Decode a line; raise `msgspec.DecodeError` if it is not an object.

    An object of an unknown form gets an unknown type, and only its time is read.
    """
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = decode_object(text)
    try:
        return msgspec.convert(value, ClaudeLine)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: half a surrogate pair as the type
        timestamp = value.get("timestamp")
        return ClaudeLine(
            type=f"{value.get('type', 'line')} of another form",
            timestamp=timestamp if isinstance(timestamp, str) else None,
        )


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """Return content as blocks; plain text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list):
        return [cast("dict[str, Any]", each) for each in cast("list[Any]", content) if isinstance(each, dict)]
    return []


def claude_usage(given: Mapping[str, Any] | None) -> Usage | None:
    """Return tokens by disjoint class; cache writes for 5 minutes and for an hour are separate."""
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
    """Return the tokens of a session so far, as the last line of a stream reports them for a model."""
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


def time_us(text: Any) -> int | None:
    """Return an ISO time in microseconds; ``None`` if it is not one, or not of this age."""
    if not isinstance(text, str):
        return None
    try:
        ts_us = from_datetime(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None
    return ts_us if 0 < ts_us < MAX_US else None


def _count(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_TOKENS
    return value if is_count else 0
