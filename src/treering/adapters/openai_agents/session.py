"""A session for the OpenAI Agents SDK, stored as a thread.

    session = TreeringSession("alice", "./agents")
    result = await Runner.run(agent, "Where is my refund?", session=session)

Each `add_items` is one durable checkpoint of the thread with the session's id, which can be rewound, forked
and compared like any other. `pop_item` and `clear_session` save a shorter checkpoint: the removed items are
still in the earlier ones.

The SDK is given the compact view of the thread (see `treering.threads.compaction`). When OpenAI's
`OpenAIResponsesCompactionSession`, on top of it, replaces items by a summary, that is a compaction: one
checkpoint whose view is what the SDK asked for, and which still has every item.

The runner saves a turn when all of its tools are done. The hooks of `checkpoint_after_tool_call` save each
tool's result at once, in the state of the thread. A turn that was interrupted is read as far as it got;
when the runner saves the whole turn, that replaces it. **Invariant:** the items of concurrent writers are
stored one after the other, never mixed; none is lost, and no tool result is stored twice.

A run that stops for approval is a `RunState`, which the SDK can write as JSON. It is part of the thread's
pending interrupt, whose payload lists the calls that wait: that is what a person reads. The answer may come
from anywhere: the dashboard, the command line, `Thread.resume`. **Invariant:** an answer is applied to the
state that it was given for, which the checkpoint before the answer holds.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from treering.adapters.conversation import retry_if_removed
from treering.adapters.openai_agents.tracing import TreeringTracingProcessor, session_runs
from treering.adapters.shared import Opened, SerialExecutor, StoreOrUrl, is_plain, thread_name
from treering.adapters.tool_effects import IDEMPOTENCY_KEY, Probe, ToolEffects, takes_key, without_key
from treering.effects.effects import Effect, Replay
from treering.errors import InvalidInput, MissingExtra, Vetoed
from treering.runs.span import current_node
from treering.sync_async import Closing
from treering.threads.checkpoint import MESSAGES, Checkpoint
from treering.threads.compaction import Compaction, Summary, from_stored, made_compaction
from treering.threads.hooks import COMPACTIONS
from treering.threads.thread import ThreadMoved, new_interrupt, save_compactions

if TYPE_CHECKING:
    from treering.threads.thread import Thread

try:
    from agents import (
        Agent,
        AgentHookContext,
        FunctionTool,
        ItemHelpers,
        ModelResponse,
        RunContextWrapper,
        RunHooks,
        RunState,
        SessionSettings,
        Tool,
        TResponseInputItem,
        UserError,
    )
    from agents.memory.session_settings import coerce_session_settings
    from agents.result import RunResultBase
    from agents.tool_context import ToolContext
    from openai.types.responses import ResponseFunctionToolCall
    from pydantic import BaseModel
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"agents", "openai"}:
        raise MissingExtra("treering.adapters.openai_agents", "openai-agents") from error
    raise

UNFINISHED: Final = "unfinished_turn"
"""The state value with the tool results of a turn that the runner has not saved yet."""

SOURCE: Final = "openai-agents"
"""Who made a compaction that the SDK asked for."""

_RESPONSE: Final = "response"
_OUTPUT: Final = "output/"
_ATTEMPTS: Final = 100

T = TypeVar("T")
Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CompactionSnapshot:
    """The last items of a session as OpenAI's compaction session reads and replaces them."""

    items: list[TResponseInputItem]
    complete: bool
    """Whether the session has no earlier items."""
    replace_suffix: Callable[[int, list[TResponseInputItem]], Awaitable[bool]]
    """Replace ``items[start:]`` in one checkpoint; false if the session has changed since."""


