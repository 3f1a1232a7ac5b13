"""Import the application logs of the Orchestrator: JSON Lines, some of which name a run.

A line belongs to the run that it names, in a field or in its text; lines without a run, and debug output, are
counted and skipped. A line becomes a message of its run, with the time, agent, role, model, tokens and cost
that it has. **Invariant:** a run is written in one transaction. Ids are compared as a whole, so ``run-1``
never gets the lines of ``run-10``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.clock import DAY_US, SECOND_US
from treering.core.ids import check_id
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.importers.claude_code.turns import MAX_TOKENS, MAX_US, time_us
from treering.importers.lines import BadLines, decode_object, raw_lines, refuse_bad
from treering.importers.recording import BatchRecorder
from treering.importers.registry import FileReport, ImportReport
from treering.runs.run import Run, run_from_ref, run_ref
from treering.runs.span import usage_of

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.importers.registry import Progress
    from treering.store import Store

_TIMES: Final = ("timestamp", "ts", "time", "@timestamp", "asctime", "created", "t")
_TEXTS: Final = ("message", "msg", "event", "text", "content")
_RUNS: Final = ("run_id", "runId", "run")
_PROJECTS: Final = ("project_id", "projectId", "project")
_AGENTS: Final = ("agent", "agent_name", "agent_id")
_LEVELS: Final = ("level", "levelname", "severity")
_INSIDE: Final = ("extra", "context", "data", "record", "fields")
"""Fields in which loggers put extra values."""
_ROLES: Final = frozenset({"user", "assistant", "system", "tool"})
_QUIET: Final = frozenset({"debug", "trace", "notset"})
_FAILED: Final = frozenset({"error", "critical", "fatal"})
_IN_TEXT: Final = re.compile(r"\brun[_ -]?id\s*[=:]?\s*[\"']?([A-Za-z0-9][A-Za-z0-9_.:-]*)", re.IGNORECASE)
_UUID_IN_TEXT: Final = re.compile(
    r"\brun\s+[\"']?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b", re.IGNORECASE
)
_PROJECT_IN_TEXT: Final = re.compile(r"\bproject(?:[_ -]?id)?\s*[=:]?\s*[\"']?(\d+)\b", re.IGNORECASE)
_MILLISECONDS: Final = 10**11
"""Larger numbers are milliseconds since 1970, not seconds."""
_IDS_PER_QUERY: Final = 400


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log that belongs to a run."""

    id: str
    run: str
    ts_us: int
    text: Any
    level: str
    role: str = "system"
    project_id: int | None = None
    agent: str | None = None
    model: str | None = None
    usage: Usage | None = None
    cost: str | None = None


def import_orchestrator_log(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
) -> ImportReport:
    """Import a log file, or all ``*.jsonl`` files of a folder. A run may span several files."""
    path = Path(source)
    if not path.exists():
        raise NotFound(f"{str(source)!r} not found; pass a log file of the Orchestrator")
    if strict:
        refuse_bad(import_orchestrator_log(path, store, dry_run=True))
    files = [path] if path.is_file() else sorted(each for each in path.glob("*.jsonl") if each.is_file())
    if not files:
        raise NotFound(f"{path} contains no *.jsonl files")
    runs: dict[str, list[LogLine]] = {}
    logs = [_LogFile(each) for each in files]
    for log in logs:
        for line in log.lines:
            runs.setdefault(line.run, []).append(line)
    known: set[str] = set()
    for done, (run_id, lines) in enumerate(runs.items(), 1):
        known |= _write(store, run_id, lines, dry_run=dry_run)
        if on_progress is not None:
            on_progress(done, len(runs))
    return ImportReport(
        importer="orchestrator-log",
        source=str(path),
        dry_run=dry_run,
        files=tuple(log.report(known) for log in logs),
        lines=sum(log.found for log in logs),
        bad=tuple(each for log in logs for each in log.bad.named),
    )


