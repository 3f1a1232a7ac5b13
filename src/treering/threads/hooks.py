"""Hooks: a user's own code around saving and loading a checkpoint, and the request that it may change.

Hooks of a store run whatever saves: our own agent loop, a saver or an adapter. Hooks of a saver or an agent
run for what goes through it. A `pre_checkpoint_save` hook may change what is saved or veto it; the others
only observe. Every hook receives an object with ``thread_id`` and ``checkpoint``. A hook may be a coroutine
function; it is awaited even if the save itself is synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.core.batch import NUMBER_BITS
from treering.errors import InvalidInput, Vetoed

if TYPE_CHECKING:
    from pathlib import Path


COMPACTIONS: Final = "messages.compactions"
"""The list channel that holds the compactions of the messages (see `compaction`)."""

HookName = Literal["pre_checkpoint_save", "post_checkpoint_save", "post_checkpoint_load"]
Hook = Callable[[Any], Any]

HOOK_NAMES: Final[tuple[HookName, ...]] = (
    "pre_checkpoint_save",
    "post_checkpoint_save",
    "post_checkpoint_load",
)


class SaveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is about to be saved; ``None`` means "as in the previous checkpoint".

    A `pre_checkpoint_save` hook receives it and returns nothing to accept it, ``False`` to veto it (the save
    raises `Vetoed`), or a dict of fields to change (``{"metadata": {...}}``). ``messages`` is the whole
    conversation, or with ``appends`` only the new messages; ``lists`` are the other list channels, whole;
    ``workspace`` is the folder whose files are saved with it. `checkpoint` has all messages and the whole
    state in any case.
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
    step: int | None = None
    previous: Callable[[], Any] | None = None
    """Reads what the new checkpoint comes after: an object with ``messages``, ``state`` and ``step``."""

    @property
    def checkpoint(self) -> ProposedCheckpoint:
        """The checkpoint as it will be saved."""
        return ProposedCheckpoint(self)


class ProposedCheckpoint:
    """A checkpoint before it is saved: without an id and a time, otherwise as hooks after the save see it."""

    id: Final = None

    def __init__(self, request: SaveRequest) -> None:
        self._request = request
        self._previous: Any = None

    def __repr__(self) -> str:
        return f"ProposedCheckpoint(thread={self.thread_id!r}, step={self.step})"

    @property
    def thread_id(self) -> str:
        """The thread that it is for."""
        return self._request.thread_id

    @property
    def namespace(self) -> str:
        """The namespace of that thread; empty for none."""
        return self._request.namespace

    @property
    def step(self) -> int:
        """The number that it gets if nobody else saves to the thread meanwhile."""
        if self._request.step is not None:
            return self._request.step
        before = self._before()
        return 0 if before is None else before.step + 1

    @property
    def messages(self) -> list[Any]:
        """The whole conversation."""
        given = self._request.messages
        if given is not None and not self._request.appends:
            return given
        before = self._before()
        return [*([] if before is None else before.messages), *(given or ())]

    @property
    def state(self) -> dict[str, Any]:
        """All state values."""
        if self._request.state is not None:
            return self._request.state
        before = self._before()
        return {} if before is None else dict(before.state)

    @property
    def pending_interrupt(self) -> Any:
        """What the agent waits for a person to decide, or ``None``."""
        return self._request.pending_interrupt

    @property
    def metadata(self) -> dict[str, Any]:
        """The writer's own data about it."""
        return self._request.metadata

    @property
    def note(self) -> str | None:
        """The writer's description of it."""
        return self._request.note

    @property
    def tags(self) -> tuple[str, ...]:
        """The writer's tags."""
        return tuple(self._request.tags)

    def _before(self) -> Any:
        if self._previous is None and self._request.previous is not None:
            self._previous = self._request.previous()
        return self._previous


class CheckpointEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook after a save or a load receives: the thread, and the checkpoint."""

    thread_id: str
    namespace: str
    checkpoint: Any


class Hooks:
    """The hooks of one store, saver or agent."""

    def __init__(self) -> None:
        self._hooks: dict[HookName, list[Hook]] = {name: [] for name in HOOK_NAMES}

    def add(self, name: HookName, *hooks: Hook) -> None:
        """Register hooks. They run in the order in which they were added."""
        for hook in hooks:
            if not callable(hook):
                raise InvalidInput(f"hook {hook!r} for {name!r} is not callable; give a function")
        self._named(name).extend(hooks)

    def remove(self, name: HookName, hook: Hook) -> None:
        """Unregister a hook, if it is registered."""
        if hook in self._named(name):
            self._named(name).remove(hook)

    def has(self, name: HookName) -> bool:
        """Return whether any hook is registered under a name."""
        return bool(self._named(name))

    def _named(self, name: HookName) -> list[Hook]:
        if name not in self._hooks:
            raise InvalidInput(f"unknown hook {name!r}; use one of {', '.join(HOOK_NAMES)}")
        return self._hooks[name]

    def before_save(self, request: SaveRequest) -> SaveRequest:
        """Run the hooks before a save; return the request as they changed it. Raise `Vetoed` for a veto."""
        for hook in self._hooks["pre_checkpoint_save"]:
            answer = _call(hook, request)
            if answer is False:
                name = getattr(hook, "__name__", hook)
                raise Vetoed(f"hook {name!r} vetoed the save to thread {request.thread_id!r}")
            if answer:
                request = _changed(request, answer, hook)
        return request

    def after_save(self, event: CheckpointEvent) -> None:
        """Run the hooks after a checkpoint became durable."""
        for hook in self._hooks["post_checkpoint_save"]:
            _call(hook, event)

    def after_load(self, event: CheckpointEvent) -> None:
        """Run the hooks after a checkpoint was loaded."""
        for hook in self._hooks["post_checkpoint_load"]:
            _call(hook, event)


HooksLike = Hooks | Mapping[HookName, Hook | Sequence[Hook]]
"""`Hooks`, or hooks by name: ``{"post_checkpoint_save": [notify]}``."""


def as_hooks(hooks: HooksLike | None) -> Hooks:
    """Return hooks that are given by name as an object that more can be added to."""
    if isinstance(hooks, Hooks):
        return hooks
    given: Any = hooks or {}
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"hooks is of type {type(given).__name__}; give a dict of functions, "
            "{'post_checkpoint_save': notify}, or the hooks of a store"
        )
    made = Hooks()
    for name, each in cast("Mapping[Any, Any]", given).items():
        made.add(
            name, *([each] if callable(each) else _list(f"hooks[{name!r}]", each, "a function, or a list"))
        )
    return made


def _call(hook: Hook, argument: SaveRequest | CheckpointEvent) -> Any:
    from treering.sync_async import call  # imports asyncio, which most stores never need

    return call(hook, argument)


def _changed(request: SaveRequest, answer: Any, hook: Hook) -> SaveRequest:
    name = getattr(hook, "__name__", hook)
    if not isinstance(answer, Mapping):
        raise InvalidInput(
            f"hook {name!r} returned {type(answer).__name__}; "
            "return nothing, False to veto, or a dict of fields to change"
        )
    fields = dict(cast("Mapping[str, Any]", answer))
    for field, instead in _FIXED.items():
        if fields.pop(field, getattr(request, field)) != getattr(request, field):
            raise InvalidInput(f"hook {name!r} changed {field}; {instead}")
    if unknown := sorted(map(str, fields.keys() - set(SaveRequest.__struct_fields__))):
        raise InvalidInput(f"hook {name!r} returned unknown fields: {', '.join(unknown)}")
    try:
        checked = save_request(request.thread_id, request.namespace, **fields)
    except InvalidInput as error:
        raise InvalidInput(f"hook {name!r}: {error}") from None
    return msgspec.structs.replace(request, **{field: getattr(checked, field) for field in fields})


_FIXED: Final = {
    "thread_id": "save to the other thread itself",
    "namespace": "save to the other thread itself",
    "step": "the writer numbers the steps",
    "previous": "the writer decides what comes before",
}
# Validation, before a hook or the store sees anything. Python takes a str for a sequence, and a dict as well:
# unchecked, ``messages="Hi"`` would be two messages, and ``tags="draft"`` five tags.
_NOT_LISTS: Final = (str, bytes, Mapping)


def save_request(
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
    step: int | None = None,
    previous: Callable[[], Any] | None = None,
) -> SaveRequest:
    """Validate what a caller wants to save, and copy it into lists and dicts of its own."""
    if note is not None and not isinstance(cast("object", note), str):
        raise InvalidInput(f"note is {_type_name(note)}; give text")
    return SaveRequest(
        thread_id=thread_id,
        namespace=namespace,
        messages=None if messages is None else _list("messages", messages, "a list of messages"),
        appends=appends,
        lists=_lists(lists) if lists else {},
        state=None if state is None else _by_name("state", state),
        pending_interrupt=pending_interrupt,
        metadata=_dict("metadata", metadata, "a dict") if metadata else {},
        note=note,
        tags=check_tags(tags) if tags else (),
        workspace=None if workspace is None else str(workspace),
        step=step,
        previous=previous,
    )


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return tags as a tuple. Raise `InvalidInput` for a bare str, or for items that are no str."""
    listed = _list("tags", tags, "a tuple of tags, ('release',)")
    for tag in listed:
        if not isinstance(tag, str):
            raise InvalidInput(f"tags has {tag!r}, {_type_name(tag)}; give each as a str")
    return tuple(listed)


