"""Import from LangGraph's own checkpointers: the whole history of every thread, with what its tasks wrote.

The source is the file of a `SqliteSaver` or the database of a `PostgresSaver`; it is only read, and one that
has no checkpointer's tables is refused before anything is imported. Checkpoints are saved in the order of
their ids, each as a child of its parent, so their lists share what they have in common: a history that takes
a gigabyte there takes what its messages take here. Afterwards a graph continues with `TreeringSaver` as if
nothing had happened. **Invariant:** after an import the store has as many checkpoints and writes as the
source; one that was interrupted continues when it is run again.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.api import redacted
from treering.core.batch import Draft
from treering.core.clock import SystemClock
from treering.errors import Corrupt, InvalidInput, MissingExtra, NotFound, Unreachable
from treering.graphs.graph import Graphs
from treering.graphs.step import GraphKey, writes_key
from treering.importers.lines import BadLines, refuse_bad
from treering.importers.registry import FileReport, ImportReport
from treering.threads.writer import CheckpointWriter

if TYPE_CHECKING:
    from treering.adapters.langgraph.values import ValueCodec
    from treering.adapters.langgraph.writer import PutRequest, Writer
    from treering.importers.registry import Progress
    from treering.store import Store


_POSTGRES: Final = ("postgresql://", "postgres://")
_TABLES: Final = ("checkpoint_writes", "checkpoints", "checkpoint_blobs")
_EMPTY: Final = "empty"
_NO_PATH: Final = "''"
"""Replaces a column that early versions of the saver did not have."""


def open_source(source: str | Path, codec: ValueCodec) -> Source:
    """Open the source at a path or URL."""
    if isinstance(source, str) and source.startswith(_POSTGRES):
        return _Postgres(source, codec)
    return _Sqlite(Path(source).expanduser(), codec)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of the source, without its content."""

    id: str
    parent: str | None


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One write of the source."""

    checkpoint: str
    task: str
    path: str
    index: int
    channel: str
    form: str
    data: bytes


class Source(ABC):
    """A checkpointer's database. Both kinds have the same columns, but for two names."""

    _mark: str
    """The placeholder for a value in a statement."""
    _writes: str
    """The table of writes."""
    _write_columns: str

    def graphs(self) -> list[tuple[str, str]]:
        """Return every thread and checkpoint namespace."""
        return self._rows(
            "SELECT thread_id, checkpoint_ns FROM checkpoints "
            f"UNION SELECT thread_id, checkpoint_ns FROM {self._writes}"
        )

    def counts(self) -> tuple[int, int]:
        """Count the checkpoints and writes."""
        return self._rows(
            f"SELECT (SELECT count(*) FROM checkpoints), (SELECT count(*) FROM {self._writes})"
        )[0]

    def checkpoints(self, thread: str, subgraph: str) -> list[Row]:
        """Return the checkpoints of one graph, oldest first."""
        rows = self._rows(
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints "
            f"WHERE thread_id = {self._mark} AND checkpoint_ns = {self._mark} ORDER BY checkpoint_id",
            (thread, subgraph),
        )
        return [Row(id=graph_id, parent=parent or None) for graph_id, parent in rows]

    def writes(self, thread: str, subgraph: str) -> list[Write]:
        """Return all writes of one graph."""
        rows = self._rows(
            f"SELECT checkpoint_id, task_id, {self._write_columns} FROM {self._writes} "
            f"WHERE thread_id = {self._mark} AND checkpoint_ns = {self._mark} "
            "ORDER BY checkpoint_id, task_id, idx",
            (thread, subgraph),
        )
        return [_write(row) for row in rows]

    @abstractmethod
    def content(self, thread: str, subgraph: str, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a checkpoint in LangGraph's form, and its metadata."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]: ...


class _Sqlite(Source):
    """The file of a `SqliteSaver`, opened for reading only."""

    _mark = "?"
    _writes = "writes"

    def __init__(self, path: Path, codec: ValueCodec) -> None:
        if not path.is_file():
            raise NotFound(f"file {path} not found; pass the database of a SqliteSaver")
        self._path = path
        self._codec = codec
        try:
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise Unreachable(f"{path} cannot be opened: {error}") from error
        tables = {name for (name,) in self._rows("SELECT name FROM sqlite_master")}
        if not {"checkpoints", "writes"} <= tables:
            self.close()
            raise InvalidInput(
                f"{path} does not have the tables of a SqliteSaver (checkpoints, writes); pass another file"
            )
        columns = {row[1] for row in self._rows("PRAGMA table_info(writes)")}
        task_path = "task_path" if "task_path" in columns else _NO_PATH
        self._write_columns = f"{task_path}, idx, channel, type, value"

    def content(self, thread: str, subgraph: str, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a checkpoint, which is stored as one value."""
        form, data, metadata = self._rows(
            "SELECT type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread, subgraph, row.id),
        )[0]
        what = f"checkpoint {row.id!r} of thread {thread!r}"
        checkpoint = _decoded_record(self._codec, form or "msgpack", data, what)
        return checkpoint, _decoded_metadata(self._codec, metadata, what)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise Unreachable(f"{self._path} cannot be read as a SqliteSaver's database: {error}") from error


class _Postgres(Source):
    """The database of a `PostgresSaver`, read in one transaction that sees it as it was at the start."""

    _mark = "%s"
    _writes = "checkpoint_writes"

    def __init__(self, url: str, codec: ValueCodec) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise MissingExtra("importing from PostgreSQL", "postgres") from error
        self._codec = codec
        self._errors = psycopg.Error
        self._shown = redacted(url)
        try:
            self._connection = psycopg.connect(url)
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        except psycopg.Error as error:
            raise Unreachable(f"{self._shown} cannot be opened: {error}") from error
        missing = [each for each in _TABLES if not self._rows("SELECT 1 WHERE to_regclass(%s) > 0", (each,))]
        if missing:
            self.close()
            raise InvalidInput(
                f"{self._shown} lacks tables of a PostgresSaver ({', '.join(missing)}); pass another database"
            )
        columns = self._rows("SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)", _TABLES[:1])
        task_path = "task_path" if ("task_path",) in columns else _NO_PATH
        self._write_columns = f"{task_path}, idx, channel, type, blob"

    def content(self, thread: str, subgraph: str, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a checkpoint, assembled from the blobs of its channels."""
        key = (thread, subgraph, row.id)
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
                what = f"channel {channel!r} of checkpoint {row.id!r} of thread {thread!r}"
                values[channel] = decoded(self._codec, form, bytes(data or b""), what)
        return {**checkpoint, "channel_values": values}, dict(metadata or {})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(cast("Any", sql), values).fetchall()
        except self._errors as error:
            raise Unreachable(
                f"{self._shown} cannot be read as a PostgresSaver's database: {error}"
            ) from error


def _write(row: tuple[Any, ...]) -> Write:
    checkpoint, task, path, index, channel, form, data = row
    return Write(
        checkpoint=checkpoint,
        task=task,
        path=path or "",
        index=index if isinstance(index, int) else 0,
        channel=channel,
        form=form or "msgpack",
        data=data if isinstance(data, bytes) else b"",
    )


def decoded(codec: ValueCodec, form: str, data: Any, what: str) -> Any:
    """Decode a value of the source. Raises `InvalidInput` if it is damaged or pickled."""
    try:
        return codec.serde.loads_typed((form, data))
    except Exception as error:  # whatever a serializer finds in damaged bytes
        raise _damaged(what, form, f"{type(error).__name__}: {error}") from error


def _decoded_record(codec: ValueCodec, form: str, data: Any, what: str) -> dict[str, Any]:
    record = decoded(codec, form, data, what)
    if not isinstance(record, dict):
        raise _damaged(what, form, f"expected a dict, found {type(record).__name__}")
    return cast("dict[str, Any]", record)


def _damaged(what: str, form: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{what} cannot be decoded as {form!r} ({why}); repair it in the source and run the import again"
    )


def _decoded_metadata(codec: ValueCodec, metadata: bytes | str | None, what: str) -> dict[str, Any]:
    """Decode metadata: JSON, or in early versions of the saver a value of its serializer."""
    if not metadata:
        return {}
    try:
        read = json.loads(metadata)
    except ValueError:
        raw = metadata.encode() if isinstance(metadata, str) else metadata
        return _decoded_record(codec, "msgpack", raw, f"the metadata of {what}")
    if not isinstance(read, dict):
        raise _damaged(f"the metadata of {what}", "json", f"expected a dict, found {type(read).__name__}")
    return cast("dict[str, Any]", read)


def import_langgraph(
    source: str | Path,
    store: Store,
    *,
    namespace: str = "",
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
) -> ImportReport:
    """Import all threads of a LangGraph checkpointer into a store, and count both sides.

    ``source`` is the path of a SqliteSaver's database or the ``postgresql://`` URL of a PostgresSaver's.
    Types of your own in the state are imported as they are: a graph that names them builds them again. What
    is in the store already is left as it is, so another run imports only what is new. A row that cannot be
    decoded is skipped and reported.
    """
    if strict:
        refuse_bad(import_langgraph(source, store, namespace=namespace, dry_run=True))
    try:
        from treering.adapters.langgraph.known_types import ClosedSerializer, KnownTypes
        from treering.adapters.langgraph.reader import Reader
        from treering.adapters.langgraph.values import ValueCodec
        from treering.adapters.langgraph.writer import Writer
    except ModuleNotFoundError as error:
        raise MissingExtra("importing from LangGraph", "langgraph") from error
    codec = ValueCodec(ClosedSerializer(KnownTypes(), keep_unknown=True))
    graphs = Graphs(store.engine, store.space, namespace)
    reader = open_source(source, codec)
    try:
        writer = Writer(store, graphs, Reader(store, graphs), SystemClock())
        work = _Import(reader, writer, graphs, codec, on_progress, store=store, dry_run=dry_run)
        return work.run(str(source))
    finally:
        reader.close()


class _Import:
    def __init__(
        self,
        source: Source,
        writer: Writer,
        graphs: Graphs,
        codec: ValueCodec,
        on_progress: Progress | None,
        *,
        store: Store,
        dry_run: bool,
    ) -> None:
        self._store = store
        self._source = source
        self._writer = writer
        self._graphs = graphs
        self._codec = codec
        self._on_progress = on_progress
        self._dry_run = dry_run
        self._done = 0
        self._bad = BadLines()
        self._lost: set[str | tuple[str, str, int]] = set()
        """Ids of checkpoints, and keys of writes, that cannot be decoded."""
        self._new = [0, 0]
        self._known = [0, 0]

    def run(self, name: str) -> ImportReport:
        found = self._source.counts()
        for thread, subgraph in self._source.graphs():
            if self._is_text(f"rows of thread {thread!r}", thread, subgraph):
                self._import(thread, subgraph, found[0])
        lost = [found[which] - self._new[which] - self._known[which] for which in (0, 1)]
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
                    left_out=lost[which],
                    note=f"{lost[which]} cannot be read" if lost[which] else "",
                )
                for which, table in enumerate(("checkpoints", "writes"))
            ),
            bad=self._bad.named,
        )

    def _import(self, thread: str, subgraph: str, total: int) -> None:
        from treering.adapters.langgraph.reader import thread_id_of

        key = self._graphs.key(thread_id_of(thread), subgraph)
        stored = {step.graph_id for step in self._graphs.steps(key, subgraph=subgraph)}
        rows = [
            row
            for row in self._source.checkpoints(thread, subgraph)
            if self._is_text(f"checkpoint {row.id!r} of thread {thread!r}", row.id, row.parent or "")
        ]
        writes: dict[str, list[Write]] = {}
        for write in self._source.writes(thread, subgraph):
            texts = (write.checkpoint, write.task, write.path, write.channel, write.form)
            if self._is_text(f"a write of checkpoint {write.checkpoint!r} of thread {thread!r}", *texts):
                writes.setdefault(write.checkpoint, []).append(write)
        parents: set[str] = set()
        for row in rows:
            if row.id in stored:
                self._known[0] += 1
            else:
                request = self._request(thread, key, row)
                self._new[0] += request is not None
                if request is not None and not self._dry_run:
                    if row.parent in parents and row.parent in writes:
                        # A second child: writes from before the first child were used up by the first.
                        self._put_writes(key, self._decoded(key, writes[row.parent]))
                    self._writer.put(self._codec, key, request)
            if row.parent is not None:
                parents.add(row.parent)
            self._import_writes(key, writes.get(row.id, []))
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, total)
        for graph_id in writes.keys() - {row.id for row in rows}:
            self._import_writes(key, writes[graph_id])
        if not self._dry_run:
            if not subgraph and len(stored) < len(rows):
                self._date_thread(key)
            self._verify(key, subgraph, rows, writes)

    def _date_thread(self, key: GraphKey) -> None:
        """List the thread by the time of its newest checkpoint, not of the import."""
        head = self._graphs.head(key)
        if head is None:
            return
        checkpoint = head.step.checkpoint
        draft = Draft(self._store.space)
        CheckpointWriter(self._store.engine, self._store.space).put_head(
            draft,
            checkpoint,
            expect=head.version,
            first_us=head.first_us,
            updated_us=checkpoint.created_at_us,
        )
        self._store.commit(draft)

    def _is_text(self, what: str, *values: object) -> bool:
        """Whether the keys of a row are text, which SQLite does not make sure of; else note that row."""
        if all(isinstance(each, str) for each in values):
            return True
        self._bad.add(what, "its keys are not text")
        return False

    def _import_writes(self, key: GraphKey, writes: list[Write]) -> None:
        if not writes:
            return
        stored = self._stored(key, writes[0].checkpoint)
        unknown = [each for each in writes if (each.task, each.index) not in stored]
        new = self._decoded(key, unknown)
        self._known[1] += len(writes) - len(unknown)
        self._new[1] += len(new)
        if new and not self._dry_run:
            self._put_writes(key, new)

    def _request(self, thread: str, key: GraphKey, row: Row) -> PutRequest | None:
        """Return what to save; ``None`` for a checkpoint that cannot be decoded."""
        from treering.adapters.langgraph.writer import PutRequest

        with self._bad.skipping(""):
            checkpoint, metadata = self._source.content(thread, key.subgraph, row)
            what = f"checkpoint {row.id!r} of thread {thread!r}"
            if checkpoint.get("id") != row.id:
                raise InvalidInput(f"{what} has the id {checkpoint.get('id')!r} in its content")
            for name in ("channel_values", "channel_versions", "versions_seen"):
                if not isinstance(checkpoint.get(name, {}), dict):
                    raise InvalidInput(f"{what} has {name} that are not a dict")
            if not all(isinstance(each, dict) for each in checkpoint.get("versions_seen", {}).values()):
                raise InvalidInput(f"{what} has versions_seen that are not dicts")
            return PutRequest(
                thread=thread,
                parent=row.parent,
                checkpoint={"v": 1, "ts": "", "channel_versions": {}, "versions_seen": {}, **checkpoint},
                metadata=metadata,
                new_versions=checkpoint.get("channel_versions", {}),
            )
        self._lost.add(row.id)
        return None

    def _decoded(self, key: GraphKey, writes: list[Write]) -> list[tuple[Write, Any]]:
        """Return the writes that can be decoded, with their values."""
        found: list[tuple[Write, Any]] = []
        for each in writes:
            if (each.checkpoint, each.task, each.index) in self._lost:
                continue
            what = f"a write of task {each.task!r} on checkpoint {each.checkpoint!r} of thread {key.thread!r}"
            with self._bad.skipping(""):
                found.append((each, decoded(self._codec, each.form, each.data, what)))
                continue
            self._lost.add((each.checkpoint, each.task, each.index))
        return found

    def _put_writes(self, key: GraphKey, writes: list[tuple[Write, Any]]) -> None:
        tasks: dict[tuple[str, str, str], list[tuple[str, int, Any]]] = {}
        for each, value in sorted(writes, key=lambda found: found[0].index):
            tasks.setdefault((each.checkpoint, each.task, each.path), []).append(
                (each.channel, each.index, value)
            )
        for (graph_id, task, path), numbered in tasks.items():
            self._writer.put_writes(self._codec, key, graph_id, numbered, task, path)

    def _stored(self, key: GraphKey, graph_id: str) -> set[tuple[str, int]]:
        return {
            (each.data["task"], write[1])
            for each in self._graphs.written_as(writes_key(key, graph_id))
            for write in each.data["writes"]
        }

    def _verify(self, key: GraphKey, subgraph: str, rows: list[Row], writes: dict[str, list[Write]]) -> None:
        saved = {step.graph_id for step in self._graphs.steps(key, subgraph=subgraph)}
        missing = sum(row.id not in saved and row.id not in self._lost for row in rows)
        for graph_id, each in writes.items():
            stored = self._stored(key, graph_id)
            missing += sum(
                (write.task, write.index) not in stored
                and (write.checkpoint, write.task, write.index) not in self._lost
                for write in each
            )
        if missing:
            raise Corrupt(
                f"thread {key.thread!r} lacks {missing} of its {len(rows)} checkpoints and their writes; "
                "the source was not changed: run the import again"
            )
