"""``treering tail``: what agents do, as they do it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treering.cli.console import clean, clean_json
from treering.cli.options import (
    JsonOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from treering.runs.follow import LiveEvent

_COLOURS: Final = {"llm": "cyan", "tool": "yellow", "agent": "magenta", "message": "green", "run": "blue"}
_LINE: Final = 100


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tail")(tail)


@takes_store
def tail(
    *,
    place: StorePlace,
    after: Annotated[
        int | None, typer.Option("--after", metavar="SEQ", help="Begin behind this sequence number [now].")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only of this run.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", metavar="ID", help="Only of this thread.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only of this agent.")] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only this kind, such as span, span.tool or message."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="N", help="Stop when nothing came for so long.")
    ] = None,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what is recorded while it is recorded, until Ctrl-C.

    Whichever process records it. With --json, a line an event.
    """
    with place.existing() as opened:
        following = opened.timeline.follow(
            after=after,
            run=run,
            thread=thread,
            namespace=user_namespace,
            agent=agent,
            kinds=kinds or (),
            seconds=seconds,
        )
        for event in following:
            typer.echo(_json(event) if as_json else _line(event))
            sys.stdout.flush()


def _json(event: LiveEvent) -> str:
    import msgspec

    return clean_json(msgspec.json.encode(event))


def _line(event: LiveEvent) -> str:
    """Time, agent, what happened, what it took; `typer.echo` leaves colours out where nobody sees them."""
    form, _, kind = event.kind.partition(".")
    word = kind or form
    parts = [
        typer.style(event.ts[11:23], dim=True),
        typer.style(f"{clean(event.agent or '-')[:16]:<16}", bold=True),
        typer.style(f"{clean(word)[:12]:<12}", fg=_colour(word)),
        clean(_what(event))[:_LINE],
    ]
    taken = _taken(event)
    if taken:
        parts.append(typer.style(taken, dim=True))
    if event.status not in (None, "ok"):
        parts.append(typer.style(clean(str(event.status)), fg="red", bold=True))
    parts.append(typer.style(f"#{event.seq}", dim=True))
    return "  ".join(parts)


def _colour(word: str) -> Any:
    return _COLOURS.get(word)


def _what(event: LiveEvent) -> str:
    if event.role is not None:
        return f"{event.role}: {event.model or event.name or ''}".rstrip(": ")
    begun = "..." if event.kind.startswith("open.") else ""
    return f"{event.name or event.run or event.id}{begun}"


def _taken(event: LiveEvent) -> str:
    told: list[str] = []
    if event.duration_us is not None:
        told.append(f"{event.duration_us / 1e6:.2f}s")
    if event.usage is not None:
        told.append(f"{event.usage.total:,} tokens")
    if event.cost is not None:
        told.append(f"{event.cost.rstrip('0').rstrip('.') or '0'} {event.currency}")
    return ", ".join(told)