class _LogFile:
    """A log file, read completely."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[LogLine] = []
        self.bad = BadLines()
        self.found = 0
        self._without_run = 0
        self._quiet = 0
        seen: Counter[bytes] = Counter()
        for raw in raw_lines(path):
            self.found += 1
            seen[raw.text] += 1
            with self.bad.skipping(path.name, raw.number):
                self._add(decode_object(raw.text), raw.text, seen[raw.text])

    def _add(self, value: dict[str, Any], text: bytes, times: int) -> None:
        run = _run_of(value)
        if run is None:
            self._without_run += 1
        elif _level(value) in _QUIET:
            self._quiet += 1
        else:
            self.lines.append(_line(value, check_id(run, "run id"), text, times))

    def report(self, known: set[str]) -> FileReport:
        present = sum(line.id in known for line in self.lines)
        notes = {
            "without a run": self._without_run,
            "debug output": self._quiet,
            "invalid": self.bad.count,
        }
        return FileReport(
            path=self.path.name,
            holds="lines",
            found=self.found,
            new=len(self.lines) - present,
            known=present,
            left_out=sum(notes.values()),
            note=", ".join(f"{count:,} {what}" for what, count in notes.items() if count),
        )


def _write(store: Store, run_id: str, lines: list[LogLine], *, dry_run: bool) -> set[str]:
    """Write the new lines of a run in one commit; return the ids that were already present."""
    lines = sorted(lines, key=lambda line: line.ts_us)
    known = _known(store, lines)
    new = [line for line in lines if line.id not in known]
    if dry_run or not new:
        return known
    ref = store.engine.refs(store.space, [run_ref(run_id)]).get(run_ref(run_id))
    existing = None if ref is None else run_from_ref(ref)
    recorder = BatchRecorder()
    run = Run(
        recorder,
        recorder,
        agent=next((line.agent for line in lines if line.agent), None),
        thread=None if existing is None else existing.thread,
        namespace="" if existing is None else existing.namespace,
        id=run_id,
        project_id=next((line.project_id for line in lines if line.project_id is not None), None),
        meta={"imported_from": "orchestrator-log"},
        tags=("orchestrator-log",),
    )
    is_ours = existing is None or "orchestrator-log" in existing.tags
    first_us = lines[0].ts_us if existing is None else min(lines[0].ts_us, existing.started_at_us)
    if is_ours:
        recorder.at_us = first_us
        run.start()
    for line in new:
        run.message(
            line.role,
            line.text,
            id=line.id,
            ts_us=line.ts_us,
            agent=line.agent,
            model=line.model,
            usage=line.usage,
            cost=line.cost,
            currency="EUR",
            metadata={"level": line.level},
        )
    if is_ours:
        ended_us = None if existing is None else existing.ended_at_us
        recorder.at_us = max(lines[-1].ts_us, ended_us or 0)
        run.end(status="error" if lines[-1].level in _FAILED else "ok")
    recorder.write(store, whole=True)
    return known


def _known(store: Store, lines: Iterable[LogLine]) -> set[str]:
    known: set[str] = set()
    days: dict[int, list[str]] = {}
    for line in lines:
        days.setdefault(line.ts_us // DAY_US, []).append(line.id)
    for day, ids in days.items():
        for start in range(0, len(ids), _IDS_PER_QUERY):
            query = EventQuery(
                ids=tuple(ids[start : start + _IDS_PER_QUERY]),
                since_us=day * DAY_US,
                until_us=(day + 1) * DAY_US,
            )
            page = store.engine.scan(store.space, query, limit=_IDS_PER_QUERY)
            known.update(record.event.id for record in page.records)
    return known


def _line(value: Mapping[str, Any], run: str, text: bytes, times: int) -> LogLine:
    ts_us = _time(_first(value, _TIMES))
    if ts_us is None:
        raise InvalidInput(f"run {run!r} without a time ({', '.join(_TIMES)})")
    role = _first(value, ("role",))
    agent = _first(value, _AGENTS)
    model = _first(value, ("model",))
    cost = _first(value, ("cost_eur",))
    digest = sha256(b"\0".join((run.encode(), b"%d" % times, text))).hexdigest()
    return LogLine(
        id=f"orchestrator-{digest[:32]}",
        run=run,
        ts_us=ts_us,
        text=_first(value, _TEXTS) or dict(value),
        level=_level(value),
        role=role if role in _ROLES else "system",
        project_id=_project(value),
        agent=agent if isinstance(agent, str) and agent else None,
        model=model if isinstance(model, str) else None,
        usage=_usage(_first(value, ("tokens", "usage"))),
        cost=str(cost) if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None,
    )


def _first(value: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the first of these fields that a line has, at its top level or among its extra values."""
    inside = [cast("dict[str, Any]", each) for name in _INSIDE if isinstance(each := value.get(name), dict)]
    for fields in (value, *inside):
        for name in names:
            found: Any = fields.get(name)
            if found is not None and not (isinstance(found, dict) and name not in {"tokens", "usage"}):
                return cast("Any", found)
    return None


def _run_of(value: Mapping[str, Any]) -> str | None:
    named = _first(value, _RUNS)
    if isinstance(named, (str, int)) and not isinstance(named, bool) and str(named):
        return str(named)
    text = _first(value, _TEXTS)
    if not isinstance(text, str):
        return None
    found = _IN_TEXT.search(text) or _UUID_IN_TEXT.search(text)
    return None if found is None else found[1].rstrip(".:-")


def _project(value: Mapping[str, Any]) -> int | None:
    named = _first(value, _PROJECTS)
    if isinstance(named, bool):
        return None
    if isinstance(named, int):
        return named
    if isinstance(named, str) and named.isdecimal():
        return int(named)
    text = _first(value, _TEXTS)
    found = _PROJECT_IN_TEXT.search(text) if isinstance(text, str) else None
    return None if found is None else int(found[1])


def _level(value: Mapping[str, Any]) -> str:
    level = _first(value, _LEVELS)
    return level.lower() if isinstance(level, str) else "info"


def _time(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)) and value > 0:
        ts_us = round(value * (1000 if value >= _MILLISECONDS else SECOND_US))
        return ts_us if ts_us < MAX_US else None
    if isinstance(value, str):
        return time_us(value.replace(",", "."))  # asctime writes its milliseconds behind a comma
    return None


def _usage(value: Any) -> Usage | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKENS:
        return usage_of({"total": value})
    try:
        return usage_of(cast("dict[str, Any]", value)) if isinstance(value, dict) else None
    except InvalidInput:
        return None
