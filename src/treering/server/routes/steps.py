"""Stepping through a run, and making it again from a step on.

Reruns are programs: the entry point that the run was recorded with is started in a process of its own, as
``treering rerun`` does it. So a server makes them only if it was started with ``--reruns``, and for callers
with scope ``admin``. Otherwise the reply has what the command line needs.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from treering.core.query import EventQuery, each_record
from treering.errors import Conflict, InvalidInput, NotFound
from treering.replays.capture import START
from treering.replays.comparison import Comparison, compare_reruns, list_reruns
from treering.replays.steps import (
    Breakpoint,
    Step,
    StepPage,
    StepView,
    count_steps,
    find_step,
    step_page,
    step_view,
    steps_after,
)
from treering.runs.exchanges import EXCHANGE_KINDS
from treering.server.endpoints import Call, endpoint
from treering.server.reruns import RerunJob, RerunJobs, RerunOrder


class StepsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page of steps: the one at the cursor, or the one that begins behind a step."""

    limit: Annotated[int, Meta(ge=1, le=2000)] = 200
    cursor: str | None = None
    after: Annotated[int, Meta(ge=0)] | None = None


class StepCount(Struct, frozen=True, kw_only=True):
    """How many steps a run has."""

    steps: int


class StepQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many messages of the conversation to return, from its end."""

    messages: Annotated[int, Meta(ge=0, le=5000)] = 30


class FindQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which step to look for: the next one that meets any of the conditions, or (``back``) the last one."""

    after: Annotated[int, Meta(ge=0)] = 0
    back: bool = False
    tool: tuple[str, ...] = ()
    error: bool = False
    cost_above: Annotated[float, Meta(ge=0)] | None = None
    text: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None


class FoundStep(Struct, frozen=True, kw_only=True):
    """The step that was found; ``None`` if no step meets a condition."""

    step: Step | None


class Reruns(Struct, frozen=True, kw_only=True):
    """Whether a run can be made again, what this server is making of it, and how reruns compare with it.

    ``can_start`` says whether this server does it when asked; if not, ``why_not`` says what is missing.
    """

    run: str
    calls: int
    """The recorded calls; a rerun may begin at each of them."""
    entry: str | None
    can_start: bool
    why_not: str | None
    jobs: tuple[RerunJob, ...]
    groups: tuple[str, ...]
    """The calls of `rerun` that were made, newest first."""
    comparison: Comparison | None


class RerunsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which reruns to compare: those of one call of `rerun`; unset for the newest."""

    group: str | None = None


@endpoint("GET", "/runs/{id}/steps", tag="runs")
def list_steps(call: Call[StepsQuery, None]) -> StepPage:
    """List the steps of a run in their order, without content, with tokens and costs so far."""
    query = call.query
    if query.after is not None:
        if query.cursor is not None:
            raise InvalidInput("after= cannot be combined with cursor; use one or the other")
        return steps_after(call.store, call.path["id"], query.after, first=query.limit)
    return step_page(call.store, call.path["id"], first=query.limit, cursor=query.cursor)


@endpoint("GET", "/runs/{id}/steps/count", tag="runs")
def get_step_count(call: Call[None, None]) -> StepCount:
    """Count the steps of a run."""
    return StepCount(steps=count_steps(call.store, call.path["id"]))


@endpoint("GET", "/runs/{id}/steps/find", tag="runs")
def find_next_step(call: Call[FindQuery, None]) -> FoundStep:
    """Find the next step with a tool, an error, a cost or a text: what a debugger continues to."""
    query = call.query
    wanted = Breakpoint(tool=query.tool, error=query.error, cost_above=query.cost_above, text=query.text)
    return FoundStep(step=find_step(call.store, call.path["id"], wanted, after=query.after, back=query.back))


@endpoint("GET", "/runs/{id}/steps/{number}", tag="runs")
def get_step(call: Call[StepQuery, None]) -> StepView:
    """Return a step with its content, and the conversation, state, files and memory of that moment."""
    try:
        number = int(call.path["number"])
    except ValueError:
        raise NotFound(f"{call.path['number']!r} is not the number of a step") from None
    return step_view(call.store, call.path["id"], number, messages=call.query.messages)


@endpoint("GET", "/runs/{id}/reruns", tag="runs")
def get_reruns(call: Call[RerunsQuery, None]) -> Reruns:
    """Compare a run with its reruns, and say whether it can be made again here."""
    store = call.store
    info = store.runs.load(call.path["id"])
    jobs = _jobs_of(call)
    begun: dict[str, Any] = info.meta.get(START) or {}
    why = _why_not(call)
    groups = list(dict.fromkeys(about.group for _, about in list_reruns(store, info.id)))
    query = EventQuery(run=info.id, kinds=EXCHANGE_KINDS, order="time", brief=True)
    calls = sum(1 for _ in each_record(store.engine, store.space, query))
    if why is None and not calls:
        why = "none of its calls was recorded; record it with treering.record(), or treering run --record"
    if why is None and begun.get("entry") is None:
        why = "it was recorded without an entry point; name one with --entry on the command line"
    return Reruns(
        run=info.id,
        calls=calls,
        entry=begun.get("entry"),
        can_start=why is None,
        why_not=why,
        jobs=tuple(job.describe(store) for job in jobs.of(store.space, info.id)),
        groups=tuple(groups),
        comparison=compare_reruns(store, info.id, group=call.query.group) if groups else None,
    )


@endpoint("POST", "/runs/{id}/reruns", tag="runs", domain="reruns", status=202)
def start_rerun(call: Call[None, RerunOrder]) -> RerunJob:
    """Make a run again from a call on, in a process of its own. `GET` shows its progress and comparison."""
    info = call.store.runs.load(call.path["id"])
    why = _why_not(call)
    environment = call.request.app.state.treering.settings.reruns
    if why is not None or environment is None:
        raise Conflict(f"this server cannot rerun {info.id!r}: {why}")
    return _jobs_of(call).start(call.store, info.id, call.body, environment).describe(call.store)


@endpoint("DELETE", "/runs/{id}/reruns/{job}", tag="runs", domain="reruns")
def cancel_rerun(call: Call[None, None]) -> RerunJob:
    """Stop reruns that this server makes. Those that ended stay."""
    job = _jobs_of(call).get(call.store.space, call.path["job"])
    job.cancel()
    return job.describe(call.store)


ENDPOINTS: Final = (
    list_steps,
    get_step_count,
    find_next_step,
    get_step,
    get_reruns,
    start_rerun,
    cancel_rerun,
)


def _jobs_of(call: Call[Any, Any]) -> RerunJobs:
    jobs: RerunJobs = call.request.app.state.treering.reruns
    return jobs


def _why_not(call: Call[Any, Any]) -> str | None:
    settings = call.request.app.state.treering.settings
    if settings.reruns is None:
        return "it runs the agent's code on this machine, and the server was started without --reruns"
    if call.store.url.startswith("memory:"):
        return "the store is in the memory of the server, and a rerun is another process"
    return None
