"""The memory engine: the reference model passes its own suite."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from treering.engines.memory.engine import MemoryEngine
from treering.testing.engine_suite import EngineSuite
from treering.testing.machine import engine_machine


class TestMemory(EngineSuite):
    skips = frozenset(
        {
            # Nothing outlives the process.
            "test_acknowledged_commits_survive_reopening",
            "test_close_finishes_submitted_batches",
            "test_a_replay_after_reopening_is_a_replay",
            "test_sequence_numbers_continue_after_reopening",
            "test_a_snapshot_is_a_consistent_store",
            # No other engine or process can see it.
            "test_a_follower_sees_commits_of_another_engine",
            "test_a_write_is_visible_to_another_engine_immediately",
            "test_a_write_of_another_process_is_visible_immediately",
            "test_many_processes_lose_nothing",
            "test_one_of_racing_engines_wins",
            "test_a_sweep_by_another_engine_is_safe",
            "test_engines_share_their_leases",
            "test_nested_forks_and_crashes_are_harmless",
            "test_a_forked_child_can_use_the_engine_without_affecting_the_parent",
        }
    )

    @pytest.fixture
    def make_engine(self):
        engine = MemoryEngine()
        return lambda: engine


@pytest.mark.timeout(600)  # shrinking a failure takes long
def test_random_histories():
    """Two memory engines agree: this tests the machine itself."""
    engine = MemoryEngine()
    engine.close = lambda: None
    run_state_machine_as_test(engine_machine(lambda: engine, max_examples=10))
