"""Run an agent against its recorded test, and say what it did. `treering.replays.pytest_plugin` uses it.

    run = run_recorded(read_test(path), agent=my_agent, folder=tmp_path)
    assert run.tools == ["search_orders", "refund"]

The agent starts with the files, the thread and the memory of the recording, in a folder and a store of its
own (``TREERING_URL`` leads to it). Models and tools answer from the recording, and the network is blocked. A
tool that is answered from the recording leaves the files that it left then; one that is *real* is called, and
must do what it did then: so a test sees both an agent that asks for something else and a tool that does.

**Invariant:** a call is either exactly what was recorded (but for the `Tolerance`), or the run ends in a
`Divergence`; there is no third outcome, and nothing depends on the order or time of calls.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

import treering
from treering.adapters.shared import Opened
from treering.errors import InvalidInput, NotFound
from treering.replays import wire
from treering.replays.capture import Asked, Instrumentation, RecordedRun, entry_name, plain
from treering.replays.comparison import Variant, conversation, usage_and_cost
from treering.replays.fixtures import (
    HOME,
    WORKSPACE,
    Cleaner,
    RecordedTest,
    StoredFile,
    record_test,
)
from treering.replays.nature import Nature, merge_draws
from treering.replays.replay import (
    EXACT,
    Diverged,
    Divergence,
    Replay,
    StopReplay,
    Stub,
    Tolerance,
    difference_of,
    ended_early,
    hosts_of,
    paths_of_difference,
)
from treering.replays.rerun import COMMAND, COMMAND_TOLERANCE, RerunSession, call_entry
from treering.runs.exchanges import CallError, Exchange, read_exchanges
from treering.runs.messages import message_text
from treering.runs.run import Run
from treering.runs.span import replaying

Otherwise = Literal["fail", "stop", "real"] | Stub
_PATHS: Final = 5


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, as the agent made it."""

    name: str
    arguments: Any
    result: Any
    error: str | None = None


class Files(Mapping[str, str]):
    """The files of a folder by their path in it, as texts; `bytes_of` has those that are none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, path: str) -> str:
        __tracebackhide__ = True
        return self.bytes_of(path).decode()

    def bytes_of(self, path: str) -> bytes:
        """Return the content of a file."""
        __tracebackhide__ = True
        file = self.folder / path
        if not file.is_file():
            raise KeyError(f"{path!r} is not among the files: {', '.join(self) or '(none)'}")
        return file.read_bytes()

    def __iter__(self) -> Any:
        found = (
            each.relative_to(self.folder).as_posix() for each in self.folder.rglob("*") if each.is_file()
        )
        return iter(sorted(found))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<files {list(self)}>"


class Sameness(msgspec.Struct, frozen=True):
    """Whether a run was the recorded one up to a step; says in a failing ``assert`` what was not."""

    step: int
    divergence: Divergence | None

    def __bool__(self) -> bool:
        return self.divergence is None or self.divergence.step >= self.step

    def __repr__(self) -> str:
        if self.divergence is None:
            return f"<the same until step {self.step}>"
        return f"<{self.divergence.describe()}>"


class ReplayedRun:
    """What an agent did in a recorded test."""

    def __init__(
        self,
        test: RecordedTest,
        exchanges: Sequence[Exchange],
        *,
        folder: Path,
        output: Any,
        divergence: Divergence | None,
        store: treering.Store,
    ) -> None:
        self.recording = test
        self.steps = tuple(exchanges)
        """Every call of a model or tool."""
        self.output = output
        """What the agent returned."""
        self.divergence = divergence
        """The first call that is not the recorded one; ``None`` if all are."""
        self.files = Files(folder)
        self.store = store
        """The store of this run, with the agent's thread and memory."""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools, in order."""
        return [
            ToolCall(
                name=each.name,
                arguments=each.request.get("arguments"),
                result=each.answer,
                error=None if each.error is None else f"{each.error.type}: {each.error.message}",
            )
            for each in self.steps
            if each.kind == "tool"
        ]

    @property
    def tools(self) -> list[str]:
        """The names of the tools that were called, in order."""
        return [each.name for each in self.tool_calls]

    @property
    def messages(self) -> list[Any]:
        """The conversation with the model: roles and parts."""
        return conversation(self.steps)

    @property
    def final(self) -> str:
        """The last answer of the model."""
        messages = conversation(self.steps)
        return message_text(messages[-1]) if messages else ""

    @property
    def models(self) -> list[str]:
        """The models that were asked."""
        return list(dict.fromkeys(each.model for each in self.steps if each.model))

    @property
    def tokens(self) -> int:
        """The tokens of all calls."""
        return usage_and_cost(self.steps)[0].total

    @property
    def cost(self) -> Decimal:
        """What all calls cost, in US dollars: in a replay, what they cost when they were recorded.

        Raises:
            NotFound: A model has no known price.
        """
        cost = usage_and_cost(self.steps)[1]
        if cost is None:
            raise NotFound(
                f"there is no price for {', '.join(self.models) or 'the model'}; prices come with: "
                "pip install 'treering[prices]'"
            )
        return Decimal(str(cost))

    def same_until(self, step: int) -> Sameness:
        """Whether every step before this one is as it was recorded."""
        return Sameness(step, self.divergence)

    def __repr__(self) -> str:
        return f"<run of {self.recording.name!r}: {len(self.steps)} steps, tools {self.tools}>"


