"""Checking a deploy: which stored threads would break under new code, before it runs.

`check_deploy` loads the newest checkpoint of each thread with the new code, through an engine that refuses
every write, and runs the registered upcasters (`treering.upcast`) in memory. Nothing is copied and nothing is
called: no model, tool or node. What it looks for depends on the code:

- **Our own loop:** calls that wait to be made (or for a person) whose tool is gone, or no longer takes their
  arguments.
- **A LangGraph graph:** nodes that are due and gone, interrupts that no task waits with, values that the
  state's schema does not allow, types that cannot be built, and the same in subgraphs.
- **A pydantic-ai agent:** messages that cannot be read, and calls that wait, as in our own loop.
- **A function** of a `Checkpoint`: whatever it raises. It can be given beside any of these.

Threads of other frameworks are skipped, and counted.

**Invariant:** no byte of the store changes, and a breaker is reported only if the thread cannot go on: what
code does with a value is not guessed.
"""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.core.query import collecting
from treering.errors import Conflict, InvalidInput, ReadOnly, TreeringError
from treering.store import Store
from treering.threads.checkpoint import MESSAGES, Checkpoint, extension_of, read_list
from treering.threads.directory import ThreadInfo, all_threads
from treering.threads.upcasting import upgrade_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.agent.agent import Agent
    from treering.core.engine import Engine

Check = Callable[[Checkpoint], Any]

_WRITES: Final = frozenset(
    "submit commit stage claim heartbeat release erase sweep reindex load".split()  # of `Engine`
)
_SHOWN: Final = 20
_TEXT: Final = 300


class DeployBroken(Conflict):
    """Threads would break under the new code."""


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """Why a thread would break, and where: a state value, a node, a call, an interrupt, an upcaster."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    where: str
    problem: str

    def describe(self) -> str:
        """Return it as a line of text."""
        of = f" (namespace {self.namespace!r})" if self.namespace else ""
        return f"{self.thread_id}{of} at {self.checkpoint_id}: {self.where}: {self.problem}"


class DeployReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `check_deploy` found."""

    checked: int
    skipped: int
    """Threads of other frameworks than the code's."""
    migrated: int
    """Threads that upcasters would migrate."""
    breakers: tuple[Breaker, ...]

    @property
    def ok(self) -> bool:
        """Whether no thread would break."""
        return not self.breakers

    @property
    def broken(self) -> tuple[tuple[str, str], ...]:
        """The threads that would break, as (namespace, id)."""
        return tuple(dict.fromkeys((each.namespace, each.thread_id) for each in self.breakers))

    def describe(self) -> str:
        """Return it as text: a line for the numbers, and one for each breaker."""
        counts = f"{self.checked} threads checked, {self.migrated} migrated, {self.skipped} skipped"
        shown = [each.describe() for each in self.breakers[:_SHOWN]]
        more = len(self.breakers) - len(shown)
        rest = [f"... and {more} more"] if more else []
        return "\n".join([f"{counts}, {len(self.broken)} would break", *shown, *rest])

    def raise_if_broken(self) -> None:
        """Raise `DeployBroken`, which names what would break."""
        if self.breakers:
            raise DeployBroken(self.describe())


def check_deploy(
    store: Any,
    target: Any = None,
    *,
    check: Check | None = None,
    threads: str = "*",
    namespace: str | None = None,
    sample: int | None = None,
    seed: int | None = None,
) -> DeployReport:
    """Load every thread with new code, and report which ones would break; writes nothing.

    Args:
        store: a store, sync or async.
        target: an agent of `treering.agent`, a LangGraph graph, a pydantic-ai agent, or a function without
            parameters that returns one. A function of a `Checkpoint` is a ``check``.
        check: called with the newest checkpoint of every thread (as upcasters migrate it); what it raises
            is why the thread would break.
        threads: a pattern of thread ids, with ``*`` and ``?``.
        namespace: only threads of this namespace (``None``: of all).
        sample: check so many threads, chosen at random (with ``seed``: the same ones each time).
    """
    reading = Store(cast("Engine", _ReadingEngine(_sync(store).engine)), space=_sync(store).space)
    inspect, check = _inspector(reading, target, check)
    infos: Iterable[ThreadInfo] = (
        each
        for each in all_threads(reading.engine, reading.space, namespace=namespace)
        if fnmatchcase(each.id, threads)
    )
    if sample is not None:
        if sample < 1:
            raise InvalidInput(f"sample is {sample}; give a number of threads")
        known = list(infos)
        infos = random.Random(seed).sample(known, min(sample, len(known)))
    counts = {"checked": 0, "skipped": 0, "migrated": 0}
    breakers: list[Breaker] = []
    with collecting() as unreadable:
        for info in infos:
            found = _check_thread(reading, info, inspect, check, counts)
            breakers += (
                Breaker(
                    thread_id=info.id,
                    namespace=info.namespace,
                    checkpoint_id=info.head,
                    where=where,
                    problem=problem[:_TEXT],
                )
                for where, problem in found
            )
    breakers += (
        Breaker(thread_id=each.name, namespace="", checkpoint_id="", where="head", problem=each.problem)
        for each in unreadable.values()
    )
    return DeployReport(**counts, breakers=tuple(breakers))


