"""Record the sessions of coding agents: what all formats have in common.

`SessionRecorder` records messages, and spans (tool calls, subagents) that one line opens and another one
closes. Live, a span is recorded when it starts; from a file it is recorded when its end is known, because a
row of the journal never changes. **Invariant:** what has an id in ``known`` is not written again.

`BatchRecorder` takes the place of a `Recorder` for runs that ended long ago and writes them in a few commits,
so importing writes the same rows as recording. It is also their clock, which shows the time of the line that
is being read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import sha256
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
"""The status of a call without a result."""

IdOf = Callable[[str], str | None]
"""Returns the id for the name that a line uses; ``None`` for a new id each time."""

OnUsage = Callable[[str, int, str | None, "Usage"], None]
"""Called with id, time, model and tokens of every message, also of known ones."""


class SessionRecorder:
    """Records below one run. ``is_live``: the lines arrive as things happen."""

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
        self._spans: dict[str, Span] = {}

    def message(
        self,
        role: str,
        content: Any,
        *,
        name: str,
        ts_us: int,
        parent: RunNode | None = None,
        model: str | None = None,
        usage: Usage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a message; ``name`` is what its line calls it."""
        if usage is not None and self._on_usage is not None:
            self._on_usage(self._id(name) or name, ts_us, model, usage)
        id_ = self._id(name)
        if id_ is not None and id_ in self._known:
            return
        (parent or self.run).message(
            role, content, id=id_, ts_us=ts_us, model=_model(model), usage=usage, metadata=metadata
        )
        self.messages += 1

    def usage(self, usage: Usage, *, name: str, ts_us: int, model: str | None) -> None:
        """Record tokens that belong to no message."""
        if self._on_usage is not None:
            self._on_usage(self._id(name) or name, ts_us, model, usage)
        id_ = self._id(name)
        if id_ is not None and id_ in self._known:
            return
        self.run.message("usage", None, id=id_, ts_us=ts_us, model=_model(model), usage=usage)

    def open(
        self,
        name: str,
        label: str,
        *,
        ts_us: int,
        kind: str = "tool",
        parent: RunNode | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RunNode:
        """Open a span, unless it is known by this name. ``options`` may have its ``input``."""
        if name in self._spans:
            return self._spans[name]
        span = (parent or self.run).span(
            span_label(label), kind=kind, id=self._id(name) or None, metadata=metadata, **options
        )
        self._spans[name] = span
        self._open[name] = span, ts_us
        if self._is_live:
            span.start(ts_us=ts_us)
        self.tools += kind == "tool"
        return span

    def close(self, name: str, *, ts_us: int, status: str = "ok", **options: Any) -> bool:
        """Close a span; return whether it was open. ``options`` may have its ``output``."""
        if name not in self._open:
            return False
        span, started_us = self._open.pop(name)
        if not self._is_live and (not span.id or span.id in self._known):
            return True
        if "output" in options:
            span.output = options["output"]
        if not self._is_live:
            span.start(ts_us=started_us)
        span.end(status=status, ts_us=max(ts_us, started_us))
        return True

    def span_of(self, name: str) -> RunNode | None:
        """Return the span of this name, open or closed."""
        return self._spans.get(name)

    @property
    def is_waiting(self) -> bool:
        """Whether a span is open."""
        return bool(self._open)

    def finish(self, ts_us: int) -> None:
        """Close open spans as unfinished, at the end of the lines."""
        for name in list(self._open):
            self.close(name, ts_us=ts_us, status=UNFINISHED)

    def _id(self, name: str) -> str | None:
        id_ = self._id_of(name)
        return id_ if id_ is None else valid_id(id_)


def valid_id(id: str) -> str:
    """Return an id of another tool as it is, or a hash of it if no row can have it."""
    try:
        return check_id(id, "id")
    except InvalidInput:
        return f"id-{sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _model(name: str | None) -> str | None:
    return None if name is None else span_label(name)


def span_label(label: Any) -> str:
    """Return a valid name for a span, made from whatever a line has."""
    text = " ".join(str(label).split())[:MAX_ID_CHARS]
    try:
        return check_id(text, "name")
    except InvalidInput:
        return "unnamed"


_WRITES_PER_COMMIT: Final = 400


class BatchRecorder:
    """Collects the rows of imported runs in order, and commits them with `write`. See `RecordSink`."""

    def __init__(self) -> None:
        self.at_us = 0
        """The time that the clock shows."""
        self._writes: list[RowWriter] = []

    @property
    def id(self) -> None:
        """``None``: no process keeps these runs alive."""
        return

    def now_us(self) -> int:
        """Return the time that was set."""
        return self.at_us

    def put(self, write: RowWriter) -> None:
        """Collect rows."""
        self._writes.append(write)

    def flush(self) -> None:
        """Do nothing; `write` makes rows durable."""

    def __len__(self) -> int:
        return len(self._writes)

    def write(self, store: Store, *last: RowWriter, whole: bool = False) -> None:
        """Commit everything, in parts or as a ``whole``; ``last`` goes into the last commit."""
        writes, self._writes = [*self._writes, *last], []
        per_commit = len(writes) if whole else _WRITES_PER_COMMIT
        for start in range(0, len(writes), per_commit or 1):
            draft = Draft(store.space)
            for write in writes[start : start + per_commit]:
                write(draft)
            if not draft.is_empty:
                store.commit(draft)
