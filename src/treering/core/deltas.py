"""What a graph's step is made of beside its own content: the steps before it that it is read with.

A delta channel is not stored at every step: it is made of the last step that holds it whole and of what was
written on each one since. A fork begins as a copy of another thread's step, and what tasks wrote there is
its own. So a policy that keeps such a step has to keep those others as well. **Invariant:** whatever stays
can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class Made(msgspec.Struct, frozen=True, gc=False):
    """What a step's row says of it: its parent, what it is a copy of, and its channels."""

    parent: str | None
    copy_of: str | None
    open: frozenset[str]
    """Delta channels that it does not hold."""
    held: frozenset[str]
    """Channels that it holds whole, where others may need that."""


def also_needed(kept: Iterable[str], steps: Mapping[str, Made]) -> set[str]:
    """Those of the steps that kept ones are read with, and that are not kept themselves."""
    stays = set(kept)
    needed: set[str] = set()
    waiting = [each for each in stays if each in steps]
    while waiting:
        step = steps[waiting.pop()]
        for each in _ancestors_of(step, steps, stays):
            if each not in stays:
                stays.add(each)
                needed.add(each)
                waiting.append(each)
    return needed


def _ancestors_of(step: Made, steps: Mapping[str, Made], stays: set[str]) -> Iterable[str]:
    if step.copy_of is not None:
        yield step.copy_of
    missing, parent = step.open, step.parent
    while missing and parent is not None and (found := steps.get(parent)) is not None:
        is_kept = parent in stays
        yield parent
        missing -= found.held
        if is_kept and missing <= found.open:
            return  # it is kept with all that it needs itself
        parent = found.parent
