"""``treering approvals``: the questions that agents put to people, the answers, and a worker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import as_json as json_text
from treering.cli.console import clean, counted, limited, one_line, plain, rows, say, show, status_text, when
from treering.cli.options import Commands, JsonOption, LimitOption, StorePlace, load_object, takes_store

if TYPE_CHECKING:
    from treering.approvals.approvals import Approval
    from treering.approvals.policy import Decision

ApprovalArgument = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="The id of a question, or a unique beginning.")
]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who answers [the user of this machine].")
]
ReasonOption = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of a rule.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = Commands(lists=True, help="Questions that agents put to people, and the answers.")
    for name, command in (
        ("list", list_approvals),
        ("show", show_approval),
        ("approve", approve),
        ("deny", deny),
        ("edit", edit),
        ("rules", rules),
        ("set-rule", set_rule),
        ("remove-rule", remove_rule),
        ("work", work),
    ):
        group.command(name)(command)
    app.add_typer(group, name="approvals")


@takes_store
def list_approvals(
    *,
    status: Annotated[
        str, typer.Option(metavar="STATUS", help="open, answered (not continued yet) or closed.")
    ] = "open",
    thread: Annotated[str | None, typer.Option(metavar="THREAD", help="Only those of a thread.")] = None,
    tool: Annotated[str | None, typer.Option(metavar="TOOL", help="Only those about a tool.")] = None,
    who: Annotated[
        str | None, typer.Option("--for", metavar="NAME", help="Only those that NAME may answer.")
    ] = None,
    user_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of a user or project [all].")
    ] = None,
    limit: LimitOption = 50,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List the questions that wait for an answer, oldest first.

    Examples:
        treering approvals list --for bob
        treering approvals list --status answered --json
    """
    with place.existing() as opened:
        questions = opened.approvals.list(
            status=status,  # pyright: ignore[reportArgumentType] - validated there
            namespace=user_namespace,
            thread_id=thread,
            tool=tool,
            who=who,
        )
        found = limited(questions, limit)
    table = [("id", "asked", "status", "agent", "thread", "until", "for", "question")]
    table += [
        (
            each.id,
            when(each.asked_at),
            status_text(each.status),
            clean(each.agent or ""),
            clean(each.thread_id),
            when(each.due_at) if each.due_at else "",
            clean(", ".join(each.who)),
            one_line(clean(_question(each)), 50),
        )
        for each in found
    ]
    show([_approval(each) for each in found], rows(table) if found else ["no approvals"], as_json=as_json)


@takes_store
def show_approval(approval: ApprovalArgument, *, place: StorePlace, as_json: JsonOption = False) -> None:
    """Show a question, the files that changed, and the votes.

    Examples:
        treering approvals show 63593344
    """
    with place.existing() as opened:
        found = opened.approvals.load(approval)
        files = list(opened.approvals.changes(found.id))
    facts = {
        "status": found.status + (", escalated" if found.is_escalated and found.is_open else ""),
        "question": found.text or "",
        "call": "; ".join(f"{each.tool} {json_text(each.arguments)}" for each in found.calls),
        "edited to": "" if found.value is None else json_text(found.value),
        "agent": found.agent or "",
        "thread": found.thread_id,
        "run": found.run_id or "",
        "asked": when(found.asked_at),
        "until": f"{when(found.due_at)}, then {found.policy.then}" if found.due_at else "",
        "for": ", ".join(found.who),
        "needs": f"{counted(found.policy.quorum, 'votes')}" if found.policy.quorum > 1 else "",
        "cost": ", ".join(f"{nanos / 1e9:.4f} {currency}" for currency, nanos in found.cost_nanos.items()),
        "effect": found.effect_id or "",
    }
    lines = [f"{name:<10}  {clean(fact)}" for name, fact in facts.items() if fact]
    lines += [
        f"{'vote':<10}  {clean(each.by)}: {each.decision}{clean(f' ({each.reason})' if each.reason else '')}"
        for each in found.votes
    ]
    lines += [f"{'file':<10}  {clean(each.path)} {each.change}" for each in files]
    shown = {**_approval(found), "files": plain(files)}
    show(shown, [typer.style(found.id, bold=True), *lines], as_json=as_json)


