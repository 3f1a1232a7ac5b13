"""The tree of a run: the runs of its sub-agents, theirs, and all attempts of each.

A run that starts inside of another one (in its ``with`` block, a tool of it, or with ``parent=``) is its
child. A run that goes on after a crash or a person's decision is a new attempt of an earlier one, which its
metadata names (``resumes``). Both are links: refs that hold nothing but the id, written with the start of the
later run, in its scope. So a tree is found from its root without reading anything else. Threads that exist
only for another one (those of its sub-agents, and of questions about it) are linked in the same way; they are
deleted and forgotten with it.

A tree is shown, costed and cancelled as one. Cancelling is a request: another ref of each attempt, which a
running agent looks at between its steps and while it reads a stream (`Runs.is_cancelled`), for itself and for
the runs that it belongs to. No effect of a cancelled run begins any more, whoever makes the call: its start
requires that the ref is absent. **Invariant:** a run that has ended keeps what it did; only those that wait,
or whose process is gone, get the status ``cancelled`` at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import structs

from treering.core.batch import Draft, Usage
from treering.core.clock import to_iso
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import parse_scope, thread_scope
from treering.core.query import EventQuery, ListQuery, each_listed, each_record, each_ref
from treering.errors import Conflict, RefMoved
from treering.runs.cost import Cost, Costs
from treering.runs.run import (
    CANCELLED,
    CRASHED,
    INTERRUPTED,
    RUN_LIST,
    RUNNING,
    RUNS,
    UNFINISHED,
    RunInfo,
    cancel_ref,
    run_from_ref,
    run_ref,
    thread_link,
    tree_link,
    write_state,
)
from treering.runs.span import OPEN, SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.runs.span import RunNode

_MOST: Final = 10_000
"""How many runs of one tree are read."""


class RunCancelled(Conflict):
    """Somebody has cancelled this run, or the run that it belongs to."""


class RunTree(msgspec.Struct, frozen=True, kw_only=True):
    """A run with all its attempts, and the runs that it started."""

    run: RunInfo
    """The first attempt; the others go on from it."""
    attempts: tuple[RunInfo, ...]
    """All attempts, the first included, in order."""
    own: Cost
    """What its attempts cost, without its children."""
    total: Cost
    """What it and everything below it cost."""
    is_cancelled: bool
    children: tuple[RunTree, ...] = ()

    @property
    def status(self) -> str:
        """The status of the last attempt."""
        return self.attempts[-1].status

    @property
    def is_over(self) -> bool:
        """Whether neither the run nor anything below it goes on, or could go on."""
        return self.status not in _UNFINISHED and all(each.is_over for each in self.children)

    def each(self, depth: int = 0) -> Iterator[tuple[int, RunTree]]:
        """Iterate over the runs of the tree with their depth, each before its children."""
        yield depth, self
        for child in self.children:
            yield from child.each(depth + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as plain data."""
        return {
            "id": self.run.id,
            "agent": self.run.agent,
            "thread": self.run.thread,
            "sandbox": self.run.meta.get("sandbox_id"),
            "namespace": self.run.namespace,
            "status": self.status,
            "is_cancelled": self.is_cancelled,
            "started_at": to_iso(self.run.started_at_us),
            "is_over": self.is_over,
            "attempts": [
                {
                    "id": each.id,
                    "agent": each.agent,
                    "thread": each.thread,
                    "status": each.status,
                    "started_at": to_iso(each.started_at_us),
                }
                for each in self.attempts
            ],
            "own": _cost_dict(self.own),
            "total": _cost_dict(self.total),
            "children": [each.to_dict() for each in self.children],
        }


_UNFINISHED: Final = (RUNNING, CRASHED, UNFINISHED, INTERRUPTED, "stopped")


def run_tree(engine: Engine, space: str, run: RunInfo, check: Callable[[Ref], RunInfo]) -> RunTree:
    """Return the tree below a run; that of its first attempt, if it goes on from another one.

    ``check`` returns a run as it is, which may be crashed although nobody has written that down.
    """
    seen = {run.id}
    while (earlier := run.meta.get("resumes")) and earlier not in seen:
        ref = engine.refs(space, [run_ref(str(earlier))]).get(run_ref(str(earlier)))
        if ref is None:
            break
        seen.add(str(earlier))
        run = check(ref)
    return _node(engine, space, run, check, Costs(engine, space), set())


