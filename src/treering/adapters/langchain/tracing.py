"""Record LangChain and LangGraph as runs: `TreeringTracer` is a callback handler.

    agent.invoke(question, {"callbacks": [TreeringTracer("./agents")]})

The outermost call becomes a run with the same id (or a span, if a run is being recorded already), and each
call below it a span with the same id. Graphs and nodes are recorded as agents, models, tools and retrievers
as such. A model's answer is a message of its span, with its tokens and price. The handler only adds to the
recorder's queue, so sync and async code and parallel branches may share it. **Invariant:** recording never
breaks what is recorded; the only error that passes through is `BudgetExceeded`, before the call that would
exceed the budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

from treering.adapters.shared import Opened, StoreOrUrl, thread_name
from treering.core.batch import Usage
from treering.errors import BudgetExceeded, MissingExtra
from treering.runs.run import Run
from treering.runs.span import RunNode, Span, current_node, model_call
from treering.sync_async import Closing

try:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.documents import Document
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, LLMResult
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "langchain_core":
        raise MissingExtra("treering.adapters.langchain", "langchain") from error
    raise

_HIDDEN: Final = "langsmith:hidden"
_INTERRUPTS: Final = frozenset({"GraphInterrupt", "NodeInterrupt"})
_NAME_CHARS: Final = 200
_SHORT: Final = 500
_INPUT_KEYS: Final = ("input", "question", "query", "prompt")
_USER_ROLES: Final = frozenset({"user", "human"})


class TreeringTracer(BaseCallbackHandler, Closing):
    """A callback handler that records into a store.

    ``store_or_url`` is an open store, or where to open one, which `close` then closes. ``agent`` and
    ``thread`` name every run; by default they are the name of the outermost chain and LangGraph's
    ``thread_id``. ``inputs`` says whether to record what is sent to models and what nodes are given and
    return, which can be the whole conversation at each call; without it, only what is short in a state and
    its last message are recorded.
    """

    run_inline = True
    raise_error = True

    def __init__(
        self,
        store_or_url: StoreOrUrl | None = None,
        *,
        agent: str | None = None,
        thread: str | None = None,
        namespace: str | None = None,
        tags: Sequence[str] = (),
        inputs: bool = True,
    ) -> None:
        super().__init__()
        self._opened = Opened(store_or_url)
        self._agent = agent
        self._thread = thread
        self._namespace = namespace
        self._tags = tuple(tags)
        self._inputs = inputs
        self._runs: dict[UUID, Run] = {}
        self._nodes: dict[UUID, RunNode] = {}
        self._models: dict[UUID, tuple[str | None, dict[str, Any]]] = {}
        self._waiting: set[str] = set()
        """The runs that were interrupted to ask a person."""

    @property
    def root(self) -> RunNode | None:
        """The run that is being recorded; ``None`` if there is none, or there are several."""
        runs = list(self._runs.values())
        return runs[0] if len(runs) == 1 else None

    def flush(self) -> None:
        """Wait until everything recorded so far is durable."""
        self._opened.store.flush()

    def close(self) -> None:
        """Flush, and close the store if it was opened here."""
        self._opened.store.flush()
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._opened.bridge.call(self._opened.store.flush)
        await self._opened.aclose()

    # Chains
    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Start the span of a chain, a graph or a node."""

        def begin() -> None:
            above = self._nodes.get(parent_run_id) if parent_run_id is not None else None
            if above is not None and _HIDDEN in (tags or ()):
                self._nodes[run_id] = above
                return
            name = name_of(serialized, kwargs, "chain")
            given = metadata or {}
            agent = given.get("lc_agent_name") or (name if above is None else None)
            if agent is None and given.get("langgraph_node") == name:
                agent = name
            node = above or self._root(run_id, self._agent or agent or name, given)
            if above is None:
                self._record_input(node, inputs)
            is_agent = above is None or (agent is not None and agent != above.agent)
            span = self._span(
                node,
                run_id,
                str(agent) if is_agent else name,
                "agent" if is_agent else "chain",
                input=plain(inputs if self._inputs else _brief(inputs)) if is_agent else None,
                metadata=None if not is_agent or agent == name else {"node": name},
            )
            span.start()

        self._safely(begin)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """End the span of a chain."""
        self._safely(lambda: self._end(run_id, outputs))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """End the span of a chain that failed, or was interrupted to ask a person."""
        self._safely(lambda: self._fail(run_id, error))

    # Models
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Start the span of a chat model."""
        given = plain(messages[0] if len(messages) == 1 else messages)
        self._safely(lambda: self._call_model(serialized, given, run_id, parent_run_id, metadata, kwargs))

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Start the span of a text model."""
        given = prompts[0] if len(prompts) == 1 else list(prompts)
        self._safely(lambda: self._call_model(serialized, given, run_id, parent_run_id, metadata, kwargs))

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Record a streamed chunk."""
        span = self._nodes.get(run_id)
        if isinstance(span, Span) and isinstance(token, str) and token:
            self._safely(lambda: span.chunk(token))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Record the answer, and end the span."""

        def end() -> None:
            span = self._nodes.pop(run_id, None)
            if not isinstance(span, Span):
                return
            generations = [each for row in response.generations for each in row]
            messages = [each.message for each in generations if isinstance(each, ChatGeneration)]
            requested, provider_metadata = self._models.pop(run_id, (None, {}))
            model = model_of(messages, response) or requested
            span.model = model
            content: Any = [plain(message) for message in messages] or [each.text for each in generations]
            span.message(
                "assistant",
                content[0] if len(content) == 1 else content,
                model=model,
                usage=usage_of(messages, response),
                metadata=provider_metadata,
            )
            span.end()
            self._end_root(run_id)

        self._safely(end)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """End the span of a model call that failed."""
        self._safely(lambda: self._fail(run_id, error))

    # Tools and retrievers
    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Start the span of a tool."""
        call = kwargs.get("tool_call_id")

        def begin() -> None:
            node = self._above(run_id, parent_run_id, name_of(serialized, kwargs, "tool"), metadata)
            self._span(
                node,
                run_id,
                name_of(serialized, kwargs, "tool"),
                "tool",
                input=plain(input_str if inputs is None else inputs),
                metadata={"tool_call_id": call} if call else None,
            ).start()

        self._safely(begin)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """End the span of a tool; it has failed, too, if its result is an error message for the model."""

        def end() -> None:
            span = self._nodes.get(run_id)
            if isinstance(span, Span) and getattr(output, "status", None) == "error":
                span.status = "error"
            self._end(run_id, output)

        self._safely(end)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """End the span of a tool that raised."""
        self._safely(lambda: self._fail(run_id, error))

    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Start the span of a retriever."""

        def begin() -> None:
            name = name_of(serialized, kwargs, "retriever")
            node = self._above(run_id, parent_run_id, name, metadata)
            self._span(node, run_id, name, "retrieval", input=query).start()

        self._safely(begin)

    def on_retriever_end(self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Record the documents, and end the span."""
        self._safely(lambda: self._end(run_id, list(documents)))

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """End the span of a retriever that failed."""
        self._safely(lambda: self._fail(run_id, error))

    # Spans by the id of their call
    def _safely(self, record: Callable[[], None]) -> None:
        try:
            record()
        except BudgetExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - recording must not stop the agent
            warnings.warn(f"a step could not be recorded: {error!r}", RuntimeWarning, stacklevel=4)

    def _root(self, run_id: UUID, agent: str, metadata: Mapping[str, Any]) -> RunNode:
        """The parent of the outermost call: the run that is being recorded, or a new one."""
        current = current_node.get()
        if current is not None:
            return current
        thread = self._thread or metadata.get("thread_id")
        run = self._opened.store.run(
            agent=agent[:_NAME_CHARS],
            thread=None if thread is None else thread_name(str(thread), "thread id"),
            namespace=self._namespace,
            id=str(run_id),
            tags=self._tags,
        )
        self._runs[run_id] = run.start()
        return run

    def _above(
        self, run_id: UUID, parent_run_id: UUID | None, name: str, metadata: Mapping[str, Any] | None
    ) -> RunNode:
        known = self._nodes.get(parent_run_id) if parent_run_id is not None else None
        return known or self._root(run_id, self._agent or name, metadata or {})

    def _span(
        self,
        node: RunNode,
        run_id: UUID,
        name: str,
        kind: str,
        *,
        input: Any = None,
        model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Span:
        given = {} if input is None else {"input": input}
        id_ = f"{run_id}.span" if run_id in self._runs else str(run_id)
        span = node.span(name[:_NAME_CHARS], kind=kind, model=model, id=id_, metadata=metadata, **given)
        self._nodes[run_id] = span
        return span

    def _call_model(
        self,
        serialized: Mapping[str, Any] | None,
        given: Any,
        run_id: UUID,
        parent_run_id: UUID | None,
        metadata: Mapping[str, Any] | None,
        kwargs: Mapping[str, Any],
    ) -> None:
        details = metadata or {}
        name = name_of(serialized, kwargs, "model")
        chosen: Any = kwargs.get("invocation_params") or {}
        model = details.get("ls_model_name") or chosen.get("model") or chosen.get("model_name")
        model = model if isinstance(model, str) else None
        provider = details.get("ls_provider")
        provider_metadata = {"provider": provider} if isinstance(provider, str) else {}
        self._models[run_id] = model, provider_metadata
        node = self._above(run_id, parent_run_id, name, metadata)
        if run_id in self._runs:
            self._record_input(node, given)
        span = self._span(
            node,
            run_id,
            name,
            "llm",
            input=given if self._inputs else None,
            model=model,
            metadata=provider_metadata,
        )
        model_call.set(span.start())

    def _record_input(self, node: RunNode, inputs: Any) -> None:
        """Record the user's message that is in the input of the outermost chain."""
        said = last_user_message(plain(inputs))
        if said is not None:
            node.message("user", said)

    def _end(self, run_id: UUID, output: Any) -> None:
        span = self._nodes.pop(run_id, None)
        if isinstance(span, Span) and span.id in {str(run_id), f"{run_id}.span"}:
            if span.kind != "chain":
                is_state = span.kind == "agent" and not self._inputs
                span.output = plain(_brief(output) if is_state else output)
            waits = run_id in self._runs and span.run_id in self._waiting
            span.end(status="interrupted") if waits else span.end()
        self._end_root(run_id)

    def _end_root(self, run_id: UUID) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        if run.id in self._waiting:
            self._waiting.discard(run.id)
            run.end(status="interrupted")
        else:
            run.end()

    def _fail(self, run_id: UUID, error: BaseException) -> None:
        span = self._nodes.pop(run_id, None)
        self._models.pop(run_id, None)
        run = self._runs.pop(run_id, None)
        if type(error).__name__ in _INTERRUPTS:
            if isinstance(span, Span):
                self._waiting.add(span.run_id)
                span.end(status="interrupted")
            if run is not None:
                self._waiting.discard(run.id)
                run.end(status="interrupted")
            return
        if isinstance(span, Span) and span.id in {str(run_id), f"{run_id}.span"}:
            span.fail(error)
            span.end()
        if run is not None:
            run.fail(error)


def _brief(state: Any) -> Any:
    """Return what is short in a state, and its last message; the checkpoints of its thread have all of it."""
    if not isinstance(state, Mapping):
        return state if _is_short(state) else None
    values = cast("Mapping[str, Any]", state)
    brief: dict[str, Any] = {name: value for name, value in values.items() if _is_short(value)}
    messages = values.get("messages")
    if isinstance(messages, list):
        brief["messages"] = cast("list[Any]", messages)[-1:]
    return brief or None


def _is_short(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float))
        or (isinstance(value, str) and len(value) <= _SHORT)
    )


