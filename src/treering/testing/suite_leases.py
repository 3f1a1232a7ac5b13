"""Leases: one holder, tokens that grow, and fences that stop the one who lost it (invariant 13).

The clock of a lease is the store's, so these tests wait in real time, with margins.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from treering.core.records import Lease
from treering.errors import Conflict, Fenced
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once, needs

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.testing.harness import OpenEngine


class LeaseTests(EngineHarness):
    """What a lease promises."""

    @needs("claim")
    def test_13_a_claim_has_one_holder(self, engine: Engine, space: str) -> None:
        lease = engine.claim(space, "job", holder="a", seconds=60)
        assert lease is not None
        assert (lease.space, lease.name, lease.holder) == (space, "job", "a")
        assert engine.claim(space, "job", holder="b", seconds=60) is None
        assert engine.claim(space, "other job", holder="b", seconds=60) is not None

    @needs("claim")
    def test_13_the_holder_renews_under_the_same_token(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=10)
        again = _claim(engine, space, "a", seconds=60)
        assert again.token == lease.token
        assert again.expires_at_us > lease.expires_at_us
        longer = engine.heartbeat(lease, seconds=120)
        assert longer is not None
        assert longer.token == lease.token
        assert longer.expires_at_us > again.expires_at_us

    @needs("claim")
    def test_13_the_token_grows_with_every_change_of_holder(self, engine: Engine, space: str) -> None:
        tokens: list[int] = []
        for holder in ("a", "b", "b", "a"):
            lease = _claim(engine, space, holder, seconds=60)
            tokens.append(lease.token)
            engine.release(lease)
        assert tokens == sorted(set(tokens))

    @needs("claim")
    def test_13_an_expired_lease_can_be_claimed_and_is_lost(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=0.1)
        time.sleep(0.15)
        assert engine.heartbeat(lease, seconds=60) is None
        taken = _claim(engine, space, "b", seconds=60)
        assert taken.token > lease.token
        assert engine.heartbeat(lease, seconds=60) is None
        engine.release(lease)
        assert engine.claim(space, "job", holder="a", seconds=60) is None

    @needs("claim")
    def test_13_after_expiry_even_the_same_holder_gets_a_larger_token(
        self, engine: Engine, space: str
    ) -> None:
        lease = _claim(engine, space, "a", seconds=0.1)
        time.sleep(0.15)
        assert _claim(engine, space, "a", seconds=60).token > lease.token

    @needs("claim")
    def test_13_of_racing_claims_one_wins(self, engine: Engine, space: str) -> None:
        outcomes = at_once(
            *[
                lambda holder=f"h{number}": engine.claim(space, "job", holder=holder, seconds=60)
                for number in range(8)
            ]
        )
        assert sum(isinstance(outcome, Lease) for outcome in outcomes) == 1
        assert sum(outcome is None for outcome in outcomes) == 7

    @needs("claim", "shared_writers")
    def test_13_engines_share_their_leases(self, engine: Engine, space: str, open_engine: OpenEngine) -> None:
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
    def test_13_a_fence_lets_the_holder_through(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=60)
        engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", lease.token))
        engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", lease.token))
        assert engine.refs(space, ["r"])["r"].version == 2

    @needs("claim")
    def test_13_a_stale_token_never_commits(self, engine: Engine, space: str) -> None:
        """Not when the lease is someone else's, not when it was released, not when it ran out."""
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
    def test_13_a_fence_is_looked_at_before_other_preconditions(self, engine: Engine, space: str) -> None:
        """Who lost the lease must learn that, not which ref the new holder has moved."""
        with pytest.raises(Conflict) as caught:
            engine.commit(batches.fenced(batches.set_ref(space, "r", expect=9), "job", 1))
        assert type(caught.value) is Fenced

    @needs("claim")
    def test_13_leases_are_not_in_the_journal(self, engine: Engine, space: str) -> None:
        lease = _claim(engine, space, "a", seconds=60)
        engine.heartbeat(lease, seconds=60)
        engine.release(lease)
        assert engine.wait(space, 0, seconds=0) == 0 if engine.caps.follow else True
        assert engine.commit(batches.set_ref(space, "r")).first_seq == 1


def _claim(engine: Engine, space: str, holder: str, *, seconds: float) -> Lease:
    lease = engine.claim(space, "job", holder=holder, seconds=seconds)
    assert lease is not None
    return lease
