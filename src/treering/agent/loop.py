"""The loop: call the model, run the tools that it asks for, until it asks for none.

**Invariant:** a conversation tells where its run stopped. Tool calls without a result are made before
anything else, calls with one never again; so a run continues after a crash, a failure or a person's
decision by loading the thread and doing what is left. Apart from the messages, an unfinished run stores one
small state value (`RUN_KEY`): its id, its counters of tool calls, the effects of its pending calls, and which
call a person was asked about.

The calls of one message are made one after the other, in order. In a store, a reply that calls tools is saved
before any of them is called, and each call is an effect that happens once (see `tool_effects`), unless its
tool is declared safe to repeat.

Middleware is code of your own inside the loop: any object with one or more of the methods of `Middleware`;
each method may be async. ``before_model`` runs in list order and ``after_model`` in reverse order; the first
``wrap_tool`` is the outermost. If the object has ``tools``, they are added to the agent's.

The loop is a generator. It yields a `Call` for everything that takes time (the model, a tool, a checkpoint)
and receives the result, or the error is thrown into it; it yields an `AgentEvent` for the caller. Only the
two drivers (`drive`, `drive_async`) know whether they wait or await, so sync and async models, tools,
middleware and savers can be mixed. **Invariant:** no running event loop is ever blocked. Under asyncio, the
sync functions of a run are called in a thread of the run's own, so runs never wait for each other.

**Invariant:** whoever stops a run (closes the stream, cancels the task, presses Ctrl-C) loses no reply and no
tool result that was complete. An event about something that is saved is yielded after the save, and a driver
that is stopped throws `Stopped` into the steps, which then save what is left.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
import warnings
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast, get_args, runtime_checkable

import msgspec

from treering.agent.conversations import Conversation, Conversations, ConversationState
from treering.agent.messages import (
    AgentEvent,
    Call,
    Context,
    Message,
    Prompt,
    Result,
    StreamedReply,
    ToolCall,
    answer_of,
    is_stream,
    merge_results,
    pending_calls,
    prompt_messages,
    read_reply,
    result_message,
    text_of,
)
from treering.agent.subagents import RUN_KEY, SubAgentWaits
from treering.agent.tool_effects import Recorded, ToolEffects, leave
from treering.agent.tools import Tool, result_text
from treering.approvals.questions import POLICY, policy_fields
from treering.core.ids import new_id
from treering.effects.effects import QUESTION, Attempt, Effect, EffectRunning
from treering.errors import BudgetExceeded, Conflict, InvalidInput, TreeringError, Vetoed
from treering.limits.tool_budgets import Budget, Budgets
from treering.runs.exchanges import intercept_model, intercept_tool
from treering.runs.run import CANCELLED
from treering.runs.span import current_node
from treering.runs.tree import RunCancelled, cost_below
from treering.sync_async import call as call_and_wait
from treering.sync_async import lent
from treering.threads.head import ThreadMoved

if TYPE_CHECKING:
    from treering.effects.effects import Intent
    from treering.runs.run import Run
    from treering.runs.span import RunNode, Span
    from treering.store import Store
    from treering.threads.partial import PartialReply, PartialWriter

OnPartial = Literal["discard", "continue"]
"""What to do with a reply that broke off in its stream: ask the model anew, or let it go on."""
OnError = Literal["tell", "raise"]
"""What to do with an error in a tool call: tell the model, or end the run with it."""

LOOK_SECONDS: Final = 1.0
"""How often a run that reads a stream looks whether it was cancelled."""

LoopSteps = Generator[Call | AgentEvent, Any, Any]


class Stopped(BaseException):
    """Thrown into the steps of a run by its driver when the caller wants no more of it."""


class CheckpointWarning(UserWarning):
    """An automatic checkpoint could not be saved; the run continues without it."""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `create_agent`, validated."""

    model: Callable[..., Any]
    tools: dict[str, Tool]
    conversations: Conversations
    middleware: tuple[Middleware, ...]
    budget: Budget
    max_iterations: int
    on_over_budget: OnError
    on_tool_error: OnError
    name: str
    record: bool


