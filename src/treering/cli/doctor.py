"""``treering doctor``: check the installation, its settings and a store, and say what to do.

Each check is a function that yields findings. Nothing is changed: a store with an older schema is not opened
(that would migrate it), nothing is committed and no content is read. **Invariant:** findings show no secrets.

The exit code is 1 if anything is broken, and 0 if there are only warnings and notes.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from treering.cli.console import clean, counted, rows, show, size
from treering.cli.options import JsonOption, StorePlace, takes_store
from treering.plugins import GROUPS, plugins

if TYPE_CHECKING:
    from treering.api import StoreLocation
    from treering.store import Store

Status = Literal["ok", "note", "warning", "broken"]

_MARKS: Final = {"ok": "ok", "note": "note", "warning": "WARNING", "broken": "BROKEN"}
_MB: Final = 1_000_000
_MIN_FREE_BYTES: Final = 100 * _MB
_LOW_FREE_BYTES: Final = 1000 * _MB
_LONG_WAL_BYTES: Final = 256 * _MB
_CLOCK_SKEW_US: Final = 5_000_000
_OVERDUE_US: Final = 300_000_000
_LONG_CLAIMED_US: Final = 600_000_000
_RUNS: Final = 1000
_SHOWN: Final = 3
_EARLIEST_TIME: Final = 1_767_225_600
"""2026-01-01: an earlier clock was never set."""
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)[^;]*?(?:[>=]=\s*(?P<least>[0-9.]+))?[^;]*;.*extra\s*==\s*['\"](?P<extra>[^'\"]+)"
)
_COMBINED_EXTRAS: Final = frozenset({"all", "frameworks"})
"""Extras that only combine others."""
_SHOWN_SETTINGS: Final = frozenset({"TREERING_URL", "TREERING_BLOBS"})
"""Settings whose values are shown, without secrets; of all others, only that they are set."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check, and what to do about it."""

    what: str
    status: Status
    detail: str
    advice: str = ""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("doctor")(doctor)


