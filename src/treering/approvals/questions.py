"""What a pending interrupt asks: the tool calls, whichever framework waits, and how it is asked.

Frameworks put their own payloads into the interrupt of a thread. `read_question` finds the calls in those of
our agent loop, LangChain's and LangGraph's approval of tool calls, pydantic-ai's deferred tools, and
permission requests of OpenAI's and Claude's SDKs (see `PendingApproval`). Anything else is a question without
a call, which a person reads as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from treering.approvals.policy import ApprovalPolicy
from treering.errors import InvalidInput

POLICY: Final = "approval"
"""Under this name a pending interrupt says how it may be answered."""
ASKED_FOR: Final = "asked_for"
"""Under this name the payload of a question of its own says which thread, run and agent it is about."""
_ID_CHARS: Final = 20


class AskedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that waits for an answer."""

    tool: str
    arguments: Any = None
    call_id: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked."""

    payload: Any
    """As the framework gave it."""
    calls: tuple[AskedCall, ...] = ()
    text: str | None = None
    effect_id: str | None = None
    """The effect that nobody knows, if it is asked what became of it."""
    thread_id: str | None = None
    namespace: str = ""
    run_id: str | None = None
    agent: str | None = None
    policy: ApprovalPolicy | None = None
    """How its asker wants it to be answered."""


def approval_id(thread_id: str, namespace: str, interrupt_id: str | None) -> str:
    """Return the id of the question that an interrupt of a thread asks; a fork of the thread asks its own."""
    name = "\0".join((namespace, thread_id, interrupt_id or ""))
    return sha256(name.encode()).hexdigest()[:_ID_CHARS]


def interrupt_id(pending: Any) -> str | None:
    """Return the id of a pending interrupt, if it has one."""
    found = _fields(pending).get("id")
    return found if isinstance(found, str) else None


def read_question(pending: Any) -> Question:
    """Return what a pending interrupt asks."""
    whole = _fields(pending)
    payload = whole.get("payload", pending)
    fields = _fields(payload)
    asked_for = _fields(fields.get(ASKED_FOR))
    effect = _fields(fields.get("effect")).get("id")
    text = fields.get("question") or fields.get("description")
    return Question(
        payload=payload,
        calls=tuple(_calls(fields)),
        text=text if isinstance(text, str) else payload if isinstance(payload, str) else None,
        effect_id=effect if isinstance(effect, str) else None,
        thread_id=asked_for.get("thread"),
        namespace=asked_for.get("namespace") or "",
        run_id=asked_for.get("run") or whole.get("run"),
        agent=asked_for.get("agent") or whole.get("agent"),
        policy=_policy(whole.get(POLICY)),
    )


def policy_fields(policy: ApprovalPolicy) -> dict[str, Any]:
    """Return a policy as a pending interrupt keeps it."""
    return msgspec.json.decode(msgspec.json.encode(policy))


def _policy(given: Any) -> ApprovalPolicy | None:
    if given is None:
        return None
    try:
        return msgspec.convert(given, ApprovalPolicy)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the policy of a pending interrupt cannot be read ({error})") from None


def _calls(payload: Mapping[str, Any]) -> Iterable[AskedCall]:
    one = payload.get("tool_call")
    many = [one] if one is not None else []
    for name in ("tool_calls", "action_requests", "approvals"):
        found = payload.get(name)
        many += cast("list[Any]", found) if isinstance(found, list) else []
    for each in many:
        fields = _fields(each)
        tool = fields.get("name") or fields.get("tool_name") or fields.get("action")
        if isinstance(tool, str):
            arguments = fields.get("arguments", fields.get("args"))
            call_id = fields.get("id") or fields.get("tool_call_id")
            yield AskedCall(tool=tool, arguments=arguments, call_id=call_id)


def _fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
