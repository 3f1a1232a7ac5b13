"""Traces that are arriving: what is known of each, so that its next spans find their place.

A trace is a run. Its spans come in any order and in many requests, children mostly before their parents, so
the run is put together bit by bit: it has begun when its first span did, it has an end when a span without a
parent here has ended, and spans that come later still count. What is remembered can be read back from the
journal at any time, so it may be forgotten at any time: only the traces of late are kept in memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from treering.core.batch import ABSENT, Event
from treering.core.encoding import encode_json
from treering.core.ids import RUN_MOVED, thread_key
from treering.core.paging import each_record
from treering.core.query import EventQuery
from treering.runs.run import RUN, RUNNING, RunInfo, run_info, run_ref, run_scope, write_listing
from treering.runs.span import ERROR, OK, OPEN, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from treering.core.batch import Draft, Expect
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref
    from treering.runs.otlp.records import Source

UNFINISHED: Final = "unfinished"
"""The status of a run that went quiet before anything said that it was over."""
SOURCE: Final = "otlp"
_SPANS: Final = 20_000
"""Spans that are remembered, of all traces together."""
_PAGE: Final = 1000
_SOURCES_SIZE: Final = 8_000
"""What a run says of who sent its spans; senders beyond that are told with each span."""


class Trace:
    """A run that is arriving."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.info: RunInfo | None = None
        self.version: Expect = ABSENT
        self.is_listed = False
        self.is_changed = False
        self.seen_at = 0.0
        self.last_us = 0
        self.agents: dict[str, str | None] = {}
        """The agent of each span that has arrived."""
        self.parents: dict[str, str | None] = {}
        self.announced: set[str] = set()
        self.covered: set[str] = set()
        """Spans below which tokens were counted already: what they say of tokens is the same again."""
        self.resources: list[dict[str, Any]] = []
        self.scopes: list[str] = []
        self._head = id[-8:] + "."
        self._tail: str | None = None
        self._is_moved = False
        self._scope: str | None = None
        self._key: str | None = None
        self._source: Source | None = None
        self._place: dict[str, Any] = {}

    def name_of(self, span: str) -> str:
        """What a span is called in the journal: its own id is only unique within its trace.

        The trace comes first, so that the spans of a trace lie together in the index of ids.
        """
        return self._head + span if self._tail is None else span + self._tail

    def begin(self, ts_us: int, *, thread: str | None, agent: str | None) -> None:
        """Something of it happened at this time."""
        info = self.info
        if info is None:
            info = RunInfo(id=self.id, started_at_us=ts_us, thread=thread, agent=agent)
        else:
            if ts_us < info.started_at_us:
                info = structs.replace(info, started_at_us=ts_us)
            if info.thread is None and thread is not None:
                info = structs.replace(info, thread=thread)
                self._is_moved = self.is_listed
            if info.agent is None and agent is not None:
                info = structs.replace(info, agent=agent)
            if info.status == UNFINISHED:
                info = structs.replace(info, status=RUNNING, ended_at_us=None)
        self._became(info)

    def reach(self, ts_us: int) -> None:
        """Something of it lasted until this time."""
        self.last_us = max(self.last_us, ts_us)
        info = self.info
        if info is not None and info.ended_at_us is not None and ts_us > info.ended_at_us:
            self._became(structs.replace(info, ended_at_us=ts_us))

    def end(self, ts_us: int, *, name: str, agent: str | None, failed: bool) -> None:
        """A span with no parent here has ended: the run has an end, for all that is known."""
        info = self.info
        if info is None:
            return
        status = ERROR if failed or info.status == ERROR else OK
        self._became(
            structs.replace(
                info,
                status=status,
                ended_at_us=max(info.ended_at_us or 0, ts_us, self.last_us),
                agent=agent or info.agent,
                meta=info.meta if info.meta.get("name") else {**info.meta, "name": name[:512]},
            )
        )

    def settle(self) -> None:
        """Nothing came for long: it is over, although nothing said so."""
        info = self.info
        if info is not None and info.status == RUNNING:
            ended_us = max(self.last_us, info.started_at_us)
            self._became(structs.replace(info, status=UNFINISHED, ended_at_us=ended_us))

    def place_of(self, source: Source) -> dict[str, Any]:
        """Where the sender is described in the run's metadata; nothing when it is the first one."""
        if self._source is not source:  # one sender sends many
            self._place = self._placed(source)
            self._source = source
        return self._place.copy()

    def _placed(self, source: Source) -> dict[str, Any]:
        place: dict[str, Any] = {}
        for name, known, given in (
            ("resource", self.resources, source.resource),
            ("scope", self.scopes, source.scope),
        ):
            told: list[Any] = known
            if given not in told:
                if len(repr(told)) + len(repr(given)) > _SOURCES_SIZE:
                    place[name] = given
                    continue
                told.append(given)
                self.is_changed = True
            if told[0] != given:
                place[name] = told.index(given)
        if source.scope_attributes:
            place["scope_attributes"] = source.scope_attributes
        return place

    def agent_above(self, span: str | None) -> str | None:
        """The agent of the nearest span above that has arrived."""
        seen = 0
        while span is not None and seen < _PAGE:
            agent = self.agents.get(span)
            if agent is not None:
                return agent
            span = self.parents.get(span)
            seen += 1
        return None

    def cover(self, span: str | None) -> None:
        """Tokens were counted below this span."""
        while span is not None and span not in self.covered:
            self.covered.add(span)
            span = self.parents.get(span)

    @property
    def thread(self) -> str | None:
        """The thread as the journal's events name it."""
        return self._key

    @property
    def scope(self) -> str:
        """What its events are forgotten with."""
        if self._scope is None:
            raise AssertionError("a trace that has not begun has no scope")
        return self._scope

    def write_to(self, draft: Draft) -> None:
        """Where the run stands now, if that has changed."""
        info = self.info
        if info is None or not self.is_changed:
            return
        meta = {**info.meta, "source": SOURCE, "resources": self.resources, "scopes": self.scopes}
        info = self.info = structs.replace(info, meta=meta)
        if not self.is_listed:
            write_listing(draft, info)
        stored = {name: value for name, value in structs.asdict(info).items() if value not in (None, {}, ())}
        draft.set_ref(run_ref(self.id), encode_json(stored), scope=self.scope, expect=self.version)
        if self._is_moved:
            draft.event(
                Event(
                    id=f"{self.id}:moved",
                    kind=RUN_MOVED,
                    ts_us=info.started_at_us,
                    scope=self.scope,
                    run=self.id,
                    thread=self.thread,
                )
            )

    def write_end(self, draft: Draft, *, ts_us: int, duration_us: int, status: str) -> None:
        """The row of the run in the journal, as its first span tells it."""
        draft.event(
            Event(
                id=self.id,
                kind=RUN,
                ts_us=ts_us,
                scope=self.scope,
                run=self.id,
                thread=self.thread,
                agent=None if self.info is None else self.info.agent,
                status=status,
                duration_us=duration_us,
            )
        )

    def written(self, version: int | None) -> None:
        """What `write_to` wrote is durable, under this version."""
        if version is not None:
            self.version = version
            self.is_listed = True
            self.is_changed = False
            self._is_moved = False

    def load(self, ref: Ref) -> None:
        """Take over what the store knows of the run."""
        info = run_info(ref)
        self.version = ref.version
        self.is_listed = True
        self._became(info)
        self.is_changed = False
        self.resources = [each for each in info.meta.get("resources", ()) if isinstance(each, dict)]
        self.scopes = [each for each in info.meta.get("scopes", ()) if isinstance(each, str)]
        self.last_us = info.ended_at_us or info.started_at_us

    def recall(self, record: Record) -> None:
        """Take over what an event of the run tells."""
        event = record.event
        span = event.span
        if span is None:
            return
        if self._tail is None and span.endswith(f".{self.id[-8:]}"):
            self._tail = f".{self.id[-8:]}"  # it began before spans were called as they are now
        if event.kind.startswith(OPEN):
            self.announced.add(span)
        elif event.kind.startswith(SPAN):
            self.agents[span] = event.agent
            self.parents[span] = event.parent
            self.last_us = max(self.last_us, event.ts_us + (event.duration_us or 0))
            if event.usage is not None:
                self.cover(event.parent)

    def _became(self, info: RunInfo) -> None:
        if info != self.info:
            self.info = info
            self.is_changed = True
            self._scope = run_scope(info)
            self._key = thread_key(info.thread, info.namespace)