@takes_store
def doctor(
    *,
    verify: Annotated[bool, typer.Option(help="Check every row and link; slow for a large store.")] = True,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Folder of the MEMORY.md that git must ignore.")
    ] = Path(),
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Let a store that lost its newest commits open as it is."),
    ] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration and the store, and say what to do.

    Examples:
        treering doctor
        treering doctor --json
    """
    from treering.api import accept_loss as accept
    from treering.api import locate

    located = locate(place.store)
    if accept_loss:
        accept(place.store)
    findings = [
        *check_installation(),
        *check_settings(place.store, located),
        *check_clock(),
        *_check_store(place, located, verify=verify),
        *check_private_files(folder),
        *check_extras(),
    ]
    broken = sum(each.status == "broken" for each in findings)
    warnings = sum(each.status == "warning" for each in findings)
    result = {"ok": not broken, "broken": broken, "warnings": warnings, "findings": findings}
    show(result, _lines(findings, broken, warnings), as_json=as_json)
    if broken:
        raise typer.Exit(1)


def _check_store(place: StorePlace, located: StoreLocation, *, verify: bool) -> Iterator[Finding]:
    from treering.errors import TreeringError
    from treering.maintenance.stats import user_spaces

    presence = list(check_presence(located))
    yield from presence
    if presence[-1].status != "ok":
        return
    if located.folder is not None:
        yield from check_files(located.folder)
    try:
        with place.open() as store:
            spaces = user_spaces(store.engine)
            detail = f"opened; {counted(len(spaces), 'namespaces')}: {', '.join(spaces[:20]) or 'none yet'}"
            yield Finding(what="reachable", status="ok", detail=detail)
            if verify:
                yield from check_contents(store, spaces)
            if store.space in spaces:
                yield from check_commit_times(store)
                yield from check_runs(store)
                yield from check_schedules(store)
    except TreeringError as error:
        advice = "try again in a moment" if error.retryable else "see the message"
        yield Finding(
            what="reachable", status="broken", detail=f"{type(error).__name__}: {error}", advice=advice
        )


def _lines(findings: list[Finding], broken: int, warnings: int) -> Iterator[str]:
    table = [("", "check", "result")]
    for each in findings:
        table.append((_MARKS[each.status], clean(each.what), clean(each.detail)))
        if each.advice:
            table.append(("", "", f"-> {clean(each.advice)}"))
    yield from rows(table)
    yield ""
    yield "no problems found" if not broken and not warnings else f"{broken} broken, {warnings} warnings"


def check_installation() -> Iterator[Finding]:
    """Report the versions of treering, Python and SQLite."""
    import sqlite3

    import treering

    yield Finding(
        what="treering",
        status="ok",
        detail=f"{treering.__version__} on Python {platform.python_version()}, {sys.platform}",
    )
    has_fts5 = _has_fts5()
    yield Finding(
        what="SQLite",
        status="ok" if has_fts5 else "broken",
        detail=f"{sqlite3.sqlite_version}, {'with' if has_fts5 else 'without'} full-text search",
        advice="" if has_fts5 else "use a Python whose sqlite3 was built with FTS5, or PostgreSQL",
    )


def check_extras() -> Iterator[Finding]:
    """Report which extras are installed, and whether their packages are recent enough."""
    from importlib import metadata

    requirements: dict[str, list[tuple[str, str | None]]] = {}
    for line in metadata.requires("treering") or ():
        match = _REQUIREMENT.match(line)
        if match is None or match["name"].lower() == "treering" or match["extra"] in _COMBINED_EXTRAS:
            continue
        requirements.setdefault(match["extra"], []).append((match["name"], match["least"]))
    missing: list[str] = []
    for extra, packages in sorted(requirements.items()):
        versions = {name: _installed_version(name) for name, _ in packages}
        if not all(versions.values()):
            missing.append(extra)
            continue
        outdated = [
            f"{name} {versions[name]} (required: {least})"
            for name, least in packages
            if _is_older(versions[name], least)
        ]
        installed = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding(
            what=f"extra {extra}",
            status="warning" if outdated else "ok",
            detail=f"too old: {', '.join(outdated)}" if outdated else installed,
            advice=f"pip install -U 'treering[{extra}]'" if outdated else "",
        )
    for group in GROUPS:
        for name, found in sorted(plugins(group).items()):
            package = "" if found.dist is None else f" of {found.dist.name} {found.dist.version}"
            detail = f"treering.{group}: {found.value}{package}"
            yield Finding(what=f"plugin {name}", status="ok", detail=detail)
    if missing:
        yield Finding(
            what="extras",
            status="note",
            detail=f"not installed: {', '.join(missing)}",
            advice=f"pip install 'treering[{missing[0]}]' for each one you need",
        )


def check_settings(given: str | None, place: StoreLocation) -> Iterator[Finding]:
    """Report which store is used, where that was configured, and which settings are set."""
    from treering.api import ENVIRONMENT, redacted

    source = "--store" if given is not None else ENVIRONMENT if os.environ.get(ENVIRONMENT) else "the default"
    yield Finding(what="store", status="ok", detail=f"{place.display} (from {source})")
    for name in sorted(os.environ):
        if name.startswith("TREERING_"):
            value = redacted(os.environ[name]) if name in _SHOWN_SETTINGS else "set"
            yield Finding(what=name, status="ok", detail=value)


def check_clock() -> Iterator[Finding]:
    """Check that the clock of this machine was set."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _EARLIEST_TIME:
        yield Finding(
            what="clock",
            status="broken",
            detail=f"{shown} is in the past",
            advice="set the clock of this machine",
        )
    else:
        yield Finding(what="clock", status="ok", detail=shown)


