"""Import traces that other tools recorded and exported: Langfuse, Phoenix, OTLP files.

All formats are read as spans of OpenTelemetry (`OtlpSpan`), and written as those that arrive over the network
are: a trace is a run, with its messages, tool calls, tokens and cost. The id of a row is made from the ids of
trace and span, so importing again writes nothing twice, also if the run arrived live in the meantime.

Beside each call of a model or tool whose span has its whole request and answer, the exchange is written
(`rebuild`), so that the run can be replayed and rerun. **Invariant:** exchanges are in the same commit as
their span, and the metadata of the run (``replay``) says how many calls can be replayed, and why others
cannot.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.batch import NUMBER_BITS, Draft, validate_batch
from treering.core.clock import from_datetime
from treering.core.ids import check_id
from treering.core.query import EventQuery, each_record
from treering.errors import InvalidInput, NotFound
from treering.importers.lines import (
    UNREADABLE,
    BadLines,
    decode_line,
    open_file,
    raw_lines,
    refuse_bad,
)
from treering.importers.registry import FileReport, ImportReport, Progress, report_of
from treering.importers.traces.rebuild import NotWhole, rebuild_exchange
from treering.runs.exchanges import ExchangeWriter
from treering.runs.otlp.decode import OtlpLog, OtlpSpan
from treering.runs.otlp.ingest import count_rows, write_items
from treering.runs.otlp.logs import run_of
from treering.runs.otlp.traces import Traces
from treering.runs.run import run_ref

if TYPE_CHECKING:
    from treering.runs.otlp.traces import Trace
    from treering.store import Store

Item = OtlpSpan | OtlpLog
Reader = Callable[[Path, str, BadLines], Iterator[Item]]
"""Reads a file, which has this name in reports, and counts what it cannot read."""

REPLAY: Final = "replay"
"""In the metadata of an imported run: ``{"calls": 3, "missing": [...]}``."""

_PER_COMMIT: Final = 1000
_MAX_MISSING: Final = 5
_MAX_SPAN_ID: Final = 400
"""The id of a row also has the end of the trace's."""
_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".pb", ".bin", ".gz")
_GZIP: Final = b"\x1f\x8b"


def import_traces(
    name: str,
    source: str | Path,
    store: Store,
    read: Reader,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
) -> ImportReport:
    """Import the traces of a file, or of all files of a folder."""
    files = _files(Path(source))
    if strict:
        refuse_bad(_Import(name, source, store, dry_run=True).run(files, read, None))
    return _Import(name, source, store, dry_run=dry_run).run(files, read, on_progress)


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    found = sorted(each for each in source.rglob("*") if each.is_file() and each.suffix in _SUFFIXES)
    if not found:
        raise NotFound(f"no exported traces found at {str(source)!r} ({', '.join(_SUFFIXES)})")
    return found