class RecordedSession(Replay):
    """Answers calls from a recorded test."""

    def __init__(
        self,
        test: RecordedTest,
        *,
        folder: Path,
        real_tools: bool | Sequence[str],
        otherwise: Otherwise,
        tolerance: Tolerance,
        allow: Sequence[str],
    ) -> None:
        super().__init__(
            test.steps,
            tolerance=tolerance,
            otherwise="stop" if otherwise == "fail" else otherwise,
            allow=allow,
        )
        self._test = test
        self._folder = folder
        self._real_tools = real_tools
        self.moved = {WORKSPACE: str(folder)}
        """The folders that a recording names, and those of this run."""
        self._cleaner = Cleaner({})
        self._called: dict[int, Exchange] = {}

    def answer(self, asked: Asked) -> Exchange | None:
        """Return the recorded exchange; ``None`` if the call is to be made."""
        known = self._as_recorded(asked)
        with self._lock:
            found = self.recording.find(known)
            if found is not None:
                self.recording.use(found)
                self.answered.append(found)
                if asked.kind == "tool":
                    if self._is_real(asked):
                        self._called[id(asked)] = found
                        return None
                    self._leave_files(found)
                return wire.moved_exchange(found, self.moved)
            if self.divergence is None:
                self.divergence = self.recording.diverge(known)
        return self._unknown(asked)

    def returned(self, asked: Asked, answer: Any, error: CallError | None) -> None:
        """Compare what a real tool did with what it did when it was recorded."""
        with self._lock:
            found = self._called.pop(id(asked), None)
            if found is None or self.divergence is not None:
                return
            was = _outcome(found.answer, found.error)
            here = self._cleaned(_outcome(answer, error))
            tolerance = self.recording.tolerance
            if tolerance.fingerprint("tool", found.name, {"arguments": was}) == tolerance.fingerprint(
                "tool", found.name, {"arguments": here}
            ):
                return
            self.divergence = Divergence(
                step=found.step,
                kind="tool",
                name=found.name,
                asked=asked.request,
                recorded=found,
                diff=tuple(difference_of(was, here, names=("recorded", "now"))),
                what="answered",
                where=tuple(paths_of_difference(was, here))[:_PATHS],
            )
        self._unknown(asked)

    def _unknown(self, asked: Asked) -> Exchange | None:
        if self._otherwise == "stop":
            raise StopReplay
        replaying.now = False
        return None if isinstance(self._otherwise, str) else self._otherwise(asked)

    def _is_real(self, asked: Asked) -> bool:
        if isinstance(self._real_tools, bool):
            return self._real_tools and not asked.once
        return asked.name in self._real_tools

    def _as_recorded(self, asked: Asked) -> Asked:
        return Asked(kind=asked.kind, name=asked.name, request=self._cleaned(asked.request), once=asked.once)

    def _cleaned(self, value: Any) -> Any:
        there = {here: recorded for recorded, here in self.moved.items()}
        if self._test.relative is not None:
            there[self._test.relative] = WORKSPACE
        return self._cleaner.value(wire.translate(value, wire.replacer(there)))

    def _leave_files(self, exchange: Exchange) -> None:
        for path, file in self._test.changes.get(exchange.step, {}).items():
            put_file(self._folder / path, file, moved=self.moved)


def _outcome(answer: Any, error: CallError | None) -> Any:
    return {"result": answer} if error is None else {"error": error.type, "message": error.message}


