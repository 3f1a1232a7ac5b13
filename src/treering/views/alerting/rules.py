"""Rules about runs: one that fails, and one that is unlike those before it.

A rule looks at a run when it is over. What "unlike" means is decided by the runs that the same agent finished
before: more than so many times their median, of money, tokens or time. Too few runs before it, or a median of
nothing, and there is no judgement.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.core.encoding import decode_json
from treering.core.money import from_nanos
from treering.core.query import SumQuery
from treering.core.rollup import ERROR
from treering.errors import Corrupt, InvalidInput
from treering.views.alerting.alert import Alert, alert_id
from treering.views.recording.runs import CRASHED, RunInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.engine import Engine
    from treering.core.records import Ref

RULES: Final = "alerts/rule/"

What = Literal["failed", "failures", "cost", "tokens", "duration"]
"""Each failed run; too many of the last ones; or more money, tokens or time than usual."""

_FAILED: Final = frozenset({ERROR, CRASHED})
_SECOND_US: Final = 1_000_000
_LONGEST_REASON: Final = 300


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When a run is worth an alert."""

    name: str
    what: What
    agent: str | None = None
    """Only runs of this agent; ``None``: of each agent by itself."""
    times: float = 3.0
    """``cost``, ``tokens``, ``duration``: more than so many times the median."""
    share: float = 0.5
    """``failures``: more than this share of the last runs."""
    runs: int = 20
    """How many of the agent's last runs are looked at."""
    at_least: int = 5
    """With fewer runs before it, nothing is said."""


def rule_of(ref: Ref) -> Rule:
    """A rule out of its ref."""
    try:
        return msgspec.convert(decode_json(ref.value), Rule)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"alert rule {ref.name!r} cannot be read ({error}); set it again") from None


def check_rule(rule: Rule) -> Rule:
    """A rule that can be stored."""
    words: Any = What
    if rule.what not in words.__args__:
        raise InvalidInput(f"what={rule.what!r} is not acceptable; use {', '.join(words.__args__)}")
    if not rule.times > 0 or not 0 <= rule.share < 1 or rule.runs < 1 or not 1 <= rule.at_least <= rule.runs:
        raise InvalidInput(
            f"rule {rule.name!r} is not acceptable: times above 0, share from 0 to below 1, and at_least "
            "from 1 up to runs"
        )
    return rule


def judge(engine: Engine, space: str, rule: Rule, run: RunInfo, before: Sequence[RunInfo]) -> Alert | None:
    """What a rule says about a finished run; ``before`` are the agent's earlier ones, newest first."""
    if rule.agent not in (None, run.agent):
        return None
    if rule.what == "failed":
        if run.status not in _FAILED:
            return None
        return _alert(rule, run, f"run {run.id} of {_who(run)} ended as {run.status}{_reason(run)}", {})
    earlier = before[: rule.runs]
    if len(earlier) < rule.at_least:
        return None
    if rule.what == "failures":
        return _failures(rule, run, [run, *earlier][: rule.runs])
    mine = _measures(engine, space, rule.what, run)
    others = [_measures(engine, space, rule.what, each) for each in earlier]
    for unit, amount in mine.items():
        usual = median(each.get(unit, 0) for each in others)
        if usual > 0 and amount > rule.times * usual:
            words = f"{_shown(rule.what, unit, amount)} where {_shown(rule.what, unit, usual)} is usual"
            figures = {
                "what": rule.what,
                "value": amount,
                "median": usual,
                "unit": unit,
                "runs": len(earlier),
            }
            return _alert(rule, run, f"run {run.id} of {_who(run)} took {words}", figures)
    return None


def _failures(rule: Rule, run: RunInfo, last: Sequence[RunInfo]) -> Alert | None:
    failed = sum(each.status in _FAILED for each in last)
    if run.status not in _FAILED or failed <= rule.share * len(last):
        return None
    message = f"{failed} of the last {len(last)} runs of {_who(run)} failed"
    return _alert(rule, run, message, {"failed": failed, "runs": len(last)})


def _measures(engine: Engine, space: str, what: What, run: RunInfo) -> dict[str, int]:
    """Money by currency, or the one number that is asked for."""
    if what == "duration":
        return {"us": run.duration_us or 0}
    sums = engine.sums(space, SumQuery(grain="run", by=("currency",), key=run.id))
    if what == "tokens":
        return {"tokens": sum(each.usage.total for each in sums)}
    return {str(each.group[0]): each.cost_nanos for each in sums if each.group[0]}


def _alert(rule: Rule, run: RunInfo, message: str, figures: dict[str, Any]) -> Alert:
    return Alert(
        id=alert_id("rule", rule.name, rule.what, run.id),
        ts_us=run.ended_at_us or run.started_at_us,
        level="critical" if rule.what in ("failed", "failures") else "warning",
        rule=rule.name,
        message=message,
        run=run.id,
        agent=run.agent,
        thread=run.thread,
        namespace=run.namespace,
        figures=figures,
    )


def _reason(run: RunInfo) -> str:
    """What the run's exception was, if it is known."""
    error: Any = run.meta.get("error")
    if not isinstance(error, dict):
        return ""
    told = cast("dict[str, Any]", error)
    return f": {told.get('type')}: {told.get('message')}"[:_LONGEST_REASON]


def _who(run: RunInfo) -> str:
    return "no agent" if run.agent is None else repr(run.agent)


def _shown(what: What, unit: str, amount: float) -> str:
    if what == "cost":
        return f"{from_nanos(round(amount)).normalize():f} {unit}"
    if what == "duration":
        return f"{amount / _SECOND_US:.1f} s"
    return f"{amount:.0f} tokens"
