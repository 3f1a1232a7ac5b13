"""Rerun: make a run again from one of its steps on, with another model, prompt or parameter, and compare.

    treering rerun last --from 12 --model gpt-5-mini -n 5 --verify "pytest -q"

The agent's own code starts from its beginning. Calls before the step are answered from the recording, so
they take no time, cost nothing and give exactly what they gave; from the step on, models are asked for real,
as the `Variant` says, and tools run for real. At that moment the fork's folder is made what the original's
was at the step, and so is its memory. Calls whose effects must not be repeated stay with the recording.

**Invariant:** nothing outside of the fork changes (`treering.replays.fork`), and no rerun departs from the
original before the step: a call that the recording does not have there is a `Divergence`, and stops it.

What is run is an *entry*: a function (also by its name, ``module:function`` or ``file.py:function``), an
agent of ours, a LangGraph graph, or a command (`treering.replays.commands`).
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from treering.adapters.shared import Opened, StoreOrUrl
from treering.core.clock import to_datetime
from treering.core.ids import new_id
from treering.errors import InvalidInput, NotFound, TreeringError
from treering.replays import wire
from treering.replays.capture import (
    COMMAND,
    START,
    Asked,
    Instrumentation,
    RecordedRun,
    plain,
    state,
)
from treering.replays.comparison import (
    PROGRAM_NOISE,
    RERUN,
    TAG,
    Comparison,
    RerunInfo,
    Variant,
    VerifyResult,
    compare_reruns,
    end_snapshot,
    relative_names,
)
from treering.replays.fork import RerunFork, refusal, write_guard
from treering.replays.nature import Nature, merge_draws
from treering.replays.replay import (
    EXACT,
    Diverged,
    Replay,
    StopReplay,
    Tolerance,
    blocked_sockets,
    hosts_of,
    load_exchanges,
)
from treering.runs.exchanges import CallError, Exchange
from treering.runs.span import replaying

if TYPE_CHECKING:
    from treering.runs.run import Run, RunInfo
    from treering.store import Store

Entry = Callable[..., Any] | str | Any
COMMAND_TOLERANCE: Final = Tolerance(
    ignore=("metadata.user_id", "client_metadata", "input.*.internal_chat_message_metadata_passthrough"),
    mask=("uuid", "timestamp", "date", PROGRAM_NOISE),
)
"""What CLI agents put into their requests that is another one each time."""
_MAX_OUTPUT: Final = 4000
_VERIFY_SECONDS: Final = 1800.0


class RerunSession(Replay):
    """Answers calls before a step from the recording, and changes those from it on as a variant says."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        *,
        from_step: int,
        variant: Variant,
        model: Callable[..., Any] | None,
        on_going_on: Callable[[], None],
        tolerance: Tolerance,
        allow: Sequence[str],
    ) -> None:
        super().__init__(exchanges, tolerance=tolerance, otherwise="stop", allow=allow)
        self._from_step = from_step
        self._before = {each.step for each in exchanges if each.step < from_step}
        self._settings = wire.Settings(
            model=variant.model, prompt=variant.prompt, parameters=variant.parameters
        )
        self._model = model
        self._on_going_on = on_going_on
        self._is_real = False
        self.moved: dict[str, str] = {}
        """Folders of the original, and those of the fork in their place."""
        self.names: dict[str, str] = {}
        """Relative names of folders of the original, and their whole ones."""

    @property
    def is_real(self) -> bool:
        """Whether calls are made for real now."""
        return self._is_real

    def answer(self, asked: Asked) -> Exchange | None:
        """Return the recorded exchange of a call before the step; else ``None``, with the changed request."""
        with self._lock:
            there = {new: old for old, new in self.moved.items()} | self.names
            known = Asked(
                kind=asked.kind, name=asked.name, request=wire.translate(asked.request, wire.replacer(there))
            )
            found = self.recording.find(known)
            if found is not None and found.step < self._from_step:
                return self._use(found)
            # Once a parallel call has been made for real, what is asked may follow from its answer.
            if found is None and self._before and not self._is_real:
                if self.divergence is None:
                    self.divergence = self.recording.diverge(known)
                raise StopReplay
            if asked.kind == "tool" and asked.once:
                return self._use(found) if found is not None else self._refused(asked)
            if not self._is_real:
                self._is_real = True
                replaying.now = False
                blocked_sockets.unblock()
                self._on_going_on()
        if asked.kind == "http":
            url = urlsplit(str(asked.request["url"]))
            body = asked.request.get("body")
            if isinstance(body, dict):
                path, changed = wire.apply_settings(url.path, cast("dict[str, Any]", body), self._settings)
                asked.request = {**asked.request, "url": url._replace(path=path).geturl(), "body": changed}
        return None

    def model(self, function: Callable[..., Any], messages: Any) -> tuple[Callable[..., Any], Any]:
        """Return the function that answers for a model from the step on, and what it is given."""
        if self._settings.prompt is not None:
            body = {"messages": list(cast("Sequence[Any]", messages))}
            prompt = wire.Settings(prompt=self._settings.prompt)
            messages = wire.apply_settings("/chat/completions", body, prompt)[1]["messages"]
        return self._model or function, messages

    def _use(self, found: Exchange) -> Exchange:
        self.recording.use(found)
        self._before.discard(found.step)
        self.answered.append(found)
        return wire.moved_exchange(found, self.moved) if self.moved else found

    def _refused(self, asked: Asked) -> Exchange:
        error = CallError(f"{EffectRefused.__module__}.{EffectRefused.__qualname__}", refusal(asked.name))
        return Exchange(kind="tool", name=asked.name, request=asked.request, error=error)


