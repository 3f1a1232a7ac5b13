"""The loop: ask the model, make the calls that it wants, until it wants none.

**Invariant:** a conversation says by itself where its run stopped. Calls without a result are made before
anything else, those with one never again; so a run goes on after a crash, a failure or a person's decision
by loading the thread and doing what is left. Beside the messages only a small record is kept while a run is
unfinished (state key `RUN_KEY`): its id, its counters of tool calls, and which call a person was asked about.

Calls of one message are made one after the other, in their order. A call is saved when it has its result; a
process that dies in between makes that one call again, so a tool that must not run twice should use
``context.call.id`` as its key.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.agent.conversations import Book, Keeper, Page
from treering.agent.driver import END, Call, Steps, next_piece, open_stream
from treering.agent.messages import (
    Message,
    Prompt,
    ToolCall,
    answer_of,
    as_one_turn,
    calls_of,
    open_calls,
    prompt_messages,
    result_message,
    text_of,
)
from treering.agent.middleware import AfterModel, AsksFirst, BeforeModel, Middleware, wrapped
from treering.agent.results import Context, Part, Result
from treering.agent.tools import Tool, result_text
from treering.core.ids import new_id
from treering.errors import BudgetExceeded, Conflict, InvalidInput
from treering.limits.tool_budgets import Budget, Budgets
from treering.runs.span import current_node

if TYPE_CHECKING:
    from treering.runs.run import Run
    from treering.runs.span import RunNode, Span
    from treering.store import Store


# -----------------------------------------------------------------------------------------------------------
# What the timeline hears of an agent's run: its messages, its model's answers, its tools, and how it ended.
#
# Only an agent whose conversations are in a store has one. Every attempt is a run of its own: the first has
# the id of `Result.run_id`, one that goes on after a crash or a decision says in ``meta["resumes"]`` which
# it continues.


class Notes:
    """Takes notes of one attempt; without a store it does nothing."""

    def __init__(self, store: Store | None, agent: str, *, thread_id: str | None, namespace: str) -> None:
        self._store = store
        self._agent = agent
        self._thread_id = thread_id
        self._namespace = namespace
        self._run: Run | None = None
        self._span: Span | None = None

    def begin(self, id: str, *, resumes: str | None) -> None:
        """The attempt begins."""
        if self._store is not None:
            self._run = self._store.run(
                self._agent,
                id=id,
                thread=self._thread_id,
                namespace=self._namespace,
                meta={} if resumes is None else {"resumes": resumes},
            ).start()

    def said(self, messages: list[Message]) -> None:
        """Someone said something: the prompt."""
        if self._run is not None:
            for each in messages:
                self._run.message(str(each.get("role")), each.get("content"))

    def ask(self) -> None:
        """The model is asked."""
        if self._run is not None:
            self._span = self._run.span("model", kind="llm").start()

    def chunk(self, text: str) -> None:
        """A piece of the model's answer came."""
        if self._span is not None:
            self._span.chunk(text)

    def answered(self, messages: list[Message]) -> None:
        """The model answered: its messages, with the tokens that they took where the provider says so."""
        span = self._end_span()
        if span is not None:
            for each in messages:
                model: Any = each.get("model")
                span.message(
                    str(each.get("role")),
                    each.get("content") or text_of(each),
                    model=model if isinstance(model, str) else None,
                    usage=_usage(each.get("usage")),
                )

    def call(self, call: ToolCall) -> None:
        """A tool is called."""
        if self._run is not None:
            self._span = self._run.tool(call.name, dict(call.arguments)).start()
            self._span.note(tool_call_id=call.id)

    def returned(self, text: str, *, is_error: bool) -> None:
        """It gave a result."""
        if self._span is not None:
            self._span.output = text
            self._end_span("error" if is_error else None)

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, to be called as a part of what is just noted: what it saves is linked to it."""
        place = self._span or self._run
        return function if place is None else partial(_inside, place, function)

    def end(self, error: BaseException | None = None, *, status: str = "ok") -> None:
        """The attempt is over; a span that is still open failed with it."""
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

    def _end_span(self, status: str | None = None) -> Span | None:
        span, self._span = self._span, None
        if span is not None:
            span.end(status=status)
        return span


def _inside(place: RunNode, function: Callable[..., Any], *arguments: Any) -> Any:
    before = current_node.set(place)
    try:
        result = function(*arguments)
    finally:
        current_node.reset(before)
    return _awaited(place, result) if inspect.isawaitable(result) else result


async def _awaited(place: RunNode, result: Awaitable[Any]) -> Any:
    before = current_node.set(place)
    try:
        return await result
    finally:
        current_node.reset(before)


def _usage(given: Any) -> Mapping[str, Any] | None:
    """A provider's own count, if it is one that is understood: a run is not lost over a strange word."""
    if not isinstance(given, Mapping):
        return None
    from treering.runs.span import usage_of

    usage = cast("Mapping[str, Any]", given)
    with suppress(InvalidInput, TypeError):
        usage_of(usage)
        return usage
    return None


