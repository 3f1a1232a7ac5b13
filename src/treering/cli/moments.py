"""How a moment, and the difference between two, read on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from treering.cli.console import clean
from treering.cli.telling import as_json as json_text
from treering.cli.telling import message_count, speaker, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treering.views.differences import Difference
    from treering.views.moments import Moment


def moment_lines(moment: Moment, messages: list[Any], state: dict[str, Any]) -> Iterator[str]:
    """A moment, its messages and its state."""
    checkpoint = moment.checkpoint
    # Names that begin with _ are a framework's own bookkeeping; --json has them too.
    metadata = {name: value for name, value in checkpoint.metadata.items() if not name.startswith("_")}
    whose = f" of {clean(checkpoint.namespace)}" if checkpoint.namespace else ""
    yield typer.style(f"{clean(checkpoint.thread)}{whose}, step {checkpoint.step}", bold=True)
    facts = {
        "checkpoint": checkpoint.id,
        "parent": checkpoint.parent or "",
        "saved": checkpoint.created_at,
        "note": checkpoint.note or "",
        "tags": ", ".join(checkpoint.tags),
        "files": checkpoint.snapshot or "",
        "metadata": json_text(metadata) if metadata else "",
        "waits for": json_text(checkpoint.pending_interrupt)
        if checkpoint.pending_interrupt is not None
        else "",
    }
    yield from (f"  {name:<10}  {clean(fact)}" for name, fact in facts.items() if fact)
    for name, stretch in checkpoint.lists.items():
        if name != "messages":
            yield f"  {clean(name):<10}  {stretch.length} items"
    count = message_count(checkpoint)
    yield typer.style(f"messages ({count})", bold=True)
    if count > len(messages):
        yield f"  ... {count - len(messages)} earlier ones (--last 0 shows all)"
    for index, message in enumerate(messages, count - len(messages)):
        yield from _said("", index, message)
    if state:
        yield typer.style("state", bold=True)
        yield from (f"  {clean(name)} = {clean(json_text(value))}" for name, value in state.items())


def difference_lines(told: Difference) -> Iterator[str]:
    """What differs between two moments."""
    yield f"{told.before} -> {told.after}, {told.common} messages in common"
    for index, message in told.removed:
        yield from _coloured("red", _said("-", index, message))
    for each in told.changed:
        yield from _coloured("red", _said("-", each.index, each.before))
        yield from _coloured("green", _said("+", each.index, each.after))
    for index, message in told.added:
        yield from _coloured("green", _said("+", index, message))
    yield from _patched("state", told.state)
    for name, patch in told.lists.items():
        yield from _patched(f"list {name}", patch)
    if told.is_empty:
        yield "nothing differs"


def _patched(what: str, patch: Sequence[dict[str, Any]]) -> Iterator[str]:
    for change in patch:
        is_removal = change["op"] == "remove"
        value = "" if is_removal else f" = {json_text(change['value'])}"
        sign = {"add": "+", "remove": "-", "replace": "~"}[change["op"]]
        colour = "red" if is_removal else "green"
        yield typer.style(clean(f"{sign} {what} {change['path']}{value}"), fg=colour)


def _said(sign: str, index: int, message: Any) -> Iterator[str]:
    first, *rest = words(message).split("\n")
    lead = f"{sign:<2}{index:>3} {speaker(message):<10} "
    yield (lead + first).rstrip()
    yield from (" " * len(lead) + line for line in rest)


def _coloured(colour: str, lines: Iterator[str]) -> Iterator[str]:
    return (typer.style(line, fg=colour) for line in lines)