@takes_store
def approve(
    approval: ApprovalArgument,
    *,
    by: ByOption = None,
    reason: ReasonOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Approve a call.

    Examples:
        treering approvals approve 63593344 --by bob --reason "checked the order"
    """
    _answer(place, approval, "approve", by=by, reason=reason, as_json=as_json)


@takes_store
def deny(
    approval: ApprovalArgument,
    *,
    by: ByOption = None,
    reason: ReasonOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Deny a call; its agent is told the reason.

    Examples:
        treering approvals deny 63593344 --reason "the order was cancelled"
    """
    _answer(place, approval, "deny", by=by, reason=reason, as_json=as_json)


@takes_store
def edit(
    approval: ApprovalArgument,
    *,
    value: Annotated[
        str, typer.Option("--value", metavar="JSON", help="The arguments to call with, or - for stdin.")
    ],
    by: ByOption = None,
    reason: ReasonOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Approve a call with other arguments.

    Examples:
        treering approvals edit 63593344 --value '{"amount": 90}'
    """
    import msgspec

    from treering.errors import InvalidInput

    text = sys.stdin.read() if value == "-" else value
    try:
        given = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--value is not JSON: {error}") from None
    _answer(place, approval, "edit", by=by, reason=reason, value=given, as_json=as_json)


@takes_store
def rules(*, limit: LimitOption = 50, place: StorePlace, as_json: JsonOption = False) -> None:
    """List the rules about who may answer.

    Examples:
        treering approvals rules
    """
    with place.existing() as opened:
        found = limited(opened.approvals.rules(), limit)
    table = [("name", "tool", "agent", "thread", "for", "seconds", "then", "votes")]
    table += [
        (
            clean(each.name),
            clean(each.tool),
            clean(each.agent),
            clean(each.thread),
            clean(", ".join(each.policy.who)),
            "" if each.policy.seconds is None else f"{each.policy.seconds:g}",
            clean(
                each.policy.then
                + (f" to {', '.join(each.policy.escalate_to)}" if each.policy.escalate_to else "")
            ),
            str(each.policy.quorum),
        )
        for each in found
    ]
    show([plain(each) for each in found], rows(table) if found else ["no rules"], as_json=as_json)


@takes_store
def set_rule(
    name: NameArgument,
    *,
    tool: Annotated[str, typer.Option(metavar="PATTERN", help="For questions about these tools.")] = "*",
    agent: Annotated[str, typer.Option(metavar="PATTERN", help="For questions of these agents.")] = "*",
    thread: Annotated[str, typer.Option(metavar="PATTERN", help="For questions of these threads.")] = "*",
    who: Annotated[
        list[str] | None, typer.Option("--for", metavar="NAME", help="Who may answer; repeatable [anybody].")
    ] = None,
    seconds: Annotated[float | None, typer.Option(metavar="N", help="How long the question waits.")] = None,
    then: Annotated[
        str, typer.Option(metavar="ACTION", help="What happens then: wait, deny, approve or escalate.")
    ] = "wait",
    escalate_to: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Who may answer after that; repeatable.")
    ] = None,
    escalate_seconds: Annotated[
        float | None, typer.Option(metavar="N", help="How long they have [as long again].")
    ] = None,
    at_last: Annotated[
        str, typer.Option(metavar="ACTION", help="What happens after that: wait, deny or approve.")
    ] = "deny",
    quorum: Annotated[int, typer.Option(metavar="N", min=1, help="How many must agree.")] = 1,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Set who answers questions about a tool, and until when.

    The first rule by name that matches a question applies.

    Examples:
        treering approvals set-rule money --tool 'pay*' --for bob --seconds 3600 --then deny
    """
    with place.open() as opened:
        rule = opened.approvals.set_rule(
            name,
            tool=tool,
            agent=agent,
            thread=thread,
            who=who or (),
            seconds=seconds,
            then=then,  # pyright: ignore[reportArgumentType] - validated there
            escalate_to=escalate_to or (),
            escalate_seconds=escalate_seconds,
            at_last=at_last,  # pyright: ignore[reportArgumentType]
            quorum=quorum,
        )
    show(plain(rule), [f"rule {clean(name)} is set"], as_json=as_json)


@takes_store
def remove_rule(name: NameArgument, *, place: StorePlace, as_json: JsonOption = False) -> None:
    """Remove a rule.

    Examples:
        treering approvals remove-rule money
    """
    from treering.errors import NotFound

    with place.existing() as opened:
        if not opened.approvals.remove_rule(name):
            raise NotFound(f"rule {name!r} not found. List rules with: treering approvals rules")
    show({"removed": name}, [f"rule {clean(name)} is removed"], as_json=as_json)


@takes_store
def work(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="An agent, a compiled LangGraph graph, or a function."),
    ],
    *,
    tool: Annotated[str | None, typer.Option(metavar="TOOL", help="Only answers about this tool.")] = None,
    link: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of the dashboard, for links in alerts.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Continue what was answered so far, and exit.")
    ] = False,
    place: StorePlace,
) -> None:
    """Continue threads whose question was answered.

    Runs until SIGTERM or Ctrl-C. Also applies deadlines, and raises the alerts that webhooks carry.

    Examples:
        treering approvals work mypackage.agents:support
    """
    import logging
    import signal

    from treering.approvals.worker import ApprovalWorker, continuation

    continue_thread = continuation(load_object(target, "MODULE:NAME"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with place.existing() as opened:
        working = ApprovalWorker(opened, continue_thread, link=link, tool=tool)
        if once:
            count = working.run_once()
            say(f"continued {count} thread{'' if count == 1 else 's'}")
            return

        def stop(_number: int, _frame: Any) -> None:
            working.stop()

        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, stop)
        say(f"worker started on {opened.url}; stop with Ctrl-C")
        working.run()
    say("worker stopped")


def _answer(
    place: StorePlace,
    approval: str,
    decision: Decision,
    *,
    by: str | None,
    reason: str | None,
    value: Any = None,
    as_json: bool,
) -> None:
    import getpass

    with place.existing() as opened:
        found = opened.approvals.answer(
            approval, decision, by=by or getpass.getuser(), reason=reason, value=value
        )
    if found.is_open:
        line = f"{found.id}: {len(found.agreed)} of {counted(found.policy.quorum, 'votes')}"
    else:
        line = f"{found.id}: {found.status}; thread {clean(found.waits_in)} can go on"
    show(_approval(found), [line], as_json=as_json)


def _question(approval: Approval) -> str:
    if approval.calls:
        return "; ".join(f"{each.tool} {json_text(each.arguments)}" for each in approval.calls)
    return approval.text or json_text(approval.question)


def _approval(approval: Approval) -> dict[str, Any]:
    return {
        "approval": plain(approval),
        "revision": approval.revision,
        "decided_by": list(approval.decided_by),
        "reason": approval.reason,
        "arguments": plain(approval.arguments),
    }