class TreeringSession(Closing):
    """A `Session` of the Agents SDK: its items are the messages of ``store.thread(session_id, namespace)``.

    ``store_or_url`` is an open store, which you close, or the URL of one, which `close` closes. A
    ``session_id`` may be any string; if it is no valid thread id, its hash is used (see `thread_id`).

    The trace of each `Runner.run` with the session is recorded as a run of its thread, with spans, tokens and
    cost; ``runs=False`` records none.
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
        runs: bool = True,
    ) -> None:
        self._records_runs = runs
        if runs:
            session_runs.register()
        self.session_id = session_id
        self.session_settings = _coerced(session_settings)
        name = thread_name(session_id, "session id")
        place = thread_name(namespace, "namespace") if namespace else ""
        self._metadata = {} if is_plain(session_id) else {"session_id": session_id}
        self._opened = Opened(store_or_url)
        self._thread = self._opened.store.thread(name, place)
        self._executor = SerialExecutor(self._opened.bridge)
        self._last: Checkpoint | None = None
        self._saved_call_ids: list[str] = []

    @property
    def thread_id(self) -> str:
        """The id of the session's thread: the session id, or its hash if that is no valid thread id."""
        return self._thread.id

    @property
    def namespace(self) -> str:
        """The namespace of the thread."""
        return self._thread.namespace

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the conversation, or its last ``limit`` items (default: the limit of the session's
        settings).

        As in the SDK's own sessions, a negative limit means none. Only the returned items are read. If the
        thread was compacted, by `Thread.compact` or by OpenAI's compaction session, the conversation begins
        with the summary; ``store.thread(session.thread_id).load().messages`` has all of it.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items = await self._executor.call(self._get, None if limit is None or limit < 0 else limit)
        return cast("list[TResponseInputItem]", items)

    async def wait_for_approval(self, result: RunResultBase) -> bool:
        """Keep a run that stopped for approval with the thread, as its pending interrupt.

        Return whether it waits. The answer may come from the dashboard, the command line or
        `Thread.resume`, in any process; `answered` then returns the state to go on with.
        """
        pending = pending_interrupt(result)
        if pending is not None:
            await self._executor.call(self._thread.checkpoint, pending_interrupt=pending, note="interrupt")
        return pending is not None

    async def answered(self, agent: Agent[Any]) -> RunState[Any] | None:
        """Return the state of the run that waited, with the calls approved or rejected as was answered.

        ``None`` if nothing was answered yet. ``await Runner.run(agent, state, session=session)`` goes on.
        """
        found = await self._executor.call(read_answer, self._thread)
        return None if found is None else await apply_answer(agent, *found)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items as one checkpoint; durable when this returns."""
        if items:
            given = _checked_items(items)
            with self._in_run():
                await self._executor.settle(self._save_after_last, self._appending(given))
            self._saved_call_ids = _call_ids(given) or self._saved_call_ids

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; ``None`` if there is none."""
        return cast(
            "TResponseInputItem | None", await self._executor.settle(self._save_after_head, self._pop)
        )

    async def clear_session(self) -> None:
        """Remove all items. Earlier checkpoints stay; ``store.forget(thread=...)`` erases them."""
        await self._executor.settle(self._save_after_head, self._clear)

    def checkpoint_after_tool_call(self, hooks: RunHooks[Any] | None = None) -> RunHooks[Any]:
        """Return hooks for one run that save every function tool's result at once, and then call ``hooks``.

        After a crash, ``Runner.run(agent, [], session=...)`` continues after the last tool that finished.
        """
        return _ToolCheckpoints(self, hooks)

    def effect_tools(
        self,
        tools: Iterable[Tool],
        *,
        replay: Replay | Mapping[str, Replay] | None = None,
        probes: Mapping[str, Probe] | None = None,
    ) -> list[Tool]:
        """Return tools whose calls happen once: ``agent.clone(tools=session.effect_tools(agent.tools))``.

        ``replay`` says what to do with calls whose process died: ``{"search": "safe"}`` for some tools (the
        others are ``"once"``), or one word for all. A function with a parameter ``idempotency_key`` receives
        the key of the call, which the model does not see. The SDK asks the model again after a crash, and its
        second reply has other ids; a call is the same as an earlier one if its tool and arguments are, and
        that one's result is not in the session. If nobody knows whether it happened, the run ends with a
        ``UserError`` that is caused by `EffectUnknown`: decide with ``store.effects``, or give ``probes``,
        and run again.
        """
        calls = ToolEffects(self._opened.store, replay=replay, probes=probes, namespace=self.namespace)
        return [_effect_tool(each, calls, self) if isinstance(each, FunctionTool) else each for each in tools]

    def has_result(self, call_id: str | None) -> bool:
        """Whether the result of a tool call is stored, also if a summary stands for it."""
        return any(
            item.get("type") == "function_call_output" and item.get("call_id") == call_id
            for item in retry_if_removed(self._everything)
        )

    def close(self) -> None:
        """Close the store, if it was opened here. May be called twice."""
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._opened.aclose()

    def __repr__(self) -> str:
        return f"TreeringSession({self.session_id!r}, {self._opened.store!r})"

    async def save_tool_result(self, response: list[Item], output: Item, *, tool: str) -> None:
        """Save the result of a tool that a model response called (see `checkpoint_after_tool_call`).

        The response is not needed if the call is stored already, because a person had to approve it first.
        """
        call_id = output["call_id"]
        calls = [] if call_id in self._saved_call_ids else response

        def save(checkpoint: Checkpoint | None) -> Checkpoint:
            turn = _unfinished(checkpoint)
            unsaved: list[Item] = []
            if not turn or (turn[_RESPONSE] != calls and call_id not in _call_ids(turn[_RESPONSE])):
                unsaved, turn = _turn_items(turn), {_RESPONSE: calls}
            turn = {**turn, _OUTPUT + call_id: output}
            state = {**(checkpoint.state if checkpoint is not None else {}), UNFINISHED: turn}
            return self._thread.append(*unsaved, state=state, metadata=self._metadata, note=f"tool: {tool}")

        with self._in_run():
            await self._executor.settle(self._save_after_last, save)

    @contextmanager
    def _in_run(self) -> Generator[None]:
        """What is saved inside is of the run that the calling code is in; the SDK saves the input first."""
        run = None
        if self._records_runs:
            run = session_runs.claim(self._opened, self._thread.id, self._thread.namespace)
        token = current_node.set(run) if run is not None and current_node.get() is None else None
        try:
            yield
        finally:
            if token is not None:
                current_node.reset(token)

    # OpenAI's compaction session looks for these two, and where they exist, replaces history in one step.
    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items by others, in one checkpoint. Earlier checkpoints still have the old ones."""
        if self._is_changed:
            return False
        given = _checked_items(items)

        def replace(checkpoint: Checkpoint | None) -> None:
            self._replace(checkpoint, 0, given)

        await self._executor.settle(self._save_after_head, replace)
        return True

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> CompactionSnapshot | None:
        """Return the last items, and how to replace some of them unless the session changes first.

        ``prune_prefix`` says which of the oldest items go as well, as far as it says so: `EncryptedSession`
        passes it for items that have expired.
        """
        if self._is_changed:
            return None
        seen = await self._executor.call(self._thread.get)
        if _unfinished(seen):
            return None
        view = _View(seen)
        items = await self._executor.call(view.last, limit)
        kept = view.length - len(items)

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            given = _checked_items(output)

            def replace(checkpoint: Checkpoint | None) -> bool:
                if checkpoint is None or seen is None or checkpoint.id != seen.id:
                    return False
                self._replace(checkpoint, kept + start, given, prune_prefix=prune_prefix)
                return True

            return bool(await self._executor.settle(self._save_after_head, replace))

        return CompactionSnapshot(
            items=cast("list[TResponseInputItem]", items), complete=not kept, replace_suffix=replace_suffix
        )

    @property
    def _is_changed(self) -> bool:
        """Whether a subclass changes what is added or read, which replacing history here would bypass."""
        names = ("add_items", "get_items", "clear_session")
        return any(getattr(type(self), name) is not getattr(TreeringSession, name) for name in names)

    def _replace(
        self,
        checkpoint: Checkpoint | None,
        start: int,
        items: list[Item],
        *,
        prune_prefix: Callable[[Any], bool] | None = None,
    ) -> None:
        view = _View(checkpoint)
        dropped = 0
        if prune_prefix is not None:
            dropped = sum(1 for _ in takewhile(prune_prefix, view.last(None)[:start]))
        state = _state_without_turn(checkpoint, _unfinished(checkpoint))
        self._save_view(view, dropped, start, items, note="compaction", state=state)

    def _save_view(
        self,
        view: _View,
        first: int,
        stop: int,
        items: list[Item],
        *,
        note: str,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Let the view be its items from ``first`` to ``stop``, then ``items``; nothing is removed."""
        if view.checkpoint is None:
            self._thread.append(*items, state=state, metadata=self._metadata, note=note)
            return
        keeps = 0
        if not first:
            keeps = stop if view.newest is None else min(stop, view.newest.keeps)
        made = Summary(messages=[*view.last(None)[max(first, keeps) : stop], *items])
        compaction = made_compaction(
            made,
            view.checkpoint.items(MESSAGES),
            keeps=keeps,
            since=view.start,
            end=view.count,
            now_us=self._opened.store.clock.now_us(),
            source=SOURCE,
        )
        made_so_far = [*view.checkpoint.compactions, compaction]
        save_compactions(self._thread, made_so_far, note, state=state, metadata=self._metadata)

    def _save_after_last(self, save: Callable[[Checkpoint | None], Checkpoint]) -> None:
        """Save after the checkpoint that was seen last; read the head only if that fails."""
        last, self._last = self._last, None
        if last is not None:
            try:
                self._last = save(last)
            except ThreadMoved:
                pass
            except Vetoed:
                return
            else:
                return
        self._last = self._save_after_head(save)

    def _save_after_head(self, save: Callable[[Checkpoint | None], T]) -> T | None:
        """Save after the head; try again if another writer was faster. A veto leaves the thread as it is."""
        try:
            return self._retry_if_moved(save)
        except Vetoed:
            return None

    def _retry_if_moved(self, save: Callable[[Checkpoint | None], T]) -> T:
        self._last = None  # outdated as soon as the thread is read
        for _ in range(_ATTEMPTS - 1):
            try:
                return save(self._thread.head)
            except ThreadMoved:
                continue
        return save(self._thread.head)

    def _get(self, limit: int | None) -> list[Item]:
        return retry_if_removed(lambda: self._read(limit))

    def _read(self, limit: int | None) -> list[Item]:
        checkpoint = self._last = self._thread.get()
        if checkpoint is None or limit == 0:
            return []
        tail = _turn_items(_unfinished(checkpoint))
        if limit is None:
            return _View(checkpoint).last(None) + tail
        return _View(checkpoint).last(max(limit - len(tail), 0)) + tail[-limit:]

    def _everything(self) -> list[Item]:
        """Return all items, also those that a summary stands for."""
        checkpoint = self._thread.get()
        return [] if checkpoint is None else checkpoint.messages + _turn_items(_unfinished(checkpoint))

    def _appending(self, items: list[Item]) -> Callable[[Checkpoint | None], Checkpoint]:
        def add(checkpoint: Checkpoint | None) -> Checkpoint:
            turn = _unfinished(checkpoint)
            is_its_turn = any(_OUTPUT + str(item.get("call_id")) in turn for item in items)
            unsaved = [] if is_its_turn else _turn_items(turn)
            return self._thread.append(
                *unsaved, *items, state=_state_without_turn(checkpoint, turn), metadata=self._metadata
            )

        return add

    def _pop(self, checkpoint: Checkpoint | None) -> Item | None:
        if turn := _unfinished(checkpoint):
            self._thread.append(
                *_turn_items(turn), state=_state_without_turn(checkpoint, turn), metadata=self._metadata
            )
            checkpoint = self._thread.head
        view = _View(checkpoint)
        if not view.length:
            return None
        (item,) = view.last(1)
        if view.count > view.start:
            self._thread.shorten(view.count - 1, metadata=self._metadata, note="pop_item")
        else:
            self._save_view(view, 0, view.length - 1, [], note="pop_item")
        return item

    def _clear(self, checkpoint: Checkpoint | None) -> None:
        if turn := _unfinished(checkpoint):
            state = _state_without_turn(checkpoint, turn)
            self._thread.checkpoint(state=state, metadata=self._metadata, note="clear_session")
        if _View(checkpoint).count:
            self._thread.shorten(0, metadata=self._metadata, note="clear_session")