Problem = tuple[str, str]
"""Where, and what."""
Inspector = Callable[[Checkpoint], "Iterator[Problem] | None"]
"""Returns the problems of a thread; ``None`` if it is of another framework."""


def _check_thread(
    store: Store, info: ThreadInfo, inspect: Inspector, check: Check | None, counts: dict[str, int]
) -> list[Problem]:
    try:
        head = store.thread(info.id, info.namespace).head
        if head is None:
            return []
        problems = inspect(head)
        if problems is None:
            counts["skipped"] += 1
            return []
        counts["checked"] += 1
        counts["migrated"] += upgrade_of(info.id, head.metadata) is not None
        found = list(problems)
    except (TreeringError, ValueError, TypeError) as error:
        return [("load", str(error))]
    if check is not None and not found:
        try:
            check(head)
        except Exception as error:  # noqa: BLE001 - that is what it is asked for
            return [("check", f"{type(error).__name__}: {error}")]
    return found


def assert_deployable(store: Any, target: Any = None, **options: Any) -> DeployReport:
    """Fail the test that calls this if a thread of a store (or of one by its URL) would break.

    The options are those of `check_deploy`.
    """
    if isinstance(store, (str, Path)):
        from treering.api import open_existing

        with open_existing(store) as opened:
            return assert_deployable(opened, target, **options)
    report = check_deploy(store, target, **options)
    if not report.ok:
        raise AssertionError(report.describe())
    return report


def _sync(store: Any) -> Store:
    return store if isinstance(store, Store) else store.sync


