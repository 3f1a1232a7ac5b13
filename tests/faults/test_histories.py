"""Histories of processes on one PostgreSQL store, behind connections that are delayed, cut and lose answers.

Each process (a host) reaches the database through a proxy of its own. Hosts are killed at random and started
again. What they did and saw is checked together: see `check`.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import treering
from tests.faults.historian import REGISTER, SHARED
from tests.faults.stores import REPOSITORY
from treering.core.query import EventQuery, each_record
from treering.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.postgres
FIRST = "first"
PATIENCE = 60
"""Seconds until a test gives up."""


def test_the_histories_of_four_hosts_hold_together(postgres_url, tmp_path: Path):
    live(postgres_url, tmp_path, hosts=4, operations=150, faults=12)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_histories_of_eight_hosts_hold_together_for_ten_minutes(postgres_url, tmp_path: Path):
    live(postgres_url, tmp_path, hosts=8, seconds=600)


def operation(name: str, begun: float, ended: float, seen: Any) -> Operation:
    made = Operation({"id": f"{name} at {begun}", "op": name, "at": begun})
    made.ended, made.state, made.seen = ended, "ok", seen
    return made


def test_the_checks_notice_what_must_not_happen(postgres_url):
    with treering.open(postgres_url) as store:
        for number in range(2):
            store.thread(SHARED).append(f"append at {number}")
        draft = store.draft()
        draft.set_ref(REGISTER, b"x", scope="/state/register")
        store.commit(draft)
        good = [operation("append", 0, 0.5, None), operation("append", 1, 1.5, None)]
        _check_list(store, good, good)
        lost = operation("append", 2, 2.5, None)
        invented = good[:1]
        stale = operation("read", 2, 3, ["append at 0"])
        swapped = operation("read", 2, 3, ["append at 1", "append at 0"])
        for history in ([*good, lost], invented, [*good, stale], [*good, swapped]):
            with pytest.raises(AssertionError):
                _check_list(store, history, history)
        for one, other in (((0, 1), (0, 1)), ((0, 1), (2, 3))):  # an update lost; a version that is not there
            steps = [
                operation("swap", n, n + 0.5, {"from": a, "to": b}) for n, (a, b) in enumerate((one, other))
            ]
            with pytest.raises(AssertionError):
                _check_register(store, steps)
    for since, token in ((0.5, 2), (1.5, 1)):
        first = operation("claim", 0, 1, {"token": 1, "from": 0, "until": 1})
        with pytest.raises(AssertionError):
            _check_leases([first, operation("claim", 0, 2, {"token": token, "from": since, "until": 2})])


class Proxy:
    """Passes bytes on between a host and the database, slowly or not at all, as it is told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self.delay = 0.0
        self.loses_answer = False
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def cut(self) -> None:
        """Cut all connections."""
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut all connections, and take no more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError), self._listening:
            while True:
                client, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._connect, args=(client,)))
                self._threads[-1].start()

    def _connect(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._port)) as server:
            self._open += [client, server]
            answers = threading.Thread(target=self._pass, args=(server, client, True))
            answers.start()
            self._pass(client, server, False)
            answers.join()
            self._open.remove(client)
            self._open.remove(server)

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:  # noqa: FBT001
        with suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                if is_answer and self.loses_answer:
                    self.loses_answer = False
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Host:
    """A place where a process runs, again and again."""

    def __init__(self, number: int, url: str, folder: Path) -> None:
        address, _, database = url.rpartition("/")
        self.proxy = Proxy(int(address.rpartition(":")[2]))
        self._url = f"postgresql://treering@127.0.0.1:{self.proxy.port}/{database}"
        self._number = number
        self._folder = folder
        self._lives = 0
        self.start()

    def start(self) -> None:
        self._lives += 1
        name = f"h{self._number}l{self._lives}"
        given = {
            "store": self._url,
            "name": name,
            "seed": str(self._number * 1000 + self._lives),
            "history": str(self._folder / f"{name}.jsonl"),
        }
        words = [f"--{option}={value}" for option, value in given.items()]
        command = [sys.executable, "-m", "tests.faults.historian", *words]
        with (self._folder / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, stderr=log)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        assert self.process.poll() is None, "it found something wrong: see its log"
        self.end()


def live(
    url: str, folder: Path, *, hosts: int, operations: int = 0, faults: int = 0, seconds: float = 0.0
) -> None:
    """Let hosts work until there are so many operations and faults, or for so long; check what they did."""
    chance = random.Random(hosts)
    done = 0
    begun = time.monotonic()
    with treering.open(url) as store, ExitStack() as stack:
        store.thread(SHARED).append(FIRST)
        follower = Follower(url)
        stack.callback(follower.end)
        running: list[Host] = []
        for number in range(hosts):
            running.append(Host(number, url, folder))
            stack.callback(running[-1].proxy.close)
            stack.callback(running[-1].end)
        until(lambda: finished(folder) >= hosts)
        while done < faults or finished(folder) < operations or time.monotonic() < begun + seconds:
            host = chance.choice(running)
            match chance.choice(("cut", "cut", "lose", "lose", "delay", "kill")):
                case "cut":
                    host.proxy.cut()
                case "lose":
                    host.proxy.loses_answer = True
                case "delay":
                    host.proxy.delay = chance.choice((0.0, 0.0, 0.002, 0.02))
                case _:
                    host.kill()
                    host.start()
            done += 1
            before = finished(folder)
            until(lambda least=before + 3: finished(folder) >= least)  # so that faults meet work
            assert all(each.process.poll() is None for each in running), errors(folder)
        for each in running:
            each.kill()
        seen = follower.end()
        counts = check(store, read(folder), seen)
    print(f"checked {counts} operations of {hosts} hosts, {done} faults, {len(seen)} events followed")


