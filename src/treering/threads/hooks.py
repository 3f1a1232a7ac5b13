"""Hooks: a user's own code around saving and loading a checkpoint.

They belong to the store, so that they fire the same whoever saves: our own loop, a saver, an adapter. A
hook before the save may change what is saved, or veto it; the others look on. A hook may be a coroutine
function: it is awaited, also where the save itself is synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.core.batch import NUMBER_BITS
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


HookName = Literal["pre_checkpoint_save", "post_checkpoint_save", "post_checkpoint_load"]
Hook = Callable[[Any], Any]

HOOK_NAMES: Final[tuple[HookName, ...]] = (
    "pre_checkpoint_save",
    "post_checkpoint_save",
    "post_checkpoint_load",
)


class SaveRequest(msgspec.Struct, frozen=True, kw_only=True):
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
    """What the hooks after a save or a load get: the thread, and the checkpoint that was saved or loaded."""

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

    def before_save(self, saving: SaveRequest) -> SaveRequest | None:
        """What will be saved after all hooks had their say; ``None`` when one of them vetoed."""
        for hook in self._hooks["pre_checkpoint_save"]:
            answer = _called(hook, saving)
            if answer is False:
                return None
            if answer:
                saving = _changed(saving, answer, hook)
        return saving

    async def abefore_save(self, saving: SaveRequest) -> SaveRequest | None:
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


def _called(hook: Hook, told: SaveRequest | Saved) -> Any:
    from treering.sync_async import call  # brings asyncio, which most stores never need

    return call(hook, told)


async def _awaited(hook: Hook, told: SaveRequest | Saved) -> Any:
    from treering.sync_async import call_async

    return await call_async(hook, told)


def _changed(saving: SaveRequest, answer: Any, hook: Hook) -> SaveRequest:

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
    if unknown := sorted(map(str, fields.keys() - set(SaveRequest.__struct_fields__))):
        raise InvalidInput(f"hook {name!r}: a checkpoint has no {', '.join(unknown)}")
    try:
        checked = asked(saving.thread_id, saving.namespace, **fields)
    except InvalidInput as error:
        raise InvalidInput(f"hook {name!r}: {error}") from None
    return msgspec.structs.replace(saving, **{field: getattr(checked, field) for field in fields})


# -----------------------------------------------------------------------------------------------------------
# What a caller asks to save, checked before a hook or the store sees any of it.
#
# A str is a sequence to Python, and so is a dict: without a look at them, ``messages="Hi"`` would be two
# messages, and ``tags="draft"`` five tags.


_USUAL: Final = frozenset({list, tuple})
_NOT_LISTS: Final = (str, bytes, Mapping)


def asked(
    thread_id: str,
    namespace: str,
    *,
    messages: Sequence[Any] | None = None,
    appends: bool = False,
    lists: Mapping[str, Sequence[Any]] | None = None,
    state: Mapping[str, Any] | None = None,
    pending_interrupt: Any = None,
    metadata: Mapping[str, Any] | None = None,
    note: str | None = None,
    tags: Sequence[str] = (),
    workspace: str | Path | None = None,
) -> SaveRequest:
    """What will be saved, in lists and dicts of its own; `InvalidInput` for what is neither."""
    if note is not None and not isinstance(cast("object", note), str):
        raise InvalidInput(f"note is {_kind(note)}; give text")
    return SaveRequest(
        thread_id=thread_id,
        namespace=namespace,
        messages=None if messages is None else _listed("messages", messages, "a list of messages"),
        appends=appends,
        lists=_all_listed(lists) if lists else {},
        state=None if state is None else _by_name("state", state),
        pending_interrupt=pending_interrupt,
        metadata=_dict("metadata", metadata, "a dict") if metadata else {},
        note=note,
        tags=check_tags(tags) if tags else (),
        workspace=None if workspace is None else str(workspace),
    )


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags as a tuple; `InvalidInput` for a bare text, and for what is no text in it."""
    listed = _listed("tags", tags, "a tuple of tags, ('release',)")
    for tag in listed:
        if not isinstance(tag, str):
            raise InvalidInput(f"tags has {tag!r}, {_kind(tag)}; give each as a str")
    return tuple(listed)


def check_wanted(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata that checkpoints are chosen by, as a dict."""
    return {} if metadata is None else _dict("metadata", metadata, "a dict")


def check_text(what: str, text: Any) -> str:
    """A text that is looked for; `InvalidInput` for what is none."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is {_kind(text)}; pass a str")
    return text


def check_count(what: str, count: int | None) -> None:
    """Raise `InvalidInput` for what is no number of messages or checkpoints; ``None`` is for all."""
    if count is not None and (not isinstance(cast("object", count), int) or count < 0):
        raise InvalidInput(f"{what} is {count!r}; give a number, 0 or more")


def check_step(step: int | None) -> None:
    """Raise `InvalidInput` for a step that cannot be one; ``None`` is for the next one."""
    if step is not None and (type(step) is not int or step < 0 or step >> NUMBER_BITS):
        raise InvalidInput(f"step={step!r} is not acceptable; give a whole number from 0 on")


def check_choice(given: str, choices: tuple[str, ...]) -> None:
    """Raise `InvalidInput` for an ``on_conflict`` that is none of the choices."""
    if given not in choices:
        raise InvalidInput(f"on_conflict is {given!r}; use one of {', '.join(choices)}")


def _listed(what: str, items: Any, wanted: str) -> list[Any]:
    if type(items) is list or type(items) is tuple:  # the ordinary case, without a question to two ABCs
        return list(cast("Iterable[Any]", items))
    if type(items) not in _USUAL and (not isinstance(items, Iterable) or isinstance(items, _NOT_LISTS)):
        raise InvalidInput(f"{what} is {_kind(items)}; give {wanted}")
    return list(cast("Iterable[Any]", items))


def _all_listed(lists: Any) -> dict[str, list[Any]]:
    return {name: _listed(name, items, "a list") for name, items in _by_name("lists", lists).items()}


def _by_name(what: str, values: Any) -> dict[str, Any]:
    named = _dict(what, values, "a dict of state values" if what == "state" else "a dict of lists")
    for name in named:
        if not isinstance(cast("object", name), str):
            raise InvalidInput(f"{what} has the name {name!r}, {_kind(name)}; give it a str")
    return named


def _dict(what: str, values: Any, wanted: str) -> dict[Any, Any]:
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{what} is {_kind(values)}; give {wanted}")
    return dict(cast("Mapping[Any, Any]", values))


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
