"""Approvals of the Agents SDK, kept with the thread until a person decides.

A run that stops for approval is a `RunState`, which the SDK can write as JSON. It is part of the thread's
pending interrupt, whose payload lists the calls that wait: that is what a person reads. The answer may come
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
from treering.threads.thread import new_interrupt

if TYPE_CHECKING:
    from agents import Agent
    from agents.result import RunResultBase

    from treering.threads.thread import Thread

RUN_STATE: Final = "run_state"
CALLS: Final = "approvals"


def pending_interrupt(result: RunResultBase) -> dict[str, Any] | None:
    """Return what a run waits for: the calls to decide on, and beside them its state; ``None`` if it does not
    wait.
    """
    state: Any = cast("Any", result).to_state()
    calls = [
        {"call_id": each.call_id, "tool": each.name, "arguments": _arguments(each.arguments)}
        for each in state.get_interruptions()
    ]
    return new_interrupt({CALLS: calls}, None) | {RUN_STATE: state.to_json()} if calls else None


def _arguments(text: str | None) -> Any:
    """Return arguments as a person reads them: those of a function are JSON."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return text


def read_answer(thread: Thread) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the answer that a thread has, and the run state that it is about; ``None`` if there is none."""
    newest = list(islice(thread.history(), 2))
    answer = newest[0].metadata.get("resumed") if newest else None
    pending = newest[1].pending_interrupt if len(newest) > 1 else None
    state = cast("dict[str, Any]", pending).get(RUN_STATE) if isinstance(pending, dict) else None
    if not isinstance(answer, dict) or not isinstance(state, dict):
        return None
    return cast("dict[str, Any]", answer), cast("dict[str, Any]", state)


async def apply_answer(
    agent: Agent[Any], answer: Mapping[str, Any], run_state: dict[str, Any]
) -> RunState[Any]:
    """Return the state with each waiting call approved or rejected."""
    state: Any = await RunState.from_json(agent, run_state)
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