def _node(
    engine: Engine,
    space: str,
    run: RunInfo,
    check: Callable[[Ref], RunInfo],
    costs: Costs,
    seen: set[str],
    *,
    below_cancelled: bool = False,
) -> RunTree:
    attempts, children = [run], dict[str, RunInfo]()
    is_cancelled = below_cancelled or cancellation(engine, space, run.id) is not None
    seen.add(run.id)
    for attempt in attempts:  # which grows
        for info in _linked(engine, space, attempt.id, "attempt", check):
            if info.id not in seen and len(seen) < _MOST:
                seen.add(info.id)
                attempts.append(info)
        children |= {info.id: info for info in _linked(engine, space, attempt.id, "child", check)}
    below = [
        _node(engine, space, child, check, costs, seen, below_cancelled=is_cancelled)
        for child in sorted(children.values(), key=lambda each: (each.started_at_us, each.id))
        if child.id not in seen and child.meta.get("resumes") not in children and len(seen) < _MOST
    ]
    own = _add([costs.of_run(each.id).total for each in attempts])
    return RunTree(
        run=run,
        attempts=tuple(attempts),
        own=own,
        total=_add([own, *(each.total for each in below)]),
        is_cancelled=is_cancelled,
        children=tuple(below),
    )


def _linked(
    engine: Engine,
    space: str,
    run_id: str,
    kind: Literal["child", "attempt"],
    check: Callable[[Ref], RunInfo],
) -> Iterator[RunInfo]:
    prefix = tree_link(run_id, kind, "")
    ids = [ref.value.decode() for ref in each_ref(engine, space, prefix)]
    refs = engine.refs(space, [run_ref(each) for each in ids]) if ids else {}
    found = [check(refs[run_ref(each)]) for each in ids if run_ref(each) in refs]
    yield from sorted(found, key=lambda each: (each.started_at_us, each.id))


def cost_below(engine: Engine, space: str, node: RunNode, since_us: int) -> dict[str, int]:
    """Return what a span of a run has cost since a time, in nano-units by currency.

    That is the span itself, everything recorded below it, and the runs that its run has started since then:
    a run that calls one tool at a time has started them in that call. Flushes first.
    """
    node.context.sink.flush()
    parents: dict[str | None, str | None] = {}
    spent: list[tuple[str | None, str, int]] = []
    for record in each_record(engine, space, EventQuery(run=node.run_id, since_us=since_us)):
        event = record.event
        if event.kind.startswith((SPAN, OPEN)):
            parents[event.span] = event.parent
        if event.cost_nanos is not None and event.currency is not None:
            spent.append((event.span, event.currency, event.cost_nanos))
    nanos: dict[str, int] = {}
    for span, currency, amount in spent:
        above = span
        while above is not None and above != node.span_id:
            above = parents.get(above)
        if above is not None:
            nanos[currency] = nanos.get(currency, 0) + amount
    costs = Costs(engine, space)
    for child in _linked(engine, space, node.run_id, "child", run_from_ref):
        if child.started_at_us >= since_us:
            total = _node(engine, space, child, run_from_ref, costs, set()).total
            for currency, amount in total.nanos.items():
                nanos[currency] = nanos.get(currency, 0) + amount
    return nanos


def cancel(
    engine: Engine, space: str, tree: RunTree, *, clock: Clock, by: str | None, reason: str | None
) -> list[RunInfo]:
    """Ask every unfinished run of a tree to stop; return those runs as they are now."""
    asked: list[RunInfo] = []
    for _, node in tree.each():
        if node.status not in _UNFINISHED:
            continue
        info = node.attempts[-1]
        draft = Draft(space)
        _ask_to_stop(draft, node, by, reason)
        if info.status != RUNNING:
            ref = engine.refs(space, [run_ref(info.id)])[run_ref(info.id)]
            ended = run_from_ref(ref)
            ended_us = ended.ended_at_us or info.ended_at_us or clock.now_us()
            info = structs.replace(ended, status=CANCELLED, ended_at_us=ended_us)
            write_state(draft, info, expect=ref.version)
        try:
            engine.commit(draft.batch())
        except RefMoved:  # it goes on, or has ended, this very moment
            again = Draft(space)
            _ask_to_stop(again, node, by, reason)
            engine.commit(again.batch())
        asked.append(info)
    return asked


