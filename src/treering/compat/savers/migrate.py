"""Migration: copy whole histories from any saver to any other.

Threads are copied in the order in which they began, oldest checkpoint first, each checkpoint with its own id,
parent and times. The newest checkpoint at the destination therefore says how far a thread was copied, and a
migration that was interrupted, or is run again later to catch up, continues behind it. **Invariant:** no
checkpoint is written twice, and a thread of the destination with a different history is reported and not
changed.

A thread that gets another id or namespace also gets other checkpoint ids, derived from the old ones,
so that both can live in one store. Every thread is read back and compared before it counts as migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from treering.compat.savers.checkpoint import NEW, Checkpoint, Origin, SaverStorage, parse_checkpoint
from treering.compat.savers.saver import Saver
from treering.core.ids import check_id
from treering.errors import Conflict, Corrupt, InvalidInput, TreeringError
from treering.sync_async import call
from treering.threads.checkpoint import PREFIX, created_at_us

Transform = Callable[[Checkpoint], Any]
"""Returns a checkpoint, a dict of its fields, or ``None`` to leave it out; may be ``async``."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS: Final = 10
_RANDOM_CHARS: Final = 16


class MigrationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a migration has come; ``thread_id`` is the thread that is being copied."""

    thread_id: str
    threads: int
    checkpoints: int


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a migration.

    ``threads`` are complete at the destination, ``checkpoints`` were written by this run, ``present`` had
    been written by an earlier one, ``skipped`` were left out by ``transform`` and ``changed`` altered by it.
    ``failed`` maps each thread that is not complete to the reason.
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

    ``transform`` maps each checkpoint to another one (`Checkpoint.replace`, or a dict of fields), or to
    ``None`` to leave it out; it must decide the same when a migration is run again. A thread that fails is
    reported in ``failed`` and does not stop the others. The source is only read.
    """
    for name, saver in (("source", source), ("destination", destination)):
        if not isinstance(saver, Saver):  # pyright: ignore[reportUnnecessaryIsInstance] - of a caller
            raise InvalidInput(
                f"{name} is of type {type(saver).__name__}; pass a saver of treering.compat.savers, "
                "such as FileSaver(folder)"
            )
    if source.storage is destination.storage:
        raise InvalidInput("source and destination are the same saver; give another destination")
    for saver in (source, destination):
        saver.storage.refuse_to_block()
    migration = _Migrator(source.storage, destination.storage, transform, on_progress)
    for thread_id in _in_order_of_creation(source.storage):
        migration.copy_thread(thread_id)
    return migration.report()


async def amigrate_checkpoints(
    *,
    source: Saver,
    destination: Saver,
    transform: Transform | None = None,
    on_progress: Callable[[MigrationProgress], None] | None = None,
) -> Migration:
    """Async twin of `migrate_checkpoints`; ``on_progress`` is called in a thread."""
    return await destination.bridge.call(
        migrate_checkpoints,
        source=source,
        destination=destination,
        transform=transform,
        on_progress=on_progress,
    )


