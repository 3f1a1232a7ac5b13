"""Commands that guard: ``treering budgets`` and ``treering alerts``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from treering.cli.console import clean, rows, say, show
from treering.cli.options import (
    JsonOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)
from treering.cli.render import when

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
OnlyAgentOption = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent.")]

budgets = typer.Typer(
    help="Budgets of money, tokens and tool calls.", no_args_is_help=True, rich_markup_mode=None
)
alerts = typer.Typer(
    help="Alerts, the rules that raise them, and webhooks.", no_args_is_help=True, rich_markup_mode=None
)


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    app.add_typer(budgets, name="budgets")
    app.add_typer(alerts, name="alerts")


@budgets.command("list")
@takes_store
def list_budgets(
    *,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="How those of this run stand.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="How those of this agent stand.")] = None,
    thread: Annotated[
        str | None, typer.Option(metavar="THREAD", help="How those of this thread stand.")
    ] = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the budgets, and what is used of them."""
    with place.existing() as opened:
        every = opened.budgets.list()
        found = opened.budgets.standing(run=run, agent=agent, thread=thread, namespace=user_namespace)
    standing = {each.budget.name: each for each in found}
    table = [("BUDGET", "PER", "EVERY", "AGENT", "LIMITS", "ACTION", "USED")]
    for budget in every:
        limits = [f"{budget.money.normalize():f} {budget.currency}"] if budget.money is not None else []
        limits += [f"{budget.tokens:,} tokens"] if budget.tokens is not None else []
        limits += [f"{budget.tool_calls:,} tool calls"] if budget.tool_calls is not None else []
        stands = standing.get(budget.name)
        table.append(
            (
                clean(budget.name),
                budget.per,
                budget.every or "",
                clean(budget.agent or ""),
                ", ".join(limits),
                budget.action,
                "" if stands is None else f"{stands.share:.0%}",
            )
        )
    what = [
        {**_plain(each), "share": standing[each.name].share if each.name in standing else None}
        for each in every
    ]
    show(what, rows(table) if every else ["no budgets"], as_json=as_json)


