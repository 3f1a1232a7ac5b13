"""Import from Agentry Lab: the newest state of each thread, and never a pickle by itself."""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing

import pytest

import treering
from treering.errors import InvalidInput, NotFound
from treering.importers.agentry import import_agentry

STATE = {
    "thread_id": "debate",
    "iter": 3,
    "stop_flag": False,
    "history": [{"agent_id": "pro", "role": "agent", "content": "Yes."}],
    "running_summary": None,
    "_tool_calls_run_total": 2,
    "_tool_calls_run_by_id": {"search": 2},
}


SAID = {"iter": 0, "agent_id": "pro", "role": "agent", "content": "Yes."}


class Opaque:
    pass


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def outputs(tmp_path):
    folder = tmp_path / "outputs"
    (folder / "transcripts").mkdir(parents=True)
    (folder / "transcripts" / "debate.jsonl").write_text(
        "\n".join(json.dumps(SAID | {"t": checkpoint}) + "\n" for checkpoint in (1.5, 2.5)), encoding="utf-8"
    )
    return folder


def write(folder, **rows):
    """Rows of ``checkpoints.db``: thread to (payload, updated_at)."""
    with closing(sqlite3.connect(folder / "checkpoints.db")) as database, database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS checkpoints"
            " (thread_id TEXT PRIMARY KEY, payload BLOB, updated_at REAL)"
        )
        database.executemany(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)",
            [(thread, payload, updated_at) for thread, (payload, updated_at) in rows.items()],
        )


def counts(report):
    return [(each.path, each.holds, each.found, each.new, each.known, each.left_out) for each in report.files]


def row(state, updated_at=1_700_000_000.25):
    return json.dumps(state).encode(), updated_at


def test_an_imported_state_is_restored_into_an_object(store, outputs):
    write(outputs, debate=row(STATE))
    report = import_agentry(outputs, store)
    assert counts(report) == [
        ("checkpoints.db", "checkpoints", 1, 1, 0, 0),
        ("transcripts/debate.jsonl", "transcript events", 2, 2, 0, 0),
    ]
    assert [event.t for event in store.transcript("debate").read()] == [1.5, 2.5]
    checkpoint = store.thread("debate").head
    assert str(checkpoint.created_at) == "2023-11-14 22:13:20.250000+00:00"
    assert checkpoint.items("history") == STATE["history"]
    live = Opaque()
    live.cfg = config = object()
    live.history = []
    store.thread("debate").restore_state(live)
    assert live.cfg is config
    assert {name: value for name, value in vars(live).items() if name != "cfg"} == STATE


def test_importing_again_adds_nothing_and_a_newer_row_is_appended(store, outputs):
    write(outputs, debate=row(STATE), other=row({"iter": 1}, 5.0))
    assert import_agentry(outputs / "checkpoints.db", store).new == 2
    before = store.stats().rows
    assert import_agentry(outputs / "checkpoints.db", store).new == 0
    assert store.stats().rows == before
    longer = [*STATE["history"], {"agent_id": "con", "role": "agent", "content": "No."}]
    write(outputs, debate=row({**STATE, "iter": 4, "history": longer}, 1_700_000_060.0))
    report = import_agentry(outputs / "checkpoints.db", store)
    assert [(each.found, each.new, each.known) for each in report.files] == [(2, 1, 1)]
    history = list(store.thread("debate").history())
    assert [checkpoint.step for checkpoint in history] == [1, 0]
    assert history[0].items("history") == longer
    assert store.stats().rows["items"] == 2
    assert store.verify().ok


def test_a_thread_with_newer_checkpoints_is_left_alone(store, outputs):
    write(outputs, debate=row(STATE))
    import_agentry(outputs, store)
    store.thread("debate").append("said here")
    write(outputs, debate=row({**STATE, "iter": 9}, 1_700_000_001.0))
    report = import_agentry(outputs, store)
    assert counts(report)[0][2:] == (1, 0, 0, 1)
    assert "newer checkpoints" in report.files[0].note
    assert store.thread("debate").head.messages == ["said here"]


def test_a_dry_run_counts_and_writes_nothing(store, outputs):
    write(outputs, debate=row(STATE), other=row({"iter": 1}, 5.0))
    assert import_agentry(outputs, store, dry_run=True).new == 4
    assert store.stats().rows["events"] == 0
    assert import_agentry(outputs, store).new == 4
    assert import_agentry(outputs, store, dry_run=True).new == 0


