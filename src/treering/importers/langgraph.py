"""Import from LangGraph's own checkpointers: the whole history of every thread, with what its tasks wrote.

The source is the file of a `SqliteSaver` or the database of a `PostgresSaver`; it is only read. Checkpoints
are put in the order of their ids, each behind its parent, so their lists share what they have in common: a
history that took a gigabyte there takes what its messages take here. Afterwards a graph goes on with
`TreeringSaver` as if nothing had happened. **Invariant:** an import that returns has as many checkpoints
and writes in the store as the source had; one that was interrupted goes on when it is run again.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from treering.api import redacted
from treering.core.clock import SystemClock
from treering.errors import Corrupt, InvalidInput, MissingExtra, NotFound, Unreachable
from treering.importers.report import FileReport, ImportReport
from treering.views.graph_ids import Place, writes_key
from treering.views.graphs import Graphs

if TYPE_CHECKING:
    from collections.abc import Collection

    from treering.adapters.langgraph_saving import Scribe
    from treering.adapters.langgraph_values import Values
    from treering.importers.report import Progress
    from treering.store import Store

_POSTGRES: Final = ("postgresql://", "postgres://")
_EMPTY: Final = "empty"


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of the source, without its content."""

    id: str
    parent: str | None


class _Write(msgspec.Struct, frozen=True, kw_only=True):
    """One write of the source."""

    checkpoint: str
    task: str
    path: str
    index: int
    channel: str
    form: str
    data: bytes