def plain(value: Any) -> Any:
    """Convert messages and documents to plain data, at any depth; leave other values as they are."""
    if isinstance(value, BaseMessage):
        fields: dict[str, Any] = {"role": value.type, "content": value.content}
        for name in ("name", "tool_calls", "tool_call_id", "status"):
            more = getattr(value, name, None)
            if more and not (name == "status" and more == "success"):
                fields[name] = more
        return fields
    if isinstance(value, Document):
        return {"page_content": value.page_content, "metadata": value.metadata}
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        return {str(key): plain(each) for key, each in given.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in cast("Sequence[Any]", value)]
    return value


def name_of(serialized: Mapping[str, Any] | None, kwargs: Mapping[str, Any], otherwise: str) -> str:
    """Return the name of a step."""
    fields = serialized or {}
    path = cast("list[Any]", fields.get("id") or [])
    return str(kwargs.get("name") or fields.get("name") or (path[-1] if path else otherwise))


def model_of(messages: Sequence[BaseMessage], response: LLMResult) -> str | None:
    """Return the name of the model that answered, if the response has it."""
    for fields in (*(message.response_metadata for message in messages), response.llm_output or {}):
        model = fields.get("model_name") or fields.get("model")
        if isinstance(model, str):
            return model
    return None


def usage_of(messages: Sequence[BaseMessage], response: LLMResult) -> Usage | None:
    """Count tokens by disjoint class; LangChain counts cached tokens as input tokens too."""
    counted = [
        message.usage_metadata
        for message in messages
        if isinstance(message, AIMessage) and message.usage_metadata
    ]
    if not counted:
        counts = cast("dict[str, int]", (response.llm_output or {}).get("token_usage") or {})
        given, made = counts.get("prompt_tokens") or 0, counts.get("completion_tokens") or 0
        return Usage(input=given, output=made) if given or made else None
    sums = dict.fromkeys(Usage.__struct_fields__, 0)
    for usage in counted:
        details = cast("dict[str, int]", usage.get("input_token_details") or {})
        output = cast("dict[str, int]", usage.get("output_token_details") or {})
        read = details.get("cache_read") or 0
        hour = details.get("ephemeral_1h_input_tokens") or 0
        written = (details.get("cache_creation") or 0) + (details.get("ephemeral_5m_input_tokens") or 0)
        sums["input"] += max(usage["input_tokens"] - read - written - hour, 0)
        sums["cache_read"] += read
        sums["cache_write"] += written
        sums["cache_write_1h"] += hour
        sums["output"] += usage["output_tokens"]
        sums["reasoning"] += output.get("reasoning") or 0
    return Usage(**sums)


def last_user_message(inputs: Any) -> Any:
    """Return the user's last message from the (plain) input of a chain; ``None`` if it has none."""
    given: Any = inputs
    if isinstance(inputs, dict):
        fields = cast("dict[str, Any]", inputs)
        given = fields.get("messages") or next((fields[name] for name in _INPUT_KEYS if name in fields), None)
    if isinstance(given, str):
        return given
    last: Any = cast("list[Any]", given)[-1] if isinstance(given, list) and given else None
    if isinstance(last, dict):
        message = cast("dict[str, Any]", last)
        return message.get("content") if message.get("role") in _USER_ROLES else None
    if isinstance(last, list) and cast("list[Any]", last)[:1] in [[each] for each in _USER_ROLES]:
        return cast("list[Any]", last)[-1]
    return None
