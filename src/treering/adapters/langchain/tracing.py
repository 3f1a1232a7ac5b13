"""What LangChain and LangGraph do, recorded as runs: a callback handler.

    agent.invoke(question, {"callbacks": [TreeringTracer("./agents")]})

The outermost call becomes a run of the same id (or a span, where a run is being recorded already), everything
below it a span of the same id: graphs and nodes are agents, models, tools and retrievers are what they are. A
model's answer is a message below its span, with its tokens and price. The handler only puts notes into the
recorder's queue, so sync and async code may share it, parallel branches too. **Invariant:** recording never
breaks what is recorded; the one error that passes through is `BudgetExceeded`, before the call that would be
too much.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from treering.adapters.names import thread_name
from treering.adapters.opening import Opened, StoreOrUrl
from treering.errors import BudgetExceeded, MissingExtra
from treering.runs.run import Run
from treering.runs.span import RunNode, Span, current_node
from treering.sync_async import Closing

try:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.documents import Document
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGeneration, LLMResult

    from treering.adapters.langchain.describe import last_said, model_of, name_of, plain, usage_of
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "langchain_core":
        raise MissingExtra("treering.adapters.langchain", "langchain") from error
    raise

_HIDDEN: Final = "langsmith:hidden"
_INTERRUPTS: Final = frozenset({"GraphInterrupt", "NodeInterrupt"})
_NAME_CHARS: Final = 200


class TreeringTracer(BaseCallbackHandler, Closing):
    """A callback handler that records into a store.

    ``store_or_url`` is an open store, which stays yours, or where one is, which `close` closes. ``agent`` and
    ``thread`` name every run; without them, they are what the outermost chain and LangGraph's ``thread_id``
    say. ``inputs`` says whether what goes into models is kept: the whole conversation, for each call.
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
        self._places: dict[UUID, RunNode] = {}
        self._models: dict[UUID, tuple[str | None, dict[str, Any]]] = {}

    def flush(self) -> None:
        """Return when everything that was recorded so far is durable."""
        self._opened.store.flush()

    def close(self) -> None:
        """Make everything durable, and close the store if it was opened here."""
        self._opened.store.flush()
        self._opened.close()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
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
        """A chain, a graph or a node begins."""

        def begin() -> None:
            above = self._places.get(parent_run_id) if parent_run_id is not None else None
            if above is not None and _HIDDEN in (tags or ()):
                self._places[run_id] = above
                return
            name = name_of(serialized, kwargs, "chain")
            told = metadata or {}
            agent = told.get("lc_agent_name") or (name if above is None else None)
            if agent is None and told.get("langgraph_node") == name:
                agent = name
            place = above or self._root(run_id, self._agent or agent or name, told)
            if above is None:
                self._asked(place, inputs)
            is_agent = above is None or (agent is not None and agent != above.agent)
            span = self._span(
                place,
                run_id,
                str(agent) if is_agent else name,
                "agent" if is_agent else "chain",
                input=plain(inputs) if is_agent else None,
                metadata=None if not is_agent or agent == name else {"node": name},
            )
            span.start()

        self._safely(begin)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """It is done."""
        self._safely(lambda: self._end(run_id, outputs))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """It failed, or stopped to ask a person."""
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
        """A chat model is called."""
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
        """A model of texts is called."""
        given = prompts[0] if len(prompts) == 1 else list(prompts)
        self._safely(lambda: self._call_model(serialized, given, run_id, parent_run_id, metadata, kwargs))

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """A piece of the answer."""
        span = self._places.get(run_id)
        if isinstance(span, Span) and isinstance(token, str) and token:
            self._safely(lambda: span.chunk(token))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """The answer is there."""

        def end() -> None:
            span = self._places.pop(run_id, None)
            if not isinstance(span, Span):
                return
            said = [each for row in response.generations for each in row]
            messages = [each.message for each in said if isinstance(each, ChatGeneration)]
            asked, marks = self._models.pop(run_id, (None, {}))
            model = model_of(messages, response) or asked
            span.model = model
            content: Any = [plain(message) for message in messages] or [each.text for each in said]
            span.message(
                "assistant",
                content[0] if len(content) == 1 else content,
                model=model,
                usage=usage_of(messages, response),
                metadata=marks,
            )
            span.end()
            self._end_root(run_id)

        self._safely(end)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """The call failed."""
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
        """A tool is called."""
        call = kwargs.get("tool_call_id")

        def begin() -> None:
            place = self._above(run_id, parent_run_id, name_of(serialized, kwargs, "tool"), metadata)
            self._span(
                place,
                run_id,
                name_of(serialized, kwargs, "tool"),
                "tool",
                input=plain(input_str if inputs is None else inputs),
                metadata={"tool_call_id": call} if call else None,
            ).start()

        self._safely(begin)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """A tool has answered; a tool that told the model of its error has failed, too."""

        def end() -> None:
            span = self._places.get(run_id)
            if isinstance(span, Span) and getattr(output, "status", None) == "error":
                span.status = "error"
            self._end(run_id, output)

        self._safely(end)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """A tool raised."""
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
        """Documents are looked for."""

        def begin() -> None:
            name = name_of(serialized, kwargs, "retriever")
            place = self._above(run_id, parent_run_id, name, metadata)
            self._span(place, run_id, name, "retrieval", input=query).start()

        self._safely(begin)

    def on_retriever_end(self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Documents were found."""
        self._safely(lambda: self._end(run_id, list(documents)))

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """The search failed."""
        self._safely(lambda: self._fail(run_id, error))

    # How it is done
    def _safely(self, record: Callable[[], None]) -> None:
        try:
            record()
        except BudgetExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong here, the agent goes on
            warnings.warn(f"a step could not be recorded: {error!r}", RuntimeWarning, stacklevel=4)

    def _root(self, run_id: UUID, agent: str, metadata: Mapping[str, Any]) -> RunNode:
        """What the outermost call is recorded below: the run that is being recorded, or one of its own."""
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
        known = self._places.get(parent_run_id) if parent_run_id is not None else None
        return known or self._root(run_id, self._agent or name, metadata or {})

    def _span(
        self,
        place: RunNode,
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
        span = place.span(name[:_NAME_CHARS], kind=kind, model=model, id=id_, metadata=metadata, **given)
        self._places[run_id] = span
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
        told = metadata or {}
        name = name_of(serialized, kwargs, "model")
        chosen: Any = kwargs.get("invocation_params") or {}
        model = told.get("ls_model_name") or chosen.get("model") or chosen.get("model_name")
        model = model if isinstance(model, str) else None
        provider = told.get("ls_provider")
        marks = {"provider": provider} if isinstance(provider, str) else {}
        self._models[run_id] = model, marks
        place = self._above(run_id, parent_run_id, name, metadata)
        if run_id in self._runs:
            self._asked(place, given)
        self._span(
            place,
            run_id,
            name,
            "llm",
            input=given if self._inputs else None,
            model=model,
            metadata=marks,
        ).start()

    def _asked(self, place: RunNode, inputs: Any) -> None:
        """What a person said, out of what the outermost chain was given."""
        said = last_said(plain(inputs))
        if said is not None:
            place.message("user", said)

    def _end(self, run_id: UUID, output: Any) -> None:
        span = self._places.pop(run_id, None)
        if isinstance(span, Span) and span.id in {str(run_id), f"{run_id}.span"}:
            if span.kind != "chain":
                span.output = plain(output)
            span.end()
        self._end_root(run_id)

    def _end_root(self, run_id: UUID) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None:
            run.end()

    def _fail(self, run_id: UUID, error: BaseException) -> None:
        span = self._places.pop(run_id, None)
        self._models.pop(run_id, None)
        run = self._runs.pop(run_id, None)
        if type(error).__name__ in _INTERRUPTS:
            if isinstance(span, Span):
                span.end(status="interrupted")
            if run is not None:
                run.end(status="interrupted")
            return
        if isinstance(span, Span) and span.id in {str(run_id), f"{run_id}.span"}:
            span.fail(error)
            span.end()
        if run is not None:
            run.fail(error)
