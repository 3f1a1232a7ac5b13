"""Simulation: processes, servers and clients on one store, whose every step follows from one seed.

Everything runs in one thread, on the real engines, the real gateway and the real client. A `World` draws from
the seed which actor takes the next step, and what goes wrong:

- **Scheduler.** A step is one operation. At failpoints where no lock is held, and while a request is on its
  way, other processes may take steps in between.
- **Clock.** It is moved forward and, sometimes, back. Whoever sleeps moves it.
- **Network.** A request or its answer is lost, cut off, sent twice, or arrives when its sender has given up.
- **Storage.** The disk of the database is full at commit; an upload fails, or fails after it has arrived.
- **Crashes.** A process dies at a failpoint or between steps; or the machine does, and all of its processes
  start again on the files as they were at that moment.

Each actor checks what it is promised while it runs. In the end faults cease, everyone finishes what they
began, and the journal is replayed on a model (`Model.replay`): it must explain every ref and list, every
receipt and every refusal.

Run one seed, and print its history: ``python -m tests.faults.simulation SEED [sqlite|memory] [STEPS]``.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from tests.faults.actors import CAST, Actor, Model, SimulatedWorker
from treering.blobs.folder import FolderBlobs
from treering.core import failpoints, ids
from treering.core.clock import SECOND_US, ManualClock
from treering.core.engine import Engine
from treering.core.records import Problem
from treering.engines.memory.engine import MemoryEngine
from treering.engines.remote import protocol, transport
from treering.engines.remote.engine import RemoteEngine
from treering.engines.remote.protocol import Method
from treering.engines.sqlite.engine import SqliteEngine, open_sqlite
from treering.errors import TreeringError, Unreachable
from treering.server.auth import Access
from treering.server.gateway import SINGLE, STREAMED, GatewayTarget
from treering.server.http import problem_of
from treering.server.routes.gateway import _arguments
from treering.store import Store

START_US: Final = 1_700_000_000 * SECOND_US
ENGINES: Final = ("sqlite", "memory")
_UNLOCKED: Final = frozenset(
    {
        "commit.begin", "commit.after_commit", "pack.write", "pack.written", "pack.rewritten", "gc.marked",
        "gc.after_delete", "erase.after_commit", "erase.before_rewrite", "file.synced",
    }
)  # fmt: skip
"""Failpoints where a process on SQLite holds no lock, so that others may run in between."""
_FULL: Final = frozenset({"commit.before_commit", "flush.before_commit", "erase.before_commit"})
"""Failpoints in a transaction of SQLite, where the disk may be full."""
_DEEPEST: Final = 3


class Died(BaseException):
    """A process was killed, or all of them with their machine (``process`` is ``None``)."""

    def __init__(self, process: Process | None) -> None:
        self.process = process
        super().__init__()


class Process:
    """A process with the store open; after it died, it opens the store again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.lives = 0
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store, as this process has opened it."""
        if self._store is None:
            self._store = Store(self.open_engine(), clock=self.world.clock)
            self.lives += 1
        return self._store

    def open_engine(self) -> Engine:
        """Open the store of the world."""
        return self.world.open_engine()

    def die(self) -> None:
        """Lose everything in memory. Nothing is flushed."""
        engine, self._store = (None if self._store is None else self._store.engine), None
        if isinstance(engine, SqliteEngine):
            engine._sqlite.close()
            engine._last.close()


class Server(Process):
    """A server: the methods of the gateway on its own engine."""

    def answer(self, method: Method, namespace: str, body: bytes) -> list[bytes]:
        """Execute a request, and return the frames of the answer."""
        self.world.stack.append(self)
        try:
            access = Access(project="default", scope="admin", name="simulated")
            target = GatewayTarget(
                engine=self.store.engine,
                access=access,
                namespace=namespace,
                max_request_bytes=protocol.MAX_REQUEST_BYTES,
            )
            decoder = msgspec.msgpack.Decoder(method.args)
            args = _arguments(method, decoder, body, protocol.MAX_REQUEST_BYTES)
            if method.name == "wait":
                found: Any = [target.engine.wait(target.space, args.after_seq, seconds=0)]
            elif method.name in STREAMED:
                found = STREAMED[method.name](target, args)
            else:
                found = [SINGLE[method.name](target, args)]
            frames = [protocol.frame(protocol.MESSAGE, msgspec.msgpack.encode(each)) for each in found]
        except Died as died:
            if died.process is self:
                self.world.note(f"{self.name} died")
                self.die()
            raise
        finally:
            self.world.stack.pop()
        return [*frames, protocol.frame(protocol.END)]


class Client(Process):
    """A process on another machine, which reaches the store through a server."""

    def __init__(self, world: World, name: str, server: Server) -> None:
        super().__init__(world, name)
        self.server = server

    def open_engine(self) -> Engine:
        """Connect to the server."""
        return RemoteEngine(Wire(self.world, self.server))

    def die(self) -> None:
        """Lose everything in memory."""
        self._store = None


class Wire(transport.ConnectionPool):
    """The network between a client and a server."""

    def __init__(self, world: World, server: Server) -> None:
        super().__init__(transport.parse_server_url("http://127.0.0.1:1", with_key=False))
        self._world = world
        self._server = server

    def _send(self, method: Method, namespace: str, body: Any) -> tuple[Any, Any]:
        world, data = self._world, b"".join(body)
        fault = world.network_fault()
        if fault != "none":
            world.note(f"network: {fault} ({method.name})")
        if fault == "unreachable":
            raise transport._ConnectionLost(reached=False) from ConnectionRefusedError("simulated")
        if fault == "late":
            world.late.append((self._server, method, namespace, data))
        if fault in ("late", "lost request"):
            raise transport._ConnectionLost(reached=True) from ConnectionResetError("simulated")
        world.interleave("the network", 0.05)
        if self._server in world.stack:  # it waits for whom it serves already
            raise transport._ConnectionLost(reached=False) from TimeoutError("simulated")
        try:
            if fault == "twice":
                with suppress(TreeringError):
                    self._server.answer(method, namespace, data)
            frames = self._server.answer(method, namespace, data)
        except TreeringError as error:
            raise transport.error_from_document(msgspec.json.encode(problem_of(error))) from None
        except Died as died:
            if died.process is not self._server:
                raise
            raise transport._ConnectionLost(reached=True) from ConnectionResetError("simulated")
        if fault == "lost answer":
            raise transport._ConnectionLost(reached=True) from ConnectionResetError("simulated")
        world.interleave("the network", 0.05)
        answer = b"".join(frames)
        return _Nothing(), _Answer(
            answer[: world.chance.randrange(len(answer))] if fault == "cut" else answer
        )

    def _release(self, connection: Any, response: Any) -> None:
        pass


class _Nothing:
    def close(self) -> None:
        """A connection that needs no closing."""


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int = -1) -> bytes:
        """Read like an `HTTPResponse`."""
        size = len(self._data) if size < 0 else size
        piece, self._data = self._data[:size], self._data[size:]
        return piece


class FaultyBlobs(FolderBlobs):
    """A folder for packs that fails sometimes, before or after it has written."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(folder, clock=world.clock)
        self._world = world

    def put(self, name: str, data: Any, *, if_absent: bool = False) -> None:
        """Write a blob, or fail."""
        fault = self._world.upload_fault()
        if fault == "before":
            raise Unreachable(f"{name}: simulated failure")
        super().put(name, data, if_absent=if_absent)
        if fault == "after":
            raise Unreachable(f"{name}: simulated failure, after it was written")


