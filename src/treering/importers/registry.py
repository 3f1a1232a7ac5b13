"""The registry of importers, the import of a folder part by part, and the report of an import.

The command line offers the importers listed here. A source that is a folder has a table of its parts: file
patterns with the loader of each. All parts are read before the first is written. A file that cannot be read
is left out and reported, as is a line that cannot be read (see `lines`). Functions are named, not imported,
so reading the tables costs nothing.

A report counts per file what was found, what is new and what was stored already. A dry run reports the same
numbers as the real run that would follow. The importers of coding sessions also sum up tokens and costs by
project and day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import Usage
from treering.core.clock import day_of, to_datetime
from treering.core.query import day_start_us
from treering.errors import InvalidInput, NotFound
from treering.importers.lines import UNREADABLE, refuse_bad
from treering.plugins import load_plugin, plugins
from treering.runs.prices import prices

if TYPE_CHECKING:
    from treering.store import Store

Root = Literal["data", "workspace"]


class Importer(msgspec.Struct, frozen=True, kw_only=True):
    """An importer: a function of ``(source, store, *, on_progress, dry_run, strict)``."""

    name: str
    summary: str
    function: str


class FolderPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some files of a folder.

    ``load`` is called with ``(path, store, *, on_progress, dry_run, **options)`` for each file and returns
    its `FileReport`s.
    """

    paths: tuple[str, ...]
    """Glob patterns, relative to the root."""
    holds: str
    load: str
    root: Root = "data"


IMPORTERS: Final = (
    Importer(
        name="claude-code",
        summary="The sessions of Claude Code, with what they cost",
        function="treering.importers.claude_code.sessions:import_claude_code",
    ),
    Importer(
        name="codex",
        summary="The sessions of Codex, with what they cost",
        function="treering.importers.codex:import_codex",
    ),
    Importer(
        name="jsonl",
        summary="Threads that `treering export jsonl` wrote",
        function="treering.importers.jsonl_import:import_jsonl",
    ),
    Importer(
        name="langgraph",
        summary="The database of LangGraph's SqliteSaver or PostgresSaver",
        function="treering.importers.langgraph:import_langgraph",
    ),
    Importer(
        name="agentry",
        summary="The outputs folder (or checkpoints.db) of Agentry Lab",
        function="treering.importers.agentry:import_agentry",
    ),
    Importer(
        name="orchestrator-log",
        summary="The application logs of the Orchestrator",
        function="treering.importers.orchestrator_log:import_orchestrator_log",
    ),
    Importer(
        name="evolve",
        summary="The session logs of Evolve, and the metadata of its checkpoints",
        function="treering.importers.evolve:import_evolve",
    ),
    Importer(
        name="ciana",
        summary="The data folder of a CianaParrot agent",
        function="treering.importers.ciana:import_ciana",
    ),
    Importer(
        name="langfuse",
        summary="Traces that Langfuse exported",
        function="treering.importers.traces.langfuse:import_langfuse",
    ),
    Importer(
        name="phoenix",
        summary="Spans that Phoenix exported",
        function="treering.importers.traces.phoenix:import_phoenix",
    ),
    Importer(
        name="otlp",
        summary="Files of OpenTelemetry, as the Collector writes them",
        function="treering.importers.traces.otlp:import_otlp",
    ),
)

PARTS: Final[dict[str, tuple[FolderPart, ...]]] = {
    "agentry": (
        FolderPart(
            paths=("checkpoints.db",), holds="checkpoints", load="treering.importers.agentry:load_checkpoints"
        ),
        FolderPart(
            paths=("transcripts/*.jsonl", "*.jsonl"),
            holds="transcript events",
            load="treering.importers.logs:load_transcript",
        ),
    ),
    "ciana": (
        FolderPart(
            paths=("checkpoints.db",), holds="checkpoints", load="treering.importers.ciana:load_checkpoints"
        ),
        FolderPart(
            paths=("session_counters.json",), holds="counters", load="treering.importers.ciana:load_counters"
        ),
        FolderPart(
            paths=("sessions/*.jsonl",),
            holds="session log entries",
            load="treering.importers.logs:load_session",
        ),
        FolderPart(
            paths=("scheduled_tasks.json",),
            holds="scheduled tasks",
            load="treering.importers.ciana:load_tasks",
        ),
        FolderPart(
            paths=("cc_user_states.json",),
            holds="user states",
            load="treering.importers.ciana:load_user_states",
        ),
        FolderPart(
            paths=("IDENTITY.md", "AGENT.md", "MEMORY.md", "skills/*/SKILL.md"),
            holds="memory files",
            root="workspace",
            load="treering.importers.ciana:load_memory_file",
        ),
    ),
}