class Follower:
    """Follows the journal from the beginning, in a thread."""

    def __init__(self, url: str) -> None:
        self._over = threading.Event()
        self.seen: list[int] = []
        self._store = treering.open(url)
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        engine, space = self._store.engine, self._store.space
        position = 0
        while True:
            is_over = self._over.is_set()
            last = engine.wait(space, position, seconds=0.0 if is_over else 0.2)
            if last > position:
                page = engine.scan(space, EventQuery(), after=str(position), limit=1000)
                self.seen += [record.seq for record in page.records]
                # Not every commit has an event, and some were forgotten.
                position = self.seen[-1] if page.cursor is not None else max([last, *self.seen[-1:]])
            elif is_over:
                return

    def end(self) -> list[int]:
        """Stop when everything was seen; return the numbers."""
        self._over.set()
        self._thread.join()
        self._store.close()
        return self.seen


def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(folder: Path) -> int:
    """How many operations have ended."""
    return sum(path.read_bytes().count(b'"state": "ok"') for path in folder.glob("*.jsonl"))


def errors(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log") if path.stat().st_size)


class Operation:
    """An operation: when it began, and if it is known, when and how it ended."""

    def __init__(self, begin: dict[str, Any]) -> None:
        self.id: str = begin["id"]
        self.name: str = begin["op"]
        self.begun: float = begin["at"]
        self.ended = float("inf")
        self.state = "unknown"
        self.seen: Any = None


def read(folder: Path) -> list[Operation]:
    """Read the histories of all processes."""
    found: dict[str, Operation] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # it was killed while it wrote
            entry = json.loads(line)
            if entry["state"] == "begin":
                found[entry["id"]] = Operation(entry)
                continue
            assert entry["state"] != "wrong", entry
            operation = found[entry["id"]]
            operation.ended, operation.state = entry["at"], entry["state"]
            operation.seen = entry.get("seen")
    return sorted(found.values(), key=lambda each: each.begun)


def check(store: treering.Store, history: list[Operation], seen: list[int]) -> dict[str, int]:
    """Check all histories together; return how many operations of each kind were acknowledged."""
    known = [each for each in history if each.state == "ok"]
    _check_list(store, history, known)
    _check_register(store, known)
    _check_leases(known)
    for each in known:
        if each.name == "forget":
            with pytest.raises(NotFound):
                store.thread(f"gone/{each.id}").load()
        if each.name == "rewind":
            assert store.thread(f"own/{each.id}").load().messages == ["first"]
    assert seen == sorted(set(seen)), "a follower sees events once, in order"
    journal = {record.seq for record in each_record(store.engine, store.space, EventQuery(), limit=1000)}
    assert journal <= set(seen), "and all of them"
    assert store.verify().problems == ()
    return dict(Counter(each.name for each in known))


def _check_list(store: treering.Store, history: list[Operation], known: list[Operation]) -> None:
    """Appends are not lost, doubled, invented or out of order; reads and forks see a prefix, never stale."""
    final = store.thread(SHARED).load().messages
    place = {value: number for number, value in enumerate(final)}
    assert len(place) == len(final), "nothing twice"
    assert set(final) <= {FIRST} | {each.id for each in history if each.name == "append"}, (
        "nothing that nobody wrote"
    )
    appends = sorted((each for each in known if each.name == "append"), key=lambda each: each.ended)
    for each in appends:
        assert each.id in place, f"{each.id} was acknowledged and is lost"
    looks = [each for each in known if each.name in {"read", "fork"}]
    for look in looks:
        assert look.seen == final[: len(look.seen)], f"{look.id} saw what never was"
    # In the order of their beginnings, with everything that was acknowledged or seen before.
    least = 0
    waiting = sorted(
        [(each.ended, place[each.id] + 1) for each in appends]
        + [(look.ended, len(look.seen)) for look in looks]
    )
    for each in sorted([*appends, *looks], key=lambda each: each.begun):
        while waiting and waiting[0][0] < each.begun:
            least = max(least, waiting.pop(0)[1])
        if each.name == "append":
            assert place[each.id] >= least, f"{each.id} stands before what was there when it began"
        else:
            assert len(each.seen) >= least, f"{each.id} is stale"


def _check_register(store: treering.Store, known: list[Operation]) -> None:
    """Compare-and-swap: each version has one successor, and none starts from an old one."""
    swaps = [each for each in known if each.name == "swap"]
    steps = Counter(each.seen["from"] for each in swaps)
    assert all(count == 1 for count in steps.values()), "an update was lost"
    assert all(each.seen["to"] == each.seen["from"] + 1 for each in swaps)
    found = store.engine.refs(store.space, [REGISTER])
    assert found[REGISTER].version >= max((each.seen["to"] for each in swaps), default=0)
    least = 0
    waiting = sorted((each.ended, each.seen["to"]) for each in swaps)
    for each in sorted(swaps, key=lambda each: each.begun):
        while waiting and waiting[0][0] < each.begun:
            least = max(least, waiting.pop(0)[1])
        assert each.seen["from"] >= least, f"{each.id} read a stale register"


def _check_leases(known: list[Operation]) -> None:
    """Claims: no two hold the lease at once, and tokens grow."""
    holds = sorted(
        (each.seen["from"], each.seen["until"], each.seen["token"], each.id)
        for each in known
        if each.name == "claim" and each.seen["token"] is not None
    )
    for (_, until_, token, one), (since, _, next_token, other) in pairwise(holds):
        assert since >= until_, f"{one} and {other} hold the lease at once"
        assert next_token > token, f"{other} has an old token"
