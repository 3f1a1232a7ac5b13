"""Agentry Lab by its own names: the files are where its document says, and the store is the record."""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

import treering
from treering.compat.agentry import Lab
from treering.core.ids import thread_scope
from treering.errors import Conflict, InvalidInput, Unreachable
from treering.threads.checkpoint_file import CheckpointRow

SAID = {"iter": 0, "agent_id": "pro", "role": "agent", "content": "Yes."}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Lab("store", thread_id="debate") as opened:
        yield opened


def state(**more):
    made = SimpleNamespace(thread_id="debate", iter=1, stop_flag=False, running_summary=None, cfg=object())
    made.history = [{"agent_id": "pro", "role": "agent", "content": "Yes."}]
    vars(made).update(more)
    return made


def rows(path="outputs/checkpoints.db"):
    """Read the file as Agentry Lab does."""
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT thread_id, payload, updated_at FROM checkpoints").fetchall()
    return {thread: (payload, updated_at) for thread, payload, updated_at in found}


def test_events_and_checkpoints_are_below_outputs_unless_told_otherwise(lab):
    lab.append(SAID | {"t": 1.5, "metadata": {"model": "gpt-5"}, "latency_ms": 12.0, "seen": True})
    lab.save_checkpoint("debate", state())
    (line,) = Path("outputs/transcripts/debate.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line) == SAID | {
        "t": 1.5, "metadata": {"model": "gpt-5"}, "actions": None, "latency_ms": 12.0, "seen": True,
    }  # fmt: skip
    (payload, updated_at) = rows()["debate"]
    assert json.loads(payload) == vars(state()) | {"cfg": {"_opaque": "builtins.object"}}
    assert updated_at == pytest.approx(lab.store.clock.now_us() / 1e6, abs=600)
    with Lab(lab.store, thread_id="debate", outputs="elsewhere") as other:
        other.append(SAID)
    assert len(Path("elsewhere/transcripts/debate.jsonl").read_text("utf-8").splitlines()) == 2


def test_the_newest_state_is_loaded_and_earlier_ones_stay_in_the_store(lab):
    assert lab.load_checkpoint("debate") is None
    for number in range(3):
        lab.save_checkpoint("debate", state(iter=number))
    lab.save_checkpoint("other", {"iter": 9})
    assert lab.load_checkpoint("debate")["iter"] == 2
    assert json.loads(rows()["debate"][0])["iter"] == 2
    assert [each.state["iter"] for each in lab.store.thread("debate").history()] == [2, 1, 0]
    assert lab.list_threads() == ["other", "debate"]


def test_clean_is_for_one_thread_and_leaves_nothing_of_it_in_the_files(lab):
    lab.append(SAID)
    lab.append(SAID | {"content": "the other word"}, "other")
    lab.save_checkpoint("debate", state(running_summary="a secret word"))
    lab.save_checkpoint("other", {"iter": 1})
    lab.clean(delete_checkpoint=False)
    assert not Path("outputs/transcripts/debate.jsonl").exists()
    assert set(rows()) == {"debate", "other"}
    lab.clean()
    assert set(rows()) == {"other"}
    assert b"a secret word" not in Path("outputs/checkpoints.db").read_bytes()
    assert [each.content for each in lab.transcript("other").read()] == ["the other word"]
    with pytest.raises(InvalidInput, match="no current thread"), Lab(lab.store) as nobody:
        nobody.clean()


ERASURES = {
    "clean": lambda store: store.thread("debate").clean(),
    "clean checkpoints": lambda store: store.thread("debate").clean(delete_transcript=False),
    "delete": lambda store: store.thread("debate").delete(),
    "forget": lambda store: store.forget(thread="debate"),
    "forget the scope": lambda store: store.forget(scope=thread_scope("debate", "")),
}