def _ask_to_stop(draft: Draft, node: RunTree, by: str | None, reason: str | None) -> None:
    said = {name: value for name, value in (("by", by), ("reason", reason)) if value is not None}
    for attempt in node.attempts:
        draft.set_ref(cancel_ref(attempt.id), encode_json(said), scope=attempt.scope)


def cancellation(engine: Engine, space: str, run_id: str) -> dict[str, Any] | None:
    """Return who has cancelled a run and why (either may be missing); ``None`` if nobody has."""
    name = cancel_ref(run_id)
    ref = engine.refs(space, [name]).get(name)
    return None if ref is None else decode_json(ref.value)


def is_cancelled(engine: Engine, space: str, run_id: str) -> bool:
    """Whether somebody has cancelled a run, or one that it belongs to."""
    seen = set[str]()
    following: str | None = run_id
    while following is not None and following not in seen:
        seen.add(following)
        names = cancel_ref(following), run_ref(following)
        refs = engine.refs(space, names)
        if names[0] in refs:
            return True
        following = run_from_ref(refs[names[1]]).parent if names[1] in refs else None
    return False


class Below(msgspec.Struct, frozen=True, kw_only=True):
    """What exists only for a thread: the scopes of threads and runs, and the threads that are others' too."""

    scopes: tuple[str, ...]
    elsewhere: dict[str, str]


def below_thread(engine: Engine, space: str, thread_id: str, namespace: str) -> Below:
    """Return what is to be erased with a thread: the threads of its sub-agents, and theirs.

    Runs that a run of these threads started belong to it if they have no thread. One in another thread is
    ``elsewhere``: that thread may have a life of its own.
    """
    root = thread_scope(thread_id, namespace)
    scopes, elsewhere = [root], dict[str, str]()
    for scope in scopes:  # which grows
        owner = parse_scope(scope)
        if owner.kind == "run":
            started = [owner.id]
        else:
            links = each_ref(engine, space, thread_link(owner.id, owner.namespace))
            scopes += [each for ref in links if (each := ref.value.decode()) not in scopes]
            query = ListQuery(list=RUN_LIST, namespace=owner.namespace, thread=owner.id)
            started = [ref.name.removeprefix(RUNS) for ref in each_listed(engine, space, query)]
        for run_id in started:
            links = each_ref(engine, space, tree_link(run_id, "child", ""))
            names = [run_ref(ref.value.decode()) for ref in links]
            for info in map(run_from_ref, engine.refs(space, names).values() if names else ()):
                if info.thread is not None:
                    elsewhere.setdefault(info.scope, f"thread {info.thread}")
                elif info.scope not in scopes:
                    scopes.append(info.scope)
    why = "a run of what was erased has started a run of it, but it is a thread of its own"
    kept = {name: why for scope, name in elsewhere.items() if scope not in scopes}
    return Below(scopes=tuple(scopes[1:]), elsewhere=kept)


def _add(costs: list[Cost]) -> Cost:
    nanos: dict[str, int] = {}
    for each in costs:
        for currency, amount in each.nanos.items():
            nanos[currency] = nanos.get(currency, 0) + amount
    names = Usage.__struct_fields__
    return Cost(
        key=None,
        usage=Usage(**{name: sum(getattr(each.usage, name) for each in costs) for name in names}),
        nanos=nanos,
        events=sum(each.events for each in costs),
        errors=sum(each.errors for each in costs),
        unpriced_tokens=sum(each.unpriced_tokens for each in costs),
        unpriced_events=sum(each.unpriced_events for each in costs),
    )


def _cost_dict(cost: Cost) -> dict[str, Any]:
    return {
        "tokens": cost.tokens,
        "cost": [{"currency": name, "amount": float(cost.amounts[name])} for name in sorted(cost.amounts)],
        "unpriced_tokens": cost.unpriced_tokens,
        "events": cost.events,
        "errors": cost.errors,
    }
