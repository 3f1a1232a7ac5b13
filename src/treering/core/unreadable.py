"""Lists that show the rest when one entry cannot be read.

An entry of a list is a ref, and a ref may be damaged, or written by something else. Whoever asks for that
entry gets `Corrupt`. Whoever asks for the list gets all others, and is told of this one: by a warning in
Python, or in what `collecting` returns to a command or a route, which tells the user. **Invariant:** no entry
is left out without a word.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

import msgspec

from treering.errors import Corrupt

if TYPE_CHECKING:
    from treering.core.records import Ref

T = TypeVar("T")


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is missing from a list, and why."""

    name: str
    problem: str


class UnreadableWarning(UserWarning):
    """An entry of a list cannot be read, and is not in it."""


_collected: ContextVar[dict[str, Unreadable] | None] = ContextVar("treering_unreadable", default=None)


def readable(refs: Iterable[Ref], read: Callable[[Ref], T]) -> Iterator[T]:
    """Yield what ``read`` returns for each ref, without those that it raises `Corrupt` for."""
    for ref in refs:
        try:
            value = read(ref)
        except Corrupt as error:
            note_unreadable(ref.name, error)
        else:
            yield value


def note_unreadable(name: str, error: Corrupt) -> None:
    """Tell of an entry that is left out of a list."""
    found = _collected.get()
    if found is not None:
        found[name] = Unreadable(name=name, problem=str(error))
    else:
        warnings.warn(f"{name!r} is left out of the list: {error}", UnreadableWarning, stacklevel=3)


@contextmanager
def collecting() -> Generator[dict[str, Unreadable]]:
    """Collect what is left out of lists in this block, by name, instead of warning."""
    found: dict[str, Unreadable] = {}
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)