def check_presence(place: StoreLocation) -> Iterator[Finding]:
    """Check that the store exists with the current schema. It may be opened if the last finding is ok."""
    from treering.api import probe
    from treering.engines.sql.schema import SCHEMA_VERSION

    seen = probe(place)
    if lost := _lost_database(place):
        yield Finding(
            what="presence",
            status="broken",
            detail=lost,
            advice="copy a backup here; treering verify --store BACKUP says whether it is sound",
        )
    elif not seen.exists:
        yield Finding(
            what="presence",
            status="broken",
            detail="the store does not exist yet",
            advice="choose a store with --store or TREERING_URL; the first program that opens it creates it",
        )
    elif seen.version is None:
        yield Finding(what="presence", status="ok", detail="the server manages its schema")
    elif seen.version == SCHEMA_VERSION:
        yield Finding(what="presence", status="ok", detail=f"schema {seen.version}")
    elif seen.version < SCHEMA_VERSION:
        yield Finding(
            what="presence",
            status="warning",
            detail=f"schema {seen.version}, this treering uses {SCHEMA_VERSION}; not opened",
            advice="back it up, then run treering migrate",
        )
    else:
        yield Finding(
            what="presence",
            status="broken",
            detail=f"schema {seen.version} was written by a newer treering",
            advice="upgrade this installation: pip install -U treering",
        )


def _lost_database(place: StoreLocation) -> str | None:
    from treering.engines.sql.schema import SQLITE_FILE
    from treering.engines.sqlite.engine import refuse_lost, traces_of
    from treering.errors import Corrupt

    if place.folder is None:
        return None
    try:
        refuse_lost(place.folder / SQLITE_FILE, traces_of(place.folder))
    except Corrupt as error:
        return str(error)
    return None


def check_files(folder: Path) -> Iterator[Finding]:
    """Check a local store: file permissions, free disk space, and the size of the write-ahead log."""
    from treering.engines.sql.schema import SQLITE_FILE

    database = folder / SQLITE_FILE
    yield from _check_permissions(folder, database)
    usage = shutil.disk_usage(folder)
    status: Status = (
        "broken" if usage.free < _MIN_FREE_BYTES else "warning" if usage.free < _LOW_FREE_BYTES else "ok"
    )
    yield Finding(
        what="disk space",
        status=status,
        detail=f"{size(usage.free)} of {size(usage.total)} free",
        advice="" if status == "ok" else "free some space; treering gc removes what is no longer needed",
    )
    log = folder / f"{SQLITE_FILE}-wal"
    length = log.stat().st_size if log.exists() else 0
    is_long = length > _LONG_WAL_BYTES
    yield Finding(
        what="write-ahead log",
        status="warning" if is_long else "ok",
        detail=size(length),
        advice="a process keeps an old read transaction open; find it and restart it" if is_long else "",
    )


def check_contents(store: Store, spaces: list[str]) -> Iterator[Finding]:
    """Verify rows, links and roll-ups of every namespace, without reading content."""
    from treering.maintenance.verify import verify

    for space in spaces:
        result = verify(store.engine, space, read_content=False)
        checked = result.checked
        if result.ok:
            events, refs = counted(checked.events, "events"), counted(checked.refs, "refs")
            detail = f"{events}, {refs} and {counted(checked.items, 'items')} are intact"
        else:
            first = result.problems[0]
            count = len(result.problems) + result.more
            detail = f"{count:,} problems; the first: {first.kind} at {first.where}: {first.detail}"
        is_derived = not result.more and all(each.kind == "derived" for each in result.problems)
        advice = "run treering reindex" if is_derived else "run treering verify, and restore a backup"
        yield Finding(
            what=f"namespace {space}",
            status="ok" if result.ok else "broken",
            detail=detail,
            advice="" if result.ok else advice,
        )


def check_commit_times(store: Store) -> Iterator[Finding]:
    """Check that the last commit is not in the future; otherwise this clock or the writer's is wrong."""
    from treering.core.clock import to_iso
    from treering.core.query import EventQuery

    page = store.engine.scan(store.space, EventQuery(newest_first=True), limit=1)
    for record in page.records:
        ahead_us = record.committed_at_us - time.time_ns() // 1000
        is_ahead = ahead_us > _CLOCK_SKEW_US
        yield Finding(
            what="last commit",
            status="warning" if is_ahead else "ok",
            detail=f"{to_iso(record.committed_at_us)}"
            + (f", {ahead_us / 1e6:.0f} s ahead" if is_ahead else ""),
            advice="synchronise the clocks of this machine and the writers with NTP" if is_ahead else "",
        )