def _effect_tool(tool: FunctionTool, calls: ToolEffects, session: TreeringSession) -> Tool:
    replay = calls.replay_of(tool.name)
    has_key = takes_key(tool.params_json_schema)
    if replay == "safe" and not has_key:
        return tool
    inner = tool.on_invoke_tool

    async def invoke(context: ToolContext[Any], text: str) -> Any:
        arguments: Any = json.loads(text) if text else {}
        name = await calls.arun(
            lambda: calls.recognised(
                session.thread_id,
                tool.name,
                arguments,
                was_delivered=lambda effect: session.has_result(effect.call_id),
            )
        )
        intent = calls.intent(
            name,
            tool.name,
            arguments,
            replay=replay,
            takes_key=has_key,
            call_id=context.tool_call_id,
            thread_id=session.thread_id,
        )

        async def call(effect: Effect) -> Any:
            key = {IDEMPOTENCY_KEY: effect.key} if has_key else {}
            return await inner(context, json.dumps({**effect.arguments, **key}))

        result = await calls.acall(intent, call, plain=_plain_output)
        if not isinstance(result, Effect):
            return result
        return result.result if result.is_finished else result.value()

    schema = without_key(tool.params_json_schema) if has_key else tool.params_json_schema
    return replace(tool, on_invoke_tool=invoke, params_json_schema=schema)


