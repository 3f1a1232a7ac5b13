"""What can be saved, and how a caller may say it: by name, as a dict, or as a checkpoint that was loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from treering.core.ids import check_id
from treering.core.retention import Keep
from treering.errors import InvalidInput
from treering.savers.checkpoint import Checkpoint
from treering.savers.shelf import Writing
from treering.views.asking import asked, check_step


class Fields(TypedDict, total=False):
    """What can be saved; ``messages`` and ``state`` that are left out stay as they were."""

    thread_id: str
    messages: Sequence[Any] | None
    state: Mapping[str, Any] | None
    pending_interrupt: Any
    metadata: Mapping[str, Any] | None
    note: str | None
    tags: Sequence[str]
    step: int | None
    expect: str | None


def writing_of(
    checkpoint: Checkpoint | Mapping[str, Any] | None, fields: Mapping[str, Any], namespace: str
) -> Writing:
    """The checkpoint to be written; fields by name win."""
    given = {**_given(checkpoint, namespace), **fields}
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise InvalidInput(f"a checkpoint has no {', '.join(unknown)}; it has {', '.join(_FIELDS)}")
    if "thread_id" not in given:
        raise InvalidInput("save needs a thread_id: save(thread_id='conversation-1', messages=[...])")
    step = given.get("step")
    check_step(step)
    content: dict[str, Any] = {name: given[name] for name in _CONTENT if name in given}
    saving = asked(checked(given["thread_id"]), namespace, **content)
    return Writing(
        thread_id=saving.thread_id,
        messages=saving.messages,
        state=saving.state,
        pending_interrupt=saving.pending_interrupt,
        metadata=saving.metadata,
        note=saving.note,
        tags=saving.tags,
        step=step,
        expect=given.get("expect"),
    )


def checked(thread_id: str) -> str:
    """The thread id if it can be one."""
    return check_id(thread_id, "thread id")


def checked_keep(keep: Any) -> Keep | None:
    """The retention, if it is one."""
    if keep is None or isinstance(keep, Keep):
        return keep
    raise InvalidInput(f"keep is of type {type(keep).__name__}; give treering.Keep(last=50), or leave it out")


def checked_namespace(namespace: str) -> str:
    """The namespace if it can be one; empty stands for none."""
    return check_id(namespace, "namespace") if namespace else ""


def _given(checkpoint: Checkpoint | Mapping[str, Any] | None, namespace: str) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    if isinstance(checkpoint, Checkpoint):
        return {name: getattr(checkpoint, name) for name in _OF_A_LOADED_ONE}
    if not isinstance(cast("object", checkpoint), Mapping):
        raise InvalidInput(f"{type(checkpoint).__name__} is no checkpoint; give fields by name, or a dict")
    given = {name: value for name, value in checkpoint.items() if name not in _OF_THE_SAVER}
    if (checkpoint.get("namespace") or namespace) != namespace:
        raise InvalidInput(
            f"this saver is for namespace {namespace!r}, the checkpoint is of {checkpoint['namespace']!r}; "
            "save it with in_namespace(...)"
        )
    return given


_FIELDS: Final = tuple(Fields.__annotations__)
_CONTENT: Final = ("messages", "state", "pending_interrupt", "metadata", "note", "tags")
_OF_A_LOADED_ONE: Final = ("thread_id", *_CONTENT)
_OF_THE_SAVER: Final = frozenset({"id", "parent_id", "namespace", "created_at", "updated_at"})
