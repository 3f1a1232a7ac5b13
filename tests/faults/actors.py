"""The actors of a simulation (`tests.faults.simulation`), and the model of what they were promised."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from treering.core.batch import ABSENT, ANY, Add, Batch, Draft, Event, Expect, Receipt
from treering.core.content import list_address, object_address
from treering.core.engine import Engine
from treering.core.query import Erasure, EventQuery, each_record, encode_cursor
from treering.core.records import Lease, Problem
from treering.errors import Conflict, MissingObjects, TreeringError
from treering.schedules.schedules import Schedules
from treering.schedules.tasks import FINISHED, Policy
from treering.store import Store
from treering.testing import batches

if TYPE_CHECKING:
    from tests.faults.simulation import Process, World

SPACE: Final = "default"
SCOPE: Final = "/thread/shared"
VICTIM: Final = "/thread/victim"
STEP: Final = "step"
LEASE: Final = "leader"
REFS: Final = ("ref/0", "ref/1", "ref/2")
LISTS: Final = ("list 0", "list 1")
COUNT: Final = "count"
TALK: Final = "talk"


class Model:
    """What was acknowledged and refused, and what follows from the journal."""

    def __init__(self) -> None:
        self.receipts: dict[str, Receipt] = {}
        self.refused: dict[str, str] = {}
        self.begun_after: dict[str, int] = {}
        """The last number that was acknowledged before a batch was first submitted."""
        self.last_seq = 0
        self.versions: dict[str, int] = defaultdict(int)
        """The newest acknowledged version of each ref."""
        self.said: list[str] = []
        """Acknowledged messages."""
        self.maybe_said: set[str] = set()
        self.grants: dict[int, Lease] = {}
        """The newest grant of each token."""
        self.released: set[int] = set()
        self.executed: list[tuple[str, int]] = []
        self.erased: list[str] = []

    def begin(self, batch: Batch) -> None:
        """Note that a batch is about to be submitted."""
        self.begun_after.setdefault(batch.id, self.last_seq)

    def acknowledge(self, batch: Batch, receipt: Receipt) -> None:
        """Note a receipt, which is later than all that were there when its batch was begun."""
        known = self.receipts.setdefault(batch.id, receipt)
        assert known == receipt, f"{batch.id} was acknowledged twice, with different receipts"
        assert batch.id not in self.refused, f"{batch.id} was refused, and now it is acknowledged"
        before = self.begun_after[batch.id]
        assert receipt.first_seq > before, f"{batch.id} has number {receipt.first_seq}, older than {before}"
        self.last_seq = max(self.last_seq, receipt.last_seq)
        for name, version in receipt.versions.items():
            self.versions[name] = max(self.versions[name], version)

    def grant(self, lease: Lease, now_us: int, *, is_steady: bool) -> None:
        """Note a lease: its token is new, and if the clock is steady, nobody counts on another.

        (Where the clock goes back, a lease may end earlier than its holder was told. Hence the tokens.)
        """
        for token, other in self.grants.items():
            assert token < lease.token or other.holder == lease.holder, f"{lease}, and before it {other}"
            is_over = other.expires_at_us <= now_us or token in self.released or not is_steady
            assert is_over or token == lease.token, (
                f"{lease.holder} and {other.holder} hold the lease at once"
            )
        self.grants[lease.token] = lease

    def replay(self, engine: Engine, space: str) -> None:
        """Check that the journal explains everything that is stored, and everything that was said."""
        refs: dict[str, tuple[bytes, int]] = {}
        lists: dict[str, list[str]] = defaultdict(list)
        seen: dict[str, int] = {}
        count = token = 0
        versions: dict[str, int] = defaultdict(int)
        large: dict[str, int] = {}
        for record in each_record(engine, space, EventQuery(kinds=(STEP,))):
            batch = record.event.id
            assert batch not in seen, f"{batch} is in the journal twice"
            seen[batch] = record.seq
            for effect in json.loads(record.event.data or b"[]"):
                match effect:
                    case ["set", name, expect]:
                        assert expect in (None, versions[name]), f"{batch} overwrote {name} unseen"
                        versions[name] += 1
                        refs[name] = batch.encode(), versions[name]
                        large.pop(name, None)
                    case ["large", name, size]:
                        large[name] = size
                    case ["add", delta]:
                        count += delta
                    case ["append", name, at]:
                        assert at == len(lists[name]), f"{batch} appended to {name} at {at}, not at its end"
                        lists[name].append(batch)
                    case ["fenced", held]:
                        assert held >= token, f"{batch} was written under the lost token {held}"
                        token = held
                    case _:
                        raise AssertionError(effect)
        for batch, receipt in self.receipts.items():
            assert receipt.first_seq <= seen.get(batch, 0) <= receipt.last_seq, f"{batch} is lost"
        assert not seen.keys() & self.refused.keys(), "what was refused is in the journal"
        stored = engine.refs(space, [*REFS, COUNT])
        found = {name: (ref.value, ref.version) for name, ref in stored.items() if name != COUNT}
        assert found == refs, "the refs are not those of the journal"
        assert int(stored[COUNT].value if COUNT in stored else 0) == count, "the count is wrong"
        for name in LISTS:
            items = (
                [each.data.decode() for each in engine.read_list(space, name, 0, 1 << 30)]
                if lists[name]
                else []
            )
            assert items == lists[name], f"{name} is not that of the journal"
        for name, size in large.items():
            (content,) = engine.get(space, [stored[name].links[0]])
            assert content == batches.noise(size, seed=size)
        self._check_talk(Store(engine))

    def _check_talk(self, store: Store) -> None:
        checkpoint = store.thread(TALK).get()
        said = [] if checkpoint is None else [message["content"] for message in checkpoint.messages]
        assert len(set(said)) == len(said), "a message was said twice"
        assert set(said) - self.maybe_said <= set(self.said), "nobody said that"
        assert set(self.said) <= set(said), f"messages are lost: {set(self.said) - set(said)}"
        for talker in {each.split()[0] for each in said}:
            numbers = [int(each.split()[-1]) for each in said if each.startswith(f"{talker} ")]
            assert numbers == sorted(numbers), f"the messages of {talker} changed places"


class Actor:
    """Someone who works in a process. What it keeps itself survives that process."""

    def __init__(self, world: World, process: Process, name: str) -> None:
        self.world = world
        self.process = process
        self.name = name
        self.number = 0

    @property
    def store(self) -> Store:
        """The store of the process."""
        return self.process.store

    @property
    def model(self) -> Model:
        """The model of the world."""
        return self.world.model

    def step(self) -> None:
        """Do one thing; what fails for a reason is tried again in another step."""
        try:
            self.work()
        except TreeringError as error:
            if not (isinstance(error, Conflict) or (self.world.is_troubled and error.retryable)):
                raise AssertionError(f"{self.name}: {error!r}") from error
            self.world.note(f"{self.name}: {type(error).__name__}: {str(error)[:90]}")

    def work(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def finish(self) -> None:
        """Finish what was begun."""
        self.step()


class Writer(Actor):
    """Commits batches that read, set, count, append and link. One of unknown outcome is submitted again."""

    pending: Batch | None = None

    def work(self) -> None:
        """Submit a batch."""
        if self.pending is None:
            self.pending = self.plan()
        self.submit()

    def finish(self) -> None:
        """Learn the outcome of the last batch."""
        while self.pending is not None:
            self.submit()

    def submit(self) -> None:
        """Submit the pending batch."""
        batch = self.pending
        assert batch is not None
        self.model.begin(batch)
        try:
            receipt = self.store.engine.commit(batch)
        except Conflict as error:
            if isinstance(error, MissingObjects) and error.hashes and batch.requires:
                self.store.engine.stage(SPACE, [batches.noise(size, seed=size) for size in self.staged])
                return
            assert batch.id not in self.model.receipts, f"{batch.id} was acknowledged, and now it is refused"
            self.model.refused[batch.id] = str(error)
            self.world.note(f"{batch.id}: refused ({type(error).__name__})")
        else:
            self.world.note(f"{batch.id}: numbers {receipt.first_seq} to {receipt.last_seq}")
            self.model.acknowledge(batch, receipt)
        self.pending = None

    def plan(self) -> Batch:
        """Make a batch from what is stored now."""
        chance, engine = self.world.chance, self.store.engine
        self.number += 1
        draft = Draft(SPACE, id=f"{self.name}-{self.number}")
        effects: list[list[Any]] = []
        self.staged: list[int] = []
        for what in chance.sample(("set", "set", "add", "append", "large", "blind"), chance.randint(1, 3)):
            name = chance.choice(REFS)
            if what in ("set", "large", "blind") and not any(effect[1] == name for effect in effects):
                expect = None if what == "blind" else self.version(engine, name)
                links = ()
                size = 5000 + chance.randrange(3)
                if what == "large":
                    content = batches.noise(size, seed=size)
                    if chance.random() < 0.5:
                        links = (draft.put(content, scope=SCOPE),)
                    else:
                        draft.require(*engine.stage(SPACE, [content]))
                        links = (object_address(content.name),)
                        self.staged.append(size)
                effects.append(["set", name, expect])
                if links:
                    effects.append(["large", name, size])
                value = draft.id.encode()
                draft.set_ref(name, value, scope=SCOPE, expect=expected(expect), links=links)
            elif what == "add":
                delta = chance.randint(-3, 9)
                effects.append(["add", delta])
                draft.add_to_ref(COUNT, Add(delta=delta), scope=SCOPE)
            elif what == "append":
                name = chance.choice(LISTS)
                info = engine.list_info(SPACE, name)
                at = 0 if info is None else info.length
                effects.append(["append", name, at])
                draft.append(name, batches.words(draft.id), scope=SCOPE, at=at)
                draft.set_ref(f"anchor/{name}", b"", scope=SCOPE, links=(list_address(name),))
        self.add_event(draft, effects)
        return draft.batch()

    def add_event(self, draft: Draft, effects: list[list[Any]]) -> None:
        """Say in the journal what the batch does."""
        data = json.dumps(effects).encode()
        now_us = self.world.clock.now_us()
        draft.event(Event(id=draft.id, kind=STEP, ts_us=now_us, scope=SCOPE, data=data))

    def version(self, engine: Engine, name: str) -> int:
        """Read the version of a ref, which is not older than what was acknowledged before."""
        least = self.model.versions[name]
        ref = engine.refs(SPACE, [name]).get(name)
        version = 0 if ref is None else ref.version
        assert version >= least, (
            f"{self.name} read version {version} of {name} after {least} was acknowledged"
        )
        return version


def expected(version: int | None) -> Expect:
    """Return the precondition of a ref at this version; ``None`` for any."""
    return ANY if version is None else version or ABSENT


class Leader(Writer):
    """Takes a lease, and writes under it as long as it believes that it has it."""

    lease: Lease | None = None

    def work(self) -> None:
        """Claim, renew or release the lease, or write under it."""
        engine, chance = self.store.engine, self.world.chance
        if self.pending is not None:
            self.submit()
        elif self.lease is None:
            held = engine.claim(SPACE, LEASE, holder=self.name, seconds=30)
            if held is not None:
                self.world.note(f"{self.name} holds the lease with token {held.token}")
                self.granted(held)
                self.lease = held
        else:
            what = chance.random()
            if what < 0.2:
                self.lease = engine.heartbeat(self.lease, seconds=30)
                if self.lease is not None:
                    self.granted(self.lease)
            elif what < 0.3:
                held, self.lease = self.lease, None
                self.model.released.add(held.token)
                engine.release(held)
            else:
                self.pending = self.fenced(self.lease)
                self.submit()
                if self.model.refused.get(f"{self.name}-{self.number}"):
                    self.lease = None

    def granted(self, lease: Lease) -> None:
        """Note that the lease was granted or renewed."""
        self.model.grant(lease, self.world.clock.now_us(), is_steady=self.world.is_steady)

    def fenced(self, lease: Lease) -> Batch:
        """Make a batch that is only accepted while the lease is held."""
        self.number += 1
        draft = Draft(SPACE, id=f"{self.name}-{self.number}")
        draft.fence(lease.name, lease.token)
        self.add_event(draft, [["fenced", lease.token]])
        return draft.batch()


class Talker(Actor):
    """Appends messages to a thread that others append to."""

    def work(self) -> None:
        """Say something."""
        self.number += 1
        text = f"{self.name} says {self.number}"
        self.model.maybe_said.add(text)
        message = {"role": "user", "content": text}
        self.store.thread(TALK).append(message, on_conflict=self.world.chance.choice(("raise", "retry")))
        self.model.said.append(text)
        self.model.maybe_said.discard(text)


class Follower(Actor):
    """Reads the journal as it grows: each event once, in order, without gaps."""

    def __init__(self, world: World, process: Process, name: str) -> None:
        super().__init__(world, process, name)
        self.seen: list[tuple[int, str]] = []

    def work(self) -> None:
        """Read the next page."""
        engine, query = self.store.engine, EventQuery(kinds=(STEP,))
        last = self.seen[-1][0] if self.seen else 0
        if engine.wait(SPACE, last, seconds=0) <= last:
            return
        after = encode_cursor(query, 0, last) if last else None
        page = engine.scan(SPACE, query, after=after, limit=self.world.chance.randint(1, 20))
        self.seen += [(record.seq, record.event.id) for record in page.records]

    def finish(self) -> None:
        """Compare with the journal."""
        self.step()
        records = each_record(self.store.engine, SPACE, EventQuery(kinds=(STEP,)))
        journal = [(record.seq, record.event.id) for record in records]
        assert journal[: len(self.seen)] == self.seen, f"{self.name} saw something else"


class Eraser(Actor):
    """Writes what must not stay, and erases it: nothing of it may come back, by whatever late request."""

    pending: Batch | None = None
    canary = ""

    def work(self) -> None:
        """Write or erase."""
        engine = self.store.engine
        if not self.canary:
            self.number += 1
            self.canary = f"canary-{self.name}-{self.number:04}-{self.world.chance.randrange(1 << 60):015x}"
            draft = Draft(SPACE, id=f"{self.name}-{self.number}")
            scope = f"{VICTIM}-{self.name}"
            body = draft.put(batches.words(self.canary), scope=scope)
            event = Event(id=draft.id, kind="secret", ts_us=self.world.clock.now_us(), scope=scope, body=body)
            draft.event(event)
            large = batches.words(self.canary * 300)
            draft.set_ref(
                f"secret/{self.name}",
                self.canary.encode(),
                scope=scope,
                links=(draft.put(large, scope=scope),),
            )
            self.pending = draft.batch()
        if self.pending is not None:
            engine.commit(self.pending)
            self.pending = None
            return
        engine.erase(SPACE, Erasure(scopes=(f"{VICTIM}-{self.name}",), secure=True))
        self.world.note(f"{self.canary} is erased")
        self.model.erased.append(self.canary)
        self.canary = ""

    def finish(self) -> None:
        """Erase what is left."""
        while self.canary:
            self.step()


class Maintainer(Actor):
    """Sweeps, checks and measures while others write."""

    def work(self) -> None:
        """Maintain the store."""
        engine, chance = self.store.engine, self.world.chance
        what = chance.choice(("sweep", "check", "reindex", "stats"))
        self.world.note(f"{self.name}: {what}")
        if what == "sweep":
            engine.sweep(SPACE, grace_seconds=chance.choice((0.0, 0.0, 3600.0)))
        elif what == "check":
            problems = [each for each in engine.check(SPACE) if isinstance(each, Problem)]
            assert not problems, problems
        elif what == "reindex":
            engine.reindex(SPACE)
        else:
            engine.stats(SPACE)


class _Jobs:
    """A pool of threads that runs its jobs when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, tuple[Any, ...]]] = []

    def submit(self, work: Any, *arguments: Any) -> None:
        """Keep a job."""
        self.waiting.append((work, arguments))

    def shutdown(self, *, wait: bool = True) -> None:
        """Forget all jobs."""
        del wait
        self.waiting.clear()