def _plain_output(output: Any) -> tuple[Any, bool]:
    if isinstance(output, BaseModel):
        return output.model_dump(mode="json"), False
    is_plain_data = isinstance(output, (str, int, float, list, dict, type(None)))
    return cast("Any", output) if is_plain_data else str(output), False


class _ToolCheckpoints(RunHooks[Any]):
    """Saves each tool result, and passes every call on to the caller's own hooks."""

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


def _coerced(settings: SessionSettings | Mapping[str, Any] | None) -> SessionSettings:
    """Return settings as the SDK's own sessions take them; an unknown name or a wrong type is an error."""
    if settings is None:
        return SessionSettings()
    try:
        return coerce_session_settings(settings if isinstance(settings, SessionSettings) else dict(settings))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"session_settings={settings!r} is not valid: {error}") from error


def _output_item(call: ResponseFunctionToolCall, tool: Tool, result: object) -> Item:
    """Return a tool's result as the runner will save it, which depends on the type that the tool declares."""
    try:
        made = ItemHelpers.tool_call_output_item(
            call,
            result,
            output_json_schema=getattr(tool, "output_json_schema", None),
            output_type_adapter=getattr(tool, "_output_type_adapter", None),
        )
    except UserError:  # not of that type: the error message of a tool that failed
        made = ItemHelpers.tool_call_output_item(call, result)
    return cast("Item", made)


