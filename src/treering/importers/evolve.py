"""Import what Evolve leaves on disk: its session logs, and the metadata of its checkpoints.

A session log (treering's own sandboxes write the same) is a file of JSON lines: ``_meta`` describes the
session, each ``_prompt`` starts a run, and everything in between is the unchanged output of the agent. Claude
Code and Codex have formats of their own, other agents use ACP. The log becomes the thread ``evolve/<tag>``
with a run for each prompt; every line is also stored unchanged. A run that is not finished (no further
prompt, no ``_sessionEnd``, and the file is recent) waits for the next import. The metadata of a checkpoint (a
JSON file with ``id``, ``hash`` and ``tag``) becomes an event of that thread; the archive itself is not
imported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.batch import Draft, Event
from treering.core.encoding import encode_json
from treering.core.ids import check_id
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.importers.claude_code.turns import time_us
from treering.importers.lines import BadLines, RawLine, decode_line, raw_lines, read_json, refuse_bad
from treering.importers.registry import FileReport, ImportReport
from treering.importers.sessions import ImportedSession, SessionImporter, SessionReader, Turn, title_of
from treering.importers.streams import Stream, StreamFormat

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.importers.registry import Progress
    from treering.store import Store

TOOL: Final = "evolve"
DEFAULT: Final = "~/.evolve-sdk/observability/sessions"
CHECKPOINT: Final = "evolve.checkpoint"

_AT_ONCE: Final = 200
META: Final = "_meta"
PROMPT: Final = "_prompt"
COMMAND: Final = "_command"
END: Final = "_sessionEnd"
OUTPUTS: Final = ("_stdout", "_stderr")
"""Output that is not JSON, as our own sandboxes log it."""

_LOG_NAME: Final = re.compile(
    r"(.+?-[0-9a-f]{16}|[^_]+)_([^_]+)_(.+)_([^_]+)_(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d)((?:-\d+)?Z?)"
)
"""``{tag}_{provider}_{sandbox_id}_{agent}_{timestamp}``."""

_FORMATS: Final[dict[str, StreamFormat]] = {"claude": "claude-code", "codex": "codex"}


class EvolveCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a checkpoint, as Evolve stores it in a bucket."""

    id: str
    hash: str
    tag: str
    timestamp: str
    size_bytes: int | None = None
    agent_type: str | None = None
    model: str | None = None
    workspace_mode: str | None = None
    parent_id: str | None = None
    comment: str | None = None


def import_evolve(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
) -> ImportReport:
    """Import session logs (``*.jsonl``) and checkpoint metadata (``*.json``) below a folder, or one file."""
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"{str(source)!r} not found; Evolve keeps its session logs in {DEFAULT}")
    if strict:
        refuse_bad(import_evolve(path, store, dry_run=True))
    began = time.perf_counter()
    bad = BadLines()
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*.json*") if each.is_file())
    logs = [(each, meta) for each in files if each.suffix == ".jsonl" and (meta := read_meta(each))]
    infos: list[EvolveCheckpoint] = []
    for each in files:
        with bad.skipping(each.name):
            if each.suffix == ".json" and (info := _read_checkpoint(each)) is not None:
                infos.append(info)
    if not logs and not infos:
        raise NotFound(f"no session log and no checkpoint of Evolve found in {path}; try {DEFAULT}")
    root = path if path.is_dir() else path.parent
    importer = SessionImporter(TOOL, store, dry_run=dry_run)
    for done, (each, meta) in enumerate(logs, 1):
        importer.take(root.name or "sessions", meta.tag, [each], partial(EvolveSession, path=each, meta=meta))
        if on_progress is not None:
            on_progress(done, len(logs))
    report = importer.report(str(path), seconds=time.perf_counter() - began)
    others = sum(each.suffix == ".jsonl" for each in files) - len(logs)
    more = [_import_checkpoints(store, infos, bad.count, dry_run=dry_run)] if infos or bad.count else []
    if others:
        note = f"no session logs: their first line is no {META}"
        more.append(FileReport(path=str(path), holds="other files", found=others, left_out=others, note=note))
    return msgspec.structs.replace(report, files=(*report.files, *more), bad=(*report.bad, *bad.named))


class LogMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a session log."""

    tag: str
    provider: str | None = None
    agent: str = "agent"
    model: str | None = None
    sandbox_id: str | None = None
    timestamp: str | None = None


class _LogLine(msgspec.Struct, frozen=True, kw_only=True):
    raw: RawLine
    value: Any
    id: str
    ts_us: int


class EvolveSession(SessionReader):
    """Reads the file of a session."""

    def __init__(
        self,
        session: ImportedSession,
        sizes: Mapping[Path, int],
        *,
        is_quiet: bool,
        path: Path,
        meta: LogMeta,
    ) -> None:
        super().__init__(session, sizes, is_quiet=is_quiet)
        self.agent = self.project = meta.agent
        self._path = path
        self._meta = meta
        self._used: dict[str, Usage] = {}

    @property
    def state(self) -> dict[str, Any]:
        """The state of the thread's checkpoints, beside their messages."""
        return {name: each for name, each in msgspec.structs.asdict(self._meta).items() if each is not None}

    def read(self) -> None:
        """Read the file."""
        lines = self._read_lines()
        if not lines:
            return
        times = [line.ts_us for line in lines]
        session = self.session
        session.look_up([line.id for line in lines], since_us=min(times), until_us=max(times))
        parts = _split_by_prompt(lines)
        is_ended = any(_has(line, END) for line in lines) or self._is_quiet
        for place, part in enumerate(parts):
            if place == 0:
                self._store_lines(part, None)
            elif place < len(parts) - 1 or is_ended:
                self._read_run(place, part)
            else:
                self.is_over = False
                self.left = sum(line.id not in session.known for line in part)
        self.lines = len(lines)
        self.known = sum(line.id in session.known for line in lines)

    def _read_lines(self) -> list[_LogLine]:
        found: list[_LogLine] = []
        at_us = time_us(self._meta.timestamp) or self._path.stat().st_mtime_ns // 1000
        for raw in raw_lines(self._path, self._sizes[self._path]):
            with self.bad.skipping(self._path.name, raw.number):
                value = decode_line(raw.text)
                own_us = (
                    time_us(cast("dict[str, Any]", value).get("timestamp"))
                    if isinstance(value, dict)
                    else None
                )
                at_us = max(own_us or 0, at_us + 1)  # keeps lines without a time in order
                text = b"\0".join((self.session.thread.encode(), b"%d" % raw.number, raw.text))
                id_ = f"evolve-{sha256(text).hexdigest()[:32]}"
                found.append(_LogLine(raw=raw, value=value, id=id_, ts_us=at_us))
        return found

    def _store_lines(self, lines: list[_LogLine], run: str | None) -> None:
        for line in lines:
            self.session.keep(line.raw, id=line.id, kind=_kind(line), ts_us=line.ts_us, run=run)

    def _read_run(self, place: int, lines: list[_LogLine]) -> None:
        """Read a prompt and its output."""
        session, meta = self.session, self._meta
        id_ = f"{session.thread}/{place}"
        prompt = _prompt(lines[0].value)
        session.look_up_run(id_)
        about = {"sandbox_id": meta.sandbox_id, "provider": meta.provider, "prompt": title_of(prompt)}
        run, _ = self.start_run(id_, lines[0].ts_us, about)
        if f"{id_}/prompt" not in session.known:
            run.message("user", prompt, id=f"{id_}/prompt", ts_us=lines[0].ts_us)
        summary = self._read_stream(run, id_, lines[1:])
        self._store_lines(lines, id_)
        self._used = summary.usage or self._used
        self.unknown.update(summary.unknown)
        self.end_run(run, lines[-1].ts_us, "error" if summary.is_error else "ok")
        said = [{"role": "user", "content": prompt}]
        if summary.result is not None:
            said.append({"role": "assistant", "content": summary.result})
        self.turns.append(
            Turn(
                id=id_,
                began_us=lines[0].ts_us,
                parent=len(self.turns) - 1 if self.turns else None,
                keep=self.turns[-1].length if self.turns else 0,
                said=said,
            )
        )

    def _read_stream(self, run: Any, id_: str, lines: list[_LogLine]) -> Any:
        notes = self.session.notes
        stream = Stream(
            run,
            _FORMATS.get(self._meta.agent, "acp"),
            model=self._meta.model,
            before=self._used,
            clock=notes,
            id_of=lambda name: f"{id_}/{name}",
            is_live=False,
            known=self.session.known.keys(),
            on_usage=self.session.count_usage(self._meta.agent),
        )
        for line in lines:
            if not any(_has(line, mark) for mark in (END, *OUTPUTS)):
                notes.at_us = line.ts_us
                stream.take(line.raw.text)
        return stream.finish()