def put_file(path: Path, file: StoredFile | None, *, moved: Mapping[str, str]) -> None:
    """Make a path what a recording says; ``None`` removes it."""
    if file is not None:
        file.write(path, moved=moved)
    elif path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def run_recorded(
    test: RecordedTest,
    *,
    agent: Any = None,
    arguments: Sequence[Any] | Mapping[str, Any] | None = None,
    folder: Path,
    real_tools: bool | Sequence[str] = (),
    otherwise: Otherwise = "fail",
    tolerance: Tolerance | None = None,
    complete: bool = True,
    allow: Sequence[str] = (),
) -> ReplayedRun:
    """Run an agent, with its models and tools answering from a recording.

    Args:
        agent: what to run: a function, an agent of ours, a LangGraph graph, or a name; that of the recording
            without it.
        arguments: for the agent; those of the recording without them.
        folder: an empty folder, for the agent's files and its store.
        real_tools: tools that are called, and whose outcome is compared with the recorded one: names, or
            ``True`` for all that may be repeated. The others are answered from the recording.
        otherwise: what to do with a call that was not recorded: ``"fail"``, ``"stop"`` the agent there (see
            `ReplayedRun.divergence`), make it for ``"real"``, or a function that answers.
        tolerance: what may differ; besides what the recording says.
        complete: fail as well if the agent ends without a call that was recorded.
        allow: what may be connected to nevertheless, as ``host`` or ``host:port``.

    Raises:
        Diverged: The agent did something else than in the recording, and ``otherwise`` is ``"fail"``.
    """
    if isinstance(real_tools, str):
        raise InvalidInput(f"real_tools is the string {real_tools!r}; pass a list of names")
    unknown = [] if isinstance(real_tools, bool) else sorted({*real_tools} - {*test.tools})
    if unknown:
        raise InvalidInput(
            f"real_tools names {', '.join(unknown)}, which {test.name!r} does not call; it calls: "
            f"{', '.join(dict.fromkeys(test.tools)) or 'none'}"
        )
    with _prepared(test, folder) as (store, work):
        entry = _entry_of(test, agent)
        session = RecordedSession(
            test,
            folder=work,
            real_tools=real_tools,
            otherwise=otherwise,
            tolerance=_tolerance_of(test, tolerance, entry),
            allow=(*allow, *hosts_of(store), *(("127.0.0.1",) if entry == COMMAND else ())),
        )
        draws = merge_draws([*(each.draws for each in test.steps), test.draws])
        run, output = _run(
            store,
            test,
            entry,
            _moved_back(test.arguments if arguments is None else arguments, session.moved),
            work=work,
            session=session,
            nature=Nature(draws),
            saves_files=False,
            stops=otherwise != "fail",
        )
        if session.divergence is None and complete and session.left:
            session.divergence = ended_early(session.left[0])
        if session.divergence is not None and otherwise == "fail":
            raise Diverged(session.divergence)
        return ReplayedRun(
            test,
            read_exchanges(store.engine, store.space, run.id),
            folder=work,
            output=output,
            divergence=session.divergence,
            store=store,
        )


def record_again(
    test: RecordedTest,
    *,
    agent: Any = None,
    arguments: Sequence[Any] | Mapping[str, Any] | None = None,
    folder: Path,
    tolerance: Tolerance | None = None,
) -> tuple[RecordedTest, ReplayedRun]:
    """Run an agent for real, from what its recording began with; return the new recording and what it did.

    Calls of tools whose effects must not be repeated are answered from the recording, or refused.
    """
    with _prepared(test, folder) as (store, work):
        entry = _entry_of(test, agent)
        session = RerunSession(
            test.steps,
            from_step=1,
            variant=Variant(),
            model=None,
            on_going_on=lambda: None,
            tolerance=test.tolerance,
            allow=(),
        )
        session.moved[WORKSPACE] = str(work)
        given = test.arguments if arguments is None else arguments
        run, output = _run(
            store,
            test,
            entry,
            _moved_back(given, session.moved),
            work=work,
            session=session,
            nature=Nature(),
            saves_files=test.files is not None,
            stops=False,
        )
        made = record_test(
            store,
            run.id,
            test.name,
            tolerance=test.tolerance | (tolerance or EXACT),
            entry=test.entry or (entry_name(agent) if callable(agent) else agent),
        )
        made = msgspec.structs.replace(
            made,
            arguments=test.arguments
            if arguments is None
            else Cleaner({str(work): WORKSPACE}).value(plain(arguments)),
            messages=test.messages,
            state=test.state,
            memory=test.memory,
        )
        exchanges = read_exchanges(store.engine, store.space, run.id)
        return made, ReplayedRun(made, exchanges, folder=work, output=output, divergence=None, store=store)


