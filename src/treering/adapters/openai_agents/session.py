"""A session for the OpenAI Agents SDK, kept as a thread.

    session = TreeringSession("alice", "./agents")
    result = await Runner.run(agent, "Where is my refund?", session=session)

Each `add_items` is one durable checkpoint of the thread of the same id, which can be rewound, forked and
compared like any other, from any process. `pop_item` and `clear_session` save a shorter checkpoint: what they
take away is still in the checkpoints before.

The runner saves a turn when all of its tools are done. The hooks of `checkpoint_after_tool_call` save each
tool's result as soon as it is there, in the state of the thread. A turn that was cut off is read as far as it
got; when the runner saves the whole turn, that takes its place. **Invariant:** items of two writers stand
behind each other, whole; none is lost, and no tool result is kept twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from treering.adapters.conversation import look
from treering.adapters.names import is_plain, thread_name
from treering.adapters.openai_agents.tracing import TreeringTracingProcessor
from treering.adapters.opening import Opened, SerialExecutor, StoreOrUrl
from treering.errors import InvalidInput, MissingExtra
from treering.sync_async import Closing
from treering.threads.checkpoint import Checkpoint
from treering.threads.checkpoint_record import MESSAGES
from treering.threads.thread import ThreadMoved

try:
    from agents import (
        Agent,
        AgentHookContext,
        ItemHelpers,
        ModelResponse,
        RunContextWrapper,
        RunHooks,
        SessionSettings,
        Tool,
        TResponseInputItem,
        UserError,
    )
    from agents.tool_context import ToolContext
    from openai.types.responses import ResponseFunctionToolCall
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"agents", "openai"}:
        raise MissingExtra("treering.adapters.openai_agents", "openai-agents") from error
    raise

__all__ = ["TreeringSession", "TreeringTracingProcessor"]

UNFINISHED: Final = "unfinished_turn"
"""The state value that holds the tool results of a turn which the runner has not saved yet."""

_RESPONSE: Final = "response"
_OUTPUT: Final = "output/"
_TRIES: Final = 100

T = TypeVar("T")
Item = dict[str, Any]


class TreeringSession(Closing):
    """A `Session` of the Agents SDK: its items are the messages of ``store.thread(session_id, namespace)``.

    ``store_or_url`` is an open store, which stays yours to close, or where one is, which `close` closes.
    A ``session_id`` may be any string; one that cannot be a thread id gets a hash of it (see `thread_id`).
    """

    session_id: str
    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store_or_url: StoreOrUrl | None = None,
        *,
        namespace: str = "",
        session_settings: SessionSettings | Mapping[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = (
            session_settings
            if isinstance(session_settings, SessionSettings)
            else SessionSettings(**(session_settings or {}))
        )
        name = thread_name(session_id, "session id")
        place = thread_name(namespace, "namespace") if namespace else ""
        self._metadata = {} if is_plain(session_id) else {"session_id": session_id}
        self._opened = Opened(store_or_url)
        self._thread = self._opened.store.thread(name, place)
        self._lane = SerialExecutor(self._opened.bridge)
        self._seen: Checkpoint | None = None
        self._added: list[str] = []

    @property
    def thread_id(self) -> str:
        """The thread that holds the session: its id, or a hash where that cannot be one."""
        return self._thread.id

    @property
    def namespace(self) -> str:
        """The namespace of the thread."""
        return self._thread.namespace

    # What the SDK calls
    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The conversation, or its last ``limit`` items (without one: those of the session's settings).

        As with the SDK's own sessions a negative limit is none. Only the items asked for are read.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items = await self._lane.call(self._get, None if limit is None or limit < 0 else limit)
        return cast("list[TResponseInputItem]", items)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Save items behind those that are there, as one checkpoint; durable when this returns."""
        if items:
            given = _checked_items(items)
            await self._lane.settle(self._saved, self._adding(given))
            self._added = _call_ids(given) or self._added

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item away and return it; ``None`` when there is none."""
        return cast("TResponseInputItem | None", await self._lane.settle(self._retried, self._pop))

    async def clear_session(self) -> None:
        """Make the session empty. Earlier checkpoints stay; ``store.forget(thread=...)`` erases them."""
        await self._lane.settle(self._retried, self._clear)

    # What it adds
    def checkpoint_after_tool_call(self, hooks: RunHooks[Any] | None = None) -> RunHooks[Any]:
        """Hooks for one run that save every function tool's result at once, and then call ``hooks``.

        After a crash, ``Runner.run(agent, [], session=...)`` goes on behind the last tool that ended.
        """
        return _ToolCheckpoints(self, hooks)

    def close(self) -> None:
        """Close the store if this session opened it. May be called twice."""
        self._opened.close()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        await self._opened.aclose()

    def __repr__(self) -> str:
        return f"TreeringSession({self.session_id!r}, {self._opened.store!r})"

    async def save_tool_result(self, response: list[Item], output: Item, *, tool: str) -> None:
        """Save that a tool of this model response returned; `checkpoint_after_tool_call` does it for you.

        A call that is an item already (a person had to allow it first) needs no response.
        """
        call_id = output["call_id"]
        said = [] if call_id in self._added else response

        def save(checkpoint: Checkpoint | None) -> Checkpoint | None:
            turn = _unfinished(checkpoint)
            left: list[Item] = []
            if not turn or (turn[_RESPONSE] != said and call_id not in _call_ids(turn[_RESPONSE])):
                left, turn = _as_items(turn), {_RESPONSE: said}
            turn = {**turn, _OUTPUT + call_id: output}
            state = {**(checkpoint.state if checkpoint is not None else {}), UNFINISHED: turn}
            return self._thread.append(*left, state=state, metadata=self._metadata, note=f"tool: {tool}")

        await self._lane.settle(self._saved, save)

    # How it is done, in the lane
    def _saved(self, save: Callable[[Checkpoint | None], Checkpoint | None]) -> None:
        """Save behind the checkpoint that was seen last; look for the newest one only if that fails."""
        seen, self._seen = self._seen, None
        if seen is not None:
            try:
                self._seen = save(seen)
            except ThreadMoved:
                pass
            else:
                return
        self._seen = self._retried(save)

    def _retried(self, save: Callable[[Checkpoint | None], T]) -> T:
        """Save behind the newest checkpoint, again if someone else was quicker."""
        self._seen = None  # what the thread sees from here on is newer
        for _ in range(_TRIES - 1):
            try:
                return save(self._thread.head)
            except ThreadMoved:
                continue
        return save(self._thread.head)

    def _get(self, limit: int | None) -> list[Item]:
        return look(lambda: self._look(limit))

    def _look(self, limit: int | None) -> list[Item]:
        checkpoint = self._seen = self._thread.load()
        if checkpoint is None or limit == 0:
            return []
        tail = _as_items(_unfinished(checkpoint))
        if limit is None:
            return checkpoint.items(MESSAGES) + tail
        return checkpoint.last_messages(max(limit - len(tail), 0)) + tail[-limit:]

    def _adding(self, items: list[Item]) -> Callable[[Checkpoint | None], Checkpoint | None]:
        def add(checkpoint: Checkpoint | None) -> Checkpoint | None:
            turn = _unfinished(checkpoint)
            is_its_turn = any(_OUTPUT + str(item.get("call_id")) in turn for item in items)
            left = [] if is_its_turn else _as_items(turn)
            return self._thread.append(
                *left, *items, state=_without(checkpoint, turn), metadata=self._metadata
            )

        return add

    def _pop(self, checkpoint: Checkpoint | None) -> Item | None:
        if turn := _unfinished(checkpoint):
            self._thread.append(*_as_items(turn), state=_without(checkpoint, turn), metadata=self._metadata)
            checkpoint = self._thread.head
        length = _length(checkpoint)
        if checkpoint is None or not length:
            return None
        (item,) = checkpoint.last_messages(1)
        saved = self._thread.shorten(length - 1, metadata=self._metadata, note="pop_item")
        return None if saved is None else item

    def _clear(self, checkpoint: Checkpoint | None) -> None:
        if turn := _unfinished(checkpoint):
            state = _without(checkpoint, turn)
            self._thread.checkpoint(state=state, metadata=self._metadata, note="clear_session")
        if _length(checkpoint):
            self._thread.shorten(0, metadata=self._metadata, note="clear_session")


class _ToolCheckpoints(RunHooks[Any]):
    """Saves tool results as they come; everything is passed on to the caller's own hooks."""

    def __init__(self, session: TreeringSession, hooks: RunHooks[Any] | None) -> None:
        self._session = session
        self._hooks: RunHooks[Any] = hooks or RunHooks()
        self._responses: dict[str, list[Item]] = {}

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        items = [cast("Item", item) for item in response.to_input_items()]
        self._responses.update(dict.fromkeys(_call_ids(items), items))
        await self._hooks.on_llm_end(context, agent, response)

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object
    ) -> None:
        if isinstance(context, ToolContext) and context.tool_call is not None:
            output = _output_item(context.tool_call, tool, result)
            response = self._responses.pop(context.tool_call_id, [])
            await self._session.save_tool_result(response, output, tool=tool.name)
        await self._hooks.on_tool_end(context, agent, tool, result)

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Agent[Any]) -> None:
        await self._hooks.on_agent_start(context, agent)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Agent[Any], output: Any) -> None:
        await self._hooks.on_agent_end(context, agent, output)

    async def on_handoff(
        self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]
    ) -> None:
        await self._hooks.on_handoff(context, from_agent, to_agent)

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        await self._hooks.on_tool_start(context, agent, tool)


