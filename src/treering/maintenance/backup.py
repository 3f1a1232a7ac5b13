"""Backup: copy the whole store, with all its spaces, to a folder that opens like any other store.

The backup is written next to its final path under another name, opened and verified, and only then renamed,
so an interrupted backup is never mistaken for a complete one. Writers may continue meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from treering.core import failpoints
from treering.core.engine import Engine, OnWork
from treering.core.ids import new_id
from treering.core.records import Checked
from treering.errors import Conflict, Corrupt, Unreachable
from treering.files import make_folder, translate_os_errors
from treering.maintenance.copy import CopyProgress, OnCopy, copy_space
from treering.maintenance.stats import folder_bytes, user_spaces
from treering.maintenance.verify import verify

_CHECKED: Final = failpoints.declare(
    "backup.checked", "the backup is complete and verified, but not renamed yet"
)

OpenFolder = Callable[[Path], Engine]


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A verified backup. ``method`` is ``snapshot`` (by the engine) or ``copy`` (row by row)."""

    source: str
    path: str
    spaces: tuple[str, ...]
    events: int
    objects: int
    bytes: int
    method: str


def back_up(
    engine: Engine, path: Path, *, open_folder: OpenFolder, on_progress: OnCopy | None = None
) -> BackupReport:
    """Write a backup to ``path``, which must not exist or be an empty folder."""
    _check_free(path)
    building = path.with_name(f".{path.name}.{new_id()}.partial")
    try:
        with translate_os_errors(f"a backup at {path}", writing=True):
            make_folder(path.parent)
            method = _build(engine, building, open_folder, on_progress)
            report = _verified(engine, building, path, open_folder, method, on_progress)
            failpoints.hit(_CHECKED)
            building.rename(path)
            _sync_folder(path.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return report


def _build(engine: Engine, building: Path, open_folder: OpenFolder, on_progress: OnCopy | None) -> str:
    if engine.caps.backup:
        engine.snapshot_to(building, on_progress=on_progress and _in_bytes(on_progress))
        return "snapshot"
    target = open_folder(building)
    try:
        for space in user_spaces(engine):
            copy_space(engine, target, space=space, into=space, on_progress=on_progress)
    finally:
        target.close()
    return "copy"


def _in_bytes(on_progress: OnCopy) -> OnWork:
    def report(what: str, done: int, total: int) -> None:
        phase = "database" if what == "database" else "packs"
        on_progress(
            CopyProgress(space="", passes=1, rows=0, of_rows=0, bytes=done, of_bytes=total, phase=phase)
        )

    return report


def _verified(
    engine: Engine,
    building: Path,
    path: Path,
    open_folder: OpenFolder,
    method: str,
    on_progress: OnCopy | None,
) -> BackupReport:
    copy = open_folder(building)
    try:
        spaces = tuple(user_spaces(copy))
        events = objects = 0
        for space in spaces:
            report = verify(
                copy,
                space,
                read_content=False,
                on_progress=on_progress and _in_rows(copy, space, on_progress),
            )
            events += report.checked.events
            objects += report.checked.objects
            if not report.ok:
                first = report.problems[0]
                raise Corrupt(
                    f"the backup of {engine.url} has {len(report.problems) + report.more} problem(s), first "
                    f"{first.where}: {first.detail}; it was removed. Run verify on the store"
                )
    finally:
        copy.close()
    return BackupReport(
        source=engine.url,
        path=str(path),
        spaces=spaces,
        events=events,
        objects=objects,
        bytes=folder_bytes(building),
        method=method,
    )


def _in_rows(copy: Engine, space: str, on_progress: OnCopy) -> Callable[[Checked], None]:
    held = copy.stats(space)
    total = held.objects + held.items + held.events + held.refs

    def report(checked: Checked) -> None:
        done = checked.objects + checked.items + checked.events + checked.refs
        on_progress(CopyProgress(space=space, passes=1, rows=done, of_rows=total, bytes=0, phase="verifying"))

    return report


def _check_free(path: Path) -> None:
    try:
        taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise Unreachable(f"cannot read {path}: {error.strerror}; choose another folder") from error
    if taken:
        raise Conflict(f"{path} exists and is not empty; a backup needs a new folder")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
