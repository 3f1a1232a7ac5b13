"""Migration: whole histories from any saver to any other, as often as it takes.

Thread by thread as they began, oldest checkpoint first, each is written at the destination with its own id,
parent and times. The destination's newest checkpoint therefore says how far a thread has come: a migration
that was cut short, or is run again later to catch up, goes on behind it. **Invariant:** no checkpoint is
written twice, and a thread of the destination that does not begin as the source's does is left alone and
reported.

A thread that gets another id or namespace gets other checkpoint ids too, which follow from the old ones, so
that both can lie in one store. Every thread is read back and compared before it counts as migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from treering.compat.savers.checkpoint import NEW, Checkpoint, Origin, Shelf, writing_of
from treering.compat.savers.saver import Saver
from treering.core.ids import check_id
from treering.errors import Conflict, Corrupt, InvalidInput, TreeringError
from treering.sync_async import call
from treering.threads.checkpoint_record import PREFIX, created_at_us

Transform = Callable[[Checkpoint], Any]
"""Gives back a checkpoint, a dict of its fields or ``None``; may be ``async``."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS: Final = 10
_RANDOM_CHARS: Final = 16


class MigrationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a migration has come; ``thread_id`` is the thread that it works on."""

    thread_id: str
    threads: int
    checkpoints: int


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration did.

    ``threads`` are complete at the destination, ``checkpoints`` were written by this run, ``present`` had
    been written before, ``skipped`` were left out by ``transform`` and ``changed`` altered by it. ``failed``
    says of each thread that is not complete why not.
    """

    threads: int
    checkpoints: int
    present: int
    skipped: int
    changed: int
    failed: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether every thread is complete at the destination."""
        return not self.failed


def migrate_checkpoints(
    *,
    source: Saver,
    destination: Saver,
    transform: Transform | None = None,
    on_progress: Callable[[MigrationProgress], None] | None = None,
) -> Migration:
    """Copy every thread of ``source`` to ``destination``, with its whole history.

    ``transform`` gets each checkpoint and gives back another one (`Checkpoint.replace`, or a dict of fields),
    or ``None`` to leave it out; it must decide alike when a migration is run again. A thread that fails is
    reported in ``failed`` and does not stop the others. The source is only read.
    """
    if source.shelf is destination.shelf:
        raise InvalidInput("source and destination are the same saver; give another destination")
    for saver in (source, destination):
        saver.shelf.refuse_to_block()
    run = _Run(source.shelf, destination.shelf, transform, on_progress)
    for thread_id in _eldest_first(source.shelf):
        run.thread(thread_id)
    return run.report()


async def amigrate_checkpoints(
    *,
    source: Saver,
    destination: Saver,
    transform: Transform | None = None,
    on_progress: Callable[[MigrationProgress], None] | None = None,
) -> Migration:
    """As `migrate_checkpoints`; ``on_progress`` is called in a thread."""
    return await destination.in_thread(
        migrate_checkpoints,
        source=source,
        destination=destination,
        transform=transform,
        on_progress=on_progress,
    )


class _Run:
    """One migration and what it has counted."""

    def __init__(
        self,
        source: Shelf,
        destination: Shelf,
        transform: Transform | None,
        on_progress: Callable[[MigrationProgress], None] | None,
    ) -> None:
        self._source = source
        self._destination = destination
        self._transform = transform
        self._on_progress = on_progress
        self._threads = self._checkpoints = self._present = self._skipped = self._changed = 0
        self._failed: dict[str, str] = {}

    def thread(self, thread_id: str | TreeringError) -> None:
        """Bring one thread over, or note why not."""
        if isinstance(thread_id, TreeringError):
            self._failed[f"unreadable {len(self._failed) + 1}"] = str(thread_id)
            return
        try:
            targets: dict[str, _Target] = {}
            for checkpoint in _oldest_first(self._source.history(thread_id)):
                self._bring(checkpoint, targets)
            for target in targets.values():
                target.finish()
            self._threads += 1
        except TreeringError as error:
            self._failed[thread_id] = str(error)
        except Exception as error:  # noqa: BLE001 - a user's transform may raise anything
            self._failed[thread_id] = f"{type(error).__name__}: {error}"

    def report(self) -> Migration:
        """What was counted."""
        return Migration(
            threads=self._threads,
            checkpoints=self._checkpoints,
            present=self._present,
            skipped=self._skipped,
            changed=self._changed,
            failed=dict(self._failed),
        )

    def _bring(self, checkpoint: Checkpoint, targets: dict[str, _Target]) -> None:
        wanted = self._wanted(checkpoint)
        if wanted is None:
            self._skipped += 1
            return
        target = targets.get(wanted.thread_id)
        if target is None:
            target = targets[wanted.thread_id] = _Target(self._destination, wanted.thread_id)
        if target.has(checkpoint):
            self._present += 1
            return
        self._changed += wanted is not checkpoint and wanted != checkpoint
        target.write(wanted, checkpoint)
        self._checkpoints += 1
        if self._on_progress is not None:
            self._on_progress(
                MigrationProgress(
                    thread_id=checkpoint.thread_id, threads=self._threads, checkpoints=self._checkpoints
                )
            )

    def _wanted(self, checkpoint: Checkpoint) -> Checkpoint | None:
        if self._transform is None:
            return checkpoint
        wanted = call(self._transform, checkpoint)
        if wanted is None or isinstance(wanted, Checkpoint):
            return wanted
        if isinstance(wanted, Mapping):
            return checkpoint.replace(**cast("Mapping[str, Any]", wanted))
        raise InvalidInput(
            f"transform returned a {type(wanted).__name__}; return a checkpoint (see Checkpoint.replace), a "
            "dict of its fields, or None to leave it out"
        )


class _Target:
    """A thread at the destination: what is there of it, and what comes behind that."""

    def __init__(self, shelf: Shelf, thread_id: str) -> None:
        self._shelf = shelf
        self._thread_id = check_id(thread_id, "thread id")
        self._there = [each.id for each in _oldest_first(shelf.history(thread_id))]
        self._ids: list[str] = []
        self._goes_on = not self._there
        self._newest: Checkpoint | None = None

    def has(self, original: Checkpoint) -> bool:
        """Whether a checkpoint was brought over before."""
        if self._goes_on:
            return False
        newest = self._there[-1]
        if not self._ids and original.parent_id and self._named(original.parent_id, original) == newest:
            self._ids += self._there  # the source dropped what is here already
            self._goes_on = True
            return False
        self._ids.append(self._named(original.id, original))
        self._goes_on = self._ids[-1] == newest
        if self._goes_on and not set(self._there).issubset(self._ids):
            raise self._taken()
        return True

    def write(self, wanted: Checkpoint, original: Checkpoint) -> None:
        """Put a checkpoint behind what is there."""
        made = self._named(original.id, original)
        before = self._ids[-1] if self._ids else None
        changed = None if wanted.step == original.step else wanted.step
        writing = writing_of(wanted, {"thread_id": self._thread_id, "step": changed}, self._shelf.namespace)
        origin = Origin(
            id=made,
            parent_id=before or original.parent_id,
            created_at_us=wanted.facts.created_at_us,
            updated_at_us=wanted.facts.updated_at_us,
        )
        self._shelf.write(
            msgspec.structs.replace(writing, step=wanted.step, expect=before or NEW, origin=origin)
        )
        self._ids.append(made)
        self._newest = wanted

    def finish(self) -> None:
        """Read the thread back and compare: its line, and the content of its newest checkpoint."""
        if not self._goes_on:
            raise self._taken()
        line = [each.id for each in _oldest_first(self._shelf.history(self._thread_id))]
        if not line or line != [each for each in self._ids if each in set(line)] or line[-1] != self._ids[-1]:
            raise Corrupt(
                f"thread {self._thread_id!r} does not read back as it was written: {len(line)} checkpoints "
                f"instead of {len(self._ids)}; check the destination and migrate again"
            )
        if self._newest is None:
            return
        found = self._shelf.find(self._thread_id, line[-1])
        for name in ("messages", "state", "pending_interrupt", "metadata", "step"):
            if getattr(found, name) != getattr(self._newest, name):
                raise Corrupt(
                    f"checkpoint {found.id!r} of thread {self._thread_id!r} has other {name} than were "
                    "written; check the destination and migrate again"
                )

    def _named(self, checkpoint_id: str, original: Checkpoint) -> str:
        """The id that a checkpoint of the original's thread has here."""
        here = (self._thread_id, self._shelf.namespace)
        if here == (original.thread_id, original.namespace):
            return checkpoint_id
        created_at_us(checkpoint_id)
        cut = len(PREFIX) + _TIME_CHARS
        digest = sha256("\0".join((checkpoint_id, *here)).encode()).digest()
        return checkpoint_id[:cut] + "".join(_ALPHABET[each & 31] for each in digest[:_RANDOM_CHARS])

    def _taken(self) -> Conflict:
        return Conflict(
            f"the destination has a thread {self._thread_id!r} with a history of its own; delete it there, "
            "or give this one another thread_id by transform"
        )


def _eldest_first(shelf: Shelf) -> list[str | TreeringError]:
    """Threads in the order in which they began: a fork comes behind the thread that has its parent."""
    threads = list(shelf.threads())[::-1]
    return sorted(threads, key=lambda thread: _began_at_us(shelf, thread))


def _began_at_us(shelf: Shelf, thread: str | TreeringError) -> int:
    if isinstance(thread, TreeringError):
        return 0
    try:
        newest = next(shelf.history(thread), None)
    except TreeringError:  # told when its turn comes
        return 0
    return 0 if newest is None else newest.facts.created_at_us


def _oldest_first(history: Iterator[Checkpoint]) -> Iterator[Checkpoint]:
    """The same checkpoints, each let go of (with what was read of it) before the next one."""
    line = list(history)
    while line:
        yield line.pop()
