"""Commands about limits: ``treering budgets`` and ``treering alerts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treering.cli.console import clean, counted, each_of, limited, plain, rows, say, show, status_text, when
from treering.cli.options import (
    Commands,
    JsonOption,
    LimitOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from treering.limits.budgets import BudgetUsage, SharedBudget

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name.")]
OnlyAgentOption = Annotated[
    str | None, typer.Option("--agent", metavar="AGENT", help="Apply to this agent only.")
]

budgets = Commands(help="Budgets of money, tokens and tool calls.")
alerts = Commands(help="Alerts, the rules that raise them, and webhooks.")


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(budgets, name="budgets")
    app.add_typer(alerts, name="alerts")


@budgets.command("list")
@takes_store
def list_budgets(
    *,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Show the usage of a run.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Show the usage of an agent.")] = None,
    thread: Annotated[str | None, typer.Option(metavar="THREAD", help="Show the usage of a thread.")] = None,
    limit: LimitOption = 200,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List budgets and their usage.

    Examples:
        treering budgets list
        treering budgets list --agent planner
    """
    with place.existing() as opened:
        budgets = limited(opened.budgets.list(), limit)
        usages = opened.budgets.usage(run=run, agent=agent, thread=thread, namespace=user_namespace)
    usage = {each.budget.name: each for each in usages}
    table = [("BUDGET", "PER", "EVERY", "AGENT", "LIMITS", "ACTION", "USED")]
    for budget in budgets:
        limits = [f"{budget.money.normalize():f} {budget.currency}"] if budget.money is not None else []
        limits += [f"{counted(budget.tokens, 'tokens')}"] if budget.tokens is not None else []
        limits += [f"{budget.tool_calls:,} tool calls"] if budget.tool_calls is not None else []
        used = usage.get(budget.name)
        table.append(
            (
                clean(budget.name),
                budget.per,
                budget.every or "",
                clean(budget.agent or ""),
                ", ".join(limits),
                "stop, strict" if budget.strict else budget.action,
                "" if used is None else f"{used.share:.0%}",
            )
        )
    values = [_budget(each, usage.get(each.name)) for each in budgets]
    show(values, rows(table) if budgets else ["no budgets"], as_json=as_json)


def _budget(budget: SharedBudget, used: BudgetUsage | None) -> dict[str, Any]:
    return {
        "budget": plain(budget),
        "key": None if used is None else used.key,
        "used": {} if used is None else used.used,
        "reserved": {} if used is None else used.reserved,
        "share": None if used is None else used.share,
        "is_used_up": used is not None and used.is_used_up,
    }


@budgets.command("set")
@takes_store
def set_budget(
    name: NameArgument,
    *,
    per: Annotated[
        Literal["run", "thread", "agent", "store"], typer.Option(help="What to count separately.")
    ],
    every: Annotated[Literal["day", "month"] | None, typer.Option(help="When to reset.")] = None,
    agent: OnlyAgentOption = None,
    money: Annotated[str | None, typer.Option(metavar="AMOUNT", help="Maximum amount, such as 0.50.")] = None,
    currency: Annotated[str, typer.Option(metavar="CODE", help="The currency of the amount.")] = "USD",
    tokens: Annotated[int | None, typer.Option(metavar="N", min=0, help="Maximum number of tokens.")] = None,
    tool_calls: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Maximum number of tool calls.")
    ] = None,
    action: Annotated[
        Literal["stop", "warn"], typer.Option(help="Refuse further calls, or only raise an alert.")
    ] = "stop",
    warn_at: Annotated[float, typer.Option(metavar="SHARE", help="Used share at which to warn.")] = 0.8,
    strict: Annotated[
        bool, typer.Option("--strict", help="Never exceed it: calls reserve what they may use.")
    ] = False,
    call_money: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="What a model call reserves, with --strict.")
    ] = None,
    call_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens that a model call reserves, with --strict.")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Create or replace a budget.

    Examples:
        treering budgets set daily --per agent --every day --money 5
        treering budgets set tools --per run --tool-calls 50 --action warn
    """
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
            strict=strict,
            call_money=call_money,
            call_tokens=call_tokens,
        )
    show(plain(made), [f"budget {clean(name)} is set"], as_json=as_json)


@budgets.command("remove")
@takes_store
def remove_budget(
    name: Annotated[str, typer.Argument(metavar="BUDGET", help="The name of a budget.")],
    *,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Remove a budget.

    Examples:
        treering budgets remove daily
    """
    with place.existing() as opened:
        _removed("budget", name, opened.budgets.remove(name), as_json=as_json)


