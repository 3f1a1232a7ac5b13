"""Commands that look at runs: ``treering runs``, ``timeline``, ``replay``, ``compare`` and ``search``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import clean, clean_json, rows, say, show
from treering.cli.options import (
    JsonOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)
from treering.cli.render import one_line, raw, when

if TYPE_CHECKING:
    from treering.runs.compare import Divergence, RunFigures, Step
    from treering.runs.cost import Cost
    from treering.runs.replay import ReplayStep
    from treering.runs.run import RunInfo
    from treering.runs.timeline import TimelineEvent

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or 'last'.")]
AgentOption = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only of this agent.")]
KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only in these: message, tool, llm, agent, ...")
]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    for command in (runs, timeline, replay, compare, search):
        app.command()(command)


@takes_store
def runs(
    *,
    agent: AgentOption = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="Only those that stand so: running, ok, error, crashed."),
    ] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Only those with this tag.")] = None,
    last: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many.")] = 20,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    with place.existing() as opened:
        found: list[RunInfo] = []
        cursor: str | None = None
        source = opened.runs.in_namespace(user_namespace)
        while len(found) < last:
            page = source.page(first=last - len(found), cursor=cursor, agent=agent, status=status, tag=tag)
            found += page.runs
            cursor = page.cursor
            if cursor is None:
                break
        costs = {info.id: opened.cost.of_run(info.id).total for info in found}
    table = [("RUN", "AGENT", "STATUS", "STARTED", "TOOK", "TOKENS", "COST", "THREAD")]
    table += [
        (
            clean(info.id),
            clean(info.agent or ""),
            info.status,
            when(info.started_at),
            seconds(info.duration_us),
            f"{costs[info.id].tokens:,}",
            money(costs[info.id]),
            clean(info.thread or ""),
        )
        for info in found
    ]
    what = [{**_plain(info), "cost": _plain(costs[info.id])} for info in found]
    show(what, rows(table) if found else ["no runs"], as_json=as_json)


@takes_store
def timeline(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The id of a run, or 'last'.", show_default=False)
    ] = None,
    *,
    thread: Annotated[
        str | None, typer.Option(metavar="THREAD", help="All runs of this thread, instead of one run.")
    ] = None,
    span: Annotated[str | None, typer.Option(metavar="ID", help="Only this span and all below it.")] = None,
    agent: AgentOption = None,
    kind: KindOption = None,
    status: Annotated[
        str | None, typer.Option(metavar="WORD", help="Only spans that ended so: ok, error, or running.")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Only what holds these words.")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="All that was recorded.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what happened in a run or a thread, in order."""
    if (run is None) == (thread is None):
        raise typer.BadParameter("name a run, or a thread with --thread")
    with place.existing() as opened:
        start_us: int | None = None
        if run is None:
            look = partial(opened.timeline.of_thread, thread or "", namespace=user_namespace)
        else:
            info = opened.runs.get(_id(opened, run))
            look, start_us = partial(opened.timeline.of_run, info.id), info.started_at_us
        events: list[TimelineEvent] = []
        cursor: str | None = None
        while True:
            page = look(
                cursor=cursor,
                everything=everything,
                span=span,
                agent=agent,
                kind=kind,
                status=status,
                text=text,
            )
            events += page.events
            cursor = page.cursor
            if cursor is None:
                break
    if start_us is None:
        start_us = events[0].ts_us if events else 0
    table = [
        (f"{(event.ts_us - start_us) / 1e6:.3f}", clean(event.agent or ""), clean(event.label))
        for event in events
    ]
    lines = rows([("AT", "AGENT", "WHAT"), *table])
    what = [{**_plain(event), "ts": event.ts} for event in events]
    show(what, lines if events else ["nothing was recorded"], as_json=as_json)