def load_function(name: str) -> Any:
    """Import the function named by ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def importer(name: str) -> Importer:
    """Return an importer by its name."""
    return next(each for each in IMPORTERS if each.name == name)


def find_importer(name: str) -> Callable[..., ImportReport]:
    """Return the function of an importer: one of those here, or one that an installed package adds."""
    for each in IMPORTERS:
        if each.name == name:
            return load_function(each.function)
    found = load_plugin("importers", name)
    if found is None:
        names = ", ".join(sorted({*(each.name for each in IMPORTERS), *plugins("importers")}))
        raise InvalidInput(f"importer {name!r} is unknown; use one of: {names}")
    return found


_UNREADABLE: Final = "the file cannot be read"


_Part = tuple[FolderPart, Path, str]
"""A part, one of its files, and the path of that file as it is reported."""


def import_folder(
    name: str,
    roots: Mapping[Root, Path],
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
    options: Mapping[str, Any] | None = None,
) -> ImportReport:
    """Import the parts that the table lists for ``name`` from these folders."""
    for root in roots.values():
        if not root.is_dir():
            raise NotFound(f"folder {str(root)!r} not found; give the data folder of {name}")
    found = list(_found(name, roots))
    source = str(roots["data"])
    if not found:
        expected = ", ".join(part.paths[0] for part in PARTS[name] if part.root in roots)
        raise NotFound(f"{source} has no data of {name} (looked for {expected})")
    parts, files = _check(found, store, options or {})
    report = report_of(name, source, files)
    if strict:
        refuse_bad(report)
    if not parts:
        raise InvalidInput(f"{source}: {'; '.join(report.bad)}; nothing was imported")
    if not dry_run:
        unreadable = [each for each in files if each.note == _UNREADABLE]
        loaded = [
            each for part in parts for each in _load(part, store, on_progress, options or {}, dry_run=False)
        ]
        report = report_of(name, source, [*loaded, *unreadable], dry_run=False)
    return report


def report_of(name: str, source: str, files: Iterable[FileReport], *, dry_run: bool = True) -> ImportReport:
    """Return the report on some files, with all that could not be read."""
    files = tuple(files)
    bad = tuple(f"{file.path} {each}" for file in files for each in file.bad)
    return ImportReport(importer=name, source=source, dry_run=dry_run, files=files, bad=bad)


def _found(name: str, roots: Mapping[Root, Path]) -> Iterator[_Part]:
    for part in PARTS[name]:
        root = roots.get(part.root)
        if root is None:
            continue
        seen: set[Path] = set()
        for pattern in part.paths:
            for path in sorted(root.glob(pattern)):
                if path.is_file() and path not in seen:
                    seen.add(path)
                    shown = path.relative_to(root).as_posix()
                    yield part, path, shown if part.root == "data" else f"{part.root}/{shown}"


def _check(
    found: list[_Part], store: Store, options: Mapping[str, Any]
) -> tuple[list[_Part], list[FileReport]]:
    """Read all parts without writing. Return those that can be read, and the reports on all."""
    readable: list[_Part] = []
    files: list[FileReport] = []
    for each in found:
        part, path, shown = each
        try:
            files += _load(each, store, None, options, dry_run=True)
            readable.append(each)
        except UNREADABLE as error:
            why = str(error).removeprefix(str(path)).lstrip(": ")
            files.append(
                FileReport(path=shown, holds=part.holds, found=1, left_out=1, note=_UNREADABLE, bad=(why,))
            )
    return readable, files


def _load(
    each: _Part,
    store: Store,
    on_progress: Progress | None,
    options: Mapping[str, Any],
    *,
    dry_run: bool,
) -> list[FileReport]:
    part, path, shown = each
    made = load_function(part.load)(path, store, on_progress=on_progress, dry_run=dry_run, **options)
    return [msgspec.structs.replace(file, path=shown) for file in made]


def added(one: Usage | None, other: Usage) -> Usage:
    """Return the sum of two counts, class by class."""
    return _by_class(one or Usage(), other, 1)


def without(one: Usage, other: Usage | None) -> Usage:
    """Return the difference of two counts, in no class below zero."""
    return one if other is None else _by_class(one, other, -1)


def covers(whole: Usage, part: Usage) -> bool:
    """Return whether a count is at least another one in every class."""
    return all(getattr(whole, name) >= getattr(part, name) for name in Usage.__struct_fields__)


def _by_class(one: Usage, other: Usage, sign: int) -> Usage:
    return Usage(
        **{name: max(getattr(one, name) + sign * getattr(other, name), 0) for name in Usage.__struct_fields__}
    )


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one project used on one day."""

    project: str
    day: str
    runs: int = 0
    usage: Usage = Usage()
    nanos: dict[str, int] = {}
    """Money by currency, in nano-units."""
    unpriced_tokens: int = 0


