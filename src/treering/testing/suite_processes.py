"""Processes and leases: what processes that share a store may rely on.

An acknowledged write is read everywhere, and a fork harms neither parent nor child. A lease has one holder,
its tokens grow, and a fence stops a holder that lost it. The clock of a lease is the store's, so the tests of
leases wait in real time, with margins.
"""

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
from treering.core.records import Lease
from treering.errors import Conflict, Fenced
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once, needs
from treering.testing.portrait import all_records, portrait, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine
    from treering.testing.harness import OpenEngine


class LeaseTests(EngineHarness):
    """Guarantees of leases."""

    @needs("claim")
    def test_a_claim_has_one_holder(self, engine: Engine, space: str) -> None:
        lease = engine.claim(space, "job", holder="a", seconds=60)
        assert lease is not None
        assert (lease.space, lease.name, lease.holder) == (space, "job", "a")
        assert engine.claim(space, "job", holder="b", seconds=60) is None
        assert engine.claim(space, "other job", holder="b", seconds=60) is not None

    @needs("claim")
    def test_the_holder_renews_under_the_same_token(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=10)
        again = _claim(engine, space, "a", seconds=60)
        assert again.token == lease.token
        assert again.expires_at_us > lease.expires_at_us
        longer = engine.heartbeat(lease, seconds=120)
        assert longer is not None
        assert longer.token == lease.token
        assert longer.expires_at_us > again.expires_at_us

    @needs("claim")
    def test_the_token_increases_with_every_change_of_holder(self, engine: Engine, space: str) -> None:
        tokens: list[int] = []
        for holder in ("a", "b", "b", "a"):
            lease = _claim(engine, space, holder, seconds=60)
            tokens.append(lease.token)
            engine.release(lease)
        assert tokens == sorted(set(tokens))

    @needs("claim")
    def test_an_expired_lease_is_lost_and_can_be_claimed(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=0.1)
        time.sleep(0.15)
        assert engine.heartbeat(lease, seconds=60) is None
        taken = _claim(engine, space, "b", seconds=60)
        assert taken.token > lease.token
        assert engine.heartbeat(lease, seconds=60) is None
        engine.release(lease)
        assert engine.claim(space, "job", holder="a", seconds=60) is None

    @needs("claim")
    def test_after_expiry_even_the_same_holder_gets_a_larger_token(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=0.1)
        time.sleep(0.15)
        assert _claim(engine, space, "a", seconds=60).token > lease.token

    @needs("claim")
    def test_of_racing_claims_one_wins(self, engine: Engine, space: str) -> None:
        outcomes = at_once(
            *[
                lambda holder=f"h{number}": engine.claim(space, "job", holder=holder, seconds=60)
                for number in range(8)
            ]
        )
        assert sum(isinstance(outcome, Lease) for outcome in outcomes) == 1
        assert sum(outcome is None for outcome in outcomes) == 7

    @needs("claim", "shared_writers")
    def test_engines_share_their_leases(self, engine: Engine, space: str, open_engine: OpenEngine) -> None:
        other = open_engine()
        lease = _claim(engine, space, "a", seconds=60)
        assert other.claim(space, "job", holder="b", seconds=60) is None
        other.commit(batches.fenced(batches.set_ref(space, "r"), "job", lease.token))
        engine.release(lease)
        taken = _claim(other, space, "b", seconds=60)
        with pytest.raises(Fenced):
            engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", lease.token))
        assert taken.token > lease.token

    @needs("claim")
    def test_a_fence_lets_the_holder_through(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=60)
        engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", lease.token))
        engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", lease.token))
        assert engine.refs(space, ["r"])["r"].version == 2

    @needs("claim")
    def test_a_stale_token_never_commits(self, engine: Engine, space: str) -> None:
        """Whether the lease has another holder, was released or has expired."""
        stale = _claim(engine, space, "a", seconds=60)
        engine.release(stale)
        with pytest.raises(Fenced, match="job"):
            engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", stale.token))
        brief = _claim(engine, space, "b", seconds=0.1)
        with pytest.raises(Fenced, match="job"):
            engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", stale.token))
        time.sleep(0.15)
        with pytest.raises(Fenced, match="job"):
            engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", brief.token))
        _claim(engine, space, "c", seconds=60)
        with pytest.raises(Fenced, match="job"):
            engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", brief.token))
        assert not engine.refs(space, ["r"])

    @needs("claim")
    def test_a_fence_is_checked_before_other_preconditions(self, engine: Engine, space: str) -> None:
        """A writer that lost the lease gets that error, not one about a ref that the new holder moved."""
        with pytest.raises(Conflict) as caught:
            engine.commit(batches.fenced(batches.set_ref(space, "r", expect=9), "job", 1))
        assert type(caught.value) is Fenced

    @needs("claim")
    def test_leases_are_not_in_the_journal(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=60)
        engine.heartbeat(lease, seconds=60)
        engine.release(lease)
        assert engine.wait(space, 0, seconds=0) == 0 if engine.caps.follow else True
        assert engine.commit(batches.set_ref(space, "r")).first_seq == 1


def _claim(engine: Engine, space: str, holder: str, *, seconds: float) -> Lease:
    lease = engine.claim(space, "job", holder=holder, seconds=seconds)
    assert lease is not None
    return lease


_CHILD_SECONDS = 60


class ProcessTests(EngineHarness):
    """Guarantees for concurrent processes."""

    def test_a_write_is_visible_immediately(self, engine: Engine, space: str) -> None:
        for number in range(30):
            engine.commit(batches.set_ref(space, "r", b"%d" % number))
            assert engine.refs(space, ["r"])["r"].value == b"%d" % number

    @needs("shared_writers")
    def test_a_write_is_visible_to_another_engine_immediately(
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
    def test_a_write_of_another_process_is_visible_immediately(
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
    def test_many_processes_lose_nothing(self, engine: Engine, space: str, make_engine: OpenEngine) -> None:
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
    def test_a_forked_child_can_use_the_engine_without_affecting_the_parent(
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
    def test_nested_forks_and_crashes_are_harmless(self, engine: Engine, space: str) -> None:
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
    """Run an action in a forked child that exits without cleanup, and wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns about forks in processes with threads; this tests that they work.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:  # noqa: BLE001 - a child must never return to the test run
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
