"""Interrupts: what an agent waits for a person to decide, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from treering.core.ids import new_id
from treering.errors import Conflict, InvalidInput

Decision = Literal["approve", "deny", "edit"]


def pending(payload: Any, interrupt_id: str | None) -> dict[str, Any]:
    """A new interrupt, as a moment keeps it."""
    return {"id": interrupt_id or new_id(), "payload": payload}


def answer(
    thread_id: str, waits_for: Any, decision: Decision, *, interrupt_id: str | None, value: Any
) -> dict[str, Any]:
    """The answer to what a thread waits for. Raises `Conflict` if that is nothing, or something else."""
    if waits_for is None:
        raise Conflict(f"thread {thread_id!r} waits for no decision; there is nothing to resume")
    known = cast("Mapping[str, Any]", waits_for if isinstance(waits_for, Mapping) else {"payload": waits_for})
    if interrupt_id is not None and known.get("id") != interrupt_id:
        raise Conflict(f"thread {thread_id!r} waits for interrupt {known.get('id')!r}, not {interrupt_id!r}")
    if decision not in get_args(Decision):
        raise InvalidInput(f"{decision!r} is no decision; use approve, deny or edit")
    if (decision == "edit") != (value is not None):
        raise InvalidInput("edit needs the new value, and only edit takes one")
    payload = value if decision == "edit" else known.get("payload")
    return {"id": known.get("id"), "decision": decision, "payload": payload}