class AgentRun:
    """One run, from a prompt (or from where the last run stopped) to a result."""

    def __init__(
        self,
        config: AgentConfig,
        thread_id: str | None,
        prompt: Prompt | None,
        *,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
        partial: OnPartial = "discard",
    ) -> None:
        if partial not in get_args(OnPartial):
            raise InvalidInput(f"partial={partial!r} is invalid; use discard or continue")
        self.stream: Any = None
        self._config = config
        self._thread_id = thread_id
        self._prompt = prompt
        self._checkpoint_after_tool_call = checkpoint_after_tool_call
        self._metadata = dict(metadata or {})
        self._conversation: Conversation | None = config.conversations.open(thread_id)
        self._budgets = Budgets(config.budget)
        self._id = self._attempt = new_id()
        self._recorder = RunRecorder(
            config.conversations.store if config.record else None,
            config.name,
            thread_id=thread_id,
            namespace=config.conversations.namespace,
        )
        self._effects = ToolEffects(
            config.conversations.store,
            thread_id=thread_id,
            namespace=config.conversations.namespace,
            agent=config.name,
        )
        self._messages: list[Message] = []
        self._state: dict[str, Any] = {"todos": [], "files": {}}
        self._asked_about: dict[str, str] = {}
        self._origin: tuple[str | None, int | None] = (None, None)
        self._continues = partial == "continue"
        self._begun_text = ""
        self._partial: PartialWriter | None = None
        self._resumed: Mapping[str, Any] = {}
        self._checkpoint: Any = None
        self._loaded_count = 0
        self._iterations = 0
        self._has_progress = False
        self._has_unsaved = False
        self._outcome = "stopped"

    def steps(self) -> Steps:
        """Yield the steps of the whole run, for a driver."""
        yield from self._load()
        self._recorder.begin(self._attempt, resumes=None if self._attempt == self._id else self._id)
        try:
            interrupt = yield from self._work()
        except RunCancelled:
            self._outcome = CANCELLED
            if self._has_unsaved:
                yield from self._save(CANCELLED)
            yield from self._keep_partial()
            raise
        except Exception as error:
            if self._has_progress and not isinstance(error, ThreadMoved):
                yield from self._save_and_yield("failed")
            yield from self._keep_partial()
            self._recorder.end(error)
            raise
        except Stopped:
            if self._has_unsaved:
                yield from self._save("stopped")
            yield from self._keep_partial()
            raise
        finally:
            self._recorder.end(status=self._outcome)
        result = Result(
            run_id=self._id,
            text=next(filter(None, map(answer_of, reversed(self._new()))), None) or "",
            messages=self._new(),
            state=dict(self._state),
            checkpoint=self._checkpoint,
            interrupt=interrupt,
            iterations=self._iterations,
            counters=self._budgets.counters(),
        )
        yield AgentEvent(kind="finish", text=result.text, result=result)

    def _load(self) -> LoopSteps:
        loaded: ConversationState | None = (
            (yield from self._conversation.load()) if self._conversation is not None else None
        )
        if loaded is not None:
            if not (yield from self._is_decided(loaded.pending_interrupt)):
                raise Conflict(
                    f"thread {self._thread_id!r} is waiting for a decision about "
                    f"{_shown(loaded.pending_interrupt)}; resume() it first"
                )
            self._messages = list(loaded.messages)
            self._state |= loaded.state
            self._resumed = loaded.metadata.get("resumed") or {}
            self._checkpoint = loaded.checkpoint
        self._loaded_count = len(self._messages)
        if self._continues and self._prompt is None and self._conversation is not None:
            found: PartialReply | None = yield from self._conversation.partial()
            if found is not None:
                self._messages += found.unsaved
                self._begun_text = found.text
        unfinished: Any = self._state.pop(RUN_KEY, None)
        if unfinished is not None:
            self._id = unfinished["run"]
            self._budgets.restore(unfinished["tool_calls"])
            self._asked_about = unfinished.get("asked") or {}
            self._effects.ids = dict(unfinished.get("effects") or {})
            saved_in = unfinished.get("thread", self._thread_id)
            at = getattr(getattr(self._checkpoint, "record", None), "created_at_us", None)
            if saved_in != self._thread_id and at is not None:
                self._origin = (saved_in, at)
            elif unfinished.get("origin"):
                self._origin = (unfinished["origin"][0], unfinished["origin"][1])

    def _is_decided(self, pending: Any) -> LoopSteps:
        """Whether nothing is pending, or only an effect that somebody has decided about elsewhere."""
        if pending is None:
            return True
        effect_id = self._effects.asked_about(pending)
        return effect_id is not None and (yield Call(self._effects.is_decided, (effect_id,)))

    def _work(self) -> LoopSteps:
        """Run all iterations; return the interrupt that stopped them, or ``None`` when the model is done."""
        if self._attempt != self._id and (yield from self._is_cancelled()):
            yield from self._drop_calls()
        interrupt = yield from self._run_tools()
        if interrupt is not None:
            return interrupt
        self._take_prompt()
        while True:
            if self._iterations == self._config.max_iterations:
                raise _too_many(self._iterations)
            self._budgets.next_iteration()
            yield from self._stop_if_cancelled()
            self._origin = (None, None)
            yield from self._call_model()
            self._iterations += 1
            if not pending_calls(self._messages):
                return None
            interrupt = yield from self._run_tools()
            if interrupt is not None:
                return interrupt

    def _is_cancelled(self) -> LoopSteps:
        """Whether somebody has cancelled the run; a store that cannot tell stops nobody."""
        store = self._config.conversations.store
        if store is None or not self._config.record:
            return False
        try:
            return (yield Call(store.runs.is_cancelled, (self._id,)))
        except TreeringError:
            return False

    def _stop_if_cancelled(self) -> LoopSteps:
        if (yield from self._is_cancelled()):
            raise RunCancelled(
                f"run {self._id!r} of thread {self._thread_id!r} was cancelled; give a prompt to go on with "
                "the thread"
            )

    def _drop_calls(self) -> LoopSteps:
        """Answer the calls that a cancelled run has left, so that a new prompt can follow them."""
        if self._prompt is None:
            yield from self._stop_if_cancelled()
        for call in pending_calls(self._messages):
            outcome: Recorded = yield from self._effects.drop(call)
            self._add([result_message(call, outcome.text, is_error=outcome.is_error)])
            self._effects.ids.pop(call.id, None)

    def _take_prompt(self) -> None:
        if self._prompt is not None:
            self._id = self._attempt
            self._budgets.next_run()
            prompt = prompt_messages(self._prompt)
            self._messages += prompt
            self._recorder.prompt(prompt)
        elif not self._messages or answer_of(self._messages[-1]) is not None:
            raise InvalidInput(
                f"thread {self._thread_id!r} has no unfinished run to continue; give a prompt="
            )

    def _call_model(self) -> LoopSteps:
        context = self._context()
        shown = merge_results(self._messages)
        for each in self._config.middleware:
            if isinstance(each, BeforeModel):
                changed = yield Call(each.before_model, (list(shown), context))
                shown = shown if changed is None else list(changed)
        begun, self._begun_text = self._begun_text, ""
        if begun:
            shown = [*shown, {"role": "assistant", "content": begun}]
        self._recorder.start_model()
        model = self._recorder.wrap(intercept_model(self._config.model))
        reply = yield Call(model, (list(shown), list(self._config.tools.values())))
        texts: list[str] = []
        if is_stream(reply):
            messages = read_reply((yield from self._read_stream(reply, begun)))
        else:
            messages = read_reply(reply)
            texts = [text for text in (begun, *map(text_of, messages)) if text]
        messages = _continued(begun, messages)
        self._recorder.end_model(messages)
        for each in reversed(self._config.middleware):
            if isinstance(each, AfterModel):
                changed = yield Call(each.after_model, (list(messages), context))
                messages = messages if changed is None else list(changed)
        self._add(messages)
        events = [AgentEvent(kind="text", text=text) for text in texts]
        events += [AgentEvent(kind="message", message=message) for message in messages]
        calls = pending_calls(self._messages)
        if not calls:
            self._outcome = "ok"
            yield from self._save_and_yield("done", *events)
        elif self._checkpoint_after_tool_call:
            yield from self._plan(calls, always=True)
            yield from self._events_of_save(*events)
        else:
            asked = (self._config.tools.get(call.name) for call in calls)
            yield from self._plan(calls, always=any(tool is not None and tool.is_agent for tool in asked))
            yield from events

    def _plan(self, calls: list[ToolCall], *, always: bool = False) -> LoopSteps:
        """Save the reply that asks for calls together with their effects (``always``: even without any).

        If that fails, the run does: another process may have had a reply too, and calls of its own.
        """
        intents = self._effects.new(calls, self._config.tools, self._id)
        if intents or always:
            yield from self._save("running", effects=intents)
            if self._checkpoint is None:
                yield from self._effects.plan(intents)

    def _keep_partial(self) -> LoopSteps:
        """Wait until what a broken stream has said is kept."""
        if self._partial is not None:
            yield Call(self._partial.flush, shielded=True)

    def _read_stream(self, reply: Any, begun: str) -> LoopSteps:
        self.stream = stream = open_stream(reply)
        following = next_piece(stream)
        pieces = StreamedReply()
        if self._conversation is not None:
            self._partial = self._conversation.keep_partial(self._id, self._messages)
        if begun:
            if self._partial is not None:
                self._partial.add(begun)
            yield AgentEvent(kind="text", text=begun)
        look_again = time.monotonic() + LOOK_SECONDS
        while (piece := (yield following)) is not END:
            text = pieces.take(piece)
            if text:
                self._recorder.chunk(text)
                if self._partial is not None:
                    self._partial.add(text)
                yield AgentEvent(kind="text", text=text)
            elif not isinstance(piece, str):
                yield AgentEvent(kind="piece", value=piece)
            if time.monotonic() >= look_again:
                yield from self._stop_if_cancelled()
                look_again = time.monotonic() + LOOK_SECONDS
        self.stream = None
        return pieces.reply()

    def _run_tools(self) -> LoopSteps:
        """Make all calls that have no result yet; return the interrupt if one needs a person's decision."""
        calls = pending_calls(self._messages)
        yield from self._plan(calls)
        for call in calls:
            yield from self._stop_if_cancelled()
            try:
                made = yield from self._make_call(call)
            except _CallRefused as refused:
                made = call, Recorded(str(refused), is_error=True)
            if isinstance(made, Interrupted):
                return made.pending
            call, outcome = made  # noqa: PLW2901 - as a person may have edited it
            text, is_error = outcome.text, outcome.is_error
            message = result_message(call, text, is_error=is_error)
            self._add([message])
            self._effects.ids.pop(call.id, None)  # a later call may have the same id
            event = AgentEvent(kind="tool_result", call=call, message=message, text=text, is_error=is_error)
            if self._checkpoint_after_tool_call:
                yield from self._save_and_yield("running", event)
            else:
                yield event
        return None

    def _make_call(self, call: ToolCall) -> LoopSteps:
        """Return a call as it was made and its outcome, or the interrupt that it waits for."""
        context = self._context(call)
        begun = yield from self._effects.resume(
            self._config.tools.get(call.name), call, context, self._decision_about(call, effect=True)
        )
        if isinstance(begun, Recorded):
            return call, begun
        if isinstance(begun, Effect):
            return (yield from self._interrupt(call, begun))
        attempt: Attempt | None = begun
        tool = self._check_call(call, context)
        edited: dict[str, Any] | None = None
        if attempt is not None:
            call = msgspec.structs.replace(call, arguments=attempt.effect.arguments)
        else:
            decision = yield from self._decision(tool, call, context)
            if decision is None:
                return (yield from self._interrupt(call))
            if decision["decision"] == "deny":
                yield from self._effects.abandon(call)
                return call, Recorded(_denial(decision), is_error=True)
            edited = _edited(decision)
            if edited is not None:
                call = msgspec.structs.replace(call, arguments=edited)
        outcome = yield from self._run_tool(tool, call, attempt, edited)
        if isinstance(outcome, Interrupted):
            self._outcome = "interrupted"
            yield from self._save_and_yield("interrupted")
            yield AgentEvent(kind="interrupt", call=call, interrupt=outcome.pending)
            return outcome
        return (yield from self._interrupt(call, outcome)) if isinstance(outcome, Effect) else (call, outcome)

    def _add(self, messages: list[Message]) -> None:
        self._messages += messages
        self._has_progress = self._has_unsaved = True

    def _check_call(self, call: ToolCall, context: Context) -> Tool:
        tool = self._config.tools.get(call.name)
        if tool is None:
            known = ", ".join(self._config.tools) or "none"
            raise _CallRefused(f"tool {call.name!r} does not exist; the tools are: {known}")
        if call.problem is not None:
            raise _CallRefused(call.problem)
        try:
            tool.bound(call.arguments, context)
        except InvalidInput as error:
            raise _CallRefused(str(error)) from None
        try:
            self._budgets.budget.check(self._budgets.counters(), call.name)
        except BudgetExceeded as error:
            if self._config.on_over_budget == "raise":
                raise
            raise _CallRefused(str(error)) from None
        return tool

    def _decision(self, tool: Tool, call: ToolCall, context: Context) -> LoopSteps:
        """Return the decision about a call, or ``None`` if a person still has to decide.

        A decision is valid once, for the call that the person was asked about.
        """
        decided = self._decision_about(call, effect=False)
        if decided is not None:
            return decided
        needed: Any = tool.needs_approval
        if callable(needed):
            needed = yield Call(needed, (call.arguments,))
        for each in self._config.middleware:
            if not needed and isinstance(each, NeedsApproval):
                needed = yield Call(each.needs_approval, (call, context))
        return None if needed else {"decision": "approve"}

    def _decision_about(self, call: ToolCall, *, effect: bool) -> Mapping[str, Any] | None:
        """Return what a person decided when asked about a call: about its effect, or whether to make it."""
        asked, decided = self._asked_about, self._resumed
        if asked.get("call") != call.id or ("effect" in asked) != effect:
            return None
        self._asked_about, self._resumed = {}, {}
        return decided if asked.get("interrupt") == decided.get("id") else None

    def _interrupt(self, call: ToolCall, effect: Effect | None = None) -> LoopSteps:
        """Save that the run waits for a person: to approve a call, or to say what became of its effect."""
        payload: dict[str, Any] = {
            "tool_call": {"id": call.id, "name": call.name, "arguments": call.arguments}
        }
        interrupt_id = new_id()
        pending: dict[str, Any] = {
            "id": interrupt_id,
            "payload": payload,
            "agent": self._config.name,
            "run": self._id,
        }
        tool = self._config.tools.get(call.name)
        if tool is not None and tool.approval is not None:
            pending[POLICY] = policy_fields(tool.approval)
        self._asked_about = {"call": call.id, "interrupt": interrupt_id}
        if effect is not None:
            self._asked_about["effect"] = effect.id
            asked = yield from self._effects.question(effect)
            payload |= {"effect": asked, "question": QUESTION}
        if self._conversation is None:
            raise InvalidInput(
                f"tool {call.name!r} needs approval, which needs a checkpointer=: the thread waits in it"
            )
        self._outcome = "interrupted"
        yield from self._save_and_yield("interrupted", pending=pending)
        yield AgentEvent(kind="interrupt", call=call, interrupt=pending)
        return Interrupted(pending)

    def _run_tool(
        self, tool: Tool, call: ToolCall, attempt: Attempt | None, edited: dict[str, Any] | None
    ) -> LoopSteps:
        """Make a call and return its outcome, which is stored first if the call is an effect.

        If another process has begun the effect meanwhile, return its outcome, or the effect if that is
        unknown; and what a sub-agent waits for.
        """
        context = self._context(call)
        called = intercept_tool(call.name, tool.caller(context), _arguments, once=tool.is_marked_once)
        make = apply_middleware(called, context, self._config.middleware)
        try:
            yield AgentEvent(kind="tool_call", call=call)
            if attempt is None:
                begun = yield from self._effects.begin(call, arguments=edited)
                if isinstance(begun, (Recorded, Effect)):
                    return begun
                attempt = begun
            self._budgets.spend(call.name)
            self._recorder.start_tool(call)
            outcome = Recorded(result_text((yield Call(self._recorder.wrap(make), (call,)))), is_error=False)
        except SubAgentWaits as waits:
            yield from leave(attempt, waits)
            self._recorder.end_tool(str(waits), is_error=False)
            return Interrupted(waits.pending)
        except (EffectRunning, RunCancelled):  # another process stores the result, or the run ends here
            raise
        except Exception as error:
            if self._config.on_tool_error == "raise":
                yield from leave(attempt, error)
                raise
            outcome = Recorded(f"{type(error).__name__}: {error}", is_error=True)
        except Stopped as stopped:
            yield from leave(attempt, stopped)
            raise
        self._recorder.end_tool(outcome.text, is_error=outcome.is_error)
        if attempt is not None:
            yield Call(self._finish, (attempt, outcome), shielded=True)
        return outcome

    def _finish(self, attempt: Attempt, outcome: Recorded) -> None:
        """Store the outcome of a call, with its cost and the files that it changed where these are known."""
        cost: dict[str, int] = {}
        files: list[str] = []
        with suppress(TreeringError, OSError):  # the outcome counts, whatever is known about it
            cost = self._recorder.cost_of_tool()
        with suppress(TreeringError, OSError):
            files = [] if self._conversation is None else self._conversation.changed_files()
        attempt.finish(outcome.text, is_error=outcome.is_error, files=files, cost_nanos=cost)

    def _context(self, call: ToolCall | None = None) -> Context:
        return Context(
            thread_id=self._thread_id,
            namespace=self._config.conversations.namespace,
            run_id=self._id,
            iteration=self._iterations,
            state=self._state,
            call=call,
            idempotency_key=None if call is None else self._effects.key(call, self._id),
            forked_from=self._origin[0],
            forked_at_us=self._origin[1],
        )

    def _save_and_yield(self, status: str, *events: AgentEvent, pending: Any = None) -> LoopSteps:
        """Save a checkpoint, then yield events about what is in it, and the checkpoint's own."""
        yield from self._save(status, pending)
        yield from self._events_of_save(*events)

    def _events_of_save(self, *events: AgentEvent) -> LoopSteps:
        yield from events
        if self._checkpoint is not None:
            yield AgentEvent(kind="checkpoint", checkpoint=self._checkpoint)

    def _save(self, status: str, pending: Any = None, *, effects: Sequence[Intent] = ()) -> LoopSteps:
        """Save an automatic checkpoint. A failure is reported, and the run continues.

        With an interrupt the failure is raised, because nobody could answer the interrupt; and with effects
        that are not stored, because after a crash their calls would be made again.
        """
        if self._conversation is None:
            return
        counters = msgspec.to_builtins(self._budgets.counters())
        state = dict(self._state)
        if status != "done":
            state[RUN_KEY] = {
                "run": self._id,
                "agent": self._config.name,
                "thread": self._thread_id,
                "origin": self._origin,
                "tool_calls": counters,
                "asked": self._asked_about,
                "effects": self._effects.ids,
            }
        self._checkpoint = None
        try:
            self._checkpoint = yield from self._conversation.save(
                self._recorder.wrap,
                messages=list(self._messages),
                state=state,
                pending_interrupt=pending,
                metadata={**self._metadata, "run": self._id, "status": status, "tool_calls": counters["run"]},
                note=status,
                effects=effects,
            )
        except Vetoed as veto:
            if pending is not None:
                raise Vetoed(f"{veto}, which has a pending interrupt; allow these checkpoints") from veto
            return
        except Exception as error:
            if pending is not None or not (yield from self._effects.are_planned(effects)):
                raise
            warnings.warn(
                f"thread {self._thread_id!r} could not be saved: {type(error).__name__}: {error}; "
                "the run continues, and the next checkpoint saves it",
                CheckpointWarning,
                stacklevel=2,
            )
            yield from self._conversation.report(error, self._id)
            return
        self._has_unsaved = False
        if self._partial is not None and self.stream is None:
            self._partial.end()
            self._partial = None

    def _new(self) -> list[Message]:
        return self._messages[self._loaded_count :]


