"""Orchestrator: the import of JSON Lines logs, with the two commands of its documentation."""

from __future__ import annotations

import json

import pytest

import treering
from treering.cli.main import main
from treering.compat.services import get_run_cost, get_run_timeline, use
from treering.core.batch import Usage
from treering.importers.orchestrator_log import import_orchestrator_log

RUN = "123e4567-e89b-12d3-a456-426614174000"
LOG = [
    {
        "timestamp": "2025-09-03T08:00:00Z",
        "level": "INFO",
        "logger": "api",
        "message": "listening on port 8000",
    },
    {
        "timestamp": "2025-09-03T08:00:01.250Z",
        "level": "INFO",
        "message": f"run {RUN} started for project 7",
    },
    {
        "timestamp": "2025-09-03T08:00:02Z",
        "level": "INFO",
        "message": "plan ready",
        "run_id": RUN,
        "agent": "planner",
        "role": "assistant",
        "model": "gpt-4",
        "tokens": {"total": 150, "prompt": 100, "completion": 50},
        "cost_eur": 0.0045,
    },
    {"timestamp": "2025-09-03T08:00:03Z", "level": "DEBUG", "message": f"run_id={RUN} cache miss"},
    {"timestamp": "2025-09-03 08:00:04,500", "level": "ERROR", "message": "run_id=run-10 tool failed"},
    {
        "timestamp": 1756886405.5,
        "level": "INFO",
        "message": "run_id=run-1, done.",
        "extra": {"project_id": "12"},
    },
]


def write(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture
def log(tmp_path):
    return write(tmp_path / "logs" / "app-20250903.jsonl", LOG)


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


def counts(report):
    return [(each.found, each.new, each.known, each.left_out) for each in report.files]


def messages(store, run_id):
    events = store.timeline.of_run(run_id).events
    return list(
        zip(
            [event.ts.isoformat() for event in events],
            store.timeline.content(*(e.body for e in events)),
            strict=True,
        )
    )


def test_the_documents_two_commands(log, tmp_path, capsys):
    def says(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["import", "orchestrator-log", str(log), "--store", str(tmp_path / "made"), *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out.splitlines()[1]

    note = "(1 without a run, 1 debug output)"
    assert says("--dry-run") == f"  app-20250903.jsonl: 6 lines, would import 4, 2 left out {note}"
    assert not (tmp_path / "made").exists()
    assert says() == f"  app-20250903.jsonl: 6 lines, imported 4, 2 left out {note}"
    assert says() == f"  app-20250903.jsonl: 6 lines, imported 0, 4 there already, 2 left out {note}"


def test_run_ids_project_ids_times_and_significant_events(store, log):
    import_orchestrator_log(log, store)
    runs = {run.id: run for run in store.runs.each()}
    assert {id_: (run.project_id, run.status) for id_, run in runs.items()} == {
        RUN: (7, "ok"),
        "run-10": (None, "error"),
        "run-1": (12, "ok"),
    }
    assert str(runs[RUN].started_at) == "2025-09-03 08:00:01.250000+00:00"
    assert messages(store, RUN) == [
        ("2025-09-03T08:00:01.250000+00:00", f"run {RUN} started for project 7"),
        ("2025-09-03T08:00:02+00:00", "plan ready"),
    ]
    assert messages(store, "run-10") == [("2025-09-03T08:00:04.500000+00:00", "run_id=run-10 tool failed")]
    assert messages(store, "run-1") == [("2025-09-03T08:00:05.500000+00:00", "run_id=run-1, done.")]


def test_the_services_read_what_was_imported(store, log):
    import_orchestrator_log(log, store)
    use(store)
    labels = [event["label"] for event in get_run_timeline(RUN)["events"]]
    assert labels == ["system message", "assistant message"]
    cost = get_run_cost(RUN)
    assert cost["total"]["tokens"] == 150
    assert cost["total"]["cost_eur"] == pytest.approx(0.0045)
    assert store.cost.of_run(RUN).total.usage == Usage(input=100, output=50)


def test_a_dry_run_counts_truly_and_again_brings_only_what_is_new(store, log):
    planned = import_orchestrator_log(log, store, dry_run=True)
    assert list(store.runs.each()) == []
    assert counts(planned) == counts(import_orchestrator_log(log, store)) == [(6, 4, 0, 2)]
    assert counts(import_orchestrator_log(log, store)) == [(6, 0, 4, 2)]
    later = {"timestamp": "2025-09-03T09:00:00Z", "message": "done", "run_id": RUN}
    write(log, [*LOG, later, later])
    assert counts(import_orchestrator_log(log, store)) == [(8, 2, 4, 2)]
    assert [text for _, text in messages(store, RUN)][2:] == ["done", "done"]
    assert store.runs.load(RUN).ended_at_us - store.runs.load(RUN).started_at_us == 3598_750_000
    assert store.verify().ok


def test_bad_lines_are_reported_with_their_numbers_and_stop_nothing(store, log):
    with log.open("a", encoding="utf-8") as file:
        file.write('Traceback (most recent call last):\n{"run_id": "r", "message": "no time"}\n[1]\n')
    report = import_orchestrator_log(log, store)
    assert [each.partition(": ")[0] for each in report.bad] == [
        f"app-20250903.jsonl line {number}" for number in (7, 8, 9)
    ]
    assert counts(report) == [(9, 4, 0, 5)]


def test_each_run_is_one_transaction(store, log, monkeypatch):
    """The second run cannot be written; the first is whole, of the second there is nothing."""
    written = store.commit
    kept = []

    def commit(draft):
        if kept:
            raise treering.errors.Busy("the disk is away")
        kept.append(draft)
        return written(draft)

    monkeypatch.setattr(store, "commit", commit)
    with pytest.raises(treering.errors.Busy):
        import_orchestrator_log(log, store)
    monkeypatch.undo()
    assert [run.id for run in store.runs.each()] == [RUN]
    assert len(messages(store, RUN)) == 2
    assert counts(import_orchestrator_log(log, store)) == [(6, 2, 2, 2)]


def test_lines_about_a_run_that_was_recorded_join_it(store, log):
    with store.run(agent="planner", id=RUN):
        pass
    store.flush()
    before = store.runs.load(RUN)
    import_orchestrator_log(log, store)
    assert store.runs.load(RUN) == before
    assert len(messages(store, RUN)) == 2
