"""The effects of an agent's tool calls: planned with the reply that asks for them, and each made once.

`ToolEffects` knows the effect of each pending call of a run; the thread stores that (`AgentRun`), so that
the next process finds it. Calls of tools with ``replay="safe"`` have no effect: they are simply made again.
Nor has any call of an agent whose conversations are not kept in a store.

An effect that is unknown is first put to the tool's probe, if it has one, and then to a person, as an
interrupt of the thread: ``approve`` means that the call did not happen and may be made, ``deny`` gives it up,
and ``edit`` says that it did happen, with the result that is given. Deciding with `Effects` works as well.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from treering.agent.messages import Call, Context, ToolCall
from treering.agent.tools import Tool, result_text
from treering.effects.effects import Attempt, Effect, Intent, Outcome, question_about
from treering.errors import InvalidInput, TreeringError

if TYPE_CHECKING:
    from treering.store import Store
    from treering.threads.diff import Changes

EffectSteps = Generator[Call, Any, Any]


class Recorded(msgspec.Struct, frozen=True):
    """The outcome of a call that is known already."""

    text: str
    is_error: bool


class ToolEffects:
    """The effects of the pending calls of one run. Its methods are steps for a driver."""

    def __init__(self, store: Store | None, *, thread_id: str | None, namespace: str, agent: str) -> None:
        self._effects = None if store is None else store.effects
        self._thread_id = thread_id
        self._namespace = namespace
        self._agent = agent
        self.ids: dict[str, str] = {}
        """The effect of each call, by the id of the call."""

    def new(self, calls: Iterable[ToolCall], tools: Mapping[str, Tool], run_id: str) -> list[Intent]:
        """Return the intents of calls that have none yet, and know them from now on."""
        if self._effects is None:
            return []
        intents: list[Intent] = []
        for call in calls:
            tool = tools.get(call.name)
            if tool is None or tool.replay == "safe" or call.problem is not None or call.id in self.ids:
                continue
            intents.append(
                Intent(
                    tool=call.name,
                    arguments=call.arguments,
                    replay=tool.replay,
                    takes_key=tool.takes_key,
                    call_id=call.id,
                    thread_id=self._thread_id,
                    namespace=self._namespace,
                    run_id=run_id,
                    agent=self._agent,
                )
            )
            self.ids[call.id] = intents[-1].id
        return intents

    def plan(self, intents: list[Intent]) -> EffectSteps:
        """Store intents whose checkpoint could not be saved."""
        if self._effects is not None and intents:
            yield Call(self._effects.plan, tuple(intents))

    def are_planned(self, intents: Sequence[Intent]) -> EffectSteps:
        """Whether intents were stored although saving their checkpoint failed; if not, forget them."""
        if self._effects is None or not intents:
            return True
        try:
            yield Call(self._effects.load, (intents[0].id,))
        except TreeringError:
            ids = {intent.id for intent in intents}
            self.ids = {call: effect for call, effect in self.ids.items() if effect not in ids}
            return False
        return True

    def key(self, call: ToolCall, run_id: str) -> str:
        """Return the idempotency key of a call."""
        return f"treering-{self.ids.get(call.id) or f'{run_id}-{call.id}'}"

    def resume(
        self, tool: Tool | None, call: ToolCall, context: Context, decision: Mapping[str, Any] | None
    ) -> EffectSteps:
        """Return what became of a call that an earlier process, or attempt, began.

        `Recorded` if the outcome is known, an `Attempt` if the call is to be made again, an `Effect` if a
        person has to decide; ``None`` if the call was never begun. ``decision`` is that of a person.
        """
        effect_id = self.ids.get(call.id)
        if effect_id is None or self._effects is None:
            return None
        effect: Effect = yield Call(self._effects.load, (effect_id,))
        if effect.status == "planned" and effect.attempt == 0:
            return None
        begun = yield from self.begin(call)
        if isinstance(begun, Effect):
            if tool is not None and (probe := tool.prober(context)) is not None:
                yield from self._probe(effect_id, probe, call)
            elif decision is not None:
                yield Call(partial(self._decide, effect_id, decision))
            else:
                return begun
            begun = yield from self.begin(call)
        return begun

    def begin(self, call: ToolCall, *, arguments: dict[str, Any] | None = None) -> EffectSteps:
        """Begin an attempt of a call's effect; see `resume` for what is returned.

        ``arguments`` are those that a person edited.
        """
        effect_id = self.ids.get(call.id)
        if effect_id is None or self._effects is None:
            return None
        begun = yield Call(partial(self._effects.begin, effect_id, arguments=arguments))
        if isinstance(begun, Attempt) or not begun.is_finished:
            return begun
        return Recorded(result_text(begun.result), begun.is_error)

    def abandon(self, call: ToolCall) -> EffectSteps:
        """Store that a call was denied, if it has an effect."""
        effect_id = self.ids.get(call.id)
        if effect_id is not None and self._effects is not None:
            yield Call(partial(self._effects.abandon, effect_id, note="the call was denied by the user"))

    def drop(self, call: ToolCall) -> EffectSteps:
        """Return what the model is told of a call that a cancelled run has left: its outcome, if it has one.

        What was never begun is given up; what nobody knows stays so, for a person to decide.
        """
        effect_id = self.ids.get(call.id)
        if effect_id is not None and self._effects is not None:
            effect: Effect = yield Call(self._effects.load, (effect_id,))
            if effect.status == "planned":
                note = "the call was not made: its run was cancelled"
                effect = yield Call(partial(self._effects.abandon, effect_id, note=note))
            if effect.status in ("done", "failed"):
                return Recorded(result_text(effect.result), effect.is_error)
            if effect.status != "abandoned":
                return Recorded(
                    "nobody knows whether this call was made: its run was cancelled while it was being made",
                    is_error=True,
                )
        return Recorded("the call was not made: the run was cancelled", is_error=True)

    def _probe(self, effect_id: str, probe: Any, call: ToolCall) -> EffectSteps:
        found = yield Call(probe, (call,))
        if found is not None and not isinstance(found, Outcome):
            raise InvalidInput(
                f"the probe of tool {call.name!r} returned {type(found).__name__}; "
                "return an Outcome, or None if it cannot tell"
            )
        if found is not None and found.happened is not None and self._effects is not None:
            yield Call(
                partial(
                    self._effects.resolve,
                    effect_id,
                    happened=found.happened,
                    result=found.result,
                    by="probe",
                )
            )

    def _decide(self, effect_id: str, decision: Mapping[str, Any]) -> Effect:
        effects: Any = self._effects
        if decision["decision"] == "approve":
            return effects.retry(effect_id)
        if decision["decision"] == "deny":
            return effects.abandon(effect_id)
        return effects.resolve(effect_id, happened=True, result=decision["payload"])

    def asked_about(self, pending: Any) -> str | None:
        """Return the effect that a pending interrupt asks about, if it asks about one."""
        for key in ("payload", "effect", "id"):
            pending = cast("Any", pending).get(key) if isinstance(pending, Mapping) else None
        return pending

    def is_decided(self, effect_id: str) -> bool:
        """Whether somebody has decided about an effect meanwhile."""
        return self._effects is not None and self._effects.load(effect_id).status != "unknown"

    def question(self, effect: Effect) -> EffectSteps:
        """Return what a person has to know about an unknown effect, and what happened since."""
        changes: Changes | None = None
        if self._effects is not None:
            changes = yield Call(self._effects.changes, (effect.id,))
        return question_about(effect) | ({} if changes is None else {"since": msgspec.to_builtins(changes)})


def leave(attempt: Attempt | None, error: BaseException) -> EffectSteps:
    """End an attempt whose call did not return: nobody knows what it did."""
    if attempt is not None:
        yield Call(partial(attempt.leave, note=f"{type(error).__name__}: {error}"), shielded=True)
