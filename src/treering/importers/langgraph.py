"""Import from LangGraph's own checkpointers: the whole history of every thread, with what its tasks wrote.

The source is the file of a `SqliteSaver` or the database of a `PostgresSaver`; it is only read. Checkpoints
are put in the order of their ids, each behind its parent, so their lists share what they have in common: a
history that took a gigabyte there takes what its messages take here. Afterwards a graph goes on with
`TreeringSaver` as if nothing had happened. **Invariant:** an import that returns has as many checkpoints
and writes in the store as the source had; one that was interrupted goes on when it is run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from treering.api import redacted
from treering.core.clock import SystemClock
from treering.errors import Corrupt, MissingExtra
from treering.importers.langgraph_sources import Row, Source, Write, decoded, open_source
from treering.importers.report import FileReport, ImportReport
from treering.views.graph_ids import Place, writes_key
from treering.views.graphs import Graphs

if TYPE_CHECKING:
    from collections.abc import Collection

    from treering.adapters.langgraph_saving import Scribe
    from treering.adapters.langgraph_values import Values
    from treering.importers.report import Progress
    from treering.store import Store


def import_langgraph(
    source: str | Path,
    store: Store,
    *,
    namespace: str = "",
    allow: Collection[type | tuple[str, str]] = (),
    on_progress: Progress | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Bring all threads of a LangGraph checkpointer into a store, and count both sides.

    ``source`` is the path of a SqliteSaver's database or the ``postgresql://`` URL of a PostgresSaver's.
    Types of your own in the state come over as the data that they held, unless ``allow`` names them. What
    is in the store already is left as it is, so running it again brings only what is new.
    """
    try:
        from treering.adapters.langgraph_memory import Memory
        from treering.adapters.langgraph_saving import Scribe
        from treering.adapters.langgraph_values import Values, closed_serde
    except ModuleNotFoundError as error:
        raise MissingExtra("importing from LangGraph", "langgraph") from error
    values = Values(closed_serde(*allow))
    graphs = Graphs(store.engine, store.space, namespace)
    reader = open_source(source, values)
    try:
        scribe = Scribe(store, graphs, Memory(), SystemClock(), are_writes_durable=True)
        work = _Import(reader, scribe, graphs, values, on_progress, dry_run=dry_run)
        return work.run(str(source))
    finally:
        reader.close()


class _Import:
    def __init__(
        self,
        source: Source,
        scribe: Scribe,
        graphs: Graphs,
        values: Values,
        on_progress: Progress | None,
        *,
        dry_run: bool,
    ) -> None:
        self._source = source
        self._scribe = scribe
        self._graphs = graphs
        self._values = values
        self._on_progress = on_progress
        self._dry_run = dry_run
        self._done = 0
        self._new = [0, 0]
        self._known = [0, 0]

    def run(self, name: str) -> ImportReport:
        found = self._source.counts()
        for thread, within in self._source.places():
            self._import(thread, within, found[0])
        return ImportReport(
            importer="langgraph",
            source=redacted(name),
            dry_run=self._dry_run,
            files=tuple(
                FileReport(
                    path=table,
                    holds=table,
                    found=found[which],
                    new=self._new[which],
                    known=self._known[which],
                )
                for which, table in enumerate(("checkpoints", "writes"))
            ),
        )

    def _import(self, thread: str, within: str, total: int) -> None:
        from treering.adapters.langgraph_rows import thread_id_of

        place = self._graphs.place(thread_id_of(thread), within)
        there = {step.graph_id for step in self._graphs.steps(place, within=within)}
        rows = self._source.checkpoints(thread, within)
        writes: dict[str, list[Write]] = {}
        for write in self._source.writes(thread, within):
            writes.setdefault(write.checkpoint, []).append(write)
        parents: set[str] = set()
        for row in rows:
            if row.id in there:
                self._known[0] += 1
            else:
                self._new[0] += 1
                if not self._dry_run:
                    if row.parent in parents and row.parent in writes:
                        # A second child of a step: what was written on it before the first was for the first.
                        self._put_writes(place, writes[row.parent])
                    self._put(thread, place, row)
            if row.parent is not None:
                parents.add(row.parent)
            self._bring(place, writes.get(row.id, []))
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, total)
        for graph_id in writes.keys() - {row.id for row in rows}:
            self._bring(place, writes[graph_id])
        if not self._dry_run:
            self._verify(place, within, rows, writes)

    def _bring(self, place: Place, writes: list[Write]) -> None:
        if not writes:
            return
        stored = self._stored(place, writes[0].checkpoint)
        new = [each for each in writes if (each.task, each.index) not in stored]
        self._known[1] += len(writes) - len(new)
        self._new[1] += len(new)
        if new and not self._dry_run:
            self._put_writes(place, new)

    def _put(self, thread: str, place: Place, row: Row) -> None:
        from treering.adapters.langgraph_rows import Request

        checkpoint, metadata = self._source.content(thread, place.within, row)
        request = Request(
            thread=thread,
            parent=row.parent,
            checkpoint={"v": 1, "ts": "", "channel_versions": {}, "versions_seen": {}, **checkpoint},
            metadata=metadata,
            new_versions=checkpoint.get("channel_versions", {}),
        )
        self._scribe.put(self._values, place, request)

    def _put_writes(self, place: Place, writes: list[Write]) -> None:
        tasks: dict[tuple[str, str, str], list[tuple[str, int, Any]]] = {}
        for each in sorted(writes, key=lambda write: write.index):
            what = (
                f"a write of task {each.task!r} on checkpoint {each.checkpoint!r} of thread {place.thread!r}"
            )
            value = decoded(self._values, each.form, each.data, what)
            tasks.setdefault((each.checkpoint, each.task, each.path), []).append(
                (each.channel, each.index, value)
            )
        for (graph_id, task, path), numbered in tasks.items():
            self._scribe.put_writes(self._values, place, graph_id, numbered, task, path)

    def _stored(self, place: Place, graph_id: str) -> set[tuple[str, int]]:
        return {
            (each.data["task"], write[1])
            for each in self._graphs.written_as(writes_key(place, graph_id))
            for write in each.data["writes"]
        }

    def _verify(self, place: Place, within: str, rows: list[Row], writes: dict[str, list[Write]]) -> None:
        there = {step.graph_id for step in self._graphs.steps(place, within=within)}
        missing = sum(row.id not in there for row in rows)
        for graph_id, each in writes.items():
            stored = self._stored(place, graph_id)
            missing += sum((write.task, write.index) not in stored for write in each)
        if missing:
            raise Corrupt(
                f"thread {place.thread!r} lacks {missing} of its {len(rows)} checkpoints and their writes; "
                "the source is as it was: run the import again"
            )