class Interrupted(msgspec.Struct, frozen=True):
    """A call that is not made before a person has decided."""

    pending: dict[str, Any]


def _arguments(call: ToolCall) -> dict[str, Any]:
    return call.arguments


def _denial(decision: Mapping[str, Any]) -> str:
    reason = decision.get("reason")
    return "the call was denied by the user" + (f": {reason}" if reason else "")


def _edited(decision: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments that a person gave instead of the model's, if any."""
    if decision["decision"] != "edit":
        return None
    if not isinstance(decision["payload"], Mapping):
        raise _CallRefused("the call was not made: it was edited to something other than arguments")
    return dict(cast("Mapping[str, Any]", decision["payload"]))


class _CallRefused(Exception):
    """A call that is not made. The model reads the reason as the call's result."""


def _continued(begun: str, messages: list[Message]) -> list[Message]:
    """Return a reply with what was said before its stream broke off, unless the model has repeated that."""
    said = messages[0].get("content") if messages else None
    if not begun or not isinstance(said, str) or said.startswith(begun):
        return messages
    return [{**messages[0], "content": begun + said}, *messages[1:]]


def _shown(pending: Any) -> str:
    return str(pending)[:200]


def _too_many(limit: int) -> BudgetExceeded:
    return BudgetExceeded(
        f"the model was called {limit} times in this run and asks for more tools; "
        "continue without a prompt, or raise max_iterations",
        budget="max_iterations",
        limit=limit,
        count=limit,
    )


class RunRecorder:
    """Records one attempt of a run in the timeline of a store; without a store it does nothing.

    Every attempt is a run of its own. The first one has the id of `Result.run_id`; one that continues after a
    crash or a decision names it in ``meta["resumes"]``.
    """

    def __init__(self, store: Store | None, agent: str, *, thread_id: str | None, namespace: str) -> None:
        self._store = store
        self._agent = agent
        self._thread_id = thread_id
        self._namespace = namespace
        self._run: Run | None = None
        self._span: Span | None = None
        self._tool: tuple[Span, int, int] | None = None
        """The last call of a tool, when it began, and how often its run had used something by then."""

    def begin(self, id: str, *, resumes: str | None) -> None:
        """Record that the attempt starts."""
        if self._store is not None:
            self._run = self._store.run(
                self._agent,
                id=id,
                thread=self._thread_id,
                namespace=self._namespace,
                meta={} if resumes is None else {"resumes": resumes},
            ).start()

    def prompt(self, messages: list[Message]) -> None:
        """Record the prompt."""
        if self._run is not None:
            for each in messages:
                self._run.message(str(each.get("role")), each.get("content"))

    def start_model(self) -> None:
        """Record that the model is called."""
        if self._run is not None:
            self._span = self._run.span("model", kind="llm").start()

    def chunk(self, text: str) -> None:
        """Record a piece of the model's reply."""
        if self._span is not None:
            self._span.chunk(text)

    def end_model(self, messages: list[Message]) -> None:
        """Record the model's reply, with tokens if the provider reports them."""
        span = self._span
        if span is not None:
            for each in messages:
                model: Any = each.get("model")
                span.message(
                    str(each.get("role")),
                    each.get("content") or text_of(each),
                    model=model if isinstance(model, str) else None,
                    usage=_usage(each.get("usage")),
                )
            self._end_span()

    def start_tool(self, call: ToolCall) -> None:
        """Record that a tool is called."""
        if self._run is not None:
            context = self._run.context
            since_us = context.clock.now_us()
            self._span = self._run.tool(call.name, dict(call.arguments)).start()
            self._span.note(tool_call_id=call.id)
            self._tool = self._span, since_us, context.uses

    def end_tool(self, text: str, *, is_error: bool) -> None:
        """Record a tool's result."""
        if self._span is not None:
            self._span.output = text
            self._end_span("error" if is_error else None)

    def cost_of_tool(self) -> dict[str, int]:
        """Return what the last call of a tool has cost, by currency. It waits only if something was used."""
        if self._store is None or self._tool is None:
            return {}
        span, since_us, uses = self._tool
        if span.context.uses == uses:
            return {}
        return cost_below(self._store.engine, self._store.space, span, since_us)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that what it saves is linked to the current span."""
        node = self._span or self._run
        return function if node is None else partial(_inside, node, function)

    def end(self, error: BaseException | None = None, *, status: str = "ok") -> None:
        """Record that the attempt ended; a span that is still open ends with it."""
        if self._run is None:
            return
        if self._span is not None:
            if error is not None:
                self._span.fail(error)
            self._end_span()
        if error is not None:
            self._run.fail(error)
        else:
            self._run.end(status=status)
        self._run = None

    def _end_span(self, status: str | None = None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.end(status=status)


def _inside(node: RunNode, function: Callable[..., Any], *arguments: Any) -> Any:
    before = current_node.set(node)
    try:
        result = function(*arguments)
    finally:
        current_node.reset(before)
    return _awaited(node, result) if inspect.isawaitable(result) else result


async def _awaited(node: RunNode, result: Awaitable[Any]) -> Any:
    before = current_node.set(node)
    try:
        return await result
    finally:
        current_node.reset(before)


def _usage(given: Any) -> Mapping[str, Any] | None:
    """Return a provider's token counts; ``None`` if their form is unknown, which must not end a run."""
    if not isinstance(given, Mapping):
        return None
    from treering.runs.span import usage_of

    usage = cast("Mapping[str, Any]", given)
    with suppress(InvalidInput, TypeError):
        usage_of(usage)
        return usage
    return None


Proceed = Callable[[ToolCall], Any]
"""Calls the next middleware or the tool and returns its value; awaited in an async `wrap_tool`."""


@runtime_checkable
class BeforeModel(Protocol):
    """Changes what the model sees."""

    def before_model(
        self, messages: list[Message], context: Context
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Return the messages to send instead, or ``None`` for these. They are not saved."""
        ...


@runtime_checkable
class AfterModel(Protocol):
    """Changes the model's reply before it is saved and acted on."""

    def after_model(
        self, messages: list[Message], context: Context
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Return the messages to keep instead of the new ones, or ``None`` for these."""
        ...


@runtime_checkable
class WrapTool(Protocol):
    """Wraps every tool call: may change, time, repeat or replace it."""

    def wrap_tool(self, call: ToolCall, context: Context, proceed: Proceed) -> Any:
        """Return the tool's value: that of ``proceed(call)``, or another one."""
        ...


@runtime_checkable
class NeedsApproval(Protocol):
    """Decides which calls need a person's approval."""

    def needs_approval(self, call: ToolCall, context: Context) -> bool | Awaitable[bool]:
        """Whether this call needs approval."""
        ...


Middleware = BeforeModel | AfterModel | WrapTool | NeedsApproval


def apply_middleware(
    execute: Proceed, context: Context, middleware: Sequence[Middleware]
) -> Callable[[ToolCall], Any]:
    """Return a function that makes a tool call through all middleware."""
    for each in reversed(middleware):
        if isinstance(each, WrapTool):
            execute = _layer(each.wrap_tool, context, execute)
    return execute


def _layer(wrap: Callable[..., Any], context: Context, inner: Proceed) -> Proceed:
    if inspect.iscoroutinefunction(wrap):

        async def proceed_async(call: ToolCall) -> Any:
            worker = WorkerThread()  # not the run's own, which may be waiting for this call
            try:
                return await worker.awaited(inner, call)
            finally:
                worker.close()

        async def outer_async(call: ToolCall) -> Any:
            return await wrap(call, context, proceed_async)

        return outer_async

    def proceed(call: ToolCall) -> Any:
        return call_and_wait(inner, call)

    def outer(call: ToolCall) -> Any:
        return wrap(call, context, proceed)

    return outer


END: Final[Any] = object()
"""The result of `next_piece` at the end of a stream."""


Steps = Generator[Call | AgentEvent, Any, None]


class Drivable(Protocol):
    """What a driver runs, and the model's stream that is open at the moment, if any."""

    stream: Any

    def steps(self) -> Steps:
        """Return the steps. Called once."""
        ...


def drive(run: Drivable) -> Generator[AgentEvent]:
    """Run the steps, waiting for each."""
    progress = _Progress(run)
    try:
        while (step := progress.next_step()) is not None:
            try:
                if isinstance(step, AgentEvent):
                    yield step
                else:
                    progress.answer = call_and_wait(step.function, *step.args)
            except StopIteration as raised:
                progress.error = _wrap_stop_iteration(getattr(step, "function", step), raised)
            except Exception as raised:  # noqa: BLE001 - the loop decides what an error means
                progress.error = raised
            except BaseException as raised:  # noqa: BLE001 - raised again after the last save
                progress.stop(raised)
    finally:
        progress.close()
        if run.stream is not None:
            call_and_wait(_close, run.stream)


async def drive_async(run: Drivable) -> AsyncGenerator[AgentEvent]:
    """Run the steps, awaiting each."""
    progress = _Progress(run)
    worker = saver = WorkerThread()
    try:
        while (step := progress.next_step()) is not None:
            try:
                if isinstance(step, AgentEvent):
                    yield step
                elif step.shielded:
                    progress.answer = await _await_shielded(
                        saver.awaited(step.function, *step.args), progress
                    )
                else:
                    progress.answer = await worker.awaited(step.function, *step.args)
            except Exception as raised:  # noqa: BLE001 - the loop decides what an error means
                progress.error = raised
            except BaseException as raised:  # noqa: BLE001 - raised again after the last save
                progress.stop(raised)
                if not worker.is_idle:  # a sync tool cannot be cancelled; the last save does not wait for it
                    saver = WorkerThread()
    finally:
        progress.close()
        try:
            if run.stream is not None:
                await worker.close_stream(run.stream)
        finally:
            worker.close()
            saver.close()


class _Progress:
    """Where a run is: the answer to its last step, or the error, or why the caller wants no more of it."""

    def __init__(self, run: Drivable) -> None:
        self._steps = run.steps()
        self.answer: Any = None
        self.error: BaseException | None = None
        self.stopped: BaseException | None = None
        self._is_told = False

    def next_step(self) -> Call | AgentEvent | None:
        """Return the next step, ``None`` at the end. A run that was stopped has no more events."""
        while True:
            try:
                answer, error, self.answer, self.error = self.answer, self.error, None, None
                step = self._steps.send(answer) if error is None else self._steps.throw(error)
            except (StopIteration, Stopped):
                if self.stopped is not None:
                    raise self.stopped from None
                return None
            if self.stopped is None:
                return step
            if not self._is_told:
                self._is_told, self.error = True, Stopped()
            elif isinstance(step, Call):
                return step

    def stop(self, why: BaseException) -> None:
        """Stop in the step that was interrupted; if that was the last save, at once."""
        if self.stopped is not None:
            raise why
        self.stopped, self.error, self._is_told = why, Stopped(), True

    def close(self) -> None:
        """Close the steps."""
        self._steps.close()


def open_stream(reply: Any) -> Any:
    """Return the iterator of an iterable or an async iterable."""
    return aiter(reply) if hasattr(reply, "__aiter__") else iter(reply)


def next_piece(stream: Any) -> Call:
    """Return the call that reads the next piece of a stream, or `END`."""
    return Call(_next_async if hasattr(stream, "__anext__") else _next, (stream,))


class WorkerThread:
    """A thread that calls sync functions, one at a time. It starts when it is first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no function is being called."""
        return self._last is None or self._last.done()

    async def awaited(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function that may be sync or async.

        Coroutines below a sync one (a hook, a tool behind sync middleware) run in this loop.
        """
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await asyncio.wrap_future(self._submit(function, *args))
        return await result if inspect.isawaitable(result) else result

    async def close_stream(self, stream: Any) -> None:
        """Close a stream that will not be read to its end.

        If the next piece of a sync stream is being read (its reader was cancelled), it is closed after that.
        """
        if hasattr(stream, "__anext__"):
            result = _close(stream)
            if inspect.isawaitable(result):
                await result
            return
        is_idle = self.is_idle
        closing = self._submit(_close, stream)
        if is_idle:
            await asyncio.wrap_future(closing)

    def close(self) -> None:
        """Accept no more calls; the thread ends when the current one has finished."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="treering-agent")
        context = contextvars.copy_context()
        self._last = self._pool.submit(
            context.run, _run_with_loop, asyncio.get_running_loop(), function, *args
        )
        return self._last


async def _await_shielded(result: Coroutine[Any, Any, Any], progress: _Progress) -> Any:
    """Return the result even if the caller is cancelled; the run stops after it then."""
    task = asyncio.ensure_future(result)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            progress.stopped = progress.stopped or error
    return task.result()


def _next(stream: Any) -> Any:
    return next(stream, END)


async def _next_async(stream: Any) -> Any:
    with suppress(StopAsyncIteration):
        return await anext(stream)
    return END


def _close(stream: Any) -> Any:
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    return None if close is None else close()


def _run_with_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> Any:
    try:
        with lent(loop):
            return function(*args)
    except StopIteration as stopped:
        raise _wrap_stop_iteration(function, stopped) from stopped


def _wrap_stop_iteration(function: Any, stopped: StopIteration) -> RuntimeError:
    # A StopIteration would end the generator of the steps, and asyncio cannot carry one at all.
    error = RuntimeError(f"{getattr(function, '__qualname__', function)} raised StopIteration")
    error.__cause__ = stopped
    return error
