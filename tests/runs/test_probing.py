"""Asking whether a run's process is alive."""

from __future__ import annotations

import treering
from treering.runs.recorder import lease_name


def test_two_who_ask_at_once_do_not_take_each_other_for_the_recorder(tmp_path):
    with treering.open(tmp_path / "store") as dying:
        run = dying.run(agent="a", id="r").start()
        dying.flush()
        recorder = run.info.recorder
    with treering.open(tmp_path / "store") as store:
        held = store.engine.claim(store.space, lease_name(recorder), holder="probe", seconds=60)
        assert held is not None  # another one is just asking
        assert store.runs.get("r").status == "crashed"


def test_a_recorder_that_is_there_is_alive_however_many_ask(tmp_path):
    with treering.open(tmp_path / "store") as writing, treering.open(tmp_path / "store") as store:
        writing.run(agent="a", id="r").start()
        writing.flush()
        assert [store.runs.get("r").status for _ in range(3)] == ["running"] * 3
