"""Approvals of the Agents SDK, kept with the thread until a person decides.

A run that stops for approval is a `RunState`, which the SDK can write as JSON. It becomes the payload of the
thread's pending interrupt, beside the calls that wait, which is what a person reads. The answer may come
from anywhere: the dashboard, the command line, `Thread.resume`. **Invariant:** an answer is applied to the
state that it was given for, which the checkpoint before the answer holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from agents import RunState

from treering.errors import InvalidInput

if TYPE_CHECKING:
    from agents import Agent
    from agents.result import RunResultBase

    from treering.threads.thread import Thread

RUN_STATE: Final = "run_state"
CALLS: Final = "approvals"


def pending_payload(result: RunResultBase) -> dict[str, Any] | None:
    """Return what a run waits for: the calls to decide on, and its state; ``None`` if it does not wait."""
    state: Any = cast("Any", result).to_state()
    calls = [
        {"call_id": each.call_id, "tool": each.name, "arguments": _arguments(each.arguments)}
        for each in state.get_interruptions()
    ]
    return {CALLS: calls, RUN_STATE: state.to_json()} if calls else None


def _arguments(text: str | None) -> Any:
    """Return arguments as a person reads them: those of a function are JSON."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return text


def read_answer(thread: Thread) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the answer that a thread has, and the payload that it is about; ``None`` if there is none."""
    newest = list(islice(thread.history(), 2))
    answer = newest[0].metadata.get("resumed") if newest else None
    pending = newest[1].pending_interrupt if len(newest) > 1 else None
    payload = cast("dict[str, Any]", pending).get("payload") if isinstance(pending, dict) else None
    if not isinstance(answer, dict) or not isinstance(payload, dict) or RUN_STATE not in payload:
        return None
    return cast("dict[str, Any]", answer), cast("dict[str, Any]", payload)


async def apply_answer(
    agent: Agent[Any], answer: Mapping[str, Any], payload: Mapping[str, Any]
) -> RunState[Any]:
    """Return the state with each waiting call approved or rejected."""
    state: Any = await RunState.from_json(agent, payload[RUN_STATE])
    decided = _decisions(answer)
    for each in state.get_interruptions():
        is_approved, message = decided.get(each.call_id, decided[None])
        if is_approved:
            state.approve(each)
        else:
            state.reject(each, rejection_message=message)
    return state


def _decisions(answer: Mapping[str, Any]) -> dict[str | None, tuple[bool, str | None]]:
    """Return the decision on each call, and under ``None`` that on all others."""
    if answer["decision"] != "edit":
        return {None: (answer["decision"] == "approve", None)}
    given: Any = answer["payload"]
    calls: Any = cast("dict[str, Any]", given).get(CALLS) if isinstance(given, dict) else None
    if not isinstance(calls, list):
        raise InvalidInput(
            'an edited answer lists the calls to decide on: {"approvals": [{"call_id": "...", '
            '"approve": false, "message": "why"}]}; calls that it leaves out are rejected'
        )
    decided: dict[str | None, tuple[bool, str | None]] = {None: (False, None)}
    for each in cast("list[dict[str, Any]]", calls):
        decided[each["call_id"]] = bool(each.get("approve", True)), each.get("message")
    return decided