# -----------------------------------------------------------------------------------------------------------
# Replies: what a model may give back, and the messages that are kept of it.
#
# Structured messages are kept as they are. A reply that has none (a string, an object with a ``text``, a
# stream of text) becomes one message of the assistant with that text. A stream may do both: text for
# whoever watches, and at its end the structured message, which then is what is kept.


_EXPECTED: Final = (
    "return a message (a dict with a role), a list of them, an object with messages or text, "
    "a string, or an iterator of such pieces"
)


def read_reply(reply: Any) -> list[Message]:
    """The messages to keep of a reply; `InvalidInput` when it holds none."""
    messages = _messages(reply)
    if messages is None:
        raise InvalidInput(f"the model returned {type(reply).__name__}, which is no message; {_EXPECTED}")
    ids = [call.id for message in messages for call in calls_of(message)]
    if len(ids) != len(set(ids)):
        raise InvalidInput(f"the model gave two tool calls of one reply the same id: {', '.join(ids)}")
    return messages


def is_stream(reply: Any) -> bool:
    """Whether a reply comes in pieces."""
    return any(hasattr(reply, name) for name in ("__next__", "__anext__", "__aiter__"))


class Pieces:
    """A reply that comes in pieces, gathered as they come."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._messages: list[Message] = []

    def take(self, piece: Any) -> str:
        """Take the next piece; the text in it that a reader can be shown."""
        if isinstance(piece, str):
            self._text.append(piece)
            return piece
        messages = _messages(piece)
        if messages is None:
            return ""
        was_silent = not self._text
        self._messages += messages
        return "".join(map(text_of, messages)) if was_silent else ""

    def reply(self) -> Any:
        """All of it, as a reply that came at once."""
        return self._messages or "".join(self._text)


def _messages(reply: Any) -> list[Message] | None:
    if isinstance(reply, str):
        return [{"role": "assistant", "content": reply}]
    if isinstance(reply, (list, tuple)):
        many = cast("list[Any]", reply)
        read = [_message(each) for each in many]
        whole = [each for each in read if each is not None]
        return whole if whole and len(whole) == len(read) else None
    one = _message(reply)
    if one is not None:
        return [one]
    for holder in (reply, _field(reply, "response")):
        found = _field(holder, "messages")
        if isinstance(found, (list, tuple)) and found:
            return _messages(found)
    text = _field(reply, "text")
    return [{"role": "assistant", "content": text}] if isinstance(text, str) else None


def _message(value: Any) -> Message | None:
    plain: Any = value
    if hasattr(value, "model_dump"):  # the message objects of most clients
        plain = value.model_dump(mode="json", exclude_none=True)
    elif isinstance(value, msgspec.Struct) or is_dataclass(value):
        plain = msgspec.to_builtins(value)
    if not isinstance(plain, Mapping):
        return None
    message = dict(cast("Mapping[str, Any]", plain))
    return message if isinstance(message.get("role"), str) else None


def _field(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    found = getattr(holder, name, None)
    return None if callable(found) else found


# -----------------------------------------------------------------------------------------------------------

RUN_KEY: Final = "treering.agent"
"""The key of a thread's state that holds the record of an unfinished run."""

