"""The Claude Agent SDK: what `query` or a client's `receive_response` yields, recorded as runs.

    async for message in record_messages(query(prompt="Fix the tests.", options=options), store):

Each turn, from the session's first message to its result, is a run of the session's thread (the one that
`TreeringSessionStore` saves to, whose checkpoints are linked to it): replies with tokens and cost, calls of
tools with what they returned, and subagents below the call that started them. Messages are passed on as they
came. **Invariant:** an error in recording never reaches the agent.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any, Final, TypeVar

from treering.adapters.claude.session_store import recorded_sessions, thread_namespace
from treering.adapters.shared import Opened, StoreOrUrl, thread_name
from treering.errors import InvalidInput, MissingExtra
from treering.runs.run import Run
from treering.runs.span import ERROR, OK, RunNode, Span, usage_of

try:
    from claude_agent_sdk import (
        AssistantMessage,
        ResultMessage,
        SystemMessage,
        ToolResultBlock,
        ToolUseBlock,
        UserMessage,
        project_key_for_directory,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"claude_agent_sdk", "anyio", "mcp"}:
        raise MissingExtra("treering.adapters.claude", "claude-agent-sdk") from error
    raise

M = TypeVar("M")

_TYPES: Final = {
    "TextBlock": "text",
    "ThinkingBlock": "thinking",
    "ToolUseBlock": "tool_use",
    "ToolResultBlock": "tool_result",
}


async def record_messages(
    messages: AsyncIterator[M],
    store: StoreOrUrl | None = None,
    *,
    agent: str = "claude",
    prompt: str | None = None,
) -> AsyncIterator[M]:
    """Yield messages of the SDK as they come, and record them.

    Args:
        store: an open store, or where to open one, which is then closed at the end.
        agent: the name that the runs have.
        prompt: what was asked; the SDK does not repeat it.
    """
    opened = Opened(store)
    recorder = _Recorder(opened, agent, prompt)
    try:
        async for message in messages:
            _safely(lambda given=message: recorder.add(given))
            yield message
    except (asyncio.CancelledError, GeneratorExit):
        _safely(lambda: recorder.end("cancelled"))
        raise
    except BaseException as error:
        _safely(lambda failed=error: recorder.end(ERROR, failed))
        raise
    finally:
        _safely(lambda: recorder.end("unfinished"))
        await opened.bridge.call(opened.store.flush)
        await opened.aclose()


class _Recorder:
    """Records one stream of messages: a run for each turn."""

    def __init__(self, opened: Opened, agent: str, prompt: str | None) -> None:
        self._opened = opened
        self._agent = agent
        self._prompt = prompt
        self._run: Run | None = None
        self._session: dict[str, Any] = {}
        """What the CLI said of the session at first."""
        self._tools: dict[str, Span] = {}
        self._reply: list[AssistantMessage] = []
        """The parts of a reply, which come one by one under one id; the last has all its tokens."""

    def add(self, message: Any) -> None:
        """Record a message."""
        is_more = isinstance(message, AssistantMessage) and self._is_same_reply(message)
        if not is_more:
            self._write_reply()
        if isinstance(message, SystemMessage):
            if message.subtype == "init":
                self._begin(message.data)
        elif isinstance(message, AssistantMessage):
            self._begin({"session_id": message.session_id})
            self._reply.append(message)
            for block in message.content:
                if isinstance(block, ToolUseBlock):
                    above = self._above(message.parent_tool_use_id)
                    self._tools[block.id] = above.tool(block.name, block.input, id=block.id).start()
        elif isinstance(message, UserMessage):
            self._end_tools(message)
        elif isinstance(message, ResultMessage):
            self._finish(message)

    def end(self, status: str, error: BaseException | None = None) -> None:
        """End the run, if one is open."""
        self._write_reply()
        run, self._run = self._run, None
        if run is None:
            return
        for span in reversed(self._tools.values()):
            span.end(status=status)
        self._tools.clear()
        if error is not None:
            run.fail(error)
        run.end(status=status)

    def _begin(self, given: dict[str, Any]) -> None:
        if self._run is not None:
            return
        known = self._session = {**self._session, **given}
        session, folder = known.get("session_id"), known.get("cwd")
        is_session = isinstance(session, str) and bool(session)
        namespace = thread_namespace(project_key_for_directory(folder)) if isinstance(folder, str) else None
        thread = thread_name(str(session), "session id", limit=200, slashes=False) if is_session else None
        self._run = self._opened.store.run(agent=self._agent, thread=thread, namespace=namespace).start()
        if is_session:
            recorded_sessions[str(session)] = self._run
        if self._prompt is not None:
            self._run.message("user", self._prompt)
            self._prompt = None

    def _above(self, tool_use: str | None) -> RunNode:
        """The call that started the subagent whose message it is, or the run."""
        assert self._run is not None  # noqa: S101 - for the type checker
        span = None if tool_use is None else self._tools.get(tool_use)
        return span or self._run

    def _is_same_reply(self, message: AssistantMessage) -> bool:
        if not self._reply:
            return False
        last = self._reply[-1]
        return message.message_id is not None and message.message_id == last.message_id

    def _write_reply(self) -> None:
        parts, self._reply = self._reply, []
        if not parts or self._run is None:
            return
        last = parts[-1]
        content = [_plain_block(block) for part in parts for block in part.content]
        try:
            usage = usage_of(last.usage)
        except InvalidInput:
            usage = None
        self._above(last.parent_tool_use_id).message(
            "assistant", {"role": "assistant", "content": content}, model=last.model, usage=usage
        )

    def _end_tools(self, message: UserMessage) -> None:
        for block in message.content if isinstance(message.content, list) else ():
            span = self._tools.pop(block.tool_use_id, None) if isinstance(block, ToolResultBlock) else None
            if span is not None and isinstance(block, ToolResultBlock):
                if block.content is not None:
                    span.output = block.content
                span.end(status=ERROR if block.is_error else OK)

    def _finish(self, message: ResultMessage) -> None:
        self._begin({"session_id": message.session_id})
        if self._run is not None:
            details: dict[str, Any] = {
                "turns": message.num_turns,
                "reported_cost_usd": message.total_cost_usd,
            }
            errors = message.errors or ([message.result] if message.is_error and message.result else [])
            if message.is_error:
                details["error"] = {"type": message.subtype, "message": "; ".join(errors)}
            self._run.note(**{name: value for name, value in details.items() if value is not None})
        self.end(ERROR if message.is_error else OK)


def _plain_block(block: Any) -> dict[str, Any]:
    """Return a block as the Messages API writes it."""
    fields = {name: value for name, value in asdict(block).items() if value is not None}
    return {"type": _TYPES.get(block.__class__.__name__, block.__class__.__name__), **fields}


def _safely(record: Callable[[], object]) -> None:
    try:
        record()
    except Exception as error:  # noqa: BLE001 - recording must not stop the agent
        warnings.warn(f"a step could not be recorded: {error!r}", RuntimeWarning, stacklevel=3)