def read_meta(path: Path) -> LogMeta | None:
    """Return the first line of a session log; ``None`` if the file is not one.

    If that line cannot be read, the name of the file says the same.
    """
    for raw in raw_lines(path):
        try:
            meta = msgspec.json.decode(raw.text, type=dict[str, LogMeta])[META]
            check_id(meta.tag, "tag")
            check_id(meta.agent, "agent")
            return meta
        except KeyError:
            return None
        except (InvalidInput, ValueError, RecursionError):  # a ValueError is also what msgspec raises
            return _meta_of_name(path.stem)
    return None


def _meta_of_name(name: str) -> LogMeta | None:
    named = _LOG_NAME.fullmatch(name)
    if named is None:
        return None
    tag, provider, sandbox_id, agent, day, hour, minute, second, rest = named.groups()
    timestamp = f"{day}T{hour}:{minute}:{second}" + rest.replace("-", ".", 1)
    return LogMeta(tag=tag, provider=provider, agent=agent, sandbox_id=sandbox_id, timestamp=timestamp)


def _split_by_prompt(lines: list[_LogLine]) -> list[list[_LogLine]]:
    """Return the lines before the first prompt, then those of each prompt."""
    parts: list[list[_LogLine]] = [[]]
    for line in lines:
        if _has(line, PROMPT) or _has(line, COMMAND):
            parts.append([])
        parts[-1].append(line)
    return parts


def _has(line: _LogLine, mark: str) -> bool:
    value: Any = line.value
    return isinstance(value, dict) and mark in cast("dict[str, Any]", value)


def _kind(line: _LogLine) -> str:
    return next(
        (mark.strip("_") for mark in (META, PROMPT, COMMAND, END, *OUTPUTS) if _has(line, mark)), "payload"
    )


def _prompt(value: Any) -> Any:
    prompt: Any = value.get(PROMPT) or value.get(COMMAND)
    return cast("dict[str, Any]", prompt).get("text") if isinstance(prompt, dict) else prompt


def _read_checkpoint(path: Path) -> EvolveCheckpoint | None:
    """Return the metadata of a checkpoint; ``None`` for a JSON file of something else."""
    value: Any = read_json(path)
    if not isinstance(value, dict) or not {"id", "hash", "tag"} <= cast("dict[str, Any]", value).keys():
        return None
    return msgspec.convert(value, EvolveCheckpoint)


def _import_checkpoints(
    store: Store, infos: list[EvolveCheckpoint], bad: int, *, dry_run: bool
) -> FileReport:
    known: set[str] = set()
    for start in range(0, len(infos), _AT_ONCE):
        ids = tuple(info.id for info in infos[start : start + _AT_ONCE])
        query = EventQuery(ids=ids, kinds=(CHECKPOINT,))
        known.update(record.event.id for record in store.engine.scan(store.space, query).records)
    new = [info for info in infos if info.id not in known]
    for start in range(0, 0 if dry_run else len(new), _AT_ONCE):
        draft = Draft(store.space)
        for info in new[start : start + _AT_ONCE]:
            draft.event(_event(store, info))
        store.commit(draft)
    return FileReport(
        path="checkpoints",
        holds="checkpoints",
        found=len(infos) + bad,
        new=len(new),
        known=len(infos) - len(new),
        left_out=bad,
        note="metadata only; the archives are not imported" + (f"; {bad} cannot be read" if bad else ""),
    )


def _event(store: Store, info: EvolveCheckpoint) -> Event:
    session = ImportedSession(store, TOOL, info.tag)
    fields: dict[str, Any] = {
        name: each for name, each in msgspec.structs.asdict(info).items() if each is not None
    }
    return Event(
        id=info.id,
        kind=CHECKPOINT,
        ts_us=time_us(info.timestamp) or 0,
        scope=session.scope,
        thread=session.key,
        agent=info.agent_type,
        model=info.model,
        name=info.comment or "checkpoint",
        data=encode_json(fields),
    )
