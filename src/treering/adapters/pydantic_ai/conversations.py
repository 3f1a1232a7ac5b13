"""pydantic-ai: conversations that are threads of a store.

A conversation is the thread with the same id. Its messages are stored as the JSON that pydantic-ai itself
writes, each with the id of its entry, so that every other view can read them; the rest of a conversation
(usage, scope, branches, deferred tool requests) is the thread's state. A save writes the new messages and
one checkpoint, and a fork shares its past. **Invariant:** a record, its entries and its revision change
together or not at all, and only from the revision that the writer saw.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from treering.adapters.conversation import thread_id_for
from treering.adapters.shared import (
    Opened,
    StoreOrUrl,
    checked,
    checked_namespace,
    compact_messages,
    json_text,
)
from treering.adapters.tool_effects import (
    IDEMPOTENCY_KEY,
    Probe,
    ToolEffects,
    named,
    takes_key,
    without_key,
)
from treering.effects.effects import Effect, Replay, key_of
from treering.errors import InvalidInput, MissingExtra, Vetoed
from treering.runs.messages import message_text, read_message
from treering.threads.checkpoint import Checkpoint
from treering.threads.compaction import Tokenizer, View
from treering.threads.hooks import check_choice
from treering.threads.thread import Thread

try:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, UserPromptPart
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import (
        DeferredToolRequests,
        DeferredToolResults,
        RunContext,
        ToolApproved,
        ToolDefinition,
        ToolDenied,
    )
    from pydantic_ai.usage import RunUsage
    from pydantic_core import from_json, to_jsonable_python

    from treering.adapters.pydantic_ai.records import EntryNotFound, Records, dump_messages, load_messages
    from treering.adapters.pydantic_ai.runs import Recorder, TreeringRuns
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "treering":
        raise
    raise MissingExtra("treering.adapters.pydantic_ai", "pydantic-ai") from error

__all__ = [
    "EntryNotFound",
    "TreeringCheckpoints",
    "TreeringConversationStore",
    "TreeringEffects",
    "TreeringRuns",
    "dump_messages",
    "load_history",
    "load_messages",
    "save_run",
]

P = ParamSpec("P")
T = TypeVar("T")


class TreeringConversationStore(ConversationStore):
    """A pydantic-ai `ConversationStore` on a treering store, a URL or a folder.

    Deleting a conversation erases its messages; those that forks share stay, unlisted, until the last of
    these forks is deleted. A thread that was written in another way (with `save_run` or `Thread.append`, or
    rewound or forked) can be loaded too, if its messages are pydantic-ai's. If a hook vetoes a save, it
    raises `Vetoed`.
    """

    def __init__(self, store: StoreOrUrl | None = None, *, namespace: str = "") -> None:
        space = checked_namespace(namespace)
        self._opened = Opened(store)
        self._space = space
        self._records = Records(self._opened.store, space)

    async def load(
        self, conversation_id: str, *, limit: int | None = None, scope: str | None = None
    ) -> Conversation | None:
        """Return a conversation with its last ``limit`` messages, or ``None``, and run the load hooks."""
        found = await super().load(conversation_id, limit=limit, scope=scope)
        if found is not None:
            await self._call(self._records.loaded, conversation_id)
        return found

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or ``None``."""
        return await self._call(self._records.read, conversation_id)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """List the records of this namespace (and scope), the most recently saved one first."""
        return await self._call(self._records.read_all, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries in one commit; raise `ConversationConflict` if it changed."""
        await self._call(self._records.write, record, new_entries, expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation, and erase every message that no fork shares."""
        await self._call(self._records.delete, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return one entry; raise `EntryNotFound` (a `LookupError`) if it is not stored."""
        entry_id = checked(entry_id, "id of a pydantic-ai conversation's entry")
        return (await self._call(self._records.history, entry_id, 1))[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to ``head_id``, or only the last ``limit`` of them, in one read."""
        return await self._call(self._records.history, head_id, limit)

    async def extend(
        self,
        conversation_id: str,
        messages: Sequence[ModelMessage],
        *,
        expected_revision: str | None,
        usage: RunUsage | None = None,
        deferred_tool_requests: DeferredToolRequests | None = None,
        scope: str | None = None,
    ) -> str:
        """Append messages without reading the stored ones; return the new revision."""
        changes = {"usage": usage, "scope": scope}
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        given["deferred_tool_requests"] = deferred_tool_requests
        return await self._call(self._records.extend, conversation_id, messages, expected_revision, given)

    async def deferred_tool_results(self, conversation_id: str) -> DeferredToolResults | None:
        """Return the answer to the tool calls that a conversation waits with, to continue it with.

        It comes from the dashboard, the command line or `Thread.resume`, in any process: ``approve`` makes
        all calls, ``deny`` none, and ``edit`` those that its value lists, with the arguments that it has.
        ``None`` if nothing was answered yet.
        """
        record = await self.read_record(conversation_id)
        answer = await self._call(self._records.answer, conversation_id)
        if record is None or record.deferred_tool_requests is None or answer is None:
            return None
        return _results(record.deferred_tool_requests, answer)

    def thread(self, conversation_id: str) -> Thread:
        """Return the thread of a conversation, for example to `Thread.compact` it."""
        return self._opened.store.thread(thread_id_for(conversation_id), self._space)

    async def compact_view(
        self,
        conversation_id: str,
        messages: Sequence[ModelMessage],
        *,
        budget_tokens: int | None = None,
        tokenizer: Tokenizer = None,
    ) -> list[ModelMessage]:
        """Return what a model is to be given of a whole conversation, whose newest messages may be unsaved.

        ``budget_tokens`` leaves out the oldest messages after the summary until the rest fits.
        """

        def view() -> list[ModelMessage]:
            return compact_messages(
                self.thread(conversation_id),
                messages,
                plain=lambda message: dump_messages([message])[0],
                load=lambda made: load_messages(list(map(_as_message, made))),
                budget_tokens=budget_tokens,
                tokenizer=tokenizer,
            )

        return await self._call(view)

    def recorder(self, *, is_on: bool = True) -> Recorder:
        """Return a recorder for runs of agents whose conversations are stored here."""
        return Recorder(self._opened, self._space, is_on=is_on)

    async def close(self) -> None:
        """Close the store, if it was opened here; a store that was passed in stays open."""
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._opened.bridge.call(function, *args, **kwargs)


def _results(requests: DeferredToolRequests, answer: Mapping[str, Any]) -> DeferredToolResults:
    if answer["decision"] == "approve":
        return requests.build_results(approve_all=True)
    kept: dict[str, dict[str, Any]] = {}
    if answer["decision"] == "edit":
        given: Any = answer["payload"]
        calls: Any = cast("dict[str, Any]", given).get("approvals") if isinstance(given, dict) else None
        if not isinstance(calls, list):
            raise InvalidInput(
                'an edited answer lists the calls to make: {"approvals": [{"tool_call_id": "...", '
                '"args": {...}}]}; calls that it leaves out are denied'
            )
        for each in cast("list[dict[str, Any]]", calls):
            args: Any = each.get("args") or {}
            kept[each["tool_call_id"]] = from_json(args) if isinstance(args, str) else args
    return requests.build_results(
        approvals={
            each.tool_call_id: ToolApproved(override_args=kept[each.tool_call_id])
            if each.tool_call_id in kept
            else ToolDenied()
            for each in requests.approvals
        }
    )


class TreeringCheckpoints(TreeringRuns):
    """A capability that saves a run as it goes, however it is driven: `run`, `run_stream`, `iter`.

    ``checkpoint_after_tool_call`` saves each model response before its tools run, and their results before
    the next model call; without it, the run is saved when it ends. After a crash,
    ``agent.run(conversation=await conversations.load(id))`` continues. A run that starts with a different
    history than the stored one raises `ConversationConflict`. If a hook vetoes a save, the run continues.
    ``record_runs`` also records the run, its model requests and tool calls, with tokens and cost.

    The model is given the compact view of a thread that was compacted (`Thread.compact`), unless ``view`` is
    ``"full"``; ``budget_tokens`` also leaves out the oldest messages after the summary until the rest fits.
    The run, and what is saved of it, have all messages. A conversation that was loaded with ``limit=`` is
    given as it is.
    """

    def __init__(
        self,
        conversations: TreeringConversationStore,
        *,
        checkpoint_after_tool_call: bool = True,
        scope: str | None = None,
        record_runs: bool = True,
        view: View = "compact",
        budget_tokens: int | None = None,
        tokenizer: Tokenizer = None,
    ) -> None:
        check_choice(view, ("full", "compact"), "view")
        self._view: View = view
        self._budget_tokens = budget_tokens
        self._tokenizer = tokenizer
        self._is_whole = True
        self._recorder = conversations.recorder(is_on=record_runs)
        self._record_runs = record_runs
        self._conversations = conversations
        self._after_tool_call = checkpoint_after_tool_call
        self._scope = scope
        self._revision: str | None = None
        self._saved: dict[int, ModelMessage] = {}
        self._unsaved: list[ModelMessage] = []
        self._usage: RunUsage | None = None

    async def for_run(self, ctx: RunContext[Any]) -> TreeringCheckpoints:  # noqa: ARG002 - pydantic-ai's signature
        """Return a new capability for each run, which remembers what that run has saved."""
        return TreeringCheckpoints(
            self._conversations,
            checkpoint_after_tool_call=self._after_tool_call,
            scope=self._scope,
            record_runs=self._record_runs,
            view=self._view,
            budget_tokens=self._budget_tokens,
            tokenizer=self._tokenizer,
        )

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Determine how much of the run's history is stored."""
        conversation_id = _conversation_id(ctx)
        record = await self._conversations.read_record(conversation_id)
        if record is None:
            self._unsaved = list(ctx.messages)
            return
        if self._scope is not None and record.scope != self._scope:
            raise ConversationConflict(conversation_id)
        self._revision = record.revision
        entries = await self._conversations.read_history(record.head_id, limit=len(ctx.messages) + 1)
        self._is_whole = len(entries) <= len(ctx.messages)
        entries = entries[-len(ctx.messages) :] if ctx.messages else []
        stored, given = (
            [json_text(each) for each in dump_messages(messages)]
            for messages in ([entry.message for entry in entries], ctx.messages)
        )
        most = min(len(stored), len(given))
        count = next(n for n in range(most, -1, -1) if stored[len(stored) - n :] == given[:n])
        if count == 0 and record.head_id is not None:
            raise ConversationConflict(conversation_id)
        self._remember(ctx.messages[:count])
        self._unsaved = ctx.messages[count:]

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Save the prompt or the tool results, which are in the history now; give the model its view."""
        if self._after_tool_call:
            await self._save(ctx, ctx.messages)
        if self._view == "full" or not self._is_whole:
            return request_context
        messages = await self._conversations.compact_view(
            _conversation_id(ctx),
            request_context.messages,
            budget_tokens=self._budget_tokens,
            tokenizer=self._tokenizer,
        )
        return replace(request_context, messages=messages)

    async def after_node_run(self, ctx: RunContext[Any], *, node: Any, result: Any) -> Any:  # noqa: ARG002
        """Save the model's response, whose tools have not run yet."""
        if self._after_tool_call:
            await self._save(ctx, ctx.messages)
        return result

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        """Save the end of the run, and mark its result as saved."""
        conversation = result.conversation
        is_saved = await self._save(
            ctx, conversation.messages, deferred=conversation.deferred_tool_requests, counts_usage=True
        )
        if is_saved and self._revision is not None:
            result._conversation_saved(self._revision)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as ConversationStore.save does
        return result

    async def _save(
        self,
        ctx: RunContext[Any],
        messages: Sequence[ModelMessage],
        *,
        deferred: DeferredToolRequests | None = None,
        counts_usage: bool = False,
    ) -> bool:
        metadata = self._saved.keys() | {id(each) for each in self._unsaved}
        new = [*self._unsaved, *(m for m in messages if m.run_id == ctx.run_id and id(m) not in metadata)]
        if not new and deferred is None and not (counts_usage and ctx.usage != self._usage):
            return True
        try:
            with self._recorder.active():
                self._revision = await self._conversations.extend(
                    _conversation_id(ctx),
                    new,
                    expected_revision=self._revision,
                    usage=ctx.usage,
                    deferred_tool_requests=deferred,
                    scope=self._scope,
                )
        except Vetoed:
            return False  # the run continues; the next save includes these messages
        self._remember(new)
        self._unsaved = []
        self._usage = copy(ctx.usage)
        return True

    def _remember(self, messages: Iterable[ModelMessage]) -> None:
        # Keeps the messages, not only their `id()`, which could be reused.
        self._saved |= {id(message): message for message in messages}


class TreeringEffects(AbstractCapability[Any]):
    """A capability that makes each tool call once: ``Agent(model, capabilities=[TreeringEffects(store)])``.

    ``replay`` says what to do with calls whose process died: ``{"search": "safe"}`` for some tools (the
    others are ``"once"``), or one word for all; a tool may say so itself with ``metadata={"replay": ...}``. A
    tool with a parameter ``idempotency_key`` receives the key of the call, which the model does not see. Use
    it together with `TreeringCheckpoints`, which stores a reply before its tools are called. If nobody knows
    whether a call happened, the run ends with `EffectUnknown`: decide with ``store.effects``, or give
    ``probes``, and run again.
    """

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        replay: Replay | Mapping[str, Replay] | None = None,
        probes: Mapping[str, Probe] | None = None,
        namespace: str = "",
    ) -> None:
        self._calls = ToolEffects(store, replay=replay, probes=probes, namespace=namespace)
        self._keyed: set[str] = set()

    async def prepare_tools(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - pydantic-ai's signature
        tool_defs: list[ToolDefinition],
    ) -> list[ToolDefinition]:
        """Hide the idempotency key from the model."""
        self._keyed |= {each.name for each in tool_defs if takes_key(each.parameters_json_schema)}
        return [
            replace(each, parameters_json_schema=without_key(each.parameters_json_schema))
            if each.name in self._keyed
            else each
            for each in tool_defs
        ]

    async def before_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any
    ) -> Any:
        """Give the tool the idempotency key of its call."""
        if tool_def.name not in self._keyed:
            return args
        given = call.args_as_dict() if isinstance(args, str) else dict(args or {})
        return {**given, IDEMPOTENCY_KEY: key_of(_effect_name(ctx, call))}

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Make a call, unless its outcome is known."""
        replay = self._calls.replay_of(tool_def.name, (tool_def.metadata or {}).get("replay"))
        if replay == "safe":
            return await handler(args)
        intent = self._calls.intent(
            _effect_name(ctx, call),
            tool_def.name,
            {name: value for name, value in call.args_as_dict().items() if name != IDEMPOTENCY_KEY},
            replay=replay,
            takes_key=tool_def.name in self._keyed,
            call_id=call.tool_call_id,
            thread_id=ctx.conversation_id,
        )
        result = await self._calls.acall(intent, lambda _: handler(args), plain=_plain_result)
        return result.value() if isinstance(result, Effect) else result


def _effect_name(ctx: RunContext[Any], call: ToolCallPart) -> str:
    """Return the name of the effect of a call; models that number their calls begin anew in each reply."""
    earlier = sum(
        part.part_kind == "tool-return" and part.tool_call_id == call.tool_call_id
        for message in ctx.messages
        for part in message.parts
    )
    return named(_conversation_id(ctx), call.tool_name, call.tool_call_id, earlier)


def _plain_result(result: Any) -> tuple[Any, bool]:
    return to_jsonable_python(result, serialize_unknown=True), False


def load_history(
    thread: Thread,
    *,
    last: int | None = None,
    view: View = "full",
    budget_tokens: int | None = None,
    tokenizer: Tokenizer = None,
) -> list[ModelMessage]:
    """Return the messages of a thread (or only the last ones) for ``message_history=``.

    ``view="compact"`` and ``budget_tokens`` return what a model is to be given, as `Thread.load` does.
    """
    checkpoint = thread.get(last=last, view=view, budget_tokens=budget_tokens, tokenizer=tokenizer)
    if checkpoint is None:
        return []
    compaction = None if checkpoint.view is None else checkpoint.view.compaction
    lead = 0 if compaction is None else compaction.keeps
    stop = lead if compaction is None else lead + len(compaction.messages)
    messages = checkpoint.messages
    return load_messages(
        [*messages[:lead], *map(_as_message, messages[lead:stop]), *messages[stop:]],
    )


def _as_message(summary: Any) -> Any:
    """Return a message that stands for others; one that is not of pydantic-ai becomes a prompt."""
    if _is_own(summary):
        return summary
    return dump_messages([ModelRequest(parts=[UserPromptPart(message_text(read_message(summary)))])])[0]


def _is_own(stored: Any) -> bool:
    return isinstance(stored, dict) and {"kind", "parts"} <= cast("dict[str, Any]", stored).keys()


def save_run(thread: Thread, result: AgentRunResult[Any], *, note: str | None = None) -> Checkpoint:
    """Append the messages of a run. Call it once per result."""
    return thread.append(*dump_messages(result.new_messages()), note=note)


def _conversation_id(ctx: RunContext[Any]) -> str:
    if ctx.conversation_id is None:
        raise InvalidInput("this run has no conversation id; pass conversation= or conversation_id= to it")
    return ctx.conversation_id