def _entry_of(test: RecordedTest, agent: Any) -> Any:
    entry = test.entry if agent is None else agent
    if entry is None:
        raise NotFound(
            f"recording {test.name!r} does not say what to run; pass agent=, or make it from a run that was "
            "recorded with treering.record(..., entry=function)"
        )
    return entry


def _tolerance_of(test: RecordedTest, given: Tolerance | None, entry: Any) -> Tolerance:
    found = test.tolerance | (given or EXACT)
    return found | COMMAND_TOLERANCE if entry == COMMAND else found


def _moved_back(arguments: Any, moved: Mapping[str, str]) -> Any:
    """Return arguments that name the folders of this run."""
    return (
        wire.translate(arguments, wire.replacer(moved)) if isinstance(arguments, (list, dict)) else arguments
    )


@contextmanager
def _prepared(test: RecordedTest, folder: Path) -> Generator[tuple[treering.Store, Path]]:
    """Yield a store and a folder with what the recording began with; ``TREERING_URL`` leads to the store.

    The store stays open for who looks at the run, unless there is an error.
    """
    work = folder / "work"
    work.mkdir(parents=True)
    for path, file in (test.files or {}).items():
        file.write(work / path, moved={WORKSPACE: str(work)})
    store = treering.open(folder / "store", durability="fast")
    before = os.environ.get("TREERING_URL")
    os.environ["TREERING_URL"] = str(folder / "store")
    try:
        if test.thread is not None and (test.messages or test.state):
            namespace, thread_id = test.thread
            store.thread(thread_id, namespace).checkpoint(messages=test.messages, state=test.state)
        for each in test.memory:
            metadata: dict[str, Any] = each.metadata
            store.memory.in_namespace(each.namespace).save(
                each.id,
                each.content,
                tags=metadata.get("tags") or (),
                auto_load=bool(metadata.get("auto_load")),
                metadata={
                    name: value for name, value in metadata.items() if name not in ("tags", "auto_load")
                },
            )
        yield store, work
    except BaseException:
        store.close()
        raise
    finally:
        if before is None:
            del os.environ["TREERING_URL"]
        else:
            os.environ["TREERING_URL"] = before


def _run(
    store: treering.Store,
    test: RecordedTest,
    entry: Any,
    arguments: Any,
    *,
    work: Path,
    session: Any,
    nature: Nature,
    saves_files: bool,
    stops: bool,
) -> tuple[Run, Any]:
    """Run an entry with a session that answers; return the run, and what the entry returned."""
    namespace, thread_id = test.thread or ("", None)
    recorded = RecordedRun(
        Opened(store),
        workspace=work if saves_files else None,
        entry=None,
        arguments=arguments,
        thread=None if thread_id is None else store.thread(thread_id, namespace),
        make=lambda start: store.run(test.agent, thread=thread_id, namespace=namespace or None, meta=start),
        instrumentation=lambda: Instrumentation(None, spans=True, tools=True, also=_other_addresses(test)),
        nature=nature,
    )
    before, output = str(Path.cwd()), None
    try:
        with recorded as run:
            if test.cwd is not None:
                (work / test.cwd).mkdir(parents=True, exist_ok=True)
                os.chdir(work / test.cwd)
            try:
                with session:
                    output = _call(run, entry, arguments, work=work, session=session)
            except (Diverged, StopReplay):
                if not stops:
                    raise
            finally:
                os.chdir(before)
    finally:
        store.flush()
    return run, output


def _call(run: Run, entry: Any, arguments: Any, *, work: Path, session: Any) -> Any:
    if entry != COMMAND:
        return call_entry(entry, arguments)
    from treering.replays.commands import run_command

    def on_home(home: str) -> None:
        session.moved[HOME] = home

    given = cast("Mapping[str, Any]", arguments)
    return run_command(run, given, folder=work, upstreams=None, on_home=on_home)


def _other_addresses(test: RecordedTest) -> tuple[str, ...]:
    """The addresses that are no model's, of which requests were recorded."""
    urls = (str(each.request["url"]) for each in test.steps if each.kind == "http")
    found = {url.partition("?")[0] for url in urls}
    return tuple(sorted(url for url in found if not wire.is_model_call("POST", url)))
