"""Interrupts: a question that an agent waits for a person to decide, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from treering.core.ids import new_id
from treering.errors import Conflict, InvalidInput

Decision = Literal["approve", "deny", "edit"]


def new_interrupt(payload: Any, interrupt_id: str | None) -> dict[str, Any]:
    """Return a new interrupt in the form in which a checkpoint keeps it."""
    return {"id": interrupt_id or new_id(), "payload": payload}


def answer_interrupt(
    thread_id: str, pending: Any, decision: Decision, *, interrupt_id: str | None, value: Any
) -> dict[str, Any]:
    """Return the answer to the pending interrupt of a thread.

    Raises `Conflict` if none is pending, or another one than ``interrupt_id``.
    """
    if pending is None:
        raise Conflict(f"thread {thread_id!r} has no pending interrupt; there is nothing to resume")
    known = cast("Mapping[str, Any]", pending if isinstance(pending, Mapping) else {"payload": pending})
    if interrupt_id is not None and known.get("id") != interrupt_id:
        raise Conflict(f"thread {thread_id!r} waits for interrupt {known.get('id')!r}, not {interrupt_id!r}")
    if decision not in get_args(Decision):
        raise InvalidInput(f"{decision!r} is not a decision; use approve, deny or edit")
    if (decision == "edit") != (value is not None):
        raise InvalidInput("edit requires the new value, and the other decisions take none")
    payload = value if decision == "edit" else known.get("payload")
    return {"id": known.get("id"), "decision": decision, "payload": payload}
