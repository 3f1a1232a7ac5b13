"""Tool calls of any framework as effects, each of which happens once (see `treering.effects`).

`ToolEffects` is what the adapters share: it names the effect of a call, opens it, and stores its outcome,
from sync code and from a running event loop. A framework's adapter says how a call is made and what its
result is.

The name of an effect decides whether a call is a new one or the same as before the crash. Frameworks that
store the model's reply before they call its tools have a stable id for each call (`named`). The others ask
the model again, and its second reply has other ids; there, a call is recognised by its thread, tool and
arguments (`recognised`): it is the same as an earlier one whose result never reached the conversation.
**Invariant:** two processes that resume the same conversation compute the same name, so that only one of them
makes the call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, Final, cast, get_args

from treering.adapters.shared import Opened, StoreOrUrl, checked_namespace, thread_name
from treering.core.encoding import encode_json
from treering.effects.effects import Attempt, Effect, Intent, Replay
from treering.errors import InvalidInput, NotFound
from treering.runs.run import PARENT_VARIABLE
from treering.runs.span import current_node

IDEMPOTENCY_KEY: Final = "idempotency_key"

Probe = Callable[[Effect], Any]
"""Finds out whether a call happened: returns an `Outcome`, or ``None`` if it cannot tell; may be async."""

WasDelivered = Callable[[Effect], bool]
"""Whether the outcome of an effect is in the conversation."""


class ToolEffects:
    """The effects of the tools of one agent.

    ``replay`` says for each tool what to do with a call whose process died (see `Replay`), or for all of
    them; tools that it does not name are ``default``. ``probes`` are functions that find out, by tool.
    """

    def __init__(
        self,
        store: StoreOrUrl | None,
        *,
        replay: Replay | Mapping[str, Replay] | None = None,
        probes: Mapping[str, Probe] | None = None,
        namespace: str = "",
        agent: str | None = None,
        default: Replay = "once",
    ) -> None:
        given: Any = replay if replay is not None else {}
        by_tool: dict[str, Any] = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}
        self._default: Any = default if isinstance(given, Mapping) else given
        for each in (self._default, *by_tool.values()):
            if each not in get_args(Replay):
                raise InvalidInput(f"replay={each!r} is invalid; use {', '.join(get_args(Replay))}")
        self._replay = by_tool
        self._probes = dict(probes or {})
        self.namespace = checked_namespace(namespace)
        self._agent = agent
        self._opened = Opened(store)
        self._mine: set[str] = set()
        self._lock = threading.Lock()

    @property
    def effects(self) -> Any:
        """The effects of the store."""
        return self._opened.store.effects

    def close(self) -> None:
        """Close the store if it was opened here."""
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._opened.aclose()

    def replay_of(self, tool: str, declared: Replay | None = None) -> Replay:
        """Return what to do with calls of a tool; ``declared`` is what the tool itself says."""
        return self._replay.get(tool) or declared or self._default

    def intent(
        self,
        effect_id: str,
        tool: str,
        arguments: Any,
        *,
        replay: Replay,
        takes_key: bool,
        call_id: str | None = None,
        thread_id: str | None = None,
        namespace: str | None = None,
    ) -> Intent:
        """Return the intent of a call, which the current run makes: once that is cancelled, nobody does."""
        return Intent(
            id=effect_id,
            tool=tool,
            arguments=arguments,
            replay=replay,
            takes_key=takes_key,
            call_id=call_id,
            thread_id=None if thread_id is None else thread_name(thread_id, "thread id"),
            namespace=self.namespace if namespace is None else namespace,
            run_id=_current_run(),
            agent=self._agent,
        )

    def recognised(
        self, thread_id: str | None, tool: str, arguments: Any, *, was_delivered: WasDelivered
    ) -> str:
        """Return the name of the next call of a tool with these arguments in a thread.

        That of an earlier call whose outcome is not in the conversation, and that this process did not make;
        or else a new one.
        """
        base = named(self.namespace, thread_id or "", tool, arguments)
        with self._lock:
            number = self._first_free(base)
            while number > 0 and not self._is_over(f"{base}-{number - 1}", was_delivered):
                number -= 1
            while f"{base}-{number}" in self._mine:
                number += 1
            self._mine.add(f"{base}-{number}")
        return f"{base}-{number}"

    def open(self, intent: Intent) -> Attempt | Effect:
        """Begin an attempt of a call, or return its effect if the call is not to be made."""
        return self.effects.open(intent, probe=self._probes.get(intent.tool))

    async def aopen(self, intent: Intent) -> Attempt | Effect:
        """Async twin of `open`."""
        return await self._opened.bridge.call(self.open, intent)

    async def arun(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of the store in one of its threads, to its end even if the caller is cancelled."""
        bridge = self._opened.bridge
        return await bridge.settle(bridge.submit(function, *arguments))

    async def acall(
        self,
        intent: Intent,
        function: Callable[[Effect], Awaitable[Any]],
        *,
        plain: Callable[[Any], tuple[Any, bool]],
    ) -> Any | Effect:
        """Make a call unless its outcome is known; return what ``function`` returned, or the effect.

        ``plain`` returns the result as plain data, and whether it is an error.
        """
        begun = await self.aopen(intent)
        if isinstance(begun, Effect):
            return begun
        try:
            result = await function(begun.effect)
            value, is_error = plain(result)
        except BaseException as error:
            await self.arun(partial(begun.leave, note=f"{type(error).__name__}: {error}"))
            raise
        await self.arun(partial(begun.finish, value, is_error=is_error))
        return result

    def _is_over(self, effect_id: str, was_delivered: WasDelivered) -> bool:
        """Whether a later call of the same kind is another one."""
        if effect_id in self._mine:
            return True
        effect: Effect = self.effects.load(effect_id)
        return effect.is_finished and was_delivered(effect)

    def _first_free(self, base: str) -> int:
        """Return the number of effects whose names begin with this; they are numbered without gaps."""
        step = 1
        while self._exists(f"{base}-{step - 1}"):
            step *= 2
        low, high = step // 2, step - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._exists(f"{base}-{middle}") else (low, middle)
        return low

    def _exists(self, effect_id: str) -> bool:
        if effect_id in self._mine:
            return True
        try:
            return self.effects.load(effect_id).id == effect_id
        except NotFound:
            return False


def _current_run() -> str | None:
    """Return the run that is being recorded, or in a program of a sandbox, the sandbox's run."""
    node = current_node.get()
    return os.environ.get(PARENT_VARIABLE) or None if node is None else node.run_id


def named(*parts: Any) -> str:
    """Return the name of an effect that is determined by these values."""
    return sha256(encode_json(list(parts))).hexdigest()[:32]


def without_key(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool without the idempotency key, which the model must not choose."""
    properties = {key: value for key, value in schema["properties"].items() if key != IDEMPOTENCY_KEY}
    rest = dict(schema) | {"properties": properties}
    if "required" in schema:
        rest["required"] = [each for each in schema["required"] if each != IDEMPOTENCY_KEY]
    return rest


def takes_key(schema: Mapping[str, Any]) -> bool:
    """Whether a tool with this JSON schema has a parameter for the idempotency key."""
    properties: Any = schema.get("properties")
    return isinstance(properties, Mapping) and IDEMPOTENCY_KEY in properties
