"""The directory: which threads there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treering.core.clock import to_iso
from treering.core.pages import each_ref
from treering.views.asking import check_text
from treering.views.head_values import read_head
from treering.views.journal import HEADS, head_ref, heads_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine
    from treering.core.records import Ref


class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A thread as its head tells it, without reading any of its moments."""

    id: str
    namespace: str
    head: str
    step: int
    created_at_us: int
    updated_at_us: int

    @property
    def place(self) -> tuple[int, str, str, str]:
        """What the newest first are ordered by; no two threads have the same."""
        return self.updated_at_us, self.head, self.namespace, self.id

    @property
    def created_at(self) -> str:
        """When it was first saved, ISO 8601 with offset."""
        return to_iso(self.created_at_us)

    @property
    def updated_at(self) -> str:
        """When its head last moved, ISO 8601 with offset."""
        return to_iso(self.updated_at_us)


def list_threads(engine: Engine, space: str, *, namespace: str | None, prefix: str) -> list[ThreadInfo]:
    """The threads of a namespace (``None``: of all), newest first."""
    check_text("prefix", prefix)
    if namespace is not None:
        check_text("namespace", namespace)
    found = (_info(ref) for ref in _heads(engine, space, namespace, prefix))
    return sorted(
        (each for each in found if each.id.startswith(prefix)),
        key=lambda each: each.place,
        reverse=True,
    )


def thread_info(engine: Engine, space: str, thread_id: str, namespace: str) -> ThreadInfo | None:
    """One thread, or ``None`` when it was never saved."""
    name = head_ref(thread_id, namespace)
    ref = engine.refs(space, [name]).get(name)
    return None if ref is None else _info(ref)


def _heads(engine: Engine, space: str, namespace: str | None, prefix: str) -> Iterator[Ref]:
    wanted = HEADS if namespace is None else heads_prefix(namespace) + prefix
    return each_ref(engine, space, wanted)


def _info(ref: Ref) -> ThreadInfo:
    value = read_head(ref)
    return ThreadInfo(
        id=value.thread,
        namespace=value.namespace,
        head=value.checkpoint,
        step=value.step,
        created_at_us=value.first_us,
        updated_at_us=ref.changed_at_us,
    )
