"""Sources of an import from LangGraph: the file of a `SqliteSaver`, the database of a `PostgresSaver`.

**Invariant:** a source is only read; one that is no checkpointer's is refused before anything is imported.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.api import redacted
from treering.errors import InvalidInput, MissingExtra, NotFound, Unreachable

if TYPE_CHECKING:
    from treering.adapters.langgraph_values import Values

_POSTGRES: Final = ("postgresql://", "postgres://")
_TABLES: Final = ("checkpoint_writes", "checkpoints", "checkpoint_blobs")
_EMPTY: Final = "empty"
_NO_PATH: Final = "''"
"""In place of a column that early versions did not have."""


def open_source(source: str | Path, values: Values) -> Source:
    """The source that a path or URL stands for."""
    if isinstance(source, str) and source.startswith(_POSTGRES):
        return _Postgres(source, values)
    return _Sqlite(Path(source).expanduser(), values)


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
    """What an import asks of either of them. They keep the same columns, but for two names."""

    _mark: str
    """How a statement says that a value comes here."""
    _writes: str
    """The table of writes."""
    _write_columns: str

    def places(self) -> list[tuple[str, str]]:
        """Every thread and namespace within it."""
        return self._rows(
            "SELECT thread_id, checkpoint_ns FROM checkpoints "
            f"UNION SELECT thread_id, checkpoint_ns FROM {self._writes}"
        )

    def counts(self) -> tuple[int, int]:
        """How many checkpoints and writes there are."""
        return self._rows(
            f"SELECT (SELECT count(*) FROM checkpoints), (SELECT count(*) FROM {self._writes})"
        )[0]

    def checkpoints(self, thread: str, within: str) -> list[Row]:
        """The checkpoints of one place, oldest first."""
        rows = self._rows(
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints "
            f"WHERE thread_id = {self._mark} AND checkpoint_ns = {self._mark} ORDER BY checkpoint_id",
            (thread, within),
        )
        return [Row(id=graph_id, parent=parent or None) for graph_id, parent in rows]

    def writes(self, thread: str, within: str) -> list[Write]:
        """All writes of one place."""
        rows = self._rows(
            f"SELECT checkpoint_id, task_id, {self._write_columns} FROM {self._writes} "
            f"WHERE thread_id = {self._mark} AND checkpoint_ns = {self._mark} "
            "ORDER BY checkpoint_id, task_id, idx",
            (thread, within),
        )
        return [_write(row) for row in rows]

    @abstractmethod
    def content(self, thread: str, within: str, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """A checkpoint as LangGraph knows it, and its metadata."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    @abstractmethod
    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]: ...


class _Sqlite(Source):
    """The file of a `SqliteSaver`, opened for reading only."""

    _mark = "?"
    _writes = "writes"

    def __init__(self, path: Path, values: Values) -> None:
        if not path.is_file():
            raise NotFound(f"there is no file {path}; name the database of a SqliteSaver")
        self._path = path
        self._values = values
        try:
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise Unreachable(f"{path} cannot be opened: {error}") from error
        tables = {name for (name,) in self._rows("SELECT name FROM sqlite_master")}
        if not {"checkpoints", "writes"} <= tables:
            self.close()
            raise InvalidInput(
                f"{path} has no tables of a SqliteSaver (checkpoints, writes); name another file"
            )
        columns = {row[1] for row in self._rows("PRAGMA table_info(writes)")}
        task_path = "task_path" if "task_path" in columns else _NO_PATH
        self._write_columns = f"{task_path}, idx, channel, type, value"

    def content(self, thread: str, within: str, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """As it lies there in one piece."""
        form, data, metadata = self._rows(
            "SELECT type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread, within, row.id),
        )[0]
        what = f"checkpoint {row.id!r} of thread {thread!r}"
        checkpoint = _decoded_record(self._values, form or "msgpack", data, what)
        return checkpoint, _decoded_metadata(self._values, metadata, what)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise Unreachable(f"{self._path} cannot be read as a SqliteSaver's database: {error}") from error


class _Postgres(Source):
    """The database of a `PostgresSaver`; one transaction that sees it as it was at the start."""

    _mark = "%s"
    _writes = "checkpoint_writes"

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
        missing = [each for each in _TABLES if not self._rows("SELECT 1 WHERE to_regclass(%s) > 0", (each,))]
        if missing:
            self.close()
            raise InvalidInput(
                f"{self._shown} has no tables of a PostgresSaver ({', '.join(missing)}); name another one"
            )
        columns = self._rows("SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)", _TABLES[:1])
        task_path = "task_path" if ("task_path",) in columns else _NO_PATH
        self._write_columns = f"{task_path}, idx, channel, type, blob"

    def content(self, thread: str, within: str, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put together from the blobs of its channels."""
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
                what = f"channel {channel!r} of checkpoint {row.id!r} of thread {thread!r}"
                values[channel] = decoded(self._values, form, bytes(data or b""), what)
        return {**checkpoint, "channel_values": values}, dict(metadata or {})

    def close(self) -> None:
        """Let go of the connection."""
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
        index=index,
        channel=channel,
        form=form or "msgpack",
        data=bytes(data or b""),
    )


def decoded(values: Values, form: str, data: Any, what: str) -> Any:
    """A value of the source, as its serializer wrote it; `InvalidInput` for a damaged or pickled one."""
    try:
        return values.serde.loads_typed((form, data))
    except Exception as error:  # whatever a serializer finds in damaged bytes
        raise _damaged(what, form, f"{type(error).__name__}: {error}") from error


def _decoded_record(values: Values, form: str, data: Any, what: str) -> dict[str, Any]:
    record = decoded(values, form, data, what)
    if not isinstance(record, dict):
        raise _damaged(what, form, f"it is no record but {type(record).__name__}")
    return cast("dict[str, Any]", record)


def _damaged(what: str, form: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{what} cannot be decoded as {form!r} ({why}); repair or delete it in the source (a copy will do) "
        "and run the import again: what came before is there already"
    )


def _decoded_metadata(values: Values, metadata: bytes | str | None, what: str) -> dict[str, Any]:
    """Metadata is JSON; early versions of the saver wrote it with their serializer."""
    if not metadata:
        return {}
    try:
        read = json.loads(metadata)
    except ValueError:
        raw = metadata.encode() if isinstance(metadata, str) else metadata
        return _decoded_record(values, "msgpack", raw, f"the metadata of {what}")
    if not isinstance(read, dict):
        raise _damaged(f"the metadata of {what}", "json", f"it is no record but {type(read).__name__}")
    return cast("dict[str, Any]", read)