@budgets.command("set")
@takes_store
def set_budget(
    name: NameArgument,
    *,
    per: Annotated[Literal["run", "thread", "agent", "store"], typer.Option(help="Of whom each.")],
    every: Annotated[Literal["day", "month"] | None, typer.Option(help="When it begins again.")] = None,
    agent: OnlyAgentOption = None,
    money: Annotated[str | None, typer.Option(metavar="AMOUNT", help="Like 5 or 0.50.")] = None,
    currency: Annotated[str, typer.Option(metavar="CODE", help="What the money is in.")] = "USD",
    tokens: Annotated[int | None, typer.Option(metavar="N", min=0, help="All tokens.")] = None,
    tool_calls: Annotated[int | None, typer.Option(metavar="N", min=0, help="Calls of tools.")] = None,
    action: Annotated[
        Literal["stop", "warn"], typer.Option(help="Refuse the next call, or only tell.")
    ] = "stop",
    warn_at: Annotated[float, typer.Option(metavar="SHARE", help="From when on to warn.")] = 0.8,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Make a budget, or change it."""
    with place.existing() as opened:
        made = opened.budgets.set(
            name,
            per=per,
            every=every,
            agent=agent,
            money=money,
            currency=currency,
            tokens=tokens,
            tool_calls=tool_calls,
            action=action,
            warn_at=warn_at,
        )
    show(_plain(made), [f"budget {clean(name)} is set"], as_json=as_json)


@budgets.command("remove")
@takes_store
def remove_budget(
    name: NameArgument,
    *,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Lift a budget."""
    with place.existing() as opened:
        _removed("budget", name, opened.budgets.remove(name), as_json=as_json)


@alerts.command("list")
@takes_store
def list_alerts(
    *,
    last: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many.")] = 20,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show what was raised, newest first."""
    with place.existing() as opened:
        found = opened.alerts.page(first=last).alerts
    lines = [f"{when(each.ts)}  {each.level:<8}  {clean(each.rule)}  {clean(each.message)}" for each in found]
    show([_plain(each) for each in found], lines or ["no alerts"], as_json=as_json)


@alerts.command("rule")
@takes_store
def set_rule(
    name: NameArgument,
    *,
    what: Annotated[
        Literal["failed", "failures", "cost", "tokens", "duration"],
        typer.Option(help="A failed run, many of them, or more than usual of something."),
    ],
    agent: OnlyAgentOption = None,
    times: Annotated[float, typer.Option(metavar="X", help="More than X times the median.")] = 3.0,
    share: Annotated[float, typer.Option(metavar="S", help="failures: more than this share.")] = 0.5,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Of the agent's last N runs.")] = 20,
    at_least: Annotated[int, typer.Option(metavar="N", min=1, help="With fewer, say nothing.")] = 5,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Make a rule about runs, or change it."""
    with place.existing() as opened:
        made = opened.alerts.set_rule(
            name, what, agent=agent, times=times, share=share, runs=runs, at_least=at_least
        )
    show(_plain(made), [f"rule {clean(name)} is set, for runs that end from now on"], as_json=as_json)


@alerts.command("webhook")
@takes_store
def set_webhook(
    name: NameArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send alerts.")],
    *,
    secret_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="The environment variable with the key to sign by.")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Send alerts to a URL from now on."""
    with place.existing() as opened:
        made = opened.alerts.set_webhook(name, url, secret_env=secret_env)
    show(_plain(made), [f"webhook {clean(name)} is set"], as_json=as_json)


@alerts.command("rules")
@takes_store
def list_rules(
    *,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show rules and webhooks."""
    with place.existing() as opened:
        rules, webhooks = opened.alerts.rules(), opened.alerts.webhooks()
    lines = [
        f"rule     {clean(each.name)}  {each.what}  {clean(each.agent or 'every agent')}" for each in rules
    ]
    lines += [f"webhook  {clean(each.name)}  {clean(each.url)}" for each in webhooks]
    what = {"rules": [_plain(each) for each in rules], "webhooks": [_plain(each) for each in webhooks]}
    show(what, lines or ["no rules"], as_json=as_json)


@alerts.command("remove")
@takes_store
def remove(
    name: NameArgument,
    *,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Remove the rule or the webhook of this name."""
    with place.existing() as opened:
        was_there = opened.alerts.remove_rule(name)
        was_there = opened.alerts.remove_webhook(name) or was_there
        _removed("rule or webhook", name, was_there, as_json=as_json)


@alerts.command("check")
@takes_store
def check(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Judge the runs that ended, and send alerts to webhooks.

    A server does this by itself.
    """
    from time import sleep

    with place.existing() as opened:
        if watch:
            say("watching; stop with Ctrl-C")
            with opened.alerts.watch():
                while True:
                    sleep(3600)
        raised = opened.alerts.examine()
        sent = [opened.alerts.deliver(each.name) for each in opened.alerts.webhooks()]
    lines = [f"{each.level:<8}  {clean(each.message)}" for each in raised]
    lines += [f"{clean(each.webhook)}: {each.sent} sent{_why(each)}" for each in sent]
    what = {"raised": [_plain(each) for each in raised], "sent": [_plain(each) for each in sent]}
    show(what, lines or ["nothing new"], as_json=as_json)


def _why(delivery: Any) -> str:
    return "" if delivery.error is None else f", then: {clean(delivery.error)}"


def _removed(what: str, name: str, was_there: bool, *, as_json: bool) -> None:  # noqa: FBT001 - what remove gives
    from treering.errors import NotFound

    if not was_there:
        raise NotFound(f"there is no {what} {name!r}")
    show({"name": name, "removed": True}, [f"removed {clean(name)}"], as_json=as_json)


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, str_keys=True)
