"""Record the output streams of coding agents while they run, in all supported formats.

``claude-code`` is ``claude -p --output-format stream-json --verbose``, ``codex`` is ``codex exec --json``,
and ``acp`` are the notifications of the Agent Client Protocol. **Invariant:** no line is lost silently. A
line that is not JSON, or whose type is unknown, is stored as a message with role ``line`` and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import msgspec

from treering.core.batch import Usage
from treering.core.clock import SystemClock
from treering.errors import InvalidInput
from treering.importers.claude_code.turns import (
    CONVERSATION,
    MAIN,
    MAX_TOKENS,
    ClaudeLine,
    ClaudeTurn,
    claude_usage,
    model_usage,
    read_line,
    time_us,
)
from treering.importers.lines import decode_line
from treering.importers.recording import SessionRecorder, span_label
from treering.importers.registry import added, covers, without

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.importers.recording import IdOf, OnUsage
    from treering.runs.span import RunNode


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
    """Records the session updates of the Agent Client Protocol.

    Text arrives in chunks. Consecutive chunks of one kind are one message, which keeps the time of each
    chunk.
    """

    def __init__(self, recorder: SessionRecorder) -> None:
        self._recorder = recorder
        self._role = ""
        self._name = ""
        self._parts: list[Any] = []
        self._times: list[int] = []
        self.last_message: str | None = None
        """The last message of the agent."""

    def take(self, update: Mapping[str, Any], *, name: str, ts_us: int) -> bool:
        """Record an update; return whether its type is known."""
        kind = str(update.get("sessionUpdate"))
        if kind in _ROLES:
            self._chunk(_ROLES[kind], update.get("content"), name=name, ts_us=ts_us)
            return True
        if kind in _QUIET:
            return True
        self.flush()
        if kind in {"tool_call", "tool_call_update"}:
            self._tool(update, ts_us=ts_us)
        elif kind == "plan":
            self._recorder.message("plan", update.get("entries"), name=name, ts_us=ts_us)
        else:
            return False
        return True

    def flush(self) -> None:
        """Record the message that is being received."""
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        whole = "".join(parts) if all(isinstance(each, str) for each in parts) else parts
        if self._role == "assistant" and isinstance(whole, str):
            self.last_message = whole
        first = self._times[0]
        chunks = [each - first for each in self._times]
        self._recorder.message(
            self._role,
            whole,
            name=self._name,
            ts_us=first,
            metadata={"chunks_us": chunks} if len(chunks) > 1 and any(chunks) else None,
        )
        self._times = []

    def _chunk(self, role: str, content: Any, *, name: str, ts_us: int) -> None:
        if role != self._role:
            self.flush()
        if not self._parts:
            self._role, self._name = role, name
        block: Any = cast("dict[str, Any]", content) if isinstance(content, dict) else {"text": content}
        text = block.get("text")
        self._parts.append(text if isinstance(text, str) else content)
        self._times.append(ts_us)

    def _tool(self, update: Mapping[str, Any], *, ts_us: int) -> None:
        name = str(update.get("toolCallId") or "tool")
        label = span_label(update.get("title") or update.get("kind") or "tool")
        self._recorder.open(name, label, input=update.get("rawInput"), ts_us=ts_us)
        status = update.get("status")
        if status in {"completed", "failed"}:
            output = update.get("rawOutput")
            self._recorder.close(
                name,
                ts_us=ts_us,
                status="ok" if status == "completed" else "error",
                output=update.get("content") if output is None else output,
            )


def acp_usage(given: Any) -> Usage | None:
    """Return the tokens in a response to ``session/prompt``, if the agent reports them."""
    if not isinstance(given, dict):
        return None
    counts = cast("dict[str, Any]", given)

    def count(key: str) -> int:
        value = counts.get(key)
        return value if isinstance(value, int) and 0 < value < MAX_TOKENS else 0

    return Usage(
        input=count("inputTokens"),
        cache_read=count("cachedReadTokens"),
        cache_write=count("cachedWriteTokens"),
        output=count("outputTokens"),
        reasoning=count("thoughtTokens"),
    )


_ENVELOPE: Final = frozenset({"id", "type", "status"})
_FAILED: Final = frozenset({"failed", "error", "declined"})
_TOOLS: Final = {"command_execution": "shell", "file_change": "apply_patch", "web_search": "web_search"}
_OUTPUTS: Final = frozenset({"aggregated_output", "exit_code", "result", "error", "agents_states"})


def codex_usage(given: Mapping[str, Any] | None) -> Usage | None:
    """Return tokens by disjoint class; Codex includes cached tokens in the input."""
    if not given:
        return None
    total_input, cached = _count(given, "input_tokens"), _count(given, "cached_input_tokens")
    written = _count(given, "cache_write_input_tokens")
    return Usage(
        input=max(total_input - cached - written, 0),
        cache_read=min(cached, total_input),
        cache_write=written,
        output=_count(given, "output_tokens"),
        reasoning=_count(given, "reasoning_output_tokens"),
    )


class CodexItems:
    """Records the items of ``codex exec --json``.

    An item is reported when it starts, changes and completes. Tokens are reported once per turn, for the
    whole session; the model is not reported at all.
    """

    def __init__(self, recorder: SessionRecorder) -> None:
        self._recorder = recorder
        self.last_message: str | None = None
        """The last message of the agent."""

    def take(self, phase: str, item: Mapping[str, Any], *, name: str, ts_us: int) -> bool:
        """Record an item that started, changed or completed; return whether its type is known."""
        kind = item.get("type")
        is_done = phase == "completed"
        if kind == "agent_message":
            if is_done:
                self.last_message = str(item.get("text") or "")
                self._recorder.message("assistant", self.last_message, name=name, ts_us=ts_us)
        elif kind == "reasoning":
            if is_done:
                self._recorder.message("reasoning", item.get("text"), name=name, ts_us=ts_us)
        elif kind == "error":
            if is_done:
                self._recorder.message("error", item.get("message"), name=name, ts_us=ts_us)
        elif kind == "todo_list":
            if is_done:
                self._recorder.message("plan", item.get("items"), name=name, ts_us=ts_us)
        elif isinstance(kind, str) and (kind in _TOOLS or kind.endswith("tool_call")):
            self._tool(item, name=name, ts_us=ts_us, is_done=is_done)
        else:
            return False
        return True

    def _tool(self, item: Mapping[str, Any], *, name: str, ts_us: int, is_done: bool) -> None:
        label = _TOOLS.get(str(item["type"])) or "/".join(
            str(item[part]) for part in ("server", "tool") if item.get(part)
        )
        arguments = {key: value for key, value in item.items() if key not in _ENVELOPE | _OUTPUTS}
        self._recorder.open(name, label or str(item["type"]), input=arguments, ts_us=ts_us)
        if is_done:
            failed = str(item.get("status")) in _FAILED or item.get("error")
            output = {key: item[key] for key in _OUTPUTS if item.get(key) is not None}
            self._recorder.close(
                name,
                ts_us=ts_us,
                status="error" if failed else "ok",
                output=output.get("aggregated_output") if set(output) <= {"aggregated_output"} else output,
            )


def _count(given: Mapping[str, Any], key: str) -> int:
    value = given.get(key)
    return value if isinstance(value, int) and 0 < value < MAX_TOKENS else 0


StreamFormat = Literal["claude-code", "codex", "acp"]
FORMATS: Final[tuple[StreamFormat, ...]] = ("claude-code", "codex", "acp")

_LINE: Final = "line-"
_CLAUDE_QUIET: Final = frozenset({"system", "stream_event", "rate_limit_event", "tool_progress"})


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a stream."""

    session: str | None = None
    """The agent's own id of the session, with which it can be resumed."""
    model: str | None = None
    result: str | None = None
    """The last message of the agent."""
    is_error: bool = False
    usage: dict[str, Usage] = {}
    """Tokens of the whole session by model, as the agent counts them. To resume the session, pass them as
    ``before``."""
    cost: str | None = None
    """US dollars for the whole session, as the agent computes them."""
    lines: int = 0
    unknown: dict[str, int] = {}
    """The number of lines of each unknown type."""
    bad: tuple[int, ...] = ()
    """The numbers of the lines that are not JSON."""