class _ReadingEngine:
    """An engine that reads, and refuses to write."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if name in _WRITES:
            raise ReadOnly(f"check_deploy writes nothing, but the new code called {name}() while it loaded")
        return getattr(self._engine, name)


def _inspector(store: Store, target: Any, check: Check | None) -> tuple[Inspector, Check | None]:
    """Return what looks at the threads of a target, and what else is called for them."""
    from treering.agent.agent import Agent

    if isinstance(target, types.FunctionType):
        takes = [each for each in signature(target).parameters.values() if each.default is Parameter.empty]
        if not takes:
            return _inspector(store, target(), check)
        if check is not None:
            raise InvalidInput(f"{target.__name__} takes an argument, so it is a check; give one check only")
        return _any_thread, target
    if target is None:
        return _any_thread, check
    if isinstance(target, Agent):
        return _agent_inspector(target), check
    if hasattr(target, "compile") and hasattr(target, "add_node"):
        target = target.compile()
    if hasattr(target, "get_state") and hasattr(target, "channels"):
        return _graph_inspector(store, target), check
    if type(target).__module__.startswith("pydantic_ai"):
        return _pydantic_inspector(store, target), check
    raise InvalidInput(
        f"{type(target).__name__} cannot be checked; give an agent, a LangGraph graph, a pydantic-ai agent, "
        "or a function that returns one"
    )


def _any_thread(head: Checkpoint) -> Iterator[Problem]:
    if extension_of(head.metadata) is None:
        yield from _content(head)


def _content(head: Checkpoint) -> Iterator[Problem]:
    """Read state and messages, through the upcasters."""
    parts: tuple[Literal["state", "messages"], ...] = ("state", "messages")
    for part in parts:
        try:
            getattr(head, part)
        except TreeringError as error:
            yield part, str(error)


# Our own loop
def _agent_inspector(agent: Agent) -> Inspector:
    from treering.agent.loop import RUN_KEY
    from treering.agent.messages import Context, pending_calls

    context = Context(thread_id=None, namespace="", run_id="", iteration=0, state={}, call=None)
    config = agent._config  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - the loop's own

    def inspect(head: Checkpoint) -> Iterator[Problem] | None:
        is_unfinished = RUN_KEY in head.record.state
        if not is_unfinished and not {"run", "status", "tool_calls"} <= head.metadata.keys():
            return None
        if head.namespace != config.conversations.namespace:
            return None
        if is_unfinished:
            try:
                unfinished: Any = head.value(RUN_KEY)
            except TreeringError:
                unfinished = {}
            if unfinished.get("agent", config.name) != config.name:
                return None
        return problems(head)

    def problems(head: Checkpoint) -> Iterator[Problem]:
        broken = list(_content(head))
        yield from broken
        if broken:
            return
        for call in pending_calls(head.messages):
            where = f"call {call.id} of {call.name!r}"
            tool = config.tools.get(call.name)
            if tool is None:
                yield where, f"tool {call.name!r} is gone; the call waits to be made"
                continue
            try:
                tool.bound(call.arguments, context)
            except InvalidInput as error:
                yield where, str(error)

    return inspect


# LangGraph
def _graph_inspector(store: Store, graph: Any) -> Inspector:
    from treering.adapters.langgraph import TreeringSaver

    copies: dict[str, Any] = {}

    def inspect(head: Checkpoint) -> Iterator[Problem] | None:
        if extension_of(head.metadata) is None:
            return None
        copy = copies.get(head.namespace)
        if copy is None:
            saver = TreeringSaver(store, namespace=head.namespace, runs=False)
            copy = copies[head.namespace] = graph.copy(update={"checkpointer": saver})
        return problems(copy, head.thread_id)

    def problems(copy: Any, thread_id: str) -> Iterator[Problem]:
        config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        yield from _graph_problems(copy, copy.checkpointer, config, "")

    return inspect


def _graph_problems(graph: Any, saver: Any, config: Any, inside: str) -> Iterator[Problem]:
    try:
        loaded = saver.get_tuple(config)
    except (TreeringError, ValueError, TypeError, KeyError) as error:
        yield f"{inside}state", str(error)
        return
    if loaded is None:
        return
    checkpoint = loaded.checkpoint
    gone = list(_gone_nodes(graph, checkpoint))
    for node in gone:
        yield f"{inside}node {node!r}", "it is due next, and the graph has no such node"
    asks = [write for write in loaded.pending_writes or () if write[1] == "__interrupt__"]
    if gone:
        if asks:
            yield f"{inside}interrupt", "a person is asked, and the node that would get the answer is gone"
        return
    snapshot = graph.get_state(config)
    tasks = {task.id for task in snapshot.tasks}
    for task_id, _, _ in asks:
        if task_id not in tasks:
            yield f"{inside}interrupt", "a person is asked, and no task of the graph waits for the answer"
    subgraphs = dict(graph.get_subgraphs())
    for task in snapshot.tasks:
        sub, state = subgraphs.get(task.name), task.state
        if isinstance(state, Mapping) and sub is not None:
            yield from _graph_problems(
                sub.copy(update={"checkpointer": saver}), saver, state, f"{inside}{task.name}/"
            )
    builder = getattr(graph, "builder", None)
    if builder is not None:
        for problem in _schema_problems(builder.state_schema, checkpoint["channel_values"], snapshot.next):
            yield f"{inside}{problem[0]}", problem[1]


def _gone_nodes(graph: Any, checkpoint: Any) -> Iterator[str]:
    """Yield the nodes that a checkpoint starts next, and that the graph does not have."""
    values, versions, seen = (
        checkpoint[name] for name in ("channel_values", "channel_versions", "versions_seen")
    )
    for channel, value in values.items():
        if channel == "__pregel_tasks":
            yield from (each.node for each in value if each.node not in graph.nodes)
        elif channel.startswith("branch:to:") and channel not in graph.channels:
            node = channel.removeprefix("branch:to:")
            if node not in graph.nodes and versions.get(channel) != seen.get(node, {}).get(channel):
                yield node
        elif channel.startswith("join:") and channel not in graph.channels and value:
            yield channel.rpartition(":")[2]


def _schema_problems(schema: Any, values: Mapping[str, Any], due: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the values that a state schema does not allow, and, if nodes are due, what they lack."""
    model = getattr(schema, "model_validate", None)
    known = {name: value for name, value in values.items() if not name.startswith(("__", "branch:", "join:"))}
    if model is not None:
        fields = cast("dict[str, Any]", schema.model_fields)
        given = {name: value for name, value in known.items() if name in fields}
        try:
            model(given)
        except ValueError as error:
            for each in cast("Any", error).errors():
                if each["type"] != "missing" or len(each["loc"]) > 1 or due:
                    place = ".".join(map(str, each["loc"])) or "state"
                    yield f"state {place!r}", each["msg"]
        return
    try:
        hints = typing.get_type_hints(schema)
    except (NameError, TypeError):  # names that only a type checker knows
        return
    for name, hint in hints.items():
        if name in known and not _fits(known[name], hint):
            shown = getattr(hint, "__name__", None) if isinstance(hint, type) else None
            yield (
                f"state {name!r}",
                f"it is a {type(known[name]).__name__}, and the schema says {shown or hint}",
            )
    if dataclasses.is_dataclass(schema) and due:
        for field in dataclasses.fields(schema):
            has_default = {field.default, field.default_factory} != {dataclasses.MISSING}
            if field.name not in known and field.init and not has_default:
                yield f"state {field.name!r}", "the schema requires it, and the thread does not have it"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value may be of a type; true wherever that cannot be told."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, (str, typing.TypeVar)):
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
        return _fits(value, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint)
        given = cast("Mapping[str, Any]", value)
        return isinstance(value, Mapping) and all(
            _fits(each, hints[name]) for name, each in given.items() if name in hints
        )
    if origin in (list, set, frozenset) and arguments:
        return isinstance(value, (list, tuple, set, frozenset)) and all(
            _fits(each, arguments[0]) for each in cast("list[Any]", value)
        )
    if origin is dict and len(arguments) == 2:  # noqa: PLR2004 - key and value
        pairs = cast("dict[Any, Any]", value)
        return type(pairs) is dict and all(
            _fits(key, arguments[0]) and _fits(each, arguments[1]) for key, each in pairs.items()
        )
    kind: Any = hint if origin is None else origin
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in (list, tuple, set, frozenset):
        return isinstance(value, (list, tuple, set, frozenset))
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    try:
        return isinstance(value, kind)
    except TypeError:
        return True


