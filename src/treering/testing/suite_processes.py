"""Processes: an acknowledged write is read anywhere, and a fork harms nobody (invariants 6 and 19)."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING

import pytest

from treering.core.batch import ABSENT, Add, Batch, Draft, RefChange
from treering.core.content import list_address
from treering.core.ids import new_id
from treering.core.query import EventQuery
from treering.errors import Conflict
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once, needs
from treering.testing.portrait import all_records, portrait, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine
    from treering.testing.harness import OpenEngine

_CHILD_SECONDS = 60


class ProcessTests(EngineHarness):
    """What several processes may rely on."""

    def test_06_a_write_is_read_at_once(self, engine: Engine, space: str) -> None:
        for number in range(30):
            engine.commit(batches.set_ref(space, "r", b"%d" % number))
            assert engine.refs(space, ["r"])["r"].value == b"%d" % number

    @needs("shared_writers")
    def test_06_a_write_is_read_at_once_by_another_engine(
        self, engine: Engine, space: str, open_engine: OpenEngine
    ) -> None:
        other = open_engine()
        for number in range(20):
            writer, reader = (engine, other) if number % 2 else (other, engine)
            draft = Draft(space)
            batches.full_load(draft, key=f"k{number}")
            writer.commit(draft.batch())
            assert reader.refs(space, [f"k{number}/head"])[f"k{number}/head"].version == 1
            assert len(reader.read_list(space, f"k{number}/list", 0, 9)) == 3
        assert portrait(engine, space) == portrait(other, space)

    @needs("shared_writers")
    def test_06_a_write_of_another_process_is_read_at_once(
        self, engine: Engine, space: str, make_engine: OpenEngine
    ) -> None:
        engine.commit(batches.set_ref(space, "parent"))

        def child() -> None:
            own = make_engine()
            assert own.refs(space, ["parent"])
            draft = Draft(space)
            batches.full_load(draft)
            own.commit(draft.batch())
            own.close()

        _in_child(child)
        assert engine.refs(space, ["full/head"])
        assert len(engine.read_list(space, "full/list", 0, 9)) == 3
        assert not problems(engine, space)

    @needs("shared_writers")
    def test_06_many_processes_lose_nothing(
        self, engine: Engine, space: str, make_engine: OpenEngine
    ) -> None:
        """Sums add up, compare-and-swap loses no update, sequence numbers have no gaps."""
        children, commits = 3, 20
        engine.commit(batches.set_ref(space, "swapped", b"0"))

        def child(number: int) -> None:
            own = make_engine()
            for step in range(commits):
                change = RefChange(name="total", scope="s", change=Add(delta=1))
                event = batches.event(id=f"{number}.{step}")
                own.commit(Batch(id=new_id(), space=space, refs=(change,), events=(event,)))
                while True:
                    ref = own.refs(space, ["swapped"])["swapped"]
                    value = b"%d" % (int(ref.value) + 1)
                    try:
                        own.commit(batches.set_ref(space, "swapped", value, expect=ref.version))
                        break
                    except Conflict:
                        continue
            own.close()

        outcomes = at_once(
            *[lambda number=number: _in_child(lambda: child(number)) for number in range(children)]
        )
        assert not [outcome for outcome in outcomes if outcome is not None]
        found = engine.refs(space, ["total", "swapped"])
        assert int(found["total"].value) == int(found["swapped"].value) == children * commits
        assert found["swapped"].version == children * commits + 1
        assert len(all_records(engine, space, limit=1000)) == children * commits
        assert engine.commit(batches.set_ref(space, "last")).first_seq == 2 * children * commits + 2
        assert not problems(engine, space)

    @needs("shared_writers")
    def test_19_a_forked_child_can_use_the_engine_and_the_parent_is_unharmed(
        self, engine: Engine, space: str
    ) -> None:
        draft = Draft(space)
        batches.full_load(draft, key="parent")
        engine.commit(draft.batch())
        in_flight = [engine.submit(batches.set_ref(space, f"flight/{number}")) for number in range(20)]

        def child() -> None:
            assert engine.refs(space, ["parent/head"])
            own = Draft(space)
            batches.full_load(own, key="child")
            engine.commit(own.batch())
            engine.stage(space, [batches.noise(5000, seed=3)])
            assert len(engine.read_list(space, "parent/list", 0, 9)) == 3

        _in_child(child)
        assert all(future.result(timeout=30).versions for future in in_flight)
        engine.commit(batches.set_ref(space, "after", links=(list_address("child/list"),)))
        assert len(engine.scan_refs(space, "flight/")) == 20
        assert {record.event.id for record in engine.scan(space, EventQuery()).records} == {
            f"{key}-{number}" for key in ("parent", "child") for number in (1, 2)
        }
        assert not problems(engine, space)

    @needs("shared_writers")
    def test_19_a_fork_of_a_fork_and_a_crash_do_no_harm(self, engine: Engine, space: str) -> None:
        engine.commit(batches.set_ref(space, "r", expect=ABSENT))

        def grandchild() -> None:
            engine.commit(batches.set_ref(space, "r", expect=2))

        def child() -> None:
            engine.commit(batches.set_ref(space, "r", expect=1))
            _in_child(grandchild)
            engine.commit(batches.set_ref(space, "r", expect=3))

        def crash() -> None:
            engine.commit(batches.set_ref(space, "r", expect=4))
            os.kill(os.getpid(), signal.SIGKILL)

        _in_child(child)
        with pytest.raises(AssertionError, match=f"{-signal.SIGKILL}"):
            _in_child(crash)
        assert engine.commit(batches.set_ref(space, "r", expect=5)).versions == {"r": 6}
        assert not problems(engine, space)


def _in_child(action: Callable[[], None]) -> None:
    """Run an action in a forked child that ends without any cleanup, and wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of forks in processes with threads: whether that works is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:  # noqa: BLE001 - a child must never come back into the test run
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    deadline = time.monotonic() + _CHILD_SECONDS
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the forked child hangs")
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    assert code == 0, f"the forked child ended with {code}; see its output"