def check_runs(store: Store) -> Iterator[Finding]:
    """Find runs whose process died, or that went quiet, and of which that is not written down."""
    crashed = store.runs.mark_crashed(newest=_RUNS, dry_run=True)
    running = sum(each.status == "running" for each in islice(store.runs.each(), _RUNS))
    if crashed:
        yield Finding(
            what="runs",
            status="warning",
            detail=f"{len(crashed)} crashed without being marked: {_examples([each.id for each in crashed])}",
            advice="mark them with store.runs.mark_crashed()",
        )
    else:
        yield Finding(what="runs", status="ok", detail=f"{running} running, no unmarked crashes in {_RUNS:,}")


def check_schedules(store: Store) -> Iterator[Finding]:
    """Find overdue tasks, and occurrences that a worker claimed long ago."""
    from treering.core.query import each_ref
    from treering.schedules.tasks import TASK_REFS, decode_task

    now_us = time.time_ns() // 1000
    overdue: list[str] = []
    claimed: list[str] = []
    active = 0
    for task in map(decode_task, each_ref(store.engine, store.space, TASK_REFS)):
        active += task.active
        if task.active and task.next_run_us is not None and task.next_run_us < now_us - _OVERDUE_US:
            overdue.append(task.id)
        if any(
            each.worker and each.claimed_at_us < now_us - _LONG_CLAIMED_US for each in task.open_occurrences
        ):
            claimed.append(task.id)
    if overdue:
        yield Finding(
            what="schedules",
            status="warning",
            detail=f"{len(overdue)} overdue tasks: {_examples(overdue)}",
            advice="start a worker: treering worker",
        )
    if claimed:
        yield Finding(
            what="workers",
            status="warning",
            detail=f"{len(claimed)} tasks were claimed over 10 minutes ago: {_examples(claimed)}",
            advice="if that worker died, another one takes over once its lease expires",
        )
    if not overdue and not claimed:
        yield Finding(what="schedules", status="ok", detail=f"{active} active tasks, none overdue")


def check_private_files(folder: Path) -> Iterator[Finding]:
    """Check that git ignores private memory files."""
    from treering.compat.memory.agent_files import check_protection

    for place in (folder, folder / "workspace"):
        path = place / "MEMORY.md"
        if path.exists():
            protection = check_protection(path)
            yield Finding(
                what=str(path),
                status="ok" if protection.ok else "warning",
                detail=f"{protection.state}: {protection.detail}",
                advice="" if protection.ok else f"treering memory protect {place}",
            )


def _check_permissions(folder: Path, database: Path) -> Iterator[Finding]:
    if not os.access(folder, os.W_OK) or not os.access(database, os.W_OK):
        yield Finding(
            what="permissions",
            status="broken",
            detail=f"this user cannot write to {folder}",
            advice="run as its owner, or grant write access to this user",
        )
        return
    others = _is_readable_by(database, stat.S_IROTH, stat.S_IXOTH)
    if others or _is_readable_by(database, stat.S_IRGRP, stat.S_IXGRP):
        who = "every user of this machine" if others else "its group"
        yield Finding(
            what="permissions",
            status="warning",
            detail=f"{who} can read {database}, which is not encrypted",
            advice=f"chmod -R go= {folder}, unless that is intended",
        )
    else:
        yield Finding(what="permissions", status="ok", detail="only the owner can read it")


def _is_readable_by(file: Path, read: int, enter: int) -> bool:
    """Whether a class of users can read a file and enter every folder above it."""
    above = file.absolute().parents
    return bool(file.stat().st_mode & read) and all(each.stat().st_mode & enter for each in above)


def _has_fts5() -> bool:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='trigram')")
    except sqlite3.Error:
        return False
    finally:
        connection.close()
    return True


def _installed_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_older(version: str | None, least: str | None) -> bool:
    if version is None or least is None:
        return False
    return _version_tuple(version) < _version_tuple(least)


def _version_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])


def _examples(names: list[Any]) -> str:
    return ", ".join(map(str, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
