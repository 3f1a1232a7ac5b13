"""Budgets, alerts, the rules that raise them and the webhooks they go to.

A webhook makes the server call an address, so only an admin key may set or list them, and the server only
calls public addresses (`limits.webhooks`).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from treering.core.query import Unreadable
from treering.errors import NotFound
from treering.limits.alerts import Alert, AlertRule, What
from treering.limits.budgets import Action, BudgetUsage, Every, Measure, Per, SharedBudget
from treering.limits.webhooks import Webhook
from treering.server.endpoints import OK, Call, Empty, endpoint

Count = Annotated[int, Meta(ge=0, le=2**53)]


class BudgetsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose usage to return: that of a run, agent or thread, and always that of the store."""

    run: str | None = None
    agent: str | None = None
    thread: str | None = None
    namespace: str = ""


class BudgetLine(Struct, frozen=True, kw_only=True):
    """A budget with its usage, where requested; money is in nano-units of its currency."""

    budget: SharedBudget
    key: str | None = None
    used: dict[Measure, int] = {}
    reserved: dict[Measure, int] = {}
    """Of a strict budget: what running calls may still use."""
    share: float | None = None
    is_used_up: bool = False


class BudgetList(Struct, frozen=True, kw_only=True):
    """Budgets by name."""

    budgets: tuple[BudgetLine, ...]
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class NewBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be used. Unset limits do not apply; one is required."""

    per: Per
    every: Every | None = None
    agent: str | None = None
    money: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    tokens: Count | None = None
    tool_calls: Count | None = None
    action: Action = "stop"
    warn_at: Annotated[float, Meta(gt=0, le=1)] = 0.8
    strict: bool = False
    """Never exceed it: each call first reserves what it may use (``call_money``, ``call_tokens``)."""
    call_money: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    call_tokens: Annotated[int, Meta(ge=1, le=2**53)] | None = None


class AlertsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: Annotated[str, Meta(pattern=r"^\d{1,18}$")] | None = None


class AlertList(Struct, frozen=True, kw_only=True):
    """Alerts, newest first."""

    alerts: tuple[Alert, ...]
    next_cursor: str | None


class RuleList(Struct, frozen=True, kw_only=True):
    """Rules by name."""

    rules: tuple[AlertRule, ...]
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class NewRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to raise an alert: a failed run, many failures, or more than so many times the median."""

    what: What
    agent: str | None = None
    times: Annotated[float, Meta(gt=0, le=1e6)] = 3.0
    share: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    runs: Annotated[int, Meta(ge=1, le=1000)] = 20
    at_least: Annotated[int, Meta(ge=1, le=1000)] = 5


class NewWebhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to send alerts, and the server's environment variable that holds the signing key."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    secret_env: Annotated[str, Meta(pattern="^TREERING_WEBHOOK_SECRET[A-Z0-9_]*$")] | None = None


class WebhookList(Struct, frozen=True, kw_only=True):
    """Webhooks by name."""

    webhooks: tuple[Webhook, ...]
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


@endpoint("GET", "/budgets", tag="budgets")
def list_budgets(call: Call[BudgetsQuery, None]) -> BudgetList:
    """List budgets, with the usage of those of the store, and of the given run, agent and thread."""
    budgets = call.store.budgets
    query = call.query
    usages = budgets.usage(run=query.run, agent=query.agent, thread=query.thread, namespace=query.namespace)
    by_name = {each.budget.name: each for each in usages}
    return BudgetList(budgets=tuple(_line(each, by_name.get(each.name)) for each in budgets.list()))


@endpoint("PUT", "/budgets/{name}", tag="budgets")
def set_budget(call: Call[None, NewBudget]) -> BudgetLine:
    """Create or replace a budget. Everything that records into the project applies it within seconds."""
    new = call.body
    made = call.store.budgets.set(
        call.path["name"],
        per=new.per,
        every=new.every,
        agent=new.agent,
        money=new.money,
        currency=new.currency,
        tokens=new.tokens,
        tool_calls=new.tool_calls,
        action=new.action,
        warn_at=new.warn_at,
        strict=new.strict,
        call_money=new.call_money,
        call_tokens=new.call_tokens,
    )
    return _line(made, None)


@endpoint("DELETE", "/budgets/{name}", tag="budgets")
def remove_budget(call: Call[None, None]) -> Empty:
    """Remove a budget."""
    return _removed(call.store.budgets.remove(call.path["name"]), "budget", call.path["name"])


@endpoint("GET", "/alerts", tag="alerts")
def list_alerts(call: Call[AlertsQuery, None]) -> AlertList:
    """List alerts, newest first."""
    page = call.store.alerts.page(first=call.query.limit, cursor=call.query.cursor)
    return AlertList(alerts=page.alerts, next_cursor=page.cursor)


@endpoint("GET", "/alerts/rules", tag="alerts")
def list_rules(call: Call[None, None]) -> RuleList:
    """List the rules about runs."""
    return RuleList(rules=call.store.alerts.rules())


@endpoint("PUT", "/alerts/rules/{name}", tag="alerts")
def set_rule(call: Call[None, NewRule]) -> AlertRule:
    """Create or replace a rule, which applies to runs that end from now on."""
    new = call.body
    return call.store.alerts.set_rule(
        call.path["name"],
        new.what,
        agent=new.agent,
        times=new.times,
        share=new.share,
        runs=new.runs,
        at_least=new.at_least,
    )


@endpoint("DELETE", "/alerts/rules/{name}", tag="alerts")
def remove_rule(call: Call[None, None]) -> Empty:
    """Remove a rule."""
    return _removed(call.store.alerts.remove_rule(call.path["name"]), "rule", call.path["name"])


@endpoint("GET", "/alerts/webhooks", tag="alerts", domain="webhooks")
def list_webhooks(call: Call[None, None]) -> WebhookList:
    """List webhooks."""
    return WebhookList(webhooks=call.store.alerts.webhooks())


@endpoint("PUT", "/alerts/webhooks/{name}", tag="alerts", domain="webhooks")
def set_webhook(call: Call[None, NewWebhook]) -> Webhook:
    """Send alerts to a URL from now on, or change the URL of a webhook."""
    return call.store.alerts.set_webhook(call.path["name"], call.body.url, secret_env=call.body.secret_env)


@endpoint("DELETE", "/alerts/webhooks/{name}", tag="alerts", domain="webhooks")
def remove_webhook(call: Call[None, None]) -> Empty:
    """Remove a webhook."""
    return _removed(call.store.alerts.remove_webhook(call.path["name"]), "webhook", call.path["name"])


ENDPOINTS: Final = (
    list_budgets,
    set_budget,
    remove_budget,
    list_alerts,
    list_rules,
    set_rule,
    remove_rule,
    list_webhooks,
    set_webhook,
    remove_webhook,
)


def _line(budget: SharedBudget, usage: BudgetUsage | None) -> BudgetLine:
    if usage is None:
        return BudgetLine(budget=budget)
    return BudgetLine(
        budget=budget,
        key=usage.key,
        used=dict(usage.used),
        reserved=dict(usage.reserved),
        share=usage.share,
        is_used_up=usage.is_used_up,
    )


def _removed(existed: bool, what: str, name: str) -> Empty:  # noqa: FBT001 - the result of `remove`
    if not existed:
        raise NotFound(f"{what} {name!r} not found")
    return OK