class _Import:
    """One import: what was found, and what of it is new."""

    def __init__(self, name: str, source: str | Path, store: Store, *, dry_run: bool) -> None:
        self._name = name
        self._source = source
        self._store = store
        self._dry_run = dry_run
        self._traces = Traces(store.engine, store.space)
        self._writers: dict[str, ExchangeWriter] = {}
        self._seen: set[tuple[str, str]] = set()
        self._verdicts: dict[str, dict[str, Any]] = {}
        self._found = self._new = 0

    def run(self, files: Sequence[Path], read: Reader, on_progress: Progress | None) -> ImportReport:
        """Import all files, one after the other."""
        reports = [self._file(each, read, on_progress) for each in files]
        report = report_of(self._name, str(self._source), reports, dry_run=self._dry_run)
        cannot = {
            run: "; ".join(verdict["missing"]) or "it has no calls of models"
            for run, verdict in self._verdicts.items()
            if verdict["missing"] or not verdict["calls"]
        }
        return msgspec.structs.replace(report, runs=len(self._verdicts), not_replayable=cannot)

    def _file(self, path: Path, read: Reader, on_progress: Progress | None) -> FileReport:
        bad = BadLines()
        self._found = self._new = 0
        items: list[Item] = []
        with _unpacked(path) as readable:
            for item in read(readable, path.name, bad):
                items.append(item)
                if len(items) >= _PER_COMMIT:
                    self._take(items, path.name, bad, on_progress)
                    items = []
            self._take(items, path.name, bad, on_progress)
        return FileReport(
            path=path.name,
            holds="spans",
            found=self._found + bad.count,
            new=self._new,
            known=self._found - self._new,
            left_out=bad.count,
            note=f"{bad.count} cannot be read" if bad.count else "",
            bad=bad.named,
        )

    def _take(self, items: list[Item], name: str, bad: BadLines, on_progress: Progress | None) -> None:
        """Write what is new of some items together; if one of them cannot be stored, each by itself."""
        sound: list[Item] = []
        for each in items:
            with bad.skipping(f"{name}: {_described(each)}"):
                _check_ids(each)
                sound.append(each)
        fresh = self._unknown(sound)
        self._found += len(sound) - len(fresh)
        for group in (fresh,) if self._can_write(fresh) else ([each] for each in fresh):
            with bad.skipping(f"{name}: {_described(group[0])}" if group else name):
                self._write(group)
                self._found += len(group)
                self._new += len(group)
        if on_progress is not None:
            on_progress(self._found, None)

    def _can_write(self, items: Sequence[Item]) -> bool:
        try:
            self._write(items, only_check=True)
        except UNREADABLE:
            return False
        return True

    def _unknown(self, items: list[Item]) -> list[Item]:
        """Return what is not stored yet, and was not in this source before."""
        traces = self._traces.get([each for each in map(_run_of, items) if each is not None])
        logs = [each for each in items if isinstance(each, OtlpLog)]
        stored: set[str] = set()
        if logs:
            times = [each.ts_us for each in logs]
            query = EventQuery(
                ids=tuple(each.id for each in logs), since_us=min(times), until_us=max(times) + 1
            )
            stored = {each.event.id for each in each_record(self._store.engine, self._store.space, query)}
        fresh: list[Item] = []
        for item in items:
            run = _run_of(item)
            trace = None if run is None else traces[run]
            if isinstance(item, OtlpSpan):
                is_known = trace is not None and trace.row_id(item.id) in trace.spans.parents
            else:
                is_known = item.id in stored
            key = run or "", item.id
            if not is_known and key not in self._seen:
                fresh.append(item)
            self._seen.add(key)
            if trace is not None and run not in self._verdicts:
                before: dict[str, Any] = {} if trace.info is None else trace.info.meta.get(REPLAY) or {}
                self._verdicts[trace.id] = {
                    "calls": before.get("calls", 0),
                    "missing": [*before.get("missing", ())],
                }
        return fresh

    def _write(self, items: Sequence[Item], *, only_check: bool = False) -> None:
        spans: dict[str, list[OtlpSpan]] = {}
        logs: dict[str | None, list[OtlpLog]] = {}
        for each in items:
            if isinstance(each, OtlpSpan):
                spans.setdefault(each.trace, []).append(each)
            else:
                logs.setdefault(run_of(each), []).append(each)
        names = [*spans, *(name for name in logs if name is not None)]
        verdicts = {name: dict(self._verdicts[name]) for name in names}
        exchanges = {name: self._exchanges(group, verdicts[name]) for name, group in spans.items()}
        draft = Draft(self._store.space)
        traces = self._traces.get(names)
        is_written = False
        try:
            write_items(draft, traces, spans, logs)
            for name, pairs in exchanges.items():
                self._write_exchanges(draft, traces[name], pairs)
            for name, trace in traces.items():
                trace.note(source=self._name, **{REPLAY: verdicts[name]})
                trace.write_to(draft)
            validate_batch(draft.batch())
            if not only_check:
                self._verdicts |= verdicts
            if not only_check and not self._dry_run and not draft.is_empty:
                versions = self._store.commit(draft).versions
                for trace in traces.values():
                    trace.mark_written(versions.get(run_ref(trace.id)))
                self._traces.mark_seen(list(traces.values()))
                is_written = True
        finally:
            if not is_written:  # what these remember was not stored
                self._traces.evict(names)
                for name in names:
                    self._writers.pop(name, None)

    def _exchanges(self, spans: Sequence[OtlpSpan], verdict: dict[str, Any]) -> list[Any]:
        """Return the exchanges of spans that hold one, and add to the verdict what the others lack."""
        made: list[Any] = []
        for span in spans:
            try:
                exchange = rebuild_exchange(span)
            except NotWhole as error:
                why = str(error)
                if why not in verdict["missing"] and len(verdict["missing"]) < _MAX_MISSING:
                    verdict["missing"] = [*verdict["missing"], why]
                continue
            if exchange is not None:
                made.append((span, exchange))
                verdict["calls"] += exchange.kind == "http"
        return made

    def _write_exchanges(self, draft: Draft, trace: Trace, pairs: Sequence[Any]) -> None:
        writer = self._writers.get(trace.id)
        if writer is None:
            writer = self._writers[trace.id] = ExchangeWriter(trace.writer)
        for span, exchange in sorted(pairs, key=lambda pair: pair[0].start_us):
            row_id = trace.row_id(span.id)
            named = msgspec.structs.replace(
                exchange, id=f"{row_id}:call", span=row_id, agent=trace.agent_above(row_id, span.sender)
            )
            writer.write(draft, named)
        if pairs:
            count_rows(draft, {trace.id: trace})