class _Migrator:
    """One migration and its counts."""

    def __init__(
        self,
        source: SaverStorage,
        destination: SaverStorage,
        transform: Transform | None,
        on_progress: Callable[[MigrationProgress], None] | None,
    ) -> None:
        self._source = source
        self._destination = destination
        self._transform = transform
        self._on_progress = on_progress
        self._threads = self._checkpoints = self._present = self._skipped = self._changed = 0
        self._failed: dict[str, str] = {}

    def copy_thread(self, thread_id: str | TreeringError) -> None:
        """Copy one thread, or note why that failed."""
        if isinstance(thread_id, TreeringError):
            self._failed[f"unreadable {len(self._failed) + 1}"] = str(thread_id)
            return
        try:
            targets: dict[str, _Target] = {}
            for checkpoint in _oldest_first(self._source.history(thread_id)):
                self._copy(checkpoint, targets)
            for target in targets.values():
                target.finish()
            self._threads += 1
        except TreeringError as error:
            self._failed[thread_id] = str(error)
        except Exception as error:  # noqa: BLE001 - a user's transform may raise anything
            self._failed[thread_id] = f"{type(error).__name__}: {error}"

    def report(self) -> Migration:
        """Return the counts."""
        return Migration(
            threads=self._threads,
            checkpoints=self._checkpoints,
            present=self._present,
            skipped=self._skipped,
            changed=self._changed,
            failed=dict(self._failed),
        )

    def _copy(self, checkpoint: Checkpoint, targets: dict[str, _Target]) -> None:
        wanted = self._transformed(checkpoint)
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

    def _transformed(self, checkpoint: Checkpoint) -> Checkpoint | None:
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
    """A thread at the destination: what it has already, and what is appended to that."""

    def __init__(self, storage: SaverStorage, thread_id: str) -> None:
        self._storage = storage
        self._thread_id = check_id(thread_id, "thread id")
        self._present = [each.id for each in _oldest_first(storage.history(thread_id))]
        self._ids: list[str] = []
        self._appends = not self._present
        self._newest: Checkpoint | None = None

    def has(self, original: Checkpoint) -> bool:
        """Whether a checkpoint was copied by an earlier run."""
        if self._appends:
            return False
        newest = self._present[-1]
        if not self._ids and original.parent_id and self._named(original.parent_id, original) == newest:
            self._ids += self._present  # the source has dropped what is here
            self._appends = True
            return False
        self._ids.append(self._named(original.id, original))
        self._appends = self._ids[-1] == newest
        if self._appends and not set(self._present).issubset(self._ids):
            raise self._other_history()
        return True

    def write(self, wanted: Checkpoint, original: Checkpoint) -> None:
        """Append a checkpoint."""
        made = self._named(original.id, original)
        before = self._ids[-1] if self._ids else None
        changed = None if wanted.step == original.step else wanted.step
        new = parse_checkpoint(
            wanted, {"thread_id": self._thread_id, "step": changed}, self._storage.namespace
        )
        origin = Origin(
            id=made,
            parent_id=before or original.parent_id,
            created_at_us=wanted.header.created_at_us,
            updated_at_us=wanted.header.updated_at_us,
        )
        self._storage.save(
            msgspec.structs.replace(new, step=wanted.step, expect=before or NEW, origin=origin)
        )
        self._ids.append(made)
        self._newest = wanted

    def finish(self) -> None:
        """Read the thread back and compare its checkpoint ids, and the content of the newest one."""
        if not self._appends:
            raise self._other_history()
        ids = [each.id for each in _oldest_first(self._storage.history(self._thread_id))]
        if not ids or ids != [each for each in self._ids if each in set(ids)] or ids[-1] != self._ids[-1]:
            raise Corrupt(
                f"thread {self._thread_id!r} does not read back as it was written: {len(ids)} checkpoints "
                f"instead of {len(self._ids)}; check the destination and migrate again"
            )
        if self._newest is None:
            return
        found = self._storage.find(self._thread_id, ids[-1])
        for name in ("messages", "state", "pending_interrupt", "metadata", "step"):
            if getattr(found, name) != getattr(self._newest, name):
                raise Corrupt(
                    f"checkpoint {found.id!r} of thread {self._thread_id!r} differs in {name} from what "
                    "was written; check the destination and migrate again"
                )

    def _named(self, checkpoint_id: str, original: Checkpoint) -> str:
        """Return the id that a checkpoint of the original's thread has here."""
        here = (self._thread_id, self._storage.namespace)
        if here == (original.thread_id, original.namespace):
            return checkpoint_id
        created_at_us(checkpoint_id)
        cut = len(PREFIX) + _TIME_CHARS
        digest = sha256("\0".join((checkpoint_id, *here)).encode()).digest()
        return checkpoint_id[:cut] + "".join(_ALPHABET[each & 31] for each in digest[:_RANDOM_CHARS])

    def _other_history(self) -> Conflict:
        return Conflict(
            f"the destination has a thread {self._thread_id!r} with a different history; delete it there, "
            "or give this one another thread_id by transform"
        )


def _in_order_of_creation(storage: SaverStorage) -> list[str | TreeringError]:
    """Return threads in the order of their first save: a fork comes after the thread that has its parent."""
    threads = list(storage.threads())[::-1]
    return sorted(threads, key=lambda thread: _created_at_us(storage, thread))


def _created_at_us(storage: SaverStorage, thread: str | TreeringError) -> int:
    if isinstance(thread, TreeringError):
        return 0
    try:
        newest = next(storage.history(thread), None)
    except TreeringError:  # reported when it is copied
        return 0
    return 0 if newest is None else newest.header.created_at_us


def _oldest_first(history: Iterator[Checkpoint]) -> Iterator[Checkpoint]:
    """Yield checkpoints oldest first, keeping none that was read."""
    checkpoints = list(history)
    while checkpoints:
        yield checkpoints.pop()
