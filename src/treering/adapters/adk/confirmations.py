"""Tool confirmations of ADK, kept with the thread until a person decides.

ADK asks by an event that calls ``adk_request_confirmation``, and goes on when a message has the response to
that call. Until then the checkpoints of the session have a pending interrupt, which lists the calls that
wait. The answer may come from anywhere: the dashboard, the command line, `Thread.resume`. **Invariant:** a
session waits exactly from the event that asks until the next message of its user.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from google.genai import types

from treering.errors import InvalidInput

if TYPE_CHECKING:
    from google.adk.events.event import Event

    from treering.threads.checkpoint import CheckpointRecord
    from treering.threads.thread import Thread

REQUEST: Final = "adk_request_confirmation"
CALLS: Final = "confirmations"


def pending_after(event: Event, before: CheckpointRecord) -> dict[str, Any] | None:
    """Return the pending interrupt of a session after an event."""
    asked = [_described(each) for each in event.get_function_calls() if each.name == REQUEST]
    if asked:
        return {"id": event.id, "payload": {CALLS: asked}}
    known = before.pending_interrupt
    is_asked = isinstance(known, dict) and CALLS in (cast("dict[str, Any]", known).get("payload") or {})
    return cast("dict[str, Any]", known) if is_asked and event.author != "user" else None


def _described(call: types.FunctionCall) -> dict[str, Any]:
    args = call.args or {}
    original: dict[str, Any] = args.get("originalFunctionCall") or {}
    confirmation: dict[str, Any] = args.get("toolConfirmation") or {}
    return {
        "id": call.id,
        "tool": original.get("name"),
        "arguments": original.get("args") or {},
        "hint": confirmation.get("hint") or "",
        "payload": confirmation.get("payload"),
    }


def answer_of(thread: Thread) -> types.Content | None:
    """Return the message that answers what a session waits for; ``None`` if nothing was answered yet."""
    newest = list(islice(thread.history(), 2))
    answer = newest[0].metadata.get("resumed") if newest else None
    pending = newest[1].pending_interrupt if len(newest) > 1 else None
    payload = cast("dict[str, Any]", pending).get("payload") if isinstance(pending, dict) else None
    if not isinstance(answer, dict) or not isinstance(payload, dict) or CALLS not in payload:
        return None
    asked = cast("dict[str, Any]", payload)[CALLS]
    decided = _decisions(cast("dict[str, Any]", answer), [each["id"] for each in asked])
    return types.Content(
        role="user",
        parts=[
            types.Part(function_response=types.FunctionResponse(id=call_id, name=REQUEST, response=response))
            for call_id, response in decided.items()
        ],
    )


def _decisions(answer: Mapping[str, Any], asked: list[str]) -> dict[str, dict[str, Any]]:
    if answer["decision"] != "edit":
        return {call_id: {"confirmed": answer["decision"] == "approve"} for call_id in asked}
    given: Any = answer["payload"]
    calls: Any = cast("dict[str, Any]", given).get(CALLS) if isinstance(given, dict) else None
    if not isinstance(calls, list):
        raise InvalidInput(
            'an edited answer lists the calls to decide on: {"confirmations": [{"id": "...", "confirmed": '
            'true, "payload": {...}}]}; calls that it leaves out are not confirmed'
        )
    decided: dict[str, dict[str, Any]] = {call_id: {"confirmed": False} for call_id in asked}
    for each in cast("list[dict[str, Any]]", calls):
        response = {"confirmed": bool(each.get("confirmed", True))}
        decided[each["id"]] = response | (
            {"payload": each["payload"]} if each.get("payload") is not None else {}
        )
    return decided
