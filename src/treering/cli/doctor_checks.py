"""What ``treering doctor`` looks at, one function a question, each giving findings.

Nothing is changed: a store of an older version is not opened (opening would migrate it), nothing is
committed and no content is read. **Invariant:** no finding shows a secret.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.cli.console import size

if TYPE_CHECKING:
    from treering.api import Place
    from treering.store import Store


Status = Literal["ok", "note", "warning", "broken"]

_MB: Final = 1_000_000
_LEAST_FREE: Final = 100 * _MB
_LITTLE_FREE: Final = 1000 * _MB
_LONG_LOG: Final = 256 * _MB
_AHEAD_US: Final = 5_000_000
_OVERDUE_US: Final = 300_000_000
_LONG_CLAIMED_US: Final = 600_000_000
_RUNS: Final = 1000
_SHOWN: Final = 3
_BIRTH: Final = 1_767_225_600
"""2026-01-01: a clock that is before it was never set."""
_NEED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)[^;]*?(?:[>=]=\s*(?P<least>[0-9.]+))?[^;]*;.*extra\s*==\s*['\"](?P<extra>[^'\"]+)"
)
_WHOLE: Final = frozenset({"all", "frameworks"})
"""Extras that are made of the others."""
_OPEN_SETTINGS: Final = frozenset({"TREERING_URL", "TREERING_BLOBS"})
"""Settings whose values may be shown (without their secrets); of all others only that they are set."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, how it stands, and what to do about it."""

    what: str
    status: Status
    detail: str
    advice: str = ""


def installation() -> Iterator[Finding]:
    """Versions of what everything stands on."""
    import treering

    yield Finding(
        what="treering",
        status="ok",
        detail=f"{treering.__version__} on Python {platform.python_version()}, {sys.platform}",
    )
    with_fts = _has_fts5()
    yield Finding(
        what="SQLite",
        status="ok" if with_fts else "broken",
        detail=f"{sqlite3.sqlite_version}, {'with' if with_fts else 'without'} full-text search",
        advice="" if with_fts else "use a Python whose sqlite3 was built with FTS5, or PostgreSQL",
    )


def extras() -> Iterator[Finding]:
    """Which optional parts are installed, and with which versions."""
    parts: dict[str, list[tuple[str, str | None]]] = {}
    for line in metadata.requires("treering") or ():
        found = _NEED.match(line)
        if found is not None and found["name"].lower() != "treering" and found["extra"] not in _WHOLE:
            parts.setdefault(found["extra"], []).append((found["name"], found["least"]))
    missing: list[str] = []
    for extra, needs in sorted(parts.items()):
        versions = {name: _version(name) for name, _ in needs}
        if not all(versions.values()):
            missing.append(extra)
            continue
        old = [
            f"{name} {versions[name]} (wanted: {least})"
            for name, least in needs
            if _is_older(versions[name], least)
        ]
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding(
            what=f"extra {extra}",
            status="warning" if old else "ok",
            detail=f"too old: {', '.join(old)}" if old else told,
            advice=f"pip install -U 'treering[{extra}]'" if old else "",
        )
    if missing:
        yield Finding(
            what="extras",
            status="note",
            detail=f"not installed: {', '.join(missing)}",
            advice=f"pip install 'treering[{missing[0]}]', for those that you need",
        )


def settings(given: str | None, place: Place) -> Iterator[Finding]:
    """Which store it is about, and who says so."""
    from treering.api import ENVIRONMENT, redacted

    source = "--store" if given is not None else ENVIRONMENT if os.environ.get(ENVIRONMENT) else "the default"
    yield Finding(what="store", status="ok", detail=f"{place.shown} (from {source})")
    for name in sorted(os.environ):
        if name.startswith("TREERING_"):
            value = redacted(os.environ[name]) if name in _OPEN_SETTINGS else "set"
            yield Finding(what=name, status="ok", detail=value)


