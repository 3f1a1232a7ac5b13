"""Every importer there is, and every part of a source that is a folder.

This is the one register: the command line offers what stands here, and a folder is imported part by part as
listed. A part without a loader is found and counted, and reported as not imported yet; whoever builds the
view that it belongs to adds the loader here. Loaders are named, not imported, so that the table costs
nothing to read.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Literal

import msgspec

Root = Literal["data", "workspace"]


class Importer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be imported, by a function of ``(source, store, *, on_progress, dry_run)``."""

    name: str
    summary: str
    function: str


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a folder.

    ``load`` is called with ``(path, store, *, on_progress, dry_run, **options)`` for each file and gives
    back its `FileReport`s. Without it, ``count`` is called with the path and says how much there is.
    """

    paths: tuple[str, ...]
    """Patterns below the root."""
    holds: str
    root: Root = "data"
    load: str | None = None
    count: str | None = None


IMPORTERS: Final = (
    Importer(
        name="claude-code",
        summary="The sessions of Claude Code, with what they cost",
        function="treering.importers.claude_code:import_claude_code",
    ),
    Importer(
        name="codex",
        summary="The sessions of Codex, with what they cost",
        function="treering.importers.codex:import_codex",
    ),
    Importer(
        name="jsonl",
        summary="Threads that `treering export` wrote",
        function="treering.importers.jsonl:import_jsonl",
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

PARTS: Final[dict[str, tuple[Part, ...]]] = {
    "agentry": (
        Part(
            paths=("checkpoints.db",), holds="checkpoints", load="treering.importers.agentry:load_checkpoints"
        ),
        Part(
            paths=("transcripts/*.jsonl", "*.jsonl"),
            holds="transcript events",
            load="treering.importers.logs:load_transcript",
        ),
    ),
    "ciana": (
        Part(
            paths=("checkpoints.db",), holds="checkpoints", load="treering.importers.ciana:load_checkpoints"
        ),
        Part(
            paths=("session_counters.json",), holds="counters", load="treering.importers.ciana:load_counters"
        ),
        Part(
            paths=("sessions/*.jsonl",),
            holds="session log entries",
            load="treering.importers.logs:load_session",
        ),
        Part(
            paths=("scheduled_tasks.json",),
            holds="scheduled tasks",
            load="treering.importers.ciana_tasks:load_tasks",
        ),
        Part(
            paths=("cc_user_states.json",),
            holds="user states",
            load="treering.importers.ciana_state:load_user_states",
        ),
        Part(
            paths=("IDENTITY.md", "AGENT.md", "MEMORY.md", "skills/*/SKILL.md"),
            holds="memory files",
            root="workspace",
            load="treering.importers.ciana_memory:load_memory_file",
        ),
    ),
}


def loaded(name: str) -> Any:
    """The function behind ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def importer(name: str) -> Importer:
    """An importer by its name."""
    return next(each for each in IMPORTERS if each.name == name)
