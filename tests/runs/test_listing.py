"""Finding out whether the process of a run is alive."""

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


def test_a_live_recorder_is_alive_to_concurrent_probes(tmp_path):
    with treering.open(tmp_path / "store") as writing, treering.open(tmp_path / "store") as store:
        writing.run(agent="a", id="r").start()
        writing.flush()
        assert [store.runs.get("r").status for _ in range(3)] == ["running"] * 3