def _unfinished(checkpoint: Checkpoint | None) -> dict[str, Any]:
    if checkpoint is None or UNFINISHED not in checkpoint.record.state:
        return {}
    return checkpoint.state[UNFINISHED]


def _turn_items(turn: Mapping[str, Any]) -> list[Item]:
    """Return an interrupted turn as the runner would have saved it: the response, then the results."""
    return [*turn.get(_RESPONSE, ()), *(output for name, output in turn.items() if name != _RESPONSE)]


def _state_without_turn(checkpoint: Checkpoint | None, turn: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state without the unfinished turn; ``None`` (unchanged) if there is none."""
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


class _View:
    """What the SDK is given of a checkpoint: ``lead``, then the messages from ``start`` on."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self.checkpoint = checkpoint
        stored = {} if checkpoint is None else checkpoint.record.lists
        self.count = stored[MESSAGES].length if MESSAGES in stored else 0
        self.newest: Compaction | None = None
        self.start = 0
        self.lead = 0
        made = [] if checkpoint is None else checkpoint.items(COMPACTIONS, last=1)
        if made:
            self.newest = from_stored(made[0])
            self.start = self.newest.upto
            self.lead = self.newest.keeps + len(self.newest.messages)

    @property
    def length(self) -> int:
        """The number of its items."""
        return self.lead + self.count - self.start

    def last(self, limit: int | None) -> list[Item]:
        """Return its last items, and read no others."""
        if self.checkpoint is None or limit == 0:
            return []
        if limit is not None and limit <= self.count - self.start:
            return self.checkpoint.last_messages(limit)
        items = self.checkpoint.compact_view().messages
        return items if limit is None else items[-limit:]


RUN_STATE: Final = "run_state"
CALLS: Final = "approvals"


def pending_interrupt(result: RunResultBase) -> dict[str, Any] | None:
    """Return what a run waits for: the calls to decide on, and beside them its state; ``None`` if it does not
    wait.
    """
    state: Any = cast("Any", result).to_state()
    calls = [
        {"call_id": each.call_id, "tool": each.name, "arguments": _arguments(each.arguments)}
        for each in state.get_interruptions()
    ]
    return new_interrupt({CALLS: calls}, None) | {RUN_STATE: state.to_json()} if calls else None


def _arguments(text: str | None) -> Any:
    """Return arguments as a person reads them: those of a function are JSON."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return text


def read_answer(thread: Thread) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the answer that a thread has, and the run state that it is about; ``None`` if there is none."""
    newest = list(islice(thread.history(), 2))
    answer = newest[0].metadata.get("resumed") if newest else None
    pending = newest[1].pending_interrupt if len(newest) > 1 else None
    state = cast("dict[str, Any]", pending).get(RUN_STATE) if isinstance(pending, dict) else None
    if not isinstance(answer, dict) or not isinstance(state, dict):
        return None
    return cast("dict[str, Any]", answer), cast("dict[str, Any]", state)


async def apply_answer(
    agent: Agent[Any], answer: Mapping[str, Any], run_state: dict[str, Any]
) -> RunState[Any]:
    """Return the state with each waiting call approved or rejected."""
    state: Any = await RunState.from_json(agent, run_state)
    decided = _decisions(answer)
    for each in state.get_interruptions():
        is_approved, message = decided.get(each.call_id, decided[None])
        if is_approved:
            state.approve(each)
        else:
            state.reject(each, rejection_message=message)
    return state


def _decisions(answer: Mapping[str, Any]) -> dict[str | None, tuple[bool, str | None]]:
    """Return the decision on each call, and under ``None`` that on all others."""
    if answer["decision"] != "edit":
        return {None: (answer["decision"] == "approve", None)}
    given: Any = answer["payload"]
    calls: Any = cast("dict[str, Any]", given).get(CALLS) if isinstance(given, dict) else None
    if not isinstance(calls, list):
        raise InvalidInput(
            'an edited answer lists the calls to decide on: {"approvals": [{"call_id": "...", '
            '"approve": false, "message": "why"}]}; calls that it leaves out are rejected'
        )
    decided: dict[str | None, tuple[bool, str | None]] = {None: (False, None)}
    for each in cast("list[dict[str, Any]]", calls):
        decided[each["call_id"]] = bool(each.get("approve", True)), each.get("message")
    return decided


__all__ = ["TreeringSession", "TreeringTracingProcessor"]
