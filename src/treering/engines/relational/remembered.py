"""What this process remembers of a space between its commits, so that it need not ask again.

A scope keeps its number as long as nothing is removed from the space, and a ref or list is where the last
commit left it as long as nobody else has committed. The counters of the space tell both: ``seq`` moves with
every commit, ``scopes_dropped`` with every removal. **Invariant:** something is remembered only after the
transaction that made it true has ended, and used only under the lock, when the counters say that it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from treering.engines.relational.current import Current, ListState, RefState
    from treering.engines.relational.session import Session

SCOPES: Final = 10_000
STATES: Final = 4_096
"""How many scopes, and how many refs and lists each, are remembered of a space at most."""

VALUE_BYTES: Final = 512
"""A ref that holds more is not remembered."""


def count_removal(session: Session, space: int) -> None:
    """Say, in the transaction that does it, that scopes, refs or lists change otherwise than by a commit."""
    session.run("UPDATE space SET scopes_dropped = scopes_dropped + 1 WHERE no = ?", (space,))


class Memory:
    """What is remembered of one space, and the counters at which it was so."""

    __slots__ = ("has_states", "lists", "refs", "removals", "scopes", "seq")

    def __init__(self, *, has_states: bool) -> None:
        self.has_states = has_states
        self.seq = -1
        self.removals = -1
        self.scopes: dict[str, int] = {}
        self.refs: dict[str, RefState] = {}
        self.lists: dict[str, ListState] = {}

    def check(self, seq: int, removals: int) -> bool:
        """Forget what the counters of the locked space show to be out of date; whether scopes were not."""
        is_whole = removals == self.removals
        if not is_whole:
            self.scopes.clear()
        if seq != self.seq or not is_whole:
            self.refs.clear()
            self.lists.clear()
        self.seq, self.removals = seq, removals
        return is_whole

    def keep(self, current: Current) -> None:
        """Remember what a commit that has come through left behind."""
        if len(self.scopes) > SCOPES:
            self.scopes.clear()
        self.scopes.update(current.scopes)
        if not self.has_states:
            return
        self.seq = current.seq
        if len(self.refs) > STATES or len(self.lists) > STATES:
            self.refs.clear()
            self.lists.clear()
        self.lists.update(current.lists)
        for name, state in current.refs.items():
            if state.value is None or len(state.value) <= VALUE_BYTES:
                self.refs[name] = state
            else:
                self.refs.pop(name, None)


class Remembered:
    """What is remembered of each space; without ``states``, only the numbers of scopes.

    States are worth remembering where a question costs as much as the rest of a commit. Over a network,
    where all questions travel together, a memory that others make worthless would cost an exchange.
    """

    def __init__(self, *, states: bool) -> None:
        self._states = states
        self._spaces: dict[int, Memory] = {}

    def of(self, space: int) -> Memory:
        """What is remembered of a space."""
        memory = self._spaces.get(space)
        if memory is None:
            memory = self._spaces[space] = Memory(has_states=self._states)
        return memory