class World:
    """All processes, what happens to them, and what they know."""

    def __init__(self, seed: int, engine: str, folder: Path) -> None:
        self.seed = seed
        self.engine = engine
        self.chance = random.Random(f"{engine} {seed}")
        self.clock = ManualClock(START_US)
        self.history: list[str] = []
        self.model = Model()
        self.stack: list[Process] = []
        self.late: list[tuple[Server, Method, str, bytes]] = []
        self.is_troubled = True
        self.counts: Counter[str] = Counter()
        self._root = folder
        self._machine = 0
        self._shared = MemoryEngine(clock=self.clock)
        # How likely faults are differs by seed: some worlds are calm, so that much happens in them.
        self.is_steady = self.chance.random() < 0.5
        """Whether the clock never goes back."""
        self._misery = self.chance.choice((0.0, 0.3, 1.0, 1.0, 3.0))
        server = Server(self, "server")
        other = Server(self, "server-2")
        self.processes: list[Process] = [
            Process(self, "local"),
            Process(self, "local-2"),
            Client(self, "client", server),
            Client(self, "client-2", other),
            server,
            other,
        ]
        workplaces = [each for each in self.processes if not isinstance(each, Server)]
        self.actors: list[Actor] = [
            kind(self, self.chance.choice(workplaces), f"{kind.__name__.lower()}-{number}")
            for kind, count in CAST.items()
            for number in range(count)
        ]

    # What happens

    def run(self, steps: int) -> None:
        """Take so many steps, then let everyone finish, and check everything."""
        with self._simulated():
            self.processes[0].store.state.set("the world", "begins")
            for _ in range(steps):
                self.clock.advance(seconds=self.chance.random() / 10)
                self._begin_turn()
            self._finish()
            for process in self.processes:
                process.die()

    def note(self, text: str) -> None:
        """Add a line to the history."""
        who = "/".join(each.name for each in self.stack)
        seconds = (self.clock.now_us() - START_US) / SECOND_US
        text = text.replace(str(self._root), "")  # the same in every run
        self.history.append(f"{len(self.history):5} {seconds:10.3f}s [{who}] {text}")

    def interleave(self, where: str, likelihood: float) -> None:
        """Let other processes take steps here, perhaps."""
        while self.is_troubled and len(self.stack) < _DEEPEST and self.chance.random() < likelihood:
            self.note(f"others go on while this is at {where}")
            self.counts["interleaved"] += 1
            self._turn()

    def network_fault(self) -> str:
        """Choose what goes wrong with a request."""
        return self._choose(
            0.04,
            ("unreachable", "lost request", "late", "late", "twice", "lost answer", "lost answer", "cut"),
        )

    def upload_fault(self) -> str:
        """Choose what goes wrong with a write of a pack."""
        return self._choose(0.03, ("before", "after"))

    def open_engine(self) -> Engine:
        """Open the store, as a process on its machine does."""
        if self.engine == "memory":
            return self._shared
        folder = self.folder
        return open_sqlite(
            folder, blobs=FaultyBlobs(self, folder / "blobs"), durability="fast", clock=self.clock
        )

    @property
    def folder(self) -> Path:
        """The folder of the store, another one after each crash of the machine."""
        return self._root / f"machine-{self._machine}"

    def _choose(self, likelihood: float, faults: tuple[str, ...]) -> str:
        if not self.is_troubled or self.chance.random() >= likelihood * self._misery:
            return "none"
        fault = self.chance.choice(faults)
        self.counts[fault] += 1
        return fault

    def _begin_turn(self) -> None:
        """Take a step with nobody else in the middle of one."""
        try:
            self._turn()
        except Died as died:
            if died.process is not None:
                raise
            self._restart()

    def _turn(self) -> None:
        event = self._choose(
            0.08, ("clock", "clock", "clock back", "kill", "kill", "machine", "arrival", "arrival")
        )
        match event:
            case "clock":
                self.clock.advance(seconds=self.chance.choice((1, 20, 61, 400)))
            case "clock back" if self.is_steady:
                pass
            case "clock back":
                self.clock.advance(seconds=-self.chance.choice((0.001, 1, 30)))
            case "kill":
                process = self.chance.choice([each for each in self.processes if each not in self.stack])
                self.note(f"{process.name} is killed")
                process.die()
            case "machine":
                self._crash_machine()
            case "arrival":
                self._deliver_late()
            case _:
                idle = [each for each in self.actors if self._is_idle(each.process)]
                if idle:
                    self._act(self.chance.choice(idle))

    def _is_idle(self, process: Process) -> bool:
        busy = set(self.stack)
        return process not in busy and not (isinstance(process, Client) and process.server in busy)

    def _act(self, actor: Actor) -> None:
        """Let an actor take a step, in which its process may die."""
        process = actor.process
        self.stack.append(process)
        self.counts["steps"] += 1
        try:
            actor.step()
        except Died as died:
            if died.process is not process:
                raise
            self.note(f"{process.name} died")
            process.die()
        finally:
            self.stack.pop()

    def _deliver_late(self) -> None:
        """Deliver a request whose sender has given up; nobody reads the answer."""
        waiting = [each for each in self.late if each[0] not in self.stack]
        if not waiting:
            return
        late = self.chance.choice(waiting)
        self.late.remove(late)
        server, method, namespace, data = late
        self.note(f"a late {method.name} arrives at {server.name}")
        try:
            server.answer(method, namespace, data)
        except TreeringError as error:
            self.note(f"refused: {type(error).__name__}")
        except Died as died:
            if died.process is not server:
                raise

    def _at_failpoint(self, name: str) -> None:
        if not self.is_troubled or not self.stack:
            return
        self.counts["failpoints"] += 1
        if self._choose(0.004, ("machine dies",)) != "none":
            self._crash_machine()
        if self._choose(0.02, ("process dies",)) != "none":
            self.note(f"dies at {name}")
            raise Died(self.stack[-1])
        if name in _FULL and self._choose(0.02, ("disk full",)) != "none":
            self.note(f"the disk is full at {name}")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        if name in _UNLOCKED and self.engine != "memory":
            self.interleave(name, 0.12)

    def _crash_machine(self) -> None:
        """Stop all processes at once: what they have written to files is there, and nothing else."""
        if self.engine == "memory" or not self.folder.exists():
            return  # the memory of the world is no machine
        self.note("the machine dies")
        self.counts["machines"] += 1
        copy = self._root / f"machine-{self._machine + 1}"
        shutil.copytree(self.folder, copy, ignore=shutil.ignore_patterns("*-shm"))
        raise Died(None)

    def _restart(self) -> None:
        for process in self.processes:
            process.die()
        shutil.rmtree(self.folder)
        self._machine += 1
        self.stack.clear()

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Take time, randomness and failpoints from the seed."""
        noise = random.Random(f"noise {self.seed}")

        def sleep(seconds: float) -> None:
            self.clock.advance(seconds=seconds)
            self.interleave("a pause", 0.2)

        def urandom(count: int) -> bytes:
            return noise.randbytes(count)

        not_ours = ("test.", "child.", "remote.")  # the network of the world has faults of its own
        points = [name for name in failpoints.declared() if not name.startswith(not_ours)]
        if self.chance.random() < 0.5:  # armed, it takes commits around the short way
            points.remove("commit.before_commit")
        state = random.getstate()
        random.seed(self.seed)
        with ExitStack() as stack:
            patch = lambda *what: stack.enter_context(mock.patch.object(*what))  # noqa: E731
            patch(time, "sleep", sleep)
            patch(time, "monotonic", lambda: self.clock.now_us() / SECOND_US)
            patch(secrets, "token_hex", lambda count: noise.randbytes(count).hex())
            patch(os, "urandom", urandom)
            patch(ids, "_shared", ids.IdSource(self.clock, urandom))
            for name in points:
                failpoints.arm(name, lambda name=name: self._at_failpoint(name))
                stack.callback(failpoints.disarm, name)
            stack.callback(random.setstate, state)
            yield

    # The end

    def _finish(self) -> None:
        self.is_troubled = False
        self.note("faults cease")
        while self.late:
            self._deliver_late()
        for _ in range(2):  # the clock may have gone back: leases expire, occurrences become due
            self.clock.advance(seconds=600)
            for actor in self.actors:
                self.stack.append(actor.process)
                actor.finish()
                self.stack.pop()
        for process in self.processes:
            self.model.replay(process.store.engine, process.store.space)
        engine = self.processes[0].store.engine
        problems = [each for each in engine.check("default") if isinstance(each, Problem)]
        assert not problems, problems
        SimulatedWorker.check(self.processes[0].store, self.model)
        self._no_erased_bytes()

    def _no_erased_bytes(self) -> None:
        if self.engine == "memory":
            return
        for path in sorted(self.folder.rglob("*")):
            data = path.read_bytes() if path.is_file() else b""
            left = [canary for canary in self.model.erased if canary.encode() in data]
            assert not left, f"{path.name} still holds {left}"


class Failed(AssertionError):
    """A world in which a promise was broken."""


def simulate(seed: int, engine: str, *, steps: int, folder: Path | None = None) -> World:
    """Run a world from its seed; raise `Failed` with its history if a promise was broken in it."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        world = World(seed, engine, Path(scratch))
        try:
            world.run(steps)
        except Exception as error:
            last = "\n".join(world.history[-40:])
            raise Failed(
                f"seed {seed} on {engine}, {steps} steps: {type(error).__name__}: {error}\n{last}\n"
                f"all of it: python -m tests.faults.simulation {seed} {engine} {steps}"
            ) from error
        return world


def main() -> None:
    """Run one seed, and print its history."""
    seed = int(sys.argv[1])
    engine = sys.argv[2] if len(sys.argv) > 2 else ENGINES[0]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 150
    with tempfile.TemporaryDirectory() as scratch:
        world = World(seed, engine, Path(scratch))
        try:
            world.run(steps)
        finally:
            sys.stdout.write("\n".join(world.history) + f"\n{dict(world.counts)}\n")


if __name__ == "__main__":
    main()