def _output_item(call: ResponseFunctionToolCall, tool: Tool, result: object) -> Item:
    """A tool's result as the runner will save it; the type that the tool declares says how."""
    try:
        made = ItemHelpers.tool_call_output_item(
            call,
            result,
            output_json_schema=getattr(tool, "output_json_schema", None),
            output_type_adapter=getattr(tool, "_output_type_adapter", None),
        )
    except UserError:  # not of that type: what the tool said when it failed
        made = ItemHelpers.tool_call_output_item(call, result)
    return cast("Item", made)


def _unfinished(checkpoint: Checkpoint | None) -> dict[str, Any]:
    if checkpoint is None or UNFINISHED not in checkpoint.record.state:
        return {}
    return checkpoint.state[UNFINISHED]


def _as_items(turn: Mapping[str, Any]) -> list[Item]:
    """A turn that was cut off, as the runner would have saved it: what the model said, then the results."""
    return [*turn.get(_RESPONSE, ()), *(output for name, output in turn.items() if name != _RESPONSE)]


def _without(checkpoint: Checkpoint | None, turn: Mapping[str, Any]) -> dict[str, Any] | None:
    """The state without the unfinished turn; ``None`` (as it was) when there is none."""
    if checkpoint is None or not turn:
        return None
    return {name: value for name, value in checkpoint.state.items() if name != UNFINISHED}


def _checked_items(given: Any) -> list[Item]:
    items: list[Any] = list(cast("list[Any]", given)) if isinstance(given, (list, tuple)) else [given]
    for each in items:
        if not isinstance(each, Mapping):
            raise InvalidInput(f"an item of a session is of type {type(each).__name__}; pass a list of dicts")
    return items


def _call_ids(items: list[Item]) -> list[str]:
    return [item["call_id"] for item in items if item.get("type") == "function_call"]


def _length(checkpoint: Checkpoint | None) -> int:
    stretch = None if checkpoint is None else checkpoint.record.lists.get(MESSAGES)
    return 0 if stretch is None else stretch.length
