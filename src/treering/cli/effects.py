"""``treering effects``: the side effects of tool calls, and decisions about those that nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import as_json as json_text
from treering.cli.console import clean, limited, one_line, plain, rows, show, status_text, when
from treering.cli.options import (
    Commands,
    JsonOption,
    LimitOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from treering.effects.effects import Effect
    from treering.threads.diff import Changes

EffectArgument = Annotated[
    str, typer.Argument(metavar="EFFECT", help="The id of an effect, or a unique beginning.")
]
ByOption = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides.")]
NoteOption = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = Commands(lists=True, help="Side effects of tool calls, and decisions about them.")
    for name, command in (
        ("list", list_effects),
        ("show", show_effect),
        ("resolve", resolve),
        ("retry", retry),
        ("abandon", abandon),
    ):
        group.command(name)(command)
    app.add_typer(group, name="effects")


@takes_store
def list_effects(
    *,
    unknown: Annotated[bool, typer.Option("--unknown", help="Only those that wait for a decision.")] = False,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS", help="Filter by status: planned, started, done, failed, unknown, abandoned."
        ),
    ] = None,
    thread: Annotated[str | None, typer.Option(metavar="THREAD", help="Only those of a thread.")] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only those of a run.")] = None,
    limit: LimitOption = 20,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the side effects of tool calls, newest first.

    Examples:
        treering effects --unknown
        treering effects list --thread support/alice
    """
    with place.existing() as opened:
        effects = opened.effects.list(
            thread_id=thread,
            namespace=user_namespace,
            run_id=run,
            status="unknown" if unknown else status,  # pyright: ignore[reportArgumentType] - validated there
            last=limit + 1 if limit else None,
        )
        found = limited(effects, limit)
    table = [("id", "planned", "status", "attempts", "tool", "thread", "arguments")]
    table += [
        (
            each.id,
            when(each.planned_at),
            status_text(each.status),
            str(each.attempt),
            clean(each.tool),
            clean(each.thread_id or ""),
            one_line(clean(json_text(each.arguments)), 40),
        )
        for each in found
    ]
    show([_effect(each) for each in found], rows(table) if found else ["no effects"], as_json=as_json)


@takes_store
def show_effect(
    effect_id: EffectArgument,
    *,
    workspace: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Compare its files with those when the call was asked for."),
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show an effect: its call, attempts and outcome.

    Also what happened since the call was asked for.

    Examples:
        treering effects show eff_01k9
        treering effects show eff_01k9 --workspace .
    """
    with place.existing() as opened:
        effect = opened.effects.load(effect_id)
        changes = opened.effects.changes(effect.id, workspace=workspace)
    facts = {
        "tool": effect.tool,
        "status": effect.status,
        "attempts": str(effect.attempt),
        "replay": effect.replay + (", with an idempotency key" if effect.takes_key else ""),
        "key": effect.key,
        "planned": when(effect.planned_at),
        "started": f"{when(effect.started_at)} by {effect.owner}" if effect.started_at else "",
        "ended": when(effect.ended_at) if effect.ended_at else "",
        "thread": effect.thread_id or "",
        "run": effect.run_id or "",
        "arguments": json_text(effect.arguments),
        "result": "" if effect.result is None else json_text(effect.result),
        "cost": ", ".join(f"{nanos / 1e9:.4f} {currency}" for currency, nanos in effect.cost_nanos.items()),
        "files": _files(effect),
        "decided by": effect.decided_by or "",
        "note": effect.note or "",
    }
    lines = [f"{name:<10}  {clean(fact)}" for name, fact in facts.items() if fact]
    if not effect.is_finished:
        lines += _since(changes)
    shown = {**_effect(effect), "since": plain(changes)}
    show(shown, [typer.style(effect.id, bold=True), *lines], as_json=as_json)


@takes_store
def resolve(
    effect_id: EffectArgument,
    *,
    result: Annotated[
        str, typer.Option("--result", metavar="TEXT", help="What the call returned; JSON, or a text.")
    ],
    by: ByOption = None,
    note: NoteOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Say that an unknown effect happened, and with which result.

    Examples:
        treering effects resolve eff_01k9 --result '{"paid": true}' --by alice
    """
    with place.existing() as opened:
        effect = opened.effects.resolve(effect_id, happened=True, result=_value(result), by=by, note=note)
    _decided(effect, "happened; its thread goes on with the result", as_json=as_json)


@takes_store
def retry(
    effect_id: EffectArgument,
    *,
    by: ByOption = None,
    note: NoteOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Say that an unknown effect did not happen: call again.

    Examples:
        treering effects retry eff_01k9 --note "no payment in the ledger"
    """
    with place.existing() as opened:
        effect = opened.effects.retry(effect_id, by=by, note=note)
    _decided(effect, "did not happen; the next run of its thread makes the call", as_json=as_json)


@takes_store
def abandon(
    effect_id: EffectArgument,
    *,
    by: ByOption = None,
    note: NoteOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Give up an effect; the agent is told that it was.

    Examples:
        treering effects abandon eff_01k9 --by alice
    """
    with place.existing() as opened:
        effect = opened.effects.abandon(effect_id, by=by, note=note)
    _decided(effect, "is given up; its thread goes on with an error", as_json=as_json)


def _since(changes: Changes) -> list[str]:
    """Return what happened since a call was asked for, for who has to decide about it."""
    lines = ["since then"]
    lines += [f"  ... and {changes.earlier} earlier events"] if changes.earlier else []
    lines += [
        f"  {when(each.ts)}  {clean(each.agent or ''):<12}  {clean(each.label)}" for each in changes.events
    ]
    lines += [f"  file {clean(each.path)} {each.change}" for each in changes.files]
    return (
        lines
        if len(lines) > 1
        else ["since then  nothing was recorded, and no file is known to have changed"]
    )


def _files(effect: Effect) -> str:
    further = effect.file_count - len(effect.files)
    return ", ".join(effect.files) + (f" and {further} more" if further > 0 else "")


def _value(text: str) -> Any:
    """Return what a text says as JSON, or else the text itself."""
    import msgspec

    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text


def _decided(effect: Effect, outcome: str, *, as_json: bool) -> None:
    show(_effect(effect), [f"{clean(effect.tool)} ({effect.id}) {outcome}"], as_json=as_json)


def _effect(effect: Effect) -> dict[str, Any]:
    return {"effect": plain(effect), "key": effect.key}