class Traces:
    """The traces of late, of one space."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._known: OrderedDict[str, Trace] = OrderedDict()
        self._spans = 0

    def get(self, ids: Iterable[str]) -> dict[str, Trace]:
        """The traces of these ids, as far as they have arrived, here or at another server."""
        names = list(dict.fromkeys(ids))
        refs = self._engine.refs(self._space, [run_ref(each) for each in names]) if names else {}
        found: dict[str, Trace] = {}
        for each in names:
            trace, ref = self._known.get(each), refs.get(run_ref(each))
            if trace is None or trace.version != (ABSENT if ref is None else ref.version):
                trace = self._known[each] = Trace(each)
                if ref is not None:
                    trace.load(ref)
                    for record in self._records(each):
                        trace.recall(record)
            self._known.move_to_end(each)
            found[each] = trace
        return found

    def settled(self, traces: Iterable[Trace]) -> None:
        """These were written; let go of the oldest when there are too many."""
        now = time.monotonic()
        for trace in traces:
            trace.seen_at = now
        self._spans = sum(1 + len(trace.parents) for trace in self._known.values())
        while self._spans > _SPANS and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._spans -= 1 + len(oldest.parents)

    def forget(self, ids: Iterable[str]) -> None:
        """Read these from the store again, the next time."""
        for each in ids:
            self._known.pop(each, None)

    def quiet(self, seconds: float) -> list[Trace]:
        """Runs that are not over and of which nothing came for so long."""
        before = time.monotonic() - seconds
        return [
            trace
            for trace in self._known.values()
            if trace.info is not None and trace.info.status == RUNNING and trace.seen_at < before
        ]

    def _records(self, id: str) -> Iterator[Record]:
        return each_record(self._engine, self._space, EventQuery(run=id, order="time"))
