"""What a shell offers when Tab is pressed: ids that are in the store.

A parameter is completed by what it takes, which its metavar says: every ``THREAD`` is completed with threads,
every ``RUN`` with runs. So a new command needs nothing (`takes_store` calls `complete_parameters`). The store
is the one that the line selects so far, or the default one. **Invariant:** completing creates, migrates and
prints nothing; a store that cannot be read has no suggestions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.models import ParameterInfo

if TYPE_CHECKING:
    from treering.store import Store

_MOST: Final = 50
_HELP: Final = 40

Suggestion = tuple[str, str]
"""A value and what it is, which zsh and fish show beside it."""
Finder = Callable[["Store", str, dict[str, Any]], Iterable[Suggestion]]


def complete_parameters(signature: inspect.Signature) -> None:
    """Let Typer complete the parameters of a command whose metavar is in `_FINDERS`."""
    for each in signature.parameters.values():
        for info in getattr(each.annotation, "__metadata__", ()):
            if isinstance(info, ParameterInfo) and info.autocompletion is None:
                finder = _FINDERS.get((info.metavar or "").strip("[].").partition("|")[0])
                if finder is not None:
                    info.autocompletion = _completion(finder)


def _completion(finder: Finder) -> Callable[[typer.Context, str], list[Suggestion]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[Suggestion]:
        from treering.api import locate, open_existing, probe
        from treering.errors import TreeringError

        line = ctx.params
        try:
            location = locate(line.get("store"))
            if location.scheme == "memory" or not _is_current(probe(location).version):
                return []
            with open_existing(
                line.get("store"), blobs=line.get("store_blobs"), namespace=line.get("namespace")
            ) as store:
                found = (each for each in finder(store, incomplete, line) if each[0].startswith(incomplete))
                return list(islice(found, _MOST))
        except TreeringError:
            return []

    return complete


def _is_current(version: str | None) -> bool:
    """Whether a store can be opened without migrating it; a server migrates its own."""
    from treering.engines.sql.schema import SCHEMA_VERSION

    return version in (None, SCHEMA_VERSION)


def _threads(store: Store, start: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    from treering.cli.console import said
    from treering.threads.directory import summarize

    namespace = line.get("user_namespace") or ""
    found = list(islice(store.threads(namespace=namespace, prefix=start), _MOST))
    for each in summarize(store.engine, store.space, found):
        message = each.last_message
        yield each.info.id, "" if message is None else said(message, _HELP)


def _checkpoints(store: Store, start: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    """Threads; and behind a thread and ``@``, its steps."""
    thread, at, _ = start.rpartition("@")
    if not at:
        yield from _threads(store, start, line)
        return
    yield from ((f"{thread}@{step}", text) for step, text in _steps(store, thread, line))


def _positions(store: Store, _start: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    yield from _steps(store, str(line.get("thread") or ""), line)


def _steps(store: Store, thread: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    from treering.cli.console import one_line, said
    from treering.threads.checkpoint import last_messages
    from treering.threads.directory import Finder as ThreadFinder
    from treering.threads.tree import read_tree

    finder = ThreadFinder(store.engine, store.space, line.get("user_namespace") or "")
    grown = read_tree(store.engine, store.space, finder.thread(thread), limit=_MOST)
    messages = last_messages(store.engine, store.space, grown.checkpoints)
    for each in grown.checkpoints:
        if each.id in grown.line:
            message = messages.get(each.id)
            note = one_line(each.note or "", _HELP)
            yield str(each.step), note or ("" if message is None else said(message, _HELP))


def _runs(store: Store, _start: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    yield "last", "the newest run"
    listing = store.runs.in_namespace(line.get("user_namespace") or "")
    for each in islice(listing.each(), _MOST):
        yield each.id, " ".join(filter(None, (each.agent, each.status)))


def _snapshots(store: Store, _start: str, _line: dict[str, Any]) -> Iterator[Suggestion]:
    yield "latest", "the newest snapshot"
    for each in store.workspace.snapshots(last=_MOST):
        yield each.id, each.note or each.workspace


def _documents(store: Store, start: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    from treering.cli.console import one_line

    namespace = line.get("user_namespace") or ""
    memory = store.memory.in_namespace(namespace) if namespace else store.memory
    for each in memory.query(prefix=start, limit=_MOST):
        yield each.id, one_line(each.content, _HELP)


def _keys(store: Store, start: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    entries = store.state.in_namespace(line.get("user_namespace") or "").list(start)
    yield from ((each.key, "") for each in entries)


def _tasks(store: Store, _start: str, line: dict[str, Any]) -> Iterator[Suggestion]:
    from treering.cli.console import one_line

    schedules = store.schedules.in_namespace(line.get("user_namespace") or "")
    for each in schedules.task_page(first=_MOST).tasks:
        yield each.id, one_line(each.prompt, _HELP)


def _effects(store: Store, _start: str, _line: dict[str, Any]) -> Iterator[Suggestion]:
    for each in store.effects.list(last=_MOST):
        yield each.id, f"{each.tool} {each.status}"


def _budgets(store: Store, _start: str, _line: dict[str, Any]) -> Iterator[Suggestion]:
    yield from ((each.name, f"per {each.per}") for each in store.budgets.list())


def _agents(store: Store, _start: str, _line: dict[str, Any]) -> Iterator[Suggestion]:
    agents = {each.agent: "" for each in islice(store.runs.each(), 10 * _MOST) if each.agent}
    yield from agents.items()


def _namespaces(store: Store, _start: str, _line: dict[str, Any]) -> Iterator[Suggestion]:
    from treering.maintenance.stats import user_spaces

    yield from ((name, "") for name in user_spaces(store.engine))


def _user_namespaces(store: Store, _start: str, _line: dict[str, Any]) -> Iterator[Suggestion]:
    found = {
        each.namespace: "" for each in islice(store.threads(namespace=None), 10 * _MOST) if each.namespace
    }
    found |= {name: "" for name in islice(store.memory.namespaces(), _MOST) if name}
    yield from found.items()


_FINDERS: Final[dict[str, Finder]] = {
    "AFTER": _checkpoints,
    "AGENT": _agents,
    "BEFORE": _checkpoints,
    "BUDGET": _budgets,
    "CHECKPOINT": _checkpoints,
    "DOCUMENT": _documents,
    "EFFECT": _effects,
    "KEY": _keys,
    "NAMESPACE": _namespaces,
    "PLACE": _positions,
    "RUN": _runs,
    "SNAPSHOT": _snapshots,
    "TASK": _tasks,
    "THREAD": _threads,
    "USER": _user_namespaces,
}
"""What each metavar stands for."""