class SimulatedWorker(Actor):
    """Runs scheduled tasks. Its process may die, or sleep past its lease, in the middle of one."""

    _life = -1
    _has_tasks = False

    def work(self) -> None:
        """Poll, or run an occurrence that was claimed."""
        store, chance = self.store, self.world.chance
        if not any(isinstance(each, SimulatedWorker) and each._has_tasks for each in self.world.actors):
            policy = Policy(catch_up="all", catch_up_max=3, max_attempts=1000)
            store.schedules.interval(60, prompt="every minute", policy=policy)
            store.schedules.interval(45, prompt="overlapping", policy=replace(policy, overlap="allow"))
            self._has_tasks = True
        if self._life != self.process.lives:
            self._life = self.process.lives
            self._worker = store.schedules.worker(self._handle, record_runs=False, lease_seconds=30)
            self._jobs = _Jobs()
            self._worker._pool.shutdown()
            self._worker._pool = self._jobs  # pyright: ignore[reportAttributeAccessIssue]
        if self._jobs.waiting and chance.random() < 0.6:
            work, arguments = self._jobs.waiting.pop(0)
            work(*arguments)
            return
        if chance.random() < 0.7:
            self._worker._lease.renew()
        started = self._worker.tick()
        if started:
            self.world.note(f"{self.name} claims {started} occurrences")

    def _handle(self, occurrence: Any) -> None:
        self.model.executed.append((occurrence.task_id, occurrence.scheduled_at_us))

    def finish(self) -> None:
        """Run everything that is due."""
        for _ in range(300):
            self.step()
            tasks = self.store.schedules.list_tasks()
            if not self._jobs.waiting and not any(task.open_occurrences for task in tasks):
                return

    @staticmethod
    def check(store: Store, model: Model) -> None:
        """Each occurrence counts as done once, and was executed before."""
        engine = store.engine
        finished = [
            (record.event.scope, data["at_us"])
            for record in each_record(engine, SPACE, EventQuery(kinds=(FINISHED,)))
            for data in (json.loads(record.event.data or b"{}"),)
        ]
        assert len(set(finished)) == len(finished), "an occurrence was finished twice"
        executed = {(f"/schedule/{task}", at_us) for task, at_us in model.executed}
        assert set(finished) <= executed, "an occurrence is finished that nobody executed"
        for task in Schedules(engine, SPACE, clock=store.clock).list_tasks():
            overdue = [each for each in task.open_occurrences if each.worker is None]
            assert not overdue, f"task {task.id} has occurrences that nobody runs: {overdue}"


CAST: Final[dict[type[Actor], int]] = {
    Writer: 4,
    Leader: 2,
    Talker: 2,
    Follower: 2,
    Eraser: 1,
    Maintainer: 1,
    SimulatedWorker: 2,
}
"""Who takes part, and how many."""