# pydantic-ai
def _pydantic_inspector(store: Store, agent: Any) -> Inspector:
    from treering.adapters.pydantic_ai.records import load_messages

    tools = _pydantic_tools(agent)

    def inspect(head: Checkpoint) -> Iterator[Problem] | None:
        if extension_of(head.metadata) is not None:
            return None
        stored = head.record.lists.get(MESSAGES)
        if stored is None or not stored.length:
            return None
        (newest,) = read_list(store.engine, store.space, stored, last=1)
        is_ours = isinstance(newest, dict) and {"kind", "parts"} <= cast("dict[str, Any]", newest).keys()
        return problems(head) if is_ours else None

    def problems(head: Checkpoint) -> Iterator[Problem]:
        broken = list(_content(head))
        yield from broken
        if broken:
            return
        try:
            messages = load_messages(head.messages)
        except InvalidInput as error:
            yield "messages", str(error)
            return
        yield from _waiting_calls(messages, tools)

    return inspect


def _waiting_calls(messages: list[Any], tools: dict[str, Any] | None) -> Iterator[Problem]:
    parts = [part for message in messages for part in message.parts]
    answered = {part.tool_call_id for part in parts if part.part_kind in ("tool-return", "retry-prompt")}
    for part in parts:
        if part.part_kind != "tool-call" or part.tool_call_id in answered or tools is None:
            continue
        where = f"call {part.tool_call_id} of {part.tool_name!r}"
        tool = tools.get(part.tool_name)
        if tool is None:
            yield where, f"tool {part.tool_name!r} is gone; the call waits to be made"
            continue
        try:
            tool.function_schema.validator.validate_python(part.args_as_dict())
        except ValueError as error:
            yield where, f"the tool does not take these arguments any more: {error}"


def _pydantic_tools(agent: Any) -> dict[str, Any] | None:
    """Return an agent's functions by name; ``None`` if some of its tools are known at run time only."""
    tools: dict[str, Any] = {}
    for toolset in agent.toolsets:
        known = getattr(toolset, "tools", None)
        if not isinstance(known, dict):
            return None
        tools |= known
    return tools