def check_metadata_filter(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata that checkpoints are filtered by, as a dict."""
    return {} if metadata is None else _dict("metadata", metadata, "a dict")


def check_text(what: str, text: Any) -> str:
    """Return a text. Raise `InvalidInput` for anything else."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is {_type_name(text)}; pass a str")
    return text


def check_count(what: str, count: int | None) -> None:
    """Raise `InvalidInput` unless this is a number of messages or checkpoints, or ``None`` (all)."""
    if count is not None and (not isinstance(cast("object", count), int) or count < 0):
        raise InvalidInput(f"{what} is {count!r}; give a number, 0 or more")


def check_step(step: int | None) -> None:
    """Raise `InvalidInput` unless this can be the number of a step, or ``None`` (the next one)."""
    if step is not None and (type(step) is not int or step < 0 or step >> NUMBER_BITS):
        raise InvalidInput(f"step={step!r} is not acceptable; give a whole number, 0 or more")


def check_choice(value: str, choices: tuple[str, ...], name: str = "on_conflict") -> None:
    """Raise `InvalidInput` unless an argument is one of the choices."""
    if value not in choices:
        raise InvalidInput(f"{name} is {value!r}; use one of {', '.join(choices)}")


def _list(what: str, items: Any, expected: str) -> list[Any]:
    usual = type(items) is list or type(items) is tuple  # then there is no need to ask two ABCs
    if not usual and (not isinstance(items, Iterable) or isinstance(items, _NOT_LISTS)):
        raise InvalidInput(f"{what} is {_type_name(items)}; give {expected}")
    return list(cast("Iterable[Any]", items))


def _lists(lists: Any) -> dict[str, list[Any]]:
    return {name: _list(name, items, "a list") for name, items in _by_name("lists", lists).items()}


def _by_name(what: str, values: Any) -> dict[str, Any]:
    named = _dict(what, values, "a dict of state values" if what == "state" else "a dict of lists")
    if what == "lists" and COMPACTIONS in named:
        raise InvalidInput(f"lists has {COMPACTIONS!r}, which is reserved; use thread.compact()")
    for name in named:
        if not isinstance(cast("object", name), str):
            raise InvalidInput(f"{what} has the name {name!r}, {_type_name(name)}; give it a str")
    return named


def _dict(what: str, values: Any, expected: str) -> dict[Any, Any]:
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{what} is {_type_name(values)}; give {expected}")
    return dict(cast("Mapping[Any, Any]", values))


def _type_name(value: Any) -> str:
    return f"a {type(value).__name__}"