class EffectRefused(TreeringError):
    """A rerun does not make a call whose effects must not be repeated, and which was not recorded."""


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What all reruns of one call have in common."""

    original: RunInfo
    exchanges: list[Exchange]
    draws: dict[str, list[Any]]
    from_step: int
    entry: Any
    arguments: Any
    tolerance: Tolerance
    verify: str | None
    verify_original: VerifyResult | None
    folder: Path
    group: str
    start: dict[str, Any]

    @property
    def workspace(self) -> str | None:
        """The folder that the original worked in."""
        return self.start.get("workspace")


def rerun(
    store_or_url: StoreOrUrl | None,
    run: str,
    *,
    from_step: int = 1,
    model: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None = None,
    prompt: str | Sequence[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    repeat: int = 1,
    verify: str | None = None,
    entry: Entry | None = None,
    arguments: Sequence[Any] | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    tolerance: Tolerance = EXACT,
) -> Comparison:
    """Make a recorded run again from a step on, and return how that compares with the original.

    Args:
        from_step: the first step that is made for real; those before are answered from the recording.
        model: another model, by name; for a model that is a function, another function (or its name,
            ``module:function``). Several make as many variants.
        prompt: another system prompt. Several make as many variants.
        parameters: parameters of requests to models: ``{"temperature": 0}``.
        repeat: how often each variant is run.
        verify: a command that is run in the folder of each rerun, and in the files that the original left;
            its exit code counts.
        entry: what to run, if the run was recorded without one: a function, an agent, a LangGraph graph, or
            the name of one, ``module:name``.
        arguments: for the entry; those of the recording without them.
        folder: where each rerun gets a folder of its own, which stays; a new temporary folder without it.
        tolerance: what may differ between calls and their recording.

    Raises:
        NotFound: the run, its calls or its entry cannot be found.
        Diverged: the agent asked for something else before the step.
    """
    opened = Opened(store_or_url)
    try:
        store = opened.store
        store.flush()
        plan = _plan(
            store,
            run,
            from_step=from_step,
            entry=entry,
            arguments=arguments,
            folder=folder,
            tolerance=tolerance,
            verify=verify,
        )
        if repeat < 1:
            raise InvalidInput(f"repeat={repeat} is invalid; use a number from 1")
        for variant, function in _variants(model, prompt, parameters, plan.exchanges):
            for repetition in range(1, repeat + 1):
                _run_once(store, plan, variant, function, repetition)
        return compare_reruns(store, plan.original.id, group=plan.group)
    finally:
        opened.close()


async def rerun_async(store_or_url: StoreOrUrl | None, run: str, **options: Any) -> Comparison:
    """Like `rerun`, with the same options, from a running event loop.

    The agent runs in a thread with an event loop of its own.
    """
    return await asyncio.to_thread(partial(rerun, store_or_url, run, **options))


def _plan(
    store: Store,
    run: str,
    *,
    from_step: int,
    entry: Entry | None,
    arguments: Sequence[Any] | Mapping[str, Any] | None,
    folder: str | Path | None,
    tolerance: Tolerance,
    verify: str | None,
) -> _Plan:
    original = store.runs.load(run)
    exchanges = load_exchanges(store, original.id)
    start: dict[str, Any] = original.meta.get(START) or {}
    if not 1 <= from_step <= len(exchanges) + 1:
        raise InvalidInput(
            f"from_step={from_step} is invalid; run {original.id!r} has steps 1 to {len(exchanges)}"
        )
    named = entry if entry is not None else state.entries.get(original.id) or start.get("entry")
    if named is None:
        raise NotFound(
            f"run {original.id!r} was recorded without its entry point; pass entry='module:function' "
            "(treering rerun --entry), or record with treering.record(..., entry=function)"
        )
    names = relative_names(original)
    if names:  # what is recorded and what is asked are compared, and answered, by whole names
        exchanges = [wire.moved_exchange(each, names) for each in exchanges]
    return _Plan(
        original=original,
        exchanges=exchanges,
        draws=merge_draws(each.draws for each in exchanges if each.step <= from_step),
        from_step=from_step,
        entry=_checked_entry(named),
        arguments=start.get("arguments", []) if arguments is None else arguments,
        tolerance=tolerance | COMMAND_TOLERANCE if named == COMMAND else tolerance,
        verify=verify,
        verify_original=None if verify is None else _verify_original(store, original, verify),
        folder=Path(tempfile.mkdtemp(prefix="treering-rerun-"))
        if folder is None
        else Path(folder).absolute(),
        group=new_id()[-8:],
        start=start,
    )


def _checked_entry(entry: Any) -> Any:
    """Return an entry that can be run, by its name if it was given so."""
    if entry == COMMAND:
        return entry
    target = resolve_entry(entry) if isinstance(entry, str) else entry
    if not callable(_callable_of(target)):
        raise InvalidInput(f"entry {entry!r} is no function, agent or graph")
    return entry


def _variants(
    model: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None,
    prompt: str | Sequence[str] | None,
    parameters: Mapping[str, Any] | None,
    exchanges: Sequence[Exchange],
) -> Iterator[tuple[Variant, Callable[..., Any] | None]]:
    """Yield each combination of models and prompts, and the function of a model that is one."""
    given: Any = model
    models = list(cast("Sequence[Any]", given)) if isinstance(given, (list, tuple)) else [given]
    prompts = [prompt] if prompt is None or isinstance(prompt, str) else list(prompt)
    is_function = any(each.kind == "model" for each in exchanges)
    for each in models:
        function: Callable[..., Any] | None = None
        name = cast("str | None", each)
        if callable(each):
            function, name = each, getattr(each, "__name__", type(each).__name__)
        elif isinstance(each, str) and is_function:
            if ":" not in each:
                raise InvalidInput(
                    f"the model of this run is a function, so model={each!r} must name another function: "
                    "module:function"
                )
            function = cast("Callable[..., Any]", resolve_entry(each))
        for text in prompts:
            yield (
                Variant(model=name, prompt=text, parameters=dict(plain(dict(parameters or {})))),
                function,
            )


# One rerun


def _run_once(
    store: Store, plan: _Plan, variant: Variant, function: Callable[..., Any] | None, repetition: int
) -> None:
    original, fork_id = plan.original, new_id()[-8:]
    workspace = None if plan.workspace is None else plan.folder / fork_id
    if workspace is not None:
        workspace.mkdir(parents=True)
        snapshot = plan.start.get("snapshot")
        if snapshot is not None:
            store.workspace.restore(snapshot, workspace, keep_before=False)
    about = RerunInfo(
        of=original.id,
        group=plan.group,
        from_step=plan.from_step,
        variant=variant,
        repetition=repetition,
        folder=None if workspace is None else str(workspace),
        verify_original=plan.verify_original,
    )
    names = relative_names(original)
    there = {name: str(workspace) for name in (plan.workspace, *names) if workspace and name}
    arguments = _moved(plan.arguments, wire.replacer(there))
    fork = RerunFork(store, original, id=fork_id, checkpoint=_first_checkpoint(store, plan))
    session = RerunSession(
        plan.exchanges,
        from_step=plan.from_step,
        variant=variant,
        model=function,
        on_going_on=lambda: _go_on(store, plan, fork, workspace),
        tolerance=plan.tolerance,
        allow=hosts_of(store),
    )
    if workspace is not None and plan.workspace is not None:
        session.moved[plan.workspace] = str(workspace)
        session.names |= names

    def on_end(run: Run) -> None:
        if plan.verify is not None and workspace is not None:
            verified = msgspec.structs.replace(about, verify=run_verify(plan.verify, workspace))
            run.note(**{RERUN: msgspec.to_builtins(verified)})

    recorded = RecordedRun(
        Opened(store),
        workspace=workspace,
        entry=plan.entry if isinstance(plan.entry, str) or inspect.isroutine(plan.entry) else None,
        arguments=arguments,
        thread=None if fork.thread_id is None else store.thread(fork.thread_id, original.namespace),
        make=lambda start: store.run(
            original.agent,
            thread=fork.thread_id,
            namespace=original.namespace,
            meta={**start, RERUN: msgspec.to_builtins(about)},
            tags=[TAG + original.id],
        ),
        instrumentation=lambda: Instrumentation(None, spans=True, tools=True, also=()),
        nature=Nature(plan.draws),
        on_end=on_end,
    )
    try:
        with recorded as run, _in_folder(store, plan, workspace), fork, session:
            if plan.entry == COMMAND:
                recorded.status = _run_again(run, plan, session, arguments, workspace)
            else:
                call_entry(plan.entry, arguments)
            if not session.is_real:
                _go_on(store, plan, fork, workspace)
    except (Diverged, KeyboardInterrupt):
        raise
    except Exception:  # noqa: BLE001 - the run has it, and so does the comparison
        return


def _run_again(
    run: Run, plan: _Plan, session: RerunSession, given: Mapping[str, Any], workspace: Path | None
) -> str:
    """Run a recorded command again; return the status that its exit code stands for."""
    from treering.replays.commands import run_command

    if workspace is None:
        raise InvalidInput(
            f"run {plan.original.id!r} has no folder; record commands with: treering run --record"
        )

    def on_home(home: str) -> None:
        before = plan.start.get("home")
        if before:
            session.moved[before] = home

    result = run_command(
        run,
        given,
        folder=workspace,
        upstreams=plan.start.get("upstreams"),
        on_home=on_home,
    )
    return "ok" if not result.exit_code else "error"


def call_entry(entry: Entry, arguments: Any) -> Any:
    """Run what a run begins with, to its end."""
    target = resolve_entry(entry) if isinstance(entry, str) else entry
    target = _callable_of(target)
    result: Any = target(**arguments) if isinstance(arguments, Mapping) else target(*arguments)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


def _callable_of(target: Any) -> Any:
    """Return what to call of an entry: an agent of ours and a graph have methods for that."""
    if not inspect.isroutine(target) and not inspect.isclass(target):
        for name in ("generate", "invoke"):
            if callable(getattr(target, name, None)):
                return getattr(target, name)
    return target


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def resolve_entry(name: str) -> Any:
    """Return what ``module:name`` or ``file.py:name`` stands for."""
    place, _, path = name.rpartition(":")
    if not place or not path:
        raise InvalidInput(f"entry {name!r} is invalid; use module:function or file.py:function")
    try:
        if place.endswith(".py"):
            module = _load_file(Path(place))
        else:
            if (here := str(Path.cwd())) not in sys.path:
                sys.path.insert(0, here)
            module = importlib.import_module(place)
        found: Any = module
        for each in path.split("."):
            found = getattr(found, each)
    except (ImportError, AttributeError, OSError) as error:
        raise NotFound(f"entry {name!r} cannot be found: {error}") from error
    return found


def _load_file(file: Path) -> Any:
    name = f"treering_entry_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if (here := str(file.parent)) not in sys.path:
        sys.path.insert(0, here)
    spec.loader.exec_module(module)
    return module


def _moved(value: Any, replace: Callable[[str], str]) -> Any:
    """Return arguments with the folder of a rerun where the original had its own."""
    if isinstance(value, Mapping):
        return {name: _moved(each, replace) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_moved(each, replace) for each in cast("Sequence[Any]", value)]
    if isinstance(value, Path):
        return Path(replace(str(value)))
    return replace(value) if isinstance(value, str) else value


def _first_checkpoint(store: Store, plan: _Plan) -> str | None:
    """Return the checkpoint that the thread of a run was at when it began; ``None`` if there was none."""
    original = plan.original
    if START in original.meta or original.thread is None:
        return plan.start.get("checkpoint")
    try:
        began = to_datetime(original.started_at_us)
        found = store.thread(original.thread, original.namespace).at(began, everything=True)
    except NotFound:
        return None
    return found.id


def _go_on(store: Store, plan: _Plan, fork: RerunFork, workspace: Path | None) -> None:
    """Make files and memory of the fork what they were at the step."""
    earlier = [each for each in plan.exchanges if each.step < plan.from_step]
    if workspace is not None:
        saved = [each for each in earlier if each.kind == "tool" and each.snapshot is not None]
        if saved:
            last = max(saved, key=lambda each: each.started_at_us + each.duration_us)
            store.workspace.restore(cast("str", last.snapshot), workspace, delete=True, keep_before=False)
    at = next((each for each in plan.exchanges if each.step == plan.from_step), None)
    fork.go_on(plan.original.ended_at_us or store.clock.now_us() if at is None else at.started_at_us)


@contextmanager
def _in_folder(store: Store, plan: _Plan, workspace: Path | None) -> Generator[None]:
    """Let the agent work in the folder of its fork, and in no case in that of the original."""
    if workspace is None or plan.workspace is None:
        yield
        return
    before, inside = str(Path.cwd()), plan.start.get("cwd")
    allowed = [workspace]
    if urlsplit(store.url).scheme == "sqlite":
        allowed.append(Path(urlsplit(store.url).path))
    if inside is not None:
        (workspace / inside).mkdir(parents=True, exist_ok=True)
        os.chdir(workspace / inside)
    write_guard.begin(Path(plan.workspace), allowed=allowed)
    try:
        yield
    finally:
        write_guard.end()
        os.chdir(before)


# Verification


def run_verify(command: str, folder: Path) -> VerifyResult:
    """Run a command in a folder, and return what it says about it."""
    try:
        done = subprocess.run(  # noqa: S602 - the user's own command line
            command,
            shell=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERIFY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return VerifyResult(command=command, exit_code=124, output=f"stopped after {_VERIFY_SECONDS:.0f} s")
    output = done.stdout.decode("utf-8", "replace")[-_MAX_OUTPUT:]
    return VerifyResult(command=command, exit_code=done.returncode, output=output)


def _verify_original(store: Store, original: RunInfo, command: str) -> VerifyResult | None:
    """Run a command on the files that the original left, in a folder of their own."""
    snapshot = end_snapshot(original)
    if snapshot is None:
        raise InvalidInput(
            f"run {original.id!r} was recorded without a workspace, so there are no files to verify; "
            "leave verify out, or record with treering.record(..., workspace=folder)"
        )
    with tempfile.TemporaryDirectory(prefix="treering-verify-") as folder:
        store.workspace.restore(snapshot, folder, keep_before=False)
        return run_verify(command, Path(folder))
