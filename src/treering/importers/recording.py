"""A scribe: writes down below a run what the lines of a coding agent say, each thing once.

It is the common part of every format: messages, and stretches of time (tool calls, agents below agents) that
one line opens and another one closes. Live, a stretch is recorded when it begins; out of a file it is
recorded when its end is known, because a row of the journal never changes. **Invariant:** what has an id in
``known`` is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

from treering.core.batch import Draft
from treering.core.ids import MAX_ID_CHARS, check_id
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.runs.recorder import RowWriter
    from treering.runs.span import RunNode, Span
    from treering.store import Store


UNFINISHED: Final = "unfinished"
"""The status of a call that never got its result."""

IdOf = Callable[[str], str | None]
"""Makes an id out of what a line calls a thing; ``None`` for a new one each time."""

OnUsage = Callable[[str, int, str | None, "Usage"], None]
"""Told of the id, the time, the model and the tokens of every message, also of those that are known."""


class SessionRecorder:
    """Writes below one run. ``is_live`` says whether the lines come as things happen."""

    def __init__(
        self,
        run: RunNode,
        *,
        is_live: bool,
        known: AbstractSet[str] = frozenset(),
        id_of: IdOf = lambda name: name,
        on_usage: OnUsage | None = None,
    ) -> None:
        self.run = run
        self.messages = 0
        self.tools = 0
        self._is_live = is_live
        self._known = known
        self._id_of = id_of
        self._on_usage = on_usage
        self._open: dict[str, tuple[Span, int]] = {}
        self._places: dict[str, RunNode] = {}

    def message(
        self,
        role: str,
        content: Any,
        *,
        name: str,
        ts_us: int,
        place: RunNode | None = None,
        model: str | None = None,
        usage: Usage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """A message; ``name`` is what its line calls it."""
        if usage is not None and self._on_usage is not None:
            self._on_usage(self._id(name) or name, ts_us, model, usage)
        id_ = self._id(name)
        if id_ is not None and id_ in self._known:
            return
        (place or self.run).message(
            role, content, id=id_, ts_us=ts_us, model=model, usage=usage, metadata=metadata
        )
        self.messages += 1

    def used(self, usage: Usage, *, name: str, ts_us: int, model: str | None) -> None:
        """Tokens that no message tells of."""
        if self._on_usage is not None:
            self._on_usage(self._id(name) or name, ts_us, model, usage)
        id_ = self._id(name)
        if id_ is not None and id_ in self._known:
            return
        self.run.message("usage", None, id=id_, ts_us=ts_us, model=model, usage=usage)

    def open(
        self,
        name: str,
        label: str,
        *,
        ts_us: int,
        kind: str = "tool",
        place: RunNode | None = None,
        metadata: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> RunNode:
        """A call begins; the same one may be told of again. ``given`` may hold its ``input``."""
        if name in self._places:
            return self._places[name]
        above = place or self.run
        span = above.span(span_label(label), kind=kind, id=self._id(name) or None, metadata=metadata, **given)
        self._places[name] = span
        self._open[name] = span, ts_us
        if self._is_live:
            span.start(ts_us=ts_us)
        self.tools += kind == "tool"
        return span

    def close(self, name: str, *, ts_us: int, status: str = "ok", **given: Any) -> bool:
        """A call ends; ``given`` may hold its ``output``. Says whether it was open."""
        if name not in self._open:
            return False
        span, began_us = self._open.pop(name)
        if not self._is_live and (not span.id or span.id in self._known):
            return True
        if "output" in given:
            span.output = given["output"]
        if not self._is_live:
            span.start(ts_us=began_us)
        span.end(status=status, ts_us=max(ts_us, began_us))
        return True

    def span_of(self, name: str) -> RunNode | None:
        """The call of this name, open or not."""
        return self._places.get(name)

    @property
    def is_waiting(self) -> bool:
        """A call has no result yet."""
        return bool(self._open)

    def finish(self, ts_us: int) -> None:
        """No more lines will come: what is open stays without a result."""
        for name in list(self._open):
            self.close(name, ts_us=ts_us, status=UNFINISHED)

    def _id(self, name: str) -> str | None:
        return self._id_of(name)


def span_label(label: Any) -> str:
    """A name for a span out of whatever a line has."""
    text = " ".join(str(label).split())[:MAX_ID_CHARS]
    try:
        return check_id(text, "name")
    except InvalidInput:
        return "unnamed"


# -----------------------------------------------------------------------------------------------------------
# A notebook: takes the notes of runs that are over long since, and writes them in few commits.
#
# It stands where a recorder stands, so that importing writes the very rows that recording does. Its clock
# shows whatever time it is set to: that of the line which is being read.


_NOTES_A_COMMIT: Final = 400


class BatchRecorder:
    """Notes in the order in which they were taken. Also the clock of the runs that it is for."""

    def __init__(self) -> None:
        self.at_us = 0
        """The time that the clock shows."""
        self._notes: list[RowWriter] = []

    @property
    def id(self) -> None:
        """Nobody's process: whether such a run goes on, only its source knows."""
        return

    def now_us(self) -> int:
        """The time that was set."""
        return self.at_us

    def take(self, note: RowWriter) -> None:
        """A note to be written."""
        self._notes.append(note)

    def flush(self) -> None:
        """Nothing: `write` is what makes notes durable."""

    def __len__(self) -> int:
        return len(self._notes)

    def write(self, store: Store, *last: RowWriter, whole: bool = False) -> None:
        """Commit everything, a part at a time or as a ``whole``; ``last`` goes into the last commit."""
        notes, self._notes = [*self._notes, *last], []
        at_once = len(notes) if whole else _NOTES_A_COMMIT
        for start in range(0, len(notes), at_once or 1):
            draft = Draft(store.space)
            for note in notes[start : start + at_once]:
                note(draft)
            if not draft.is_empty:
                store.commit(draft)