@takes_store
def replay(
    run: RunArgument,
    *,
    speed: Annotated[
        float | None, typer.Option(metavar="X", help="Take the time that it took, divided by this [no wait].")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Step through a run as it happened, chunk by chunk.

    With --json, a line a step.
    """
    from treering.cli.render import words

    with place.existing() as opened:
        for step in opened.runs.replay(_id(opened, run), speed=speed):
            if as_json:
                typer.echo(_line_of_json(step))
                continue
            told = "" if step.content is None else f": {one_line(words(step.content), 100)}"
            label = f"  {step.chunk!r}" if step.chunk is not None else f"{step.label}{told}"
            typer.echo(f"{step.offset_us / 1e6:>10.3f}  {clean(label)}")


@takes_store
def compare(
    one: RunArgument,
    other: RunArgument,
    *,
    currency: Annotated[
        str | None, typer.Option(metavar="CODE", help="Convert amounts, like EUR [each in its own].")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Put two runs side by side, and find where they go apart."""
    with place.existing() as opened:
        found = opened.runs.compare(_id(opened, one), _id(opened, other), currency=currency)
    lines = rows([("", *(clean(each.run.id) for each in found.runs)), *_figures(found.runs)])
    show(_plain(found), [*lines, *_apart(found.divergence)], as_json=as_json)


@takes_store
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Words to look for.")],
    *,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only in this run.")] = None,
    agent: AgentOption = None,
    kind: KindOption = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many.")] = 20,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Find what was said and done by its words."""
    with place.existing() as opened:
        found = opened.timeline.search(text, run=run, agent=agent, kind=kind, limit=limit)
    lines: list[str] = []
    for hit in found.hits:
        what = hit.role if hit.kind == "message" else f"{hit.name} {hit.part}"
        lines.append(
            f"{when(hit.ts)}  {clean(hit.run)}  {clean(hit.agent or '-')}  {clean(what or hit.kind)}"
        )
        lines.append(f"    {one_line(clean(hit.snippet), 160)}")
    if not found.hits:
        say("nothing was found")
    if found.is_partial:
        say("too much holds these words to look at all of it; ask for rarer ones, or in one run")
    show(_plain(found), lines, as_json=as_json)


def seconds(duration_us: int | None) -> str:
    """A time as people read it."""
    return "" if duration_us is None else f"{duration_us / 1e6:.2f}s"


def money(cost: Cost) -> str:
    """The amounts of a cost; ``?`` where something has no price."""
    told = [f"{amount.normalize():f} {currency}" for currency, amount in sorted(cost.amounts.items())]
    if cost.unpriced_tokens:
        told.append("?")
    return " + ".join(told) or "0"


def _id(store: Any, run: str) -> str:
    if run != "last":
        return run
    from treering.errors import NotFound

    newest = next(iter(store.runs.page(first=1).runs), None)
    if newest is None:
        raise NotFound("there are no runs yet")
    return newest.id


def _figures(found: tuple[RunFigures, ...]) -> list[tuple[str, ...]]:
    kinds = sorted({kind for each in found for kind in each.steps})
    usage = ("input", "cache_read", "cache_write", "cache_write_1h", "output", "reasoning")
    lines = [
        ("agent", *(clean(each.run.agent or "") for each in found)),
        ("status", *(each.run.status for each in found)),
        ("took", *(seconds(each.duration_us) for each in found)),
        ("cost", *(money(each.cost) for each in found)),
    ]
    lines += [
        (f"{name} tokens", *(f"{getattr(each.usage, name):,}" for each in found))
        for name in usage
        if any(getattr(each.usage, name) for each in found)
    ]
    lines += [(f"{kind} steps", *(str(each.steps.get(kind, 0)) for each in found)) for kind in kinds]
    lines.append(("errors", *(str(each.errors) for each in found)))
    return lines


def _apart(divergence: Divergence | None) -> list[str]:
    if divergence is None:
        return ["the same, step by step"]
    lines = [f"the same for {divergence.index} steps, then another {divergence.what}:"]
    for sign, step in (("-", divergence.one), ("+", divergence.other)):
        lines.append(f"{sign} {_told(step)}")
    return lines


def _told(step: Step | None) -> str:
    if step is None:
        return "(the run is over)"
    who = step.role or step.name or ""
    return f"{step.offset_us / 1e6:.3f}  {step.kind} {clean(who)}: {one_line(clean(step.text), 100)}"


def _line_of_json(step: ReplayStep) -> str:
    import msgspec

    plain = {"offset_us": step.offset_us, "wait_us": step.wait_us, "label": step.label, "chunk": step.chunk}
    return clean_json(
        msgspec.json.encode({**plain, "event": _plain(step.event), "content": raw(step.content)})
    )


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, str_keys=True)