class Tally:
    """Sums usage by project and day while sessions are read."""

    def __init__(self, given: Iterable[Spent] = ()) -> None:
        self._days: dict[tuple[str, str], Spent] = {}
        for each in given:
            self.add(each)

    def add(self, spent: Spent) -> None:
        """Add a sum from elsewhere."""
        known = self._at(spent.project, spent.day)
        nanos = dict(known.nanos)
        for currency, amount in spent.nanos.items():
            nanos[currency] = nanos.get(currency, 0) + amount
        self._days[spent.project, spent.day] = Spent(
            project=spent.project,
            day=spent.day,
            runs=known.runs + spent.runs,
            usage=added(known.usage, spent.usage),
            nanos=nanos,
            unpriced_tokens=known.unpriced_tokens + spent.unpriced_tokens,
        )

    def run(self, project: str, ts_us: int) -> None:
        """Count a run."""
        self.add(Spent(project=project, day=_day(ts_us), runs=1))

    def used(self, project: str, ts_us: int, model: str | None, usage: Usage) -> None:
        """Add the tokens of a message, at their price."""
        priced = None if model is None else prices.price(model, usage, ts_us)
        self.add(
            Spent(
                project=project,
                day=_day(ts_us),
                usage=usage,
                nanos={} if priced is None else {priced.currency: priced.nanos},
                unpriced_tokens=usage.total if priced is None else 0,
            )
        )

    @property
    def spent(self) -> tuple[Spent, ...]:
        """All sums, by day and project."""
        return tuple(sorted(self._days.values(), key=lambda each: (each.day, each.project)))

    def _at(self, project: str, day: str) -> Spent:
        return self._days.get((project, day)) or Spent(project=project, day=day)


def _day(ts_us: int) -> str:
    return to_datetime(day_start_us(day_of(ts_us))).date().isoformat()


Progress = Callable[[int, int | None], None]
"""Called from time to time with how much is done and, where known, of how much."""


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file (or table, or folder of files) of a source."""

    path: str
    """Its path inside the source."""
    holds: str
    """What is counted, in the plural: ``checkpoints``, ``counters``."""
    found: int
    new: int = 0
    """Written now; in a dry run, what would be written."""
    known: int = 0
    """Stored already, by an earlier import."""
    left_out: int = 0
    """Found and not imported; ``note`` says why."""
    note: str = ""
    bad: tuple[str, ...] = ()
    """What could not be read and was skipped, with the reason."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """One import, file by file."""

    importer: str
    source: str
    dry_run: bool
    files: tuple[FileReport, ...]
    lines: int = 0
    """Lines that were read; files that have not changed since the last import are not read again."""
    seconds: float = 0.0
    """The duration, where it is measured."""
    unknown: dict[str, int] = {}
    """Lines of unknown types, which were stored as they are, by type."""
    bad: tuple[str, ...] = ()
    """Lines that could not be read and were skipped: file, number and reason."""
    spent: tuple[Spent, ...] = ()
    """What all sessions of the source used, by project and day."""
    runs: int = 0
    """Of traces: how many runs they are."""
    not_replayable: dict[str, str] = {}
    """Of traces: the runs that cannot be replayed, and what each lacks."""

    @property
    def new(self) -> int:
        """How much was written over all files; 0 if everything was stored already."""
        return sum(each.new for each in self.files)
