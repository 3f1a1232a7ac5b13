"""Middleware for LangChain agents: `MemoryMiddleware` shows the model documents, `EffectMiddleware` makes
each tool call once, `CompactMiddleware` gives the model the compact view of a thread.

Documents are read again before each call and are not part of the saved conversation, so an edit takes effect
with the next call, and an expired document is no longer shown. `TreeringTracer` records what agents and
chains do.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from treering.adapters.langchain.tracing import TreeringTracer
from treering.adapters.shared import Opened, StoreOrUrl, compact_messages, json_text
from treering.adapters.tool_effects import IDEMPOTENCY_KEY, Probe, ToolEffects, named
from treering.compat.memory.middleware import create_agent_memory_middleware
from treering.core.ids import new_id
from treering.effects.effects import QUESTION, Effect, Effects, Intent, Replay, question_about
from treering.errors import Conflict, InvalidInput, MissingExtra
from treering.memory.documents import MemoryContext, MemoryDocument
from treering.sync_async import lent

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse, ToolCallRequest
    from langchain_core.messages import SystemMessage, ToolMessage, convert_to_messages
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import StructuredTool
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.config import get_config
    from langgraph.types import interrupt
    from pydantic import create_model
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"langchain", "langchain_core", "langgraph"}:
        raise MissingExtra("treering.adapters.langchain", "langchain") from error
    raise

if TYPE_CHECKING:
    from treering.threads.compaction import Tokenizer

__all__ = ["CompactMiddleware", "EffectMiddleware", "MemoryMiddleware", "TreeringTracer"]


class MemoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Memory for ``create_agent(model, middleware=[MemoryMiddleware(store.memory)])``.

    ``store`` is ``store.memory`` (plain or async), a store of `treering.compat.memory`, or `AgentFiles`,
    whose skills become a tool. The other arguments are those of `create_agent_memory_middleware`. ``last`` is
    what the model was shown last, with what was omitted.
    """

    def __init__(
        self,
        store: Any,
        *,
        auto_load: bool = True,
        max_documents: int | None = None,
        max_tokens: int | None = None,
        filter: Callable[[MemoryDocument], bool] | None = None,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._loader = create_agent_memory_middleware(
            store=store,
            auto_load=auto_load,
            max_documents=max_documents,
            max_tokens=max_tokens,
            filter=filter,
            order=order,
        )
        self.tools = [StructuredTool.from_function(function) for function in self._loader.tools]
        self.last: MemoryContext | None = None

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the documents after its system message."""
        return handler(self._with_memory(request, self._loader.context()))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Async twin of `wrap_model_call`."""
        with lent(asyncio.get_running_loop()):
            context = await asyncio.to_thread(self._loader.context)
        return await handler(self._with_memory(request, context))

    def _with_memory(self, request: ModelRequest[Any], context: MemoryContext) -> ModelRequest[Any]:
        self.last = context
        if not context.text:
            return request
        before = request.system_message
        blocks: list[Any] = [] if before is None else list(before.content_blocks)
        content = [*blocks, {"type": "text", "text": f"\n\n{context.text}" if blocks else context.text}]
        return request.override(system_message=SystemMessage(content=content))


class CompactMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives the model the compact view: ``create_agent(model, middleware=[CompactMiddleware(store)])``.

    A boundary that `Thread.compact` draws counts from the next model call on; the messages of the graph's
    state stay as they are. ``budget_tokens`` leaves out the oldest messages after the summary until the rest
    fits, counted with ``tokenizer`` or else estimated (see `Checkpoint.compact_view`). For a graph of your
    own: ``create_react_agent(model, tools, pre_model_hook=middleware.pre_model_hook)``.
    """

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        budget_tokens: int | None = None,
        tokenizer: Tokenizer = None,
        namespace: str = "",
    ) -> None:
        super().__init__()
        self._opened = Opened(store)
        self._budget = budget_tokens
        self._tokenizer = tokenizer
        self._namespace = namespace

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the compact view of the messages."""
        return handler(request.override(messages=self._view(request.messages, get_config())))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Async twin of `wrap_model_call`."""
        messages = await self._opened.bridge.call(self._view, request.messages, get_config())
        return await handler(request.override(messages=messages))

    def pre_model_hook(self, state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
        """Return what the model is given instead of the messages of the state."""
        return {"llm_input_messages": self._view(state["messages"], config)}

    def _view(self, messages: Sequence[Any], config: Any) -> list[Any]:
        where: dict[str, Any] = config.get("configurable") or {}
        thread_id = where.get("thread_id")
        if thread_id is None or "|" in where.get("checkpoint_ns", ""):  # a subgraph has messages of its own
            return list(messages)
        return compact_messages(
            self._opened.store.thread(str(thread_id), self._namespace),
            messages,
            plain=lambda message: message.model_dump(),
            load=convert_to_messages,
            budget_tokens=self._budget,
            tokenizer=self._tokenizer,
        )


class EffectMiddleware(AgentMiddleware[Any, Any, Any]):
    """Makes each tool call of ``create_agent(model, tools, middleware=[EffectMiddleware(store)])`` once.

    ``replay`` says what to do with calls whose process died: ``{"search": "safe"}`` for some tools (the
    others are ``"once"``), or one word for all; a tool may say so itself with ``metadata={"replay": ...}``. A
    tool with a parameter ``idempotency_key`` receives the key of the call and the model does not see the
    parameter if it is declared as ``Annotated[str, InjectedToolArg]``. If nobody knows whether a call
    happened, the graph is interrupted: resume it with ``{"decision": "approve" | "deny" | "edit", "value":
    ...}`` (see the agent loop), or decide with ``store.effects`` and invoke it with ``None``. ``probes``
    decide without a person. For a graph of your own: ``ToolNode(tools,
    wrap_tool_call=middleware.wrap_tool_call, awrap_tool_call=middleware.awrap_tool_call)``.
    """

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        replay: Replay | Mapping[str, Replay] | None = None,
        probes: Mapping[str, Probe] | None = None,
        namespace: str = "",
        agent: str | None = None,
    ) -> None:
        super().__init__()
        self._calls = ToolEffects(store, replay=replay, probes=probes, namespace=namespace, agent=agent)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Make a call, unless its outcome is known."""
        intent = self._intent(request)
        if intent is None:
            return handler(request)
        _wait_for_checkpoint(request)
        begun = self._calls.open(intent)
        while isinstance(begun, Effect):
            if begun.is_finished:
                return _message(request, begun)
            _decide(self._calls.effects, begun)
            begun = self._calls.open(intent)
        with begun:
            result = handler(_with_key(request, begun.effect))
            value, is_error = _plain(result)
            begun.finish(value, is_error=is_error)
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Async twin of `wrap_tool_call`."""
        intent = self._intent(request)
        if intent is None:
            return await handler(request)
        await _await_checkpoint(request)
        while True:
            result = await self._calls.acall(
                intent, lambda effect: handler(_with_key(request, effect)), plain=_plain
            )
            if not isinstance(result, Effect):
                return result
            if result.is_finished:
                return _message(request, result)
            answer = _ask(result)
            await self._calls.arun(_apply, self._calls.effects, result, answer)

    def _intent(self, request: ToolCallRequest) -> Intent | None:
        """Return the intent of a call; ``None`` if it may simply be repeated."""
        call, tool = request.tool_call, request.tool
        if tool is None:
            return None  # it does not exist, and the model is told so
        replay = self._calls.replay_of(call["name"], (tool.metadata or {}).get("replay"))
        if replay == "safe":
            return None
        where = _where(request)
        thread_id, task = where.get("thread_id"), where.get("checkpoint_ns")
        reply = _reply_id(request) or task
        name = new_id() if thread_id is None or reply is None else named(thread_id, reply, call["id"])
        return self._calls.intent(
            name,
            call["name"],
            call["args"],
            replay=replay,
            takes_key=IDEMPOTENCY_KEY in _fields(tool),
            call_id=call["id"],
            thread_id=thread_id,
        )


def _where(request: ToolCallRequest) -> dict[str, Any]:
    """Return what the configuration of a call says about its thread."""
    config: Any = cast("Any", request).runtime.config
    return config.get("configurable") or {}


def _fields(tool: Any) -> dict[str, Any]:
    """Return the parameters of a tool, with those that the model does not see."""
    return dict(tool.get_input_schema().model_fields)


def _reply_id(request: ToolCallRequest) -> str | None:
    """Return the id of the reply that asks for a call: calls of different replies may have the same id."""
    state: Any = request.state
    messages: Any = getattr(state, "messages", state)
    if isinstance(state, Mapping):
        messages = cast("Mapping[str, Any]", state).get("messages")
    for message in reversed(cast("list[Any]", messages if isinstance(messages, list) else [])):
        calls = getattr(message, "tool_calls", ())
        if any(each["id"] == request.tool_call["id"] for each in calls):
            return message.id
    return None


_SERIALIZER: Final = JsonPlusSerializer()
_CHECKPOINT_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.01


def _step(request: ToolCallRequest) -> tuple[Any, Any]:
    """Return the checkpointer, and where the checkpoint is that asks for a call; ``None`` without one."""
    where = _where(request)
    saver: Any = where.get("__pregel_checkpointer")
    known: dict[str, str] = where.get("checkpoint_map") or {}
    if not hasattr(saver, "get_tuple") or not known:
        return None, None
    namespace = max(known, key=len)
    return saver, {
        "configurable": {
            "thread_id": where["thread_id"],
            "checkpoint_ns": namespace,
            "checkpoint_id": known[namespace],
        }
    }


def _wait_for_checkpoint(request: ToolCallRequest) -> None:
    """Wait until the reply that asks for a call is stored; else the next process asks the model again."""
    saver, where = _step(request)
    if saver is None:
        return
    deadline = time.monotonic() + _CHECKPOINT_SECONDS
    while saver.get_tuple(where) is None:
        _check_deadline(request, deadline)
        time.sleep(_POLL_SECONDS)


async def _await_checkpoint(request: ToolCallRequest) -> None:
    saver, where = _step(request)
    if saver is None:
        return
    deadline = time.monotonic() + _CHECKPOINT_SECONDS
    while await saver.aget_tuple(where) is None:
        _check_deadline(request, deadline)
        await asyncio.sleep(_POLL_SECONDS)


def _check_deadline(request: ToolCallRequest, deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise InvalidInput(
            f"the reply that calls {request.tool_call['name']!r} was not saved, so after a crash the call "
            "would be made again; invoke the graph with durability='sync' or 'async', not 'exit'"
        )


def _decide(effects: Effects, effect: Effect) -> None:
    _apply(effects, effect, _ask(effect))


def _ask(effect: Effect) -> Any:
    """Interrupt the graph until a person has decided."""
    call = {"id": effect.call_id, "name": effect.tool, "arguments": effect.arguments}
    return interrupt({"tool_call": call, "effect": question_about(effect), "question": QUESTION})


def _apply(effects: Effects, effect: Effect, answer: Any) -> None:
    given: dict[str, Any] = (
        cast("dict[str, Any]", answer) if isinstance(answer, dict) else {"decision": answer}
    )
    decision = given.get("decision")
    with suppress(Conflict):  # somebody has decided with `treering effects` meanwhile
        if decision == "approve":
            effects.retry(effect.id)
        elif decision == "deny":
            effects.abandon(effect.id)
        elif decision == "edit":
            effects.resolve(effect.id, happened=True, result=given.get("value"))
        else:
            raise InvalidInput(
                f"the answer about effect {effect.id} is {answer!r}; resume with "
                '{"decision": "approve" | "deny" | "edit", "value": ...}'
            )


def _with_key(request: ToolCallRequest, effect: Effect) -> ToolCallRequest:
    """Return a request whose tool has the idempotency key, if it takes one, whatever the model gave."""
    tool: Any = request.tool
    if not effect.takes_key:
        return request
    if not isinstance(tool, StructuredTool):
        raise InvalidInput(
            f"tool {effect.tool!r} takes an {IDEMPOTENCY_KEY}; make it with @tool or StructuredTool"
        )
    fields: dict[str, Any] = {
        name: (field.annotation, field) for name, field in _fields(tool).items() if name != IDEMPOTENCY_KEY
    }
    bound = {IDEMPOTENCY_KEY: effect.key}
    changes = {
        "args_schema": create_model(effect.tool, **fields),
        "func": tool.func and partial(tool.func, **bound),
        "coroutine": tool.coroutine and partial(tool.coroutine, **bound),
    }
    arguments = {name: value for name, value in request.tool_call["args"].items() if name != IDEMPOTENCY_KEY}
    call: Any = {**request.tool_call, "args": arguments}
    return request.override(tool=tool.model_copy(update=changes), tool_call=call)


def _plain(result: Any) -> tuple[Any, bool]:
    """Return the outcome of a call as plain data that `_message` restores, and whether it is an error."""
    if isinstance(result, ToolMessage):
        return result.model_dump(mode="json"), result.status == "error"
    kind, data = _SERIALIZER.dumps_typed(result)  # a Command, or several messages
    return {"type": kind, "data": base64.b64encode(data).decode()}, False


def _message(request: ToolCallRequest, effect: Effect) -> Any:
    """Return the outcome of an earlier attempt as the result of this call."""
    found = effect.result
    if isinstance(found, dict) and {"type", "data"} == found.keys():
        stored = cast("dict[str, str]", found)
        return _SERIALIZER.loads_typed((stored["type"], base64.b64decode(stored["data"])))
    if isinstance(found, dict) and "tool_call_id" in found:
        return ToolMessage.model_validate(found)
    return ToolMessage(
        content=found if isinstance(found, str) else json_text(found),
        name=effect.tool,
        tool_call_id=request.tool_call["id"],
        status="error" if effect.is_error else "success",
    )
