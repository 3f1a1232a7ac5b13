"""What this process remembers of a space between its commits, so that it need not ask again.

A scope keeps its number, and a body or object stays, as long as nothing is removed from the space; a ref or
list is where the last commit left it as long as nobody else has committed. The counters of the space tell
both: ``seq`` moves with every commit, ``scopes_dropped`` with every removal. (The time of the last commit is
compared as well: a server that was set back, and lost commits by that, may have come to the same ``seq``
again.)
**Invariant:** something is remembered only after the transaction that made it true has ended, and used only
under the lock, when the counters say that it holds.

Over a network the counters are not read first, as that would cost an exchange. There a commit is decided
from what is remembered, and its first statement makes the transaction fail if the counters are others
(`Current.advanced`). After such a miss the next commits ask again, until `PATIENCE` of them in a row have
found the space as this process left it: several writers of one space do not pay for guesses.

Numbers for commits are kept in reserve as well. They are taken under the lock, and given up as soon as the
counters are others, so within a space a later commit always has the greater number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.engines.relational.current import Current, ListState, RefState
    from treering.engines.relational.session import Session

SCOPES: Final = 10_000
STATES: Final = 4_096
"""How many scopes, and how many refs, lists, bodies and objects each, are remembered of a space at most."""

VALUE_BYTES: Final = 512
"""A ref that holds more is not remembered."""

PATIENCE: Final = 8
RESERVE: Final = 256
"""How many numbers of commits are taken ahead."""


def count_removal(session: Session, space: int) -> None:
    """Say, in the transaction that does it, that something changes otherwise than by a commit.

    From then on nobody uses what it remembers of the space, nor the numbers that it has in reserve.
    """
    session.run("UPDATE space SET scopes_dropped = scopes_dropped + 1 WHERE no = ?", (space,))


class Memory:
    """What is remembered of one space, and the counters at which it was so."""

    __slots__ = (
        "behind_no",
        "bodies",
        "commit_no",
        "commit_numbers",
        "committed_at_us",
        "counters_first",
        "doubts",
        "lists",
        "objects",
        "refs",
        "removals",
        "scopes",
        "seq",
    )

    def __init__(self, *, counters_first: bool) -> None:
        self.counters_first = counters_first
        self.seq: int = -1
        self.removals: int = -1
        self.committed_at_us: int = 0
        self.doubts = 0
        """How many commits more have to find everything as it was left before one is decided unasked."""
        self.behind_no = self.commit_no = 0
        """The number of the last commit here, and the one that was the greatest before it."""
        self.commit_numbers: list[int] = []
        self.scopes: dict[str, int] = {}
        self.refs: dict[str, RefState] = {}
        self.lists: dict[str, ListState] = {}
        self.bodies: set[tuple[str, int]] = set()
        self.objects: set[str] = set()

    def check(self, seq: int, committed_at_us: int, removals: int) -> None:
        """Forget what the counters of the locked space show to be out of date."""
        if (seq, committed_at_us, removals) == (self.seq, self.committed_at_us, self.removals):
            if self.doubts:
                self.doubts -= 1
            return
        if seq <= self.seq or removals != self.removals:
            self.scopes.clear()
            self.bodies.clear()
            self.objects.clear()
        if self.seq >= 0:
            self.doubts = PATIENCE
        self.refs.clear()
        self.lists.clear()
        self.commit_numbers = []
        self.seq, self.committed_at_us, self.removals = seq, committed_at_us, removals

    def keep(self, current: Current, batches: int) -> None:
        """Remember what a commit of so many batches that has come through left behind."""
        self.seq = -1  # until the rest is there: a fork or an interrupt may happen in between
        if len(self.scopes) > SCOPES:
            self.scopes.clear()
        self.scopes.update(current.scopes)
        if len(self.refs) > STATES or len(self.lists) > STATES:
            self.refs.clear()
            self.lists.clear()
        self.lists.update(current.lists)
        for name, state in current.refs.items():
            if state.value is None or len(state.value) <= VALUE_BYTES:
                self.refs[name] = state
            else:
                self.refs.pop(name, None)
        self.hold(current.bodies, current.objects)
        self.behind_no = current.commit_numbers[0] - 1
        self.commit_no = self.behind_no + current.written
        self.commit_numbers = current.commit_numbers[batches:]
        self.committed_at_us = current.committed_at_us
        self.seq = current.seq

    def hold(self, bodies: Iterable[tuple[str, int]], objects: Iterable[str]) -> None:
        """Remember that these are stored."""
        if len(self.bodies) > STATES:
            self.bodies.clear()
        if len(self.objects) > STATES:
            self.objects.clear()
        self.bodies.update(bodies)
        self.objects.update(objects)


class Remembered:
    """What is remembered of each space; ``counters_first`` where answers come at once."""

    def __init__(self, *, counters_first: bool) -> None:
        self._counters_first = counters_first
        self._spaces: dict[int, Memory] = {}

    def of(self, space: int) -> Memory:
        """What is remembered of a space."""
        memory = self._spaces.get(space)
        if memory is None:
            memory = self._spaces[space] = Memory(counters_first=self._counters_first)
        return memory

    def doubt_others(self, space: int) -> None:
        """Take nothing for granted that is remembered of other spaces: someone else has committed."""
        for number, memory in list(self._spaces.items()):
            if number != space:
                memory.seq = -1

    def forget(self, space: int) -> None:
        """Remember nothing of a space; a commit that is under way keeps what it has."""
        self._spaces.pop(space, None)