Told = Literal["tell", "raise"]
"""What becomes of an error in a tool call: the model is told, or the run ends with it."""

Doing = Generator[Call | Part, Any, Any]


class CheckpointWarning(UserWarning):
    """An automatic checkpoint could not be saved; the run goes on without it."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of an agent have in common."""

    model: Callable[..., Any]
    tools: dict[str, Tool]
    keeper: Keeper
    middleware: tuple[Middleware, ...]
    budget: Budget
    max_iterations: int
    on_over_budget: Told
    on_tool_error: Told
    name: str
    records: bool


class AgentRun:
    """One execution, from a prompt (or from where the last one stopped) to a result."""

    def __init__(
        self,
        setup: Setup,
        thread_id: str | None,
        prompt: Prompt | None,
        *,
        saves_often: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.stream: Any = None
        self._setup = setup
        self._thread_id = thread_id
        self._prompt = prompt
        self._saves_often = saves_often
        self._metadata = dict(metadata or {})
        self._book: Book | None = setup.keeper.book(thread_id)
        self._budgets = Budgets(setup.budget)
        self._id = self._attempt = new_id()
        self._notes = Notes(
            setup.keeper.store if setup.records else None,
            setup.name,
            thread_id=thread_id,
            namespace=setup.keeper.namespace,
        )
        self._messages: list[Message] = []
        self._state: dict[str, Any] = {"todos": [], "files": {}}
        self._asked: dict[str, str] = {}
        self._resumed: Mapping[str, Any] = {}
        self._checkpoint: Any = None
        self._known = 0
        self._iterations = 0
        self._has_news = False

    def steps(self) -> Steps:
        """The whole run, for a driver."""
        yield from self._load()
        self._notes.begin(self._attempt, resumes=None if self._attempt == self._id else self._id)
        try:
            interrupt = yield from self._work()
        except Exception as error:
            if self._has_news:
                yield from self._save("failed")
            self._notes.end(error)
            raise
        except GeneratorExit:  # whoever drove this run left it half-way
            self._notes.end(status="stopped")
            raise
        if interrupt is None:
            yield from self._save("done")
        self._notes.end(status="ok" if interrupt is None else "interrupted")
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
        yield Part(kind="finish", text=result.text, result=result)

    # Where the thread is
    def _load(self) -> Doing:
        page: Page | None = (yield from self._book.load()) if self._book is not None else None
        if page is not None:
            if page.pending_interrupt is not None:
                raise Conflict(
                    f"thread {self._thread_id!r} waits for a decision about "
                    f"{_shown(page.pending_interrupt)}; resume() it before going on"
                )
            self._messages = list(page.messages)
            self._state |= page.state
            self._resumed = page.metadata.get("resumed") or {}
            self._checkpoint = page.checkpoint
        self._known = len(self._messages)
        unfinished: Any = self._state.pop(RUN_KEY, None)
        if unfinished is not None:
            self._id = unfinished["run"]
            self._budgets.restore(unfinished["tool_calls"])
            self._asked = unfinished.get("asked") or {}

    def _work(self) -> Doing:
        """All iterations; the interrupt that stopped them, or ``None`` when the model wants no more."""
        interrupt = yield from self._make_calls()
        if interrupt is not None:
            return interrupt
        self._take_prompt()
        while True:
            if self._iterations == self._setup.max_iterations:
                raise _too_many(self._iterations)
            self._budgets.next_iteration()
            yield from self._ask()
            self._iterations += 1
            if not open_calls(self._messages):
                return None
            if self._saves_often:
                yield from self._save("running")
            interrupt = yield from self._make_calls()
            if interrupt is not None:
                return interrupt

    def _take_prompt(self) -> None:
        if self._prompt is not None:
            self._id = self._attempt
            self._budgets.next_run()
            prompt = prompt_messages(self._prompt)
            self._messages += prompt
            self._notes.said(prompt)
        elif not self._messages or answer_of(self._messages[-1]) is not None:
            raise InvalidInput(
                f"thread {self._thread_id!r} has nothing unfinished to go on with; give a prompt="
            )

    # The model
    def _ask(self) -> Doing:
        context = self._context()
        shown = as_one_turn(self._messages)
        for each in self._setup.middleware:
            if isinstance(each, BeforeModel):
                changed = yield Call(each.before_model, (list(shown), context))
                shown = shown if changed is None else list(changed)
        self._notes.ask()
        reply = yield Call(self._setup.model, (list(shown), list(self._setup.tools.values())))
        if is_stream(reply):
            messages = read_reply((yield from self._gather(reply)))
        else:
            messages = read_reply(reply)
            for text in filter(None, map(text_of, messages)):
                yield Part(kind="text", text=text)
        self._notes.answered(messages)
        for each in reversed(self._setup.middleware):
            if isinstance(each, AfterModel):
                changed = yield Call(each.after_model, (list(messages), context))
                messages = messages if changed is None else list(changed)
        self._messages += messages
        self._has_news = True
        for message in messages:
            yield Part(kind="message", message=message)

    def _gather(self, reply: Any) -> Doing:
        self.stream = stream = open_stream(reply)
        following = next_piece(stream)
        pieces = Pieces()
        while (piece := (yield following)) is not END:
            text = pieces.take(piece)
            if text:
                self._notes.chunk(text)
                yield Part(kind="text", text=text)
            elif not isinstance(piece, str):
                yield Part(kind="piece", value=piece)
        self.stream = None
        return pieces.reply()

    # The tools
    def _make_calls(self) -> Doing:
        """Make all calls that have no result yet; the interrupt, when one has to wait for a person."""
        for call in open_calls(self._messages):
            context = self._context(call)
            try:
                tool = self._allowed(call, context)
                decision = yield from self._decision(tool, call, context)
                if decision is None:
                    return (yield from self._interrupt(call))
                call, text, is_error = yield from self._answered(tool, call, context, decision)  # noqa: PLW2901
            except _Refused as refused:
                text, is_error = str(refused), True
            message = result_message(call, text, is_error=is_error)
            self._messages.append(message)
            self._has_news = True
            yield Part(kind="tool_result", call=call, message=message, text=text, is_error=is_error)
            if self._saves_often:
                yield from self._save("running")
        return None

    def _allowed(self, call: ToolCall, context: Context) -> Tool:
        tool = self._setup.tools.get(call.name)
        if tool is None:
            there = ", ".join(self._setup.tools) or "none"
            raise _Refused(f"there is no tool {call.name!r}; the tools are: {there}")
        if call.problem is not None:
            raise _Refused(call.problem)
        try:
            tool.bound(call.arguments, context)
        except InvalidInput as error:
            raise _Refused(str(error)) from None
        try:
            self._budgets.budget.check(self._budgets.counters(), call.name)
        except BudgetExceeded as error:
            if self._setup.on_over_budget == "raise":
                raise
            raise _Refused(str(error)) from None
        return tool

    def _decision(self, tool: Tool, call: ToolCall, context: Context) -> Doing:
        """What was decided about a call (a dict), or ``None`` when a person still has to.

        A decision is good for the call that was asked about, once.
        """
        asked, decided = self._asked, self._resumed
        self._asked, self._resumed = {}, {}
        if asked.get("call") == call.id and asked.get("interrupt") == decided.get("id"):
            return decided
        needed: Any = tool.needs_approval
        if callable(needed):
            needed = yield Call(needed, (call.arguments,))
        for each in self._setup.middleware:
            if not needed and isinstance(each, AsksFirst):
                needed = yield Call(each.needs_approval, (call, context))
        return None if needed else {"decision": "approve"}

    def _interrupt(self, call: ToolCall) -> Doing:
        payload = {"tool_call": {"id": call.id, "name": call.name, "arguments": call.arguments}}
        interrupt_id = new_id()
        pending = {"id": interrupt_id, "payload": payload}
        self._asked = {"call": call.id, "interrupt": interrupt_id}
        if self._book is None:
            raise InvalidInput(
                f"tool {call.name!r} needs approval, and this agent has nowhere to wait for it; "
                "give it a checkpointer="
            )
        yield from self._save("interrupted", pending)
        yield Part(kind="interrupt", call=call, interrupt=pending)
        return pending

    def _answered(
        self, tool: Tool, call: ToolCall, context: Context, decision: Mapping[str, Any]
    ) -> Generator[Call | Part, Any, tuple[ToolCall, str, bool]]:
        """The call as it was made, the text of its result, and whether that is an error."""
        if decision["decision"] == "deny":
            return call, "the call was denied by the user", True
        if decision["decision"] == "edit":
            if not isinstance(decision["payload"], Mapping):
                raise _Refused("the call was edited to something that is no arguments, and was not made")
            edited = dict(cast("Mapping[str, Any]", decision["payload"]))
            call = msgspec.structs.replace(call, arguments=edited)
            context = self._context(call)
        self._budgets.spend(call.name)
        yield Part(kind="tool_call", call=call)
        make = wrapped(tool.caller(context), context, self._setup.middleware)
        self._notes.call(call)
        try:
            text, is_error = result_text((yield Call(self._notes.within(make), (call,)))), False
        except Exception as error:
            if self._setup.on_tool_error == "raise":
                raise
            text, is_error = f"{type(error).__name__}: {error}", True
        self._notes.returned(text, is_error=is_error)
        return call, text, is_error

    def _context(self, call: ToolCall | None = None) -> Context:
        return Context(
            thread_id=self._thread_id,
            namespace=self._setup.keeper.namespace,
            run_id=self._id,
            iteration=self._iterations,
            state=self._state,
            call=call,
        )

    # Saving
    def _save(self, status: str, pending: Any = None) -> Doing:
        """An automatic checkpoint: what goes wrong with it is told, and the run goes on.

        One with an interrupt is more than that: nobody could answer it, so there the error is raised.
        """
        if self._book is None:
            return
        counters = msgspec.to_builtins(self._budgets.counters())
        state = dict(self._state)
        if status != "done":
            state[RUN_KEY] = {"run": self._id, "tool_calls": counters, "asked": self._asked}
        page = Page(
            messages=list(self._messages),
            state=state,
            pending_interrupt=pending,
            metadata={**self._metadata, "run": self._id, "status": status, "tool_calls": counters["run"]},
            note=status,
        )
        self._checkpoint = None
        try:
            self._checkpoint = yield from self._book.save(page, self._notes.within)
        except Exception as error:
            if pending is not None:
                raise
            warnings.warn(
                f"thread {self._thread_id!r} could not be saved: {type(error).__name__}: {error}; "
                "the run goes on, and the next checkpoint tries again",
                CheckpointWarning,
                stacklevel=2,
            )
            yield from self._book.report(error, self._id)
            return
        if self._checkpoint is not None:
            yield Part(kind="checkpoint", checkpoint=self._checkpoint)
        elif pending is not None:
            raise Conflict(
                f"a hook vetoed the checkpoint in which thread {self._thread_id!r} waits for a decision; "
                "let those with a pending_interrupt pass"
            )

    def _new(self) -> list[Message]:
        return self._messages[self._known :]


class _Refused(Exception):
    """A call that is not made; the model is told why."""


def _shown(pending: Any) -> str:
    return str(pending)[:200]


def _too_many(limit: int) -> BudgetExceeded:
    return BudgetExceeded(
        f"the model was asked {limit} times in this run and still wants more; "
        "go on without a prompt, or raise max_iterations",
        budget="max_iterations",
        limit=limit,
        count=limit,
    )