def clock() -> Iterator[Finding]:
    """Whether this machine's clock can be right."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _BIRTH:
        yield Finding(
            what="clock",
            status="broken",
            detail=f"{shown} is in the past",
            advice="set the clock of this machine",
        )
    else:
        yield Finding(what="clock", status="ok", detail=shown)


def presence(place: Place) -> Iterator[Finding]:
    """Whether a store is there, of a version that can be opened; the last finding says whether to open it."""
    from treering.api import look
    from treering.engines.sql.schema import SCHEMA_VERSION

    seen = look(place)
    if not seen.there:
        yield Finding(
            what="presence",
            status="broken",
            detail="there is no store yet",
            advice="name yours with --store or TREERING_URL; the first program that opens it makes it",
        )
    elif seen.version is None or seen.version == SCHEMA_VERSION:
        detail = (
            "it looks after its tables itself"
            if seen.version is None
            else f"tables of version {seen.version}"
        )
        yield Finding(what="presence", status="ok", detail=detail)
    elif seen.version < SCHEMA_VERSION:
        yield Finding(
            what="presence",
            status="warning",
            detail=f"tables of version {seen.version}, this treering writes {SCHEMA_VERSION}; not opened",
            advice="back it up, then run treering migrate",
        )
    else:
        yield Finding(
            what="presence",
            status="broken",
            detail=f"tables of version {seen.version} were written by a newer treering",
            advice="upgrade this installation: pip install -U treering",
        )


def files(folder: Path) -> Iterator[Finding]:
    """The files of a local store: who can read them, how much room there is, how long the log is."""
    from treering.engines.sql.schema import SQLITE_FILE

    database = folder / SQLITE_FILE
    yield from _permissions(folder, database)
    usage = shutil.disk_usage(folder)
    status: Status = (
        "broken" if usage.free < _LEAST_FREE else "warning" if usage.free < _LITTLE_FREE else "ok"
    )
    yield Finding(
        what="disk space",
        status=status,
        detail=f"{size(usage.free)} of {size(usage.total)} are free",
        advice="" if status == "ok" else "free some space; treering gc drops what nothing needs",
    )
    log = folder / f"{SQLITE_FILE}-wal"
    length = log.stat().st_size if log.exists() else 0
    is_long = length > _LONG_LOG
    yield Finding(
        what="write-ahead log",
        status="warning" if is_long else "ok",
        detail=size(length),
        advice="some process keeps an old read open; find it and restart it" if is_long else "",
    )


def contents(store: Store, spaces: list[str]) -> Iterator[Finding]:
    """Rows, links and roll-ups of every namespace; no content is read."""
    from treering.maintenance.verify import verify

    for space in spaces:
        found = verify(store.engine, space, read_content=False)
        count = len(found.problems) + found.more
        checked = found.checked
        if found.ok:
            detail = f"{checked.events:,} events, {checked.refs:,} refs and {checked.items:,} items are sound"
        else:
            first = found.problems[0]
            detail = f"{count:,} problems; the first: {first.kind} at {first.where}: {first.detail}"
        is_derived = (
            not found.ok and not found.more and all(each.kind == "derived" for each in found.problems)
        )
        cure = "run treering reindex" if is_derived else "see treering verify, and restore a backup"
        yield Finding(
            what=f"namespace {space}",
            status="ok" if found.ok else "broken",
            detail=detail,
            advice="" if found.ok else cure,
        )


def times(store: Store) -> Iterator[Finding]:
    """Whether the last commit lies in the future: then this clock, or the writer's, is wrong."""
    from treering.core.clock import to_iso
    from treering.core.query import EventQuery

    page = store.engine.scan(store.space, EventQuery(newest_first=True), limit=1)
    for record in page.records:
        ahead_us = record.committed_at_us - time.time_ns() // 1000
        is_ahead = ahead_us > _AHEAD_US
        yield Finding(
            what="last commit",
            status="warning" if is_ahead else "ok",
            detail=f"{to_iso(record.committed_at_us)}"
            + (f", {ahead_us / 1e6:.0f} s ahead" if is_ahead else ""),
            advice="let this machine and the writers set their clocks by NTP" if is_ahead else "",
        )


