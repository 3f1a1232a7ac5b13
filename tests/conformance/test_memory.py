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
            # Nothing survives the process.
            "test_02_what_was_acknowledged_is_there_after_reopening",
            "test_02_what_was_submitted_is_finished_by_close",
            "test_03_a_replay_after_reopening_is_a_replay",
            "test_05_numbers_go_on_after_reopening",
            "test_18_a_snapshot_is_a_consistent_store",
            # Nobody else can see it.
            "test_05_a_follower_hears_of_another_engine",
            "test_06_a_write_is_read_at_once_by_another_engine",
            "test_06_a_write_of_another_process_is_read_at_once",
            "test_06_many_processes_lose_nothing",
            "test_07_of_racing_engines_one_wins",
            "test_09_sweeping_from_another_engine_breaks_nothing",
            "test_13_engines_share_their_leases",
            "test_19_a_fork_of_a_fork_and_a_crash_do_no_harm",
            "test_19_a_forked_child_can_use_the_engine_and_the_parent_is_unharmed",
        }
    )

    @pytest.fixture
    def make_engine(self):
        engine = MemoryEngine()
        return lambda: engine


@pytest.mark.timeout(600)  # a failure takes its time to shrink
def test_random_histories():
    """Two memory engines agree: what is tested here is the machine."""
    engine = MemoryEngine()
    engine.close = lambda: None
    run_state_machine_as_test(engine_machine(lambda: engine, max_examples=10))
