"""Hooks: a user's own code around saving and loading a checkpoint.

They belong to the store, so that they fire the same whoever saves: our own loop, a saver, an adapter. A
hook before the save may change what is saved, or veto it; the others look on. A hook may be a coroutine
function: it is awaited, also where the save itself is synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from treering.errors import InvalidInput

HookName = Literal["pre_checkpoint_save", "post_checkpoint_save", "post_checkpoint_load"]
Hook = Callable[[Any], Any]

HOOK_NAMES: Final[tuple[HookName, ...]] = (
    "pre_checkpoint_save",
    "post_checkpoint_save",
    "post_checkpoint_load",
)


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is about to be saved; ``None`` stands for "as in the checkpoint before".

    A `pre_checkpoint_save` hook gets it and returns nothing to let it pass, ``False`` to veto, or a dict
    of fields to change (``{"metadata": {...}}``). ``messages`` is the whole conversation, or with ``appends``
    only what comes behind it; ``lists`` are the other list channels, whole; ``workspace`` is the folder whose
    files are kept with it.
    """

    thread_id: str
    namespace: str
    messages: list[Any] | None = None
    appends: bool = False
    lists: dict[str, list[Any]] = {}
    state: dict[str, Any] | None = None
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    tags: tuple[str, ...] = ()
    workspace: str | None = None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What the hooks after a save or a load get: the thread, and the moment that was saved or loaded."""

    thread_id: str
    namespace: str
    checkpoint: Any


class Hooks:
    """The hooks of one store."""

    def __init__(self) -> None:
        self._hooks: dict[HookName, list[Hook]] = {name: [] for name in HOOK_NAMES}

    def add(self, name: HookName, *hooks: Hook) -> None:
        """Register hooks; they run in the order in which they were added."""
        for hook in hooks:
            if not callable(hook):
                raise InvalidInput(f"{hook!r} is no hook for {name!r}; give a function")
        self._named(name).extend(hooks)

    def add_all(self, hooks: Mapping[HookName, list[Hook]]) -> None:
        """Register hooks by name."""
        for name, each in hooks.items():
            self.add(name, *each)

    def remove(self, name: HookName, hook: Hook) -> None:
        """Take a hook off again, if it is there."""
        if hook in self._named(name):
            self._named(name).remove(hook)

    def has(self, name: HookName) -> bool:
        """Whether any hook is registered under a name."""
        return bool(self._named(name))

    def _named(self, name: HookName) -> list[Hook]:
        if name not in self._hooks:
            raise InvalidInput(f"there is no hook {name!r}; use one of {', '.join(HOOK_NAMES)}")
        return self._hooks[name]

    def before_save(self, saving: Saving) -> Saving | None:
        """What will be saved after all hooks had their say; ``None`` when one of them vetoed."""
        for hook in self._hooks["pre_checkpoint_save"]:
            answer = _called(hook, saving)
            if answer is False:
                return None
            if answer:
                saving = _changed(saving, answer, hook)
        return saving

    async def abefore_save(self, saving: Saving) -> Saving | None:
        """As `before_save`, with every hook awaited in the caller's own loop."""
        for hook in self._hooks["pre_checkpoint_save"]:
            answer = await _awaited(hook, saving)
            if answer is False:
                return None
            if answer:
                saving = _changed(saving, answer, hook)
        return saving

    def after_save(self, saved: Saved) -> None:
        """A checkpoint is durable."""
        for hook in self._hooks["post_checkpoint_save"]:
            _called(hook, saved)

    def after_load(self, saved: Saved) -> None:
        """A checkpoint was loaded."""
        for hook in self._hooks["post_checkpoint_load"]:
            _called(hook, saved)

    async def aafter_save(self, saved: Saved) -> None:
        """As `after_save`, in the caller's own loop."""
        for hook in self._hooks["post_checkpoint_save"]:
            await _awaited(hook, saved)

    async def aafter_load(self, saved: Saved) -> None:
        """As `after_load`, in the caller's own loop."""
        for hook in self._hooks["post_checkpoint_load"]:
            await _awaited(hook, saved)


def _called(hook: Hook, told: Saving | Saved) -> Any:
    from treering.keyvalue.awaiting import call  # brings asyncio, which most stores never need

    return call(hook, told)


async def _awaited(hook: Hook, told: Saving | Saved) -> Any:
    from treering.keyvalue.awaiting import call_async

    return await call_async(hook, told)


def _changed(saving: Saving, answer: Any, hook: Hook) -> Saving:
    from treering.views.asking import asked  # what a hook asks for is checked as what a caller does

    name = getattr(hook, "__name__", hook)
    if not isinstance(answer, Mapping):
        raise InvalidInput(
            f"hook {name!r} returned {type(answer).__name__}; "
            "return nothing, False to veto, or a dict of fields to change"
        )
    fields = dict(cast("Mapping[str, Any]", answer))
    for place in ("thread_id", "namespace"):
        if fields.pop(place, getattr(saving, place)) != getattr(saving, place):
            raise InvalidInput(f"hook {name!r} changed {place}; save to the other thread itself")
    if unknown := sorted(map(str, fields.keys() - set(Saving.__struct_fields__))):
        raise InvalidInput(f"hook {name!r}: a checkpoint has no {', '.join(unknown)}")
    try:
        checked = asked(saving.thread_id, saving.namespace, **fields)
    except InvalidInput as error:
        raise InvalidInput(f"hook {name!r}: {error}") from None
    return msgspec.structs.replace(saving, **{field: getattr(checked, field) for field in fields})
