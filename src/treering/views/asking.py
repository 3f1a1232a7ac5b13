"""What a caller asks to save, checked before a hook or the store sees any of it.

A str is a sequence to Python, and so is a dict: without a look at them, ``messages="Hi"`` would be two
messages, and ``tags="draft"`` five tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from treering.core.intake import NUMBER_BITS
from treering.errors import InvalidInput
from treering.views.hooks import Saving

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
) -> Saving:
    """What will be saved, in lists and dicts of its own; `InvalidInput` for what is neither."""
    if note is not None and not isinstance(cast("object", note), str):
        raise InvalidInput(f"note is {_kind(note)}; give text")
    return Saving(
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
    """The metadata that moments are chosen by, as a dict."""
    return {} if metadata is None else _dict("metadata", metadata, "a dict")


def check_text(what: str, text: Any) -> str:
    """A text that is looked for; `InvalidInput` for what is none."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is {_kind(text)}; pass a str")
    return text


def check_count(what: str, count: int | None) -> None:
    """Raise `InvalidInput` for what is no number of messages or moments; ``None`` is for all."""
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