class _Source(Protocol):
    def places(self) -> list[tuple[str, str]]:
        """Every thread and namespace within it."""
        ...

    def counts(self) -> tuple[int, int]:
        """How many checkpoints and writes there are."""
        ...

    def checkpoints(self, thread: str, within: str) -> list[_Row]:
        """The checkpoints of one place, oldest first."""
        ...

    def content(self, thread: str, within: str, row: _Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """A checkpoint as LangGraph knows it, and its metadata."""
        ...

    def writes(self, thread: str, within: str) -> list[_Write]:
        """All writes of one place."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


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
    reader = _open(source, values)
    try:
        scribe = Scribe(store, graphs, Memory(), SystemClock(), are_writes_durable=True)
        work = _Import(reader, scribe, graphs, values, on_progress, dry_run=dry_run)
        return work.run(str(source))
    finally:
        reader.close()


class _Import:
    def __init__(
        self,
        source: _Source,
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
        from treering.adapters.langgraph_saving import thread_id_of

        place = self._graphs.place(thread_id_of(thread), within)
        there = {step.graph_id for step in self._graphs.steps(place, within=within)}
        rows = self._source.checkpoints(thread, within)
        writes: dict[str, list[_Write]] = {}
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

    def _bring(self, place: Place, writes: list[_Write]) -> None:
        if not writes:
            return
        stored = self._stored(place, writes[0].checkpoint)
        new = [each for each in writes if (each.task, each.index) not in stored]
        self._known[1] += len(writes) - len(new)
        self._new[1] += len(new)
        if new and not self._dry_run:
            self._put_writes(place, new)

    def _put(self, thread: str, place: Place, row: _Row) -> None:
        from treering.adapters.langgraph_saving import Request

        checkpoint, metadata = self._source.content(thread, place.within, row)
        request = Request(
            thread=thread,
            parent=row.parent,
            checkpoint={"v": 1, "ts": "", "channel_versions": {}, "versions_seen": {}, **checkpoint},
            metadata=metadata,
            new_versions=checkpoint.get("channel_versions", {}),
        )
        self._scribe.put(self._values, place, request)

    def _put_writes(self, place: Place, writes: list[_Write]) -> None:
        tasks: dict[tuple[str, str, str], list[tuple[str, int, Any]]] = {}
        for each in sorted(writes, key=lambda write: write.index):
            value = self._values.serde.loads_typed((each.form, each.data))
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

    def _verify(self, place: Place, within: str, rows: list[_Row], writes: dict[str, list[_Write]]) -> None:
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


def _open(source: str | Path, values: Values) -> _Source:
    if isinstance(source, str) and source.startswith(_POSTGRES):
        return _Postgres(source, values)
    return _Sqlite(Path(source).expanduser(), values)


class _Sqlite:
    """The file of a `SqliteSaver`, opened for reading only."""

    def __init__(self, path: Path, values: Values) -> None:
        if not path.is_file():
            raise NotFound(f"there is no file {path}; name the database of a SqliteSaver")
        self._path = path
        self._values = values
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        tables = {name for (name,) in self._rows("SELECT name FROM sqlite_master")}
        if not {"checkpoints", "writes"} <= tables:
            self.close()
            raise InvalidInput(
                f"{path} has no tables of a SqliteSaver (checkpoints, writes); name another file"
            )
        columns = {row[1] for row in self._rows("PRAGMA table_info(writes)")}
        self._path_column = "task_path" if "task_path" in columns else "''"

    def places(self) -> list[tuple[str, str]]:
        return self._rows(
            "SELECT thread_id, checkpoint_ns FROM checkpoints "
            "UNION SELECT thread_id, checkpoint_ns FROM writes"
        )

    def counts(self) -> tuple[int, int]:
        return self._rows("SELECT (SELECT count(*) FROM checkpoints), (SELECT count(*) FROM writes)")[0]

    def checkpoints(self, thread: str, within: str) -> list[_Row]:
        rows = self._rows(
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id",
            (thread, within),
        )
        return [_Row(id=graph_id, parent=parent or None) for graph_id, parent in rows]

    def content(self, thread: str, within: str, row: _Row) -> tuple[dict[str, Any], dict[str, Any]]:
        form, data, metadata = self._rows(
            "SELECT type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread, within, row.id),
        )[0]
        checkpoint = self._values.serde.loads_typed((form or "msgpack", data))
        return checkpoint, _decoded_metadata(self._values, metadata)

    def writes(self, thread: str, within: str) -> list[_Write]:
        rows = self._rows(
            f"SELECT checkpoint_id, task_id, {self._path_column}, idx, channel, type, value FROM writes "
            "WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id, task_id, idx",
            (thread, within),
        )
        return [_write(row) for row in rows]

    def close(self) -> None:
        self._connection.close()

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise Unreachable(f"{self._path} cannot be read as a SqliteSaver's database: {error}") from error


class _Postgres:
    """The database of a `PostgresSaver`; one transaction that sees it as it was at the start."""

    def __init__(self, url: str, values: Values) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise MissingExtra("importing from PostgreSQL", "postgres") from error
        self._values = values
        self._errors = psycopg.Error
        self._shown = redacted(url)
        try:
            self._connection = psycopg.connect(url)
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        except psycopg.Error as error:
            raise Unreachable(f"{self._shown} cannot be opened: {error}") from error

    def places(self) -> list[tuple[str, str]]:
        return self._rows(
            "SELECT thread_id, checkpoint_ns FROM checkpoints "
            "UNION SELECT thread_id, checkpoint_ns FROM checkpoint_writes"
        )

    def counts(self) -> tuple[int, int]:
        return self._rows(
            "SELECT (SELECT count(*) FROM checkpoints), (SELECT count(*) FROM checkpoint_writes)"
        )[0]

    def checkpoints(self, thread: str, within: str) -> list[_Row]:
        rows = self._rows(
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints "
            "WHERE thread_id = %s AND checkpoint_ns = %s ORDER BY checkpoint_id",
            (thread, within),
        )
        return [_Row(id=graph_id, parent=parent or None) for graph_id, parent in rows]

    def content(self, thread: str, within: str, row: _Row) -> tuple[dict[str, Any], dict[str, Any]]:
        key = (thread, within, row.id)
        checkpoint, metadata = self._rows(
            "SELECT checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            key,
        )[0]
        blobs = self._rows(
            "SELECT b.channel, b.type, b.blob FROM checkpoints c "
            "CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS v "
            "JOIN checkpoint_blobs b ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns "
            "AND b.channel = v.key AND b.version = v.value "
            "WHERE c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = %s",
            key,
        )
        values = dict(checkpoint.get("channel_values") or {})
        for channel, form, data in blobs:
            if form != _EMPTY:
                values[channel] = self._values.serde.loads_typed((form, bytes(data or b"")))
        return {**checkpoint, "channel_values": values}, dict(metadata or {})

    def writes(self, thread: str, within: str) -> list[_Write]:
        rows = self._rows(
            "SELECT checkpoint_id, task_id, task_path, idx, channel, type, blob FROM checkpoint_writes "
            "WHERE thread_id = %s AND checkpoint_ns = %s ORDER BY checkpoint_id, task_id, idx",
            (thread, within),
        )
        return [_write(row) for row in rows]

    def close(self) -> None:
        self._connection.close()

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(cast("Any", sql), values).fetchall()
        except self._errors as error:
            raise Unreachable(
                f"{self._shown} cannot be read as a PostgresSaver's database: {error}"
            ) from error


def _write(row: tuple[Any, ...]) -> _Write:
    checkpoint, task, path, index, channel, form, data = row
    return _Write(
        checkpoint=checkpoint,
        task=task,
        path=path or "",
        index=index,
        channel=channel,
        form=form or "msgpack",
        data=bytes(data or b""),
    )


def _decoded_metadata(values: Values, metadata: bytes | str | None) -> dict[str, Any]:
    """Metadata is JSON; early versions of the saver wrote it with their serializer."""
    if not metadata:
        return {}
    try:
        return json.loads(metadata)
    except ValueError:
        raw = metadata.encode() if isinstance(metadata, str) else metadata
        return dict(values.serde.loads_typed(("msgpack", raw)))