@pytest.mark.parametrize("how", ERASURES)
def test_whatever_erases_a_thread_erases_its_row_too(lab, how):
    """Also in a process that knows nothing of the lab, such as `treering forget`."""
    lab.save_checkpoint("debate", state(running_summary="a secret word"))
    lab.save_checkpoint("debate", state(running_summary="another secret word"))
    lab.save_checkpoint("other", {"iter": 1})
    assert ERASURES[how](lab.store).kept == {}
    assert set(rows()) == {"other"}
    assert b"secret word" not in Path("outputs/checkpoints.db").read_bytes()
    lab.save_checkpoint("debate", {"iter": 5})
    assert json.loads(rows()["debate"][0]) == {"iter": 5}


def test_the_row_of_a_thread_whose_erasure_failed_is_there_again(lab):
    lab.save_checkpoint("debate", state())
    before = rows()["debate"]
    lab.store.thread("debate").fork("debate-2")
    with pytest.raises(Conflict):
        lab.store.forget(thread="debate")
    assert rows()["debate"] == before


@pytest.mark.parametrize("before", ["commit", "erase"])
def test_a_row_that_is_written_during_an_erasure_is_erased_too(lab, monkeypatch, before):
    """Another process has saved, and writes the row when this one has deleted it but not yet the thread."""
    lab.save_checkpoint("debate", state(running_summary="a secret word"))
    row = CheckpointRow(lab.store.engine, lab.store.space, "debate", "", path=Path("outputs/checkpoints.db"))
    real, writes = getattr(lab.store.engine, before), iter([row.catch_up])

    def late(*arguments):
        for write in writes:
            write()
        return real(*arguments)

    monkeypatch.setattr(lab.store.engine, before, late)
    assert lab.store.forget(thread="debate").kept == {}
    assert next(writes, None) is None
    assert rows() == {}
    row.catch_up()  # and one that comes after it finds nothing to write
    assert rows() == {}


def test_a_file_that_cannot_be_touched_is_named(lab):
    lab.save_checkpoint("debate", state())
    Path("outputs/checkpoints.db").write_bytes(b"this is no database" * 100)
    ((path, why),) = lab.store.forget(thread="debate").kept.items()
    assert path == str(Path("outputs/checkpoints.db").absolute())
    assert "by hand" in why


def test_rows_of_another_program_stay(lab):
    pickled = pickle.dumps({"iter": 7})
    Path("outputs").mkdir()
    with closing(sqlite3.connect("outputs/checkpoints.db")) as database, database:
        database.execute(
            "CREATE TABLE checkpoints (thread_id TEXT PRIMARY KEY, payload BLOB, updated_at REAL)"
        )
        database.execute("INSERT INTO checkpoints VALUES ('old', ?, 1.0)", (pickled,))
    lab.save_checkpoint("debate", state())
    assert rows()["old"] == (pickled, 1.0)
    assert set(rows()) == {"old", "debate"}


def test_a_file_that_cannot_be_written_is_written_by_the_next_checkpoint(lab):
    Path("outputs").mkdir()
    Path("outputs/checkpoints.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(Unreachable, match="the store has the checkpoint"):
        lab.save_checkpoint("debate", state(iter=1))
    Path("outputs/checkpoints.db").unlink()
    lab.save_checkpoint("debate", state(iter=2))
    assert json.loads(rows()["debate"][0])["iter"] == 2
    assert len(list(lab.store.thread("debate").history())) == 2


@pytest.mark.parametrize("event", [{}, SAID | {"role": "king"}, SAID | {"iter": -1}, SAID | {"t": "soon"}])
def test_an_event_that_is_none_is_refused_and_not_written(lab, event):
    with pytest.raises(InvalidInput):
        lab.append(event)
    assert lab.transcript().read() == []


def test_a_store_that_was_given_is_not_closed(tmp_path):
    with treering.open(tmp_path / "store") as store:
        with Lab(store, outputs=tmp_path / "outputs") as lab:
            lab.save_checkpoint("t", {"iter": 1})
        assert store.thread("t").load().state == {"iter": 1}