class TestPickles:
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was read",))

    def test_a_pickled_row_is_rejected_and_nothing_is_written(self, store, outputs):
        write(outputs, debate=row(STATE), trap=(pickle.dumps(self.Trap()), 9.0))
        with pytest.raises(
            InvalidInput, match=r"1 of 2 rows are pickled \('trap'\).*unpickler=.*skip_pickled="
        ):
            import_agentry(outputs, store)
        assert list(store.threads()) == []

    def test_pickled_rows_can_be_skipped(self, store, outputs):
        write(outputs, debate=row(STATE), trap=(pickle.dumps(self.Trap()), 9.0))
        report = import_agentry(outputs, store, skip_pickled=True)
        assert counts(report)[0] == ("checkpoints.db", "checkpoints", 2, 1, 0, 1)
        assert "1 pickled rows were skipped" in report.files[0].note
        assert [each.id for each in store.threads()] == ["debate"]

    def test_a_custom_unpickler(self, store, outputs):
        state = {**STATE, "cfg": Opaque()}
        write(outputs, debate=(pickle.dumps({**STATE, "cfg": 1}), 9.0))
        assert import_agentry(
            outputs, store, unpickler=lambda data: {**pickle.loads(data), "cfg": state["cfg"]}
        ).new
        checkpoint = store.thread("debate").head
        assert checkpoint.metadata["opaque"] == ["cfg"]
        assert checkpoint.state["cfg"] == {"_opaque": f"{__name__}.Opaque"}

    def test_an_unpickler_that_fails(self, store, outputs):
        write(outputs, good=row(STATE, 1.0), debate=(b"\x80garbage", 9.0))
        with pytest.raises(InvalidInput, match="row of thread 'debate': the unpickler failed"):
            import_agentry(outputs, store, unpickler=pickle.loads, strict=True)
        assert list(store.threads()) == []
        report = import_agentry(outputs, store, unpickler=pickle.loads)
        assert counts(report)[0] == ("checkpoints.db", "checkpoints", 2, 1, 0, 1)


class TestInvalidSources:
    def test_a_missing_file(self, store, tmp_path):
        with pytest.raises(NotFound, match="outputs folder"):
            import_agentry(tmp_path / "nothing", store)

    def test_an_empty_folder(self, store, tmp_path):
        (tmp_path / "empty").mkdir()
        with pytest.raises(NotFound, match=r"looked for checkpoints\.db"):
            import_agentry(tmp_path / "empty", store)

    def test_not_a_database(self, store, tmp_path):
        (tmp_path / "checkpoints.db").write_bytes(b"hello, this is no database at all" * 100)
        with pytest.raises(InvalidInput, match=r"is not a checkpoints\.db of Agentry Lab"):
            import_agentry(tmp_path / "checkpoints.db", store)

    def test_another_database(self, store, tmp_path):
        with closing(sqlite3.connect(tmp_path / "checkpoints.db")) as database, database:
            database.execute("CREATE TABLE checkpoints (thread_id TEXT, checkpoint BLOB)")
        with pytest.raises(InvalidInput, match="no such column"):
            import_agentry(tmp_path / "checkpoints.db", store)

    @pytest.mark.parametrize("payload", [b"{torn", b"", None, b"{}x"])
    def test_an_invalid_row_costs_only_itself(self, store, outputs, payload):
        write(outputs, good=row(STATE, 1.0), bad=(payload, 9.0))
        for source in (outputs, outputs / "checkpoints.db"):
            with pytest.raises(InvalidInput, match="row of thread 'bad': "):
                import_agentry(source, store, strict=True)
        assert list(store.threads()) == []
        would = import_agentry(outputs, store, dry_run=True)
        report = import_agentry(outputs, store)
        assert counts(would) == counts(report)
        assert counts(report)[0] == ("checkpoints.db", "checkpoints", 2, 1, 0, 1)
        assert [each.partition(": ")[0] for each in report.bad] == ["checkpoints.db row of thread 'bad'"]
        assert [each.id for each in store.threads()] == ["good"]

    @pytest.mark.parametrize("updated_at", [float("inf"), -1.0, 1_700_000_000_250.0, None])
    def test_an_invalid_time(self, store, outputs, updated_at):
        write(outputs, debate=row(STATE), odd=row(STATE, updated_at))
        report = import_agentry(outputs, store)
        assert "row of thread 'odd': it has no payload, or updated_at" in report.bad[0]
        assert [each.id for each in store.threads()] == ["debate"]

    def test_a_file_that_is_no_database_leaves_the_transcripts(self, store, outputs):
        (outputs / "checkpoints.db").write_bytes(b"hello, this is no database at all" * 100)
        report = import_agentry(outputs, store)
        assert counts(report) == [
            ("transcripts/debate.jsonl", "transcript events", 2, 2, 0, 0),
            ("checkpoints.db", "checkpoints", 1, 0, 0, 1),
        ]
        assert "is not a checkpoints.db of Agentry Lab" in report.bad[0]
        with pytest.raises(InvalidInput, match="nothing was imported"):
            import_agentry(outputs, store, strict=True)

    def test_the_source_is_not_modified(self, store, outputs):
        write(outputs, debate=row(STATE))
        before = (outputs / "checkpoints.db").read_bytes()
        import_agentry(outputs, store)
        assert (outputs / "checkpoints.db").read_bytes() == before
        assert sorted(each.name for each in outputs.iterdir()) == ["checkpoints.db", "transcripts"]
