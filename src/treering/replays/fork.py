"""The fork that a rerun works on: thread, memory, effects and files, each a copy of what the original had.

The thread is forked at the checkpoint that the run began with. Memory is copied to a namespace of its own
when the agent first looks at it: first as of the beginning of the run, and, when the rerun goes on for real,
as of that step, because tools that were answered from the recording have not written to it again. An effect
that must not be repeated is answered by its recorded outcome, or refused.

**Invariant:** what the fork was made from does not change. Threads and memory are opened under their own
names and lead to the fork (`treering.core.forks`); what has no fork is refused; and while a rerun is going
on, Python code of this process cannot write to the folder that the original worked in. Programs that it
starts elsewhere are not watched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Self, cast
from weakref import WeakKeyDictionary

import msgspec

from treering.core import forks
from treering.core.encoding import encode_json
from treering.core.ids import MAX_ID_CHARS, parse_scope
from treering.core.query import EventQuery, each_record
from treering.effects.effects import FINISHED, Effect, Intent
from treering.errors import Conflict, NotFound
from treering.memory.documents import MEMORY_KINDS, MemoryDocument
from treering.runs.run import run_ref

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.runs.run import RunInfo
    from treering.store import Store

_PREFIX: Final = "rerun/"
"""Memory of a fork is in the namespace ``rerun/<id>/<namespace>``."""
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: Final = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "shutil.rmtree": (0,),
}
_FOLLOWS_LINKS: Final = frozenset({"os.chmod", "os.chown", "os.truncate", "os.utime"})
"""The audit events of changes to files, and which of their arguments are the paths that change."""


class OutsideFork(Conflict):
    """A rerun tried to change what the original works with."""


class RerunFork:
    """The fork of one rerun; see `treering.core.forks.Fork`."""

    def __init__(self, store: Store, original: RunInfo, *, id: str, checkpoint: str | None) -> None:
        self.id = id
        self._store = store
        self._original = original
        self._as_of_us = original.started_at_us
        self._copied: dict[str, str] = {}
        self._is_known: WeakKeyDictionary[Engine, dict[str, bool]] = WeakKeyDictionary()
        self._told: set[str] = set()
        self._lock = RLock()
        self._is_copying = False
        self.thread_id: str | None = None
        if original.thread is not None:
            self.thread_id = _fork_name(original.thread, id)
            if checkpoint is not None:
                thread = store.thread(original.thread, original.namespace)
                thread.fork(self.thread_id, at=checkpoint, note=f"rerun of {original.id}")

    # treering.core.forks.Fork
    def is_of(self, engine: Engine, space: str) -> bool:
        """Whether it was made from what this store holds, by whatever name the store was opened."""
        if engine is self._store.engine:
            return space == self._store.space
        with self._lock:
            known = self._is_known.setdefault(engine, {})
            if space not in known:
                known[space] = bool(engine.refs(space, [run_ref(self._original.id)]))
            return known[space]

    def thread(self, namespace: str, thread_id: str) -> str:
        """Return the id of a thread's fork; the given id, if it has none."""
        original = self._original
        if self.thread_id is not None and (namespace, thread_id) == (original.namespace, original.thread):
            return self.thread_id
        return thread_id

    def memory(self, namespace: str) -> str:
        """Return the namespace that holds the memory of the fork, and copy it there the first time."""
        if self._is_copying or namespace.startswith(_PREFIX):
            return namespace
        with self._lock:
            if namespace not in self._copied:
                copy = f"{_PREFIX}{self.id}/{namespace}".rstrip("/")
                self._copy_memory(namespace, copy)
                self._copied[namespace] = copy
            return self._copied[namespace]

    def effect(self, effects: Any, intent: Any) -> Effect:
        """Return the recorded effect of a call, or one that says that it is refused."""
        wanted: Intent = intent
        with self._lock:
            with suppress(NotFound):
                stored: Effect = effects.load(wanted.id)
                if stored.id == wanted.id and stored.is_finished:
                    self._told.add(stored.id)
                    return stored
            key = encode_json(wanted.arguments)
            for each in self._recorded_effects():
                if (
                    each.tool == wanted.tool
                    and each.id not in self._told
                    and encode_json(each.arguments) == key
                ):
                    self._told.add(each.id)
                    return each
        return Effect(
            id=wanted.id,
            tool=wanted.tool,
            arguments=wanted.arguments,
            status="abandoned",
            replay=wanted.replay,
            takes_key=wanted.takes_key,
            attempt=0,
            planned_at_us=self._store.clock.now_us(),
            call_id=wanted.call_id,
            result=refusal(wanted.tool),
        )

    def _recorded_effects(self) -> Sequence[Effect]:
        original, effects = self._original, self._store.effects
        found = list(effects.list(run_id=original.id))
        if original.thread is not None:
            found += effects.list(thread_id=original.thread, namespace=original.namespace)
        finished = {each.id: each for each in found if each.status in FINISHED}
        return sorted(finished.values(), key=lambda each: each.planned_at_us)

    # Going on for real
    def go_on(self, as_of_us: int) -> None:
        """Bring the memory of the fork to a later time: that of the first step which is made for real."""
        with self._lock:
            self._as_of_us = as_of_us
            for namespace, copy in self._copied.items():
                self._copy_memory(namespace, copy)

    def _copy_memory(self, namespace: str, copy: str) -> None:
        self._is_copying = True
        try:
            memory = self._store.memory
            target = memory.in_namespace(copy)
            wanted = memory_as_of(self._store, namespace, self._as_of_us)
            for each in [document.id for document in target.query()]:
                if each not in wanted:
                    target.delete(each)
            for name, document in wanted.items():
                stored = target.get(name)
                if stored is None or _content_of(stored) != _content_of(document):
                    target.save(msgspec.structs.replace(document, version=0))
        finally:
            self._is_copying = False

    def __enter__(self) -> Self:
        if forks.current.fork is not None:
            raise Conflict("another rerun is going on in this process; wait for it")
        forks.current.fork = self
        return self

    def __exit__(self, *_: object) -> None:
        forks.current.fork = None