def _described(item: Item) -> str:
    return f"span {item.name[:80]!r}" if isinstance(item, OtlpSpan) else f"log {item.event[:80]!r}"


def _check_ids(item: Item) -> None:
    if not isinstance(item, OtlpSpan):
        return
    check_id(item.trace, "trace id")
    for each in (item.id, item.parent):
        if each is not None and len(check_id(each, "span id")) > _MAX_SPAN_ID:
            raise InvalidInput(
                f"span id {each[:40]!r} has {len(each)} characters, the limit is {_MAX_SPAN_ID}"
            )


def _run_of(item: Item) -> str | None:
    return item.trace if isinstance(item, OtlpSpan) else run_of(item)


@contextmanager
def _unpacked(path: Path) -> Generator[Path]:
    """Yield a file as it is, or unpacked if it is gzipped."""
    with open_file(path) as file:
        is_packed = file.read(2) == _GZIP
    if not is_packed:
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="treering-import-") as copy:
        try:
            with gzip.open(path) as packed:
                while block := packed.read(1 << 20):
                    copy.write(block)
        except (OSError, EOFError) as error:
            raise InvalidInput(f"{path} cannot be unpacked ({error}); export it again") from None
        copy.flush()
        yield Path(copy.name)


def each_document(path: Path, name: str, bad: BadLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON objects of a file, each with where it is: one a line, or a list in one document.

    What is neither is counted and named.
    """
    lines = raw_lines(path)
    first = next(lines, None)
    if first is None:
        return
    whole = None if _is_object(first.text) else _whole(path)
    places: Iterable[tuple[str, bytes | None, Any]]
    if whole is not None:
        places = ((f"{name} entry {number}", None, each) for number, each in enumerate(whole, 1))
    else:
        places = ((f"{name} line {each.number}", each.text, None) for each in (first, *lines))
    for place, text, value in places:
        found: Any = value
        with bad.skipping(place):
            found = _object(value if text is None else decode_line(text))
        if isinstance(found, dict):
            yield place, found


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(decode_line(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _whole(path: Path) -> list[Any] | None:
    """Return the entries of a file that is one JSON document; ``None`` if it is not."""
    try:
        value = decode_line(path.read_bytes())
    except (msgspec.DecodeError, OSError):
        return None
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"expected an object, not a {type(value).__name__}")
    return cast("dict[str, Any]", value)


def text_field(fields: Mapping[str, Any], *names: str) -> str:
    """Return the first of these fields that is there, as text; ``""`` if none is."""
    for name in names:
        value = fields.get(name)
        if value is not None:
            if not isinstance(value, (str, int)) or isinstance(value, bool):
                raise InvalidInput(f"{name} is of type {type(value).__name__}, not text")
            return str(value)
    return ""


def parse_micros(value: Any, what: str) -> int:
    """Return an ISO 8601 time (UTC, if it has no offset), or milliseconds, as microseconds."""
    try:
        if type(value) in (int, float):
            micros = round(value * 1000)
        else:
            micros = from_datetime(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{what} is {str(value)[:40]!r}, which is no time") from None
    if not 0 < micros < 1 << NUMBER_BITS:
        raise InvalidInput(f"{what} is {str(value)[:40]!r}, which is out of range")
    return micros