def runs(store: Store) -> Iterator[Finding]:
    """Runs whose process died: their recorder's lease is over."""
    newest = list(islice(store.runs.each(), _RUNS))
    crashed = [each for each in newest if each.status == "crashed" and each.ended_at_us is None]
    running = sum(each.status == "running" for each in newest)
    if crashed:
        yield Finding(
            what="runs",
            status="warning",
            detail=f"{len(crashed)} died and nobody wrote it down: {_some([each.id for each in crashed])}",
            advice="store.runs.mark_crashed() writes it down",
        )
    else:
        yield Finding(
            what="runs", status="ok", detail=f"{running} running, none of the last {_RUNS:,} died unnoticed"
        )


def schedules(store: Store) -> Iterator[Finding]:
    """Check for overdue tasks, and for occurrences that a worker has held for long."""
    from treering.core.paging import each_ref
    from treering.schedules.tasks import TASK_REFS, decode_task

    now_us = time.time_ns() // 1000
    overdue: list[str] = []
    held: list[str] = []
    count = 0
    for task in map(decode_task, each_ref(store.engine, store.space, TASK_REFS)):
        count += task.active
        if task.active and task.next_run_us is not None and task.next_run_us < now_us - _OVERDUE_US:
            overdue.append(task.id)
        if any(
            each.worker and each.claimed_at_us < now_us - _LONG_CLAIMED_US for each in task.open_occurrences
        ):
            held.append(task.id)
    if overdue:
        yield Finding(
            what="schedules",
            status="warning",
            detail=f"{len(overdue)} tasks are overdue: {_some(overdue)}",
            advice="start a worker: treering worker",
        )
    if held:
        yield Finding(
            what="workers",
            status="warning",
            detail=f"{len(held)} tasks are with a worker for over 10 minutes: {_some(held)}",
            advice="if that worker died, the next one takes them over when its lease is over",
        )
    if not overdue and not held:
        yield Finding(what="schedules", status="ok", detail=f"{count} tasks are active, none is overdue")


def private_files(folder: Path) -> Iterator[Finding]:
    """Whether git would take a private memory along."""
    from treering.compat.memory.agent_files import protection_of

    for place in (folder, folder / "workspace"):
        path = place / "MEMORY.md"
        if path.exists():
            found = protection_of(path)
            yield Finding(
                what=str(path),
                status="ok" if found.ok else "warning",
                detail=f"{found.state}: {found.detail}",
                advice="" if found.ok else f"treering memory protect {place}",
            )


def _permissions(folder: Path, database: Path) -> Iterator[Finding]:
    if not os.access(folder, os.W_OK) or not os.access(database, os.W_OK):
        yield Finding(
            what="permissions",
            status="broken",
            detail=f"{folder} cannot be written by this user",
            advice="run as its owner, or give this user the right to write",
        )
        return
    others = _reach(database, stat.S_IROTH, stat.S_IXOTH)
    if others or _reach(database, stat.S_IRGRP, stat.S_IXGRP):
        who = "anyone on this machine" if others else "its group"
        yield Finding(
            what="permissions",
            status="warning",
            detail=f"{who} can read {database}, and what is in it is not encrypted",
            advice=f"chmod -R go= {folder}, unless they shall",
        )
    else:
        yield Finding(what="permissions", status="ok", detail="only its owner can read it")


def _reach(file: Path, read: int, enter: int) -> bool:
    """Whether a kind of user can read a file and enter every folder above it."""
    above = file.absolute().parents
    return bool(file.stat().st_mode & read) and all(each.stat().st_mode & enter for each in above)


def _has_fts5() -> bool:
    with_it = sqlite3.connect(":memory:")
    try:
        with_it.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='trigram')")
    except sqlite3.Error:
        return False
    finally:
        with_it.close()
    return True


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_older(version: str | None, least: str | None) -> bool:
    if version is None or least is None:
        return False
    return _numbers(version) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])


def _some(names: list[Any]) -> str:
    return ", ".join(map(str, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