def refusal(tool: str) -> str:
    """Return what an agent is told about a call that is not made again."""
    return (
        f"refused: {tool!r} has effects that must not be repeated, and the recording has no outcome of this "
        "call; a rerun does not make it"
    )


def _fork_name(thread_id: str, id: str) -> str:
    return f"{thread_id[: MAX_ID_CHARS // 2]}~rerun-{id}"


def memory_as_of(store: Store, namespace: str, at_us: int) -> dict[str, MemoryDocument]:
    """Return the documents that a namespace of memory had at a time, by id."""
    ids: dict[str, None] = {}  # those that it has or had, by the journal
    for record in each_record(store.engine, store.space, EventQuery(kinds=MEMORY_KINDS)):
        scope = parse_scope(record.event.scope)
        if scope.namespace == namespace:
            ids[scope.id] = None
    memory = store.memory.in_namespace(namespace)
    found: dict[str, MemoryDocument] = {}
    for each in ids:
        version = next((one for one in memory.history(each) if one.changed_at_us <= at_us), None)
        if version is not None and version.document is not None:
            found[each] = version.document
    return found


def _content_of(document: MemoryDocument) -> Any:
    return document.content, tuple(document.tags), msgspec.json.encode(document.metadata, order="sorted")


class _WriteGuard:
    """Refuses changes to a folder by Python code of this process, by its audit events.

    A hook can never be removed, so one is added for the first rerun of the process.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self._allowed: tuple[str, ...] = ()
        self._is_added = False

    def begin(self, folder: Path, *, allowed: Sequence[Path]) -> None:
        """Refuse changes to a folder from now on, except below the ``allowed`` ones."""
        self._allowed = tuple(f"{os.path.realpath(each)}/" for each in allowed)
        self.folder = os.path.realpath(folder)
        if not self._is_added:
            self._is_added = True
            sys.addaudithook(self._on_event)

    def end(self) -> None:
        """Allow everything again."""
        self.folder = None

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = any(each in mode for each in "wax+") if isinstance(mode, str) else flags & _WRITES
            if writes and not isinstance(path, int):
                self._check(path, follows=True)
        elif event in _CHANGES:
            for position in _CHANGES[event]:
                if not isinstance(arguments[position], int):
                    self._check(arguments[position], follows=event in _FOLLOWS_LINKS)
        elif event == "subprocess.Popen":
            self._check(arguments[2] or ".", what="start a program in", follows=True)

    def _check(self, path: Any, *, what: str = "change", follows: bool = False) -> None:
        folder = self.folder
        if folder is None or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = Path(os.fsdecode(cast("str", path))).absolute()
        reals = [str(Path(os.path.realpath(name.parent)) / name.name)]  # a link itself
        if follows:
            reals.append(os.path.realpath(name))  # what it leads to
        for real in reals:
            self._refuse(real, folder, what)

    def _refuse(self, real: str, folder: str, what: str) -> None:
        if (real == folder or real.startswith(f"{folder}/")) and not f"{real}/".startswith(self._allowed):
            raise OutsideFork(
                f"a rerun does not {what} {real}, which belongs to the original; let the agent take its "
                "folder from its arguments or from the current directory, which are those of the fork"
            )


write_guard: Final = _WriteGuard()
