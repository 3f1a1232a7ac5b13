"""The registry of importers, and the import of a folder part by part.

The command line offers the importers listed here. A source that is a folder has a table of its parts: file
patterns with the loader of each. All parts are read before the first is written, so a file that cannot be
read stops the import while nothing has changed. A part without a loader is counted and reported as not
imported. Functions are named, not imported, so reading the tables costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.errors import InvalidInput, NotFound, Unreachable
from treering.importers.report import FileReport, ImportReport

if TYPE_CHECKING:
    from treering.importers.report import Progress
    from treering.store import Store


Root = Literal["data", "workspace"]


class Importer(msgspec.Struct, frozen=True, kw_only=True):
    """An importer: a function of ``(source, store, *, on_progress, dry_run)``."""

    name: str
    summary: str
    function: str


class FolderPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some files of a folder.

    ``load`` is called with ``(path, store, *, on_progress, dry_run, **options)`` for each file and returns
    its `FileReport`s. Without it, ``count`` is called with the path and returns how much the file holds.
    """

    paths: tuple[str, ...]
    """Glob patterns, relative to the root."""
    holds: str
    root: Root = "data"
    load: str | None = None
    count: str | None = None


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
        summary="Threads that `treering export` wrote",
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


NOT_YET: Final = "this version does not import these"


def import_folder(
    name: str,
    roots: Mapping[Root, Path],
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
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
    files = _read(found, store, None, dry_run=True, options=options)
    if not dry_run:
        files = _read(found, store, on_progress, dry_run=False, options=options)
    return ImportReport(importer=name, source=source, dry_run=dry_run, files=files)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    with open_file(path) as file:
        data = file.read()
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is not JSON ({error}); repair it, nothing was imported") from None


def open_file(path: Path) -> Any:
    """Open a file for reading bytes."""
    try:
        return path.open("rb")
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error


def _found(name: str, roots: Mapping[Root, Path]) -> Iterator[tuple[FolderPart, Path, str]]:
    """Yield each part with its files, and the path of each as it is reported."""
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


def _read(
    found: list[tuple[FolderPart, Path, str]],
    store: Store,
    on_progress: Progress | None,
    *,
    dry_run: bool,
    options: Mapping[str, Any] | None,
) -> tuple[FileReport, ...]:
    reports: list[FileReport] = []
    for part, path, shown in found:
        if part.load is not None:
            made = load_function(part.load)(
                path, store, on_progress=on_progress, dry_run=dry_run, **(options or {})
            )
            reports += [msgspec.structs.replace(each, path=shown) for each in made]
        elif part.count is not None:
            count = load_function(part.count)(path)
            reports.append(
                FileReport(path=shown, holds=part.holds, found=count, left_out=count, note=NOT_YET)
            )
    return tuple(reports)
