"""Restoring: a folder becomes what a snapshot says, and only what differs is touched.

The target is looked at first, by the rules of the snapshot, and kept as a snapshot of its own, so that a
restore can be undone. Then everything that will happen is planned; what cannot be done is refused before
anything is. Each object is checked against its name on the way. A restore that was interrupted is finished by
restoring again: files that are there already are not written twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from treering.errors import Conflict, StoreFull
from treering.views.workspaces.known import Known, KnownFolder
from treering.views.workspaces.placing import Placer
from treering.views.workspaces.planning import FolderPlan, LinkPolicy, Planner
from treering.views.workspaces.progress import FileProgress
from treering.views.workspaces.rules import LISTS, TEMPORARY
from treering.views.workspaces.snapshots import Taken, opened
from treering.views.workspaces.sweeping import sweep

if TYPE_CHECKING:
    from pathlib import Path

    from treering.views.workspaces.snapshots import Camera
    from treering.views.workspaces.stored import Snapshot


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, or with ``dry_run`` would do.

    ``before`` is the snapshot of what was there, to undo it; ``None`` when the folder was empty or nothing
    was to be done. Folders end with ``/``. ``left_links`` were left out by the policy for links.
    """

    id: str
    written: tuple[str, ...]
    removed: tuple[str, ...]
    bytes_written: int
    before: str | None = None
    left_links: tuple[str, ...] = ()
    dry_run: bool = False


def restore(
    camera: Camera,
    snapshot: Snapshot,
    target: Path,
    *,
    keep: Callable[[Taken], None] | None,
    delete: bool = False,
    links: LinkPolicy = "preserve",
    dry_run: bool = False,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> Restored:
    """Make a folder into a snapshot; ``keep`` commits what was there before (``None``: it is not kept)."""
    rules = snapshot.rules
    current, before, in_the_way = _look(camera, snapshot, target, keep=keep, dry_run=dry_run)
    planner = Planner(snapshot, delete=delete, links=links, in_the_way=in_the_way)
    plan = planner.plan(current)
    if dry_run:
        return _told(snapshot.root, plan, planner)
    with opened(target) as folder:
        _check_names(plan, folder)
        _check_space(plan, folder)
        placer = Placer(snapshot, now_ns=time.time_ns, on_progress=on_progress)
        known = placer.place(plan, folder)
    roots = (snapshot.root,) if before is None else (snapshot.root, before)
    if before is not None or plan.is_exact:
        camera.shelf.save(str(target), Known(roots=roots, patterns=rules.patterns, lists=LISTS, folder=known))
    else:  # some of what is there is stored nowhere
        camera.shelf.drop(str(target))
    return Restored(
        id=snapshot.root,
        written=tuple(placer.written),
        removed=tuple(placer.removed),
        bytes_written=placer.bytes,
        before=before,
        left_links=tuple(planner.left_links),
    )


def foreseen(snapshot: Snapshot, *, links: LinkPolicy) -> Restored:
    """What a restore into a folder that is not there yet would do."""
    planner = Planner(snapshot, delete=False, links=links, in_the_way=frozenset())
    return _told(snapshot.root, planner.plan(KnownFolder("", 0, {}, {}, {}, 0, 0)), planner)


def download(
    snapshot: Snapshot,
    plan: FolderPlan,
    target: Path,
    *,
    overwrite: bool,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> tuple[str, ...]:
    """Write the files of a plan into a folder that may have others; their paths."""
    taken = [path for path in _paths(plan) if os.path.lexists(target / path)]
    if taken and not overwrite:
        raise Conflict(
            f"{taken[0]!r} is there already ({len(taken)} in all); say overwrite=True, "
            "or choose another folder"
        )
    with opened(target) as folder:
        _check_names(plan, folder)
        _check_space(plan, folder)
        placer = Placer(snapshot, now_ns=time.time_ns, joins=True, on_progress=on_progress)
        placer.place(plan, folder)
    return tuple(path for path in placer.written if not path.endswith("/"))


def _paths(plan: FolderPlan) -> Iterator[str]:
    for each in plan.walk():
        yield from (each.path + entry.name for entry in (*each.files, *each.links))


def _look(
    camera: Camera,
    snapshot: Snapshot,
    target: Path,
    *,
    keep: Callable[[Taken], None] | None,
    dry_run: bool,
) -> tuple[KnownFolder, str | None, frozenset[str]]:
    """The target as it is, the snapshot of it if there is something to keep, and what no snapshot holds."""
    if keep is None or dry_run:
        seen, left_out, litter = camera.look(target, snapshot.rules, limits=snapshot.limits)
        if not dry_run:
            sweep(target, litter)
        return seen, None, frozenset(each.path for each in left_out)
    taken = camera.take(target, snapshot.rules, limits=snapshot.limits)
    sweep(target, taken.litter)
    in_the_way = frozenset(each.path for each in taken.left_out)
    seen = taken.known.folder
    if taken.root == snapshot.root or not (seen.files or seen.links or seen.folders):
        return seen, None, in_the_way
    keep(taken)
    camera.shelf.note(str(target), taken.known)  # written down when all is done
    return seen, taken.root, in_the_way


def _told(root: str, plan: FolderPlan, planner: Planner) -> Restored:
    written: list[str] = []
    removed: list[str] = []
    size = 0
    for each in plan.walk():
        if each.is_new:
            written.append(each.path)
        written += [each.path + entry.name for entry in (*each.files, *each.chmods, *each.links)]
        removed += [each.path + name for name in each.removed_files]
        removed += [f"{each.path}{name}/" for name in each.removed_folders]
        size += sum(entry.size for entry in each.files)
    return Restored(
        id=root,
        written=tuple(written),
        removed=tuple(removed),
        bytes_written=size,
        left_links=tuple(planner.left_links),
        dry_run=True,
    )


def _check_space(plan: FolderPlan, folder: int) -> None:
    """Refuse early what the disk cannot hold; a piece that repeats within a file is likely a hole."""
    needed = sum(
        entry.size * len(set(entry.content)) // max(1, len(entry.content))
        for each in plan.walk()
        for entry in each.files
    )
    disk = os.fstatvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise StoreFull(
            f"the restore needs {needed:,} bytes and the disk has {free:,}; nothing was written, "
            "free some space"
        )


def _check_names(plan: FolderPlan, folder: int) -> None:
    """Refuse names that differ only by case where the file system does not tell them apart."""
    for each in plan.walk():
        names: dict[str, str] = {}
        for entry in (*each.files, *each.links, *each.folders):
            twin = names.setdefault(entry.name.casefold(), entry.name)
            if twin != entry.name and _ignores_case(folder):
                raise Conflict(
                    f"{each.path + twin!r} and {entry.name!r} are one name on this file system; "
                    "restore on one that tells upper from lower case. Nothing was written"
                )


def _ignores_case(folder: int) -> bool:
    name = f"{TEMPORARY}case"
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.stat(name.upper(), dir_fd=folder, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False
    finally:
        os.close(file)
        os.unlink(name, dir_fd=folder)
