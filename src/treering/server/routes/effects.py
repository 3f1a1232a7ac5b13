"""Side effects of tool calls: list them, and decide about those whose outcome nobody knows."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from treering.core.query import Unreadable
from treering.effects.effects import Effect, Status
from treering.errors import InvalidInput
from treering.server.endpoints import Call, endpoint
from treering.threads.diff import Changes


class EffectListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which effects to list: those of a thread or run, with a status. ``cursor`` is the last id of a page.

    With ``checkpoint``: those of the thread that may have happened since then, which a rewind does not undo.
    """

    thread: str | None = None
    namespace: str = ""
    run: str | None = None
    status: Status | None = None
    checkpoint: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class EffectInfo(Struct, frozen=True, kw_only=True):
    """An effect, and the idempotency key of its calls."""

    effect: Effect
    key: str


class EffectList(Struct, frozen=True, kw_only=True):
    """Effects, newest first."""

    effects: tuple[EffectInfo, ...]
    next_cursor: str | None
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class EffectDecision(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of an unknown effect: it ``happened`` (with a result), ``retry`` it, or ``abandon`` it."""

    decision: Literal["happened", "retry", "abandon"]
    result: Any = None
    by: str | None = None
    note: str | None = None


@endpoint("GET", "/effects", tag="effects")
def list_effects(call: Call[EffectListQuery, None]) -> EffectList:
    """List effects, newest first; with ``status=unknown`` those that wait for a decision."""
    query = call.query
    if query.checkpoint is not None:
        if query.thread is None:
            raise InvalidInput("checkpoint= goes with thread=, which it is a checkpoint of")
        thread = call.store.thread(query.thread, query.namespace or None)
        return EffectList(effects=tuple(map(_info, thread.effects_after(query.checkpoint))), next_cursor=None)
    page = list(
        call.store.effects.list(
            thread_id=query.thread,
            namespace=query.namespace,
            run_id=query.run,
            status=query.status,
            after=query.cursor,
            last=query.limit + 1,
        )
    )
    shown = page[: query.limit]
    return EffectList(
        effects=tuple(map(_info, shown)), next_cursor=shown[-1].id if len(page) > query.limit else None
    )


@endpoint("GET", "/effects/{id}", tag="effects")
def get_effect(call: Call[None, None]) -> EffectInfo:
    """Return an effect: the call, its attempts, and its outcome."""
    return _info(call.store.effects.load(call.path["id"]))


@endpoint("GET", "/effects/{id}/changes", tag="effects")
def get_effect_changes(call: Call[None, None]) -> Changes:
    """Return what happened since a call was asked for: on the timeline of its thread, and in its files."""
    return call.store.effects.changes(call.path["id"])


@endpoint("POST", "/effects/{id}/decision", tag="effects")
def decide_effect(call: Call[None, EffectDecision]) -> EffectInfo:
    """Decide about an unknown effect; its thread goes on with the decision when it is resumed."""
    body, effects, effect_id = call.body, call.store.effects, call.path["id"]
    by = call.access.speaks_as(body.by)
    if body.decision == "happened":
        effect = effects.resolve(effect_id, happened=True, result=body.result, by=by, note=body.note)
    elif body.decision == "retry":
        effect = effects.retry(effect_id, by=by, note=body.note)
    else:
        effect = effects.abandon(effect_id, by=by, note=body.note)
    return _info(effect)


ENDPOINTS: Final = (list_effects, get_effect, get_effect_changes, decide_effect)


def _info(effect: Effect) -> EffectInfo:
    return EffectInfo(effect=effect, key=effect.key)