def record_stream(
    run: RunNode,
    format: StreamFormat,
    lines: Iterable[bytes | str],
    *,
    model: str | None = None,
    before: Mapping[str, Usage] | None = None,
    is_resumed: bool = False,
    on_line: Callable[[bytes | str], None] | None = None,
    clock: Clock | None = None,
) -> StreamSummary:
    """Record a stream below a run, line by line, and return when it ends.

    Agents count tokens for a whole session. To resume a session, pass the ``usage`` of its last summary as
    ``before``, or at least ``is_resumed``, so that nothing is counted twice. Budgets are not checked, because
    a line reports what has already happened.

    Args:
        model: The model's name, for streams that do not name it.
        on_line: Called with each line first; an exception in it ends the recording.
    """
    stream = Stream(run, format, model=model, before=before, is_resumed=is_resumed, clock=clock)
    try:
        for line in lines:
            if on_line is not None:
                on_line(line)
            stream.take(line)
    except BaseException:
        stream.finish()
        raise
    return stream.finish()


class Stream:
    """A stream that is being recorded, for callers that have the lines one at a time."""

    def __init__(
        self,
        run: RunNode,
        format: StreamFormat,
        *,
        model: str | None = None,
        before: Mapping[str, Usage] | None = None,
        is_resumed: bool = False,
        clock: Clock | None = None,
        id_of: IdOf | None = None,
        is_live: bool = True,
        known: AbstractSet[str] = frozenset(),
        on_usage: OnUsage | None = None,
    ) -> None:
        if format not in _READERS:
            raise InvalidInput(f"unknown stream format {format!r}; use one of {', '.join(FORMATS)}")
        own = _claude_id if format == "claude-code" else _no_id
        self._recorder = SessionRecorder(
            run, is_live=is_live, id_of=id_of or own, known=known, on_usage=on_usage
        )
        self._reader = _READERS[format](self._recorder, model, dict(before or {}), is_resumed=is_resumed)
        self._clock = clock or SystemClock()
        self._lines = 0
        self._unknown: Counter[str] = Counter()
        self._bad: list[int] = []

    def take(self, line: bytes | str) -> None:
        """Record a line."""
        self._lines += 1
        text = line if isinstance(line, bytes) else line.encode("utf-8", "replace")
        if not text.strip():
            return
        now_us = self._clock.now_us()
        name = f"{_LINE}{self._lines}"
        try:
            value = decode_line(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._bad.append(self._lines)
            self._recorder.message("line", text.decode("utf-8", "replace"), name=name, ts_us=now_us)
            return
        kind = self._reader.take(value, text, name=name, now_us=now_us)
        if kind is not None:
            self._unknown[kind] += 1
            self._recorder.message("line", value, name=name, ts_us=now_us, metadata={"type": kind})

    def finish(self) -> StreamSummary:
        """End the stream: record what is incomplete, and return the summary."""
        self._reader.finish(self._clock.now_us())
        self._recorder.finish(self._clock.now_us())
        return msgspec.structs.replace(
            self._reader.summary, lines=self._lines, unknown=dict(self._unknown), bad=tuple(self._bad)
        )


class _Reader(Protocol):
    summary: StreamSummary

    def take(self, value: Any, text: bytes, *, name: str, now_us: int) -> str | None: ...
    def finish(self, now_us: int) -> None: ...


class _Claude:
    def __init__(
        self, recorder: SessionRecorder, model: str | None, before: dict[str, Usage], *, is_resumed: bool
    ) -> None:
        self.summary = StreamSummary(model=model)
        self._recorder = recorder
        self._turn = ClaudeTurn(recorder)
        self._before = before
        self._is_resumed = is_resumed and not before
        self._rest: dict[str, Usage] = {}
        self._seen: dict[str, Usage] = {}

    def take(self, value: Any, text: bytes, *, name: str, now_us: int) -> str | None:
        try:
            line = read_line(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _type_of(value)
        model = value.get("model")
        self._note(session=line.stream_session, model=model if isinstance(model, str) else None)
        if line.type in CONVERSATION:
            ts_us = line.ts_us or now_us
            self._turn.take(line, ts_us=ts_us, chain=self._chain(line, ts_us))
        elif line.type == "result":
            self._result(value, name, now_us)
        elif line.type == "system" and line.subtype == "task_notification":
            self._turn.end_chain(str(value.get("tool_use_id")))
        elif line.type not in _CLAUDE_QUIET:
            return line.type
        return None

    def finish(self, now_us: int) -> None:  # noqa: ARG002 - its lines have their own times
        self._turn.finish()

    def _chain(self, line: ClaudeLine, ts_us: int) -> str:
        if line.parent_tool is None:
            return MAIN
        agent = line.subagent_type or "subagent"
        return self._turn.chain(line.parent_tool, agent=agent, tool=line.parent_tool, ts_us=ts_us)

    def _result(self, value: dict[str, Any], name: str, now_us: int) -> None:
        """Record the output tokens, which only the last line of a turn reports completely."""
        self._turn.flush()
        reported = {
            model: model_usage(_mapping(each)) for model, each in _mapping(value.get("modelUsage")).items()
        }
        if self._is_resumed or not reported:
            self._count_turn(value, name, now_us)
        if any(not covers(reported.get(model, Usage()), each) for model, each in self._before.items()):
            self._before = {}  # the agent has started counting from zero
        for model, usage in ({} if self._is_resumed else reported).items():
            counted = self._turn.counted.get(model)
            for part in (self._before.get(model), self._rest.get(model)):
                counted = part if counted is None else counted if part is None else added(counted, part)
            self._add_rest(model, without(usage, counted), f"{name}-{model}", now_us)
        cost = value.get("total_cost_usd")
        self.summary = msgspec.structs.replace(
            self.summary,
            result=str(value["result"]) if value.get("result") is not None else self.summary.result,
            is_error=bool(value.get("is_error")),
            usage=reported or self.summary.usage,
            cost=None if cost is None else repr(cost),
        )

    def _count_turn(self, value: dict[str, Any], name: str, now_us: int) -> None:
        """Record the tokens of this turn only; all other counts include earlier turns."""
        usage, model = claude_usage(_mapping(value.get("usage"))), self.summary.model
        if usage is None or model is None:
            return
        counted = self._turn.counted.get(model, Usage())
        new = without(counted, self._seen.get(model))
        self._seen[model] = counted
        self._add_rest(model, Usage(output=max(usage.output - new.output, 0)), name, now_us)

    def _add_rest(self, model: str, rest: Usage, name: str, now_us: int) -> None:
        if rest.total:
            self._rest[model] = added(self._rest.get(model), rest)
            self._recorder.usage(rest, name=name, ts_us=now_us, model=model)

    def _note(self, *, session: Any, model: Any) -> None:
        if isinstance(session, str) and self.summary.session is None:
            self.summary = msgspec.structs.replace(self.summary, session=session)
        if isinstance(model, str) and self.summary.model is None:
            self.summary = msgspec.structs.replace(self.summary, model=model)


class _Codex:
    def __init__(
        self, recorder: SessionRecorder, model: str | None, before: dict[str, Usage], *, is_resumed: bool
    ) -> None:
        self.summary = StreamSummary(model=model)
        self._recorder = recorder
        self._items = CodexItems(recorder)
        self._key = model or ""
        self._counted = before.get(self._key)
        self._is_resumed = is_resumed and not before

    def take(self, value: Any, text: bytes, *, name: str, now_us: int) -> str | None:  # noqa: ARG002
        kind = _type_of(value)
        family, _, phase = kind.partition(".")
        if family == "item" and isinstance(value.get("item"), dict):
            item: dict[str, Any] = value["item"]
            if not self._items.take(phase, item, name=str(item.get("id") or name), ts_us=now_us):
                return f"item.{item.get('type')}"
        elif kind == "thread.started":
            self.summary = msgspec.structs.replace(self.summary, session=value.get("thread_id"))
        elif kind == "turn.completed":
            self._used(codex_usage(value.get("usage")), name, now_us)
        elif kind in {"turn.failed", "error"}:
            self._recorder.message(
                "error", value.get("error") or value.get("message"), name=name, ts_us=now_us
            )
            self.summary = msgspec.structs.replace(self.summary, is_error=True)
        elif kind != "turn.started":
            return kind
        return None

    def finish(self, now_us: int) -> None:  # noqa: ARG002
        self.summary = msgspec.structs.replace(self.summary, result=self._items.last_message)

    def _used(self, usage: Usage | None, name: str, now_us: int) -> None:
        if usage is None:
            return
        if self._counted is not None and not covers(usage, self._counted):
            self._counted = None  # the agent has started counting from zero
        rest = without(usage, self._counted)
        if self._is_resumed:  # it is unknown how many of them are new
            self._is_resumed = False
        elif rest.total:
            self._recorder.usage(rest, name=name, ts_us=now_us, model=self.summary.model)
        self._counted = usage
        self.summary = msgspec.structs.replace(self.summary, usage={self._key: usage})


class _Acp:
    def __init__(
        self, recorder: SessionRecorder, model: str | None, before: dict[str, Usage], *, is_resumed: bool
    ) -> None:
        del before, is_resumed  # tokens are reported for each prompt
        self.summary = StreamSummary(model=model)
        self._recorder = recorder
        self._updates = AcpUpdates(recorder)

    def take(self, value: Any, text: bytes, *, name: str, now_us: int) -> str | None:  # noqa: ARG002
        message = _mapping(value)
        method = message.get("method")
        given = _mapping(message.get("params"))
        session = given.get("sessionId")
        if isinstance(session, str) and self.summary.session is None:
            self.summary = msgspec.structs.replace(self.summary, session=session)
        if method == "session/update":
            update = _mapping(given.get("update"))
            ts_us = time_us(update.get("timestamp")) or now_us
            if not self._updates.take(update, name=name, ts_us=ts_us):
                return f"session/update {update.get('sessionUpdate')}"
        elif method is None and "stopReason" in _mapping(message.get("result")):
            self._updates.flush()
            usage = acp_usage(message["result"].get("usage"))
            if usage is not None and usage.total:
                self._recorder.usage(usage, name=name, ts_us=now_us, model=self.summary.model)
        elif method is None and "error" in message:
            self._recorder.message("error", message["error"], name=name, ts_us=now_us)
            self.summary = msgspec.structs.replace(self.summary, is_error=True)
        else:
            return str(method) if method else _type_of(value)
        return None

    def finish(self, now_us: int) -> None:  # noqa: ARG002
        self._updates.flush()
        self.summary = msgspec.structs.replace(self.summary, result=self._updates.last_message)


_READERS: Final[dict[str, Callable[..., _Reader]]] = {"claude-code": _Claude, "codex": _Codex, "acp": _Acp}


def _claude_id(name: str) -> str | None:
    """Keep Claude Code's ids, which are globally unique, so that an import finds them again."""
    return None if name.startswith(_LINE) else name


def _no_id(_: str) -> str | None:
    """Make new ids: other agents number their items from one in every session."""
    return None


def _type_of(value: Any) -> str:
    kind = _mapping(value).get("type")
    return kind if isinstance(kind, str) else "without a type"


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