@alerts.command("list")
@takes_store
def list_alerts(
    *,
    limit: LimitOption = 20,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List alerts, newest first.

    Examples:
        treering alerts list
        treering alerts list --limit 5
    """
    with place.existing() as opened:
        found = limited((alert for page in each_of(opened.alerts.page) for alert in page.alerts), limit)
    table = [("AT", "LEVEL", "RULE", "MESSAGE")]
    table += [
        (when(each.ts), status_text(each.level), clean(each.rule), clean(each.message)) for each in found
    ]
    show([plain(each) for each in found], rows(table) if found else ["no alerts"], as_json=as_json)


@alerts.command("rule")
@takes_store
def set_rule(
    name: NameArgument,
    *,
    what: Annotated[
        Literal["failed", "failures", "cost", "tokens", "duration"],
        typer.Option(help="What raises an alert: a failed run, many failures, or more than usual."),
    ],
    agent: OnlyAgentOption = None,
    times: Annotated[
        float, typer.Option(metavar="X", help="cost, tokens, duration: more than X times the median.")
    ] = 3.0,
    share: Annotated[float, typer.Option(metavar="S", help="failures: more than this share of runs.")] = 0.5,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Compare with the agent's last N runs.")] = 20,
    at_least: Annotated[int, typer.Option(metavar="N", min=1, help="Minimum number of earlier runs.")] = 5,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Create or replace a rule about runs.

    Examples:
        treering alerts rule failures --what failed
        treering alerts rule dear --what cost --times 5
    """
    with place.existing() as opened:
        made = opened.alerts.set_rule(
            name, what, agent=agent, times=times, share=share, runs=runs, at_least=at_least
        )
    show(plain(made), [f"rule {clean(name)} is set, for runs that end from now on"], as_json=as_json)


@alerts.command("webhook")
@takes_store
def set_webhook(
    name: NameArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send alerts.")],
    *,
    secret_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="Environment variable with the signing key (TREERING_WEBHOOK_SECRET...)."
        ),
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Send alerts to a URL from now on.

    Examples:
        treering alerts webhook ops https://hooks.example/agents
    """
    with place.existing() as opened:
        made = opened.alerts.set_webhook(name, url, secret_env=secret_env)
    show(plain(made), [f"webhook {clean(name)} is set"], as_json=as_json)


@alerts.command("rules")
@takes_store
def list_rules(
    *,
    limit: LimitOption = 200,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List rules and webhooks.

    Examples:
        treering alerts rules
    """
    with place.existing() as opened:
        rules, webhooks = limited(opened.alerts.rules(), limit), limited(opened.alerts.webhooks(), limit)
    lines = [
        f"rule     {clean(each.name)}  {each.what}  {clean(each.agent or 'every agent')}" for each in rules
    ]
    lines += [f"webhook  {clean(each.name)}  {clean(each.url)}" for each in webhooks]
    what = {"rules": [plain(each) for each in rules], "webhooks": [plain(each) for each in webhooks]}
    show(what, lines or ["no rules"], as_json=as_json)


@alerts.command("remove")
@takes_store
def remove(
    name: NameArgument,
    *,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Remove a rule or a webhook.

    Examples:
        treering alerts remove dear
    """
    with place.existing() as opened:
        existed = opened.alerts.remove_rule(name)
        existed = opened.alerts.remove_webhook(name) or existed
        _removed("rule or webhook", name, existed, as_json=as_json)


@alerts.command("check")
@takes_store
def check(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Continue until Ctrl-C.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Apply rules to ended runs, and send alerts to webhooks.

    A server does this by itself.

    Examples:
        treering alerts check
        treering alerts check --watch
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
    what = {"raised": [plain(each) for each in raised], "sent": [plain(each) for each in sent]}
    show(what, lines or ["no new alerts"], as_json=as_json)


def _why(delivery: Any) -> str:
    return "" if delivery.error is None else f", then failed: {clean(delivery.error)}"


def _removed(what: str, name: str, existed: bool, *, as_json: bool) -> None:  # noqa: FBT001 - the result of remove
    from treering.errors import NotFound

    if not existed:
        raise NotFound(f"{what} {name!r} not found")
    show({"name": name, "removed": True}, [f"removed {clean(name)}"], as_json=as_json)
